//! Generating: a model is asked, its tools run, and it is asked again until it has nothing more to ask for.
//!
//! ```
//! use everturn::Message;
//! use everturn::model::{Generation, ModelRequest, Reply, ScriptedModel};
//! use everturn::tool::Tool;
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Sum {
//!     a: i64,
//!     b: i64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Handled {
//! let model = ScriptedModel::new([Reply::call("add", r#"{"a":2,"b":3}"#), Reply::text("Five.")]);
//! let add = Tool::new("add", "Adds two numbers.", |sum: Sum, _| async move { Ok(sum.a + sum.b) });
//! let request = ModelRequest::new(vec![Message::user("What is two and three?")]);
//! let said = Generation::new(&model, request).tool(add).run().await?;
//! assert_eq!(said.message.text(), "Five.");
//! assert_eq!(said.messages.len(), 3); // the model's request, the tool's answer, the model's answer
//! # Ok(()) }
//! ```

pub(crate) mod calls;
pub(crate) mod hook;
mod stream;

use tracing::Instrument as _;

use calls::{Came, NOTES, Round, of_model};
use hook::{Ledger, Nobody, Observer, ledger};
pub use stream::GenerationStream;

use super::ask::generate_stream;
use super::{Model, ModelRequest, ModelResponse};
use crate::agent::{Failure, Handled};
use crate::event::EventActions;
use crate::interrupt::{Interrupt, Resume, Said, is_waiting, matched, slots, waits};
use crate::message::{Message, Role};
use crate::part::{Part, PartKind};
use crate::snapshot::FinishReason;
use crate::tool::{Tool, check_all};
use crate::{Error, Usage};

/// How the calls of one answer run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolMode {
    /// All at once.
    #[default]
    Parallel,
    /// One after the other. One that interrupts leaves those behind it unstarted.
    Sequential,
}

/// How often a model may ask for tools before it must answer.
pub(crate) const MAX_ITERATIONS: usize = 16;

/// The bytes of one answer.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// A model about to be asked, with the tools it may use.
#[derive(Clone)]
#[must_use = "nothing is asked until it is run"]
pub struct Generation<'a> {
    model: &'a dyn Model,
    request: ModelRequest,
    tools: Vec<Tool>,
    mode: ToolMode,
    max_iterations: usize,
    max_answer: usize,
    resume: Option<Resume>,
}

/// What a generation came to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Generated {
    /// The model's last message.
    pub message: Message,
    /// What was said, in order: the model's messages and the tools'.
    pub messages: Vec<Message>,
    /// The whole conversation as it stands now: the request's messages, one of which an answer to an interrupt may have
    /// changed, and what was said.
    pub conversation: Vec<Message>,
    /// Why it stopped.
    pub finish_reason: FinishReason,
    /// What it cost, all times the model was asked together.
    pub usage: Usage,
    /// How often the model was asked.
    pub iterations: usize,
    /// What the last tools asked the runtime to do.
    pub actions: EventActions,
    /// What people were asked just now. What it waits for in all, be it asked before, is in
    /// [`interrupts`](Generated::interrupts).
    pub asked: Vec<Interrupt>,
}

impl Generated {
    /// What it waits for, if a tool interrupted.
    #[must_use]
    pub fn interrupts(&self) -> Vec<Interrupt> {
        Interrupt::all_in(&self.message)
    }
}

impl<'a> Generation<'a> {
    /// A model and what it is asked.
    pub fn new(model: &'a dyn Model, request: ModelRequest) -> Self {
        Self {
            model,
            request,
            tools: Vec::new(),
            mode: ToolMode::default(),
            max_iterations: MAX_ITERATIONS,
            max_answer: MAX_ANSWER_BYTES,
            resume: None,
        }
    }

