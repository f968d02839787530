//! One turn of a prompt agent.

use std::sync::Mutex;

use sha2::{Digest as _, Sha256};

use super::hook::{HookContext, Preparation, StopVerdict};
use super::speaking::{Speaking, heard};
use super::{Ready, System, template};
use crate::agent::{CustomState, Handled};
use crate::event::Event;
use crate::interrupt::{Resume, is_waiting, slots, waits};
use crate::json::Json;
use crate::live::{Session, Turn};
use crate::message::{Message, Role};
use crate::model::{Generated, Generation, ModelRequest};
use crate::schema::Schema;
use crate::snapshot::FinishReason;
use crate::{Error, ErrorKind};

pub(super) async fn run<S: CustomState>(ready: &Ready<S>, turn: Turn<S>) -> Handled<Option<Json>> {
    let session = turn.session().clone();
    let resume = turn.input().resume.as_ref().map(Resume::read).transpose()?;
    check_input(&turn, resume.as_ref())?;
    // Whoever keeps the state counts no turns, but what was said before shows.
    let is_first = turn.index() == 0 && turn.messages().len() == turn.input().messages.len();
    session.run().restore_earlier()?;
    let author = session.run().def.name.to_string();
    let speaking = Speaking {
        ready,
        path: author.clone(),
        author,
        session: session.clone(),
        responder: turn.responder(),
        context: HookContext::new(session.clone(), turn.input().clone()),
        prepared: Mutex::default(),
    };
    if resume.is_none() && is_first {
        for hook in speaking.hooks() {
            heard("session_start", hook.session_start(&speaking.context).await)?;
        }
    }
    let generated = generate(&speaking, resume).await?;
    if !generated.asked.is_empty() {
        for hook in speaking.hooks() {
            heard("on_interrupt", hook.on_interrupt(&speaking.context, &generated.asked).await)?;
        }
    }
    for hook in speaking.hooks() {
        heard("after_generation", hook.after_generation(&speaking.context, &generated).await)?;
    }
    turn.finish_reason(generated.finish_reason)?;
    match (&ready.output, generated.finish_reason) {
        (Some(schema), FinishReason::Stop) => output(schema, ready.prompt.model.name(), &generated.message).map(Some),
        _ => Ok(None),
    }
}

/// A turn is given what a user says, or answers to what was asked, and never both.
fn check_input<S: CustomState>(turn: &Turn<S>, resume: Option<&Resume>) -> Handled {
    let said = &turn.input().messages;
    if said.iter().any(|message| message.role() != Role::User) {
        return Err(Error::invalid(
            "a turn is given messages of the role `user` only: the others are said by the agent",
        )
        .into());
    }
    let messages = turn.messages();
    let before = messages.len().checked_sub(said.len() + 1).and_then(|index| messages.get(index));
    match (resume, before) {
        (Some(_), _) if !said.is_empty() => {
            Err(Error::invalid("send answers (`resume`) and messages in turns of their own").into())
        }
        (None, Some(before)) if is_waiting(before) => Err(waits(slots(before).iter())),
        (None, _) if said.is_empty() && turn.input().data.is_none() => {
            Err(Error::new(ErrorKind::Invalid, "the turn was given nothing to answer: send a message").into())
        }
        _ => Ok(()),
    }
}

/// Asks until the model has answered and no hook wants more.
async fn generate<S: CustomState>(speaking: &Speaking<'_, S>, mut resume: Option<Resume>) -> Handled<Generated> {
    let prompt = &speaking.ready.prompt;
    let mut left = prompt.max_iterations;
    loop {
        let request = request(speaking).await?;
        let mut generation = Generation::new(&*prompt.model, request)
            .tools(prompt.tools.iter().cloned())
            .tool_mode(prompt.mode)
            .max_iterations(left);
        if let Some(resume) = resume.take() {
            generation = generation.resume(resume);
        }
        let generated = generation.observed(speaking).await?;
        left = left.saturating_sub(generated.iterations);
        if generated.finish_reason == FinishReason::Interrupted {
            return Ok(generated);
        }
        let mut more = Vec::new();
        for hook in speaking.hooks() {
            if let Some(StopVerdict::GoOn(why)) =
                heard("on_stop", hook.on_stop(&speaking.context, &generated.message).await)?
            {
                more.push(why);
            }
        }
        if more.is_empty() {
            return Ok(generated);
        }
        let event = Event::user(Message::user(more.join("\n")));
        speaking.session.run().work().add_event(event)?;
    }
}

/// What the model is asked: instructions, preamble, and the conversation as the session shows it.
async fn request<S: CustomState>(speaking: &Speaking<'_, S>) -> Handled<ModelRequest> {
    let prompt = &speaking.ready.prompt;
    let session = &speaking.session;
    let system = match &prompt.system {
        None => None,
        Some(System::Template(text)) if template::has_keys(text) => {
            Some(template::render(text, &session.state().await?.all()?)?)
        }
        Some(System::Template(text)) => Some(text.clone()),
        Some(System::Function(instructions)) => Some(instructions(session)?),
    };
    let mut messages = session.model_messages();
    // Calls that are still to be answered are gone on with as they are stored, whatever hooks make of the rest.
    let unanswered = messages.pop_if(|last| !slots(last).is_empty());
    let mut prepared = Preparation { system, messages, reminders: Vec::new() };
    for hook in speaking.hooks() {
        heard("before_generation", hook.before_generation(&speaking.context, &mut prepared).await)?;
    }
    let system = prepared.system.as_ref().map(|text| Message::of_text(Role::System, text));
    let messages = system.into_iter().chain(prompt.preamble.iter().cloned()).chain(prepared.messages.iter().cloned());
    let mut request = ModelRequest::new(messages.chain(unanswered).collect());
    request.config.clone_from(&prompt.config);
    request.output_schema = speaking.ready.output.as_ref().map(|schema| schema.json().clone());
    request.cache_key = Some(cache_key(session));
    *speaking.prepared.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = prepared;
    Ok(request)
}

/// The same for all requests of a session, and nothing can be learnt from it.
fn cache_key<S: CustomState>(session: &Session<S>) -> String {
    let run = session.run();
    let mut hash = Sha256::new();
    for part in [run.def.app.as_str(), run.user.as_str(), session.id().as_str()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    // Half of it tells sessions apart, and fits what providers take.
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The model's answer as the value it was asked for.
fn output(schema: &Schema, model: &str, message: &Message) -> Handled<Json> {
    let text = message.text();
    let bare = text.trim();
    // Models like to wrap JSON in a fence even when they are asked not to.
    let bare = bare
        .strip_prefix("```json")
        .or_else(|| bare.strip_prefix("```"))
        .map_or(bare, |rest| rest.trim_end().strip_suffix("```").unwrap_or(rest));
    let json = Json::parse(bare).map_err(|error| {
        Error::invalid(format!("model {model} was asked for JSON and answered something else")).with_source(error)
    })?;
    schema.check(&json, format_args!("what model {model} answered does not fit the output schema"))?;
    Ok(json)
}
