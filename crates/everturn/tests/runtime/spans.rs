//! What is seen of an agent from outside: spans, as an OpenTelemetry exporter gets them.

use std::time::Duration;

use everturn::{
    Agent, AgentBuilder, ContentInSpans, Init, Input, Json, Message, Patience, Session, SnapshotEvent, SnapshotPolicy,
    Turn,
};
use opentelemetry::trace::{SpanId, Status, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::Instrument as _;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::support::*;

/// Everything that is traced while it lives, on this thread.
struct Seen {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Seen {
    fn new() -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        Self { exporter, provider, _guard: guard }
    }

    fn spans(&self) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        self.exporter.get_finished_spans().unwrap()
    }

    fn named(&self, name: &str) -> SpanData {
        let spans = self.spans();
        let names: Vec<_> = spans.iter().map(|span| span.name.to_string()).collect();
        let found = spans.into_iter().find(|span| span.name == name);
        found.unwrap_or_else(|| panic!("there is no span {name:?} among {names:?}"))
    }
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}

fn snapshot_id(span: &SpanData) -> Option<String> {
    attribute(span, "genkit:metadata:snapshotId")
}

fn memory(builder: AgentBuilder<Tally>) -> Agent<Tally> {
    builder.shared_store(Home::memory().store()).build().unwrap()
}

#[tokio::test]
async fn each_turn_is_a_span_below_its_invocation() {
    let seen = Seen::new();
    let agent = memory(echo());
    let outer = tracing::info_span!("request");
    let output = async {
        let mut connection = agent.connect(Init::new()).await.unwrap();
        connection.send_text("one").await.unwrap();
        connection.send_text("two").await.unwrap();
        connection.output().await.unwrap()
    }
    .instrument(outer)
    .await;
    let (request, invocation) = (seen.named("request"), seen.named("echo"));
    assert_eq!(invocation.parent_span_id, request.span_context.span_id());
    for (n, id) in output.snapshot_ids.iter().enumerate() {
        let turn = seen.named(&format!("sessionFlow/turn/{n}"));
        assert_eq!(turn.parent_span_id, invocation.span_context.span_id());
        assert_eq!(snapshot_id(&turn), Some(id.to_string()));
        assert_eq!(attribute(&turn, "genkit:metadata:sessionFlow").as_deref(), Some("echo"));
        assert_eq!(attribute(&turn, "genkit:metadata:agent").as_deref(), Some("echo"));
        assert_eq!(attribute(&turn, "everturn.session"), Some(output.session_id.to_string()));
        assert_eq!(turn.status, Status::Unset);
    }
    assert_eq!(snapshot_id(&invocation), None, "the turns made the snapshots, not the invocation");
    assert_eq!(attribute(&invocation, "everturn.invocation"), Some(output.invocation_id.to_string()));
}

#[tokio::test]
async fn turns_go_on_being_counted_after_a_resume() {
    let seen = Seen::new();
    let agent = memory(echo());
    let first = agent.run_text("one", Init::new()).await.unwrap();
    agent.run_text("two", Init::session(first.session_id)).await.unwrap();
    seen.named("sessionFlow/turn/1");
}

#[tokio::test]
async fn the_innermost_span_that_made_a_snapshot_names_it() {
    let seen = Seen::new();
    let agent = Agent::flow_loop("echo", |session: Session<Tally>| async move {
        let turn = session.next_turn().await?.unwrap();
        async {
            turn.add_message(Message::model("tool"))?;
            turn.tool_iteration_end().await
        }
        .instrument(tracing::info_span!("somebody's own"))
        .await?;
        turn.add_message(Message::model("answer"))?;
        turn.end().await?;
        session.add_message(Message::model("after"))?;
        Ok(())
    });
    let output = memory(agent).run_text("go", Init::new()).await.unwrap();
    let spans = [seen.named("sessionFlow/toolIteration"), seen.named("sessionFlow/turn/0"), seen.named("echo")];
    let named: Vec<_> = spans.iter().map(|span| snapshot_id(span).unwrap()).collect();
    assert_eq!(named, output.snapshot_ids.iter().map(ToString::to_string).collect::<Vec<_>>());
    let ids: Vec<SpanId> = spans.iter().map(|span| span.span_context.span_id()).collect();
    assert_eq!((spans[0].parent_span_id, spans[1].parent_span_id), (ids[1], ids[2]));
}

#[tokio::test]
async fn without_a_snapshot_no_span_names_one() {
    let seen = Seen::new();
    let agent = memory(echo().snapshots(SnapshotPolicy::on([SnapshotEvent::InvocationEnd])));
    let output = agent.run_text("one", Init::new()).await.unwrap();
    assert_eq!(snapshot_id(&seen.named("sessionFlow/turn/0")), None);
    assert_eq!(snapshot_id(&seen.named("echo")), Some(output.snapshot_id.unwrap().to_string()));
}