    /// With a tool.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// With tools.
    pub fn tools(mut self, tools: impl IntoIterator<Item = Tool>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// How the calls of one answer run: all at once unless set.
    pub fn tool_mode(mut self, mode: ToolMode) -> Self {
        self.mode = mode;
        self
    }

    /// How often the model may be asked: 16 times unless set.
    pub fn max_iterations(mut self, most: usize) -> Self {
        self.max_iterations = most;
        self
    }

    /// How many bytes one answer may have: 8 MiB unless set.
    pub fn max_answer_bytes(mut self, most: usize) -> Self {
        self.max_answer = most;
        self
    }

    /// With answers to what the conversation's last message waits for.
    pub fn resume(mut self, resume: Resume) -> Self {
        self.resume = Some(resume);
        self
    }

    /// Asks, runs tools, and asks again, until the model has answered or a tool interrupts.
    ///
    /// Inside a turn its tool calls are in the turn's ledger, and each round of tools is an opportunity for a snapshot.
    pub async fn run(self) -> Handled<Generated> {
        self.observed(&Nobody).await
    }

    pub(crate) async fn observed(self, observer: &dyn Observer) -> Handled<Generated> {
        check_all(&self.tools)?;
        let ledger = ledger();
        let mut request = self.request.clone();
        request.tools.extend(self.tools.iter().map(|tool| tool.definition().clone()));
        let given = request.messages.len();
        let mut generating = Running {
            of: &self,
            observer,
            ledger,
            conversation: std::mem::take(&mut request.messages),
            request,
            given,
            usage: Usage::default(),
            iterations: 0,
        };
        let answers = generating.answers()?;
        generating.run(answers).await
    }
}

/// A generation on its way.
struct Running<'a> {
    of: &'a Generation<'a>,
    observer: &'a dyn Observer,
    ledger: Option<std::sync::Arc<dyn Ledger>>,
    /// All but the messages.
    request: ModelRequest,
    conversation: Vec<Message>,
    given: usize,
    usage: Usage,
    iterations: usize,
}

