//! A session's tree, for a page to draw.

use axum::Json as JsonBody;
use everturn::Position;
use everturn::store::{Cursor, TreeNode};
use serde::Serialize;

use super::caller::Own;
use super::extract::{Asked, In, PageQuery};
use super::problem::Problem;
use super::sessions::SessionPath;

/// Some nodes, where to go on, and where to follow the session from.
#[derive(Serialize)]
pub(super) struct Tree {
    items: Vec<TreeNode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Cursor>,
    position: Position,
}

/// Reads a session's tree: its turns and edits, in the order they began, each with the point it follows.
///
/// `position` is where following the session goes on. Of an agent that shapes what leaves it, texts and errors are shown to
/// admins only.
#[utoipa::path(
    get, path = "/agents/{agent}/sessions/{session}/tree", tag = "sessions", params(SessionPath, PageQuery),
    responses(
        (status = OK, body = ref("#/components/schemas/TreePage")),
        (status = BAD_REQUEST, body = Problem), (status = NOT_FOUND, body = Problem),
    )
)]
pub(super) async fn tree(
    own: Own,
    In(path): In<SessionPath>,
    Asked(query): Asked<PageQuery>,
) -> Result<JsonBody<Tree>, Problem> {
    let (sessions, (limit, cursor)) = (own.sessions()?, query.read()?);
    let page = sessions.tree(&path.session, |mut tree| {
        (tree.limit, tree.cursor) = (limit, cursor);
        tree
    });
    let mut page = page.await?;
    if !own.sees_raw() {
        for node in &mut page.nodes {
            (node.input, node.answer, node.error) = (None, None, None);
        }
    }
    let position = sessions.position(&path.session).await?;
    // What was written since the page was read is told by following, not passed over.
    let position = Position::new(position.attempt, page.last);
    Ok(JsonBody(Tree { items: page.nodes, next: page.next, position }))
}
