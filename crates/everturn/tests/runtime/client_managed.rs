//! States that clients keep, and how they are told from forged ones.

use everturn::{
    Agent, AgentBuilder, Artifact, ErrorKind, Init, Json, Message, Output, Part, SessionState, SigningKey, Turn,
};

use crate::support::*;

fn signing(id: &str, byte: u8) -> SigningKey {
    SigningKey::new(id, &[byte; 32]).unwrap()
}

fn signed() -> AgentBuilder<Tally> {
    echo().sign_states([signing("k1", 1)])
}

/// The start that goes on from an output.
fn on(output: &Output) -> Init {
    with(output.state.to_session_state(), output)
}

fn with(state: SessionState, output: &Output) -> Init {
    Init::state(state).signature(output.signature.clone().unwrap())
}

#[tokio::test]
async fn a_state_survives_the_way_to_the_client_and_back() {
    let agent = Agent::flow("f", |turn: Turn<Json>| async move {
        turn.add_artifact(Artifact::new("a", vec![Part::text("ü \u{1F600}")])).await?;
        turn.add_message(Message::parse(r#"{"role":"model","content":[{"text":"x","n":1.10}],"own":{"z":1}}"#)?)?;
        turn.state().await?.set("big", &json("9007199254740993"))?;
        Ok(())
    });
    let agent = agent.build().unwrap();
    let first = agent.run_text("one", Init::new()).await.unwrap();
    let text = serde_json::to_string(&first.state.to_session_state()).unwrap();
    let state: SessionState = serde_json::from_str(&text).unwrap();
    assert_eq!(state, first.state.to_session_state());
    assert!(text.contains("9007199254740993") && text.contains("1.10"), "numbers keep their spelling");
    let second = agent.run_text("two", Init::state(state)).await.unwrap();
    assert_eq!((second.state.messages().len(), second.artifacts.len()), (4, 1));
    assert_eq!(second.session_id, first.session_id);
}

#[tokio::test]
async fn a_signed_state_goes_on() {
    let agent = signed().build().unwrap();
    let mut output = agent.run_text("one", Init::new()).await.unwrap();
    for _ in 0..3 {
        output = agent.run_text("more", on(&output)).await.unwrap();
    }
    assert_eq!(output.state.custom::<Tally>().unwrap().unwrap().turns, 4);
    let failed = agent.run_text("fail x", on(&output)).await.unwrap();
    agent.run_text("more", on(&failed)).await.unwrap().ok().unwrap();
}

#[tokio::test]
async fn an_older_state_of_ones_own_may_be_sent_again() {
    let agent = signed().build().unwrap();
    let first = agent.run_text("one", Init::new()).await.unwrap();
    agent.run_text("two", on(&first)).await.unwrap();
    let again = agent.run_text("instead", on(&first)).await.unwrap();
    assert_eq!(said(&again)[2], "instead", "going back is what a client that keeps its state may do");
}

#[tokio::test]
async fn a_forged_state_is_refused() {
    let agent = signed().build().unwrap();
    let output = agent.run_text("one", Init::new()).await.unwrap();
    let state = output.state.to_session_state();
    let mut forged = vec![state.clone(); 5];
    forged[0].custom = Some(json(r#"{"turns":1000,"last":"one"}"#));
    forged[1].messages.pop();
    forged[2].session_id = Some(sid("another"));
    forged[3].artifacts.push(Artifact::new("a", vec![]));
    forged[4].session_id = None;
    for state in forged {
        refused(agent.run_text("x", with(state, &output)).await, ErrorKind::Invalid, "signature does not fit");
    }
    refused(agent.run_text("x", Init::state(state.clone())).await, ErrorKind::Invalid, "signature is missing");
    let signature = output.signature.clone().unwrap();
    let (id, tag) = signature.split_once('.').unwrap();
    let flipped = format!("{id}.{}{}", if tag.starts_with('0') { '1' } else { '0' }, &tag[1..]);
    for wrong in [flipped.as_str(), tag, id, "", "k1.", "k1.zz", "k9.00", &format!("{signature}00")] {
        let init = Init::state(state.clone()).signature(wrong);
        refused(agent.run_text("x", init).await, ErrorKind::Invalid, "signature does not fit");
    }
    agent.run_text("x", with(state, &output)).await.unwrap().ok().unwrap();
}

#[tokio::test]
async fn a_signature_is_of_one_agent_and_one_key() {
    let agent = signed().build().unwrap();
    let output = agent.run_text("one", Init::new()).await.unwrap();
    let other = Agent::flow("other", echo_turn).sign_states([signing("k1", 1)]).build().unwrap();
    refused(other.run_text("x", on(&output)).await, ErrorKind::Invalid, "signature does not fit");
    let same_secret = echo().sign_states([signing("k2", 1)]).build().unwrap();
    let renamed = output.signature.clone().unwrap().replace("k1.", "k2.");
    let init = Init::state(output.state.to_session_state()).signature(renamed);
    refused(same_secret.run_text("x", init).await, ErrorKind::Invalid, "signature does not fit");
    let same_name = echo().sign_states([signing("k1", 2)]).build().unwrap();
    refused(same_name.run_text("x", on(&output)).await, ErrorKind::Invalid, "signature does not fit");
}

#[tokio::test]
async fn keys_are_replaced_without_refusing_anybody() {
    let old = signed().build().unwrap().run_text("one", Init::new()).await.unwrap();
    let both = echo().sign_states([signing("k2", 2), signing("k1", 1)]).build().unwrap();
    let renewed = both.run_text("two", on(&old)).await.unwrap();
    assert!(renewed.signature.as_ref().unwrap().starts_with("k2."), "the first key signs");
    let only_new = echo().sign_states([signing("k2", 2)]).build().unwrap();
    only_new.run_text("three", on(&renewed)).await.unwrap().ok().unwrap();
    refused(only_new.run_text("three", on(&old)).await, ErrorKind::Invalid, "signature does not fit");
}

#[tokio::test]
async fn what_is_signed_is_what_the_client_is_shown() {
    let agent = signed().transform_state(|mut state, _| {
        state.custom = Some(json(r#"{"turns":7}"#));
        Ok(state)
    });
    let agent = agent.build().unwrap();
    let first = agent.run_text("one", Init::new()).await.unwrap();
    let second = agent.run_text("two", on(&first)).await.unwrap();
    assert_eq!(second.error, None);
    let mut chat = agent.chat(Init::new());
    for _ in 0..3 {
        chat.send_text("x").await.unwrap().ok().unwrap();
    }
}

#[tokio::test]
async fn another_spelling_of_the_same_state_is_the_same_state() {
    let agent = signed().build().unwrap();
    let output = agent.run_text("one", Init::new()).await.unwrap();
    let pretty = serde_json::to_string_pretty(&output.state.to_session_state()).unwrap();
    let respelt: SessionState = serde_json::from_str(&pretty).unwrap();
    agent.run_text("two", with(respelt, &output)).await.unwrap().ok().unwrap();
}

#[test]
fn a_key_is_long_and_has_a_name() {
    for (id, secret) in [("", &[1; 32][..]), ("a.b", &[1; 32]), ("k", &[1; 31])] {
        assert_eq!(kind(SigningKey::new(id, secret)), ErrorKind::Invalid);
    }
    assert!(!format!("{:?}", signing("k", 65)).contains("65"), "a secret is not printed");
}
