//! Who sent a request, found out before anything else is.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse as _, Response};

use super::Access;
use super::guard::only;
use super::observe::Seen;
use super::operations::OPEN;
use super::problem::Problem;
use crate::auth::{Identity, Refusal, Right};

/// Gives the request its [`Identity`], or answers it. Strangers get the same answer wherever they knock.
pub(super) async fn identify<F>(
    access: &Access,
    peer: SocketAddr,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response
where
    F: Future<Output = Response>,
{
    if OPEN.contains(&request.uri().path()) {
        return next(request).await;
    }
    match access.authority.identify(bearer(request.headers()), peer.ip()) {
        Ok(identity) => {
            if let Some(seen) = request.extensions().get::<Seen>() {
                seen.key(&identity.key);
            }
            request.extensions_mut().insert(identity);
            next(request).await
        }
        Err(Refusal::Stranger) => stranger(),
        Err(Refusal::TooMany(wait)) => too_many(wait),
    }
}

/// Refuses what somebody may not do. Asked only about what they may know of.
pub(super) fn demand(identity: &Identity, right: Right) -> Result<(), Problem> {
    if identity.may(right) {
        return Ok(());
    }
    Err(Problem::forbidden(format!("this key may not do that: its rights are {}", identity.rights)))
}

/// What follows `Bearer` in the one `Authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = only(headers, &AUTHORIZATION).ok()??.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

/// The same whether there was no key, an unknown, an expired or a revoked one: what was wrong would help only those who
/// try.
pub(super) fn stranger() -> Response {
    ([(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"everturn\""))], not_known()).into_response()
}

pub(super) fn not_known() -> Problem {
    Problem::new("UNAUTHENTICATED", "this needs a valid key: send `Authorization: Bearer KEY`")
}

fn too_many(wait: Duration) -> Response {
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    let problem = Problem::new("RESOURCE_EXHAUSTED", format!("too many requests: try again in {seconds} s"));
    ([(RETRY_AFTER, seconds.to_string())], problem).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&[u8]]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        bearer(&headers).map(str::to_owned)
    }

    #[test]
    fn one_bearer_is_read_and_nothing_else() {
        for good in ["Bearer abc", "bearer abc", "BEARER   abc "] {
            assert_eq!(read(&[good.as_bytes()]).as_deref(), Some("abc"), "{good}");
        }
        for bad in ["", "Bearer", "abc", "Basic abc", "Bearerabc", "Bearer\tabc"] {
            assert_eq!(read(&[bad.as_bytes()]), None, "{bad}");
        }
        assert_eq!(read(&[b"Bearer abc", b"Bearer abc"]), None, "two of them");
        assert_eq!(read(&["Bearer é".as_bytes()]), None, "not ASCII");
        assert_eq!(read(&[]), None);
    }
}
