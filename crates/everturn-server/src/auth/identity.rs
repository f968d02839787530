//! Who sent a request.

use std::sync::Arc;

use everturn::{AppName, Timestamp, UserId};

use super::{KeyId, Right, Rights};

/// Who sent a request and what they may do. Every request that reaches a handler has one as an extension.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Whose sessions these are.
    pub(crate) user: UserId,
    /// The only app that can be reached; all of them when there is none.
    pub(crate) app: Option<AppName>,
    /// What may be done.
    pub(crate) rights: Rights,
    /// Names the key or the token's subject, and is no secret.
    pub(crate) key: Arc<str>,
    /// By what this is known.
    pub(crate) proof: Proof,
}

/// The credential behind an identity: it says until when the identity holds.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// By nothing: the server lets everybody in.
    None,
    /// By a key, until it is revoked or expires.
    Key(KeyId),
    /// By a token, until this moment.
    Token(Timestamp),
}

impl Identity {
    /// Everybody, on a server that asks for no credentials.
    pub(crate) fn local() -> Self {
        let (user, rights) = (UserId::default_user(), Rights::up_to(Right::Admin));
        Self { user, app: None, rights, key: "local".into(), proof: Proof::None }
    }

    /// Whether an app can be reached.
    pub(crate) fn reaches(&self, app: &AppName) -> bool {
        self.app.as_ref().is_none_or(|own| own == app)
    }

    /// Whether something may be done.
    pub(crate) fn may(&self, right: Right) -> bool {
        self.rights.allow(right)
    }
}
