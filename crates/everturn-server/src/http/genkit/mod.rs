//! The wire of Genkit's JavaScript client: one input a request, chunks as frames, a result at the end.

mod frames;
mod request;
mod turn;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use everturn::{AgentClient, ErrorKind, Registry};

use super::body::{Refused, json_text};
use super::identify::demand;
use super::large::away;
use super::problem::Problem;
use crate::auth::{Identity, Right};
pub(super) use turn::last_frame;

use request::{Lookup, read_lookup, read_snapshot_id, read_turn};

#[derive(Clone)]
struct Hosted {
    agents: Arc<Registry>,
}

impl Hosted {
    /// An agent for whoever asks. One of an app they do not reach is as unknown to them as one that does not exist, so
    /// this is asked before anything that could tell the two apart.
    fn agent(&self, name: &str, identity: &Identity) -> Result<Arc<dyn AgentClient>, Problem> {
        let agent = self.agents.get(name).filter(|agent| identity.reaches(&agent.info().app));
        let agent = agent.ok_or_else(|| Problem::not_found(format!("there is no agent '{name}' here")))?;
        Ok(agent.for_user(identity.user.clone()))
    }
}

/// The agent's name in the path, refused in JSON where it is no text.
struct Named(String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = Path::from_request_parts(parts, state).await;
        name.map(|Path(name)| Self(name)).map_err(|bad| Problem::invalid(bad.body_text()))
    }
}

/// The routes below `/genkit`.
pub(super) fn routes(agents: Registry) -> Router {
    Router::new()
        .route("/{name}", post(turn))
        .route("/{name}/getSnapshot", post(snapshot))
        .route("/{name}/waitForSnapshot", post(wait))
        .route("/{name}/abort", post(abort))
        .with_state(Hosted { agents: Arc::new(agents) })
}

async fn turn(
    State(hosted): State<Hosted>,
    Named(name): Named,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    let agent = hosted.agent(&name, &identity)?;
    demand(&identity, Right::Write)?;
    let body = body(request).await?;
    let read = away(body.len(), move || read_turn(&body)).await.map_err(refused)?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let streams = accept.contains("text/event-stream");
    match read {
        Ok(turn) if streams => Ok(turn::streamed(agent, turn)),
        Ok(turn) => turn::plain(agent, turn).await,
        Err(problem) if streams => Ok(turn::refused_stream(&problem)),
        Err(problem) => Err(problem),
    }
}

async fn snapshot(
    State(hosted): State<Hosted>,
    Named(name): Named,
    Extension(identity): Extension<Identity>,
    request: Request,
) -> Result<Response, Problem> {
    let agent = hosted.agent(&name, &identity)?;
    demand(&identity, Right::Read)?;
    let body = body(request).await?;
    let lookup = read_lookup(&body)?;
    let missing = |what: &str, id: &str| Problem::not_found(format!("{what} '{id}' not found for agent '{name}'."));
    let (found, missing) = match &lookup {
        Lookup::Snapshot(id) => {
            // Whether the agent keeps snapshots at all is asked first, whatever the id looks like.
            let found = match id.parse() {
                Ok(id) => agent.snapshot(id).await?,
                Err(_) => agent.snapshot(wire::NO_SNAPSHOT).await?,
            };
            (found, missing("Snapshot", id))
        }
        Lookup::Session(id) => (agent.latest(id).await?, missing("Session", id.as_str())),
    };
    let found = found.ok_or(missing)?;
    Ok(wire::answer(&wire::snapshot(found)?))
}

/// How long somebody may wait for a turn in one request; who wants to wait longer asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Answers when the turn behind a snapshot has ended.
async fn wait(
    State(hosted): State<Hosted>,
    Named(name): Named,
    Extension(identity): Extension<Identity>,
    request: Request,
) -> Result<Response, Problem> {
    let agent = hosted.agent(&name, &identity)?;
    demand(&identity, Right::Read)?;
    let id = read_snapshot_id(&body(request).await?)?;
    let found = match agent.wait(id.parse().unwrap_or(wire::NO_SNAPSHOT), Some(LONGEST_WAIT)).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Problem::not_found(format!("Snapshot '{id}' not found for agent '{name}'.")));
        }
        found => found?,
    };
    Ok(wire::answer(&wire::snapshot(found)?))
}

/// Aborts the turn behind a snapshot. Genkit's client is told what it was before, and nothing if there is none.
async fn abort(
    State(hosted): State<Hosted>,
    Named(name): Named,
    Extension(identity): Extension<Identity>,
    request: Request,
) -> Result<Response, Problem> {
    let agent = hosted.agent(&name, &identity)?;
    demand(&identity, Right::Write)?;
    let id = read_snapshot_id(&body(request).await?)?;
    let status = agent.abort(id.parse().unwrap_or(wire::NO_SNAPSHOT)).await?;
    Ok(wire::answer(&wire::Aborted { snapshot_id: id, status }))
}

async fn body(request: Request) -> Result<String, Problem> {
    json_text(request).await.map_err(refused)
}

fn refused(refused: Refused) -> Problem {
    Problem::invalid(refused.why).code(refused.status)
}
