//! Sessions: made, listed, changed, deleted.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json as JsonBody;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use everturn::store::{Page, Preview, Purged, SessionOrder, UpdateSession};
use everturn::{Json, SessionId, SessionRecord, SessionStatus, Sessions, StateDelta};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::agents::AgentPath;
use super::caller::Own;
use super::extract::{Asked, In, Order, Sent, cursor, etag, given, limit, unconditional};
use super::problem::Problem;

/// A session.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct SessionPath {
    /// The agent's name.
    #[allow(dead_code, reason = "read through `Own`; here it is described")]
    agent: String,
    /// The session's id.
    #[param(value_type = String)]
    pub(super) session: SessionId,
}

/// Some items, and where to go on.
#[derive(Serialize)]
pub(super) struct Items<T> {
    pub(super) items: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<everturn::store::Cursor>,
}

impl<T> From<Page<T>> for Items<T> {
    fn from(page: Page<T>) -> Self {
        Self { items: page.items, next: page.next }
    }
}

/// A session that was made, with where it is.
pub(super) fn created(own: &Own, session: SessionRecord) -> Response {
    let name = own.agent.info().name;
    let place = format!("/v1/agents/{}/sessions/{}", encoded(name.as_str()), encoded(session.id.as_str()));
    (StatusCode::CREATED, etag(session.head), [(header::LOCATION, place)], JsonBody(session)).into_response()
}

/// A text as one segment of a path.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A session to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSession {
    /// Its id; generated when left out.
    #[schema(value_type = Option<String>)]
    id: Option<SessionId>,
    /// Its title.
    title: Option<String>,
    /// Its labels.
    #[serde(default)]
    labels: BTreeSet<String>,
    /// Whatever goes with it.
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: BTreeMap<String, Json>,
    /// Initial state by prefixed key: `app:` and `user:` go to their scopes, the rest is the custom state.
    #[serde(default)]
    #[schema(value_type = Object)]
    state: BTreeMap<String, Json>,
}

/// Makes a session.
#[utoipa::path(
    post, path = "/agents/{agent}/sessions", tag = "sessions", params(AgentPath), request_body = NewSession,
    responses(
        (status = CREATED, body = ref("#/components/schemas/Session")),
        (status = BAD_REQUEST, body = Problem), (status = CONFLICT, body = Problem),
    )
)]
pub(super) async fn create(own: Own, headers: HeaderMap, Sent(new): Sent<NewSession>) -> Result<Response, Problem> {
    unconditional(&headers)?;
    let metadata = match new.metadata.is_empty() {
        true => None,
        false => Some(Json::from_value(&new.metadata)?),
    };
    let sessions = own.sessions()?;
    let made = sessions.create(|mut session| {
        (session.id, session.title, session.labels) = (new.id, new.title, new.labels);
        session.metadata = metadata;
        session.state = StateDelta { set: new.state, remove: BTreeSet::new() };
        session
    });
    let made = made.await?;
    Ok(created(&own, made))
}

/// What sessions are listed by.
#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Sort {
    /// When they were last written to.
    #[default]
    Updated,
    /// When they were made.
    Created,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionsQuery {
    /// How many, from 1 to 100.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
    /// `updated` or `created`.
    #[serde(default)]
    #[param(inline)]
    sort: Sort,
    /// `asc` or `desc`; `desc` when left out.
    #[param(inline)]
    order: Option<Order>,
    /// Only those with this label.
    label: Option<String>,
    /// Only those that are `idle`, `running` or `interrupted`.
    #[param(value_type = Option<String>)]
    status: Option<SessionStatus>,
    /// Only those whose metadata has these members: a JSON object of scalars.
    metadata: Option<String>,
}

/// Lists the caller's sessions with an agent, as of the first page.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions", tag = "sessions", params(AgentPath, SessionsQuery),
    responses((status = OK, body = ref("#/components/schemas/SessionPage")), (status = BAD_REQUEST, body = Problem))
)]
pub(super) async fn list(own: Own, Asked(query): Asked<SessionsQuery>) -> Result<JsonBody<Items<Listed>>, Problem> {
    let metadata = match &query.metadata {
        None => BTreeMap::new(),
        Some(text) => Json::parse(text).and_then(|json| json.to()).map_err(|_| {
            Problem::invalid("`metadata` is a JSON object with the members to look for, like {\"tier\":\"gold\"}")
        })?,
    };
    let limit = limit(query.limit)?;
    let sessions = own.sessions()?;
    let page = sessions.list(|mut sessions| {
        sessions.order = match (query.sort, query.order.unwrap_or(Order::Desc)) {
            (Sort::Updated, Order::Desc) => SessionOrder::UpdatedNewest,
            (Sort::Updated, Order::Asc) => SessionOrder::UpdatedOldest,
            (Sort::Created, Order::Desc) => SessionOrder::CreatedNewest,
            (Sort::Created, Order::Asc) => SessionOrder::CreatedOldest,
        };
        (sessions.label, sessions.status, sessions.metadata) = (query.label, query.status, metadata);
        (sessions.limit, sessions.cursor) = (limit, cursor(query.cursor));
        sessions
    });
    let page = page.await?;
    Ok(JsonBody(Items { items: listed(&own, &sessions, page.items).await?, next: page.next }))
}

