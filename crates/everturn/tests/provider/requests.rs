//! What is sent.

use everturn::model::{ModelRequest, Provider, ToolDefinition};
use everturn::{ErrorKind, Message, Role};
use serde_json::{Value, json};

use crate::loopback::{KEY, Loopback, Reply};
use crate::support::{ask, hello, json as to_json, message};
use crate::wire::{Said, Wire};

async fn sent_to(wire: Wire, request: ModelRequest) -> Value {
    let server = Loopback::start([Reply::answer(wire, &Said::text(&["ok"]))]).await;
    ask(&server.model(wire), request).await.whole();
    server.only_asked().body
}

fn talk() -> ModelRequest {
    ModelRequest::new(vec![
        Message::of_text(Role::System, "Be brief."),
        Message::user("Hi."),
        Message::model("Hello."),
        Message::user("And?"),
    ])
}

#[tokio::test]
async fn a_request_goes_to_the_provider_s_address_with_its_key() {
    for wire in Wire::ALL {
        let server = Loopback::start([Reply::answer(wire, &Said::text(&["ok"]))]).await;
        ask(&server.model(wire), hello()).await.whole();
        let asked = server.only_asked();
        assert_eq!(asked.path, wire.path());
        let header = |name: &str| asked.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        match wire {
            Wire::OpenAi => assert_eq!(header("authorization"), Some(format!("Bearer {KEY}"))),
            Wire::Anthropic => assert_eq!(header("x-api-key").as_deref(), Some(KEY)),
            Wire::Gemini => assert_eq!(header("x-goog-api-key").as_deref(), Some(KEY)),
            Wire::Ollama => assert_eq!(header("authorization"), None),
        }
        if wire != Wire::Gemini {
            assert_eq!(asked.body["stream"], true, "{wire:?}");
            let model = wire.model().split_once('/').unwrap().1;
            assert_eq!(asked.body["model"], model, "{wire:?}");
        }
    }
}

