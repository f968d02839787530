//! What is kept of an API key.

use everturn::{AppName, Timestamp, UserId};
use serde::{Deserialize, Serialize};
use subtle::{Choice, ConstantTimeEq as _};

use super::token::KeyDigest;
use super::{Identity, KeyId, Proof, Rights, Token};

/// What is kept of an API key: everything but the secret.
///
/// A member that is not known is an error: a later version may restrict a key by one, and to overlook it would widen what
/// the key may do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApiKey {
    pub(crate) id: KeyId,
    pub(crate) user: UserId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) app: Option<AppName>,
    pub(crate) rights: Rights,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    pub(crate) created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revoked: Option<Timestamp>,
    sha256: KeyDigest,
}

/// Whether a key opens anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Valid,
    Expired,
    Revoked,
}

impl ApiKey {
    /// A key for a user that reaches every app and never expires.
    pub(crate) fn new(token: &Token, user: UserId, rights: Rights, created: Timestamp) -> Self {
        let (id, sha256) = (token.id.clone(), token.digest());
        Self { id, user, app: None, rights, label: None, created, expires: None, revoked: None, sha256 }
    }

    /// What it is worth at a moment.
    pub(crate) fn standing(&self, now: Timestamp) -> Standing {
        match (self.revoked, self.expires) {
            (Some(_), _) => Standing::Revoked,
            (None, Some(expires)) if expires <= now => Standing::Expired,
            _ => Standing::Valid,
        }
    }

    /// Whether this is the token's key, told in a time that says nothing about how much of it is right.
    pub(super) fn matches(&self, digest: &KeyDigest) -> Choice {
        self.sha256.0.ct_eq(&digest.0)
    }

    pub(super) fn identity(&self) -> Identity {
        Identity {
            user: self.user.clone(),
            app: self.app.clone(),
            rights: self.rights,
            key: format!("key:{}", self.id).into(),
            proof: Proof::Key(self.id.clone()),
        }
    }
}
