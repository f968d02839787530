//! Hooks: those who follow a prompt agent's turn and may change or refuse what happens.
//!
//! A turn goes: the session is loaded, [`session_start`](Hook::session_start) if it is its first turn,
//! [`before_generation`](Hook::before_generation), then the model and its tools in turn (each call with
//! [`before_tool`](Hook::before_tool) and [`after_tool`](Hook::after_tool) around it), [`on_stop`](Hook::on_stop) when the
//! model has nothing more to ask for or [`on_interrupt`](Hook::on_interrupt) when a person must answer, then
//! [`after_generation`](Hook::after_generation), and the session is saved.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::agent::{CustomState, Failure};
use crate::interrupt::Interrupt;
use crate::json::Json;
use crate::live::Session;
use crate::message::Message;
use crate::model::Generated;
use crate::{Input, Result};

/// What a hook returns.
pub type HookResult<T = ()> = std::result::Result<T, HookError>;

/// Why a hook did not do its work.
pub enum HookError {
    /// Something went wrong with the hook itself: it is logged, and the turn goes on with the next hook.
    Failed(Failure),
    /// The turn must not go on: no further hook is called, and the turn fails.
    Abort(Failure),
}

impl HookError {
    /// Ends the turn.
    pub fn abort(status: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Abort(Failure::new(status, message))
    }
}

impl fmt::Debug for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => write!(f, "failed: {failure}"),
            Self::Abort(failure) => write!(f, "abort: {failure}"),
        }
    }
}

/// Any error is a failure of the hook, which does not end the turn.
impl<E: std::error::Error + 'static> From<E> for HookError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// What a hook knows of the turn.
pub struct HookContext<S> {
    session: Session<S>,
    input: Input,
    values: Mutex<BTreeMap<String, Json>>,
}

impl<S: CustomState> HookContext<S> {
    pub(super) fn new(session: Session<S>, input: Input) -> Self {
        Self { session, input, values: Mutex::default() }
    }

    /// The session.
    pub fn session(&self) -> &Session<S> {
        &self.session
    }

    /// What the turn was given.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// Leaves a value for the hooks that are called later in this turn.
    pub fn set_value<T: Serialize + ?Sized>(&self, key: impl Into<String>, value: &T) -> Result<()> {
        let value = Json::from_value(value)?;
        self.values.lock().unwrap_or_else(PoisonError::into_inner).insert(key.into(), value);
        Ok(())
    }

    /// A value that an earlier hook left.
    pub fn value<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).get(key).map(Json::to).transpose()
    }
}

/// What the model is about to be shown. Changing it changes what the model sees in this turn, never what is stored.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Preparation {
    /// The instructions.
    pub system: Option<String>,
    /// The conversation, after the instructions and the prompt's own preamble. When a turn answers what was asked, the
    /// message whose calls it answers is not among them: it follows them as it is.
    pub messages: Vec<Message>,
    /// Said to the model after everything else, each time it is asked.
    pub reminders: Vec<Message>,
}

/// A call of a tool, as hooks see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// What tells the call from others.
    pub reference: Option<String>,
    /// What it is given. What a hook changes here is what the tool gets; the model's message stays as it was.
    pub input: Json,
}

/// A call's answer, as hooks see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolAnswer {
    /// What the model is told. Taken away, it is told what the tool had answered.
    pub output: Option<Json>,
    /// Whether it is an error.
    pub is_error: bool,
    /// Told to the model after the answers of all tools of the round.
    pub additional_context: Option<String>,
}

/// What a hook says to a call before it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolVerdict {
    /// It may run.
    #[default]
    Run,
    /// It does not run; the model is told this answer.
    Answer(Json),
    /// It does not run; the model is told why.
    Refuse(String),
}

/// What a hook says when the model has nothing more to ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StopVerdict {
    /// The turn is done.
    #[default]
    Done,
    /// It is not: the model is told why, and asked again.
    GoOn(String),
}

/// Follows the turns of a prompt agent. Every method does nothing unless you write it.
#[async_trait]
pub trait Hook<S: CustomState = Json>: Send + Sync {
    /// The session's first turn begins.
    async fn session_start(&self, _context: &HookContext<S>) -> HookResult {
        Ok(())
    }

    /// The session is loaded, and the model is about to be asked.
    async fn before_generation(&self, _context: &HookContext<S>, _prepared: &mut Preparation) -> HookResult {
        Ok(())
    }

    /// A tool is about to run.
    async fn before_tool(&self, _context: &HookContext<S>, _call: &mut ToolCall) -> HookResult<ToolVerdict> {
        Ok(ToolVerdict::Run)
    }

    /// A tool has answered. Called in the order the model asked, after all tools of the round.
    async fn after_tool(&self, _context: &HookContext<S>, _call: &ToolCall, _answer: &mut ToolAnswer) -> HookResult {
        Ok(())
    }

    /// A tool has answered with an error; called instead of [`after_tool`](Hook::after_tool).
    async fn tool_failed(&self, _context: &HookContext<S>, _call: &ToolCall, _answer: &mut ToolAnswer) -> HookResult {
        Ok(())
    }

    /// Tools ask for a person. Called once for each question, when it is asked.
    async fn on_interrupt(&self, _context: &HookContext<S>, _asked: &[Interrupt]) -> HookResult {
        Ok(())
    }

    /// The model has nothing more to ask for.
    async fn on_stop(&self, _context: &HookContext<S>, _message: &Message) -> HookResult<StopVerdict> {
        Ok(StopVerdict::Done)
    }

    /// All is said, or a person must answer. What the session holds now is about to be saved.
    async fn after_generation(&self, _context: &HookContext<S>, _generated: &Generated) -> HookResult {
        Ok(())
    }
}
