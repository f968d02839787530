//! Artifacts and their versions.

use super::bench::{Bench, answer, end, failure, json, turn_at};
use super::verdict::{Check, holds, refused, same, there};
use crate::store::{ArtifactQuery, At, Commit, EndTurn, StepTurn};
use crate::{Artifact, ArtifactChange, Changes, ErrorKind, Part, PointState, SessionKey};

fn put(name: &str, text: &str) -> Changes {
    Changes::new().artifact(Artifact::new(name, vec![Part::text(text)]))
}

fn change(change: ArtifactChange) -> Changes {
    let mut changes = Changes::new();
    changes.artifacts.push(change);
    changes
}

/// Names and texts of the artifacts of a state.
fn listed(state: &PointState) -> Vec<String> {
    let text = |artifact: &Artifact| artifact.parts.iter().filter_map(Part::as_text).collect::<String>();
    let artifacts = state.artifacts();
    artifacts.iter().map(|a| format!("{}={}", a.name.as_deref().unwrap_or("-"), text(a))).collect()
}

async fn at_head(t: &Bench, key: &SessionKey) -> crate::Result<Vec<String>> {
    Ok(listed(&t.state(key).await?))
}

async fn versions(t: &Bench, key: &SessionKey, name: &str) -> crate::Result<Vec<(u64, String)>> {
    let found = t.second().await?.artifacts(ArtifactQuery::of(key.clone()).name(name)).await?;
    let text = |artifact: &Artifact| artifact.parts.iter().filter_map(Part::as_text).collect::<String>();
    Ok(found.iter().map(|stored| (stored.version.version, text(&stored.artifact))).collect())
}

fn numbered<const N: usize>(texts: [&str; N]) -> Vec<(u64, String)> {
    (0..).zip(texts.map(String::from)).collect()
}

pub(super) async fn one_name_is_replaced_where_it_stands(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, put("a", "1")).await?;
    t.change(&key, put("b", "2")).await?;
    t.change(&key, put("a", "3")).await?;
    same(at_head(&t, &key).await?, vec!["a=3".to_owned(), "b=2".to_owned()], "the artifacts, in their places")
}

pub(super) async fn unnamed_artifacts_are_appended(t: Bench) -> Check {
    let key = t.session("s").await?;
    for text in ["1", "2", "1"] {
        t.change(&key, Changes::new().artifact(Artifact::unnamed(vec![Part::text(text)]))).await?;
    }
    same(at_head(&t, &key).await?, ["-=1", "-=2", "-=1"].map(String::from).to_vec(), "the artifacts")?;
    let all = t.second().await?.artifacts(ArtifactQuery::of(key.clone())).await?;
    same(all.len(), 0, "their versions: without a name there are none")
}

