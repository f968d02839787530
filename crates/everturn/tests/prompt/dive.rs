//! What the tests of Dive's behaviours share: tools that answer or ask, answers by reference, a hook that listens.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use everturn::model::{Generated, Reply};
use everturn::tool::{Tool, ToolError};
use everturn::{
    Agent, Chunk, Failure, Hook, HookContext, HookError, HookResult, Init, Input, Interrupt, Json, Message, Output,
    Preparation, Resume, StopVerdict, ToolAnswer, ToolCall, ToolVerdict,
};

pub(crate) use crate::interrupting::{answer, asked};
use crate::support::{json, sid};
use crate::tools::Count;

/// Requests for tools by name and reference.
pub(crate) fn calls(calls: &[(&str, &str)]) -> Reply {
    Reply::calls(calls.iter().map(|(tool, reference)| (*tool, Some(*reference), "{}")))
}

/// Answers at once, with the reference of the call.
pub(crate) fn ready(ran: &Count) -> Tool {
    let ran = ran.clone();
    Tool::untyped("ready", "Answers.", json("{}"), move |_, context| {
        ran.up();
        async move { Json::from_value(context.reference().unwrap()).map_err(Into::into) }
    })
}

/// Asks a person, and answers with what was said when it is restarted.
pub(crate) fn ask(ran: &Count) -> Tool {
    let ran = ran.clone();
    Tool::untyped("ask", "Asks.", json("{}"), move |_, context| {
        ran.up();
        async move {
            match context.resumed() {
                Some(said) => Ok(said.clone()),
                None => Err(ToolError::interrupt(&format!("{}?", context.reference().unwrap()))),
            }
        }
    })
}

/// Answers some of what is asked, by reference: `a` with `"a!"`.
pub(crate) fn answered(asked: &[Interrupt], references: &[&str]) -> Input {
    let resume = references.iter().fold(Resume::new(), |resume, reference| {
        let question = asked.iter().find(|question| question.reference.as_deref() == Some(reference));
        resume.respond(question.expect("it was asked"), &format!("{reference}!")).unwrap()
    });
    answer(resume)
}

/// The references of what is asked.
pub(crate) fn references(asked: &[Interrupt]) -> Vec<&str> {
    asked.iter().filter_map(|question| question.reference.as_deref()).collect()
}

/// The messages of an output as they are stored: without the name of their snapshot.
pub(crate) fn kept(output: &Output) -> Vec<Message> {
    output.state.messages().iter().map(|message| message.clone().without_snapshot_id().unwrap()).collect()
}

/// The session that most tests are about.
pub(crate) fn here() -> Init {
    Init::session(sid("s"))
}

/// A turn and what it streamed.
pub(crate) async fn streamed(agent: &Agent<Json>, input: Input, init: Init) -> (Vec<Chunk>, Output) {
    let mut connection = agent.connect(init).await.unwrap();
    connection.send(input).await.unwrap();
    let chunks = connection.receive_turn().await;
    (chunks, connection.output().await.unwrap())
}

/// The references of the answers of tools that were streamed.
pub(crate) fn streamed_answers(chunks: &[Chunk]) -> Vec<String> {
    let parts = chunks.iter().filter_map(|chunk| chunk.model_chunk.as_ref()).flat_map(|chunk| &chunk.content);
    parts.filter_map(|part| part.as_tool_response()?.reference).collect()
}

/// What hooks heard, in order.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    /// What was heard since this was asked last.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// What a hook does wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    Fails(&'static str),
    Aborts(&'static str),
}

/// A hook that writes down what it hears, and does something wrong if it is told to.
#[derive(Clone, Default)]
pub(crate) struct Listener {
    pub(crate) name: &'static str,
    pub(crate) heard: Heard,
    pub(crate) wrong: Option<Wrong>,
}

impl Listener {
    pub(crate) fn new(heard: &Heard) -> Self {
        Self { heard: heard.clone(), ..Self::default() }
    }

    pub(crate) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    pub(crate) fn doing(self, wrong: Wrong) -> Self {
        Self { wrong: Some(wrong), ..self }
    }

    fn hear(&self, what: &str, detail: &str) -> HookResult {
        let words = [self.name, what, detail].into_iter().filter(|word| !word.is_empty());
        self.heard.note(words.collect::<Vec<_>>().join(" "));
        match self.wrong {
            Some(Wrong::Fails(which)) if which == what => Err(HookError::Failed(Failure::new("INTERNAL", "oops"))),
            Some(Wrong::Aborts(which)) if which == what => Err(HookError::abort("PERMISSION_DENIED", "not today")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Hook for Listener {
    async fn session_start(&self, _: &HookContext<Json>) -> HookResult {
        self.hear("session_start", "")
    }

    async fn before_generation(&self, _: &HookContext<Json>, _: &mut Preparation) -> HookResult {
        self.hear("before_generation", "")
    }

    async fn before_tool(&self, _: &HookContext<Json>, call: &mut ToolCall) -> HookResult<ToolVerdict> {
        self.hear("before_tool", call.reference.as_deref().unwrap_or_default())?;
        Ok(ToolVerdict::Run)
    }

    async fn after_tool(&self, _: &HookContext<Json>, call: &ToolCall, _: &mut ToolAnswer) -> HookResult {
        self.hear("after_tool", call.reference.as_deref().unwrap_or_default())
    }

    async fn tool_failed(&self, _: &HookContext<Json>, call: &ToolCall, _: &mut ToolAnswer) -> HookResult {
        self.hear("tool_failed", call.reference.as_deref().unwrap_or_default())
    }

    async fn on_interrupt(&self, _: &HookContext<Json>, asked: &[Interrupt]) -> HookResult {
        self.hear("on_interrupt", &references(asked).join(" "))
    }

    async fn on_stop(&self, _: &HookContext<Json>, message: &Message) -> HookResult<StopVerdict> {
        self.hear("on_stop", &message.text())?;
        Ok(StopVerdict::Done)
    }

    async fn after_generation(&self, _: &HookContext<Json>, generated: &Generated) -> HookResult {
        let waits = generated.interrupts();
        self.hear("after_generation", &references(&waits).join(" "))
    }
}
