//! What callers see of each other, which is nothing, and what rights they need.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use everturn::UserId;
use everturn::store::{MemoryStore, Store};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::auth::{Identity, Proof, Right, Rights};

/// The API with callers named by a header: a name, and the rights after it.
async fn serve() -> String {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let agents = crate::agents::demo(&store).unwrap();
    let known = from_fn(|mut request: Request, next: Next| async move {
        let said = request.headers().get("x-caller").and_then(|said| said.to_str().ok()).unwrap_or("nobody").to_owned();
        let (user, rights) = said.split_once(' ').unwrap_or((&said, ""));
        let user = UserId::new(user).unwrap();
        let highest = match rights {
            rights if rights.contains("admin") => Right::Admin,
            rights if rights.contains("write") => Right::Write,
            _ => Right::Read,
        };
        let caller =
            Identity { user, app: None, rights: Rights::up_to(highest), key: "test".into(), proof: Proof::None };
        request.extensions_mut().insert(caller);
        next.run(request).await
    });
    let router: Router = super::routes(agents).layer(known);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    addr
}

async fn ask(addr: &str, caller: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let length = body.len();
    let request = format!(
        "{method} /v1/agents/{path} HTTP/1.0\r\nHost: x\r\nX-Caller: {caller}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn what_another_user_has_is_answered_like_what_does_not_exist() {
    let addr = serve().await;
    let hello = json!({ "session": "s", "input": { "text": "artifact a b" } });
    let (status, ann) = ask(&addr, "ann write", "POST", "echo/turns", &hello).await;
    assert_eq!(status, 200, "{ann}");
    let (_, record) = ask(&addr, "ann write", "GET", "echo/sessions/s/records", &Value::Null).await;
    let turn =
        record["items"].as_array().unwrap().iter().find_map(|record| record["turn"].as_str()).unwrap().to_owned();
    let mine = ann["snapshotId"].as_str().unwrap();
    let unknown = "00000000-0000-7000-8000-000000000000";
    for (method, path, body) in [
        ("GET", "echo/sessions/s", Value::Null),
        ("PATCH", "echo/sessions/s", json!({ "title": "x" })),
        ("DELETE", "echo/sessions/s", Value::Null),
        ("GET", "echo/sessions/s/state", Value::Null),
        ("GET", "echo/sessions/s/events", Value::Null),
        ("GET", "echo/sessions/s/records", Value::Null),
        ("GET", "echo/sessions/s/tree", Value::Null),
        ("GET", "echo/sessions/s/follow", Value::Null),
        ("GET", "echo/sessions/s/follow?after=1.1", Value::Null),
        ("GET", "echo/sessions/s/export", Value::Null),
        ("GET", "echo/sessions/s/compactions", Value::Null),
        ("POST", "echo/sessions/s/compactions", json!({ "summary": "x" })),
        ("POST", "echo/sessions/s/compactions", json!({})),
        ("GET", "echo/sessions/s/snapshots", Value::Null),
        ("GET", "echo/sessions/s/branches", Value::Null),
        ("POST", "echo/sessions/s/branches", json!({ "name": "b" })),
        ("PUT", "echo/sessions/s/branches/main", json!({ "to": { "point": 1 } })),
        ("DELETE", "echo/sessions/s/branches/main", Value::Null),
        ("POST", "echo/sessions/s/fork", json!({})),
        ("GET", "echo/sessions/s/artifacts", Value::Null),
        ("GET", "echo/sessions/s/artifacts/a", Value::Null),
        ("GET", "echo/sessions/s/artifacts/a/download", Value::Null),
        ("GET", "echo/snapshots/ID", Value::Null),
        ("PATCH", "echo/snapshots/ID", json!({ "label": "x" })),
        ("GET", "echo/snapshots/ID/diff?to=ID", Value::Null),
        ("POST", "echo/snapshots/ID/abort", Value::Null),
        ("GET", "echo/snapshots/ID/wait", Value::Null),
        ("GET", "echo/snapshots/ID/stream", Value::Null),
        ("GET", "echo/turns/TURN/stream", Value::Null),
        ("POST", "echo/turns", json!({ "snapshot": "ID", "input": { "text": "x" } })),
    ] {
        let filled = |text: &str, id: &str, turn: &str| text.replace("ID", id).replace("TURN", turn);
        let sent = async |id: &str, turn: &str, session: &str| {
            let path = filled(path, id, turn).replace("/s/", &format!("/{session}/"));
            let path = path.strip_suffix("/s").map_or(path.clone(), |rest| format!("{rest}/{session}"));
            let body: Value = serde_json::from_str(&filled(&body.to_string(), id, turn)).unwrap();
            ask(&addr, "bob write admin", method, &path, &body).await
        };
        let (status, theirs) = sent(mine, &turn, "s").await;
        let (_, none) = sent(unknown, "77.77", "none").await;
        assert_eq!(status, 404, "{method} {path}: {theirs}");
        let same = theirs.to_string().replace(mine, unknown).replace(&turn, "77.77").replace("'s'", "'none'");
        assert_eq!(same, none.to_string(), "{method} {path}");
    }
    let (_, listed) = ask(&addr, "bob write", "GET", "echo/sessions", &Value::Null).await;
    assert_eq!(listed["items"], json!([]));
    let (_, purged) = ask(&addr, "bob write", "POST", "echo/sessions/s/purge", &Value::Null).await;
    assert_eq!(purged["removed"], 0);
    let (_, still) = ask(&addr, "ann", "GET", "echo/sessions/s", &Value::Null).await;
    assert_eq!((&still["turns"], &still["branches"][0]["head"]), (&json!(1), &ann["point"]), "nothing was harmed");
}

#[tokio::test]
async fn who_may_only_read_changes_nothing() {
    let addr = serve().await;
    let hello = json!({ "session": "s", "input": { "text": "hi" } });
    for (method, path) in [("POST", "echo/turns"), ("POST", "echo/sessions"), ("DELETE", "echo/sessions/s")] {
        let (status, refused) = ask(&addr, "ann read", method, path, &hello).await;
        assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{method} {path}");
    }
    assert_eq!(ask(&addr, "ann", "GET", "echo/sessions", &Value::Null).await.0, 200);
}

#[tokio::test]
async fn what_has_passed_no_transform_is_for_admins() {
    let addr = serve().await;
    let hello = json!({ "session": "s", "input": { "text": "hi" } });
    let (_, out) = ask(&addr, "ann write", "POST", "redact/turns", &hello).await;
    let id = out["snapshotId"].as_str().unwrap();
    for path in [
        "redact/scopes".to_owned(),
        "redact/sessions/s/events".to_owned(),
        "redact/sessions/s/records".to_owned(),
        "redact/sessions/s/export".to_owned(),
        "redact/sessions/s/artifacts".to_owned(),
        "redact/sessions/s/artifacts/a".to_owned(),
        "redact/sessions/s/artifacts/a/download".to_owned(),
        format!("redact/snapshots/{id}/diff?to={id}"),
    ] {
        let (status, refused) = ask(&addr, "ann write", "GET", &path, &Value::Null).await;
        assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{path}");
        assert_ne!(ask(&addr, "ann admin", "GET", &path, &Value::Null).await.0, 403, "{path}");
    }
    for path in ["redact/sessions/s/state".to_owned(), format!("redact/snapshots/{id}")] {
        let (status, shown) = ask(&addr, "ann", "GET", &path, &Value::Null).await;
        assert!(status == 200 && !shown.to_string().contains("s3cr3t"), "{shown}");
    }
}

/// The beginning of a stream, read until its text has what is looked for.
async fn follow(addr: &str, caller: &str, path: &str, until: &str) -> String {
    let request = format!("GET /v1/agents/{path} HTTP/1.0\r\nHost: x\r\nX-Caller: {caller}\r\n\r\n");
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    while !text.contains(until) {
        let read = socket.read(&mut piece).await.unwrap();
        assert!(read > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    text
}

#[tokio::test]
async fn what_a_page_is_shown_of_a_transformed_agent_has_no_raw_text() {
    let addr = serve().await;
    let before = ask(&addr, "ann write", "POST", "redact/sessions", &json!({ "id": "s" })).await.1;
    assert_eq!(before["id"], "s");
    let start = ask(&addr, "ann", "GET", "redact/sessions/s/tree", &Value::Null).await.1["position"].clone();
    let hello = json!({ "session": "s", "input": { "text": "my words" } });
    let (_, out) = ask(&addr, "ann write", "POST", "redact/turns", &hello).await;
    for path in ["redact/sessions/s/tree", "redact/sessions", "redact/sessions/s"] {
        let (status, shown) = ask(&addr, "ann", "GET", path, &Value::Null).await;
        assert!(status == 200 && !shown.to_string().contains("my words") && !shown.to_string().contains("lastMessage"));
        let (_, raw) = ask(&addr, "ann admin", "GET", path, &Value::Null).await;
        assert!(raw.to_string().contains("my words") || raw.to_string().contains("lastMessage"), "{path} {raw}");
    }
    let path = format!("redact/sessions/s/follow?after={}", start.as_str().unwrap());
    let shown = follow(&addr, "ann", &path, "\"kind\":\"end\"").await;
    assert!(!shown.contains("my words") && !shown.contains("s3cr3t") && !shown.contains("\"body\""), "{shown}");
    let raw = follow(&addr, "ann admin", &path, "\"kind\":\"end\"").await;
    assert!(raw.contains("s3cr3t"), "{raw}");

    let summary = json!({ "summary": "hello" });
    let (status, made) = ask(&addr, "ann write", "POST", "redact/sessions/s/compactions", &summary).await;
    assert_eq!(status, 201, "{made}");
    let listed = ask(&addr, "ann", "GET", "redact/sessions/s/compactions", &Value::Null).await.1;
    assert_eq!(listed["items"][0], made, "both have passed the transform");
    // A file that is brought in is raw as well.
    let (status, refused) = ask(&addr, "ann write", "POST", "redact/import", &Value::Null).await;
    assert_eq!((status, &refused["code"]), (403, &json!("forbidden")));
    assert!(out["snapshotId"].is_string());
}

#[tokio::test]
async fn what_concerns_all_users_is_changed_by_admins() {
    let addr = serve().await;
    let of_app = json!({ "set": { "app:motd": "hi", "user:a": 1 } });
    let (status, refused) = ask(&addr, "ann write", "PATCH", "echo/scopes", &of_app).await;
    assert_eq!((status, &refused["code"]), (403, &json!("forbidden")));
    let removed = json!({ "remove": ["app:motd"] });
    assert_eq!(ask(&addr, "ann write", "PATCH", "echo/scopes", &removed).await.0, 403);
    let own = json!({ "set": { "user:a": 1 } });
    assert_eq!(ask(&addr, "ann write", "PATCH", "echo/scopes", &own).await.0, 200);
    assert_eq!(ask(&addr, "ann read", "PATCH", "echo/scopes", &own).await.0, 403);
    assert_eq!(ask(&addr, "ann admin", "PATCH", "echo/scopes", &of_app).await.0, 200);
    let (_, bobs) = ask(&addr, "bob", "GET", "echo/scopes", &Value::Null).await;
    assert_eq!(bobs, json!({ "app:motd": "hi" }), "what is ann's stays ann's");
}
