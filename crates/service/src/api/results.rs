//! Attestation rounds and results.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use linewarden_api::{AttestationResult, ErrorBody, List, ResultQuery, Round, RoundQuery};
use linewarden_controller::attest::DeviceResult;
use linewarden_registry::{Appraisal, AttestationState as DeviceState, RoundRecord};
use linewarden_types::GroupName;

use super::devices::state_name;
use super::lists::{parse_cursor, parse_device_cursor, parse_device_id, parse_gateway_id, parse_limit};
use crate::auth::Viewer;
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

const STATES: [DeviceState; 5] = [
    DeviceState::Ok,
    DeviceState::Late,
    DeviceState::Missed,
    DeviceState::Quarantined,
    DeviceState::Unproven,
];
/// Validity of a signed result that is stale, seconds.
const STALE_VALIDITY_S: u64 = 60;

/// Converts a round of the registry.
#[must_use]
pub fn round_from_record(round: RoundRecord) -> Round {
    Round {
        gateway: round.gateway.0,
        number: round.number,
        group: round.group.as_str().to_owned(),
        period: round.period.0,
        started_at_s: round.started_at_s,
        ended_at_s: round.ended_at_s,
        requested: round.requested,
        ok: round.ok,
        late: round.late,
        missed: round.missed,
        last_proof_ms: round.last_proof_ms,
    }
}

/// Lists stored rounds, newest first.
#[utoipa::path(get, path = "/api/v1/rounds", params(RoundQuery), responses((status = 200, body = List<Round>), (status = 422, body = ErrorBody)))]
pub(crate) async fn rounds(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<RoundQuery>,
) -> Result<Json<List<Round>>> {
    let gateway = query.gateway.as_deref().map(parse_gateway_id).transpose()?;
    let group = query
        .group
        .map(|group| GroupName::new(group).map_err(|error| ApiError::invalid("group", error.to_string())))
        .transpose()?;
    let page = app
        .registry
        .rounds_page(
            gateway,
            group.as_ref(),
            parse_cursor(query.after.as_deref())?,
            parse_limit(query.limit)?,
        )
        .await?;
    Ok(Json(List {
        items: page.rounds.into_iter().map(round_from_record).collect(),
        next: page.next.map(|cursor| cursor.to_string()),
    }))
}

/// Converts an appraisal of the registry.
#[must_use]
pub fn result_from_appraisal(appraisal: &Appraisal) -> AttestationResult {
    AttestationResult {
        device: appraisal.device.to_string(),
        state: state_name(appraisal.state).into(),
        since_s: appraisal.since_s,
        gateway: appraisal.gateway.0,
        since_round: appraisal.since_round,
    }
}

/// Lists attestation states by device id. With `state`, a page may have fewer than `limit` items although another page
/// follows.
#[utoipa::path(get, path = "/api/v1/results", params(ResultQuery), responses((status = 200, body = List<AttestationResult>), (status = 422, body = ErrorBody)))]
pub(crate) async fn results(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<ResultQuery>,
) -> Result<Json<List<AttestationResult>>> {
    let state = query.state.as_deref();
    if state.is_some_and(|state| !STATES.map(state_name).contains(&state)) {
        return Err(ApiError::invalid(
            "state",
            "ok, late, missed, quarantined or unproven",
        ));
    }
    let page = app
        .registry
        .appraisals(
            parse_device_cursor(query.after.as_deref())?,
            parse_limit(query.limit)?,
        )
        .await?;
    for error in &page.damaged {
        tracing::error!(error, "reading an appraisal failed; device omitted from the list");
    }
    let items = page.appraisals.iter().map(result_from_appraisal);
    let matches = |item: &AttestationResult| state.is_none_or(|state| item.state == state);
    Ok(Json(List {
        items: items.filter(matches).collect(),
        next: page.next.map(|device| device.to_string()),
    }))
}

/// Returns the signed attestation result of a device: an EAR as a JWT (RFC 9711).
#[utoipa::path(get, path = "/api/v1/results/{device}", responses((status = 200, body = String, content_type = "application/eat+jwt"), (status = 404, body = ErrorBody)))]
pub(crate) async fn result(_: Viewer, State(app): State<App>, Path(id): Path<String>) -> Result<Response> {
    let device = parse_device_id(&id, "device")?;
    app.registry.get(device).await?;
    let signer = app
        .controller
        .signer()
        .ok_or_else(|| ApiError::not_found("signing key for results; see [attest] in the configuration"))?;
    let prover = app
        .registry
        .prover(device)
        .await?
        .filter(|prover| !prover.removed);
    let prover =
        prover.ok_or_else(|| ApiError::not_found("attestation result: the device is not attested"))?;
    let appraisal = app.registry.appraisal(device).await?;
    let appraisal = appraisal
        .ok_or_else(|| ApiError::not_found("attestation result: the device has not been in a round yet"))?;
    let now_s = now_s();
    let validity_s = app
        .registry
        .group(&prover.group)
        .await?
        .map(|group| group.policy.validity_s());
    let rounds = app
        .registry
        .rounds_of_group(Some(appraisal.gateway), Some(&prover.group), 1)
        .await?;
    let newest = rounds.first();
    let valid_until_s = newest
        .zip(validity_s)
        .map(|(round, validity_s)| round.ended_at_s.saturating_add(validity_s));
    // Stale: the last round is too old, or the validity of its results is unknown.
    let is_stale = valid_until_s.is_none_or(|until_s| until_s < now_s);
    let result = DeviceResult {
        protection: prover.protection,
        group: prover.group.as_str().to_owned(),
        appraisal,
        is_stale,
    };
    let expires_s = valid_until_s
        .filter(|_| !is_stale)
        .unwrap_or(now_s.saturating_add(STALE_VALIDITY_S));
    let signed = signer.sign(&[result], now_s, expires_s).map_err(|error| {
        tracing::error!(%error, "signing an attestation result failed");
        ApiError::unavailable("signing the attestation result failed")
    })?;
    Ok(([(header::CONTENT_TYPE, "application/eat+jwt")], signed).into_response())
}
