//! What documents, patches and imports take of memory is bounded by their own size. A count of what is allocated, over
//! documents that are made to take much.

use everturn::store::{MemoryStore, Store as _};
use everturn::{Importer, Json, Patch, SessionKey};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATIONS: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// The bytes that something allocates, given back or not.
fn allocated<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let region = Region::new(ALLOCATIONS);
    let done = work();
    let change = region.change();
    (done, change.bytes_allocated + usize::try_from(change.bytes_reallocated).unwrap_or(0))
}

/// The most for so many bytes: a value of two bytes is a node of thirty, which is weighed, and found by name.
fn most(bytes: usize) -> usize {
    (8 << 20) + 300 * bytes
}

fn object(keys: impl Iterator<Item = usize>, value: usize) -> String {
    format!("{{{}}}", keys.map(|i| format!("\"k{i:05}\":{value}")).collect::<Vec<_>>().join(","))
}

fn array(items: impl Iterator<Item = usize>) -> String {
    format!("[{}]", items.map(|i| i.to_string()).collect::<Vec<_>>().join(","))
}

fn nest(depth: usize, beside: usize, inner: String) -> String {
    (0..depth).fold(inner, |inner, _| format!("{{\"x\":{inner},\"n\":{beside}}}"))
}

/// Two documents: of what shape, how large, how far apart.
fn pair((shape, n, k): (usize, usize, usize)) -> (String, String) {
    let k = k.min(n);
    match shape {
        0 => (object(0..n, 1), object(k..n, 1)),
        1 => (object(0..n, 1), object((0..n).rev(), 2)),
        2 => (array(0..n), array((k..n).chain(0..k))),
        3 => {
            let rows = |from: usize| {
                let rows: Vec<_> = (0..k).map(|row| array(row + from..row + from + n / k)).collect();
                format!("[{}]", rows.join(","))
            };
            (rows(0), rows(1))
        }
        4 => (nest(k, 0, object(0..n, 1)), nest(k, 1, object(1..n, 1))),
        // Each of many small changes has the long name in its path.
        _ => {
            let below = |value| format!("{{\"{}\":{}}}", "k".repeat(10 * n), object(0..n, value));
            (below(1), below(2))
        }
    }
}

/// A session whose state is changed by a patch, as a file.
fn file(patch: &str) -> Vec<u8> {
    let (at, empty) = ("2026-01-01T00:00:00Z", "903b993f5b8c922231abf70de21446a6e540e05340aae2461360e4b9ecb347d9");
    let record = |seq: u64, body: &str| {
        format!(
            r#"{{"record":{{"seq":{seq},"segment":1,"kind":"edit","at":"{at}","digest":"{empty}","body":{body}}}}}"#
        )
    };
    let session = format!(
        r#"{{"session":{{"app":"a","user":"u","id":"s","metadata":{{}},"createdAt":"{at}","updatedAt":"{at}","usage":{{}},"inheritedUsage":{{}},"interrupted":false,"branches":[{{"name":"main","at":{{"segment":1,"seq":2}}}}]}}}}"#
    );
    let (mut file, mut before) = (Vec::new(), [0; 32]);
    for text in [
        r#"{"export":{"version":1}}"#.to_owned(),
        session,
        r#"{"segment":{"id":1}}"#.to_owned(),
        record(1, "{}"),
        record(2, &format!(r#"{{"custom":{{"patch":{patch}}}}}"#)),
        r#"{"end":{"lines":5}}"#.to_owned(),
    ] {
        before = Sha256::new().chain_update(before).chain_update(&text).finalize().into();
        let sum: String = before.iter().map(|byte| format!("{byte:02x}")).collect();
        file.extend_from_slice(format!("[\"{sum}\",{text}]\n").as_bytes());
    }
    file
}

/// Operations that make more of what is there, or go deeper each time.
fn hostile((shape, n): (usize, usize)) -> String {
    let start = r#"{"op":"add","path":"","value":{"x":[]}}"#.to_owned();
    let op = |i: usize| match shape {
        0 => format!(r#"{{"op":"copy","from":"","path":"/b{i}"}}"#),
        1 => r#"{"op":"copy","from":"/x","path":"/x/-"}"#.to_owned(),
        2 => format!(r#"{{"op":"add","path":"{}","value":{{"x":{{}}}}}}"#, "/x".repeat(i + 1)),
        3 => format!(r#"{{"op":"add","path":"/x/{}","value":{i}}}"#, if i.is_multiple_of(2) { "0" } else { "-" }),
        _ => format!(r#"{{"op":"add","path":"/m{i}","value":{i}}}"#),
    };
    // Copies double what is there: thirty of them are enough.
    let n = if shape < 2 { n.min(30) } else { n };
    format!("[{}]", [start].into_iter().chain((0..n).map(op)).collect::<Vec<_>>().join(","))
}

fn bring_in(file: &[u8]) -> everturn::Result<()> {
    let key = SessionKey::of("a", "u", "s")?;
    let mut importer = Importer::new(file.len());
    importer.push(file)?;
    let import = importer.finish(key)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(MemoryStore::new().import(import)).map(drop)
}

/// One test, so that nothing else allocates meanwhile.
#[test]
fn memory_is_taken_by_the_size_of_what_is_sent() {
    let config = || ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
    let made = (0..6_usize, 1..9_000_usize, 1..90_usize);
    proptest!(config(), |(made in made)| {
        let (before, after) = pair(made);
        let bytes = before.len() + after.len();
        let (before, after) = (Json::parse(before).unwrap(), Json::parse(after).unwrap());
        let (patch, taken) = allocated(|| Patch::diff(&before, &after).unwrap());
        prop_assert!(taken <= most(bytes), "{} bytes to find the difference of {}", taken, bytes);
        let (applied, taken) = allocated(|| patch.apply(&before));
        prop_assert!(taken <= most(bytes), "{} bytes to apply the difference of {}", taken, bytes);
        prop_assert_eq!(applied.unwrap(), after);
    });
    proptest!(config(), |(made in (0..5_usize, 1..2_000_usize))| {
        let file = file(&hostile(made));
        let (outcome, taken) = allocated(|| bring_in(&file));
        prop_assert!(outcome.is_err(), "its digest is of nothing");
        prop_assert!(taken <= most(file.len()), "{} bytes to refuse a file of {}", taken, file.len());
    });
}
