//! A client that applies the patches it is streamed always knows the server's custom state, as it may be shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use everturn::store::MemoryStore;
use everturn::{Agent, Failure, Init, Input, Json, StateDelta, StreamLimits, Turn};
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// What a handler does to the custom state, one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Step {
    /// A key is set to a document.
    Set(String, serde_json::Value),
    Remove(String),
    /// A typed write: the list grows, shrinks at its head, is edited inside.
    Push(u32),
    Shift,
    Edit(usize, u32),
    /// The whole is replaced, or taken away.
    Replace(Option<serde_json::Value>),
    /// A chunk that takes room in the queue.
    Say,
    /// Several tasks at once.
    Together(Vec<Step>),
}

/// A turn: its steps, and whether it fails after them.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Script {
    steps: Vec<Step>,
    fails: bool,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Typed {
    list: Vec<u32>,
}

fn document() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        (-3i64..3).prop_map(Into::into),
        "[a-z~/\u{e9}\u{1F600}\"]{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map("[a-c~/]{1,2}", inner, 0..4)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

fn step() -> impl Strategy<Value = Step> {
    let key = prop_oneof![Just("a".to_owned()), Just("b/c".to_owned()), Just("secret".to_owned())];
    let one = prop_oneof![
        4 => (key.clone(), document()).prop_map(|(key, value)| Step::Set(key, value)),
        1 => key.prop_map(Step::Remove),
        3 => any::<u32>().prop_map(Step::Push),
        1 => Just(Step::Shift),
        2 => (0usize..4, any::<u32>()).prop_map(|(at, value)| Step::Edit(at, value)),
        1 => prop::option::of(document()).prop_map(Step::Replace),
        2 => Just(Step::Say),
    ];
    prop_oneof![8 => one.clone(), 1 => prop::collection::vec(one, 2..4).prop_map(Step::Together)]
}

fn script() -> impl Strategy<Value = Script> {
    (prop::collection::vec(step(), 0..8), prop::bool::weighted(0.25)).prop_map(|(steps, fails)| Script { steps, fails })
}

/// Does one step. What cannot be done to the present state (a key of a list) is left undone.
fn take<'a>(turn: &'a everturn::Session<Typed>, step: &'a Step) -> BoxFuture<'a, ()> {
    Box::pin(take_one(turn, step))
}

async fn take_one(turn: &everturn::Session<Typed>, step: &Step) {
    let key_write = |delta| async { turn.state().await.and_then(|state| state.change(delta)).ok() };
    match step {
        Step::Set(key, value) => {
            key_write(StateDelta::new().set(key.clone(), Json::from_value(value).unwrap())).await;
        }
        Step::Remove(key) => {
            key_write(StateDelta::new().remove(key.clone())).await;
        }
        Step::Push(n) => drop(turn.update_custom(|typed| typed.list.push(*n))),
        Step::Shift => drop(turn.update_custom(|typed| typed.list.drain(..typed.list.len().min(1)).count())),
        Step::Edit(at, n) => {
            let edit = |typed: &mut Typed| typed.list.get_mut(*at).map(|slot| *slot = *n);
            drop(turn.update_custom(edit));
        }
        Step::Replace(value) => {
            drop(turn.set_custom_json(value.as_ref().map(|value| Json::from_value(value).unwrap())));
        }
        Step::Say => turn.responder().text("word").await.unwrap(),
        Step::Together(steps) => {
            let tasks: Vec<_> = steps
                .iter()
                .map(|step| {
                    let (session, step) = (turn.clone(), step.clone());
                    turn.spawn(async move { take(&session, &step).await })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        }
    }
}

/// The state without its secrets.
fn redacted(custom: &Json) -> Json {
    match custom.to::<BTreeMap<String, Json>>() {
        Ok(mut members) => {
            members.remove("secret");
            Json::from_value(&members).unwrap()
        }
        Err(_) => custom.clone(),
    }
}

fn agent(room: usize, redacts: bool, stores: bool) -> Agent<Typed> {
    let mut limits = StreamLimits::default();
    limits.chunks = room;
    let mut agent = Agent::flow("f", |turn: Turn<Typed>| async move {
        let script: Script = turn.input().data.as_ref().unwrap().to()?;
        for step in &script.steps {
            take(turn.session(), step).await;
        }
        match script.fails {
            true => Err(Failure::new("INTERNAL", "as scripted")),
            false => Ok(()),
        }
    })
    .stream_limits(limits);
    if redacts {
        agent = agent.transform_state(|mut state, _| {
            state.custom = state.custom.as_ref().map(redacted);
            Ok(state)
        });
    }
    if stores {
        agent = agent.shared_store(Arc::new(MemoryStore::new()));
    }
    agent.build().unwrap()
}

/// Plays the turns, each on a connection of its own if they are apart, and compares after each of them.
async fn play(agent: &Agent<Typed>, scripts: &[Script]) {
    let mut chat = agent.chat(Init::new());
    for (n, script) in scripts.iter().enumerate() {
        let mut input = Input::text("go");
        input.data = Some(Json::from_value(script).unwrap());
        let mut turn = chat.send_stream(input).await.unwrap();
        let (mut client, mut patched): (Option<Json>, bool) = (None, false);
        while let Some(chunk) = turn.receive().await {
            if let Some(patch) = &chunk.custom_patch {
                if !patched {
                    assert!(patch.to_string().starts_with(r#"[{"op":"replace","path":"""#), "the first replaces all");
                }
                client = patch.apply_optional(client.as_ref()).expect("each patch fits what was told before");
                patched = true;
            }
            assert_eq!(chunk.custom, client);
            assert!(!client.as_ref().is_some_and(|shown| agent_redacts(agent) && shown != &redacted(shown)));
        }
        let output = turn.output().await.unwrap();
        assert_eq!(output.error.is_some(), script.fails);
        if patched {
            assert_eq!(client.as_ref(), output.state.custom_json(), "after turn {n}");
        }
    }
}

fn agent_redacts(agent: &Agent<Typed>) -> bool {
    use everturn::AgentClient as _;
    agent.info().transformed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_client_that_follows_knows_the_servers_state(
        scripts in prop::collection::vec(script(), 1..5),
        room in prop_oneof![Just(1usize), Just(2), Just(256)],
        redacts in any::<bool>(),
        stores in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(&agent(room, redacts, stores), &scripts));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_follows_many_threads_knows_the_servers_state() {
    let burst = |from: u32| Step::Together((from..from + 24).flat_map(|n| [Step::Push(n), Step::Say]).collect());
    let scripts: Vec<_> =
        (0..6).map(|n| Script { steps: vec![burst(n * 100), burst(n * 100 + 50)], fails: n == 3 }).collect();
    for room in [1, 3] {
        play(&agent(room, false, true), &scripts).await;
    }
}
