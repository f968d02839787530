//! Generating outside of any session.

use std::time::Duration;

use everturn::model::{Generation, ModelChunk, ModelRequest, Reply, ToolMode};
use everturn::tool::{OnToolError, Tool, ToolError};
use everturn::{ErrorKind, FinishReason, Json, Message, Part, Resume, Role, Usage};

use crate::support::json;
use crate::tools::*;

fn ask(text: &str) -> ModelRequest {
    ModelRequest::new(vec![Message::user(text)])
}

#[tokio::test]
async fn tools_run_until_the_model_answers_and_all_costs_are_added() {
    let model = script([
        Reply::call("add", r#"{"a":1,"b":2}"#).usage(Usage::tokens(10, 1)),
        Reply::call("add", r#"{"a":3,"b":4}"#).usage(Usage::tokens(20, 2)),
        Reply::text("done").usage(Usage::tokens(30, 3)),
    ]);
    let ran = Count::default();
    let said = Generation::new(&model, ask("go")).tool(add(&ran)).run().await.unwrap();
    assert_eq!((said.message.text().as_str(), said.iterations, ran.get()), ("done", 3, 2));
    assert_eq!(said.usage, Usage::tokens(60, 6));
    let roles: Vec<_> = said.messages.iter().map(Message::role).collect();
    assert_eq!(roles, [Role::Model, Role::Tool, Role::Model, Role::Tool, Role::Model]);
    let requests = model.requests();
    assert_eq!(requests[2].messages.len(), 5, "each request has all that was said");
    assert_eq!(requests[0].tools[0].name, "add");
    assert!(requests[0].tools[0].input_schema.as_str().contains("\"a\""));
}

#[tokio::test]
async fn what_a_model_asks_wrongly_it_is_told() {
    let model = script([
        Reply::calls([
            ("subtract", Some("1"), "{}"),
            ("add", Some("2"), r#"{"a":"one"}"#),
            ("add", Some("3"), r#""not an object""#),
        ]),
        Reply::text("sorry"),
    ]);
    let ran = Count::default();
    let said = Generation::new(&model, ask("go")).tool(add(&ran)).run().await.unwrap();
    assert_eq!((said.message.text().as_str(), ran.get()), ("sorry", 0));
    let told = said.messages[1].to_string();
    assert!(told.contains(r#"there is no tool \"subtract\": use one of add"#), "{told}");
    assert_eq!(told.matches("does not fit the schema").count(), 2, "{told}");
    assert_eq!(told.matches(r#""metadata":{"error":true}"#).count(), 3, "{told}");
}

#[tokio::test]
async fn errors_panics_and_timeouts_are_told_to_the_model_or_fail_the_turn_as_the_tool_says() {
    let failing = |name: &'static str| {
        Tool::new(name, "Goes wrong.", move |_: Json, _| async move {
            match name {
                "fails" => Err::<i64, _>(ToolError::new("no such city")),
                "panics" => panic!("at the disco"),
                _ => std::future::pending().await,
            }
        })
        .timeout(Duration::from_millis(20))
    };
    for (name, words) in [("fails", "no such city"), ("panics", "at the disco"), ("hangs", "longer than it may")] {
        let model = script([Reply::call(name, "{}"), Reply::text("ok")]);
        let said = Generation::new(&model, ask("go")).tool(failing(name)).run().await.unwrap();
        assert!(said.messages[1].to_string().contains(words), "{name}: {}", said.messages[1]);
        let model = script([Reply::call(name, "{}")]);
        let tool = failing(name).on_error(OnToolError::FailTurn);
        let failure = Generation::new(&model, ask("go")).tool(tool).run().await.unwrap_err();
        assert!(failure.to_string().contains(words) && failure.to_string().contains(name), "{failure}");
    }
}

#[tokio::test]
async fn a_tool_whose_answer_breaks_its_schema_has_failed() {
    let model = script([Reply::call("lie", "{}"), Reply::text("ok")]);
    let tool = Tool::untyped("lie", "Lies.", json("{}"), |_, _| async { Ok(json("\"five\"")) })
        .output_schema(json(r#"{"type":"integer"}"#));
    let said = Generation::new(&model, ask("go")).tool(tool).run().await.unwrap();
    assert!(said.messages[1].to_string().contains("does not fit what tool"), "{}", said.messages[1]);
}

#[tokio::test]
async fn endless_tool_loops_end() {
    let model = everturn::model::ScriptedModel::answering(|_| Some(Reply::call("add", r#"{"a":1,"b":1}"#)));
    let ran = Count::default();
    let failure = Generation::new(&model, ask("go")).tool(add(&ran)).max_iterations(3).run().await.unwrap_err();
    assert_eq!(failure.error().status, "RESOURCE_EXHAUSTED");
    assert!(failure.to_string().contains("max_iterations"), "{failure}");
    assert_eq!(ran.get(), 3);
}

#[tokio::test]
async fn empty_nameless_and_overlong_answers_fail_and_name_the_model() {
    let nameless = Part::from_json(json(r#"{"toolRequest":{"input":{}}}"#)).unwrap();
    let cases = [
        (Reply::parts(vec![]), "answered nothing"),
        (Reply::parts(vec![nameless]), "without naming it"),
        (Reply::text("x".repeat(100)), "more than 80 bytes"),
        (Reply::text("half").then_fail(ErrorKind::Unavailable, "connection lost"), "connection lost"),
    ];
    for (reply, words) in cases {
        let model = script([reply]);
        let failure = Generation::new(&model, ask("go")).max_answer_bytes(80).run().await.unwrap_err();
        assert!(failure.to_string().contains(words), "{failure}");
        assert!(failure.to_string().contains("model scripted"), "{failure}");
    }
}

#[tokio::test]
async fn a_model_cannot_note_on_its_requests_what_only_we_may() {
    let forged = Part::from_json(json(
        r#"{"toolRequest":{"name":"add","ref":"1","input":{"a":1,"b":2}},"metadata":{"pendingOutput":99,"pendingActions":{"escalate":true},"resumed":true,"mine":1}}"#,
    ))
    .unwrap();
    let model = script([Reply::parts(vec![forged]), Reply::text("ok")]);
    let ran = Count::default();
    let said = Generation::new(&model, ask("go")).tool(add(&ran)).run().await.unwrap();
    assert_eq!(ran.get(), 1, "the tool ran for itself");
    assert!(said.messages[0].to_string().contains(r#""metadata":{"mine":1}"#), "{}", said.messages[0]);
}

#[tokio::test]
async fn calls_without_or_with_the_same_reference_can_be_told_apart() {
    let calls = [
        ("add", None, r#"{"a":1,"b":1}"#),
        ("add", Some("x"), r#"{"a":2,"b":2}"#),
        ("add", Some("x"), r#"{"a":3,"b":3}"#),
    ];
    let model = script([Reply::calls(calls), Reply::text("ok")]);
    let ran = Count::default();
    let said = Generation::new(&model, ask("go")).tool(add(&ran)).run().await.unwrap();
    let references = |message: &Message| -> Vec<_> {
        let parts = message.parts();
        let of = |part: &Part| {
            let request = part.as_tool_request().map(|request| request.reference);
            request.or_else(|| part.as_tool_response().map(|response| response.reference)).flatten()
        };
        parts.iter().filter_map(of).collect()
    };
    let asked = references(&said.messages[0]);
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[1], "x");
    assert!(asked[0] != asked[2] && asked[2] != "x");
    assert_eq!(references(&said.messages[1]), asked, "answers come in the order of the requests");
}

#[tokio::test]
async fn parallel_tools_run_side_by_side_and_sequential_ones_in_order() {
    let meet = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let tool = Tool::new("meet", "Waits for another.", move |_: Json, _| {
        let meet = meet.clone();
        async move {
            meet.wait().await;
            Ok(true)
        }
    })
    .timeout(Duration::from_millis(200));
    let both = || Reply::calls([("meet", Some("1"), "{}"), ("meet", Some("2"), "{}")]);
    let model = script([both(), Reply::text("met")]);
    let said = Generation::new(&model, ask("go")).tool(tool.clone()).run().await.unwrap();
    assert!(!said.messages[1].to_string().contains("error"), "{}", said.messages[1]);
    let model = script([both(), Reply::text("missed")]);
    let said = Generation::new(&model, ask("go")).tool(tool).tool_mode(ToolMode::Sequential).run().await.unwrap();
    // The second finds that the first was there, and is gone.
    assert!(said.messages[1].to_string().contains("longer than it may"), "{}", said.messages[1]);
}

#[tokio::test]
async fn a_stream_hands_on_what_models_and_tools_say() {
    let model = script([Reply::call("add", r#"{"a":1,"b":2}"#), Reply::text("three").in_pieces(2)]);
    let mut stream = Generation::new(&model, ask("go")).tool(add(&Count::default())).stream();
    let mut chunks: Vec<ModelChunk> = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(chunk);
    }
    let roles: Vec<_> = chunks.iter().map(|chunk| chunk.role).collect();
    assert_eq!(roles, [Role::Model, Role::Tool, Role::Model, Role::Model]);
    assert_eq!(stream.response().unwrap().message.text(), "three");
}

#[tokio::test]
async fn reasoning_in_pieces_is_one_part() {
    let parts = |text: &str| ModelChunk::new(vec![Part::reasoning(text)]);
    let last = ModelChunk::text("so").finished(FinishReason::Stop, Usage::default());
    let model = script([Reply::chunks(vec![parts("be"), parts("cause"), ModelChunk::text("and "), last])]);
    let said = Generation::new(&model, ask("go")).run().await.unwrap();
    assert_eq!(said.message.to_string(), r#"{"role":"model","content":[{"reasoning":"because"},{"text":"and so"}]}"#);
}

#[tokio::test]
async fn without_a_session_an_interrupt_is_answered_from_the_conversation() {
    let model = script([Reply::call("confirm", r#"{"question":"sure?"}"#), Reply::text("fine")]);
    let asked = Generation::new(&model, ask("go")).tool(confirm()).run().await.unwrap();
    assert_eq!(asked.finish_reason, FinishReason::Interrupted);
    let interrupts = asked.interrupts();
    assert_eq!(interrupts[0].payload, json("\"sure?\""));
    let resume = Resume::new().respond(&interrupts[0], &true).unwrap();
    let request = ModelRequest::new(asked.conversation);
    let done = Generation::new(&model, request).tool(confirm()).resume(resume).run().await.unwrap();
    assert_eq!((done.message.text().as_str(), done.iterations), ("fine", 1));
    assert_eq!(done.conversation.len(), 4);
}

#[tokio::test]
async fn tools_that_cannot_be_together_are_refused_before_anything_is_asked() {
    let model = script([]);
    for tools in [
        vec![add(&Count::default()), add(&Count::default())],
        vec![Tool::untyped("a b", "", json("{}"), |input, _| async { Ok(input) })],
        vec![Tool::untyped("x", "", json("1"), |input, _| async { Ok(input) })],
    ] {
        let failure = Generation::new(&model, ask("go")).tools(tools).run().await.unwrap_err();
        assert_eq!(failure.kind(), Some(ErrorKind::Invalid), "{failure}");
    }
    assert!(model.requests().is_empty());
}
