//! What an agent makes: named things with versions that count up and stay readable.

use everturn::store::{ArtifactQuery, BeginTurn, CreateSession, EndTurn, MemoryStore, Start, Store, StoreExt};
use everturn::{
    Artifact, ArtifactChange, Changes, EndStatus, Input, InvocationId, Outcome, Part, Receipt, Result, SessionKey,
};

async fn make(store: &MemoryStore, key: &SessionKey, changes: Changes, status: EndStatus) -> Result<Receipt> {
    let turn = BeginTurn::new(Start::Session(key.clone()), InvocationId::new("i")?, Input::default());
    let begun = store.begin(turn).await?.begun()?;
    let mut end = EndTurn::voided(begun.fence, status, Outcome::default());
    end.changes = changes;
    store.end(end).await
}

fn report(text: &str) -> Changes {
    Changes::new().artifact(Artifact::new("report.md", vec![Part::text(text)]))
}

async fn names(store: &MemoryStore, key: &SessionKey) -> Result<Vec<String>> {
    Ok(store.head_state(key).await?.artifacts().iter().filter_map(|artifact| artifact.name.clone()).collect())
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = MemoryStore::new();
    let key = SessionKey::of("writer", "ann", "s")?;
    store.create(CreateSession::at(key.clone())).await?;

    let first = make(&store, &key, report("draft"), EndStatus::Completed).await?;
    let notes = Changes::new().artifact(Artifact::new("notes.txt", vec![Part::text("cut the intro")]));
    make(&store, &key, notes, EndStatus::Completed).await?;
    make(&store, &key, report("a turn that fails leaves no version"), EndStatus::Failed).await?;
    make(&store, &key, report("final"), EndStatus::Completed).await?;

    // The same name replaces in place; removing takes it out of the state.
    assert_eq!(names(&store, &key).await?, ["report.md", "notes.txt"]);
    let mut removal = Changes::new();
    removal.artifacts.push(ArtifactChange::Remove("notes.txt".to_owned()));
    make(&store, &key, removal, EndStatus::Completed).await?;
    assert_eq!(names(&store, &key).await?, ["report.md"]);

    // Versions are neither removed nor rewound.
    store.rewind(&key, first.point).await?;
    let versions = store.artifacts(ArtifactQuery::of(key.clone()).name("report.md")).await?;
    let texts: Vec<_> = versions.iter().map(|stored| stored.artifact.parts[0].as_text().unwrap_or_default()).collect();
    assert_eq!(texts, ["draft", "final"]);
    let next = make(&store, &key, report("another way"), EndStatus::Completed).await?;
    let newest = store.artifacts(ArtifactQuery::of(key.clone()).name("report.md").version(2)).await?;
    assert_eq!(newest[0].version.point, next.point);
    println!("report.md has {} versions", versions.len() + newest.len());
    Ok(())
}
