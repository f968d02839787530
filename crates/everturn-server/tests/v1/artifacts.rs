//! Artifacts.

use crate::common::Server;
use crate::{get, turn};

const S: &str = "/v1/agents/echo/sessions/s/artifacts";

#[test]
fn artifacts_are_listed_and_downloaded_in_any_version() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), "memory:");
    turn(&server, "s", "artifact notes/a\"é.html <script>1</script>");
    turn(&server, "s", "artifact notes/a\"é.html second");
    turn(&server, "s", "artifact other text");
    let listed = get(&server, S).ok();
    let listed: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|item| (&item["name"], &item["version"])).collect();
    assert_eq!(listed, [(&"notes/a\"é.html".into(), &1.into()), (&"other".into(), &0.into())]);
    let one = format!("{S}/notes%2Fa%22%C3%A9.html");
    assert_eq!(get(&server, &one).ok()["items"].as_array().unwrap().len(), 2);
    let page = get(&server, &format!("{S}?limit=1")).ok();
    assert_eq!(page["items"][0]["version"], 1, "{page}");
    let next = page["next"].as_str().unwrap();
    let rest = get(&server, &format!("{S}?limit=1&cursor={next}")).ok();
    assert_eq!((&rest["items"][0]["name"], rest.get("next")), (&"other".into(), None), "{rest}");
    let page = get(&server, &format!("{one}?limit=1")).ok();
    let rest = get(&server, &format!("{one}?cursor={}", page["next"].as_str().unwrap())).ok();
    assert_eq!((&page["items"][0]["version"], &rest["items"][0]["version"]), (&0.into(), &1.into()));
    for bad in ["x", "e30", "WzEsMV0", "%FF"] {
        get(&server, &format!("{S}?cursor={bad}")).refused(400, "invalid");
    }
    get(&server, &format!("{S}/none")).refused(404, "not_found");

    let newest = server.request("GET", &format!("{one}/download"), "", "");
    assert_eq!((newest.status, newest.body.as_str()), (200, "second"));
    let first = server.request("GET", &format!("{one}/download?version=0"), "", "");
    assert_eq!(first.body, "<script>1</script>");
    let head = first.head.to_ascii_lowercase();
    for line in [
        "content-type: text/plain; charset=utf-8",
        "x-content-type-options: nosniff",
        "content-disposition: attachment; filename=\"a__.html\"; filename*=utf-8''a%22%c3%a9%2ehtml",
        "content-security-policy: sandbox; default-src 'none'",
    ] {
        assert!(head.contains(line), "{line}\n{head}");
    }
    get(&server, &format!("{one}/download?version=9")).refused(404, "not_found");
    get(&server, &format!("{one}/download?part=1")).refused(404, "not_found");
}
