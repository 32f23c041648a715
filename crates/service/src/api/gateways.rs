//! Gateways: records and status.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use linewarden_api::{
    ErrorBody, Evidence, Gateway, GatewayEvidence, Latency, List, NewGateway, PageQuery, Reason,
};
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{GatewayRecord, NewEvent};

use super::devices::run_action;
use super::lists::{Records, paginate, parse_gateway_id};
use crate::auth::{Admin, Viewer};
use crate::clock::{now_ms, now_s};
use crate::error::{ApiError, Result};
use crate::extract::{Json, Path, Query};
use crate::fleet::{DISCONNECTED_AFTER_MS, GatewaySnapshot, GatewayStatus, age_ms, seen_ms};
use crate::state::App;
use crate::trust::Trust;

fn latency_from_status(status: &GatewayStatus) -> Option<Latency> {
    Some(Latency {
        p50: status.latency_us_p50?,
        p99: status.latency_us_p99?,
    })
}

/// The maximum of the latencies of several gateways, because a mean of percentiles is meaningless.
pub(crate) fn worst_latency(latencies: impl Iterator<Item = Latency>) -> Option<Latency> {
    latencies.reduce(|a, b| Latency {
        p50: a.p50.max(b.p50),
        p99: a.p99.max(b.p99),
    })
}

fn evidence_from_trust(trust: &Trust, now_ms: u64) -> Option<Evidence> {
    let evidence = trust.evidence.as_ref()?;
    Some(Evidence {
        verdict: match evidence.is_affirmed {
            true => "affirming".into(),
            false => "contraindicated".into(),
        },
        at_s: evidence.at_s,
        age_s: (now_ms / 1000).saturating_sub(evidence.at_s),
        validity_s: trust.validity_s,
        boot_count: evidence.boot_count,
        sequence: evidence.sequence,
    })
}

fn gateway_evidence_from_snapshot(
    id: GatewayId,
    snapshot: GatewaySnapshot,
    now_ms: u64,
) -> Option<GatewayEvidence> {
    let trust = snapshot.status.trust?;
    let evidence = evidence_from_trust(&trust, now_ms);
    let label = trust.label(now_ms / 1000);
    let digests = trust
        .evidence
        .map(|evidence| (evidence.program, (evidence.tables, evidence.registers)));
    let (program, other_digests) = digests.unzip();
    let (tables, registers) = other_digests.unzip();
    Some(GatewayEvidence {
        id: id.0,
        trust: label.into(),
        reason: Some(trust.reason).filter(|reason| !reason.is_empty()),
        since_s: trust.since_ms / 1000,
        controller: snapshot.controller,
        reference: trust.reference,
        key: trust.key,
        evidence,
        program,
        tables,
        registers,
    })
}

fn gateway_from_records(
    id: GatewayId,
    entry: Option<GatewayRecord>,
    snapshot: Option<GatewaySnapshot>,
    now_ms: u64,
) -> Gateway {
    let age_ms = snapshot.as_ref().map(|snapshot| age_ms(now_ms, snapshot.at_ms));
    let revoked = entry.as_ref().and_then(|entry| entry.revoked.clone());
    let state = match (&revoked, age_ms) {
        (Some(_), _) => "revoked",
        (None, None) => "never_connected",
        (None, Some(age_ms)) if age_ms < DISCONNECTED_AFTER_MS => "connected",
        (None, Some(_)) => "disconnected",
    };
    let (revoked_at_s, revoked_reason) = revoked.unzip();
    let trust = snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.status.trust.as_ref());
    let trust_reason = trust
        .map(|trust| trust.reason.clone())
        .filter(|text| !text.is_empty());
    let status = snapshot.as_ref().map(|snapshot| &snapshot.status);
    // Before the first status report, the counts of the status are unknown.
    let status = status.filter(|status| status.reported_ms.is_some());
    let (trust_label, evidence) = (
        trust.map(|trust| trust.label(now_ms / 1000).into()),
        trust.and_then(|trust| evidence_from_trust(trust, now_ms)),
    );
    Gateway {
        id: id.0,
        state: state.into(),
        controller: snapshot.as_ref().map(|snapshot| snapshot.controller.clone()),
        fencing_token: snapshot
            .as_ref()
            .map_or(0, |snapshot| snapshot.status.fencing_token)
            .max(entry.as_ref().map_or(0, |entry| entry.fencing_token)),
        name: entry.map_or_else(String::new, |entry| entry.name),
        seen_at_s: snapshot
            .as_ref()
            .map(|snapshot| seen_ms(now_ms, snapshot.at_ms) / 1000)
            .filter(|seen_at_s| *seen_at_s > 0),
        age_s: age_ms.map(|age_ms| age_ms / 1000),
        data_plane: snapshot
            .as_ref()
            .map(|snapshot| snapshot.status.data_plane.clone()),
        version: snapshot.as_ref().map(|snapshot| snapshot.status.version.clone()),
        report_age_s: status
            .and_then(|status| status.reported_ms)
            .map(|reported_ms| now_ms.saturating_sub(seen_ms(now_ms, reported_ms)) / 1000),
        authentications_per_s: status.and_then(|status| status.authentications_per_s),
        latency_us: status.and_then(latency_from_status),
        devices: status.map(|status| status.devices),
        slots: status.map(|status| status.slots),
        sessions: status.and_then(|status| status.sessions),
        verdicts: status.map(|status| status.verdicts.clone()),
        dropped_types: status.map(|status| status.dropped_types.clone()),
        kernel_drops: status.map(|status| status.kernel_drops.clone()),
        tickets: status.map(|status| status.tickets.clone()),
        trust: trust_label,
        trust_reason,
        evidence,
        revoked_at_s,
        revoked_reason,
    }
}

