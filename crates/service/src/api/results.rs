//! Rounds of attestation, and how devices stand.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use linewarden_controller::attest::Outcome;
use linewarden_registry::{Appraisal, GroupName, RoundRecord, State as DeviceState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::devices::state_name;
use super::lists::{List, Part, device, gateway};
use crate::auth::Viewer;
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

const STATES: [DeviceState; 5] = [
    DeviceState::Ok,
    DeviceState::Late,
    DeviceState::Silent,
    DeviceState::Quarantined,
    DeviceState::Unproven,
];
/// How long it is good to know that nobody looks, seconds.
const STALE_FOR_S: u64 = 60;

/// A round that is over.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Round {
    /// Which gateway has asked.
    pub gateway: u32,
    /// Its round's number.
    pub number: u32,
    /// Whom.
    pub group: String,
    /// Of which period of measurements.
    pub period: u64,
    /// When it began.
    pub started_at_s: u64,
    /// When it ended.
    pub ended_at_s: u64,
    /// Devices asked.
    pub asked: u32,
    /// That have proven what they run.
    pub ok: u32,
    /// That did, too late.
    pub late: u32,
    /// That did not.
    pub silent: u32,
    /// When the last proof was judged, from the beginning.
    pub last_verdict_ms: u32,
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
            asked: round.asked,
            ok: round.ok,
            late: round.late,
            silent: round.silent,
            last_verdict_ms: round.last_verdict_ms,
        }
    }
}

/// Which rounds.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WhichRounds {
    /// Of this gateway.
    pub gateway: Option<String>,
    /// Of this group.
    pub group: Option<String>,
    /// How many at most: 1 to 1000; 100 if not given.
    pub limit: Option<u32>,
    /// From the `next` of the part before.
    pub after: Option<String>,
}

/// The rounds that are kept, newest first.
#[utoipa::path(get, path = "/api/v1/rounds", params(WhichRounds), responses((status = 200, body = List<Round>), (status = 422, body = ErrorBody)))]
pub(crate) async fn rounds(
    _: Viewer,
    State(app): State<App>,
    Query(which): Query<WhichRounds>,
) -> Result<Json<List<Round>>> {
    let part = Part {
        limit: which.limit,
        after: which.after,
    };
    let of = which.gateway.as_deref().map(gateway).transpose()?;
    let group = which
        .group
        .map(|group| GroupName::new(group).map_err(|error| ApiError::invalid("group", error.to_string())))
        .transpose()?;
    let page = app
        .registry
        .rounds_page(of, group.as_ref(), part.after_parsed()?, part.limit()?)
        .await?;
    Ok(Json(List {
        items: page.rounds.into_iter().map(Round::from).collect(),
        next: page.next.map(|place| place.to_string()),
    }))
}

/// How a device stands.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Standing {
    /// 16 hexadecimal digits.
    pub device: String,
    /// ok, late, silent, quarantined or unproven
    pub state: Cow<'static, str>,
    /// Since when.
    pub since_s: u64,
    /// Which gateway asks it.
    pub gateway: u32,
    /// Since which of its gateway's rounds.
    pub since_round: u32,
}

impl From<&Appraisal> for Standing {
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

/// Which devices.
#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WhichResults {
    /// ok, late, silent, quarantined or unproven
    pub state: Option<String>,
    /// How many are looked at: 1 to 1000; 100 if not given.
    pub limit: Option<u32>,
    /// From the `next` of the part before.
    pub after: Option<String>,
}

/// How attested devices stand, by id. With `state` a part may have fewer than `limit`, and another one after it all the same.
#[utoipa::path(get, path = "/api/v1/results", params(WhichResults), responses((status = 200, body = List<Standing>), (status = 422, body = ErrorBody)))]
pub(crate) async fn results(
    _: Viewer,
    State(app): State<App>,
    Query(which): Query<WhichResults>,
) -> Result<Json<List<Standing>>> {
    let part = Part {
        limit: which.limit,
        after: which.after,
    };
    let state = which.state.as_deref();
    if state.is_some_and(|state| !STATES.map(state_name).contains(&state)) {
        return Err(ApiError::invalid(
            "state",
            "ok, late, silent, quarantined or unproven",
        ));
    }
    let page = app
        .registry
        .appraisals(part.after_device()?, part.limit()?)
        .await?;
    for error in &page.damaged {
        tracing::error!(error, "left out of a list");
    }
    let items = page.appraisals.iter().map(Standing::from);
    let is_wanted = |item: &Standing| state.is_none_or(|state| item.state == state);
    Ok(Json(List {
        items: items.filter(is_wanted).collect(),
        next: page.next.map(|device| device.to_string()),
    }))
}

/// How a device stands, signed: an EAR (RFC 9711's claims, as a JWT).
#[utoipa::path(get, path = "/api/v1/results/{device}", responses((status = 200, body = String, content_type = "application/eat+jwt"), (status = 404, body = ErrorBody)))]
pub(crate) async fn result(_: Viewer, State(app): State<App>, Path(id): Path<String>) -> Result<Response> {
    let device = device(&id, "device")?;
    app.registry.get(device).await?;
    let signer = app
        .controller
        .signer()
        .ok_or_else(|| ApiError::not_found("key to sign results with; see [attest] in the configuration"))?;
    let prover = app
        .registry
        .prover(device)
        .await?
        .filter(|prover| !prover.removed);
    let prover = prover.ok_or_else(|| ApiError::not_found("result: the device is not attested"))?;
    let appraisal = app.registry.appraisal(device).await?;
    let appraisal =
        appraisal.ok_or_else(|| ApiError::not_found("result yet: nobody has asked the device"))?;
    let now_s = now_s();
    let good_for_s = app
        .registry
        .group(&prover.group)
        .await?
        .map(|group| group.policy.good_for_s());
    let rounds = app
        .registry
        .rounds_of(Some(appraisal.gateway), Some(&prover.group), 1)
        .await?;
    let newest = rounds.first();
    // Nobody has looked for too long, or nobody knows for how long a look is good.
    let good_until_s = newest
        .zip(good_for_s)
        .map(|(round, good_for_s)| round.ended_at_s.saturating_add(good_for_s));
    let is_stale = good_until_s.is_none_or(|until_s| until_s < now_s);
    let outcome = Outcome {
        protection: prover.protection,
        group: prover.group.as_str().to_owned(),
        appraisal,
        is_stale,
    };
    let expires_s = good_until_s
        .filter(|_| !is_stale)
        .unwrap_or(now_s.saturating_add(STALE_FOR_S));
    let signed = signer.sign(&[outcome], now_s, expires_s).map_err(|error| {
        tracing::error!(%error, "a result could not be signed");
        ApiError::unavailable("the result could not be signed")
    })?;
    Ok(([(header::CONTENT_TYPE, "application/eat+jwt")], signed).into_response())
}
