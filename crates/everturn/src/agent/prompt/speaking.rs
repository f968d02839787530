//! A prompt agent while its model speaks: what is said goes to the session, the stream and the hooks.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::Serialize;

use super::floor::Floor;
use super::hook::{HookContext, HookError, Preparation, ToolAnswer, ToolCall, ToolVerdict};
use super::seat::{Seat, with_next};
use super::team::{TRANSFER, Team, Transferred};
use super::{Hook, Ready};
use crate::Usage;
use crate::agent::{CustomState, Failure, Handled};
use crate::event::{Event, EventActions, EventKind};
use crate::interrupt::{Interrupt, slots};
use crate::json::Json;
use crate::live::{Session, attribution};
use crate::message::Message;
use crate::model::generation::calls::Call;
use crate::model::generation::hook::{Author, Observer, Verdict};
use crate::model::{ModelChunk, ModelRequest};
use crate::state::StateDelta;
use crate::tool::run::Answer;

pub(super) struct Speaking<'a, S> {
    pub(super) team: &'a Team<S>,
    /// Which member of the team speaks.
    pub(super) at: usize,
    pub(super) ready: &'a Ready<S>,
    pub(super) seat: Seat,
    pub(super) author: Author,
    pub(super) session: Session<S>,
    pub(super) context: Arc<HookContext<S>>,
    pub(super) prepared: Mutex<Preparation>,
    /// What hooks and instructions changed since the last event: it goes with the next.
    changed: Arc<Mutex<StateDelta>>,
}

/// What an event says of the model that made it.
#[derive(Serialize)]
struct ByModel<'a> {
    model: &'a str,
}

/// What became of one hook's turn: its answer, or nothing because it failed and that does not matter.
pub(super) fn heard<T>(which: &str, result: Result<T, HookError>) -> Handled<Option<T>> {
    match result {
        Ok(answer) => Ok(Some(answer)),
        Err(HookError::Failed(failure)) => {
            tracing::warn!(hook = which, error = %failure, "a hook failed; the turn goes on without it");
            Ok(None)
        }
        Err(HookError::Abort(failure)) => Err(failure.context(format_args!("hook {which}"))),
    }
}

impl<'a, S: CustomState> Speaking<'a, S> {
    pub(super) fn new(floor: &Floor<'a, S>, at: usize) -> Self {
        let ready = floor.team.member(at);
        Self {
            team: floor.team,
            at,
            ready,
            seat: Seat { path: ready.noted.clone(), call: floor.call.clone() },
            author: Author { name: ready.name.clone(), path: ready.path.clone() },
            session: floor.session.clone(),
            context: floor.context.clone(),
            prepared: Mutex::default(),
            changed: Arc::default(),
        }
    }

    /// Runs what the agent does. What it changed and no event took along becomes an event of its own.
    pub(super) async fn noted<T>(&self, work: impl Future<Output = Handled<T>>) -> Handled<T> {
        let done = attribution::noting(self.changed.clone(), work).await?;
        let rest = self.take_changed();
        if !rest.is_empty() {
            let mut event = self.event().with_state(rest);
            event.kind = EventKind::State;
            self.keep(event)?;
        }
        Ok(done)
    }

    fn take_changed(&self) -> StateDelta {
        std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn hooks(&self) -> impl Iterator<Item = &dyn Hook<S>> {
        self.ready.prompt.hooks.iter().map(|hook| &**hook)
    }

    pub(super) fn event(&self) -> Event {
        let mut event = Event::new(self.author.name.clone());
        event.path.clone_from(&self.author.path);
        event
    }

    /// Adds an event to the session, with what was changed on the way to it.
    pub(super) fn keep(&self, event: Event) -> Handled {
        let event = event.with_state(self.take_changed());
        Ok(self.session.run().work().add_event(event)?)
    }

    /// Tells the model something, as if a person had said it.
    pub(super) fn tell(&self, text: &str) -> Handled {
        self.keep(Event::user(self.seat.sign(&Message::user(text))))
    }

    /// Adds what a tool came to after its call was answered.
    pub(super) fn add_late(&self, message: &Message) -> Handled {
        let mut event = self.event().with_messages([self.seat.sign(message)]);
        event.kind = EventKind::ToolResult;
        self.keep(event)
    }

    /// The calls of a message whose tools go on after they answered.
    fn long_running(&self, message: &Message) -> Vec<String> {
        let goes_on = |name: &str| self.ready.tools.iter().any(|tool| tool.long_running && tool.name() == name);
        let calls = slots(message).into_iter().filter(|slot| goes_on(&slot.request.name));
        calls.filter_map(|slot| slot.request.reference).collect()
    }

    fn model_event(&self, message: &Message, usage: Usage) -> Handled<Event> {
        let mut event = self.event().with_messages([self.seat.sign(message)]).with_usage(usage);
        event.metadata = Some(Json::from_value(&ByModel { model: self.ready.prompt.model.name() })?);
        if !slots(message).is_empty() {
            event.kind = EventKind::ToolCall;
            event.long_running_tool_ids = self.long_running(message);
        }
        Ok(event)
    }
}

#[async_trait]
impl<S: CustomState> Observer for Speaking<'_, S> {
    fn author(&self) -> Option<&Author> {
        Some(&self.author)
    }

