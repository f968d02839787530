//! Sessions as files.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::common::{Answer, Server, sqlite_in};
use crate::{ask, get, post, turn};

const S: &str = "/v1/agents/echo/sessions/s";
const LINES: &str = "Content-Type: application/x-ndjson\r\n";
const IMPORT: &str = "/v1/agents/echo/import";

/// A session with a branch, a failure, an artifact and a compaction.
fn eventful(server: &Server) {
    let one = turn(server, "s", "one");
    turn(server, "s", "fail badly");
    turn(server, "s", "artifact plan.txt steps: boil");
    let branch = json!({ "name": "green", "at": { "snapshot": one["snapshotId"] } });
    post(server, &format!("{S}/branches"), &branch.to_string()).ok();
    post(server, &format!("{S}/compactions"), r#"{"summary":"They made a plan."}"#).ok();
    ask(server, "PATCH", S, "", r#"{"title":"Tea","addLabels":["kitchen"]}"#).ok();
}

/// The file, without the frames of a chunked body.
fn export(server: &Server, path: &str) -> Answer {
    let host = server.url.trim_start_matches("http://");
    server.raw(format!("GET {path}/export HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())
}

fn import(server: &Server, query: &str, file: &str) -> crate::Said {
    let answer = server.request("POST", &format!("{IMPORT}{query}"), LINES, file);
    let json = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
    crate::Said { status: answer.status, head: answer.head, json }
}

fn digests(server: &Server, path: &str) -> Vec<Value> {
    let listed = get(server, &format!("{path}/snapshots")).ok();
    let row = |row: &Value| json!([row["digest"], row["point"], row["status"], row["orphaned"]]);
    listed["items"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_session_goes_from_one_server_to_another() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(here.path(), "memory:");
    eventful(&server);
    let file = export(&server, S);
    assert_eq!((file.status, file.header("content-type")), (200, Some("application/x-ndjson")));
    assert!(
        file.header("content-disposition").unwrap().starts_with("attachment; filename=\"s.ndjson\""),
        "{}",
        file.head
    );
    for line in file.body.lines() {
        assert!(serde_json::from_str::<Value>(line).unwrap()[1].is_object(), "{line}");
    }

    let other = Server::start(there.path(), &sqlite_in(there.path()));
    let made = import(&other, "", &file.body);
    assert_eq!((made.status, made.header("location")), (201, Some(S)), "{}", made.json);
    assert_eq!((&made.json["title"], &made.json["labels"]), (&json!("Tea"), &json!(["kitchen"])));
    for part in ["/records", "/tree", "/state", "/branches", "/compactions", "/artifacts"] {
        let (before, after) = (get(&server, &format!("{S}{part}")).ok(), get(&other, &format!("{S}{part}")).ok());
        assert_eq!(before.to_string(), after.to_string(), "{part}");
    }
    assert_eq!(digests(&server, S), digests(&other, S));
    assert_eq!(turn(&other, "s", "and on")["onHead"], true);
    import(&other, "", &file.body).refused(409, "already_exists");
    import(&other, "?fresh=true", &file.body).refused(409, "already_exists");
    let copy = import(&other, "?fresh=true&snapshots=fresh", &file.body).ok();
    assert_eq!(copy["turns"], 2);
    let named = import(&other, "?id=copy&snapshots=fresh", &file.body).ok();
    assert_eq!(named["id"], "copy");
    assert_eq!(digests(&server, S), digests(&other, "/v1/agents/echo/sessions/copy"));
}

#[test]
fn a_file_that_was_cut_or_changed_brings_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    eventful(&server);
    let file = export(&server, S).body;
    let lines: Vec<_> = file.split_inclusive('\n').collect();
    for (at, line) in lines.iter().enumerate() {
        let cut: String = lines[..at].concat();
        import(&server, "?id=x&snapshots=fresh", &cut).refused(400, "invalid");
        let without: String =
            lines.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, line)| *line).collect();
        import(&server, "?id=x&snapshots=fresh", &without).refused(400, "invalid");
        let changed = file.replace(line, &line.replacen("\"seq\":", "\"seq\" :", 1));
        if changed != file {
            import(&server, "?id=x&snapshots=fresh", &changed).refused(400, "invalid");
        }
    }
    for bad in ["", "\n", "{}\n", "[]\n", "[\"\",{}]\n", "\u{0}", &format!("{file}{file}"), &format!("{file}\n")] {
        import(&server, "?id=x&snapshots=fresh", bad).refused(400, "invalid");
    }
    import(&server, "?id=x&fresh=true", &file).refused(400, "invalid");
    import(&server, "?snapshots=new", &file).refused(400, "invalid");
    ask(&server, "POST", IMPORT, "", "{}").refused(415, "unsupported_media_type");
    get(&server, "/v1/agents/echo/sessions/x").refused(404, "not_found");
    let large = format!("{}\n", "x".repeat(17 << 20));
    import(&server, "", &large).refused(413, "too_large");
    assert_eq!(get(&server, "/v1/agents/echo/sessions").ok()["items"].as_array().unwrap().len(), 1);
}

fn everturn(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_everturn")).args(args).current_dir(dir).output().unwrap()
}

#[test]
fn the_command_line_takes_out_and_brings_in_too() {
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (sqlite_in(dir.path()), format!("sqlite:{}", dir.path().join("other.db").display()));
    let server = Server::start(dir.path(), &store);
    eventful(&server);
    let done = everturn(dir.path(), &["export", "echo", "s", "-o", "s.ndjson", "--store", &store]);
    assert!(done.status.success(), "{done:?}");
    let again = everturn(dir.path(), &["export", "echo", "s", "-o", "s.ndjson", "--store", &store]);
    assert!(!again.status.success(), "a file that is there is not written over");
    let piped = everturn(dir.path(), &["export", "echo", "s", "--store", &store]);
    assert_eq!(piped.stdout, std::fs::read(dir.path().join("s.ndjson")).unwrap());
    let made = everturn(dir.path(), &["import", "s.ndjson", "--store", &other]);
    assert_eq!(String::from_utf8_lossy(&made.stdout), "echo/user/s\n", "{made:?}");
    assert!(!everturn(dir.path(), &["import", "s.ndjson", "--store", &other]).status.success());
    let copy = ["import", "s.ndjson", "--store", &other, "--user", "bob", "--fresh-snapshots"];
    assert_eq!(String::from_utf8_lossy(&everturn(dir.path(), &copy).stdout), "echo/bob/s\n");
    let elsewhere = tempfile::tempdir().unwrap();
    let second = Server::start(elsewhere.path(), &other);
    assert_eq!(digests(&server, S), digests(&second, S));
    let unknown = everturn(dir.path(), &["export", "echo", "none", "--store", &store]);
    assert!(!unknown.status.success() && unknown.stdout.is_empty(), "{unknown:?}");
}
