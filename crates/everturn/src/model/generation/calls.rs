//! The calls of one answer of the model: which run, in which order, and what is told of them.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::ToolMode;
use super::hook::{Earlier, Ledger, Observer, Verdict};
use crate::Error;
use crate::agent::{Failure, Handled};
use crate::event::EventActions;
use crate::interrupt::{
    Approval, INTERRUPT, IS_ERROR, Interrupt, PENDING_OUTPUT, RESOLVED, RESUMED, Said, Slot, SlotState,
    approval_question, is_gate, slots, unknown_question,
};
use crate::json::Json;
use crate::message::{Message, Role};
use crate::model::ModelChunk;
use crate::part::{Part, ToolRequest};
use crate::tool::run::{Answer, Ran, run};
use crate::tool::{Asked, Tool, Unknown};

/// Notes on a request that waits for its siblings, beside its output.
const PENDING_ERROR: &str = "pendingError";
const PENDING_CONTEXT: &str = "pendingContext";
const PENDING_ACTIONS: &str = "pendingActions";

/// What a model is told that asked for a person where there is none.
const NOBODY_TO_ASK: &str = "this call needs a person's answer, and nobody can be asked while an agent works as a tool: \
                             do without it, and say in your answer what a person has to decide";
/// All that is noted on requests, by us and nobody else.
pub(super) const NOTES: [&str; 7] =
    [INTERRUPT, PENDING_OUTPUT, PENDING_ERROR, PENDING_CONTEXT, PENDING_ACTIONS, RESOLVED, RESUMED];

/// One call of a tool.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) request: ToolRequest,
    pub(crate) resumed: Option<Json>,
}

/// What the calls of a message came to.
pub(crate) enum Came {
    /// All have answered.
    Answered(Box<Answered>),
    /// Some wait for a person. The message, with what is known of each call, and what was asked just now.
    Interrupted(Message, Vec<Interrupt>),
}

pub(crate) struct Answered {
    /// The model's message, without what was noted on it while calls waited.
    pub(crate) model: Message,
    pub(crate) tool: Message,
    pub(crate) actions: EventActions,
}

/// How a call stands after this round.
enum Outcome {
    /// Answered in an earlier round.
    Kept(Answer),
    /// Answered in this one.
    New(Answer),
    /// Asks a person, in this round.
    Asks(Json),
    /// Asked a person in an earlier round, and waits.
    Waits(Json),
    /// Not started: an earlier one waits.
    Open,
}

/// What is to be done about a call.
enum Plan {
    Settled(Outcome),
    Run(Call, Tool),
}

pub(crate) struct Round<'a> {
    pub(crate) tools: &'a [Tool],
    pub(crate) mode: ToolMode,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) ledger: Option<&'a Arc<dyn Ledger>>,
}

