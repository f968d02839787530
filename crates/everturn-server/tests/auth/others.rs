//! What belongs to somebody else, and what one may not do.

use super::*;

/// Asks for something by two ids and returns both answers, with the ids made equal.
fn both(
    server: &Server,
    key: &str,
    path: &str,
    body: impl Fn(&str) -> String,
    real: &str,
    unknown: &str,
) -> [Answer; 2] {
    [real, unknown].map(|id| {
        let mut answer = post(server, key, path, &body(id));
        answer.body = answer.body.replace(id, "ID");
        answer
    })
}

#[test]
fn what_belongs_to_another_is_answered_exactly_as_what_does_not_exist() {
    let home = Home::new();
    let (ann, bob) = (home.key("ann", &[]), home.key("bob", &["--rights", "admin"]));
    let server = home.serve(&[]);
    let done = turn(&server, &ann, "echo", "my secret plan", &json!({"sessionId": "anns-session"}));
    let done = done["snapshotId"].as_str().unwrap();
    let mut slow: Value = serde_json::from_str(&message("slow 60000", &json!({"sessionId": "anns-other"}))).unwrap();
    slow["data"]["detach"] = true.into();
    let pending = post(&server, &ann, "/genkit/echo", &slow.to_string());
    let pending: Value = serde_json::from_str(&pending.body).unwrap();
    let pending = pending["result"]["snapshotId"].as_str().expect("a detached turn").to_owned();

    let by_snapshot = |id: &str| json!({"data": {"snapshotId": id}}).to_string();
    for snapshot in [done, &pending] {
        for route in ["getSnapshot", "waitForSnapshot", "abort"] {
            let path = format!("/genkit/echo/{route}");
            let [anns, nobodys] = both(&server, &bob, &path, by_snapshot, snapshot, NOBODYS_SNAPSHOT);
            assert_eq!(anns, nobodys, "{route}");
        }
        let resume = |id: &str| message("go on", &json!({"snapshotId": id}));
        let [anns, nobodys] = both(&server, &bob, "/genkit/echo", resume, snapshot, NOBODYS_SNAPSHOT);
        assert_eq!(anns, nobodys, "a turn from a snapshot");
        let streamed = [snapshot, NOBODYS_SNAPSHOT].map(|id| {
            let headers = format!("{JSON}Accept: text/event-stream\r\nAuthorization: Bearer {bob}\r\n");
            let mut answer = server.request("POST", "/genkit/echo", &headers, &resume(id));
            answer.body = answer.body.replace(id, "ID");
            answer
        });
        assert_eq!(streamed[0], streamed[1], "a stream from a snapshot");
        assert!(!anns.body.contains("secret plan"), "{}", anns.body);
        let resume = |id: &str| {
            let mut body: Value = serde_json::from_str(&resume(id)).unwrap();
            body["data"]["detach"] = true.into();
            body.to_string()
        };
        let [anns, nobodys] = both(&server, &bob, "/genkit/echo", resume, snapshot, NOBODYS_SNAPSHOT);
        assert_eq!(anns, nobodys, "a detached turn from a snapshot");
    }
    let by_session = |id: &str| json!({"data": {"sessionId": id}}).to_string();
    let path = "/genkit/echo/getSnapshot";
    let [anns, nobodys] = both(&server, &bob, path, by_session, "anns-session", "nobodys-1234");
    assert_eq!(anns, nobodys, "a session");
    assert_eq!(anns.status, 404);
    // A session of the same name is bob's own.
    let own = turn(&server, &bob, "echo", "hi", &json!({"sessionId": "anns-session"}));
    let own = post(&server, &bob, path, &by_snapshot(own["snapshotId"].as_str().unwrap()));
    let own: Value = serde_json::from_str(&own.body).unwrap();
    assert_eq!(own["result"]["state"]["messages"].as_array().unwrap().len(), 2);

    // None of it touched what is ann's.
    let look = post(&server, &ann, path, &by_snapshot(&pending));
    assert!(look.body.contains(r#""status":"pending""#), "{}", look.body);
    assert!(post(&server, &ann, path, &by_snapshot(done)).body.contains("my secret plan"));
    assert_eq!(post(&server, &ann, "/genkit/echo/abort", &by_snapshot(&pending)).status, 200);
}

#[test]
fn a_key_of_one_app_does_not_know_the_others() {
    let home = Home::new();
    let (bound, reader) =
        (home.key("ann", &["--app", "echo"]), home.key("ann", &["--app", "echo", "--rights", "read"]));
    let server = home.serve(&[]);
    assert_eq!(turn(&server, &bound, "echo", "hi", &json!({}))["finishReason"], "stop");
    for key in [&bound, &reader] {
        for route in ["", "/getSnapshot", "/waitForSnapshot", "/abort"] {
            for body in [message("hi", &json!({})), json!({"data": {"snapshotId": NOBODYS_SNAPSHOT}}).to_string()] {
                let ask = |agent: &str| {
                    let mut answer = post(&server, key, &format!("/genkit/{agent}{route}"), &body);
                    answer.body = answer.body.replace(agent, "AGENT");
                    answer
                };
                // As long as each other, so that the length of the answer is the same.
                let (other, unknown) = (ask("redact"), ask("nobody"));
                assert_eq!(other, unknown, "{route}");
                assert_eq!(other.status, 404);
            }
        }
    }
}

#[test]
fn who_may_only_read_changes_nothing() {
    let home = Home::new();
    let (writer, reader) = (home.key("ann", &[]), home.key("ann", &["--rights", "read"]));
    let server = home.serve(&[]);
    let snapshot = turn(&server, &writer, "echo", "hi", &json!({}))["snapshotId"].clone();
    let look = json!({"data": {"snapshotId": snapshot}}).to_string();
    for route in ["getSnapshot", "waitForSnapshot"] {
        assert_eq!(post(&server, &reader, &format!("/genkit/echo/{route}"), &look).status, 200, "{route}");
    }
    for (path, body) in [("/genkit/echo", message("hi", &json!({}))), ("/genkit/echo/abort", look)] {
        let answer = post(&server, &reader, path, &body);
        assert_eq!(answer.status, 403, "{path}");
        assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap()["status"], "PERMISSION_DENIED");
    }
}

#[test]
fn two_users_work_side_by_side_without_meeting() {
    let home = Home::new();
    let keys = ["ann", "bob"].map(|user| (user, home.key(user, &[])));
    let server = home.serve(&["--rate", "1000/s"]);
    thread::scope(|scope| {
        for (user, key) in &keys {
            let server = &server;
            scope.spawn(move || {
                for n in 0..10 {
                    turn(server, key, "echo", &format!("{user} {n}"), &json!({"sessionId": "shared-name"}));
                }
            });
        }
    });
    for (user, key) in &keys {
        let look = r#"{"data":{"sessionId":"shared-name"}}"#;
        let found: Value = serde_json::from_str(&post(&server, key, "/genkit/echo/getSnapshot", look).body).unwrap();
        let messages = found["result"]["state"]["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 20);
        assert!(messages.iter().all(|message| message["content"][0]["text"].as_str().unwrap().contains(user)));
    }
}

/// Every route of `/v1` that the document describes, with something in place of what it names.
fn described(server: &Server, key: &str, session: &str, snapshot: &str) -> Vec<(String, String)> {
    let bearer = format!("Authorization: Bearer {key}\r\n");
    let document: Value = serde_json::from_str(&server.request("GET", "/v1/openapi.json", &bearer, "").body).unwrap();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let named = [("{agent}", "echo"), ("{session}", session), ("{snapshot}", snapshot), ("{id}", snapshot)];
        let mut path = named.iter().fold(path.clone(), |path, (name, value)| path.replace(name, value));
        while let Some((before, rest)) = path.split_once('{') {
            let after = rest.split_once('}').expect("a name ends").1;
            path = format!("{before}1.1{after}");
        }
        let methods = methods.as_object().expect("methods").keys();
        routes.extend(methods.map(|method| (method.to_uppercase(), format!("/v1{path}"))));
    }
    assert!(routes.len() > 25, "{routes:?}");
    routes
}

#[test]
fn on_v1_what_is_anothers_is_answered_as_what_is_not_there() {
    let home = Home::new();
    let (ann, bob, other) = (home.key("ann", &[]), home.key("bob", &[]), home.key("ann", &["--app", "redact"]));
    let server = home.serve(&["--rate", "1000/s"]);
    let made = turn(&server, &ann, "echo", "hi", &json!({"sessionId": "mine"}));
    let snapshot = made["snapshotId"].as_str().expect("a snapshot");
    let ask = |key: &str, method: &str, path: &str| {
        server.request(method, path, &format!("{JSON}Authorization: Bearer {key}\r\n"), "{}")
    };
    let stranger = server.request("GET", "/v1/nothing", "", "");
    for (method, path) in described(&server, &ann, "mine", snapshot) {
        assert_eq!(server.request(&method, &path, JSON, "{}"), stranger, "{method} {path}");
        let unknown = path.replace("mine", "none").replace(snapshot, NOBODYS_SNAPSHOT);
        if path != unknown {
            let (theirs, nobodys) = (ask(&bob, &method, &path), ask(&bob, &method, &unknown));
            let told = theirs.body.replace("mine", "none").replace(snapshot, NOBODYS_SNAPSHOT);
            assert_eq!((theirs.status, told), (nobodys.status, nobodys.body), "{method} {path}");
        }
        // An agent of another app is not there at all.
        if path.contains("/echo") {
            assert_eq!(ask(&other, &method, &path).status, 404, "{method} {path}");
        }
    }
    let agents: Value = serde_json::from_str(&ask(&other, "GET", "/v1/agents").body).unwrap();
    assert_eq!(agents["agents"].as_array().map(Vec::len), Some(1));
    let mine: Value = serde_json::from_str(&ask(&ann, "GET", "/v1/agents/echo/sessions/mine").body).unwrap();
    assert_eq!(mine["turns"], 1, "nothing was harmed: {mine}");
}
