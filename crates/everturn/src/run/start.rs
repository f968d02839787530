//! Where an invocation starts: the table of what may be given, row by row.

use std::sync::Arc;

use super::work::{Content, Work};
use super::{Known, Next, Place};
use crate::agent::Init;
use crate::agent::definition::Definition;
use crate::aside::{away, is_large};
use crate::json::Json;
use crate::session::SessionKey;
use crate::snapshot::SnapshotStatus;
use crate::state::SessionState;
use crate::store::{At, CreateSession, SnapshotRef, Store};
use crate::turn::{Changes, CustomChange, TurnStatus};
use crate::{BranchName, Error, ErrorKind, Result, UserId};

/// What an invocation starts with.
pub(crate) struct Started {
    pub(crate) work: Work,
    pub(crate) place: Place,
}

/// Finds out where an invocation starts, or refuses it before any work.
pub(crate) async fn resolve(def: &Arc<Definition>, user: &UserId, init: Init) -> Result<Started> {
    match &def.store {
        None => {
            let def = def.clone();
            match is_large(init.state.as_ref().map_or(0, weight)) {
                true => away(move || client_managed(&def, init)).await,
                false => client_managed(&def, init),
            }
        }
        Some(store) => stored(def, &**store, user, init).await,
    }
}

fn place(init: &Init, def: &Definition, key: Option<SessionKey>, next: Next) -> Place {
    Place {
        key,
        branch: init.branch.clone(),
        next,
        expect: init.expect,
        turn_key: init.key.clone(),
        busy: init.busy.unwrap_or(def.busy),
        begun: None,
        point: None,
        on_head: false,
        digest: None,
        last_snapshot: Known::NotYet,
        snapshot_ids: Vec::new(),
        finish_reason: None,
        error: None,
        in_doubt: None,
        output: None,
        index: 0,
        turn_index: 0,
        serial: 0,
        span: tracing::Span::none(),
        checked: None,
    }
}

fn client_managed(def: &Arc<Definition>, init: Init) -> Result<Started> {
    let given = [
        ("snapshotId", init.snapshot.is_some()),
        ("sessionId", init.session.is_some()),
        ("a point", init.point.is_some()),
        ("a branch", init.branch.is_some()),
        ("an expected head", init.expect.is_some()),
        ("an idempotency key", init.key.is_some()),
    ];
    if let Some((what, _)) = given.into_iter().find(|(_, given)| *given) {
        return Err(Error::new(
            ErrorKind::WrongMode,
            format!(
                "cannot use {what} with agent '{}': it has no store (client-managed state), send `state` instead",
                def.name
            ),
        ));
    }
    if init.state.is_some() && init.initial.is_some() {
        return Err(Error::invalid("give a state or an initial custom state, not both"));
    }
    if init.state.is_none() && init.signature.is_some() {
        return Err(Error::invalid("a signature was given without the state it is for"));
    }
    let state = match init.state.clone() {
        Some(state) => {
            if let Some(keys) = &def.signing {
                keys.verify(&def.name, &state, init.signature.as_deref())?;
            }
            state
        }
        None => {
            SessionState { session_id: None, messages: Vec::new(), custom: init.initial.clone(), artifacts: Vec::new() }
        }
    };
    check_custom(def, state.custom.as_ref())?;
    let session = state.session_id.clone().unwrap_or_else(|| def.session_id());
    let work = Work::new(session, content_of(state)?);
    Ok(Started { work, place: place(&init, def, None, Next::Working) })
}

/// About how many bytes a state has.
fn weight(state: &SessionState) -> usize {
    let messages = state.messages.iter().map(|message| message.as_str().len());
    let parts = state.artifacts.iter().flat_map(|artifact| &artifact.parts).map(|part| part.as_str().len());
    messages.chain(parts).sum::<usize>() + state.custom.as_ref().map_or(0, |custom| custom.as_str().len())
}

