//! Tool requests come whole, with what their answers need.

use everturn::model::{ModelRequest, generate};
use everturn::{FinishReason, Message, Part, Role, ToolRequest};
use serde_json::{Value, json};

use crate::loopback::{Loopback, Reply};
use crate::support::{ask, hello, json as to_json, message};
use crate::wire::{Finish, Said, Wire};

fn requests(parts: &[Part]) -> Vec<ToolRequest> {
    parts.iter().filter_map(Part::as_tool_request).collect()
}

fn input(request: &ToolRequest) -> Value {
    request.input.as_ref().unwrap().to().unwrap()
}

#[tokio::test]
async fn a_tool_request_is_one_part_however_it_was_cut() {
    for wire in Wire::ALL {
        let said =
            Said::text(&["Let me look."]).call("c1", "find", &[r#"{"wh"#, r#"at":"kä"#, r#"se 🧀","n"#, r#"":2}"#]);
        for bytes in [1, 5, 4096] {
            let server = Loopback::start([Reply::answer(wire, &said).torn(bytes)]).await;
            let heard = ask(&server.model(wire), hello()).await.whole();
            let requests = requests(&heard.parts());
            assert_eq!(requests.len(), 1, "{wire:?} in pieces of {bytes}");
            assert_eq!((requests[0].name.as_str(), requests[0].reference.as_deref()), ("find", Some("c1")), "{wire:?}");
            assert_eq!(input(&requests[0]), json!({"what": "käse 🧀", "n": 2}), "{wire:?} in pieces of {bytes}");
            assert_eq!(heard.text(), "Let me look.");
            assert_eq!(heard.chunks.last().unwrap().finish_reason, Some(FinishReason::Stop), "{wire:?}");
        }
    }
}

#[tokio::test]
async fn two_requests_at_once_keep_their_order_and_their_arguments() {
    for wire in Wire::ALL {
        let said = Said::text(&[]).call("a", "find", &[r#"{"q":"#, r#""one"}"#]).call(
            "b",
            "find",
            &[r#"{"q":"#, r#""two"#, r#""}"#],
        );
        let server = Loopback::start([Reply::answer(wire, &said)]).await;
        let requests = requests(&ask(&server.model(wire), hello()).await.whole().parts());
        let told: Vec<_> = requests.iter().map(|call| (call.reference.clone().unwrap(), input(call))).collect();
        assert_eq!(told, [("a".into(), json!({"q": "one"})), ("b".into(), json!({"q": "two"}))], "{wire:?}");
    }
}

#[tokio::test]
async fn a_request_without_arguments_has_an_empty_object() {
    for wire in [Wire::OpenAi, Wire::Anthropic] {
        let server = Loopback::start([Reply::answer(wire, &Said::text(&[]).call("c", "now", &[]))]).await;
        let requests = requests(&ask(&server.model(wire), hello()).await.whole().parts());
        assert_eq!(input(&requests[0]), json!({}), "{wire:?}");
    }
}

#[tokio::test]
async fn arguments_that_are_no_json_are_handed_on_as_their_text() {
    for wire in [Wire::OpenAi, Wire::Anthropic] {
        let said = Said::text(&["Hm."]).call("c", "find", &[r#"{"q": "#, "tea,"]).call("d", "now", &["{}"]);
        let server = Loopback::start([Reply::answer(wire, &said)]).await;
        let heard = ask(&server.model(wire), hello()).await.whole();
        let requests = requests(&heard.parts());
        assert_eq!(input(&requests[0]), json!(r#"{"q": tea,"#), "{wire:?}");
        assert_eq!(input(&requests[1]), json!({}), "{wire:?}");
    }
}

#[tokio::test]
async fn a_request_cut_by_the_limit_of_length_says_so() {
    for wire in [Wire::OpenAi, Wire::Anthropic] {
        let said = Said::text(&[]).call("c", "find", &[r#"{"q": "te"#]).finish(Finish::Length);
        let server = Loopback::start([Reply::answer(wire, &said)]).await;
        let response = generate(&server.model(wire), hello()).await.unwrap();
        assert_eq!(response.finish_reason, FinishReason::Length, "{wire:?}");
        assert_eq!(input(&requests(&response.message.parts())[0]), json!(r#"{"q": "te"#), "{wire:?}");
    }
}

#[tokio::test]
async fn calls_counted_from_one_are_not_doubled() {
    let piece =
        |json: Value| format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"tool_calls": [json]}}]}));
    let body = [
        piece(json!({"index": 1, "id": "c", "function": {"name": "find", "arguments": "{\"q\":"}})),
        piece(json!({"index": 1, "function": {"arguments": "1}"}})),
        "data: [DONE]\n\n".into(),
    ]
    .concat();
    let server = Loopback::start([Reply::raw(body)]).await;
    let requests = requests(&ask(&server.model(Wire::OpenAi), hello()).await.whole().parts());
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(input(&requests[0]), json!({"q": 1}));
}

#[tokio::test]
async fn gemini_s_calls_without_ids_are_told_apart() {
    let said = Said::text(&[]).call("", "find", &[r#"{"q":1}"#]);
    let mut frames = Wire::Gemini.encode(&said);
    frames.insert(0, frames[0].clone());
    let server = Loopback::start([Reply::raw(frames.concat())]).await;
    let requests = requests(&ask(&server.model(Wire::Gemini), hello()).await.whole().parts());
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert_ne!(requests[0].reference, requests[1].reference);
}

/// A round of tools as a session keeps it, and the answer sent back.
async fn round(wire: Wire, said: &Said) -> Value {
    let server = Loopback::start([Reply::answer(wire, said), Reply::answer(wire, &Said::text(&["Done."]))]).await;
    let model = server.model(wire);
    let mut messages = vec![Message::user("Find tea and milk.")];
    let response = generate(&model, ModelRequest::new(messages.clone())).await.unwrap();
    let answers: Vec<_> = requests(&response.message.parts())
        .iter()
        .enumerate()
        .map(|(index, call)| {
            Part::tool_response(&call.name, call.reference.as_deref(), &to_json(json!({"found": index})))
        })
        .collect();
    messages.push(response.message);
    messages.push(Message::new(Role::Tool, &answers));
    generate(&model, ModelRequest::new(messages)).await.unwrap();
    server.asked()[1].body.clone()
}

#[tokio::test]
async fn answers_of_tools_go_back_with_the_ids_of_their_requests() {
    let said = Said::text(&["Looking."]).call("a", "find", &[r#"{"q":"tea"}"#]).call("b", "find", &[r#"{"q":"milk"}"#]);
    let body = round(Wire::OpenAi, &said).await;
    let sent = &body["messages"];
    assert_eq!(sent[1]["content"], "Looking.");
    assert_eq!(sent[1]["tool_calls"][0]["id"], "a");
    assert_eq!(sent[1]["tool_calls"][0]["function"], json!({"name": "find", "arguments": r#"{"q":"tea"}"#}));
    assert_eq!(sent[2], json!({"role": "tool", "content": r#"{"found":0}"#, "tool_call_id": "a"}));
    assert_eq!(sent[3], json!({"role": "tool", "content": r#"{"found":1}"#, "tool_call_id": "b"}));

    let body = round(Wire::Anthropic, &said).await;
    let sent = &body["messages"];
    assert_eq!(sent[1]["content"][1], json!({"type": "tool_use", "id": "a", "name": "find", "input": {"q": "tea"}}));
    assert_eq!(sent[2]["role"], "user");
    assert_eq!(sent[2]["content"][0]["tool_use_id"], "a");
    assert_eq!(sent[2]["content"][1], json!({"type": "tool_result", "content": r#"{"found":1}"#, "tool_use_id": "b"}));

    let body = round(Wire::Gemini, &said).await;
    let sent = &body["contents"];
    assert_eq!(sent[1]["parts"][1]["functionCall"], json!({"id": "a", "name": "find", "args": {"q": "tea"}}));
    assert_eq!(sent[2]["parts"].as_array().unwrap().len(), 2);
    assert_eq!(sent[2]["parts"][1]["functionResponse"]["id"], "b");
    assert_eq!(sent[2]["parts"][1]["functionResponse"]["name"], "find");

    let body = round(Wire::Ollama, &said).await;
    let sent = &body["messages"];
    assert_eq!(sent[1]["tool_calls"][1]["function"], json!({"name": "find", "arguments": {"q": "milk"}}));
    assert_eq!(sent[2], json!({"role": "tool", "content": r#"{"found":0}"#}));
    assert_eq!(sent[3], json!({"role": "tool", "content": r#"{"found":1}"#}));
}

#[tokio::test]
async fn requests_without_references_are_answered_in_their_order() {
    let server = Loopback::start([Reply::answer(Wire::OpenAi, &Said::text(&["ok"]))]).await;
    let conversation = vec![
        Message::user("Go."),
        message(json!({"role": "model", "content": [
            {"toolRequest": {"name": "find", "input": {"q": 1}}}, {"toolRequest": {"name": "find", "input": {"q": 2}}},
        ]})),
        message(json!({"role": "tool", "content": [
            {"toolResponse": {"name": "find", "output": "one"}}, {"toolResponse": {"name": "find", "output": "two"}},
        ]})),
    ];
    ask(&server.model(Wire::OpenAi), ModelRequest::new(conversation)).await.whole();
    let sent = &server.only_asked().body["messages"];
    assert_eq!(sent[2]["tool_call_id"], sent[1]["tool_calls"][0]["id"]);
    assert_eq!(sent[3]["tool_call_id"], sent[1]["tool_calls"][1]["id"]);
    assert_ne!(sent[2]["tool_call_id"], sent[3]["tool_call_id"]);
    assert_eq!(sent[3]["content"], "two");
}

#[tokio::test]
async fn malformed_arguments_go_back_as_an_object() {
    for (wire, place) in [
        (Wire::Anthropic, "/messages/1/content/0/input"),
        (Wire::Gemini, "/contents/1/parts/0/functionCall/args"),
        (Wire::Ollama, "/messages/1/tool_calls/0/function/arguments"),
    ] {
        let server = Loopback::start([Reply::answer(wire, &Said::text(&["ok"]))]).await;
        let conversation = vec![
            Message::user("Go."),
            message(
                json!({"role": "model", "content": [{"toolRequest": {"name": "find", "ref": "c", "input": "{oops"}}]}),
            ),
            message(
                json!({"role": "tool", "content": [{"toolResponse": {"name": "find", "ref": "c", "output": "no JSON"}}]}),
            ),
        ];
        ask(&server.model(wire), ModelRequest::new(conversation)).await.whole();
        assert_eq!(server.only_asked().body.pointer(place), Some(&json!({"input": "{oops"})), "{wire:?}");
    }
}

#[tokio::test]
async fn signed_reasoning_goes_back_to_anthropic_with_its_signature() {
    let said =
        Said::text(&["Looking."]).reasoning(&["Let me ", "see."], &["sig-", "nature"]).call("a", "find", &["{}"]);
    let body = round(Wire::Anthropic, &said).await;
    let block = json!({"type": "thinking", "thinking": "Let me see.", "signature": "sig-nature"});
    assert_eq!(body["messages"][1]["content"][0], block);
    assert_eq!(body["messages"][1]["content"][1]["type"], "text");
}

#[tokio::test]
async fn signatures_go_back_to_gemini_on_their_calls() {
    let said = Said::text(&[]).signed_call("a", "find", "sig-a").call("b", "find", &["{}"]);
    let body = round(Wire::Gemini, &said).await;
    assert_eq!(body["contents"][1]["parts"][0]["thoughtSignature"], "sig-a");
    assert_eq!(body["contents"][1]["parts"][1].get("thoughtSignature"), None);
}

#[tokio::test]
async fn signatures_and_reasoning_of_others_are_not_sent() {
    let said = message(json!({"role": "model", "content": [
        {"reasoning": "Secret.", "metadata": {"thoughtSignature": "s", "provider": "somebody"}},
        {"reasoning": "Unsigned."},
        {"text": "Yes."},
        {"toolRequest": {"name": "find", "ref": "c", "input": {}}, "metadata": {"thoughtSignature": "s", "provider": "x"}},
    ]}));
    let answered =
        message(json!({"role": "tool", "content": [{"toolResponse": {"name": "find", "ref": "c", "output": 1}}]}));
    for wire in Wire::ALL {
        let server = Loopback::start([Reply::answer(wire, &Said::text(&["ok"]))]).await;
        let conversation = vec![Message::user("Go."), said.clone(), answered.clone()];
        ask(&server.model(wire), ModelRequest::new(conversation)).await.whole();
        let sent = server.only_asked().body.to_string();
        assert!(!sent.contains("Secret.") && !sent.contains("ignature\":\"s\""), "{wire:?}: {sent}");
        assert!(!sent.contains("Unsigned."), "{wire:?}: {sent}");
    }
}