#[tokio::test]
async fn nothing_that_was_said_is_in_a_span_unless_it_is_switched_on() {
    let seen = Seen::new();
    let agent = memory(echo());
    let mut input = Input::text("my password is hunter2");
    input.data = Some(json(r#""hunter2""#));
    agent.run(input, Init::new().initial(&json(r#"{"last":"hunter2"}"#)).unwrap()).await.unwrap();
    assert!(!format!("{:?}", seen.spans()).contains("hunter2"));
}

#[tokio::test]
async fn what_was_said_is_in_the_spans_when_switched_on_and_cut() {
    let seen = Seen::new();
    let agent = memory(echo().content_in_spans(ContentInSpans::Include));
    let long = "é".repeat(10_000);
    agent.run_text(&long, Init::new()).await.unwrap();
    let turn = seen.named("sessionFlow/turn/0");
    for name in ["genkit:input", "genkit:output"] {
        let text = attribute(&turn, name).unwrap();
        assert!(text.contains("éé") && text.len() <= 4096, "{name} has {} bytes", text.len());
    }
}

#[tokio::test]
async fn a_failure_is_an_error_on_its_turn_and_its_invocation() {
    let seen = Seen::new();
    let failed = memory(echo()).run_text("fail broken", Init::new()).await.unwrap();
    let turn = seen.named("sessionFlow/turn/0");
    assert_eq!(turn.status, Status::error("broken"));
    assert_eq!(snapshot_id(&turn), Some(failed.snapshot_ids[0].to_string()), "what it left can be found");
    assert_eq!(seen.named("echo").status, Status::error("broken"));
}

#[tokio::test]
async fn a_refused_start_is_an_error_on_its_invocation() {
    let seen = Seen::new();
    let agent = memory(echo());
    let init = Init::new().expect(everturn::Point::new(7));
    assert!(agent.run_text("x", init).await.is_err());
    assert!(matches!(seen.named("echo").status, Status::Error { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_took_too_long_is_an_error() {
    let seen = Seen::new();
    let mut patience = Patience::default();
    patience.turn = Some(Duration::from_secs(1));
    let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
        turn.cancelled().await;
        Ok(())
    });
    let agent = agent.shared_store(Home::memory().store()).patience(patience).build().unwrap();
    agent.run_text("x", Init::new()).await.unwrap();
    assert!(matches!(seen.named("sessionFlow/turn/0").status, Status::Error { .. }));
}

#[tokio::test]
async fn what_a_handler_does_is_below_its_turn() {
    let seen = Seen::new();
    let agent = Agent::flow("echo", |turn: Turn<Tally>| async move {
        async {}.instrument(tracing::info_span!("inside")).await;
        let span = turn.span().clone();
        tokio::spawn(async {}.instrument(tracing::info_span!(parent: span, "carried"))).await?;
        Ok(())
    });
    memory(agent).run_text("x", Init::new()).await.unwrap();
    let turn = seen.named("sessionFlow/turn/0").span_context.span_id();
    assert_eq!(seen.named("inside").parent_span_id, turn);
    assert_eq!(seen.named("carried").parent_span_id, turn);
}

#[tokio::test]
async fn without_a_store_turns_are_spans_too() {
    let seen = Seen::new();
    echo().build().unwrap().run_text("one", Init::new()).await.unwrap();
    assert_eq!(snapshot_id(&seen.named("sessionFlow/turn/0")), None);
}

#[tokio::test]
async fn models_and_tools_are_spans_with_what_they_cost_and_without_what_was_said() {
    use everturn::model::{Reply, ScriptedModel};
    use everturn::tool::{Tool, ToolError};
    let seen = Seen::new();
    let mut usage = everturn::Usage::tokens(10, 2);
    (usage.cached_content_tokens, usage.thoughts_tokens) = (4, 1);
    let calls = [("good", Some("r1"), "{}"), ("bad", Some("r2"), "{}")];
    let model = ScriptedModel::new([Reply::calls(calls).usage(usage), Reply::text("the secret answer")]);
    let good = Tool::untyped("good", "Works.", json("{}"), |_, _| async { Ok(json("\"a secret\"")) });
    let bad = Tool::untyped("bad", "Fails.", json("{}"), |_, _| async { Err(ToolError::new("a secret")) });
    let agent = Agent::prompt("helper", everturn::Prompt::new(model).tools([good, bad]));
    let agent = agent.shared_store(Home::memory().store()).build().unwrap();
    let output = agent.run_text("a secret question", Init::new()).await.unwrap();
    assert_eq!(output.error, None);
    let turn = seen.named("sessionFlow/turn/0");
    let chats: Vec<_> = seen.spans().into_iter().filter(|span| span.name == "chat scripted").collect();
    assert_eq!(chats.len(), 2);
    assert!(chats.iter().all(|span| span.parent_span_id == turn.span_context.span_id()));
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "scripted"),
        ("gen_ai.usage.input_tokens", "10"),
        ("gen_ai.usage.output_tokens", "2"),
        ("gen_ai.usage.cache_read.input_tokens", "4"),
        ("gen_ai.usage.reasoning.output_tokens", "1"),
    ] {
        assert_eq!(attribute(&chats[0], name).as_deref(), Some(value), "{name}");
    }
    let (good, bad) = (seen.named("execute_tool good"), seen.named("execute_tool bad"));
    assert_eq!(attribute(&good, "gen_ai.tool.name").as_deref(), Some("good"));
    assert_eq!(attribute(&good, "gen_ai.tool.call.id").as_deref(), Some("r1"));
    assert_eq!(good.status, Status::Unset);
    assert_eq!(attribute(&bad, "error.type").as_deref(), Some("tool_error"));
    assert!(matches!(bad.status, Status::Error { .. }));
    let told = format!("{:?}", seen.spans());
    assert!(!told.contains("secret"), "{told}");
}
