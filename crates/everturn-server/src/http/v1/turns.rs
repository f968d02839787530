//! Turns: one input and all it led to, answered at its end or as a stream.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json as JsonBody;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse as _, Response};
use everturn::{
    BranchName, Connection, Error, ErrorKind, Init, Input, Json, Message, Point, SessionId, SessionState, SnapshotId,
    Spot, StateDelta, StateManagement, TurnKey,
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::agents::AgentPath;
use super::caller::Own;
use super::extract::{Asked, Sent, etag, given, given_object, header, if_match, object};
use super::output::{Answer, WithState};
use super::problem::Problem;
use super::stream;
use crate::http::large::away;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A turn to run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TurnRequest {
    /// What the agent is given.
    #[serde(deserialize_with = "object")]
    input: TurnInput,
    /// The session to go on with, or to make under that id.
    #[schema(value_type = Option<String>)]
    session: Option<SessionId>,
    /// The snapshot to start at.
    #[schema(value_type = Option<String>, format = "uuid")]
    snapshot: Option<SnapshotId>,
    /// The branch to go on with.
    #[schema(value_type = Option<String>)]
    branch: Option<BranchName>,
    /// The custom state a fresh session begins with.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>)]
    initial: Option<Json>,
    /// The state to start with, for agents whose callers keep it.
    #[serde(default, deserialize_with = "given_object")]
    #[schema(value_type = Option<Object>)]
    state: Option<SessionState>,
    /// What proves that the state was handed out by the agent, where states are signed.
    signature: Option<String>,
}

/// What an agent is given. At least one member.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TurnInput {
    /// What the user says: short for one message.
    text: Option<String>,
    /// What the user says.
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Vec<Message>>,
    /// Structured input beside or instead of messages.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>)]
    data: Option<Json>,
    /// Answers to what an interrupted turn asked.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>)]
    resume: Option<Json>,
    /// Go on in the background: the answer names a pending snapshot to look at.
    #[serde(default)]
    detach: bool,
    /// State to change before the turn, by prefixed key.
    #[serde(default, deserialize_with = "given_object")]
    state_delta: Option<Delta>,
}

/// A change of state, by prefixed key.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Delta {
    /// Keys with their new values.
    #[serde(default)]
    #[schema(value_type = Object)]
    set: BTreeMap<String, Json>,
    /// Keys that go away.
    #[serde(default)]
    remove: BTreeSet<String>,
}

