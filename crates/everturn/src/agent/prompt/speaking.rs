//! A prompt agent while its model speaks: what is said goes to the session, the stream and the hooks.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use serde::Serialize;

use super::hook::{HookContext, HookError, Preparation, ToolAnswer, ToolCall, ToolVerdict};
use super::{Hook, Ready};
use crate::Usage;
use crate::agent::{CustomState, Failure, Handled};
use crate::event::{Event, EventActions, EventKind};
use crate::interrupt::slots;
use crate::json::Json;
use crate::live::{Responder, Session};
use crate::message::Message;
use crate::model::generation::calls::Call;
use crate::model::generation::hook::{Observer, Verdict};
use crate::model::{ModelChunk, ModelRequest};
use crate::tool::run::Answer;

pub(super) struct Speaking<'a, S> {
    pub(super) ready: &'a Ready<S>,
    pub(super) author: String,
    pub(super) path: String,
    pub(super) session: Session<S>,
    pub(super) responder: Responder,
    pub(super) context: HookContext<S>,
    pub(super) prepared: Mutex<Preparation>,
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

impl<S: CustomState> Speaking<'_, S> {
    pub(super) fn hooks(&self) -> impl Iterator<Item = &dyn Hook<S>> {
        self.ready.prompt.hooks.iter().map(|hook| &**hook)
    }

    fn event(&self) -> Event {
        let mut event = Event::new(self.author.clone());
        event.path.clone_from(&self.path);
        event
    }

    /// Adds an event to the session, as it is.
    fn keep(&self, event: Event) -> Handled {
        Ok(self.session.run().work().add_event(event)?)
    }

    fn model_event(&self, message: &Message, usage: Usage) -> Handled<Event> {
        let mut event = self.event().with_messages([message.clone()]).with_usage(usage);
        event.metadata = Some(Json::from_value(&ByModel { model: self.ready.prompt.model.name() })?);
        if !slots(message).is_empty() {
            event.kind = EventKind::ToolCall;
        }
        Ok(event)
    }
}

#[async_trait]
impl<S: CustomState> Observer for Speaking<'_, S> {
    async fn asking(&self, request: &mut ModelRequest) -> Handled {
        let reminders = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).reminders.clone();
        request.messages.extend(reminders);
        Ok(())
    }

    async fn chunk(&self, chunk: ModelChunk) -> Handled {
        Ok(self.responder.model_chunk(chunk).await?)
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
        let run = self.session.run();
        Ok(run.work().replace(&run.def.name, message, now.clone())?)
    }

    async fn answered(&self, message: &Message, answers: &[Answer], long_running: Vec<String>) -> Handled {
        let mut event = self.event().with_messages([message.clone()]);
        event.kind = EventKind::ToolResult;
        event.actions = actions(answers);
        event.long_running_tool_ids = long_running;
        self.keep(event)
    }
}

fn actions(answers: &[Answer]) -> EventActions {
    let mut all = EventActions::default();
    answers.iter().for_each(|answer| all.merge(&answer.actions));
    all
}
