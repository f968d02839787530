//! Keys: made, shown, kept, noticed and revoked; what cannot be.

use super::*;

#[test]
fn keys_are_shown_once_kept_private_and_listed_without_their_secrets() {
    let home = Home::new();
    assert!(said(&home.keys(&["list"])).contains("keys create"), "an empty list says what to do");
    let ann = home.key("ann", &["--app", "echo", "--rights", "read", "--label", "the shop, 漢字", "--expires", "30d"]);
    let bob = home.key("bob", &[]);
    assert!(ann.starts_with("evt_") && ann.len() == 81 && ann.is_ascii(), "{}", ann.len());

    let file = home.path().join("keys.json");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let (kept, list) = (fs::read_to_string(&file).unwrap(), said(&home.keys(&["list"])));
    for key in [&ann, &bob] {
        let secret = key.rsplit('_').next().unwrap();
        assert!(kept.contains(id_of(key)) && list.contains(id_of(key)));
        assert!(!kept.contains(secret) && !list.contains(secret), "the secret is nowhere");
    }
    let row = list.lines().find(|line| line.contains(id_of(&ann))).unwrap();
    assert!(["ann", "echo", "read", "until ", "the shop, 漢字"].iter().all(|cell| row.contains(cell)), "{row}");

    assert!(said(&home.keys(&["revoke", id_of(&bob)])).contains("is revoked"));
    assert!(said(&home.keys(&["revoke", id_of(&bob)])).contains("already"));
    assert!(said(&home.keys(&["list"])).contains("revoked 20"));
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600, "after a change too");
}

#[test]
fn what_cannot_be_is_said_with_what_to_do() {
    let home = Home::new();
    refused(&home.keys(&["create"]), "--user");
    refused(&home.keys(&["create", "--user", ""]), "blank");
    refused(&home.keys(&["create", "--user", "a\u{1b}b"]), "control character");
    refused(&home.keys(&["create", "--user", "ann", "--rights", "all"]), "read, write and admin");
    refused(&home.keys(&["create", "--user", "ann", "--expires", "soon"]), "30d");
    refused(&home.keys(&["create", "--user", "ann", "--label", "a\nb"]), "one line");
    refused(&home.keys(&["revoke", "0123456789ab"]), "keys list");
    refused(&home.keys(&["revoke", "../x"]), "12 hexadecimal digits");
    refused(&everturn(home.path(), &["keys", "list", "--store", "memory:"]), "--keys FILE");
    let serve = |options: &[&str]| everturn(home.path(), &[&["serve", "--store", "memory:"], options].concat());
    refused(&serve(&["--keys", "none.json"]), "everturn keys create");
    refused(&serve(&["--jwt-key", "none"]), "--jwt-audience");
    refused(&serve(&["--jwt-key", "none", "--jwt-audience", "x"]), "openssl rand");
    refused(&serve(&["--cors-origin", "*"]), "there is none for all");
    refused(&serve(&["--rate", "0/s"]), "50/s");

    let secret = home.path().join("secret");
    private(&secret, "short");
    refused(&serve(&["--jwt-key", "secret", "--jwt-audience", "x"]), "fewer than 32");
    private(&secret, SECRET);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&serve(&["--jwt-key", "secret", "--jwt-audience", "x"]), "chmod 600");
    home.key("ann", &["--keys", "k.json"]);
    fs::set_permissions(home.path().join("k.json"), fs::Permissions::from_mode(0o640)).unwrap();
    refused(&serve(&["--keys", "k.json"]), "chmod 600");

    let help = said(&home.keys(&["create", "--help"]));
    assert!(help.contains("Examples:") && help.contains("Bearer"), "{help}");
}

#[test]
fn other_machines_are_let_near_only_where_somebody_has_a_key() {
    let home = Home::new();
    let serve = || everturn(home.path(), &["serve", "--store", &home.store, "--addr", "0.0.0.0:0"]);
    refused(&serve(), "everturn keys create");
    let revoked = home.key("ann", &[]);
    said(&home.keys(&["revoke", id_of(&revoked)]));
    refused(&serve(), "everturn keys create");

    let key = home.key("ann", &[]);
    let server = Server::start_with(home.path(), &home.store, &["--addr", "0.0.0.0:0"]);
    let from_afar = "Host: everturn.example\r\n";
    let ask = |headers: String| server.request("POST", "/genkit/echo", &headers, &message("hi", &json!({}))).status;
    assert_eq!(ask(format!("{from_afar}{JSON}")), 401);
    assert_eq!(ask(format!("{from_afar}{JSON}Authorization: Bearer {key}\r\n")), 200);
    let page = format!("{from_afar}{JSON}Authorization: Bearer {key}\r\nOrigin: https://evil.example\r\n");
    assert_eq!(ask(page), 403);
    assert_eq!(server.request("GET", "/healthz", from_afar, "").body, "ok");
}

#[test]
fn a_running_server_notices_new_and_revoked_keys() {
    let home = Home::new();
    let server = home.serve(&[]);
    assert_eq!(server.turn("echo", "no key yet", "{}")["result"]["finishReason"], "stop");
    let first = home.key("ann", &[]);
    becomes(&server, "none", 401);
    becomes(&server, &first, 404);
    let second = home.key("ann", &[]);
    becomes(&server, &second, 404);
    said(&home.keys(&["revoke", id_of(&first)]));
    becomes(&server, &first, 401);
    assert_eq!(turn(&server, &second, "echo", "still here", &json!({}))["finishReason"], "stop");
    fs::remove_file(home.path().join("keys.json")).unwrap();
    becomes(&server, &second, 401);
    becomes(&server, "none", 401);
}

#[test]
fn no_secret_is_ever_written_down() {
    let home = Home::new();
    let ann = home.key("ann", &[]);
    private(&home.path().join("secret"), SECRET);
    let server = home.serve(&["--jwt-key", "secret", "--jwt-audience", "everturn"]);
    turn(&server, &ann, "echo", "for your eyes only", &json!({}));
    post(&server, &format!("{ann}x"), "/genkit/echo", "{}");
    post(&server, &ann, "/genkit/echo", "{\"data\": \"for your eyes only\"");
    let (logs, secret) = (server.logs(), ann.rsplit('_').next().unwrap());
    assert!(!logs.contains(secret) && !logs.contains(SECRET) && !logs.contains("for your eyes only"), "{logs}");
}
