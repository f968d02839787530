//! Digests: equal states have equal ones, whatever their path, session or store.

use super::bench::{Bench, answer, delta, edit, json, set, turn_from};
use super::verdict::{Check, holds, same};
use crate::digest::StateDigests;
use crate::store::{At, StepTurn, TurnRef, UpdateSession};
use crate::{Artifact, Changes, Digest, Event, Json, Message, Part, Point, PointState, RecordKind, View};

pub(super) async fn every_path_to_a_state_gives_its_digest(t: Bench) -> Check {
    let said = [Message::user("a"), Message::model("b"), Message::user("c")];
    let custom = json(r#"{"x":1,"y":[true]}"#);
    let all = Changes::new().event(Event::new("m").with_messages(said.clone())).custom(custom.clone());

    let in_one = t.session("in one").await?;
    t.change(&in_one, all.clone()).await?;

    let in_many = t.session("in many").await?;
    for message in said.clone() {
        t.change(&in_many, Changes::new().event(Event::new("other author").with_messages([message]))).await?;
    }
    t.change(&in_many, set(delta("y", "[true]"))).await?;
    t.change(&in_many, set(delta("x", "1"))).await?;

    let by_detour = t.session("by detour").await?;
    t.change(&by_detour, answer("regretted").custom(json("[]"))).await?;
    t.fail(&by_detour, "lost").await?;
    t.change(&by_detour, Changes::new().splice(0, said.to_vec()).custom(custom.clone())).await?;

    let by_edit = t.session("by edit").await?;
    let mut commit = edit(&by_edit, "");
    commit.changes = all.clone();
    t.store.commit(commit).await?;

    let aside = t.session("aside").await?;
    let root = t.head(&aside).await?;
    t.say(&aside, "old").await?;
    let mut begin = turn_from(&aside, root, "");
    begin.input = crate::Input::messages(said);
    let begun = t.store.begin(begin).await?.begun()?;
    t.store.end(crate::store::EndTurn::completed(begun.fence, Changes::new().custom(custom))).await?;

    let wanted = t.state(&in_one).await?.digest();
    for key in [in_many, by_detour, by_edit, aside] {
        same(t.state(&key).await?.digest(), wanted, &format!("the digest of {key}"))?;
    }
    Ok(())
}

pub(super) async fn what_belongs_to_a_state_changes_its_digest(t: Bench) -> Check {
    let key = t.session("s").await?;
    let artifact = |name: &str, text: &str| Changes::new().artifact(Artifact::new(name, vec![Part::text(text)]));
    let changes = [
        answer("a message"),
        answer("a message"),
        Changes::new().custom(json("1")),
        Changes::new().custom(json("1.0")),
        artifact("a", "x"),
        artifact("b", "x"),
        artifact("a", "y"),
        Changes::new().view(View::new(1, vec![])),
        Changes::new().view(View::new(1, vec![Message::model("summary")])),
    ];
    let mut seen = vec![t.state(&key).await?.digest()];
    for change in changes {
        let receipt = t.change(&key, change).await?;
        holds(!seen.contains(&receipt.digest), "every change gives a digest not seen before")?;
        seen.push(receipt.digest);
    }
    Ok(())
}

pub(super) async fn what_does_not_belong_to_a_state_leaves_its_digest(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, answer("x").custom(json(r#"{"a":1,"b":2}"#))).await?;
    let before = t.state(&key).await?.digest();
    let mut beside = set(delta("user:k", "1").set("app:k", json("2")));
    beside.usage = crate::Usage::tokens(1, 1);
    beside.schema_version = Some(3);
    same(t.change(&key, beside).await?.digest, before, "after scopes, usage and a schema version")?;
    let respaced = Changes::new().custom(json("{ \"b\" : 2, \"a\":1 }"));
    same(t.change(&key, respaced).await?.digest, before, "after white space and the order of members")?;
    t.store.update(&key, UpdateSession::title("x")).await?;
    same(t.state(&key).await?.digest(), before, "after a title")
}

pub(super) async fn strings_are_compared_by_what_they_say(t: Bench) -> Check {
    let (plain, escaped) = (t.session("plain").await?, t.session("escaped").await?);
    let texts = [
        (&plain, "{\"role\":\"user\",\"content\":[{\"text\":\"é/🙂\\n\"}]}"),
        (&escaped, r#"{ "content": [{"text":"\u00e9\/\ud83d\ude42\u000a"}], "role": "user" }"#),
    ];
    for (key, text) in texts {
        t.change(key, Changes::new().event(Event::new("m").with_messages([Message::parse(text)?]))).await?;
    }
    same(t.state(&plain).await?.digest(), t.state(&escaped).await?.digest(), "the digests of one message written twice")
}

pub(super) async fn big_numbers_are_told_apart(t: Bench) -> Check {
    let key = t.session("s").await?;
    let one = t.change(&key, Changes::new().custom(json("9007199254740992"))).await?;
    let two = t.change(&key, Changes::new().custom(json("9007199254740993"))).await?;
    holds(one.digest != two.digest, "neighbours beyond 2^53 have digests of their own")
}

pub(super) async fn a_digest_is_what_the_format_says(t: Bench) -> Check {
    let key = t.session("s").await?;
    let messages = [Message::user("a"), Message::model("b")];
    let (custom, artifact) = (json(r#"{"b":1.10,"a":null}"#), Artifact::new("r", vec![Part::text("x")]));
    let view = View::new(1, vec![Message::model("summary")]);
    let changes = Changes::new().event(Event::new("m").with_messages(messages.clone())).custom(custom.clone());
    let receipt = t.change(&key, changes.artifact(artifact.clone()).view(view.clone())).await?;
    let mut chain = Digest::ABSENT;
    for message in &messages {
        chain = chain.chain(Digest::of_json(message.json())?);
    }
    let of = |json: Json| Digest::of_json(&json);
    let wanted = StateDigests {
        chain,
        custom: of(custom)?,
        artifacts: Digest::ABSENT.chain(of(Json::from_value(&artifact)?)?),
        view: of(Json::from_value(&view)?)?,
    };
    same(receipt.digest, wanted.state(), "the digest, computed by hand")?;
    let empty = t.state_at(At::Point(key, Point::new(1))).await?;
    same(empty.digest(), StateDigests::EMPTY.state(), "the digest of nothing")
}

pub(super) async fn receipts_states_and_snapshots_agree(t: Bench) -> Check {
    let key = t.session("s").await?;
    for i in 0..5 {
        let (id, receipt) = t.snap(&key, &i.to_string()).await?;
        same(t.snapshot(id).await?.digest, receipt.digest, "the snapshot's digest")?;
        same(t.state_at(At::Snapshot(id)).await?.digest(), receipt.digest, "the digest of the snapshot's state")?;
        same(t.state_at(At::Point(key.clone(), receipt.point)).await?.digest(), receipt.digest, "the point's digest")?;
    }
    Ok(())
}

/// The digest of what a state holds, added up by hand.
fn recomputed(state: &PointState) -> crate::Result<Digest> {
    let mut digests = StateDigests::EMPTY;
    for message in state.messages() {
        digests.chain = digests.chain.chain(Digest::of_json(message.json())?);
    }
    if let Some(custom) = state.custom() {
        digests.custom = Digest::of_json(custom)?;
    }
    for artifact in state.artifacts() {
        digests.artifacts = digests.artifacts.chain(Digest::of_json(&Json::from_value(&*artifact)?)?);
    }
    if let Some(view) = state.view() {
        digests.view = Digest::of_json(&Json::from_value(view)?)?;
    }
    Ok(digests.state())
}

pub(super) async fn every_point_has_the_digest_of_what_it_holds(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.fail(&key, "failed").await?;
    let begun = t.begin(&key, "dies").await?;
    let changes = answer("half").custom(json("1")).artifact(Artifact::new("a", vec![]));
    t.store.step(StepTurn::new(begun.fence, changes)).await?;
    t.outlive_leases();
    let taken = t.store.take_over(begun.turn).await?;
    t.store.step(StepTurn::new(taken.fence, answer("dies again"))).await?;
    t.outlive_leases();
    t.say(&key, "next").await?;
    let stopped = t.begin(&key, "stopped").await?;
    t.store.step(StepTurn::new(stopped.fence, answer("half").view(View::new(1, vec![])))).await?;
    t.store.abort(TurnRef::Turn(stopped.turn)).await?;
    t.store.abort(TurnRef::Turn(begun.turn)).await?;
    for record in t.records(&key).await?.iter().filter(|record| record.kind != RecordKind::Admin) {
        let state = t.state_at(At::Point(key.clone(), Point::new(record.seq))).await?;
        let what =
            format!("the digest after record {}, a {:?} of attempt {:?}", record.seq, record.kind, record.attempt);
        same(state.digest(), recomputed(&state)?, &what)?;
    }
    Ok(())
}
