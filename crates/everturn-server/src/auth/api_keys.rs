//! The API keys of a running server.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use everturn::Timestamp;
use subtle::Choice;

use super::private_file::Stamp;
use super::{ApiKey, Identity, KeyFile, KeyId, Standing, Token};

/// How long a change of the file may go unnoticed.
const LOOK: Duration = Duration::from_secs(1);

/// The keys in a file, read again when it changed: a key that is revoked is refused a moment later.
#[derive(Debug)]
pub(crate) struct ApiKeys {
    file: KeyFile,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    stamp: Option<Stamp>,
    at: Duration,
    keys: HashMap<KeyId, ApiKey>,
    /// Whether there ever was a file. When it goes, the door does not open.
    existed: bool,
}

impl ApiKeys {
    /// Reads the file, which need not exist yet. `uptime` is the moment on a clock that never jumps.
    pub(crate) fn open(file: KeyFile, uptime: Duration) -> anyhow::Result<Self> {
        // The stamp first: a change in between is then seen as one.
        let stamp = file.stamp()?;
        let keys = file.read()?;
        let existed = keys.is_some();
        let seen = Seen { stamp, at: uptime, keys: by_id(keys), existed };
        Ok(Self { file, seen: Mutex::new(seen) })
    }

    /// Whether there is, or was, a file of keys.
    pub(super) fn exist(&self, uptime: Duration) -> bool {
        self.with(uptime, |seen| seen.existed)
    }

    /// Whether any key opens anything.
    pub(super) fn any_valid(&self, uptime: Duration, now: Timestamp) -> bool {
        self.with(uptime, |seen| seen.keys.values().any(|key| key.standing(now) == Standing::Valid))
    }

    /// Whose key this is.
    pub(super) fn identify(&self, token: &Token, uptime: Duration, now: Timestamp) -> Option<Identity> {
        let digest = token.digest();
        self.with(uptime, |seen| {
            let key = seen.keys.get(&token.id);
            let matches = key.map_or(Choice::from(0), |key| key.matches(&digest));
            key.filter(|key| bool::from(matches) && key.standing(now) == Standing::Valid).map(ApiKey::identity)
        })
    }

    /// Whether a key still opens anything.
    pub(super) fn is_valid(&self, id: &KeyId, uptime: Duration, now: Timestamp) -> bool {
        self.with(uptime, |seen| seen.keys.get(id).is_some_and(|key| key.standing(now) == Standing::Valid))
    }

    fn with<T>(&self, uptime: Duration, read: impl FnOnce(&Seen) -> T) -> T {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if uptime.saturating_sub(seen.at) >= LOOK {
            // In place, though this may be a task: it is one look at a file a second, and a small read when it changed.
            self.look(&mut seen);
            seen.at = uptime;
        }
        read(&seen)
    }

    fn look(&self, seen: &mut Seen) {
        let read = self.file.stamp().and_then(|stamp| {
            if stamp == seen.stamp {
                return Ok(());
            }
            let keys = self.file.read()?;
            seen.existed |= keys.is_some();
            seen.keys = by_id(keys);
            seen.stamp = stamp;
            Ok(())
        });
        if let Err(error) = read {
            // Some key may have been revoked in what cannot be read, so until it can be none opens anything.
            tracing::error!(%error, "the keys cannot be read, and nobody is let in by one");
            seen.existed = true;
            seen.keys.clear();
            seen.stamp = None;
        }
    }
}

fn by_id(keys: Option<Vec<ApiKey>>) -> HashMap<KeyId, ApiKey> {
    keys.into_iter().flatten().map(|key| (key.id.clone(), key)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use everturn::UserId;

    use super::*;
    use crate::auth::{Right, Rights};

    const NOW: Timestamp = Timestamp::from_micros(1_000);

    fn add(file: &KeyFile, expires: Option<Timestamp>) -> Token {
        let token = Token::random().unwrap();
        let mut key = ApiKey::new(&token, UserId::new("ann").unwrap(), Rights::up_to(Right::Write), NOW);
        key.expires = expires;
        file.add(key).unwrap();
        token
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_key_works_until_it_expires_or_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.json"));
        let keys = ApiKeys::open(file.clone(), seconds(0)).unwrap();
        assert!(!keys.exist(seconds(0)));

        let (lasting, passing) = (add(&file, None), add(&file, Some(NOW.plus(seconds(60)))));
        let known = |token: &Token, at, now| keys.identify(token, seconds(at), now).is_some();
        assert!(!known(&lasting, 0, NOW), "not looked yet");
        assert!(known(&lasting, 1, NOW) && known(&passing, 1, NOW) && keys.exist(seconds(1)));
        assert!(!known(&passing, 1, NOW.plus(seconds(60))), "expired");
        assert!(known(&lasting, 1, NOW.plus(seconds(60))));

        file.revoke(&lasting.id, NOW).unwrap();
        assert!(!known(&lasting, 2, NOW) && known(&passing, 2, NOW));
    }

    #[test]
    fn the_right_id_with_another_secret_is_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.json"));
        let token = add(&file, None);
        let keys = ApiKeys::open(file, seconds(0)).unwrap();
        let other = Token::random().unwrap().reveal();
        let forged = format!("evt_{}_{}", token.id, other.rsplit('_').next().unwrap());
        assert!(keys.identify(&Token::read(&forged).unwrap(), seconds(0), NOW).is_none());
        assert!(keys.identify(&token, seconds(0), NOW).is_some());
    }

    #[test]
    fn a_file_that_goes_bad_or_away_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.json"));
        let token = add(&file, None);
        let keys = ApiKeys::open(file.clone(), seconds(0)).unwrap();
        let known = |at| keys.identify(&token, seconds(at), NOW).is_some();

        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(!known(1));
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(known(2));
        let good = fs::read(file.path()).unwrap();
        fs::write(file.path(), "{").unwrap();
        assert!(!known(3));
        fs::write(file.path(), good).unwrap();
        assert!(known(4));
        fs::remove_file(file.path()).unwrap();
        assert!(!known(5) && keys.exist(seconds(6)), "a door that was closed stays closed");
    }
}