    fn in_call(&self) -> bool {
        self.seat.call.is_some()
    }

    async fn asking(&self, request: &mut ModelRequest) -> Handled {
        let reminders = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).reminders.clone();
        request.messages.extend(reminders);
        Ok(())
    }

    async fn chunk(&self, chunk: ModelChunk) -> Handled {
        // What is said inside a call is no part of the answer that is streamed.
        if !self.in_call() {
            self.session.responder().model_chunk(chunk).await?;
        }
        Ok(())
    }

    async fn said(&self, message: &Message, usage: Usage) -> Handled {
        self.keep(self.model_event(message, usage)?)
    }

    async fn broke_off(&self, message: &Message, usage: Usage) {
        // The turn fails, and what was said until then stays readable with it.
        let kept = match message.parts().is_empty() {
            true => self.session.add_usage(usage).map_err(Failure::from),
            false => self.model_event(message, usage).and_then(|event| self.keep(event)),
        };
        if let Err(failure) = kept {
            tracing::debug!(error = %failure, "what a model said before it broke off was not kept");
        }
    }

    async fn before_call(&self, call: &mut Call) -> Handled<Verdict> {
        let mut shown = ToolCall {
            name: call.request.name.clone(),
            reference: call.request.reference.clone(),
            input: call.request.input.clone().unwrap_or_else(Json::empty_object),
        };
        for hook in self.hooks() {
            match heard("before_tool", hook.before_tool(&self.context, &mut shown).await)?.unwrap_or_default() {
                ToolVerdict::Run => {}
                ToolVerdict::Answer(output) => return Ok(Verdict::Answer(Answer::of(output))),
                ToolVerdict::Refuse(why) => return Ok(Verdict::Answer(Answer::error(&why))),
            }
        }
        call.request.input = Some(shown.input);
        Ok(Verdict::Run)
    }

    async fn after_call(&self, call: &Call, answer: &mut Answer) -> Handled<Option<String>> {
        let shown = ToolCall {
            name: call.request.name.clone(),
            reference: call.request.reference.clone(),
            input: call.request.input.clone().unwrap_or_else(Json::empty_object),
        };
        if call.request.name == TRANSFER
            && let Ok(Transferred { transferred_to }) = answer.output.to()
        {
            answer.actions.transfer_to_agent = Some(transferred_to);
        }
        if let Some(text) = self.team.refusal(self.at, &answer.actions) {
            *answer = Answer { delta: std::mem::take(&mut answer.delta), ..Answer::error(&text) };
        }
        let mut contexts = Vec::new();
        for hook in self.hooks() {
            let mut seen =
                ToolAnswer { output: Some(answer.output.clone()), is_error: answer.is_error, additional_context: None };
            let done = if answer.is_error {
                heard("tool_failed", hook.tool_failed(&self.context, &shown, &mut seen).await)?
            } else {
                heard("after_tool", hook.after_tool(&self.context, &shown, &mut seen).await)?
            };
            if done.is_none() {
                continue;
            }
            if let Some(output) = seen.output {
                (answer.output, answer.is_error) = (output, seen.is_error);
            }
            contexts.extend(seen.additional_context);
        }
        Ok((!contexts.is_empty()).then(|| contexts.join("\n")))
    }

    async fn rewritten(&self, message: &Message, now: &Message) -> Handled {
        // Beside other calls of agents there is no last message, and nobody looks for one.
        if self.in_call() && message == now {
            return Ok(());
        }
        // By what it says: a tool may have said something in the model's name since.
        let signed = self.seat.sign(message);
        let own = |other: &Message| *other == signed || other == message;
        let mut event = self.event();
        event.kind = EventKind::ToolCall;
        let old = self.session.run().work().replace_last(own, self.seat.sign(now), event.clone())?;
        let before = Interrupt::all_in(&old);
        let asked = Interrupt::all_in(now).into_iter().filter(|asked| !before.contains(asked));
        event.actions.requested_tool_confirmations = asked.filter_map(|asked| asked.confirmation()).collect();
        if event.actions.is_empty() { Ok(()) } else { self.keep(event) }
    }

    async fn answered(&self, message: &Message, answers: &[Answer], long_running: Vec<String>) -> Handled {
        let mut event = self.event();
        event.kind = EventKind::ToolResult;
        event.actions = actions(answers);
        let mut message = self.seat.sign(message);
        if let Some(next) = self.team.next(self.at, &event.actions) {
            message = with_next(&message, &self.team.member(next).path);
        }
        event.messages.push(message);
        event.long_running_tool_ids = long_running;
        self.keep(event)
    }
}

fn actions(answers: &[Answer]) -> EventActions {
    let mut all = EventActions::default();
    answers.iter().for_each(|answer| all.merge(&answer.actions));
    all
}
