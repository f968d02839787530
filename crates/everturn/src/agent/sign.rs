//! Signatures over states that clients keep.
//!
//! A signature says that this agent handed out exactly this state for this session. It does not say that it is the
//! newest one: a client may send an older state of its own again, which is what going back in a client-managed session
//! is. Where that must not be, keep the state in a store.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::json::{Json, canonical_bytes};
use crate::state::SessionState;
use crate::{AgentName, Error, ErrorKind, Result};

/// The least bytes a signing key has.
const MIN_KEY_BYTES: usize = 32;

/// A secret that states are signed with, under a name by which it is found again.
///
/// ```
/// use everturn::SigningKey;
///
/// let key = SigningKey::new("2026-11", b"0123456789abcdef0123456789abcdef")?;
/// assert_eq!(format!("{key:?}"), "SigningKey(\"2026-11\")");
/// # Ok::<(), everturn::Error>(())
/// ```
#[derive(Clone)]
pub struct SigningKey {
    id: String,
    secret: Vec<u8>,
}

impl SigningKey {
    /// A key of at least 32 bytes.
    pub fn new(id: impl Into<String>, secret: &[u8]) -> Result<Self> {
        let id = id.into();
        if id.is_empty() || id.contains('.') || id.len() > 64 {
            return Err(Error::invalid("a signing key's id has 1 to 64 characters and no dot"));
        }
        if secret.len() < MIN_KEY_BYTES {
            return Err(Error::invalid(format!("a signing key has at least {MIN_KEY_BYTES} bytes")));
        }
        Ok(Self { id, secret: secret.to_vec() })
    }

    fn mac(&self, agent: &AgentName, state: &SessionState) -> Result<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret)
            .map_err(|_| Error::internal("HMAC takes keys of any length"))?;
        mac.update(b"everturn client state 1\n");
        for part in [self.id.as_bytes(), agent.as_str().as_bytes()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.update(&canonical_bytes(Json::written(state)?.as_str())?);
        Ok(mac)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.id).finish()
    }
}

/// The keys of an agent: the first signs, all of them verify, so that a key can be replaced without refusing anybody.
#[derive(Clone, Debug)]
pub(crate) struct SigningKeys(Vec<SigningKey>);

impl SigningKeys {
    pub(crate) fn new(keys: Vec<SigningKey>) -> Result<Self> {
        let distinct: std::collections::HashSet<_> = keys.iter().map(|key| &key.id).collect();
        if keys.is_empty() || distinct.len() < keys.len() {
            return Err(Error::invalid("signing needs at least one key, each with an id of its own"));
        }
        Ok(Self(keys))
    }

    pub(crate) fn sign(&self, agent: &AgentName, state: &SessionState) -> Result<String> {
        let key = &self.0[0];
        let tag = key.mac(agent, state)?.finalize().into_bytes();
        let hex: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{}.{hex}", key.id))
    }

    pub(crate) fn verify(&self, agent: &AgentName, state: &SessionState, signature: Option<&str>) -> Result<()> {
        let wrong = |what: &str| {
            Error::new(ErrorKind::Invalid, format!("{what}: send the state with its signature as it was handed out"))
        };
        let signature =
            signature.ok_or_else(|| wrong("this agent's states are signed, and the signature is missing"))?;
        // One answer for every way of being wrong, found in the same time.
        let refused = || wrong("the state's signature does not fit");
        let (id, hex) = signature.split_once('.').ok_or_else(refused)?;
        let key = self.0.iter().find(|key| key.id == id).ok_or_else(refused)?;
        let tag = unhex(hex).ok_or_else(refused)?;
        key.mac(agent, state)?.verify_slice(&tag).map_err(|_| refused())
    }
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        hex.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect::<Option<_>>()?;
    (digits.len() == 64).then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
