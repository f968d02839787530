//! All that a generation tells those around it.
//!
//! Generating knows nothing of sessions. What a turn needs to keep about it goes through [`Ledger`], which whoever runs
//! the turn puts into the task; what a prompt agent adds goes through [`Observer`].

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::calls::Call;
use crate::agent::Handled;
use crate::json::Json;
use crate::message::Message;
use crate::model::{ModelChunk, ModelRequest};
use crate::part::ToolRequest;
use crate::tool::run::Answer;
use crate::{Result, Usage};

tokio::task_local! {
    static LEDGER: Arc<dyn Ledger>;
}

/// Runs a future in which tool calls are written down.
pub(crate) fn keeping<F: Future>(ledger: Arc<dyn Ledger>, future: F) -> impl Future<Output = F::Output> {
    LEDGER.scope(ledger, future)
}

/// Who writes down the calls of this task, if anybody does.
pub(crate) fn ledger() -> Option<Arc<dyn Ledger>> {
    LEDGER.try_with(Arc::clone).ok()
}

/// What is known of a call from an earlier attempt at the same turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// It answered.
    Finished(Json),
    /// It failed, and the model was told this.
    Failed(Json),
    /// It was begun; whether it happened nobody knows. The id it was begun under.
    Unknown(String),
}

/// Who speaks, as events name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Author {
    pub(crate) name: String,
    pub(crate) path: String,
}

/// Writes down what tools do, so that a turn that died shows it and a retry need not repeat it.
#[async_trait]
pub(crate) trait Ledger: Send + Sync {
    /// Fires when the turn should stop.
    fn cancel(&self) -> CancellationToken;

    /// An id for the next call.
    fn next_call(&self) -> String;

    /// What an earlier attempt knows of a call. Each call is told once.
    fn earlier(&self, request: &ToolRequest) -> Option<Earlier>;

    /// Calls are about to run: durable when it returns.
    async fn started(&self, calls: &[(&str, &ToolRequest)]) -> Result<()>;

    /// A call has answered: durable when it returns. What it changed is told in the name of whoever asked for it.
    async fn ended(&self, call: &str, name: &str, answer: &Answer, asked_by: Option<&Author>) -> Result<()>;

    /// A call asked for a person instead of answering.
    fn interrupted(&self, call: &str, name: &str, payload: &Json);

    /// All tools of one answer of the model have answered.
    async fn iteration_end(&self) -> Result<()>;
}

/// What somebody decided about a call before it runs.
pub(crate) enum Verdict {
    /// It runs.
    Run,
    /// It does not; this is its answer.
    Answer(Answer),
}

/// Follows a generation and may change it.
#[async_trait]
pub(crate) trait Observer: Send + Sync {
    /// Who speaks, where several do.
    fn author(&self) -> Option<&Author> {
        None
    }

    /// Whether all this happens inside a call of a tool. Nobody can be asked there, because the call must answer; and
    /// what stands between a call and its answer is no point to go on from.
    fn in_call(&self) -> bool {
        false
    }

    /// The model is about to be asked.
    async fn asking(&self, _request: &mut ModelRequest) -> Handled {
        Ok(())
    }

    /// A piece of what is said, by the model or by tools.
    async fn chunk(&self, _chunk: ModelChunk) -> Handled {
        Ok(())
    }

    /// The model has said all it had to say.
    async fn said(&self, _message: &Message, _usage: Usage) -> Handled {
        Ok(())
    }

    /// The model broke off. What it said until then, and what it cost.
    async fn broke_off(&self, _message: &Message, _usage: Usage) {}

    /// A call is about to run.
    async fn before_call(&self, _call: &mut Call) -> Handled<Verdict> {
        Ok(Verdict::Run)
    }

    /// A call has an answer. What is returned is told to the model after the answers.
    async fn after_call(&self, _call: &Call, _answer: &mut Answer) -> Handled<Option<String>> {
        Ok(None)
    }

    /// The model's message with these calls is now the other one, and the last that was said: nothing comes between calls
    /// and their answers.
    async fn rewritten(&self, _message: &Message, _now: &Message) -> Handled {
        Ok(())
    }

    /// The tools have answered.
    async fn answered(&self, _message: &Message, _answers: &[Answer], _long_running: Vec<String>) -> Handled {
        Ok(())
    }
}

/// Follows nothing.
pub(crate) struct Nobody;

impl Observer for Nobody {}
