//! Attestation rounds and results.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use linewarden_controller::attest::DeviceResult;
use linewarden_registry::{Appraisal, AttestationState as DeviceState, RoundRecord};
use linewarden_types::GroupName;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::devices::state_name;
use super::lists::{List, PageQuery, parse_device_id, parse_gateway_id};
use crate::auth::Viewer;
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
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

/// A completed round.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Round {
    /// The gateway.
    pub gateway: u32,
    /// The number of the round at that gateway.
    pub number: u32,
    /// The group.
    pub group: String,
    /// The key period.
    pub period: u64,
    /// Time of the start.
    pub started_at_s: u64,
    /// Time of the end.
    pub ended_at_s: u64,
    /// Number of devices in the round.
    pub requested: u32,
    /// Devices with a valid proof in time.
    pub ok: u32,
    /// Devices with a late proof.
    pub late: u32,
    /// Devices without a valid proof.
    pub missed: u32,
    /// Time from the start to the last proof, milliseconds.
    pub last_proof_ms: u32,
}

impl From<RoundRecord> for Round {
    fn from(round: RoundRecord) -> Self {
        Self {
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
}

/// A query for rounds.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RoundQuery {
    /// Only rounds of this gateway.
    pub gateway: Option<String>,
    /// Only rounds of this group.
    pub group: Option<String>,
    /// Maximum number of items: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// Lists stored rounds, newest first.
#[utoipa::path(get, path = "/api/v1/rounds", params(RoundQuery), responses((status = 200, body = List<Round>), (status = 422, body = ErrorBody)))]
pub(crate) async fn rounds(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<RoundQuery>,
) -> Result<Json<List<Round>>> {
    let page_query = PageQuery {
        limit: query.limit,
        after: query.after,
    };
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
            page_query.after_parsed()?,
            page_query.limit()?,
        )
        .await?;
    Ok(Json(List {
        items: page.rounds.into_iter().map(Round::from).collect(),
        next: page.next.map(|cursor| cursor.to_string()),
    }))
}

/// The attestation state of a device.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct AttestationResult {
    /// 16 hexadecimal digits.
    pub device: String,
    /// ok, late, missed, quarantined or unproven
    pub state: Cow<'static, str>,
    /// Time of the last state change.
    pub since_s: u64,
    /// The gateway of the last round.
    pub gateway: u32,
    /// The round that changed the state.
    pub since_round: u32,
}

impl From<&Appraisal> for AttestationResult {
    fn from(appraisal: &Appraisal) -> Self {
        Self {
            device: appraisal.device.to_string(),
            state: state_name(appraisal.state).into(),
            since_s: appraisal.since_s,
            gateway: appraisal.gateway.0,
            since_round: appraisal.since_round,
        }
    }
}

/// A query for attestation states.
#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ResultQuery {
    /// ok, late, missed, quarantined or unproven
    pub state: Option<String>,
    /// Maximum number of devices that are read: 1 to 1000, default 100.
    pub limit: Option<u32>,
    /// The cursor: `next` of the previous page.
    pub after: Option<String>,
}

/// Lists attestation states by device id. With `state`, a page may have fewer than `limit` items although another page
/// follows.
#[utoipa::path(get, path = "/api/v1/results", params(ResultQuery), responses((status = 200, body = List<AttestationResult>), (status = 422, body = ErrorBody)))]
pub(crate) async fn results(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<ResultQuery>,
) -> Result<Json<List<AttestationResult>>> {
    let page_query = PageQuery {
        limit: query.limit,
        after: query.after,
    };
    let state = query.state.as_deref();
    if state.is_some_and(|state| !STATES.map(state_name).contains(&state)) {
        return Err(ApiError::invalid(
            "state",
            "ok, late, missed, quarantined or unproven",
        ));
    }
    let page = app
        .registry
        .appraisals(page_query.after_device()?, page_query.limit()?)
        .await?;
    for error in &page.damaged {
        tracing::error!(error, "reading an appraisal failed; device omitted from the list");
    }
    let items = page.appraisals.iter().map(AttestationResult::from);
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
