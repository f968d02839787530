//! JSON Web Tokens, signed with HMAC-SHA-256 and nothing else.
//!
//! The algorithm is ours to choose, not the token's: the signature is checked as HS256 before a byte of the token is
//! read, and a header that names another algorithm is refused after that.

use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use everturn::{AppName, Timestamp, UserId};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Deserializer};
use sha2::Sha256;

use super::{Identity, Proof, Rights, private_file};

/// HMAC-SHA-256 is as strong as its key up to this.
const MIN_SECRET_BYTES: usize = 32;

/// How far the clock of whoever makes tokens may be ahead of ours. A token that has expired gets no such time.
const CLOCKS_DIFFER: f64 = 30.0;

/// Checks tokens made by somebody who has the same secret.
pub(crate) struct Jwt {
    secret: Vec<u8>,
    audience: String,
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("audience", &self.audience).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that must be understood; none are.
    #[serde(default, deserialize_with = "given")]
    crit: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Claims {
    sub: UserId,
    aud: Audience,
    exp: f64,
    #[serde(default, deserialize_with = "given")]
    nbf: Option<f64>,
    #[serde(default, deserialize_with = "given")]
    app: Option<AppName>,
    rights: Rights,
}

/// `null` is not the same as leaving a claim out: an app of `null` must not come to mean all of them.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn names(&self, audience: &str) -> bool {
        match self {
            Self::One(one) => one == audience,
            Self::Many(many) => many.iter().any(|one| one == audience),
        }
    }
}

impl Jwt {
    /// Tokens for an audience, signed with the secret in a file.
    pub(crate) fn from_file(path: &Path, audience: &str) -> anyhow::Result<Self> {
        let shown = path.display();
        let secret = private_file::read(path)?.with_context(|| {
            format!("there is no JWT key at {shown}: `(umask 077; openssl rand -hex 32 > {shown})` makes one")
        })?;
        Self::new(secret, audience).map_err(|error| anyhow::anyhow!("the JWT key in {shown} cannot be used: {error}"))
    }

    fn new(mut secret: Vec<u8>, audience: &str) -> anyhow::Result<Self> {
        // Editors and shells end a text with a line break, and whoever makes the tokens has the text without it.
        if let Ok(text) = std::str::from_utf8(&secret) {
            secret.truncate(text.trim_end_matches(['\r', '\n']).len());
        }
        anyhow::ensure!(
            secret.len() >= MIN_SECRET_BYTES,
            "it has {} bytes, and fewer than {MIN_SECRET_BYTES} can be guessed: `openssl rand -hex 32` makes a good one",
            secret.len()
        );
        anyhow::ensure!(!audience.is_empty(), "the audience is empty: --jwt-audience names this server");
        Ok(Self { secret, audience: audience.to_owned() })
    }

    /// Who a token says its bearer is, if it is one of ours and good now.
    pub(super) fn identify(&self, token: &str, now: Timestamp) -> Option<Identity> {
        let (signed, signature) = token.rsplit_once('.')?;
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).ok()?;
        mac.update(signed.as_bytes());
        mac.verify_slice(&URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;

        let (header, claims) = signed.split_once('.')?;
        let header: Header = part(header)?;
        if header.alg != "HS256" || header.crit.is_some() {
            return None;
        }
        let claims: Claims = part(claims)?;
        let now = now.as_micros() as f64 / 1e6;
        let early = claims.nbf.is_some_and(|nbf| nbf > now + CLOCKS_DIFFER);
        if claims.exp <= now || early || !claims.aud.names(&self.audience) {
            return None;
        }
        // By the subject, because the same person has another token every hour.
        let key = format!("jwt:{}", claims.sub).into();
        // What is beyond the clock's range is its end.
        let proof = Proof::Token(Timestamp::from_micros((claims.exp * 1e6) as i64));
        Some(Identity { user: claims.sub, app: claims.app, rights: claims.rights, key, proof })
    }
}

