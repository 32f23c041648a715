//! Rounds of attestation, and how devices stand.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use linewarden_controller::attest::Outcome;
use linewarden_registry::{GroupName, RoundRecord};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::devices::state_name;
use super::lists::{List, Part, device, gateway};
use crate::auth::Viewer;
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::state::App;

/// How long it is good to know that nobody looks, seconds.
const STALE_FOR_S: u64 = 60;

/// A round that is over.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Round {
    gateway: u32,
    number: u32,
    group: String,
    period: u64,
    started_at_s: u64,
    ended_at_s: u64,
    asked: u32,
    ok: u32,
    late: u32,
    silent: u32,
    last_verdict_ms: u32,
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
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WhichRounds {
    gateway: Option<String>,
    group: Option<String>,
    /// How many at most: 1 to 1000; 100 if not given.
    limit: Option<u32>,
}

/// The newest rounds that are kept, newest first.
#[utoipa::path(get, path = "/api/v1/rounds", params(WhichRounds), responses((status = 200, body = List<Round>)))]
pub(crate) async fn rounds(
    _: Viewer,
    State(app): State<App>,
    Query(which): Query<WhichRounds>,
) -> Result<Json<List<Round>>> {
    let limit = Part {
        limit: which.limit,
        after: None,
    }
    .limit()?;
    let of = which.gateway.as_deref().map(gateway).transpose()?;
    let group = which
        .group
        .map(|group| GroupName::new(group).map_err(|error| ApiError::invalid("group", error.to_string())))
        .transpose()?;
    let rounds = app.registry.rounds_of(of, group.as_ref(), limit).await?;
    Ok(Json(List {
        items: rounds.into_iter().map(Round::from).collect(),
        next: None,
    }))
}

/// How a device stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Standing {
    device: String,
    /// ok, late, silent, quarantined or unproven
    state: &'static str,
    since_s: u64,
    gateway: u32,
    since_round: u32,
}

/// Which devices.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WhichResults {
    /// ok, late, silent, quarantined or unproven
    state: Option<String>,
    /// How many are looked at: 1 to 1000; 100 if not given.
    limit: Option<u32>,
    /// From the `next` of the part before.
    after: Option<String>,
}

/// How attested devices stand, by id. With `state` a part may have fewer than `limit`, and another one after it all the same.
#[utoipa::path(get, path = "/api/v1/results", params(WhichResults), responses((status = 200, body = List<Standing>)))]
pub(crate) async fn results(
    _: Viewer,
    State(app): State<App>,
    Query(which): Query<WhichResults>,
) -> Result<Json<List<Standing>>> {
    let part = Part {
        limit: which.limit,
        after: which.after,
    };
    let page = app
        .registry
        .appraisals(part.after_device()?, part.limit()?)
        .await?;
    for error in &page.damaged {
        tracing::error!(error, "left out of a list");
    }
    let items = page.appraisals.into_iter().map(|appraisal| Standing {
        device: appraisal.device.to_string(),
        state: state_name(appraisal.state),
        since_s: appraisal.since_s,
        gateway: appraisal.gateway.0,
        since_round: appraisal.since_round,
    });
    let is_wanted = |item: &Standing| which.state.as_deref().is_none_or(|state| item.state == state);
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
        .signer
        .as_ref()
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
