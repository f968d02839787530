//! What browsers are told, and whose pages may ask.

use super::*;

#[test]
fn every_answer_is_closed_to_sniffing_framing_and_caches() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let server = home.serve(&[]);
    let stream = format!("{JSON}Accept: text/event-stream\r\nAuthorization: Bearer {ann}\r\n");
    let hi = message("hi", &json!({}));
    for answer in [
        server.request("GET", "/healthz", "", ""),
        server.request("GET", "/healthz", "Host: x\r\nOrigin: https://evil.example\r\n", ""),
        server.request("GET", "/nothing", "", ""),
        server.request("GET", "/nothing", &format!("Authorization: Bearer {ann}\r\n"), ""),
        server.request("POST", "/genkit/echo", &stream, &hi),
        server.request("POST", "/genkit/echo", &stream, "{"),
        post(&server, &ann, "/genkit/echo", &hi),
    ] {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{answer:?}");
        }
        assert!(!answer.headers.iter().any(|line| line.starts_with("access-control-")), "{answer:?}");
    }
}

#[test]
fn pages_of_another_origin_may_ask_only_where_they_were_named() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let server = home.serve(&["--cors-origin", "https://app.example", "--cors-origin", "http://localhost:3000"]);
    let preflight = |origin: &str| {
        let headers = format!("Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
        server.request("OPTIONS", "/genkit/echo", &headers, "")
    };
    for origin in ["https://app.example", "http://localhost:3000"] {
        let answer = preflight(origin);
        assert_eq!((answer.status, answer.body.as_str()), (204, ""));
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        assert!(answer.header("access-control-allow-headers").unwrap().contains("authorization"));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        assert_eq!(answer.header("vary"), Some("origin"));
        let headers = format!("{JSON}Authorization: Bearer {ann}\r\nOrigin: {origin}\r\n");
        let answer = server.request("POST", "/genkit/echo", &headers, &message("hi", &json!({})));
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(origin)));
        let keyless = server.request("POST", "/genkit/echo", &format!("{JSON}Origin: {origin}\r\n"), "{}");
        assert_eq!((keyless.status, keyless.header("access-control-allow-origin")), (401, Some(origin)));
    }
    for origin in ["https://evil.example", "https://app.example.evil.example", "http://app.example", "null", "*"] {
        let answer = preflight(origin);
        assert_eq!(answer.status, 403, "{origin}");
        assert!(!answer.headers.iter().any(|line| line.starts_with("access-control-")), "{answer:?}");
    }
}
