//! Everturn's own API, described at `/v1/openapi.json`.
//!
//! Every route belongs to an agent and a caller: ids are looked up among what the caller has with that agent, and what
//! somebody else has is answered like what does not exist.

mod agents;
mod artifacts;
mod branches;
mod caller;
mod compactions;
mod extract;
mod follow;
mod frames;
mod log;
mod openapi;
mod output;
mod problem;
mod reference;
mod reword;
mod scopes;
mod sessions;
mod snapshots;
mod stopping;
#[cfg(test)]
mod strangers;
mod stream;
mod transfer;
mod tree;
mod turns;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use everturn::Registry;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use problem::Problem;
use reference::Reference;
pub(super) use reword::{last_event, reword};
pub(super) use stopping::Stopping;

/// The routes below `/v1`.
pub(super) fn routes(agents: Registry) -> Router {
    let (router, api) = described().split_for_parts();
    let api = Arc::new(openapi::complete(&api));
    let reference = Reference::new(&api);
    let readable = get(move || async move { reference.answer() });
    let described = get(move || async move { Json(api.clone()) });
    let router = router
        .route("/openapi.json", described)
        .route("/reference", readable)
        .fallback(|| async { Problem::not_found("there is nothing at this address: see /v1/openapi.json") })
        .method_not_allowed_fallback(|| async {
            let (status, code) = (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
            Problem::new(status, code, "this address does not take that method: see /v1/openapi.json")
        })
        .with_state(Arc::new(agents));
    Router::new().nest("/v1", router)
}

fn described() -> OpenApiRouter<Arc<Registry>> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(agents::list))
        .routes(routes!(agents::get))
        .routes(routes!(turns::run))
        .routes(routes!(stream::of_snapshot))
        .routes(routes!(stream::of_turn))
        .routes(routes!(sessions::list, sessions::create))
        .routes(routes!(sessions::get, sessions::change, sessions::delete))
        .routes(routes!(sessions::purge))
        .routes(routes!(log::state))
        .routes(routes!(log::events))
        .routes(routes!(log::records))
        .routes(routes!(tree::tree))
        .routes(routes!(follow::follow))
        .routes(routes!(transfer::export))
        .routes(routes!(transfer::import))
        .routes(routes!(compactions::list, compactions::create))
        .routes(routes!(scopes::get, scopes::change))
        .routes(routes!(snapshots::list))
        .routes(routes!(snapshots::get, snapshots::label))
        .routes(routes!(snapshots::diff))
        .routes(routes!(snapshots::abort))
        .routes(routes!(snapshots::wait))
        .routes(routes!(branches::list, branches::create))
        .routes(routes!(branches::put, branches::delete))
        .routes(routes!(branches::fork))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::versions))
        .routes(routes!(artifacts::download))
}
