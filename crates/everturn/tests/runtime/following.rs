//! A client that stays for many turns knows, at the end of each, the custom state as it is shown then: whoever changed
//! it, the handler, the input, an edit between turns, or a failure that took it back.

use std::sync::{Arc, Mutex};

use everturn::store::MemoryStore;
use everturn::{
    Agent, Failure, Init, Input, Json, Message, Patch, Session, SessionState, SharedState, StateDelta, StreamLimits,
};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::support::json;

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Step {
    Set(String, Vec<u8>),
    Remove(String),
    Clear,
    /// Changes what the transform shows, not the custom state.
    Add,
    Say,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Script {
    /// What the input sets before the turn.
    given: Option<(String, u8)>,
    steps: Vec<Step>,
    fails: bool,
    /// What is changed after it, outside any turn.
    between: Vec<Step>,
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), Just("b/~c".to_owned()), Just("é".to_owned())]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (key(), prop::collection::vec(any::<u8>(), 0..20)).prop_map(|(key, list)| Step::Set(key, list)),
        1 => key().prop_map(Step::Remove),
        1 => Just(Step::Clear),
        2 => Just(Step::Add),
        2 => Just(Step::Say),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let steps = || prop::collection::vec(step(), 0..6);
    let given = prop::option::weighted(0.3, (key(), any::<u8>()));
    (given, steps(), prop::bool::weighted(0.3), prop::collection::vec(step(), 0..3))
        .prop_map(|(given, steps, fails, between)| Script { given, steps, fails, between })
}

async fn take(session: &Session<Json>, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Set(key, list) => session.state().await.unwrap().set(key, list).unwrap(),
            Step::Remove(key) => session.state().await.unwrap().remove(key).unwrap(),
            Step::Clear => session.set_custom_json(None).unwrap(),
            Step::Add => session.add_message(Message::model("more")).unwrap(),
            Step::Say => session.responder().text("word").await.unwrap(),
        }
    }
}

/// What is shown of the custom state depends on what was said.
fn with_length(mut state: SessionState) -> everturn::Result<SessionState> {
    state.custom = state.custom.map(|custom| Json::from_value(&(state.messages.len(), custom))).transpose()?;
    Ok(state)
}

type States = Arc<Mutex<Vec<SharedState>>>;

/// An agent that plays what its inputs say, and the states it left each turn in.
fn agent(room: usize, shaped: bool, stores: bool) -> (Agent<Json>, States) {
    let states = States::default();
    let left = states.clone();
    let mut limits = StreamLimits::default();
    limits.chunks = room;
    let mut agent = Agent::flow_loop("f", move |session: Session<Json>| {
        let left = left.clone();
        async move {
            while let Some(turn) = session.next_turn().await? {
                let script: Script = turn.input().data.as_ref().unwrap().to()?;
                take(&session, &script.steps).await;
                match script.fails {
                    true => turn.fail(Failure::new("INTERNAL", "as scripted")).await?,
                    false => turn.end().await?,
                }
                left.lock().unwrap().push(session.to_state());
                take(&session, &script.between).await;
            }
            Ok(())
        }
    })
    .stream_limits(limits);
    if shaped {
        agent = agent.transform_state(|state, _| with_length(state));
    }
    if stores {
        agent = agent.shared_store(Arc::new(MemoryStore::new()));
    }
    (agent.build().unwrap(), states)
}

async fn play(scripts: Vec<Script>, room: usize, shaped: bool, stores: bool) {
    let (agent, states) = agent(room, shaped, stores);
    let mut connection = agent.connect(Init::new()).await.unwrap();
    let (mut mine, mut known): (Option<Json>, Vec<Option<Json>>) = (None, Vec::new());
    for script in &scripts {
        let mut input = Input::text("go");
        input.data = Some(Json::from_value(script).unwrap());
        if let Some((key, value)) = &script.given {
            input = input.with_state(StateDelta::new().set(key, json(&value.to_string())));
        }
        connection.send(input).await.unwrap();
        for chunk in connection.receive_turn().await {
            if let Some(patch) = &chunk.custom_patch {
                // By hand, from the text, as a client in another language does.
                let patch = Patch::parse(&patch.to_string()).unwrap();
                mine = patch.apply_optional(mine.as_ref()).expect("each patch fits what was told before");
            }
            assert_eq!(chunk.custom, mine);
        }
        known.push(mine.clone());
    }
    let output = connection.output().await.unwrap();
    let shown: Vec<_> = states
        .lock()
        .unwrap()
        .iter()
        .map(|state| {
            let state = state.to_session_state();
            if shaped { with_length(state).unwrap().custom } else { state.custom }
        })
        .collect();
    assert_eq!(known, shown, "at the end of each turn");
    assert_eq!(connection.custom_json(), output.state.custom_json(), "and at the end of the invocation");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn at_each_turns_end_a_client_knows_what_is_shown_then(
        scripts in prop::collection::vec(script(), 1..6),
        room in prop_oneof![Just(1usize), Just(2), Just(256)],
        shaped in any::<bool>(),
        stores in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(scripts, room, shaped, stores));
    }
}