impl TurnInput {
    fn read(self) -> Result<Input, Problem> {
        let nothing = self.text.is_none()
            && self.messages.is_none()
            && self.data.is_none()
            && self.resume.is_none()
            && self.state_delta.is_none();
        let mut input = match (self.text, self.messages) {
            _ if nothing => {
                return Err(Problem::invalid("`input` is empty: give `text`, `messages`, `data` or `resume`"));
            }
            (Some(_), Some(_)) => return Err(Problem::invalid("give `text` or `messages`, not both")),
            (Some(text), None) => Input::text(text),
            (None, messages) => Input::messages(messages.unwrap_or_default()),
        };
        (input.data, input.resume, input.detach) = (self.data, self.resume, self.detach);
        let Delta { set, remove } = self.state_delta.unwrap_or_default();
        input.state_delta = StateDelta { set, remove };
        Ok(input)
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TurnQuery {
    /// Whether the answer has the state in it. Where callers keep the state it always has.
    state: Option<bool>,
}

/// Runs a turn.
///
/// The answer is the output, or with `Accept: text/event-stream` a stream of events: `begun` with what finds the turn again,
/// `chunk` for each chunk with its position as the id, and `output` or `error` at the end. A stream that breaks off can be
/// followed again; its turn is aborted when nobody has for 30 seconds.
#[utoipa::path(
    post, path = "/agents/{agent}/turns", tag = "turns",
    params(
        AgentPath, TurnQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the turn run once however often it is sent"),
        ("If-Match" = Option<String>, Header, description = "Where the branch's head must stand, as an ETag"),
    ),
    request_body = TurnRequest,
    responses(
        (status = OK, content(
            (ref("#/components/schemas/Output") = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
        (status = CONFLICT, body = Problem), (status = PRECONDITION_FAILED, body = Problem),
        (status = PAYLOAD_TOO_LARGE, body = Problem), (status = UNSUPPORTED_MEDIA_TYPE, body = Problem),
        (status = SERVICE_UNAVAILABLE, body = Problem),
    )
)]
pub(super) async fn run(
    own: Own,
    Asked(query): Asked<TurnQuery>,
    headers: HeaderMap,
    Sent(request): Sent<TurnRequest>,
) -> Result<Response, Problem> {
    let managed = own.agent.info().state_management;
    let with_state = WithState::of(managed, query.state);
    let input = request.input.read()?;
    let mut init = Init::new();
    (init.session, init.snapshot, init.branch) = (request.session, request.snapshot, request.branch);
    (init.initial, init.state, init.signature) = (request.initial, request.state, request.signature);
    init.expect = if_match(&headers)?;
    if let Some(key) = header(&headers, &IDEMPOTENCY_KEY)? {
        let key = TurnKey::new(key).map_err(|error| Problem::invalid(format!("`Idempotency-Key`: {error}")))?;
        init.key = Some(key);
    }
    let streaming = headers.get_all(header::ACCEPT).iter().any(|accept| {
        accept.to_str().is_ok_and(|accept| accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream")))
    });
    init.keep_stream = streaming && managed == StateManagement::Server;
    let condition = Condition::of(&init);
    let detach = input.detach;
    let connection = match start(&own, init, input).await {
        Ok(connection) => connection,
        Err(error) => return Err(condition.told(&own, error).await),
    };
    if !streaming {
        return plain(&own, connection, with_state, &condition).await;
    }
    match managed {
        StateManagement::Client => Ok(stream::unkept(connection, with_state)),
        StateManagement::Server if detach => {
            stream::ended(plain_output(&own, connection, &condition).await?, with_state)
        }
        StateManagement::Server => match connection.begun().await {
            Some(ticket) => {
                let following = own.agent.follow_turn(ticket.turn, None).await?;
                Ok(stream::live(connection, ticket, following, with_state))
            }
            None => stream::ended(plain_output(&own, connection, &condition).await?, with_state),
        },
    }
}

async fn start(own: &Own, init: Init, input: Input) -> Result<Connection, Error> {
    let mut connection = own.agent.connect(init).await?;
    connection.send(input).await?;
    connection.close();
    Ok(connection)
}

async fn plain_output(
    own: &Own,
    mut connection: Connection,
    condition: &Condition,
) -> Result<everturn::Output, Problem> {
    match connection.output().await {
        Ok(output) => Ok(output),
        Err(error) => Err(condition.told(own, error).await),
    }
}

async fn plain(
    own: &Own,
    connection: Connection,
    with_state: WithState,
    condition: &Condition,
) -> Result<Response, Problem> {
    let answer = Answer::new(plain_output(own, connection, condition).await?, with_state);
    let head = answer.point.filter(|_| answer.on_head).map(etag);
    let written = away(answer.weight(), move || match head {
        Some(head) => (head, JsonBody(answer)).into_response(),
        None => JsonBody(answer).into_response(),
    });
    Ok(written.await?)
}

/// What `If-Match` asked of a turn.
struct Condition {
    expect: Option<Point>,
    keyed: bool,
    session: Option<SessionId>,
    branch: BranchName,
}

impl Condition {
    fn of(init: &Init) -> Self {
        Self {
            expect: init.expect,
            keyed: init.key.is_some(),
            session: init.session.clone(),
            branch: init.branch.clone().unwrap_or_default(),
        }
    }

    /// The problem of a turn that was refused. A conflict is about the head, or about a key that was used before: with
    /// both given, where the head stands tells which.
    async fn told(&self, own: &Own, error: Error) -> Problem {
        let Some(expect) = self.expect.filter(|_| error.kind() == ErrorKind::Conflict) else { return error.into() };
        if !self.keyed {
            return Problem::conditional(error);
        }
        let head = match (&self.session, own.agent.sessions()) {
            (Some(session), Ok(sessions)) => sessions.point(session, Spot::Branch(self.branch.clone())).await.ok(),
            _ => None,
        };
        if head == Some(expect) { error.into() } else { Problem::conditional(error) }
    }
}
