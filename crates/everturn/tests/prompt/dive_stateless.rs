//! Questions and answers where the caller keeps the state.

use everturn::model::Reply;
use everturn::store::MemoryStore;
use everturn::{Agent, ErrorKind, Init, Input, Json, Output, Prompt, SessionState};

use crate::dive::*;
use crate::support::*;
use crate::tools::*;

fn given(output: &Output) -> Init {
    Init::state(output.state.to_session_state())
}

#[tokio::test]
async fn the_caller_keeps_the_question_as_json_and_answers_it() {
    let model = script([calls(&[("ask", "a")]), Reply::text("done")]);
    let agent = helper(&model, [ask(&Count::default())]).build().unwrap();
    let output = agent.run_text("go", Init::new()).await.unwrap();
    let questions = asked(&output);
    assert_eq!((roles(&output), output.snapshot_id, output.point), (vec!["user", "model"], None, None));
    let travelled = Json::from_value(&output.state.to_session_state()).unwrap().to_string();
    let state: SessionState = Json::parse(travelled).unwrap().to().unwrap();
    assert_eq!(state, output.state.to_session_state());
    let (chunks, done) = streamed(&agent, answered(&questions, &["a"]), Init::state(state)).await;
    assert_eq!((done.text().as_str(), roles(&done)), ("done", vec!["user", "model", "tool", "model"]));
    assert_eq!((streamed_answers(&chunks), answers(&done)), (vec!["a".to_owned()], vec![r#""a!""#.to_owned()]));
}

#[tokio::test]
async fn two_questions_can_be_answered_at_once_or_one_by_one() {
    for rounds in [vec![vec!["a", "b"]], vec![vec!["b"], vec!["a"]]] {
        let model = script([calls(&[("ask", "a"), ("ask", "b")]), Reply::text("done")]);
        let agent = helper(&model, [ask(&Count::default())]).build().unwrap();
        let mut output = agent.run_text("go", Init::new()).await.unwrap();
        for round in rounds {
            output = agent.run(answered(&asked(&output), &round), given(&output)).await.unwrap();
        }
        assert_eq!((output.text().as_str(), answers(&output)), ("done", vec![r#""a!""#.into(), r#""b!""#.into()]));
    }
}

#[tokio::test]
async fn an_answer_goes_to_the_model_with_all_that_was_said_before() {
    let model = script([Reply::text("hello"), calls(&[("ask", "a")]), Reply::text("done")]);
    let agent = helper(&model, [ask(&Count::default())]).build().unwrap();
    let first = agent.run_text("hi", Init::new()).await.unwrap();
    let second = agent.run_text("go", given(&first)).await.unwrap();
    let done = agent.run(answered(&asked(&second), &["a"]), given(&second)).await.unwrap();
    let sent: Vec<_> = model.requests()[2].messages.iter().map(|message| message.role().name()).collect();
    assert_eq!(sent, ["system", "user", "model", "user", "model", "tool"]);
    assert_eq!(said(&done)[..3], ["hi", "hello", "go"]);
}

#[tokio::test]
async fn a_state_with_a_past_is_no_start() {
    let heard = Heard::default();
    let model = script([Reply::text("hello"), Reply::text("again")]);
    let prompt = Prompt::new(model).hook(Listener::new(&heard));
    let agent = Agent::prompt("helper", prompt).build().unwrap();
    let first = agent.run_text("hi", Init::new()).await.unwrap();
    agent.run_text("hi", given(&first)).await.unwrap();
    assert_eq!(heard.take().iter().filter(|what| *what == "session_start").count(), 1);
}

#[tokio::test]
async fn a_state_beside_a_store_is_refused_with_what_to_send_instead() {
    let model = script([calls(&[("ask", "a")])]);
    let stateless = helper(&model, [ask(&Count::default())]).build().unwrap();
    let output = stateless.run_text("go", Init::new()).await.unwrap();
    let stored = helper(&model, [ask(&Count::default())]).store(MemoryStore::new()).build().unwrap();
    let refusal = stored.run(answered(&asked(&output), &["a"]), given(&output)).await;
    refused(refusal, ErrorKind::WrongMode, "send a snapshotId or a sessionId instead");
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_the_state_stays() {
    let model = script([calls(&[("ask", "a")])]);
    let agent = helper(&model, [ask(&Count::default())]).build().unwrap();
    let output = agent.run_text("go", Init::new()).await.unwrap();
    let mut unknown = Input::messages([]);
    unknown.resume = Some(json(r#"{"respond":[{"toolResponse":{"name":"ask","ref":"zz","output":1}}]}"#));
    for input in [Input::text("hurry"), unknown, answer(everturn::Resume::new())] {
        let failed = agent.run(input, given(&output)).await.unwrap();
        assert!(failed.error.is_some());
        assert_eq!(failed.state.messages(), output.state.messages());
    }
    assert_eq!(model.requests().len(), 1);
}

#[tokio::test]
async fn two_conversations_that_nobody_stores_share_no_cache_key() {
    let model = everturn::model::ScriptedModel::answering(|_| Some(Reply::text("hello")));
    let agent = helper(&model, []).build().unwrap();
    let first = agent.run_text("hi", Init::new()).await.unwrap();
    agent.run_text("hi", Init::new()).await.unwrap();
    agent.run_text("more", given(&first)).await.unwrap();
    let keys: Vec<_> = model.requests().into_iter().map(|request| request.cache_key.unwrap()).collect();
    assert_ne!(keys[0], keys[1]);
    assert_eq!(keys[0], keys[2], "it stays the same while the state goes back and forth");
    assert!(!keys[0].contains(first.session_id.as_str()));
}
