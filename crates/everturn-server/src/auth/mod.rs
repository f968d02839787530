//! Who may do what: API keys, JSON Web Tokens, and the identity that either proves.
//!
//! Nothing here knows HTTP. A bearer's text goes into [`Authority::identify`] and an [`Identity`] comes out, or nothing:
//! why not is nobody's business outside.

mod api_key;
mod api_keys;
mod authority;
mod identity;
mod jwt;
mod key_file;
mod private_file;
mod rate;
mod rights;
mod token;

pub(crate) use api_key::{ApiKey, Standing};
pub(crate) use api_keys::ApiKeys;
pub(crate) use authority::{Authority, Refusal};
pub(crate) use identity::{Identity, Proof};
pub(crate) use jwt::Jwt;
pub(crate) use key_file::{KeyFile, Revoked};
pub(crate) use rate::Rate;
use rate::RateLimit;
pub(crate) use rights::{Right, Rights};
pub(crate) use token::{KeyId, Token};
