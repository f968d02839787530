//! Running one call of a tool.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};

use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::{Asked, OnToolError, Tool, ToolContext, ToolError, Trouble};
use crate::agent::Failure;
use crate::event::EventActions;
use crate::json::Json;
use crate::live::attribution;
use crate::run::panic_text;
use crate::state::StateDelta;

/// What a call came to.
pub(crate) enum Ran {
    /// There is an answer for the model, be it an error.
    Answered(Answer),
    /// A person must answer first.
    Interrupted(Json),
    /// The turn fails.
    Fatal(Failure),
}

/// What a model is told of a call.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) output: Json,
    pub(crate) is_error: bool,
    pub(crate) actions: EventActions,
    pub(crate) delta: StateDelta,
}

impl Answer {
    pub(crate) fn of(output: Json) -> Self {
        Self { output, is_error: false, actions: EventActions::default(), delta: StateDelta::new() }
    }

    /// An error as a model reads it.
    pub(crate) fn error(text: &str) -> Self {
        #[derive(serde::Serialize)]
        struct Told<'a> {
            error: &'a str,
        }
        let output = Json::from_value(&Told { error: text }).unwrap_or_else(|_| Json::null());
        Self { is_error: true, ..Self::of(output) }
    }
}

/// Runs a call: its input checked, its time limited, its panics caught, its answer checked.
pub(crate) async fn run(tool: &Tool, asked: Arc<Asked>) -> Ran {
    let span = tracing::info_span!(
        "execute_tool",
        otel.name = format!("execute_tool {}", tool.name()),
        "gen_ai.operation.name" = "execute_tool",
        "gen_ai.tool.name" = tool.name(),
        "gen_ai.tool.call.id" = asked.request.reference.as_deref().unwrap_or(&asked.call),
        "everturn.tool.call" = asked.call,
        "error.type" = tracing::field::Empty,
        "otel.status_code" = tracing::field::Empty,
    );
    let ran = attempt(tool, &asked).instrument(span.clone()).await;
    if matches!(&ran, Ran::Fatal(_) | Ran::Answered(Answer { is_error: true, .. })) {
        span.record("error.type", "tool_error");
        span.record("otel.status_code", "ERROR");
    }
    match ran {
        Ran::Answered(answer) => {
            let delta = asked.delta.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Ran::Answered(Answer { actions: asked.actions().clone(), delta, ..answer })
        }
        other => other,
    }
}

async fn attempt(tool: &Tool, asked: &Arc<Asked>) -> Ran {
    let input = asked.request.input.clone().unwrap_or_else(Json::empty_object);
    let schemas = match tool.schemas() {
        Ok(schemas) => schemas,
        Err(error) => return Ran::Fatal(error.into()),
    };
    // The model wrote the input, so the model is told, whatever the tool's setting for its own errors is.
    let broken = || format!("the input does not fit the schema of tool {:?}", tool.name());
    if let Err(error) = schemas.input.check(&input, broken()) {
        return Ran::Answered(Answer::error(error.message()));
    }
    let context = ToolContext::new(asked.clone());
    // Called inside, so that a function that panics before its first await is caught too.
    let work = attribution::noting(asked.delta.clone(), async { tool.call(input, context).await });
    let work = AssertUnwindSafe(work).catch_unwind();
    let done = match tool.timeout {
        Some(limit) => tokio::time::timeout(limit, work).await,
        None => Ok(work.await),
    };
    let result = match done {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(ToolError::new(format!("the tool panicked: {}", panic_text(&*panic)))),
        Err(_) => Err(ToolError::from(Failure::new("DEADLINE_EXCEEDED", "the tool took longer than it may"))),
    };
    match result {
        Ok(output) => match tool.check_output(&output) {
            Ok(()) => Ran::Answered(Answer::of(output)),
            Err(error) => failed(tool, error.into()),
        },
        Err(error) => match error.into_trouble() {
            Trouble::Failed(failure) => failed(tool, failure),
            Trouble::Fatal(failure) => Ran::Fatal(failure),
            Trouble::Interrupt(payload) => Ran::Interrupted(payload),
        },
    }
}

fn failed(tool: &Tool, failure: Failure) -> Ran {
    match tool.on_error {
        OnToolError::TellModel => Ran::Answered(Answer::error(&failure.to_string())),
        OnToolError::FailTurn => Ran::Fatal(failure.context(format_args!("tool {:?} failed", tool.name()))),
    }
}
