//! Who may talk to a server that asks for no credentials: programs on this machine, and no web page of anybody else's.
//!
//! A page from elsewhere can make a browser send requests to a loopback port, either across origins (then `Origin` says
//! so) or by pointing a name of its own at 127.0.0.1 (then `Host` says so).

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::problem::Problem;

/// Lets a request pass only if it came to this machine by this machine's name.
pub(crate) async fn same_machine(request: Request, next: Next) -> Response {
    match check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn check(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |what: &str| {
        Problem::new("PERMISSION_DENIED", format!("{what}: this server answers programs on its own machine only"))
    };
    let host = only(headers, &HOST).map_err(|()| refused("the Host header cannot be read"))?;
    let host = host.ok_or_else(|| refused("the Host header is missing"))?;
    if !is_loopback(name_of(host)) {
        return Err(refused("the Host header names another machine"));
    }
    let origin = only(headers, &ORIGIN).map_err(|()| refused("the Origin header cannot be read"))?;
    match origin {
        None => Ok(()),
        Some(origin) if origin.strip_prefix("http://") == Some(host) => Ok(()),
        Some(_) => Err(refused("the request comes from a page of another origin")),
    }
}

/// The one value of a header; two are as bad as one that is not text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| value.to_str()).transpose().map_err(drop)?;
    if values.next().is_some() { Err(()) } else { Ok(first) }
}

/// The host without its port.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(name, _)| name);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(headers: &[(&'static str, &'static str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        check(&map).is_ok()
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
}