fn content_of(state: SessionState) -> Result<Content> {
    let mut content = Content::default();
    for message in state.messages {
        content.messages.push(message.without_snapshot_id()?);
    }
    state.artifacts.iter().try_for_each(crate::Artifact::check)?;
    if let Some(custom) = &state.custom {
        crate::state::refuse_prefixed(custom)?;
    }
    content.custom = state.custom;
    content.artifacts = Arc::new(state.artifacts.into_iter().map(Arc::new).collect());
    Ok(content)
}

/// Checks a custom state in the shape this agent knows.
pub(crate) fn check_custom(def: &Definition, custom: Option<&Json>) -> Result<()> {
    // An absent custom state is never wrong.
    let (Some(schema), Some(custom)) = (&def.schema, custom) else { return Ok(()) };
    schema.check(custom, "the custom state does not fit the agent's state schema")
}

async fn stored(def: &Arc<Definition>, store: &dyn Store, user: &UserId, init: Init) -> Result<Started> {
    if init.state.is_some() || init.signature.is_some() {
        return Err(Error::new(
            ErrorKind::WrongMode,
            format!(
                "cannot send `state` to agent '{}': it uses a server-managed store, send a snapshotId or a sessionId instead",
                def.name
            ),
        ));
    }
    if let Some(turn) = init.retry {
        return at_turn(def, store, user, &init, turn).await;
    }
    match (init.snapshot, init.point) {
        (Some(_), Some(_)) => Err(Error::invalid("give a snapshot or a point, not both")),
        (Some(id), None) => at_snapshot(def, store, user, init, id).await,
        (None, Some(point)) => {
            let session = init.session.clone().ok_or_else(|| Error::invalid("a point needs the session it is of"))?;
            refuse_initial(&init)?;
            let key = SessionKey::new(def.app.clone(), user.clone(), session);
            own_session(def, store, &key).await?.ok_or_else(|| no_session(&key))?;
            check_stored(def, store, At::Point(key.clone(), point)).await?;
            Ok(begin_at(def, &init, key, Next::Point(point)))
        }
        (None, None) => by_session(def, store, user, init).await,
    }
}

fn no_session(key: &SessionKey) -> Error {
    Error::not_found(format!("there is no session {key}: check app, user and id, or create it"))
}

fn refuse_initial(init: &Init) -> Result<()> {
    match init.initial {
        Some(_) => Err(Error::invalid("an initial state is for a fresh session only: leave it out")),
        None => Ok(()),
    }
}

fn begin_at(def: &Definition, init: &Init, key: SessionKey, next: Next) -> Started {
    let work = Work::new(key.id.clone(), Content::default());
    Started { work, place: place(init, def, Some(key), next) }
}

async fn at_snapshot(
    def: &Arc<Definition>,
    store: &dyn Store,
    user: &UserId,
    init: Init,
    id: crate::SnapshotId,
) -> Result<Started> {
    refuse_initial(&init)?;
    let unknown = || Error::not_found(format!("snapshot {id} not found for agent '{}'", def.name));
    let snapshot = store.snapshot(SnapshotRef::Id(id)).await?.ok_or_else(unknown)?;
    let key = snapshot.session.clone().ok_or_else(unknown)?;
    if key.app != def.app || key.user != *user {
        return Err(unknown());
    }
    let owner = store.session(&key).await?.ok_or_else(unknown)?;
    if owner.agent.as_ref().is_some_and(|agent| *agent != def.name) {
        return Err(unknown());
    }
    if let Some(wanted) = init.session.as_ref().filter(|wanted| **wanted != key.id) {
        return Err(Error::invalid(format!(
            "snapshot {id} does not belong to session {wanted} (it belongs to {}): leave one of them out",
            key.id
        )));
    }
    if snapshot.status != SnapshotStatus::Completed {
        let status = Json::from_value(&snapshot.status)?;
        return Err(Error::not_resumable(format!(
            "snapshot {id} is not resumable (status: {}): only 'completed' snapshots can be resumed",
            status.as_str().trim_matches('"')
        )));
    }
    check_stored(def, store, At::Snapshot(id)).await?;
    Ok(begin_at(def, &init, key, Next::Snapshot(id)))
}

