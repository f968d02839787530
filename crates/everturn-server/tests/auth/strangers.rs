//! Those without a key, or with too much haste.

use super::*;

/// Every route there is, with a body it takes. New routes belong here.
const ROUTES: [(&str, &str); 14] = [
    ("POST", "/genkit/echo"),
    ("GET", "/genkit/echo"),
    ("POST", "/genkit/echo/getSnapshot"),
    ("POST", "/genkit/echo/waitForSnapshot"),
    ("POST", "/genkit/echo/abort"),
    ("POST", "/genkit/echoClient"),
    ("POST", "/genkit/redact"),
    ("POST", "/genkit/asker"),
    ("POST", "/genkit/nobody"),
    ("DELETE", "/genkit/echo/abort"),
    ("OPTIONS", "/genkit/echo"),
    ("GET", "/"),
    ("GET", "/v1/sessions"),
    ("POST", "/healthz/../genkit/echo"),
];

#[test]
fn strangers_get_one_answer_wherever_they_knock_and_whatever_they_bear() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let revoked = home.key("ann", &[]);
    said(&home.keys(&["revoke", id_of(&revoked)]));
    let server = home.serve(&[]);
    assert_eq!(server.request("GET", "/healthz", "", "").status, 200);

    let stranger = server.request("GET", "/nothing", "", "");
    assert_eq!(stranger.status, 401);
    assert_eq!(stranger.header("www-authenticate"), Some("bearer realm=\"everturn\""));
    let problem: Value = serde_json::from_str(&stranger.body).unwrap();
    assert_eq!(problem["status"], "UNAUTHENTICATED");
    // Below /v1 it is said in the words of /v1, with the same headers.
    let ours = server.request("GET", "/v1/nothing", "", "");
    assert_eq!((ours.status, ours.header("www-authenticate")), (401, stranger.header("www-authenticate")));
    assert_eq!(ours.header("content-type"), Some("application/problem+json"));
    let problem: Value = serde_json::from_str(&ours.body).unwrap();
    assert_eq!((&problem["code"], &problem["status"]), (&json!("unauthenticated"), &json!(401)));
    for (method, path) in ROUTES {
        let answer = server.request(method, path, JSON, &message("hi", &json!({})));
        assert_eq!(&answer, if path.starts_with("/v1/") { &ours } else { &stranger }, "{method} {path}");
    }

    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let claims = URL_SAFE_NO_PAD.encode(json!({"sub": "ann", "exp": now() + 60, "rights": ["admin"]}).to_string());
    let other_secret = format!("evt_{}_{}", id_of(&ann), "0".repeat(64));
    for header in [
        format!("Authorization: Bearer {revoked}"),
        format!("Authorization: Bearer {other_secret}"),
        format!("Authorization: Bearer evt_0123456789ab_{}", "0".repeat(64)),
        format!("Authorization: Bearer {}", ann.to_uppercase()),
        format!("Authorization: Bearer {ann}0"),
        format!("Authorization: Bearer {none}.{claims}."),
        format!("Authorization: Basic {ann}"),
        format!("Authorization: {ann}"),
        format!("Authorization: Bearer {ann}\r\nAuthorization: Bearer {ann}"),
        "Authorization: Bearer".to_owned(),
        "Authorization: Bearer evt_".to_owned(),
        "Authorization: Bearer é漢🙂".to_owned(),
        "Authorization: Bearer \u{202e}evt_".to_owned(),
        format!("Authorization: Bearer {}", "a".repeat(50_000)),
        format!("Authorization: Bearer {}", ".".repeat(50_000)),
        format!("X-Api-Key: {ann}"),
        format!("Cookie: key={ann}"),
    ] {
        let answer = server.request("POST", "/genkit/echo", &format!("{JSON}{header}\r\n"), "{}");
        assert_eq!(answer, stranger, "{}", header.chars().take(80).collect::<String>());
    }
    let by_query = server.request("POST", &format!("/genkit/echo?access_token={ann}"), JSON, "{}");
    assert_eq!(by_query, stranger);
    assert_eq!(turn(&server, &ann, "echo", "hi", &json!({}))["finishReason"], "stop", "and ann is let in");
}

#[test]
fn headers_without_end_are_refused_and_harm_nobody() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let server = home.serve(&[]);
    let mut stream = server.stream();
    let huge = format!("GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}", "a".repeat(4 << 20));
    // The server may close while this is still being sent.
    let _ = std::io::Write::write_all(&mut stream, huge.as_bytes());
    let many: String = (0..500).map(|n| format!("X-{n}: y\r\n")).collect();
    assert_eq!(server.request("GET", "/", &many, "").status, 431);
    assert_eq!(turn(&server, &ann, "echo", "hi", &json!({}))["finishReason"], "stop");
}

#[test]
fn one_keys_haste_is_not_anothers() {
    let home = Home::new();
    let (hasty, calm) = (home.key("ann", &[]), home.key("bob", &[]));
    let server = home.serve(&["--rate", "30/m"]);
    let look = |key: &str| post(&server, key, "/genkit/echo/getSnapshot", r#"{"data":{"sessionId":"x"}}"#);
    thread::scope(|scope| {
        let asked = scope.spawn(|| (0..80).map(|_| look(&hasty)).collect::<Vec<_>>());
        for _ in 0..20 {
            assert_eq!(look(&calm).status, 404, "side by side with the other");
        }
        let answers = asked.join().unwrap();
        let passed = answers.iter().filter(|answer| answer.status == 404).count();
        assert!((60..75).contains(&passed), "{passed}");
        let last = answers.iter().find(|answer| answer.status == 429).expect("one too many");
        let wait: u64 = last.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=2).contains(&wait), "{wait}");
        assert!(last.body.contains("RESOURCE_EXHAUSTED"));
    });
}

#[test]
fn strangers_who_go_on_are_told_to_wait_and_lock_nobody_out() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    let server = home.serve(&[]);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let asked: Vec<_> = thread::scope(|scope| {
            let ask = || server.request("GET", "/", "", "");
            let all: Vec<_> = (0..40).map(|_| scope.spawn(ask)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        if let Some(limited) = asked.iter().find(|answer| answer.status == 429) {
            assert!(limited.header("retry-after").is_some());
            break;
        }
        assert!(Instant::now() < end, "never limited");
    }
    assert_eq!(turn(&server, &ann, "echo", "hi", &json!({}))["finishReason"], "stop");
}
