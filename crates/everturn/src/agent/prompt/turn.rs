//! One turn of a prompt agent.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::floor::{Ended, Floor, converse};
use super::hook::{HookContext, Preparation, StopVerdict};
use super::late::late;
use super::seat::Seat;
use super::shown::shown;
use super::speaking::{Speaking, heard};
use super::team::{Speaker, Team};
use super::{System, template};
use crate::agent::{CustomState, Handled};
use crate::interrupt::{Resume, is_waiting, slots, waits};
use crate::json::Json;
use crate::live::{Session, Turn};
use crate::message::{Message, Role};
use crate::model::{Generated, Generation, ModelRequest};
use crate::schema::Schema;
use crate::snapshot::FinishReason;
use crate::{Error, ErrorKind};

pub(super) async fn run<S: CustomState>(team: &Team<S>, turn: Turn<S>) -> Handled<Option<Json>> {
    let session = turn.session().clone();
    let mut resume = turn.input().resume.as_ref().map(Resume::read).transpose()?;
    check_input(&turn, resume.as_ref())?;
    let before = session.messages();
    // Whoever keeps the state counts no turns, but what was said before shows.
    let is_first = turn.index() == 0 && before.len() == turn.input().messages.len();
    session.run().restore_earlier()?;
    let context = Arc::new(HookContext::new(session.clone(), turn.input().clone()));
    let floor = Floor { team, session: session.clone(), context, call: None };
    if resume.is_none() && is_first {
        let root = Speaking::new(&floor, 0);
        let start = async {
            for hook in root.hooks() {
                heard("session_start", hook.session_start(&root.context).await)?;
            }
            Ok(())
        };
        root.noted(start).await?;
    }
    let mut first = first(team, &session)?;
    if let Some(late) = resume.as_ref().and_then(|resume| late(team, &before, resume)) {
        resume = None;
        // An attempt that died has taken it in already.
        if session.messages().len() == before.len() {
            Speaking::new(&floor, late.member).add_late(&late.message)?;
            first = late.member;
        }
    }
    let ended = converse(&floor, first, resume).await?;
    turn.finish_reason(ended.generated.finish_reason)?;
    Ok(ended.output)
}

/// Who speaks first.
fn first<S: CustomState>(team: &Team<S>, session: &Session<S>) -> Handled<usize> {
    let messages = session.messages();
    match team.speaker(&messages, None) {
        Speaker::Member(member) => Ok(member),
        Speaker::Gone(path) if messages.last().is_some_and(is_waiting) => Err(Error::new(
            ErrorKind::WrongMode,
            format!("agent {path:?} waits for an answer and is not there any more: bring it back, or start before the question"),
        )
        .into()),
        Speaker::Gone(_) => Ok(0),
    }
}

/// Lets one agent speak until it has answered, handed over or must ask.
pub(super) async fn speak<S: CustomState>(speaking: &Speaking<'_, S>, resume: Option<Resume>) -> Handled<Ended> {
    let ready = speaking.ready;
    let generated = generate(speaking, resume).await?;
    if !generated.asked.is_empty() {
        for hook in speaking.hooks() {
            heard("on_interrupt", hook.on_interrupt(&speaking.context, &generated.asked).await)?;
        }
    }
    for hook in speaking.hooks() {
        heard("after_generation", hook.after_generation(&speaking.context, &generated).await)?;
    }
    let output = match (&ready.output, generated.finish_reason) {
        (Some(schema), FinishReason::Stop) if !generated.actions.ends_generation() => {
            Some(output(schema, ready.prompt.model.name(), &generated.message)?)
        }
        _ => None,
    };
    Ok(Ended { generated, output })
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
    if said.iter().any(|message| Seat::of(message) != Seat::default()) {
        return Err(
            Error::invalid("a message that is sent belongs to no sub-agent: leave out `metadata.agentPath`").into()
        );
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
            .tools(speaking.ready.tools.iter().cloned())
            .tool_mode(prompt.mode)
            .max_iterations(left);
        if let Some(resume) = resume.take() {
            generation = generation.resume(resume);
        }
        let generated = generation.observed(speaking).await?;
        left = left.saturating_sub(generated.iterations);
        let handed_over = speaking.team.next(speaking.at, &generated.actions).is_some();
        if generated.finish_reason == FinishReason::Interrupted || handed_over {
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
        speaking.tell(&more.join("\n"))?;
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
    let mut messages = shown(session.model_messages(), &speaking.seat, &speaking.team.root().name);
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
