//! The word goes round: one agent speaks after the other until one has answered.

use std::sync::Arc;

use super::hook::HookContext;
use super::seat;
use super::speaking::Speaking;
use super::team::{TRANSFER, Team, Transfer};
use super::turn::speak;
use crate::agent::{CustomState, Failure, Handled};
use crate::interrupt::{Resume, slots};
use crate::json::Json;
use crate::live::Session;
use crate::message::Message;
use crate::model::Generated;

/// How often the conversation may be handed over before somebody must have answered.
const MAX_TRANSFERS: usize = 16;

/// One conversation among the agents of a team.
pub(super) struct Floor<'a, S> {
    pub(super) team: &'a Team<S>,
    pub(super) session: Session<S>,
    pub(super) context: Arc<HookContext<S>>,
    /// The call it happens in, if it happens in one.
    pub(super) call: Option<String>,
}

/// What a conversation came to.
pub(super) struct Ended {
    pub(super) generated: Generated,
    pub(super) output: Option<Json>,
}

/// Lets the agents speak, from the first on, until one has answered or a person must.
pub(super) async fn converse<S: CustomState>(
    floor: &Floor<'_, S>,
    first: usize,
    mut resume: Option<Resume>,
) -> Handled<Ended> {
    let team = floor.team;
    let mut trail = vec![first];
    loop {
        let at = trail[trail.len() - 1];
        let speaking = Speaking::new(floor, at);
        let ended = speaking.noted(speak(&speaking, resume.take())).await?;
        let Some(next) = team.next(at, &ended.generated.actions) else { return Ok(ended) };
        trail.push(next);
        if trail.len() > MAX_TRANSFERS + 1 {
            let round: Vec<_> = trail.iter().map(|member| team.member(*member).name.as_str()).collect();
            return Err(Failure::new(
                "RESOURCE_EXHAUSTED",
                format!(
                    "the conversation was handed over {MAX_TRANSFERS} times in one turn and nobody answered: {}; \
                     say in their instructions who answers what",
                    round.join(" → ")
                ),
            ));
        }
        hand_over(floor, at, next, &ended.generated)?;
    }
}

/// Tells whoever goes on, unless it sees the call that handed over to it.
fn hand_over<S: CustomState>(floor: &Floor<'_, S>, from: usize, to: usize, generated: &Generated) -> Handled {
    let (from, member) = (floor.team.member(from), floor.team.member(to));
    if seat::is_self_or_above(&from.path, &member.path) {
        return Ok(());
    }
    let transfer = Transfer { agent: member.name.clone(), message: note(generated, &member.name) };
    let message = seat::handed_by(&Message::user(transfer.told(&from.name)), &from.path);
    let to = Speaking::new(floor, to);
    let mut event = to.event().with_messages([to.seat.sign(&message)]);
    event.author.clone_from(&from.name);
    to.keep(event)
}

/// What the model wanted them to know.
fn note(generated: &Generated, to: &str) -> Option<String> {
    let transfers = slots(&generated.message).into_iter().filter(|slot| slot.request.name == TRANSFER);
    let mut given = transfers.filter_map(|slot| slot.request.input?.to::<Transfer>().ok());
    given.find(|transfer| transfer.agent == to)?.message
}
