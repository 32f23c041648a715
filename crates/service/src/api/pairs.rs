//! Pairs of devices that may communicate with each other.

use axum::extract::State;
use linewarden_api::{ChangedPair, ErrorBody, List, PageQuery, Pair, Reason, ReasonQuery};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::Registry;

use super::devices::{new_event, run_action};
use super::lists::{Records, paginate, parse_device_id};
use crate::auth::{Operator, Principal, Viewer};
use crate::error::Result;
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// Lists the peers of a device by id.
#[utoipa::path(get, path = "/api/v1/devices/{id}/pairs", params(PageQuery), responses((status = 200, body = List<Pair>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(page_query): Query<PageQuery>,
) -> Result<Json<List<Pair>>> {
    let peers = app.registry.pairs_of(parse_device_id(&id, "id")?).await?;
    let pairs = Records::read(peers, |peer| Pair {
        peer: peer.to_string(),
    });
    paginate(&page_query, pairs, |pair| pair.peer.clone()).map(Json)
}

async fn change(
    app: &App,
    principal: &Principal,
    (id, peer): (String, String),
    (reason, verb): (&str, &str),
    change: impl AsyncFnOnce(&Registry, DeviceId, DeviceId) -> Result<bool>,
) -> Result<Json<ChangedPair>> {
    let (device, peer) = (parse_device_id(&id, "id")?, parse_device_id(&peer, "peer")?);
    let event = new_event("pair_changed", Some(device), format!("{verb} with {peer}"));
    let changed = run_action(app, principal, reason, event, async |registry| {
        change(registry, device, peer).await
    })
    .await?;
    Ok(Json(ChangedPair {
        peer: peer.to_string(),
        changed,
    }))
}

/// Permits two devices to communicate with each other.
#[utoipa::path(put, path = "/api/v1/devices/{id}/pairs/{peer}", request_body = Reason, responses((status = 200, body = ChangedPair), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn add(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(pair): Path<(String, String)>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<ChangedPair>> {
    change(
        &app,
        &principal,
        pair,
        (&reason, "created"),
        async |registry, device, peer| Ok(registry.allow_pair(device, peer).await?),
    )
    .await
}

/// Deletes a pair: its devices get no new key.
#[utoipa::path(delete, path = "/api/v1/devices/{id}/pairs/{peer}", params(ReasonQuery), responses((status = 200, body = ChangedPair), (status = 422, body = ErrorBody)))]
pub(crate) async fn remove(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(pair): Path<(String, String)>,
    Query(ReasonQuery { reason }): Query<ReasonQuery>,
) -> Result<Json<ChangedPair>> {
    change(
        &app,
        &principal,
        pair,
        (&reason, "deleted"),
        async |registry, device, peer| Ok(registry.disallow_pair(device, peer).await?),
    )
    .await
}