/// Where a turn that died had started.
async fn at_turn(
    def: &Arc<Definition>,
    store: &dyn Store,
    user: &UserId,
    init: &Init,
    id: crate::TurnId,
) -> Result<Started> {
    let unknown = || Error::not_found(format!("turn {id} not found for agent '{}'", def.name));
    let turn = store.turn(id).await?.ok_or_else(unknown)?;
    let owned = turn.session.app == def.app && turn.session.user == *user;
    if !owned || turn.agent.as_ref().is_some_and(|agent| *agent != def.name) {
        return Err(unknown());
    }
    match turn.status {
        _ if turn.ended.is_some_and(|ended| ended.outcome.lost) => {
            Ok(begin_at(def, init, turn.session, Next::TakeOver(id)))
        }
        TurnStatus::Dead => Ok(begin_at(def, init, turn.session, Next::TakeOver(id))),
        TurnStatus::Running => Err(Error::busy(format!("turn {id} is still running: wait for it, or abort it first"))),
        TurnStatus::Completed | TurnStatus::Failed | TurnStatus::Aborted => {
            Err(Error::conflict(format!("turn {id} has ended already: send its input as a new turn")))
        }
    }
}

async fn by_session(def: &Arc<Definition>, store: &dyn Store, user: &UserId, init: Init) -> Result<Started> {
    let named = init.session.clone().or_else(|| def.default_session.clone());
    let id = named.clone().unwrap_or_else(|| def.session_id());
    let key = SessionKey::new(def.app.clone(), user.clone(), id.clone());
    // Whether the session is there, and whose it is, is told by the begin where nothing hangs on it before.
    let looks = init.initial.is_some() || init.branch.is_some() || def.compaction.is_some() || checks_stored(def);
    let found = if named.is_some() && looks { own_session(def, store, &key).await? } else { None };
    if found.is_some() {
        refuse_initial(&init)?;
        let branch = init.branch.clone().unwrap_or_default();
        check_stored(def, store, At::Head(key.clone(), branch)).await?;
        return Ok(begin_at(def, &init, key, Next::Head));
    }
    if let Some(branch) = init.branch.as_ref().filter(|branch| **branch != BranchName::main()) {
        return Err(Error::not_found(format!("there is no session {key} that has a branch {branch:?}")));
    }
    check_custom(def, init.initial.as_ref())?;
    let mut create = CreateSession::at(key.clone());
    create.agent = Some(def.name.clone());
    if named.is_none() && init.key.is_some() {
        // A retried first request must find the session its first try made: the store derives the id from the key.
        create.id = None;
    }
    let mut changes = Changes::new();
    // Whatever custom state it is given first, by the first input too, has the present shape.
    changes.schema_version = Some(def.upcasters.version()).filter(|version| *version > 0);
    if let Some(initial) = &init.initial {
        crate::state::refuse_prefixed(initial)?;
        changes.custom = Some(CustomChange::Set(initial.clone()));
    }
    create.changes = changes;
    let work = Work::new(id, Content { custom: init.initial.clone(), ..Content::default() });
    Ok(Started { work, place: place(&init, def, Some(key), Next::Fresh(Box::new(create))) })
}

async fn own_session(def: &Definition, store: &dyn Store, key: &SessionKey) -> Result<Option<crate::SessionRecord>> {
    let found = store.session(key).await?;
    match &found {
        Some(record) if record.agent.as_ref().is_some_and(|agent| *agent != def.name) => {
            Err(Error::of_another_agent(&key.id))
        }
        _ => Ok(found),
    }
}

/// Whether a stored state can be one that this agent cannot go on with.
fn checks_stored(def: &Definition) -> bool {
    def.schema.is_some() || def.upcasters.version() > 0
}

/// Refuses a state that this agent cannot go on with, where that can be told before a turn begins.
async fn check_stored(def: &Definition, store: &dyn Store, at: At) -> Result<()> {
    if !checks_stored(def) {
        return Ok(());
    }
    let Some(state) = store.state(at).await? else { return Ok(()) };
    let custom = def.upcasters.apply(state.schema_version(), state.custom().cloned())?;
    check_custom(def, custom.as_ref())
}