impl Round<'_> {
    /// Runs what is to be run of a message's calls, given what people said to those that waited.
    pub(crate) async fn run(&self, message: &Message, said: Vec<Option<Said>>) -> Handled<Came> {
        let slots = slots(message);
        let mut said = said;
        said.resize(slots.len(), None);
        let resumed = said.iter().any(Option::is_some);
        let mut outcomes = match self.mode {
            ToolMode::Parallel => self.parallel(&slots, said).await?,
            ToolMode::Sequential => self.sequential(&slots, said).await?,
        };
        let contexts = self.after(&slots, &mut outcomes).await?;
        self.stream(&slots, &outcomes).await?;
        if outcomes.iter().any(|outcome| outcome.waits() || matches!(outcome, Outcome::Open)) {
            self.interrupt(message, &slots, outcomes, &contexts).await
        } else {
            self.finish(message, &slots, outcomes, &contexts, resumed).await
        }
    }

    async fn plan(&self, slot: &Slot, said: Option<Said>) -> Handled<Plan> {
        let resumed = match (&slot.state, said) {
            (SlotState::Done(output), _) => {
                let is_error = slot.part.metadata(PENDING_ERROR).is_some();
                let actions = slot.part.metadata(PENDING_ACTIONS).and_then(|actions| actions.to().ok());
                let actions = actions.unwrap_or_default();
                return Ok(Plan::Settled(Outcome::Kept(Answer { is_error, actions, ..Answer::of(output.clone()) })));
            }
            (SlotState::Waiting(payload), None) => return Ok(Plan::Settled(Outcome::Waits(payload.clone()))),
            (_, Some(Said::Output(output))) => return Ok(Plan::Settled(Outcome::New(Answer::of(output)))),
            (_, Some(Said::Error(output))) => {
                return Ok(Plan::Settled(Outcome::New(Answer { is_error: true, ..Answer::of(output) })));
            }
            (_, Some(Said::Restart(resumed))) => resumed,
            (SlotState::Open, None) => None,
        };
        let new = |answer| Ok(Plan::Settled(Outcome::New(answer)));
        let request = slot.request.clone();
        let Some(tool) = self.tools.iter().find(|tool| tool.name() == request.name) else {
            let names: Vec<_> = self.tools.iter().map(Tool::name).collect();
            let text = match names.is_empty() {
                true => format!("there is no tool {:?}, nor any other", request.name),
                false => format!("there is no tool {:?}: use one of {}", request.name, names.join(", ")),
            };
            return new(Answer::error(&text));
        };
        if tool.needs_approval || is_gate(slot) {
            match resumed.as_ref().and_then(|json| json.to::<Approval>().ok()) {
                None => return Ok(Plan::Settled(self.asks(approval_question()))),
                Some(Approval { approved: false, reason }) => {
                    let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                    return new(Answer::error(&format!("a person did not allow this call{why}")));
                }
                Some(Approval { approved: true, .. }) => {}
            }
        }
        let id = match self.ledger.and_then(|ledger| ledger.earlier(&request)) {
            Some(Earlier::Finished(output)) => return new(Answer::of(output)),
            Some(Earlier::Failed(output)) => return new(Answer { is_error: true, ..Answer::of(output) }),
            Some(Earlier::Unknown(id)) => match tool.unknown {
                Unknown::RunAgain => id,
                Unknown::Ask => return Ok(Plan::Settled(self.asks(unknown_question()))),
            },
            None => self.ledger.map_or_else(fresh_id, |ledger| ledger.next_call()),
        };
        let mut call = Call { id, request, resumed };
        match self.observer.before_call(&mut call).await? {
            Verdict::Run => Ok(Plan::Run(call, tool.clone())),
            Verdict::Answer(answer) => new(answer),
        }
    }

    /// A call that asks a person, or cannot.
    fn asks(&self, payload: Json) -> Outcome {
        if self.observer.in_call() { Outcome::New(Answer::error(NOBODY_TO_ASK)) } else { Outcome::Asks(payload) }
    }

    /// Refuses to start anything in a turn that nobody wants any more.
    fn check_wanted(&self) -> Handled {
        match self.ledger.is_some_and(|ledger| ledger.cancel().is_cancelled()) {
            true => Err(Error::aborted("the turn was cancelled before its tools ran").into()),
            false => Ok(()),
        }
    }

    async fn parallel(&self, slots: &[Slot], said: Vec<Option<Said>>) -> Handled<Vec<Outcome>> {
        let mut plans = Vec::with_capacity(slots.len());
        for (slot, said) in slots.iter().zip(said) {
            plans.push(self.plan(slot, said).await?);
        }
        self.check_wanted()?;
        if let Some(ledger) = self.ledger {
            let starting: Vec<_> = plans
                .iter()
                .filter_map(|plan| match plan {
                    Plan::Run(call, _) => Some((call.id.as_str(), &call.request)),
                    Plan::Settled(_) => None,
                })
                .collect();
            if !starting.is_empty() {
                ledger.started(&starting).await?;
            }
        }
        let running = plans.into_iter().map(|plan| async {
            match plan {
                Plan::Settled(outcome) => Ok(outcome),
                Plan::Run(call, tool) => self.call(&call, &tool).await,
            }
        });
        // All are heard before one fails the turn: what they did is in the ledger.
        join_all(running).await.into_iter().collect()
    }

    /// Each call is planned when its turn comes, so that nobody hears of one that does not start yet. One that was asked
    /// about and answered runs, whatever waits before it: its answer must not be lost.
    async fn sequential(&self, slots: &[Slot], said: Vec<Option<Said>>) -> Handled<Vec<Outcome>> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(slots.len());
        for (slot, said) in slots.iter().zip(said) {
            if slot.state == SlotState::Open && outcomes.iter().any(Outcome::waits) {
                outcomes.push(Outcome::Open);
                continue;
            }
            outcomes.push(match self.plan(slot, said).await? {
                Plan::Settled(outcome) => outcome,
                Plan::Run(call, tool) => {
                    self.check_wanted()?;
                    if let Some(ledger) = self.ledger {
                        ledger.started(&[(&call.id, &call.request)]).await?;
                    }
                    self.call(&call, &tool).await?
                }
            });
        }
        Ok(outcomes)
    }

    async fn call(&self, call: &Call, tool: &Tool) -> Handled<Outcome> {
        let cancel = self.ledger.map_or_else(CancellationToken::new, |ledger| ledger.cancel());
        let asked = Asked::new(call.id.clone(), call.request.clone(), call.resumed.clone(), cancel);
        let by = self.observer.author();
        match run(tool, Arc::new(asked)).await {
            Ran::Interrupted(payload) if !self.observer.in_call() => {
                if let Some(ledger) = self.ledger {
                    ledger.interrupted(&call.id, tool.name(), &payload);
                }
                Ok(Outcome::Asks(payload))
            }
            ran @ (Ran::Answered(_) | Ran::Interrupted(_)) => {
                let answer = match ran {
                    Ran::Answered(answer) => answer,
                    _ => Answer::error(NOBODY_TO_ASK),
                };
                if let Some(ledger) = self.ledger {
                    ledger.ended(&call.id, tool.name(), &answer, by).await?;
                }
                Ok(Outcome::New(answer))
            }
            Ran::Fatal(failure) => {
                if let Some(ledger) = self.ledger {
                    ledger.ended(&call.id, tool.name(), &Answer::error(&failure.to_string()), by).await?;
                }
                Err(failure)
            }
        }
    }

    /// Shows the new answers to whoever wants to see them, in the order the model asked.
    async fn after(&self, slots: &[Slot], outcomes: &mut [Outcome]) -> Handled<Vec<Option<String>>> {
        let mut contexts = Vec::with_capacity(slots.len());
        for (slot, outcome) in slots.iter().zip(outcomes) {
            contexts.push(match outcome {
                Outcome::New(answer) => {
                    let call = Call { id: String::new(), request: slot.request.clone(), resumed: None };
                    self.observer.after_call(&call, answer).await?
                }
                _ => slot.part.metadata(PENDING_CONTEXT).and_then(|text| text.to::<String>().ok()),
            });
        }
        Ok(contexts)
    }

    /// Streams each answer once, in the round that made it, and what is asked of people.
    async fn stream(&self, slots: &[Slot], outcomes: &[Outcome]) -> Handled {
        let pairs = || slots.iter().zip(outcomes);
        let answers: Vec<_> = pairs()
            .filter_map(|(slot, outcome)| match outcome {
                Outcome::New(answer) => Some(response(&slot.request, answer)),
                _ => None,
            })
            .collect();
        let asked: Vec<_> = pairs()
            .filter_map(|(slot, outcome)| match outcome {
                Outcome::Asks(payload) | Outcome::Waits(payload) => Some(slot.part.with_metadata(INTERRUPT, payload)),
                _ => None,
            })
            .collect();
        for content in [answers, asked] {
            if !content.is_empty() {
                self.observer.chunk(ModelChunk { role: Role::Tool, ..ModelChunk::new(content) }).await?;
            }
        }
        Ok(())
    }

    async fn interrupt(
        &self,
        message: &Message,
        slots: &[Slot],
        outcomes: Vec<Outcome>,
        contexts: &[Option<String>],
    ) -> Handled<Came> {
        let noted = slots.iter().zip(&outcomes).zip(contexts).map(|((slot, outcome), context)| match outcome {
            Outcome::New(answer) => {
                let mut part = resolved(&slot.part).with_metadata(PENDING_OUTPUT, &answer.output);
                if answer.is_error {
                    part = part.with_metadata(PENDING_ERROR, &Json::trusted("true"));
                }
                let actions = Some(&answer.actions).filter(|actions| !actions.is_empty());
                if let Some(actions) = actions.and_then(|actions| Json::from_value(actions).ok()) {
                    part = part.with_metadata(PENDING_ACTIONS, &actions);
                }
                match context.as_ref().and_then(|text| Json::from_value(text).ok()) {
                    Some(text) => part.with_metadata(PENDING_CONTEXT, &text),
                    None => part,
                }
            }
            Outcome::Asks(payload) => slot.part.with_metadata(INTERRUPT, payload),
            Outcome::Kept(_) | Outcome::Waits(_) | Outcome::Open => slot.part.clone(),
        });
        let noted = with_requests(message, noted.collect());
        self.observer.rewritten(message, &noted).await?;
        let asked = slots.iter().zip(outcomes).filter_map(|(slot, outcome)| match outcome {
            Outcome::Asks(payload) => Some(Interrupt::of(slot.request.clone(), payload)),
            _ => None,
        });
        Ok(Came::Interrupted(noted, asked.collect()))
    }

    async fn finish(
        &self,
        message: &Message,
        slots: &[Slot],
        outcomes: Vec<Outcome>,
        contexts: &[Option<String>],
        resumed: bool,
    ) -> Handled<Came> {
        let model = with_requests(message, slots.iter().map(|slot| resolved(&slot.part)).collect());
        self.observer.rewritten(message, &model).await?;
        let mut parts = Vec::with_capacity(slots.len());
        let mut answers = Vec::new();
        let mut actions = EventActions::default();
        let mut long_running = Vec::new();
        for (slot, outcome) in slots.iter().zip(outcomes) {
            let (Outcome::Kept(answer) | Outcome::New(answer)) = outcome else { continue };
            parts.push(response(&slot.request, &answer));
            let tool = self.tools.iter().find(|tool| tool.name() == slot.request.name);
            if tool.is_some_and(|tool| tool.long_running) && !answer.is_error {
                long_running.push(slot.request.reference.clone().unwrap_or_default());
            }
            actions.merge(&answer.actions);
            answers.push(answer);
        }
        parts.extend(contexts.iter().flatten().map(Part::text));
        let mut tool = Message::new(Role::Tool, &parts);
        if resumed {
            tool = tool.with_metadata(RESUMED, &Json::trusted("true"));
        }
        self.observer.answered(&tool, &answers, long_running).await?;
        Ok(Came::Answered(Box::new(Answered { model, tool, actions })))
    }
}