/// All gateways with a record or a status.
pub(crate) async fn list_all(app: &App) -> Result<Records<Gateway>> {
    let (mut snapshots, now_ms) = (app.fleet.snapshots(), now_ms());
    let records = Records::read(app.registry.gateways().await?, |entry| entry);
    let mut gateways = BTreeMap::new();
    for entry in records.items {
        let id = entry.gateway;
        let gateway = gateway_from_records(id, Some(entry), snapshots.remove(&id), now_ms);
        gateways.insert(id, gateway);
    }
    for (id, snapshot) in snapshots {
        gateways.insert(id, gateway_from_records(id, None, Some(snapshot), now_ms));
    }
    Ok(Records {
        items: gateways.into_values().collect(),
        damaged: records.damaged,
    })
}

/// Lists gateways by id.
#[utoipa::path(get, path = "/api/v1/gateways", params(PageQuery), responses((status = 200, body = List<Gateway>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(page_query): Query<PageQuery>,
) -> Result<Json<List<Gateway>>> {
    paginate(&page_query, list_all(&app).await?, |gateway| gateway.id).map(Json)
}

/// Shows a gateway.
#[utoipa::path(get, path = "/api/v1/gateways/{id}", responses((status = 200, body = Gateway), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(_: Viewer, State(app): State<App>, Path(id): Path<String>) -> Result<Json<Gateway>> {
    find(&app, parse_gateway_id(&id)?).await.map(Json)
}

/// Shows the evidence of a gateway.
#[utoipa::path(get, path = "/api/v1/gateways/{id}/evidence", responses((status = 200, body = GatewayEvidence), (status = 404, body = ErrorBody)))]
pub(crate) async fn evidence(
    _: Viewer,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<GatewayEvidence>> {
    let id = parse_gateway_id(&id)?;
    let snapshot = app.fleet.snapshots().remove(&id);
    let gateway_evidence =
        snapshot.and_then(|snapshot| gateway_evidence_from_snapshot(id, snapshot, now_ms()));
    gateway_evidence
        .map(Json)
        .ok_or_else(|| ApiError::not_found(&format!("evidence of gateway {id}")))
}

async fn find(app: &App, id: GatewayId) -> Result<Gateway> {
    let gateways = list_all(app).await?.items;
    let gateway = gateways.into_iter().find(|gateway| gateway.id == id.0);
    gateway.ok_or_else(|| ApiError::not_found(&format!("gateway {id}")))
}

fn new_event(kind: &str, gateway: GatewayId, detail: &str) -> NewEvent {
    NewEvent {
        kind: kind.to_owned(),
        gateway: Some(gateway),
        device: None,
        detail: detail.to_owned(),
    }
}

/// Creates a gateway, or changes its name.
#[utoipa::path(post, path = "/api/v1/gateways", request_body = NewGateway, responses((status = 201, body = Gateway), (status = 422, body = ErrorBody)))]
pub(crate) async fn create(
    Admin(principal): Admin,
    State(app): State<App>,
    Json(NewGateway { id, name, reason }): Json<NewGateway>,
) -> Result<(StatusCode, Json<Gateway>)> {
    let id = GatewayId(id);
    run_action(
        &app,
        &principal,
        &reason,
        new_event("gateway_created", id, &name),
        async |registry| Ok(registry.set_gateway(id, &name, now_s()).await?),
    )
    .await?;
    Ok((StatusCode::CREATED, Json(find(&app, id).await?)))
}

/// Revokes a gateway permanently: requests with its certificate are refused from then on.
#[utoipa::path(post, path = "/api/v1/gateways/{id}/revoke", request_body = Reason, responses((status = 200, body = Gateway)))]
pub(crate) async fn revoke(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Gateway>> {
    let id = parse_gateway_id(&id)?;
    run_action(
        &app,
        &principal,
        &reason,
        new_event("gateway_revoked", id, ""),
        async |registry| Ok(registry.revoke_gateway(id, &reason, now_s()).await?),
    )
    .await?;
    find(&app, id).await.map(Json)
}
