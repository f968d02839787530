//! What a tool knows about the call it serves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::agent::CustomState;
use crate::event::EventActions;
use crate::interrupt::{Approval, confirmation_question};
use crate::json::Json;
use crate::live::{Responder, Session};
use crate::part::ToolRequest;
use crate::state::StateDelta;
use crate::tool::ToolError;

/// What a tool knows about the call it serves. A cheap handle.
#[derive(Clone)]
pub struct ToolContext(Arc<Asked>);

pub(crate) struct Asked {
    pub(crate) call: String,
    pub(crate) request: ToolRequest,
    pub(crate) resumed: Option<Json>,
    pub(crate) cancel: CancellationToken,
    pub(crate) actions: Mutex<EventActions>,
    pub(crate) delta: Arc<Mutex<StateDelta>>,
}

impl Asked {
    pub(crate) fn new(call: String, request: ToolRequest, resumed: Option<Json>, cancel: CancellationToken) -> Self {
        Self { call, request, resumed, cancel, actions: Mutex::default(), delta: Arc::default() }
    }

    pub(crate) fn actions(&self) -> MutexGuard<'_, EventActions> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToolContext {
    pub(crate) fn new(asked: Arc<Asked>) -> Self {
        Self(asked)
    }

    /// The tool's name, as the model called it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.request.name
    }

    /// The call's id: unique within its session, and the same when a retry runs the call again. Hand it to whatever the
    /// tool calls as an idempotency key.
    #[must_use]
    pub fn call_id(&self) -> &str {
        &self.0.call
    }

    /// What tells the call from others, as the model's provider spells it.
    #[must_use]
    pub fn reference(&self) -> Option<&str> {
        self.0.request.reference.as_deref()
    }

    /// What a person said when the call was restarted after it had interrupted; nothing the first time.
    #[must_use]
    pub fn resumed(&self) -> Option<&Json> {
        self.0.resumed.as_ref()
    }

    /// Asks a person to agree to the call, with what they should know: return it as the tool's error. Once they said
    /// [`approve`](crate::Resume::approve) the tool runs again and is [`confirmed`](Self::confirmed); after
    /// [`deny`](crate::Resume::deny) it does not run, and the model is told why.
    ///
    /// ```
    /// use everturn::Json;
    /// use everturn::tool::Tool;
    ///
    /// let schema = Json::parse(r#"{"properties":{"euros":{"type":"number"}},"required":["euros"]}"#)?;
    /// let pay = Tool::untyped("pay", "Pays.", schema, |input: Json, context| async move {
    ///     if !context.confirmed() {
    ///         return Err(context.request_confirmation("Is the sum right?", Some(input)));
    ///     }
    ///     Ok(Json::from_value("paid")?)
    /// });
    /// # Ok::<(), everturn::Error>(())
    /// ```
    #[must_use = "a person is asked once it is returned as the tool's error"]
    pub fn request_confirmation(&self, hint: impl Into<String>, payload: Option<Json>) -> ToolError {
        ToolError::interrupt(&confirmation_question(Some(hint.into()), payload))
    }

    /// Whether a person has agreed to this very call.
    #[must_use]
    pub fn confirmed(&self) -> bool {
        let said = self.0.resumed.as_ref().and_then(|said| said.to::<Approval>().ok());
        said.is_some_and(|said| said.approved)
    }

    /// The session of the turn it runs in; nothing outside one, or if its custom state is of another type.
    #[must_use]
    pub fn session<S: CustomState>(&self) -> Option<Session<S>> {
        Session::current()
    }

    /// Where the turn's answer goes as it is made; nothing outside a turn.
    #[must_use]
    pub fn responder(&self) -> Option<Responder> {
        crate::live::current_run().map(Responder::of)
    }

    /// Whether the turn should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancel.is_cancelled()
    }

    /// Waits until the turn should stop.
    pub async fn cancelled(&self) {
        self.0.cancel.cancelled().await;
    }

    /// The tool's answer is what the user is to see: the model is not asked to say it again.
    pub fn skip_summarization(&self) {
        self.0.actions().skip_summarization = true;
    }

    /// Hands the conversation over to another agent, by its name. One that cannot be reached from here is the call's
    /// error, which the model is told.
    pub fn transfer_to_agent(&self, agent: impl Into<String>) {
        self.0.actions().transfer_to_agent = Some(agent.into());
    }

    /// Hands the conversation back to the parent agent. An agent without one ends its turn.
    pub fn escalate(&self) {
        self.0.actions().escalate = true;
    }
}
