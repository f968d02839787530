//! Files that somebody made to do harm: whatever an import is given, it refuses it or what comes of it is sound.

use std::sync::Arc;

use everturn::store::{At, Entry};
use everturn::store::{
    BeginTurn, BranchChange, Commit, CreateSession, EndTurn, ForkSession, ImportSession, MemoryStore, SnapshotIds,
    Start, Store, StoreExt, VerifyScope,
};
use everturn::{
    Artifact, BranchName, Changes, EndStatus, ErrorKind, Event, Exporter, Importer, Input, InvocationId, Json, Message,
    NewSnapshot, Outcome, Part, SessionId, SessionKey, SnapshotId,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Numbers that only look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

fn key(id: &str) -> SessionKey {
    SessionKey::of("shop", "ann", id).unwrap()
}

/// A fork of a session with a branch, a failure, artifacts and patched state; and a turn that runs.
async fn eventful() -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    store.create(CreateSession::at(key("origin")).state("n", Json::parse("[1,2,3]").unwrap())).await.unwrap();
    let mut first = None;
    for (at, text) in ["one", "two", "three"].into_iter().enumerate() {
        let turn = BeginTurn::new(Start::Session(key("origin")), InvocationId::new("i").unwrap(), Input::text(text));
        let begun = store.begin(turn).await.unwrap().begun().unwrap();
        if at == 1 {
            let outcome = Outcome::finished(everturn::FinishReason::Failed);
            store.end(EndTurn::voided(begun.fence, EndStatus::Failed, outcome)).await.unwrap();
            continue;
        }
        let custom = Json::parse(format!("{{\"n\":[1,2,{at}],\"long\":\"{}\"}}", "x".repeat(50))).unwrap();
        let artifact = Artifact::new("plan", vec![Part::text(text)]);
        let said = Changes::new().event(Event::model("m", Message::model(text))).custom(custom).artifact(artifact);
        let id: SnapshotId = format!("00000000-0000-7000-8000-00000000000{at}").parse().unwrap();
        let end = store.end(EndTurn::completed(begun.fence, said).snapshot(NewSnapshot::new(id))).await.unwrap();
        first.get_or_insert(end.point);
    }
    let name = BranchName::new("side").unwrap();
    store.branch(&key("origin"), BranchChange::Create { name, at: first.unwrap() }).await.unwrap();
    store.fork(ForkSession::at(At::head(key("origin"))).id(SessionId::new("s").unwrap())).await.unwrap();
    let edit = Changes::new().splice(1, vec![Message::model("anew")]);
    store.commit(Commit::new(key("s"), edit)).await.unwrap();
    let turn = BeginTurn::new(Start::Session(key("s")), InvocationId::new("i").unwrap(), Input::text("slow"));
    store.begin(turn).await.unwrap().begun().unwrap();
    store
}

async fn entries(store: &dyn Store, session: &SessionKey) -> Vec<Entry> {
    let mut page = store.export(session, None).await.unwrap();
    let mut entries = page.entries;
    while let Some(next) = page.next {
        page = store.export(session, Some(&next)).await.unwrap();
        entries.extend(page.entries);
    }
    entries
}

