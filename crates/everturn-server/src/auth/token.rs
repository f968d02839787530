//! An API key as its owner has it: `evt_<id>_<secret>`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "evt_";
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// Names a key: 12 hexadecimal digits, and no secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct KeyId(String);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for KeyId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match unhex::<ID_BYTES>(text) {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err("a key's id has 12 hexadecimal digits: `everturn keys list` shows them".to_owned()),
        }
    }
}

impl TryFrom<String> for KeyId {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.0
    }
}

/// A whole key. It is shown once, by [`Token::reveal`], and printed by nothing else.
pub(crate) struct Token {
    pub(crate) id: KeyId,
    secret: [u8; SECRET_BYTES],
}

impl Token {
    /// A fresh one, from the system's randomness.
    pub(crate) fn random() -> anyhow::Result<Self> {
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        for bytes in [&mut id[..], &mut secret[..]] {
            getrandom::fill(bytes).map_err(|error| anyhow::anyhow!("the system gives no random bytes: {error}"))?;
        }
        Ok(Self { id: KeyId(hex(&id)), secret })
    }

    /// Whether a bearer's text means to be one of ours.
    pub(crate) fn looks_like(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// Reads one. There is one spelling only, and no word on what was wrong with another.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        Some(Self { id: id.parse().ok()?, secret: unhex(secret)? })
    }

    /// The text its owner keeps.
    pub(crate) fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, hex(&self.secret))
    }

    /// What is kept of the secret.
    ///
    /// A slow hash protects what people choose, by making each guess dear. Nobody guesses 256 random bits at any price,
    /// and a slow hash would only make every request dear.
    pub(crate) fn digest(&self) -> KeyDigest {
        KeyDigest(Sha256::digest(self.secret).into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.id.0).finish()
    }
}

/// The SHA-256 of a secret.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct KeyDigest(pub(super) [u8; 32]);

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest")
    }
}

impl TryFrom<String> for KeyDigest {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        unhex(&text).map(Self).ok_or("a digest has 64 hexadecimal digits")
    }
}

impl From<KeyDigest> for String {
    fn from(digest: KeyDigest) -> Self {
        hex(&digest.0)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly so many bytes in lower-case digits.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_revealed_is_read_again_and_debug_shows_the_id_only() {
        let token = Token::random().unwrap();
        let text = token.reveal();
        let read = Token::read(&text).unwrap();
        assert_eq!((&read.id, read.secret), (&token.id, token.secret));
        assert_eq!(format!("{token:?}"), format!("Token(\"{}\")", token.id));
        assert!(!format!("{token:?} {:?}", token.digest()).contains(&hex(&token.secret)[..8]));
        assert_ne!(Token::random().unwrap().reveal(), text);
    }

    #[test]
    fn another_spelling_is_another_key() {
        let text = Token::random().unwrap().reveal();
        for bad in [
            text.to_uppercase(),
            text[..text.len() - 1].to_owned(),
            format!("{text}0"),
            format!("{text} "),
            text.replacen('_', "-", 2),
            text.replacen("evt_", "evt_é", 1),
            "evt_".to_owned(),
            "evt__".to_owned(),
            "evt_0123456789ab_".to_owned(),
            format!("evt_0123456789ab_{}", "é".repeat(32)),
        ] {
            assert!(Token::read(&bad).is_none(), "{bad}");
        }
    }
}