#[tokio::test]
async fn the_conversation_is_told_in_the_provider_s_roles() {
    let body = sent_to(Wire::OpenAi, talk()).await;
    let roles: Vec<_> = body["messages"].as_array().unwrap().iter().map(|one| one["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    assert_eq!(body["messages"][3]["content"], "And?");

    let body = sent_to(Wire::Anthropic, talk()).await;
    assert_eq!(body["system"], "Be brief.");
    assert_eq!(body["messages"][1], json!({"role": "assistant", "content": "Hello."}));
    assert_eq!(body["messages"].as_array().unwrap().len(), 3);

    let body = sent_to(Wire::Gemini, talk()).await;
    assert_eq!(body["systemInstruction"]["parts"][0]["text"], "Be brief.");
    assert_eq!(body["contents"][1], json!({"role": "model", "parts": [{"text": "Hello."}]}));

    let body = sent_to(Wire::Ollama, talk()).await;
    assert_eq!(body["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(body["messages"][2], json!({"role": "assistant", "content": "Hello."}));
}

#[tokio::test]
async fn tools_are_told_with_their_schemas() {
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]});
    let tool = ToolDefinition::new("find", "Finds things.", to_json(schema.clone()));
    for (wire, place) in [
        (Wire::OpenAi, "/tools/0/function"),
        (Wire::Anthropic, "/tools/0"),
        (Wire::Gemini, "/tools/0/functionDeclarations/0"),
        (Wire::Ollama, "/tools/0/function"),
    ] {
        let body = sent_to(wire, hello().tools([tool.clone()])).await;
        let told = body.pointer(place).unwrap();
        assert_eq!((&told["name"], &told["description"]), (&json!("find"), &json!("Finds things.")), "{wire:?}");
        let member = match wire {
            Wire::Anthropic => "input_schema",
            Wire::Gemini => "parametersJsonSchema",
            Wire::OpenAi | Wire::Ollama => "parameters",
        };
        assert_eq!(told[member], schema, "{wire:?}");
    }
    for wire in Wire::ALL {
        assert_eq!(sent_to(wire, hello()).await.get("tools"), None, "{wire:?}");
    }
}

#[tokio::test]
async fn settings_are_sent_by_the_provider_s_names() {
    let config =
        to_json(json!({"temperature": 0.5, "maxOutputTokens": 99, "topP": 0.25, "stopSequences": ["END"], "seed": 7}));
    for (wire, expected) in [
        (Wire::OpenAi, json!({"temperature": 0.5, "max_tokens": 99, "top_p": 0.25, "stop": ["END"], "seed": 7})),
        (Wire::Anthropic, json!({"temperature": 0.5, "max_tokens": 99, "top_p": 0.25, "stop_sequences": ["END"]})),
        (
            Wire::Gemini,
            json!({"generationConfig": {
                "temperature": 0.5, "maxOutputTokens": 99, "topP": 0.25, "stopSequences": ["END"], "seed": 7,
            }}),
        ),
        (
            Wire::Ollama,
            json!({"options": {
                "temperature": 0.5, "num_predict": 99, "top_p": 0.25, "stop": ["END"], "seed": 7,
            }}),
        ),
    ] {
        let body = sent_to(wire, hello().config(config.clone())).await;
        for (member, value) in expected.as_object().unwrap() {
            assert_eq!(&body[member], value, "{wire:?} {member}");
        }
    }
}

#[tokio::test]
async fn the_effort_to_reason_is_sent_where_there_is_a_place_for_it() {
    let config = to_json(json!({"reasoningEffort": "low"}));
    assert_eq!(sent_to(Wire::OpenAi, hello().config(config.clone())).await["reasoning_effort"], "low");
    assert_eq!(sent_to(Wire::Ollama, hello().config(config.clone())).await["think"], "low");
    let body = sent_to(Wire::Gemini, hello().config(config.clone())).await;
    assert_eq!(body["generationConfig"]["thinkingConfig"]["includeThoughts"], true);
    assert!(body["generationConfig"]["thinkingConfig"]["thinkingBudget"].is_u64(), "{body}");
    let body = sent_to(Wire::Anthropic, hello().config(config)).await;
    assert!(body.get("thinking").is_some(), "{body}");
    for wire in Wire::ALL {
        let body = sent_to(wire, hello()).await.to_string();
        assert!(!body.contains("think") && !body.contains("reasoning"), "{wire:?}: {body}");
    }
}

#[tokio::test]
async fn settings_only_the_provider_knows_are_passed_on() {
    let body = sent_to(Wire::OpenAi, hello().config(to_json(json!({"logit_bias": {"1": 2}, "topK": 3})))).await;
    assert_eq!(body["logit_bias"], json!({"1": 2}));
    assert_eq!(body.get("topK"), None);
    let body = sent_to(Wire::Anthropic, hello().config(to_json(json!({"topK": 3, "service_tier": "auto"})))).await;
    assert_eq!((&body["top_k"], &body["service_tier"]), (&json!(3), &json!("auto")));
    let config = json!({"temperature": 0.5, "topK": 3, "safetySettings": []});
    let request = hello().config(to_json(config)).output_schema(to_json(json!({"type": "object"})));
    let body = sent_to(Wire::Gemini, request).await;
    let expected = json!({
        "temperature": 0.5, "topK": 3, "responseMimeType": "application/json", "responseJsonSchema": {"type": "object"},
    });
    assert_eq!(body["generationConfig"], expected);
    assert_eq!(body["safetySettings"], json!([]));
}

#[tokio::test]
async fn settings_that_are_wrong_or_none_are_refused_before_anything_is_sent() {
    for (config, word) in [
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"stopSequences": "END"}), "stopSequences"),
        (json!({"reasoningEffort": "enormous"}), "reasoningEffort"),
        (json!({"model": "another"}), "model"),
        (json!({"messages": []}), "messages"),
        (json!([1]), "object"),
    ] {
        let server = Loopback::start([]).await;
        let error = ask(&server.model(Wire::OpenAi), hello().config(to_json(config))).await.error();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(word) && error.to_string().contains("openai/gpt-test"), "{error}");
        assert!(server.asked().is_empty());
    }
}

#[tokio::test]
async fn the_schema_of_the_answer_is_sent() {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false,
    });
    let request = || hello().output_schema(to_json(schema.clone()));
    let body = sent_to(Wire::OpenAi, request()).await;
    assert_eq!(body["response_format"]["json_schema"]["schema"], schema);
    assert_eq!(sent_to(Wire::Anthropic, request()).await["output_config"]["format"]["schema"], schema);
    assert_eq!(sent_to(Wire::Gemini, request()).await["generationConfig"]["responseJsonSchema"], schema);
    let body = sent_to(Wire::Ollama, request()).await;
    assert_eq!(body["format"], "json");
    assert!(body["messages"][0]["content"].as_str().unwrap().contains("additionalProperties"), "{body}");
}