pub(super) async fn an_artifact_is_read_back_whole(t: Bench) -> Check {
    let key = t.session("s").await?;
    let media = Part::media("data:image/png;base64,dGVzdF9pbWFnZV9kYXRh", Some("image/png"));
    let odd = Part::from_json(json(r#"{"newKind":{"n":1.10}}"#))?;
    let mut wanted = Artifact::new("päth/../odd name", vec![Part::text("x"), media, odd]);
    wanted.metadata = Some(json(r#"{"by":"me","n":9007199254740993}"#));
    let receipt = t.change(&key, Changes::new().artifact(wanted.clone())).await?;
    same((*t.state(&key).await?.artifacts()[0]).clone(), wanted.clone(), "the artifact in the state")?;
    let stored = t.second().await?.artifacts(ArtifactQuery::of(key.clone())).await?;
    same(&stored[0].artifact, &wanted, "the artifact as a version")?;
    same(stored[0].version.name.as_str(), "päth/../odd name", "its name")?;
    same((stored[0].version.version, stored[0].version.point), (0, receipt.point), "its version and point")
}

pub(super) async fn versions_count_per_name_from_zero(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, put("a", "a0")).await?;
    t.change(&key, put("b", "b0")).await?;
    t.change(&key, put("a", "a1")).await?;
    t.store.commit(Commit::new(key.clone(), put("a", "a2"))).await?;
    let begun = t.begin(&key, "x").await?;
    t.store.step(StepTurn::new(begun.fence, put("a", "a3"))).await?;
    t.store.end(EndTurn::completed(begun.fence, put("a", "a4"))).await?;
    same(versions(&t, &key, "a").await?, numbered(["a0", "a1", "a2", "a3", "a4"]), "the versions of one")?;
    same(versions(&t, &key, "b").await?, numbered(["b0"]), "the versions of the other")?;
    let store = t.second().await?;
    let one = store.artifacts(ArtifactQuery::of(key.clone()).name("a").version(1)).await?;
    same(one.iter().map(|stored| stored.version.version).collect::<Vec<_>>(), vec![1], "one version by its number")?;
    same(store.artifacts(ArtifactQuery::of(key.clone())).await?.len(), 6, "all versions of all names")?;
    same(store.artifacts(ArtifactQuery::of(key.clone()).name("unknown")).await?.len(), 0, "those of no name")?;
    let unknown = store.artifacts(ArtifactQuery::of(super::bench::key("unknown"))).await;
    refused(unknown, ErrorKind::NotFound, "those of an unknown session")
}

pub(super) async fn equal_content_is_a_version_of_its_own(t: Bench) -> Check {
    let key = t.session("s").await?;
    for _ in 0..3 {
        t.change(&key, put("a", "same")).await?;
    }
    same(versions(&t, &key, "a").await?, numbered(["same", "same", "same"]), "the versions")?;
    same(at_head(&t, &key).await?, vec!["a=same".to_owned()], "the artifacts at the head")
}

pub(super) async fn versions_are_given_at_the_end(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let stepped = t.store.step(StepTurn::new(begun.fence, put("a", "early"))).await?;
    same(versions(&t, &key, "a").await?, vec![], "the versions while the turn runs")?;
    let inside = t.state_at(At::Point(key.clone(), stepped.point)).await?;
    same(listed(&inside), vec!["a=early".to_owned()], "the artifacts at a point inside the turn")?;
    t.store.end(end(begun.fence, "x")).await?;
    same(versions(&t, &key, "a").await?, numbered(["early"]), "the versions after its end")
}

pub(super) async fn a_void_turn_burns_no_version(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, put("a", "v0")).await?;
    let lost = t.begin(&key, "lost").await?;
    t.store.step(StepTurn::new(lost.fence, put("a", "lost"))).await?;
    let mut failed = failure(lost.fence, "lost");
    failed.changes = put("a", "lost as well");
    t.store.end(failed).await?;
    let stopped = t.begin(&key, "stopped").await?;
    t.store.step(StepTurn::new(stopped.fence, put("a", "stopped"))).await?;
    t.store.abort(crate::store::TurnRef::Turn(stopped.turn)).await?;
    let dead = t.begin(&key, "dead").await?;
    t.store.step(StepTurn::new(dead.fence, put("a", "dead"))).await?;
    t.outlive_leases();
    let taken = t.store.take_over(dead.turn).await?;
    t.store.end(end(taken.fence, "dead")).await?;
    t.change(&key, put("a", "v1")).await?;
    same(versions(&t, &key, "a").await?, numbered(["v0", "v1"]), "the versions")
}

pub(super) async fn versions_are_never_rewound(t: Bench) -> Check {
    let key = t.session("s").await?;
    let first = t.change(&key, put("a", "v0")).await?;
    t.change(&key, put("a", "v1")).await?;
    t.rewind(&key, first.point).await?;
    same(at_head(&t, &key).await?, vec!["a=v0".to_owned()], "the artifact at the head after a rewind")?;
    same(versions(&t, &key, "a").await?, numbered(["v0", "v1"]), "the versions after a rewind: none is hidden")?;
    t.change(&key, put("a", "v2")).await?;
    same(at_head(&t, &key).await?, vec!["a=v2".to_owned()], "the artifact after another turn")?;
    same(versions(&t, &key, "a").await?, numbered(["v0", "v1", "v2"]), "the versions: no number is given twice")
}

pub(super) async fn side_lines_share_the_count(t: Bench) -> Check {
    let key = t.session("s").await?;
    let (base, _) = t.snap(&key, "base").await?;
    t.say(&key, "old").await?;
    let one = t.store.begin(turn_at(base, "one")).await?.begun()?;
    let two = t.store.begin(turn_at(base, "two")).await?.begun()?;
    t.store.step(StepTurn::new(one.fence, put("a", "of one"))).await?;
    t.store.step(StepTurn::new(two.fence, put("a", "of two"))).await?;
    let second = t.store.end(EndTurn::completed(two.fence, answer("x"))).await?;
    let first = t.store.end(EndTurn::completed(one.fence, answer("x"))).await?;
    same(versions(&t, &key, "a").await?, numbered(["of two", "of one"]), "the versions, in the order of the ends")?;
    let at = |point| At::Point(key.clone(), point);
    same(listed(&t.state_at(at(first.point)).await?), vec!["a=of one".to_owned()], "what one line has")?;
    same(listed(&t.state_at(at(second.point)).await?), vec!["a=of two".to_owned()], "what the other has")
}

pub(super) async fn what_is_removed_stays_readable(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, put("a", "v0").artifact(Artifact::new("b", vec![]))).await?;
    t.change(&key, change(ArtifactChange::Remove("a".into()))).await?;
    same(at_head(&t, &key).await?, vec!["b=".to_owned()], "the artifacts after one was removed")?;
    same(versions(&t, &key, "a").await?, numbered(["v0"]), "its versions")?;
    t.change(&key, change(ArtifactChange::Remove("unknown".into()))).await?;
    t.change(&key, put("a", "v1")).await?;
    same(at_head(&t, &key).await?, ["b=", "a=v1"].map(String::from).to_vec(), "the artifacts after it came back")?;
    t.change(&key, change(ArtifactChange::Clear)).await?;
    same(at_head(&t, &key).await?.len(), 0, "the artifacts after all were taken away")?;
    same(versions(&t, &key, "a").await?, numbered(["v0", "v1"]), "its versions then")
}

pub(super) async fn an_event_names_the_versions_of_its_record(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, put("a", "v0")).await?;
    let both = answer("made").artifact(Artifact::new("a", vec![])).artifact(Artifact::new("b", vec![]));
    t.change(&key, both).await?;
    let event = there(t.events(&key).await?.pop(), "the event")?;
    let wanted = [("a".to_owned(), 1), ("b".to_owned(), 0)].into();
    same(event.artifact_delta, wanted, "the versions the event made")
}

