//! Custom state: the application's own.

use super::bench::{Bench, answer, delta, json, set};
use super::verdict::{Check, holds, refused, same};
use crate::store::{At, BeginTurn, EndTurn, Start, StepTurn};
use crate::{Changes, CustomChange, ErrorKind, Input, StateDelta};

pub(super) async fn absent_null_and_empty_are_three_things(t: Bench) -> Check {
    let key = t.session("s").await?;
    let absent = t.state(&key).await?;
    let mut digests = vec![absent.digest()];
    for custom in ["null", "{}", "[]", "0", "\"\"", "false"] {
        let receipt = t.change(&key, Changes::new().custom(json(custom))).await?;
        same(t.custom(&key).await?, Some(json(custom)), "the custom state")?;
        holds(!digests.contains(&receipt.digest), "each of them has a digest of its own")?;
        digests.push(receipt.digest);
    }
    let mut clear = Changes::new();
    clear.custom = Some(CustomChange::Clear);
    let cleared = t.change(&key, clear).await?;
    same(t.custom(&key).await?, None, "the custom state after it was cleared")?;
    same(cleared.digest, absent.digest(), "the digest after it was cleared")
}

pub(super) async fn keys_without_prefix_are_its_top_level(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, set(delta("a", "1"))).await?;
    t.change(&key, set(delta("b", "{\"deep\":[1]}"))).await?;
    same(t.custom(&key).await?, Some(json(r#"{"a":1,"b":{"deep":[1]}}"#)), "the custom state")?;
    t.change(&key, set(StateDelta::new().set("a", json("2")).remove("b").set("c", json("null")))).await?;
    same(t.custom(&key).await?, Some(json(r#"{"a":2,"c":null}"#)), "after setting, removing and nulling keys")
}

pub(super) async fn a_key_is_replaced_never_merged(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, set(delta("k", r#"{"a":1,"b":2}"#))).await?;
    t.change(&key, set(delta("k", r#"{"c":3}"#))).await?;
    same(t.custom(&key).await?, Some(json(r#"{"k":{"c":3}}"#)), "an object that replaced another")?;
    t.change(&key, set(delta("no", "false"))).await?;
    t.change(&key, set(delta("other", "1"))).await?;
    same(t.custom(&key).await?, Some(json(r#"{"k":{"c":3},"no":false,"other":1}"#)), "after an unrelated change")
}

pub(super) async fn deltas_of_input_steps_and_end_apply_in_order(t: Bench) -> Check {
    let key = t.session("s").await?;
    let input = Input::text("x").with_state(delta("first", "1").set("k", json("1")));
    let begin = BeginTurn::new(Start::Session(key.clone()), super::bench::invocation("i"), input);
    let begun = t.store.begin(begin).await?.begun()?;
    let at_begin = t.state_at(At::Point(key.clone(), begun.point)).await?;
    same(at_begin.custom(), Some(&json(r#"{"first":1,"k":1}"#)), "the state after the begin")?;
    let two_events = set(delta("k", "2")).event(crate::Event::new("m").with_state(delta("k", "3")));
    t.store.step(StepTurn::new(begun.fence, two_events)).await?;
    let end = EndTurn::completed(begun.fence, set(delta("k", "4").remove("first")));
    t.store.end(end.scopes(delta("k", "5"))).await?;
    same(t.custom(&key).await?, Some(json(r#"{"k":5}"#)), "the state after the end: what came last counts")
}

pub(super) async fn a_whole_state_replaces_the_keys_before_it(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, set(delta("old", "1"))).await?;
    t.change(&key, set(delta("k", "1")).custom(json(r#"{"whole":1}"#))).await?;
    same(t.custom(&key).await?, Some(json(r#"{"whole":1}"#)), "the custom state")?;
    t.change(&key, set(delta("k", "2"))).await?;
    same(t.custom(&key).await?, Some(json(r#"{"whole":1,"k":2}"#)), "after setting a key of it")
}

pub(super) async fn numbers_keep_their_spelling(t: Bench) -> Check {
    let key = t.session("s").await?;
    let text = r#"{"big":9007199254740993,"price":1.10,"e":1E+2,"minus":-0}"#;
    t.change(&key, Changes::new().custom(json(text))).await?;
    t.change(&key, set(delta("more", "2.50"))).await?;
    let found = t.custom(&key).await?.map(|custom| custom.to_string()).unwrap_or_default();
    for spelling in ["9007199254740993", "1.10", "1E+2", "-0", "2.50"] {
        holds(found.contains(spelling), &format!("{spelling} is still spelt that way in {found}"))?;
    }
    let before = t.state(&key).await?.digest();
    let respelt = t.change(&key, set(delta("price", "1.1"))).await?;
    holds(respelt.digest != before, "another spelling is another state")
}

pub(super) async fn a_long_way_of_small_changes_adds_up(t: Bench) -> Check {
    let key = t.session("s").await?;
    let filler = "x".repeat(2000);
    let state = |i: u32| json(&format!(r#"{{"filler":"{filler}","list":[{},"{i}"],"n":{i}}}"#, i % 7));
    let mut points = Vec::new();
    for i in 0..140 {
        points.push(t.change(&key, Changes::new().custom(state(i))).await?);
    }
    same(t.custom(&key).await?, Some(state(139)), "the custom state after all changes")?;
    for i in [0, 1, 126, 127, 128, 129, 138] {
        let found = t.state_at(At::Point(key.clone(), points[i].point)).await?;
        same(found.custom(), Some(&state(u32::try_from(i).unwrap_or(0))), "the custom state on the way")?;
        same(found.digest(), points[i].digest, "the digest on the way")?;
    }
    Ok(())
}

pub(super) async fn keys_need_an_object(t: Bench) -> Check {
    let key = t.session("s").await?;
    t.change(&key, Changes::new().custom(json("[1]"))).await?;
    let begun = t.begin(&key, "x").await?;
    let before = t.footprint(&key).await?;
    let end = |changes| EndTurn::completed(begun.fence, changes);
    refused(t.store.end(end(set(delta("k", "1")))).await, ErrorKind::Invalid, "a key of a list")?;
    same(t.footprint(&key).await?, before, "what the refusal left")?;
    t.store.end(end(answer("fine"))).await?;
    same(t.custom(&key).await?, Some(json("[1]")), "the custom state")
}

pub(super) async fn prefixed_keys_inside_it_are_refused(t: Bench) -> Check {
    let key = t.session("s").await?;
    for custom in [r#"{"app:k":1}"#, r#"{"user:k":1}"#, r#"{"temp:k":1}"#] {
        let begun = t.begin(&key, "x").await?;
        let end = |changes| EndTurn::completed(begun.fence, changes);
        refused(t.store.end(end(Changes::new().custom(json(custom)))).await, ErrorKind::Invalid, custom)?;
        t.store.end(end(Changes::new().custom(json(r#"{"nested":{"app:k":1}}"#)))).await?;
    }
    same(t.custom(&key).await?, Some(json(r#"{"nested":{"app:k":1}}"#)), "prefixes further down are plain names")
}

pub(super) async fn its_schema_version_is_kept_beside_it(t: Bench) -> Check {
    let (one, two) = (t.session("one").await?, t.session("two").await?);
    let mut versioned = Changes::new().custom(json("{}"));
    versioned.schema_version = Some(7);
    let with = t.change(&one, versioned).await?;
    let without = t.change(&two, Changes::new().custom(json("{}"))).await?;
    same(t.state(&one).await?.schema_version(), 7, "the version")?;
    same(with.digest, without.digest, "the digests with and without a version")?;
    t.say(&one, "more").await?;
    same(t.state(&one).await?.schema_version(), 7, "the version later on")?;
    same(t.state_at(At::Point(one, crate::Point::new(1))).await?.schema_version(), 0, "the version before it was set")
}
