//! Snapshots name points. Any two states can be compared, by digest or as a patch from one to the other.

use everturn::store::{At, BeginTurn, CreateSession, EndTurn, ListSnapshots, MemoryStore, Start, Store, StoreExt};
use everturn::{
    Changes, Clock, Input, InvocationId, Json, NewSnapshot, Patch, Result, SessionKey, SnapshotId, SystemClock,
};

async fn plan(store: &MemoryStore, key: &SessionKey, todo: &str, label: &str) -> Result<SnapshotId> {
    let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i")?, Input::default());
    let begun = store.begin(turn).await?.begun()?;
    let id = SnapshotId::from_uuid(SystemClock::new().uuid());
    let changes = Changes::new().custom(Json::parse(todo)?);
    store.end(EndTurn::completed(begun.fence, changes).snapshot(NewSnapshot::new(id).labelled(label))).await?;
    Ok(id)
}

async fn custom(store: &MemoryStore, id: SnapshotId) -> Result<Json> {
    let state = store.state(At::Snapshot(id)).await?.expect("the snapshot was just taken");
    Ok(state.custom().cloned().unwrap_or_else(Json::null))
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let key = SessionKey::of("planner", "ann", "week")?;
    store.create(CreateSession::at(key.clone())).await?;
    let monday = plan(&store, &key, r#"{"todo":["write","test","ship"],"by":"Friday"}"#, "monday").await?;
    let tuesday = plan(&store, &key, r#"{"todo":["test","ship"],"by":"Friday"}"#, "tuesday").await?;
    let again = plan(&store, &key, r#"{"by":"Friday","todo":["write","test","ship"]}"#, "start over").await?;

    // Equal states have equal digests, however they were reached and spelt.
    let digest = async |id| Ok::<_, everturn::Error>(store.state(At::Snapshot(id)).await?.map(|state| state.digest()));
    assert_eq!(digest(monday).await?, digest(again).await?);
    assert_ne!(digest(monday).await?, digest(tuesday).await?);

    let (before, after) = (custom(&store, monday).await?, custom(&store, tuesday).await?);
    let patch = Patch::diff(&before, &after)?;
    assert_eq!(patch.to_string(), r#"[{"op":"remove","path":"/todo/0"}]"#);
    assert_eq!(patch.apply(&before)?, after);

    // Going back leaves later snapshots where they are, marked as being on nobody's line.
    let first = store.snapshots(ListSnapshots::of(key.clone())).await?.items[0].clone();
    store.rewind(&key, first.point).await?;
    for snapshot in store.snapshots(ListSnapshots::of(key.clone())).await?.items {
        assert_eq!(snapshot.orphaned, snapshot.snapshot_id != monday);
        println!("{:<10} {} orphaned: {}", snapshot.label.unwrap_or_default(), snapshot.snapshot_id, snapshot.orphaned);
    }
    Ok(())
}
