//! Who decides who somebody is.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use everturn::Clock;

use super::{ApiKeys, Identity, Jwt, Proof, Rate, RateLimit, Token};

/// How often one address may fail to prove who it is.
const FAILURES: Rate = Rate::per_second(50);

/// How often it is looked whether those who have something open may still have it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Longer than any token we would take.
const MAX_TOKEN: usize = 4096;

/// Tells who the bearer of a text is, by keys and tokens, and how often they may ask.
pub(crate) struct Authority {
    keys: Option<ApiKeys>,
    jwt: Option<Jwt>,
    requests: RateLimit<Arc<str>>,
    failures: RateLimit<IpAddr>,
    clock: Arc<dyn Clock>,
}

/// Why a request goes no further.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nobody knows who this is: without a key, with an unknown, an expired or a revoked one.
    Stranger,
    /// Too many requests; the next may come after this.
    TooMany(Duration),
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("jwt", &self.jwt).finish_non_exhaustive()
    }
}

impl Authority {
    pub(crate) fn new(keys: Option<ApiKeys>, jwt: Option<Jwt>, rate: Rate, clock: Arc<dyn Clock>) -> Self {
        Self { keys, jwt, requests: RateLimit::new(rate), failures: RateLimit::new(FAILURES), clock }
    }

    /// Whether credentials are asked for. A server that runs begins to when the first key is made, and never stops.
    pub(crate) fn asks(&self) -> bool {
        self.jwt.is_some() || self.keys.as_ref().is_some_and(|keys| keys.exist(self.clock.uptime()))
    }

    /// Whether anybody at all could prove who they are.
    pub(crate) fn knows_somebody(&self) -> bool {
        let valid = |keys: &ApiKeys| keys.any_valid(self.clock.uptime(), self.clock.now());
        self.jwt.is_some() || self.keys.as_ref().is_some_and(valid)
    }

    /// Who somebody is, by what they bear.
    ///
    /// Failing often never keeps a good key out: behind a proxy all have one address, and any stranger could lock out the
    /// others. It need not: what is guessed at has 256 bits. The limit spares the server the work of answering.
    pub(crate) fn identify(&self, bearer: Option<&str>, peer: IpAddr) -> Result<Identity, Refusal> {
        let uptime = self.clock.uptime();
        if !self.asks() {
            return Ok(Identity::local());
        }
        let Some(identity) = bearer.and_then(|text| self.bearer(text)) else {
            return Err(match self.failures.take(network(peer), uptime) {
                Ok(()) => Refusal::Stranger,
                Err(wait) => Refusal::TooMany(wait),
            });
        };
        self.requests.take(identity.key.clone(), uptime).map_err(Refusal::TooMany)?;
        Ok(identity)
    }

    /// Waits until an identity no longer holds: its key is revoked or has expired, its token has ended, or the server asks for
    /// keys and did not before.
    pub(crate) async fn ended(&self, identity: &Identity) {
        while self.holds(&identity.proof) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    fn holds(&self, proof: &Proof) -> bool {
        let (uptime, now) = (self.clock.uptime(), self.clock.now());
        match proof {
            Proof::None => !self.asks(),
            Proof::Key(id) => self.keys.as_ref().is_some_and(|keys| keys.is_valid(id, uptime, now)),
            Proof::Token(until) => now < *until,
        }
    }

    fn bearer(&self, text: &str) -> Option<Identity> {
        if text.len() > MAX_TOKEN {
            return None;
        }
        if Token::looks_like(text) {
            let keys = self.keys.as_ref()?;
            return keys.identify(&Token::read(text)?, self.clock.uptime(), self.clock.now());
        }
        self.jwt.as_ref()?.identify(text, self.clock.now())
    }
}

/// What one person has: an address, or with IPv6 the 2^64 of a network.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use everturn::{ManualClock, Timestamp, UserId};

    use super::*;
    use crate::auth::{ApiKey, KeyFile, Right, Rights};

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn authority(file: &KeyFile, rate: Rate) -> (Authority, ManualClock) {
        let clock = ManualClock::new(Timestamp::from_micros(0));
        let keys = ApiKeys::open(file.clone(), clock.uptime()).unwrap();
        (Authority::new(Some(keys), None, rate, Arc::new(clock.clone())), clock)
    }

    fn add(file: &KeyFile) -> String {
        let token = Token::random().unwrap();
        let user = UserId::new("ann").unwrap();
        file.add(ApiKey::new(&token, user, Rights::up_to(Right::Read), Timestamp::from_micros(0))).unwrap();
        token.reveal()
    }

    #[test]
    fn everybody_is_the_user_until_the_first_key_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.json"));
        let (authority, clock) = authority(&file, Rate::per_second(50));
        assert_eq!(authority.identify(None, PEER).unwrap().user.as_str(), "user");
        let key = add(&file);
        clock.advance(Duration::from_secs(1));
        assert_eq!(authority.identify(None, PEER).unwrap_err(), Refusal::Stranger);
        assert_eq!(authority.identify(Some(&key), PEER).unwrap().user.as_str(), "ann");
    }

    #[test]
    fn too_many_requests_of_a_key_are_told_when_to_come_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.json"));
        let (one, other) = (add(&file), add(&file));
        let (authority, clock) = authority(&file, Rate::per_second(1));
        for _ in 0..2 {
            authority.identify(Some(&one), PEER).unwrap();
        }
        let Refusal::TooMany(wait) = authority.identify(Some(&one), PEER).unwrap_err() else { panic!("a stranger") };
        authority.identify(Some(&other), PEER).unwrap();
        clock.advance(wait);
        authority.identify(Some(&one), PEER).unwrap();
    }

    #[test]
    fn failures_are_limited_by_address_and_lock_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.json"));
        let key = add(&file);
        let (authority, _clock) = authority(&file, Rate::per_second(50));
        let refused = |peer| authority.identify(Some("evt_no"), peer).unwrap_err();
        let strangers = (0..1000).take_while(|_| refused(PEER) == Refusal::Stranger).count();
        assert_eq!(strangers, 100);
        assert_eq!(refused(IpAddr::from([192, 0, 2, 2])), Refusal::Stranger, "another address");
        assert!(authority.identify(Some(&key), PEER).is_ok(), "a good key from the same one");
    }

    #[test]
    fn one_network_of_ipv6_is_one_caller() {
        let net = |text: &str| network(text.parse().unwrap());
        assert_eq!(net("2001:db8:1:2::1"), net("2001:db8:1:2:ffff::9"));
        assert_ne!(net("2001:db8:1:2::1"), net("2001:db8:1:3::1"));
        assert_eq!(net("::ffff:192.0.2.1"), PEER);
    }
}
