//! Which pages may talk to the server, and by which names: none of anybody else's.
//!
//! A page from elsewhere can make a browser send requests to a loopback port, either across origins (then `Origin` says
//! so) or by pointing a name of its own at 127.0.0.1 (then `Host` says so). Where credentials are asked for a page would
//! have to bring some, so there the name does not matter: a proxy may have sent its own.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse as _, Response};

use super::problem::Problem;
use super::{Access, Origin};

/// Lets a request pass only if no page of another origin sent it and, where everybody is let in, only by this machine's
/// own name.
pub(super) async fn guard<F>(access: &Access, request: Request, next: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let names = if access.authority.asks() { Names::Any } else { Names::Loopback };
    match check(request.headers(), names, &access.origins) {
        Ok(()) => next(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The same where nobody is asked who they are, whatever the others are asked.
pub(super) async fn local<F>(request: Request, next: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    match check(request.headers(), Names::Loopback, &[]) {
        Ok(()) => next(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The names by which the server may be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    Loopback,
    Any,
}

fn check(headers: &HeaderMap, names: Names, origins: &[Origin]) -> Result<(), Problem> {
    let refused = |what: &str| {
        let whom = match names {
            Names::Loopback => "programs on its own machine only",
            Names::Any => "programs and its own pages only",
        };
        Problem::new("PERMISSION_DENIED", format!("{what}: this server answers {whom}"))
    };
    let host = only(headers, &HOST).map_err(|()| refused("the Host header cannot be read"))?;
    let host = host.ok_or_else(|| refused("the Host header is missing"))?;
    if names == Names::Loopback && !name_of(host).is_some_and(is_loopback) {
        return Err(refused("the Host header names another machine"));
    }
    let origin = only(headers, &ORIGIN).map_err(|()| refused("the Origin header cannot be read"))?;
    match origin {
        None => Ok(()),
        Some(origin) if origin.strip_prefix("http://") == Some(host) => Ok(()),
        // What a proxy in front decrypted.
        Some(origin) if names == Names::Any && origin.strip_prefix("https://") == Some(host) => Ok(()),
        Some(origin) if origins.iter().any(|allowed| allowed.as_str() == origin) => Ok(()),
        Some(_) => Err(refused("the request comes from a page of another origin")),
    }
}

/// The one value of a header; two are as bad as one that is not text.
pub(super) fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| value.to_str()).transpose().map_err(drop)?;
    if values.next().is_some() { Err(()) } else { Ok(first) }
}

/// The host without its port; nothing where that is no port.
fn name_of(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(headers: &[(&'static str, &'static str)]) -> bool {
        passes_as(headers, Names::Loopback, &[])
    }

    fn passes_as(headers: &[(&'static str, &'static str)], names: Names, origins: &[Origin]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        check(&map, names, origins).is_ok()
    }

    #[test]
    fn this_machine_passes_by_any_of_its_names() {
        for host in ["127.0.0.1:4100", "localhost:4100", "LOCALHOST", "[::1]:4100", "127.9.9.9"] {
            assert!(passes(&[("host", host)]), "{host}");
        }
    }

    #[test]
    fn a_name_that_was_pointed_here_does_not() {
        for host in ["evil.example:4100", "127.0.0.1.evil.example", "localhost.evil.example", "", "10.0.0.1", "[::1"] {
            assert!(!passes(&[("host", host)]), "{host}");
        }
        for host in
            ["[::1]evil", "localhost:", "127.0.0.1:port", "127.0.0.1:99999", "localhost:+80", "::1", "localhost:1:2"]
        {
            assert!(!passes(&[("host", host)]), "{host}");
        }
        assert!(!passes(&[]), "no Host at all");
        assert!(!passes(&[("host", "localhost"), ("host", "localhost")]), "two of them");
    }

    #[test]
    fn only_a_page_of_ours_passes() {
        let host = ("host", "127.0.0.1:4100");
        assert!(passes(&[host, ("origin", "http://127.0.0.1:4100")]));
        for origin in ["http://evil.example", "https://127.0.0.1:4100", "http://127.0.0.1:4101", "null", ""] {
            assert!(!passes(&[host, ("origin", origin)]), "{origin}");
        }
    }

    #[test]
    fn a_page_that_is_allowed_passes_too_and_only_that_one() {
        let allowed = ["https://app.example".parse().unwrap()];
        for names in [Names::Loopback, Names::Any] {
            let passes = |origin| passes_as(&[("host", "localhost"), ("origin", origin)], names, &allowed);
            assert!(passes("https://app.example"));
            for origin in ["https://app.example:444", "http://app.example", "https://app.example.evil.example", "*"] {
                assert!(!passes(origin), "{origin}");
            }
        }
        let pointed_here = [("host", "evil.example"), ("origin", "https://app.example")];
        assert!(!passes_as(&pointed_here, Names::Loopback, &allowed));
    }

    #[test]
    fn where_credentials_are_asked_for_any_name_will_do_but_no_page_of_others() {
        let passes = |headers: &[_]| passes_as(headers, Names::Any, &[]);
        let host = ("host", "everturn.example");
        assert!(passes(&[host]) && passes(&[host, ("origin", "https://everturn.example")]));
        assert!(!passes(&[host, ("origin", "https://evil.example")]) && !passes(&[host, ("origin", "null")]));
        assert!(!passes(&[host, host]), "two names");
    }
}