#[tokio::test]
async fn the_cache_key_is_sent_where_there_is_a_place_for_it() {
    let request = || {
        let mut request = talk();
        request.cache_key = Some("k1".into());
        request
    };
    assert_eq!(sent_to(Wire::OpenAi, request()).await["prompt_cache_key"], "k1");
    let body = sent_to(Wire::Anthropic, request()).await;
    assert_eq!(body["system"][0]["cache_control"]["type"], "ephemeral");
    for wire in [Wire::Anthropic, Wire::Gemini, Wire::Ollama] {
        assert!(!sent_to(wire, request()).await.to_string().contains("k1"), "{wire:?}");
    }
}

const PNG: &str = "data:image/png;base64,iVBORw0KGgo=";

fn look(url: &str) -> ModelRequest {
    ModelRequest::new(vec![message(json!({"role": "user", "content": [{"text": "Look:"}, {"media": {"url": url}}]}))])
}

#[tokio::test]
async fn pictures_are_sent_by_value_and_by_address() {
    let body = sent_to(Wire::OpenAi, look(PNG)).await;
    assert_eq!(body["messages"][0]["content"][1]["image_url"]["url"], PNG);
    let body = sent_to(Wire::Anthropic, look(PNG)).await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="});
    assert_eq!(body["messages"][0]["content"][1], json!({"type": "image", "source": source}));
    let body = sent_to(Wire::Gemini, look(PNG)).await;
    let data = json!({"mime_type": "image/png", "data": "iVBORw0KGgo="});
    assert_eq!(body["contents"][0]["parts"][1]["inline_data"], data);
    assert_eq!(sent_to(Wire::Ollama, look(PNG)).await["messages"][0]["images"], json!(["iVBORw0KGgo="]));

    let url = "https://example.com/a.png";
    let body = sent_to(Wire::OpenAi, look(url)).await;
    assert_eq!(body["messages"][0]["content"][1]["image_url"]["url"], url);
    let body = sent_to(Wire::Anthropic, look(url)).await;
    assert_eq!(body["messages"][0]["content"][1]["source"], json!({"type": "url", "url": url}));
    let body = sent_to(Wire::Gemini, look(url)).await;
    assert_eq!(body["contents"][0]["parts"][1]["file_data"]["file_uri"], url);
}

#[tokio::test]
async fn what_a_provider_cannot_take_becomes_text_or_is_left_out() {
    let body = sent_to(Wire::Ollama, look("https://example.com/a.png")).await;
    assert_eq!(body["messages"][0]["content"], "Look:https://example.com/a.png");
    let body = sent_to(Wire::OpenAi, look("https://example.com/a.pdf")).await;
    assert!(body["messages"][0].to_string().contains("https://example.com/a.pdf"), "{body}");
    let odd = message(json!({"role": "user", "content": [
        {"text": ""}, {"data": {"n": 1}}, {"custom": {"x": 1}}, {"resource": {"uri": "file:///a"}}, {"strange": 1},
        {"media": {"url": "data:,plain"}}, {"media": 5}, {"toolResponse": 5}, {"text": "End."},
    ]}));
    for wire in Wire::ALL {
        let body = sent_to(wire, ModelRequest::new(vec![odd.clone()])).await.to_string();
        assert!(
            body.contains("End.") && body.contains("file:///a") && body.contains(r#"{\"n\":1}"#),
            "{wire:?}: {body}"
        );
        assert!(!body.contains("strange"), "{wire:?}: {body}");
    }
}

#[tokio::test]
async fn a_request_with_nothing_to_say_is_refused() {
    let nothing = message(json!({"role": "user", "content": [{"custom": {}}]}));
    for messages in [vec![], vec![nothing], vec![Message::user("")]] {
        let server = Loopback::start([]).await;
        let error = ask(&server.model(Wire::OpenAi), ModelRequest::new(messages)).await.error();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(server.asked().is_empty());
    }
}

#[tokio::test]
async fn a_model_s_name_is_sent_whole() {
    for name in ["qwen-max", "some-model-high", "vendor/model-low", "llama:8b"] {
        let server = Loopback::start([Reply::answer(Wire::OpenAi, &Said::text(&["ok"]))]).await;
        let model = Provider::new(format!("openai/{name}")).unwrap().endpoint(server.url(Wire::OpenAi)).unwrap();
        ask(&model, hello()).await.whole();
        let body = server.only_asked().body;
        assert_eq!(body["model"], name);
        assert_eq!(body.get("reasoning_effort"), None);
    }
}
