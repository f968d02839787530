//! Everything that is not a valid credential, on every wire: one answer, 401, that tells nothing of what is wrong with it.

use super::*;

/// Routes that need a credential, one and more of each wire.
const ROUTES: [(&str, &str); 5] = [
    ("POST", "/genkit/redact"),
    ("POST", "/v1/agents/echo/turns"),
    ("GET", "/v1/agents"),
    ("GET", "/v1/agents/echo/sessions"),
    ("GET", "/metrics"),
];

/// A token of these texts, signed as it should be.
fn signed(header: &str, claims: &str, secret: &str) -> String {
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    format!("{text}.{}", signature(&text, secret))
}

fn signature(text: &str, secret: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(text.as_bytes());
    URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
}

/// Tokens that are wrong in their header, their claims, their signature or their form.
fn tokens() -> Vec<(String, String)> {
    let header = r#"{"alg":"HS256"}"#;
    let (until, before) = (now() + 600, now() - 600);
    let claims = format!(r#"{{"sub":"ann","aud":"everturn","exp":{until},"rights":["admin"]}}"#);
    let mut tokens = Vec::new();
    for bad in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"None"}"#,
        r#"{"alg":"nOnE"}"#,
        r#"{"alg":""}"#,
        r#"{"alg":"hs256"}"#,
        r#"{"alg":"HS384"}"#,
        r#"{"alg":"HS512"}"#,
        r#"{"alg":"RS256"}"#,
        r#"{"alg":"ES256"}"#,
        r#"{"alg":"EdDSA"}"#,
        r#"{"alg":["HS256"]}"#,
        r#"{"alg":null}"#,
        r#"{"typ":"JWT"}"#,
        r#"{"alg":"HS256","alg":"HS256"}"#,
        r#"{"alg":"none","alg":"HS256"}"#,
        r#"["HS256"]"#,
        r#"{"alg":"HS256","crit":["exp"]}"#,
        r#"{"alg":"HS256","crit":[]}"#,
        r#"{"alg":"HS256","crit":null}"#,
        "",
        "{",
    ] {
        tokens.push((format!("header {bad}"), signed(bad, &claims, SECRET)));
        tokens.push((
            format!("header {bad}, unsigned"),
            signed(bad, &claims, SECRET).rsplit_once('.').unwrap().0.to_owned() + ".",
        ));
        tokens.push((format!("header {bad}, no secret"), signed(bad, &claims, "")));
    }
    let with = |member: &str, value: &str| -> String {
        let mut claims: Value = serde_json::from_str(&claims).unwrap();
        claims.as_object_mut().unwrap().remove(member);
        let rest = claims.to_string();
        format!("{},{member:?}:{value}}}", &rest[..rest.len() - 1])
    };
    let mut bad: Vec<String> = vec!["{}".to_owned(), "[]".to_owned(), "null".to_owned(), claims.replace('}', "")];
    bad.extend(["sub", "aud", "exp", "rights"].map(|member| {
        let mut claims: Value = serde_json::from_str(&claims).unwrap();
        claims.as_object_mut().unwrap().remove(member);
        claims.to_string()
    }));
    // Twice a member, the good one first or last.
    bad.extend([
        claims.replace('}', r#","sub":"bob"}"#),
        claims.replace('}', &format!(r#","exp":{until}}}"#)),
        claims.replace('}', r#","rights":["read"]}"#),
        claims.replace('}', r#","aud":"everturn"}"#),
    ]);
    for (member, values) in [
        ("sub", &["\"\"", "null", "7", "[\"ann\"]", "\"a\\u0000b\"", "\" \""][..]),
        (
            "aud",
            &["\"\"", "\"Everturn\"", "\"everturn \"", "[]", "[[\"everturn\"]]", "{\"everturn\":1}", "null", "true"],
        ),
        ("exp", &["0", "-1", "null", "\"9999999999\"", "[9999999999]", "true", &before.to_string(), "1e400"]),
        ("nbf", &[&(until + 600).to_string(), "\"0\"", "null", "1e300", "[]"]),
        ("app", &["null", "\"\"", "7", "[\"echo\"]", "{}"]),
        (
            "rights",
            &["[]", "\"\"", "\"all\"", "null", "7", "[\"read\",\"all\"]", "[null]", "{\"admin\":true}", "\"ADMIN\""],
        ),
    ] {
        bad.extend(values.iter().map(|value| with(member, value)));
    }
    tokens.extend(bad.into_iter().map(|claims| (format!("claims {claims}"), signed(header, &claims, SECRET))));
    tokens.extend(forms(header, &claims));
    tokens
}

/// A good token in forms that are none.
fn forms(header: &str, claims: &str) -> Vec<(String, String)> {
    let good = signed(header, claims, SECRET);
    let parts: Vec<_> = good.split('.').collect();
    let other = signed(header, &claims.replace("ann", "bob"), SECRET);
    let others: Vec<_> = other.split('.').collect();
    let mut forms = vec![
        ("another secret", signed(header, claims, "fedcba9876543210fedcba9876543210")),
        ("an empty secret", signed(header, claims, "")),
        ("another's signature", format!("{}.{}.{}", parts[0], parts[1], others[2])),
        ("another's claims", format!("{}.{}.{}", parts[0], others[1], parts[2])),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("no header", format!(".{}.{}", parts[1], parts[2])),
        ("no claims", format!("{}..{}", parts[0], parts[2])),
        ("two parts", format!("{}.{}", parts[0], parts[1])),
        ("four parts", format!("{good}.{}", parts[2])),
        ("five parts", format!("{good}.a.b")),
        ("padding", format!("{good}=")),
        ("a dot", ".".to_owned()),
        ("two dots", "..".to_owned()),
        ("shouted", good.to_uppercase()),
        ("a tail", format!("{good}A")),
        ("signed text with spaces", {
            let text = format!("{} .{}", parts[0], parts[1]);
            format!("{text}.{}", signature(&text, SECRET))
        }),
        ("four signed parts", {
            let text = format!("{}.{}.{}", parts[0], parts[1], parts[1]);
            format!("{text}.{}", signature(&text, SECRET))
        }),
        ("one signed part", format!("{}.{}", parts[0], signature(parts[0], SECRET))),
    ];
    // Cut anywhere, it is none.
    forms.extend((1..8).map(|cut| ("cut", good[..good.len() * cut / 8].to_owned())));
    forms.into_iter().map(|(what, token)| (what.to_owned(), token)).collect()
}

/// Keys that are none, made of keys that were.
fn keys(home: &Home) -> Vec<(String, String)> {
    let (ann, bob, revoked) = (home.key("ann", &[]), home.key("bob", &[]), home.key("ann", &[]));
    said(&home.keys(&["revoke", id_of(&revoked)]));
    let half = |key: &str| key.rsplit_once('_').map(|(id, secret)| (id.to_owned(), secret.to_owned())).unwrap();
    let ((anns_id, anns), (bobs_id, bobs)) = (half(&ann), half(&bob));
    let mut keys = vec![
        ("revoked", revoked),
        ("ann's id, bob's secret", format!("{anns_id}_{bobs}")),
        ("bob's id, ann's secret", format!("{bobs_id}_{anns}")),
        ("the secret alone", anns.clone()),
        ("the id alone", anns_id.clone()),
        ("no secret", format!("{anns_id}_")),
        ("shouted", ann.to_uppercase()),
        ("a tail", format!("{ann}0")),
        ("twice", format!("{ann}{ann}")),
        ("both", format!("{ann},{bob}")),
        ("zeros", format!("{anns_id}_{}", "0".repeat(anns.len()))),
        ("its last digit changed", format!("{}{}", &ann[..ann.len() - 1], if ann.ends_with('0') { '1' } else { '0' })),
        ("long", format!("{ann}{}", "0".repeat(20_000))),
    ];
    keys.extend((1..8).map(|cut| ("cut", ann[..ann.len() * cut / 8].to_owned())));
    keys.into_iter().map(|(what, key)| (format!("a key, {what}"), key)).collect()
}

/// Asks, and comes back when there was too much haste.
fn patiently(server: &Server, method: &str, path: &str, headers: &str) -> Answer {
    let body = if method == "GET" { String::new() } else { message("hi", &json!({})) };
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = server.request(method, path, headers, &body);
        if answer.status != 429 {
            return answer;
        }
        assert!(Instant::now() < end, "still too much haste");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_is_no_credential_gets_one_answer_on_every_wire() {
    let home = Home::new();
    private(&home.path().join("secret"), SECRET);
    let mut bad = keys(&home);
    bad.extend(tokens());
    let server = home.serve(&["--jwt-key", "secret", "--jwt-audience", "everturn"]);
    let claims = json!({"sub": "ann", "aud": "everturn", "exp": now() + 600, "rights": ["admin"]});
    let good = jwt(&json!({"alg": "HS256"}), &claims, SECRET);
    let mut asked = 0;
    for (at, (method, path)) in ROUTES.iter().enumerate() {
        let stranger = patiently(&server, method, path, JSON);
        assert_eq!(stranger.status, 401, "{path}");
        // Each is refused somewhere, and every third everywhere.
        for (what, credential) in bad.iter().skip(at % 3).step_by(3) {
            let answer = patiently(&server, method, path, &format!("{JSON}Authorization: Bearer {credential}\r\n"));
            assert_eq!(answer, stranger, "{method} {path} with {what}");
            asked += 1;
        }
        let good = format!("{JSON}Authorization: Bearer {good}\r\n");
        assert_ne!(patiently(&server, method, path, &good).status, 401, "{path}: what is good is let in");
    }
    assert!(!server.logs().contains("panicked"), "{}", server.logs());
    println!("{asked} requests with {} credentials that are none: all 401, one body a wire", bad.len());
}