impl Running<'_> {
    /// What people said to what waits, checked before anything happens.
    fn answers(&self) -> Handled<Vec<Option<Said>>> {
        match &self.of.resume {
            Some(resume) => matched(&self.conversation, resume, &self.of.tools),
            None => match self.conversation.last() {
                Some(last) if is_waiting(last) => Err(waits(slots(last).iter())),
                _ => Ok(Vec::new()),
            },
        }
    }

    /// The conversation itself says what comes next, so that one that broke off goes on where it was.
    async fn run(&mut self, mut answers: Vec<Option<Said>>) -> Handled<Generated> {
        loop {
            let last = self.conversation.last().cloned();
            let Some(last) = last.filter(|last| last.role() == Role::Model && !slots(last).is_empty()) else {
                let response = self.ask().await?;
                if slots(&response.message).is_empty() {
                    return Ok(self.done(response.finish_reason, EventActions::default()));
                }
                continue;
            };
            let tools = &self.of.tools;
            let round = Round { tools, mode: self.of.mode, observer: self.observer, ledger: self.ledger.as_ref() };
            match round.run(&last, std::mem::take(&mut answers)).await? {
                Came::Interrupted(message, asked) => {
                    self.replace_last(message);
                    let done = self.done(FinishReason::Interrupted, EventActions::default());
                    return Ok(Generated { asked, ..done });
                }
                Came::Answered(answered) => {
                    self.replace_last(answered.model);
                    self.conversation.push(answered.tool);
                    if let Some(ledger) = &self.ledger
                        && !self.observer.in_call()
                    {
                        ledger.iteration_end().await?;
                    }
                    if answered.actions.ends_generation() {
                        return Ok(self.done(FinishReason::Stop, answered.actions));
                    }
                }
            }
        }
    }

    fn replace_last(&mut self, message: Message) {
        if let Some(last) = self.conversation.last_mut() {
            *last = message;
        }
    }

    fn done(&mut self, finish_reason: FinishReason, actions: EventActions) -> Generated {
        let conversation = std::mem::take(&mut self.conversation);
        let said = |message: &&Message| message.role() == Role::Model;
        let message = conversation.iter().rev().find(said).cloned();
        Generated {
            message: message.unwrap_or_else(|| Message::new(Role::Model, &[])),
            messages: conversation[self.given.min(conversation.len())..].to_vec(),
            conversation,
            finish_reason,
            usage: self.usage,
            iterations: self.iterations,
            actions,
            asked: Vec::new(),
        }
    }

    /// Asks the model once and takes in what it says.
    async fn ask(&mut self) -> Handled<ModelResponse> {
        let model = self.of.model.name().to_owned();
        if self.iterations >= self.of.max_iterations {
            return Err(Failure::new(
                "RESOURCE_EXHAUSTED",
                format!(
                    "model {model} was asked {} times and still wants tools: raise max_iterations, or look at what its tools answer",
                    self.iterations
                ),
            ));
        }
        self.iterations += 1;
        let mut request = ModelRequest { messages: self.conversation.clone(), ..self.request.clone() };
        self.observer.asking(&mut request).await?;
        let span = tracing::info_span!(
            "chat",
            otel.name = format!("chat {model}"),
            "gen_ai.operation.name" = "chat",
            "gen_ai.provider.name" = model.split('/').next().unwrap_or(&model),
            "gen_ai.request.model" = model,
            "gen_ai.response.finish_reasons" = tracing::field::Empty,
            "gen_ai.usage.input_tokens" = tracing::field::Empty,
            "gen_ai.usage.output_tokens" = tracing::field::Empty,
            "gen_ai.usage.cache_read.input_tokens" = tracing::field::Empty,
            "gen_ai.usage.reasoning.output_tokens" = tracing::field::Empty,
            "otel.status_code" = tracing::field::Empty,
            "otel.status_description" = tracing::field::Empty,
        );
        let heard = self.hear(request).instrument(span.clone()).await;
        match &heard {
            Ok(response) => {
                span.record("gen_ai.response.finish_reasons", tracing::field::debug([response.finish_reason]));
                span.record("gen_ai.usage.input_tokens", response.usage.input_tokens);
                span.record("gen_ai.usage.output_tokens", response.usage.output_tokens);
                span.record("gen_ai.usage.cache_read.input_tokens", response.usage.cached_content_tokens);
                span.record("gen_ai.usage.reasoning.output_tokens", response.usage.thoughts_tokens);
            }
            Err(failure) => {
                span.record("otel.status_code", "ERROR");
                span.record("otel.status_description", crate::run::begin::bounded(&failure.to_string()));
            }
        }
        let mut response = heard.map_err(|failure| of_model(&model, failure))?;
        response.message = self.presentable(&response).map_err(|failure| of_model(&model, failure))?;
        self.usage.add(&response.usage);
        self.observer.said(&response.message, response.usage).await?;
        self.conversation.push(response.message.clone());
        Ok(response)
    }

    /// Takes the model's chunks to their end.
    async fn hear(&self, request: ModelRequest) -> Handled<ModelResponse> {
        let cancel = self.ledger.as_ref().map(|ledger| ledger.cancel()).unwrap_or_default();
        if cancel.is_cancelled() {
            // Asking costs, even if nobody listens to the answer.
            return Err(Error::aborted("the turn was cancelled before the model was asked").into());
        }
        let mut stream = generate_stream(self.of.model, request);
        let mut bytes = 0;
        let failure: Failure = loop {
            let next = tokio::select! {
                biased;
                () = cancel.cancelled() => break Error::aborted("the turn was cancelled while the model answered").into(),
                next = stream.next() => next,
            };
            match next {
                None => return Ok(stream.response()?),
                Some(Err(error)) => break error.into(),
                Some(Ok(chunk)) => {
                    bytes += chunk.weight();
                    if bytes > self.of.max_answer {
                        break Error::too_large(format!(
                            "its answer has more than {} bytes: ask for less, or raise max_answer_bytes",
                            self.of.max_answer
                        ))
                        .into();
                    }
                    if let Err(failure) = self.observer.chunk(chunk).await {
                        break failure;
                    }
                }
            }
        };
        let cut = stream.so_far();
        self.observer.broke_off(&cut.message, cut.usage).await;
        Err(failure)
    }

    /// What the model said, fit to be kept: it may not note on its requests what only we may note there, and every
    /// request can be told from the others.
    fn presentable(&self, response: &ModelResponse) -> Handled<Message> {
        let mut parts = response.message.parts();
        if parts.is_empty()
            && matches!(response.finish_reason, FinishReason::Stop | FinishReason::Unknown | FinishReason::Other)
        {
            return Err(Error::unavailable("it answered nothing: try again, or ask in another way").into());
        }
        if parts.iter().all(|part| part.kind() != PartKind::ToolRequest) {
            return Ok(response.message.clone());
        }
        let mut seen = Vec::new();
        for part in parts.iter_mut().filter(|part| part.kind() == PartKind::ToolRequest) {
            let Some(request) = part.as_tool_request().filter(|request| !request.name.is_empty()) else {
                return Err(Error::unavailable("it asked for a tool without naming it: try again").into());
            };
            for key in NOTES {
                if part.metadata(key).is_some() {
                    *part = part.without_metadata(key);
                }
            }
            let taken = |reference: &String| seen.contains(&(request.name.clone(), reference.clone()));
            let reference = match request.reference.clone().filter(|reference| !taken(reference)) {
                Some(reference) => reference,
                None => {
                    let id = self.ledger.as_ref().map_or_else(calls::fresh_id, |ledger| ledger.next_call());
                    *part = renamed(part, &request, &id);
                    id
                }
            };
            seen.push((request.name, reference));
        }
        Ok(response.message.with_parts(&parts))
    }
}

/// The same request under another reference.
fn renamed(part: &Part, request: &crate::ToolRequest, reference: &str) -> Part {
    let input = request.input.clone().unwrap_or_else(crate::Json::empty_object);
    let fresh = Part::tool_request(&request.name, Some(reference), &input);
    let kept: Option<std::collections::BTreeMap<String, crate::Json>> = part.all_metadata();
    kept.into_iter().flatten().fold(fresh, |part, (key, value)| part.with_metadata(&key, &value))
}