/// All places in a value, as pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(members) => members.iter().for_each(|(name, member)| {
            places(member, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// Changes something, somewhere.
fn spoil(value: &mut Value, dice: &mut Dice) {
    let mut found = Vec::new();
    places(value, "", &mut found);
    let at = found[dice.below(found.len())].clone();
    let Some(place) = value.pointer_mut(&at) else { return };
    *place = match (dice.below(6), &*place) {
        (0, Value::Number(number)) => (number.as_u64().unwrap_or(0) + 1).into(),
        (1, Value::Number(number)) => number.as_u64().unwrap_or(0).saturating_sub(1).into(),
        (2, _) => u64::MAX.into(),
        (3, _) => Value::Null,
        (4, Value::Array(items)) => items.iter().chain(items).cloned().collect(),
        (5, Value::String(text)) => format!("{text}x").into(),
        (_, Value::Object(members)) => {
            members.iter().skip(1).map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        (_, other) => other.clone(),
    };
}

#[tokio::test]
async fn what_was_tampered_with_is_refused_or_sound() {
    let store = eventful().await;
    for session in [key("origin"), key("s")] {
        let honest = entries(&*store, &session).await;
        let mut taken = 0;
        for seed in 0..1_500 {
            let mut dice = Dice(seed);
            let mut forged: Vec<Value> = honest
                .iter()
                .map(|entry| serde_json::from_str(Json::from_value(entry).unwrap().as_str()).unwrap())
                .collect();
            for _ in 0..=dice.below(2) {
                let (at, other) = (dice.below(forged.len()), dice.below(forged.len()));
                match dice.below(8) {
                    0 => forged.swap(at, other),
                    1 => forged[at] = forged[other].clone(),
                    _ => spoil(&mut forged[at], &mut dice),
                }
            }
            let read: everturn::Result<Vec<Entry>> =
                forged.iter().map(|value| Json::parse(value.to_string()).and_then(|json| json.to())).collect();
            let Ok(read) = read else { continue };
            let target = MemoryStore::new();
            let mut import = ImportSession::new(session.clone(), read);
            import.snapshots = SnapshotIds::Fresh;
            match target.import(import).await {
                Err(error) => {
                    let kinds = [ErrorKind::Invalid, ErrorKind::TooLarge];
                    assert!(kinds.contains(&error.kind()), "seed {seed}: {error:?}");
                    assert!(target.session(&session).await.unwrap().is_none());
                }
                Ok(made) => {
                    taken += 1;
                    assert_eq!(target.verify(VerifyScope::All).await.unwrap().damage, None, "seed {seed}");
                    target.head_state(&made.key()).await.unwrap();
                    target.tree(everturn::store::TreeQuery::of(made.key())).await.unwrap();
                    entries(&target, &made.key()).await;
                }
            }
        }
        assert!(taken > 10, "some changes do no harm: {taken}");
    }
}

/// A fork goes on counting where it was forked off. Its first record changes nothing, so that no digest tells that it is gone.
#[tokio::test]
async fn a_fork_whose_log_begins_with_a_gap_is_refused() {
    let store = MemoryStore::new();
    store.create(CreateSession::at(key("origin"))).await.unwrap();
    let fork = ForkSession::at(At::head(key("origin"))).id(SessionId::new("s").unwrap());
    let first = store.fork(fork).await.unwrap().head;
    let said = Changes::new().event(Event::model("m", Message::model("here")));
    store.commit(Commit::new(key("s"), said)).await.unwrap();
    let mut forged = entries(&store, &key("s")).await;
    assert!(
        MemoryStore::new().import(ImportSession::new(key("s"), forged.clone())).await.is_ok(),
        "it is sound as it was"
    );
    let whole = forged.len();
    forged.retain(|entry| !matches!(entry, Entry::Record(record) if record.of == 0 && record.seq == first.seq()));
    assert_eq!(forged.len() + 1, whole);
    let error = MemoryStore::new().import(ImportSession::new(key("s"), forged)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("not where it should be in the log"), "{error}");
}

#[tokio::test]
async fn a_file_is_taken_whole_or_not_at_all_wherever_it_is_cut() {
    let store = eventful().await;
    let (mut file, mut exporter) = (String::new(), Exporter::new(store, key("s")));
    while let Some(piece) = exporter.next().await.unwrap() {
        file.push_str(&piece);
    }
    for cut in (0..file.len()).step_by(7) {
        let mut importer = Importer::new(file.len());
        let pushed = importer.push(&file.as_bytes()[..cut]);
        assert!(pushed.is_err() || importer.finish(key("s")).is_err(), "cut at {cut}");
    }
    // However it comes in pieces, it is the same file.
    for size in [1, 7, 100] {
        let mut importer = Importer::new(file.len());
        file.as_bytes().chunks(size).for_each(|piece| importer.push(piece).unwrap());
        MemoryStore::new().import(importer.finish(key("s")).unwrap()).await.unwrap();
    }
    let too_large = Importer::new(file.len() - 1).push(file.as_bytes()).unwrap_err();
    assert_eq!(too_large.kind(), ErrorKind::TooLarge);
    for at in (0..file.len()).step_by(11) {
        let mut bytes = file.clone().into_bytes();
        bytes[at] ^= 1;
        let mut importer = Importer::new(file.len());
        let pushed = importer.push(&bytes);
        assert!(pushed.is_err() || importer.finish(key("s")).is_err(), "a flipped bit at {at} went unnoticed");
    }
}

/// A file of these lines, as if it had been exported.
fn file(lines: &[Value]) -> Vec<u8> {
    let (mut file, mut before) = (Vec::new(), [0; 32]);
    for line in lines {
        let text = line.to_string();
        before = Sha256::new().chain_update(before).chain_update(&text).finalize().into();
        let sum: String = before.iter().map(|byte| format!("{byte:02x}")).collect();
        file.extend_from_slice(format!("[\"{sum}\",{text}]\n").as_bytes());
    }
    file
}

/// A session whose state is changed by a patch.
fn patched(patch: Value) -> Vec<u8> {
    let (at, empty) = ("2026-01-01T00:00:00Z", "903b993f5b8c922231abf70de21446a6e540e05340aae2461360e4b9ecb347d9");
    let record = |seq: u64, body: Value| json!({"record": {"seq": seq, "segment": 1, "kind": "edit", "at": at, "digest": empty, "body": body}});
    file(&[
        json!({"export": {"version": 1}}),
        json!({"session": {
            "app": "shop", "user": "ann", "id": "b", "metadata": {}, "createdAt": at, "updatedAt": at, "usage": {},
            "inheritedUsage": {}, "interrupted": false, "branches": [{"name": "main", "at": {"segment": 1, "seq": 2}}],
        }}),
        json!({"segment": {"id": 1}}),
        record(1, json!({})),
        record(2, json!({"custom": {"patch": patch}})),
        json!({"end": {"lines": 5}}),
    ])
}

async fn brought_in(file: &[u8]) -> everturn::Result<()> {
    let mut importer = Importer::new(file.len());
    importer.push(file)?;
    MemoryStore::new().import(importer.finish(key("b"))?).await.map(drop)
}

/// Each copy is a hundred bytes and twice as deep, or twice as large, as the one before.
#[tokio::test]
async fn patches_that_copy_are_refused() {
    let mut deep = vec![json!({"op": "add", "path": "", "value": {"x": {}}})];
    let mut depth = 1;
    while depth < 20_000 {
        deep.push(json!({"op": "copy", "from": "/x", "path": "/x".repeat(depth + 1)}));
        depth *= 2;
    }
    let mut large = vec![json!({"op": "add", "path": "", "value": {"x": "0".repeat(200)}})];
    large.extend((0..30).map(|i| json!({"op": "copy", "from": "", "path": format!("/b{i}")})));
    for bomb in [deep, large] {
        let error = brought_in(&patched(bomb.into())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("copy"), "{error}");
    }
}

/// Without copies it takes an operation for every hundred levels.
#[tokio::test]
async fn patches_that_go_deeper_each_time_are_refused() {
    let value: Value = (0..90).fold(json!({}), |inner, _| json!({"x": inner}));
    let add = |times: usize| json!({"op": "add", "path": "/x".repeat(90 * times), "value": value});
    let error = brought_in(&patched((0..100).map(add).collect())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("128 levels"), "{error}");
}

/// Many operations that each look for a place, or move what is behind it.
#[tokio::test]
async fn patches_of_many_small_operations_are_applied_or_refused_soon() {
    let n = 40_000;
    let members: Value = (0..n).map(|i| (format!("k{i}"), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let start = |value: Value| json!({"op": "add", "path": "", "value": value});
    let removed = (0..n).map(|i| json!({"op": "remove", "path": format!("/k{}", n - 1 - i)}));
    let by_name: Vec<Value> = [start(members)].into_iter().chain(removed).collect();
    let ends = (0..n).map(|i| json!({"op": "add", "path": if i % 2 == 0 { "/0" } else { "/-" }, "value": 1}));
    let back_and_forth: Vec<Value> = [start(vec![1; n].into())].into_iter().chain(ends).collect();
    for (patch, why) in [(by_name, "another digest"), (back_and_forth, "back and forth")] {
        let error = brought_in(&patched(patch.into())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}