impl Outcome {
    fn waits(&self) -> bool {
        matches!(self, Self::Asks(_) | Self::Waits(_))
    }
}

pub(super) fn fresh_id() -> String {
    crate::clock::fresh_uuid().to_string()
}

/// A request without what was noted on it while its siblings waited. That a person was asked stays visible.
fn resolved(part: &Part) -> Part {
    let noted = [PENDING_OUTPUT, PENDING_ERROR, PENDING_CONTEXT, PENDING_ACTIONS, INTERRUPT];
    if noted.iter().all(|key| part.metadata(key).is_none()) {
        return part.clone();
    }
    let asked = part.metadata(INTERRUPT);
    let bare = noted.iter().fold(part.clone(), |part, key| part.without_metadata(key));
    match asked {
        Some(payload) => bare.with_metadata(RESOLVED, &payload),
        None => bare,
    }
}

/// The message with its requests replaced, in order.
fn with_requests(message: &Message, requests: Vec<Part>) -> Message {
    let mut requests = requests.into_iter();
    let parts: Vec<_> = message
        .parts()
        .into_iter()
        .map(|part| if part.as_tool_request().is_some() { requests.next().unwrap_or(part) } else { part })
        .collect();
    message.with_parts(&parts)
}

fn response(request: &ToolRequest, answer: &Answer) -> Part {
    let part = Part::tool_response(&request.name, request.reference.as_deref(), &answer.output);
    if answer.is_error { part.with_metadata(IS_ERROR, &Json::trusted("true")) } else { part }
}

/// A failure that says which model it was.
pub(super) fn of_model(model: &str, failure: Failure) -> Failure {
    failure.context(format_args!("model {model}"))
}
