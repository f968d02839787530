//! A turn over Genkit's wire.

use std::convert::Infallible;
use std::error::Error as _;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use everturn::{AgentClient, Error, ErrorKind, SchemaViolation, TurnError};
use futures_util::stream::unfold;
use tracing::Instrument as _;

use super::frames::{Frame, frame};
use super::request::Turn;
use super::wire::{self, AgentOutput};
use crate::http::large::away;
use crate::http::problem::Problem;
use crate::http::queue::{self, Frames};

/// A turn whose client waits for its result. A client that goes away drops this, and that aborts the turn.
pub(super) async fn plain(agent: Arc<dyn AgentClient>, turn: Turn) -> Result<Response, Problem> {
    let result = run(agent, turn, |_| async { true }).await?;
    let written = away(result.weight(), move || wire::answer(&result)).await;
    written.map_err(|refused| Problem::invalid(refused.why).code(refused.status))
}

/// A turn whose client follows it, frame by frame. The last frame is a result or an error, whatever happens.
pub(super) fn streamed(agent: Arc<dyn AgentClient>, turn: Turn) -> Response {
    let (frames, queue) = queue::frames();
    tokio::spawn(follow(agent, turn, frames).in_current_span());
    let body = unfold(queue, |mut queue| async { queue.next().await.map(|frame| (Ok::<_, Infallible>(frame), queue)) });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(body)).into_response()
}

/// A request that could not even be read, told as its stream's only frame: the client looks for it there.
pub(super) fn refused_stream(problem: &Problem) -> Response {
    ([(CONTENT_TYPE, "text/event-stream")], last_frame(problem)).into_response()
}

/// The frame of an error, which is the last one.
pub(in crate::http) fn last_frame(problem: &Problem) -> String {
    frame::<()>(&Frame::Error(&problem.error)).unwrap_or_else(|_| UNWRITABLE.to_owned())
}

/// What is sent when not even an error can be written.
const UNWRITABLE: &str = "data: {\"error\":{\"status\":\"INTERNAL\",\"message\":\"internal error\"}}\n\n";

async fn follow(agent: Arc<dyn AgentClient>, turn: Turn, frames: Frames) {
    let sender = frames.clone();
    let send = move |text: String| {
        let sender = sender.clone();
        async move { sender.send(text).await }
    };
    // In a task of its own, so that even a panic here ends the stream with a frame.
    let work = tokio::spawn(async move { run(agent, turn, send).await }.in_current_span());
    let abort = work.abort_handle();
    let result = tokio::select! {
        done = work => done,
        () = frames.closed() => {
            // The client of an attached turn went away: dropping the connection aborts the turn.
            abort.abort();
            return;
        }
    };
    let last = match result {
        Ok(Ok(result)) => frame(&Frame::Result(&result)),
        Ok(Err(problem)) => frame::<()>(&Frame::Error(&problem.error)),
        Err(_) => frame::<()>(&Frame::Error(&TurnError::new("INTERNAL", "internal error"))),
    };
    match last {
        Ok(text) => {
            frames.send(text).await;
        }
        Err(error) => {
            tracing::error!(%error, "a result could not be written");
            frames.send(UNWRITABLE.to_owned()).await;
        }
    }
}

/// Runs a turn and hands on its frames, as long as somebody takes them.
async fn run<F, Fut>(agent: Arc<dyn AgentClient>, turn: Turn, send: F) -> Result<AgentOutput, Problem>
where
    F: Fn(String) -> Fut,
    Fut: Future<Output = bool>,
{
    let Turn { input, init, unknown_snapshot, state } = turn;
    let mut connection = match agent.connect(init).await {
        Ok(connection) => connection,
        Err(error) => return refused(error, unknown_snapshot, state),
    };
    connection.send(input).await?;
    connection.close();
    while let Some(chunk) = connection.receive().await {
        for chunk in wire::chunks(chunk) {
            if !send(frame::<()>(&Frame::Message(&chunk))?).await {
                return Err(Problem::new("CANCELLED", "the client went away"));
            }
        }
    }
    let output = connection.output().await?;
    Ok(wire::output(output, agent.info().state_management)?)
}

/// A start that was refused: some are errors to Genkit's client, some results.
fn refused(
    error: Error,
    unknown_snapshot: Option<String>,
    state: Option<everturn::Json>,
) -> Result<AgentOutput, Problem> {
    let breaks_schema = error.source().is_some_and(|source| source.is::<SchemaViolation>());
    match error.kind() {
        ErrorKind::NotFound => {
            let error = match unknown_snapshot {
                Some(id) => TurnError::new("NOT_FOUND", format!("Snapshot {id} not found")),
                None => TurnError::from(&error),
            };
            Ok(wire::failed(error, state))
        }
        ErrorKind::NotResumable => Ok(wire::failed(TurnError::from(&error), state)),
        _ if breaks_schema => Ok(wire::failed(TurnError::from(&error), state)),
        _ => Err(error.into()),
    }
}