/// A part of a token, which is an object: serde would also take the members' values in a list.
fn part<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(text).ok()?;
    json.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(&json).ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::auth::Right;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const NOW: i64 = 1_800_000_000;

    fn signed(header: &str, claims: &str, secret: &[u8]) -> String {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        mac.update(text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    fn token(claims: &Value) -> String {
        signed(r#"{"alg":"HS256","typ":"JWT"}"#, &claims.to_string(), SECRET)
    }

    fn claims() -> Value {
        json!({"sub": "ann", "aud": "everturn", "exp": NOW + 60, "rights": ["read", "write"]})
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    fn identify(token: &str) -> Option<Identity> {
        let jwt = Jwt::new(SECRET.to_vec(), "everturn").unwrap();
        jwt.identify(token, Timestamp::from_micros(NOW * 1_000_000))
    }

    #[test]
    fn a_good_token_names_its_bearer() {
        let ann = identify(&token(&claims())).unwrap();
        assert_eq!((ann.user.as_str(), ann.app.as_ref()), ("ann", None));
        assert!(ann.may(Right::Write) && !ann.may(Right::Admin));
        let bound = identify(&token(&with("app", json!("echo")))).unwrap();
        assert_eq!(bound.app.unwrap().as_str(), "echo");
        for good in [
            with("aud", json!(["other", "everturn"])),
            with("nbf", json!(NOW)),
            with("nbf", json!(NOW + 20)),
            with("exp", json!(NOW as f64 + 0.5)),
            with("sub", json!("Änne 漢")),
            with("rights", json!("read")),
        ] {
            assert!(identify(&token(&good)).is_some(), "{good}");
        }
    }

    #[test]
    fn claims_that_are_missing_past_early_or_strange_are_refused() {
        for name in ["sub", "aud", "exp", "rights"] {
            let mut less = claims();
            less.as_object_mut().unwrap().remove(name);
            assert!(identify(&token(&less)).is_none(), "without {name}");
        }
        for bad in [
            with("exp", json!(NOW)),
            with("exp", json!(NOW - 1)),
            with("exp", json!("2999-01-01")),
            with("exp", Value::Null),
            with("nbf", json!(NOW + 31)),
            with("nbf", Value::Null),
            with("aud", json!("other")),
            with("aud", json!([])),
            with("aud", json!("EVERTURN")),
            with("sub", json!("")),
            with("sub", json!("a\u{0}b")),
            with("sub", json!("x".repeat(257))),
            with("app", Value::Null),
            with("app", json!("")),
            with("app", json!(["echo"])),
            with("rights", json!([])),
            with("rights", json!(["everything"])),
        ] {
            assert!(identify(&token(&bad)).is_none(), "{bad}");
        }
        let twice = format!(r#"{{"sub":"eve",{}"#, &claims().to_string()[1..]);
        assert!(identify(&signed(r#"{"alg":"HS256"}"#, &twice, SECRET)).is_none(), "a claim made twice");
    }

    #[test]
    fn the_token_does_not_choose_its_algorithm() {
        let text = claims().to_string();
        for header in [
            r#"{"alg":"none"}"#,
            r#"{"alg":"None"}"#,
            r#"{"alg":"hs256"}"#,
            r#"{"alg":"HS512"}"#,
            r#"{"alg":"RS256"}"#,
            r#"{"typ":"JWT"}"#,
            r#"{"alg":"HS256","crit":["exp"]}"#,
            r#"{"alg":"none","alg":"HS256"}"#,
            r#"["HS256"]"#,
        ] {
            let token = signed(header, &text, SECRET);
            assert!(identify(&token).is_none(), "{header}, well signed");
            let unsigned = token.rsplit_once('.').unwrap().0;
            assert!(identify(&format!("{unsigned}.")).is_none(), "{header}, not signed");
            assert!(identify(unsigned).is_none(), "{header}, with no signature at all");
        }
    }

    #[test]
    fn what_was_changed_or_signed_by_others_is_refused() {
        let good = token(&claims());
        assert!(identify(&signed(r#"{"alg":"HS256"}"#, &claims().to_string(), &[7; 32])).is_none());
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert!(identify(&String::from_utf8(bytes).unwrap()).is_none(), "changed at {at}");
        }
        for bad in ["", ".", "..", "...", "a.b.c", &format!("{good}="), &format!("{good}.x"), "é.é.é"] {
            assert!(identify(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_secret_has_enough_bytes_and_no_line_break() {
        assert!(Jwt::new(vec![1; 31], "a").is_err());
        assert!(Jwt::new(b"0123456789abcdef0123456789abcde\n".to_vec(), "a").is_err());
        assert!(Jwt::new(SECRET.to_vec(), "").is_err());
        let broken = Jwt::new([SECRET, b"\r\n"].concat(), "everturn").unwrap();
        assert_eq!(broken.secret, SECRET);
        assert!(!format!("{broken:?}").contains("0123"));
        let mut binary = vec![0xff; 32];
        binary.push(b'\n');
        assert_eq!(Jwt::new(binary.clone(), "a").unwrap().secret, binary);
    }
}