/// A session with how it looks from outside.
#[derive(Serialize)]
pub(super) struct Listed {
    #[serde(flatten)]
    session: SessionRecord,
    #[serde(flatten)]
    preview: Preview,
}

/// Adds to sessions how they look. What was said last has passed no transform.
async fn listed(own: &Own, sessions: &Sessions, found: Vec<SessionRecord>) -> Result<Vec<Listed>, Problem> {
    let previews = sessions.previews(found.iter().map(|session| &session.id)).await?;
    let with = |(session, preview): (SessionRecord, Option<Preview>)| {
        let mut preview = preview.unwrap_or_default();
        preview.last_message = preview.last_message.filter(|_| own.sees_raw());
        Listed { session, preview }
    };
    Ok(found.into_iter().zip(previews).map(with).collect())
}

/// Tells what is known about a session. Its ETag is where `main` stands.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}", tag = "sessions", params(SessionPath),
    responses((status = OK, body = ref("#/components/schemas/Session")), (status = NOT_FOUND, body = Problem))
)]
pub(super) async fn get(own: Own, In(path): In<SessionPath>) -> Result<Response, Problem> {
    let sessions = own.sessions()?;
    let session = sessions.existing(&path.session).await?;
    let head = etag(session.head);
    Ok((head, JsonBody(listed(&own, &sessions, vec![session]).await?.pop())).into_response())
}

/// A change of a session. What is left out stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SessionChange {
    /// A title; `null` takes it away.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    title: Option<Option<String>>,
    /// Labels to add.
    #[serde(default)]
    add_labels: BTreeSet<String>,
    /// Labels to take away.
    #[serde(default)]
    remove_labels: BTreeSet<String>,
    /// Members of the metadata to set.
    #[serde(default)]
    #[schema(value_type = Object)]
    set_metadata: BTreeMap<String, Json>,
    /// Members of the metadata to remove.
    #[serde(default)]
    remove_metadata: BTreeSet<String>,
}

/// Changes a session's title, labels or metadata.
#[utoipa::path(
    patch, path = "/agents/{agent}/sessions/{session}", tag = "sessions", params(SessionPath),
    request_body = SessionChange,
    responses(
        (status = OK, body = ref("#/components/schemas/Session")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn change(
    own: Own,
    In(path): In<SessionPath>,
    headers: HeaderMap,
    Sent(change): Sent<SessionChange>,
) -> Result<Response, Problem> {
    unconditional(&headers)?;
    let mut update = UpdateSession::default();
    update.title = change.title;
    (update.add_labels, update.remove_labels) = (change.add_labels, change.remove_labels);
    (update.set_metadata, update.remove_metadata) = (change.set_metadata, change.remove_metadata);
    let session = own.sessions()?.update(&path.session, update).await?;
    Ok((etag(session.head), JsonBody(session)).into_response())
}

/// Deletes a session. What its forks need stays.
#[utoipa::path(
    delete, path = "/agents/{agent}/sessions/{session}", tag = "sessions", params(SessionPath),
    responses((status = NO_CONTENT), (status = NOT_FOUND, body = Problem))
)]
pub(super) async fn delete(own: Own, In(path): In<SessionPath>, headers: HeaderMap) -> Result<StatusCode, Problem> {
    unconditional(&headers)?;
    match own.sessions()?.delete(&path.session).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found(format!("there is no session '{}' to delete", path.session))),
    }
}

/// What a purge did.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PurgeReport {
    /// Records whose bytes are gone.
    removed: u64,
    /// Records that stay because a fork's line reaches them.
    kept_for_forks: u64,
}

/// Deletes a session and answers when its bytes are gone; works on one that is deleted already.
#[utoipa::path(
    post, path = "/agents/{agent}/sessions/{session}/purge", tag = "sessions", params(SessionPath),
    responses((status = OK, body = PurgeReport), (status = NOT_FOUND, body = Problem))
)]
pub(super) async fn purge(own: Own, In(path): In<SessionPath>) -> Result<JsonBody<PurgeReport>, Problem> {
    let Purged { removed, kept_for_forks } = own.sessions()?.purge(&path.session).await?;
    Ok(JsonBody(PurgeReport { removed, kept_for_forks }))
}