pub(super) async fn wrong_artifacts_are_refused(t: Bench) -> Check {
    let key = t.session("s").await?;
    let begun = t.begin(&key, "x").await?;
    let before = t.footprint(&key).await?;
    let ending = |changes| EndTurn::completed(begun.fence, changes);
    refused(t.store.end(ending(put("", "x"))).await, ErrorKind::Invalid, "an empty name")?;
    refused(t.store.end(ending(put(&"x".repeat(1025), "x"))).await, ErrorKind::TooLarge, "a long name")?;
    same(t.footprint(&key).await?, before, "what the refusals left")?;
    holds(t.store.end(ending(put(&"x".repeat(1024), "x"))).await?.on_head, "the longest name goes through")
}

pub(super) async fn many_artifacts_keep_their_order(t: Bench) -> Check {
    let key = t.session("s").await?;
    let changes =
        (0..50).fold(Changes::new(), |c, i| c.artifact(Artifact::new(format!("n{i}"), vec![Part::text("x")])));
    t.change(&key, changes).await?;
    t.change(&key, put("n25", "y")).await?;
    let wanted: Vec<_> = (0..50).map(|i| format!("n{i}={}", if i == 25 { "y" } else { "x" })).collect();
    same(at_head(&t, &key).await?, wanted, "the artifacts")
}
