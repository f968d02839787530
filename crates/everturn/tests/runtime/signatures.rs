//! Signed states that were touched on their way, or are no signed states at all.

use everturn::{Agent, Artifact, ErrorKind, Init, Input, Message, Output, Part, SessionState, SigningKey};

use crate::support::*;

fn signed() -> Agent<Tally> {
    echo().sign_states([SigningKey::new("k1", &[1; 32]).unwrap()]).build().unwrap()
}

/// The next start, as a client sends it: state and signature have been text meanwhile.
fn sent_back(output: &Output) -> Init {
    let text = everturn::Json::from_value(&output.state.to_session_state()).unwrap().to_string();
    let init = Init::state(json(&text).to().unwrap());
    match &output.signature {
        Some(signature) => init.signature(signature.clone()),
        None => init,
    }
}

fn touched(output: &Output, touch: impl FnOnce(&mut SessionState)) -> Init {
    let mut init = sent_back(output);
    touch(init.state.as_mut().unwrap());
    init
}

#[tokio::test]
async fn a_state_touched_anywhere_is_refused() {
    let agent = signed();
    let output = agent.run_text("one", Init::new()).await.unwrap();
    let touches: [fn(&mut SessionState); 8] = [
        |state| state.custom = Some(json(r#"{"turns":1000,"last":"one"}"#)),
        |state| state.custom = None,
        |state| state.messages.truncate(1),
        |state| state.messages.push(Message::model("I owe you a thousand.")),
        |state| state.messages.swap(0, 1),
        |state| state.artifacts.push(Artifact::new("cheque", vec![Part::text("1000")])),
        |state| state.session_id = Some(sid("another")),
        |state| state.session_id = None,
    ];
    for touch in touches {
        refused(agent.run_text("two", touched(&output, touch)).await, ErrorKind::Invalid, "does not fit");
    }
    assert!(agent.run_text("two", sent_back(&output)).await.is_ok(), "the true one still fits");
}

#[tokio::test]
async fn what_is_no_signature_of_ours_is_refused() {
    let agent = signed();
    let output = agent.run_text("one", Init::new()).await.unwrap();
    let state = || Init::state(output.state.to_session_state());
    refused(agent.run_text("two", state()).await, ErrorKind::Invalid, "signature is missing");
    let good = output.signature.clone().unwrap();
    let (_, tag) = good.split_once('.').unwrap();
    let wrong = [
        String::new(),
        "k1".into(),
        "k1.".into(),
        tag.to_owned(),
        format!("k2.{tag}"),
        format!("K1.{tag}"),
        format!("k1.{}", &tag[..62]),
        format!("k1.{tag}00"),
        format!("k1.{}", "é".repeat(32)),
        format!("k1.{}", tag.chars().rev().collect::<String>()),
    ];
    for signature in wrong {
        let init = state().signature(signature.clone());
        assert_eq!(kind(agent.run_text("two", init).await), ErrorKind::Invalid, "{signature:?}");
    }
    refused(agent.run_text("two", Init::new().signature(good)).await, ErrorKind::Invalid, "without the state");
}

#[tokio::test]
async fn the_last_good_state_of_a_failed_turn_is_signed_too() {
    let agent = signed();
    let mut connection = agent.connect(Init::new()).await.unwrap();
    for text in ["one", "two", "fail three"] {
        connection.send_text(text).await.unwrap();
        connection.receive_turn().await;
    }
    let output = connection.output().await.unwrap();
    assert!(output.error.is_some());
    let more = agent.run_text("more", sent_back(&output)).await.unwrap();
    assert_eq!(said(&more).len(), 6);
}

#[tokio::test]
async fn a_store_takes_no_signed_state_and_a_client_no_ids() {
    let home = Home::memory();
    let output = signed().run_text("one", Init::new()).await.unwrap();
    let words = "server-managed store";
    refused(stored(&home).run_text("two", sent_back(&output)).await, ErrorKind::WrongMode, words);
    refused(stored(&home).run_text("two", Init::new().signature("k1.00")).await, ErrorKind::WrongMode, words);
    let by_id = Init::session(output.session_id.clone());
    refused(signed().run_text("two", by_id).await, ErrorKind::WrongMode, "client-managed state");
    let mut detached = Input::text("two");
    detached.detach = true;
    assert_eq!(kind(signed().run(detached, sent_back(&output)).await), ErrorKind::WrongMode);
}

#[tokio::test]
async fn a_state_that_cannot_be_is_refused() {
    let agent = echo().schema_of_state().build().unwrap();
    let output = agent.run_text("one", Init::new()).await.unwrap();
    let wrong = touched(&output, |state| state.custom = Some(json(r#"{"turns":"many"}"#)));
    refused(agent.run_text("two", wrong).await, ErrorKind::Invalid, "/turns");
    let nameless = touched(&output, |state| state.artifacts.push(Artifact::new("", vec![])));
    assert_eq!(kind(agent.run_text("two", nameless).await), ErrorKind::Invalid);
    let prefixed = touched(&output, |state| state.custom = Some(json(r#"{"user:x":1}"#)));
    assert_eq!(kind(agent.run_text("two", prefixed).await), ErrorKind::Invalid);
}
