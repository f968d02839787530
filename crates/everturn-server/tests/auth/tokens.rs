//! JSON Web Tokens in place of keys.

use super::*;

#[test]
fn tokens_carry_user_app_and_rights() {
    let home = Home::new();
    private(&home.path().join("secret"), &format!("{SECRET}\n"));
    let server = home.serve(&["--jwt-key", "secret", "--jwt-audience", "everturn"]);
    let header = json!({"alg": "HS256", "typ": "JWT"});
    let claims = json!({"sub": "Änne", "aud": "everturn", "exp": now() + 600, "rights": ["read", "write"]});
    let with = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        claims
    };
    let ask = |token: &str| post(&server, token, "/genkit/redact", &message("hi", &json!({})));
    assert_eq!(ask(&jwt(&header, &claims, SECRET)).status, 200);
    assert_eq!(ask(&jwt(&header, &with("rights", json!(["read"])), SECRET)).status, 403);
    assert_eq!(ask(&jwt(&header, &with("app", json!("echo")), SECRET)).status, 404);

    let stranger = ask("nothing");
    assert_eq!(stranger.status, 401);
    for (what, token) in [
        ("alg none", jwt(&json!({"alg": "none"}), &claims, SECRET)),
        ("another alg", jwt(&json!({"alg": "HS384"}), &claims, SECRET)),
        ("another secret", jwt(&header, &claims, "fedcba9876543210fedcba9876543210")),
        ("expired", jwt(&header, &with("exp", json!(now() - 1)), SECRET)),
        ("not yet", jwt(&header, &with("nbf", json!(now() + 600)), SECRET)),
        ("another audience", jwt(&header, &with("aud", json!("other")), SECRET)),
        ("no audience", jwt(&header, &with("aud", Value::Null), SECRET)),
        ("no end", jwt(&header, &with("exp", Value::Null), SECRET)),
        ("no rights", jwt(&header, &with("rights", json!([])), SECRET)),
        ("an app of null", jwt(&header, &with("app", Value::Null), SECRET)),
        ("a long one", jwt(&header, &with("pad", json!("x".repeat(9000))), SECRET)),
    ] {
        assert_eq!(ask(&token), stranger, "{what}");
    }
}

#[test]
fn tokens_alone_are_enough_for_other_machines() {
    let home = Home::new();
    private(&home.path().join("secret"), SECRET);
    let options = ["--addr", "0.0.0.0:0", "--jwt-key", "secret", "--jwt-audience", "everturn"];
    let server = Server::start_with(home.path(), "memory:", &options);
    let claims = json!({"sub": "ann", "aud": ["everturn"], "exp": now() + 600, "rights": "write"});
    let token = jwt(&json!({"alg": "HS256"}), &claims, SECRET);
    assert_eq!(turn(&server, &token, "echo", "hi", &json!({}))["finishReason"], "stop");
    let key = home.key("ann", &[]);
    assert_eq!(post(&server, &key, "/genkit/echo", "{}").status, 401, "a key of which this server knows nothing");
}
