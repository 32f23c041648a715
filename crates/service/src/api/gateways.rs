//! Gateways: who they are, and how they stand.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::StatusCode;
use linewarden_protocol::ids::GatewayId;
use linewarden_registry::{GatewayEntry, Note, Registry, RegistryError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

use super::devices::act;
use super::lists::{List, Part, Reason, gateway};
use crate::auth::{Admin, Viewer};
use crate::clock::{now_ms, now_s};
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{Json, Path, Query};
use crate::fleet::{Heard, SILENT_MS, Standing, age_ms, heard_ms};
use crate::state::App;
use crate::trust::Trust;

/// How long a gateway's data plane took for authentications of the last minute, microseconds: from when an accepted RESPONSE was
/// parsed until its ACK was written. What the network and the device take is not in it.
#[derive(Clone, Deserialize, Debug, Serialize, ToSchema)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// Of a hundred, one takes longer.
    pub p99: f64,
}

/// What a gateway's key has signed last of what its data plane runs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Evidence {
    /// affirming: it ran what it should; contraindicated: it did not
    pub verdict: Cow<'static, str>,
    /// When it came.
    pub at_s: u64,
    /// How long ago that is.
    pub age_s: u64,
    /// Older than this it says nothing of now any more.
    pub good_for_s: u64,
    /// The data plane's start.
    pub boot_count: u64,
    /// The number of its state since then.
    pub sequence: u64,
}

/// How a gateway stands that has to show what it runs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct GatewayEvidence {
    /// The gateway.
    pub id: u32,
    /// As a gateway's.
    pub trust: Cow<'static, str>,
    /// What differs, or was wrong, where it is untrusted.
    pub why: Option<String>,
    /// Since when it stands so.
    pub since_s: u64,
    /// Which controller says so.
    pub controller: String,
    /// What its reference values are called.
    pub reference: String,
    /// SHA-256 of the key that its statements must be signed with, in hexadecimal.
    pub key: String,
    /// What it has shown last.
    pub evidence: Option<Evidence>,
    /// The digest of the program that it has shown, in hexadecimal; likewise of all tables, and of all registers.
    pub program: Option<String>,
    /// Of all tables.
    pub tables: Option<String>,
    /// Of all registers that are not volatile.
    pub registers: Option<String>,
}

/// A gateway. What it says of itself is `numbers_age_s` old, and null before it has said anything.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Gateway {
    /// Its number.
    pub id: u32,
    /// For people.
    pub name: String,
    /// connected, silent, never or retired
    pub state: Cow<'static, str>,
    /// Which controller heard it last.
    pub controller: Option<String>,
    /// How often it has registered.
    pub fence: u64,
    /// When it was heard last.
    pub seen_at_s: Option<u64>,
    /// How long ago that is.
    pub age_s: Option<u64>,
    /// How long ago it told its numbers: rate, latency, devices, slots, sessions and verdicts.
    pub numbers_age_s: Option<u64>,
    /// What answers devices there.
    pub dataplane: Option<String>,
    /// Its program's version.
    pub version: Option<String>,
    /// Authentications a second.
    pub authentications_per_s: Option<f64>,
    /// How long it takes to answer, microseconds.
    pub latency_us: Option<Latency>,
    /// Devices that it holds.
    pub devices: Option<u64>,
    /// Devices that it could hold.
    pub slots: Option<u64>,
    /// Devices with a session.
    pub sessions: Option<u64>,
    /// Frames since its start, by verdict; `other` are those of verdicts that the controller does not know, a newer gateway's.
    pub verdicts: Option<BTreeMap<String, u64>>,
    /// Frames that its gate has dropped since its start, by the name of their Ethernet type; `other` are those of types without a name.
    pub dropped_types: Option<BTreeMap<String, u64>>,
    /// Packets that the kernel has dropped since then before the gateway received them, for want of room in a receive buffer:
    /// `dataplane` (of the data plane `host` alone) and `tickets`.
    pub kernel_drops: Option<BTreeMap<String, u64>>,
    /// Tickets since then by what became of them: answered, strange (no ticket, or none of a session that is there), limited, silent (the
    /// controller does not answer it) or failed. Empty where none are taken.
    pub tickets: Option<BTreeMap<String, u64>>,
    /// trusted, untrusted, overdue (it should have shown itself again by now) or unproven (it has shown nothing yet to the controller that
    /// it is with); null where it has to show nothing
    pub trust: Option<Cow<'static, str>>,
    /// What differs, or was wrong, where it is untrusted.
    pub trust_why: Option<String>,
    /// What it has shown last of what it runs, to any controller.
    pub evidence: Option<Evidence>,
    /// When it was retired.
    pub retired_at_s: Option<u64>,
    /// Why.
    pub retired_reason: Option<String>,
}

impl Latency {
    fn of(told: &Standing) -> Option<Self> {
        Some(Self {
            p50: told.latency_us_p50?,
            p99: told.latency_us_p99?,
        })
    }

    /// The worst of several: of medians and percentiles no mean says anything.
    pub(crate) fn worst(several: impl Iterator<Item = Self>) -> Option<Self> {
        several.reduce(|one, other| Self {
            p50: one.p50.max(other.p50),
            p99: one.p99.max(other.p99),
        })
    }
}

impl Evidence {
    fn of(trust: &Trust, now_ms: u64) -> Option<Self> {
        let shown = trust.evidence.as_ref()?;
        Some(Self {
            verdict: match shown.is_affirmed {
                true => "affirming".into(),
                false => "contraindicated".into(),
            },
            at_s: shown.at_s,
            age_s: (now_ms / 1000).saturating_sub(shown.at_s),
            good_for_s: trust.good_for_s,
            boot_count: shown.boot_count,
            sequence: shown.sequence,
        })
    }
}

impl GatewayEvidence {
    fn of(id: GatewayId, heard: Heard, now_ms: u64) -> Option<Self> {
        let trust = heard.standing.trust?;
        let evidence = Evidence::of(&trust, now_ms);
        let said = trust.said(now_ms / 1000);
        let digests = trust
            .evidence
            .map(|shown| (shown.program, (shown.tables, shown.registers)));
        let (program, others) = digests.unzip();
        let (tables, registers) = others.unzip();
        Some(Self {
            id: id.0,
            trust: said.into(),
            why: Some(trust.why).filter(|why| !why.is_empty()),
            since_s: trust.since_ms / 1000,
            controller: heard.controller,
            reference: trust.reference,
            key: trust.key,
            evidence,
            program,
            tables,
            registers,
        })
    }
}

impl Gateway {
    fn new(id: GatewayId, entry: Option<GatewayEntry>, heard: Option<Heard>, now_ms: u64) -> Self {
        let age_ms = heard.as_ref().map(|heard| age_ms(now_ms, heard.at_ms));
        let retired = entry.as_ref().and_then(|entry| entry.retired.clone());
        let state = match (&retired, age_ms) {
            (Some(_), _) => "retired",
            (None, None) => "never",
            (None, Some(age_ms)) if age_ms < SILENT_MS => "connected",
            (None, Some(_)) => "silent",
        };
        let (retired_at_s, retired_reason) = retired.unzip();
        let trust = heard.as_ref().and_then(|heard| heard.standing.trust.as_ref());
        let why = trust.map(|trust| trust.why.clone()).filter(|why| !why.is_empty());
        let told = heard.as_ref().map(|heard| &heard.standing);
        let told = told.filter(|standing| standing.told_ms.is_some());
        let (said, evidence) = (
            trust.map(|trust| trust.said(now_ms / 1000).into()),
            trust.and_then(|trust| Evidence::of(trust, now_ms)),
        );
        Self {
            id: id.0,
            state: state.into(),
            controller: heard.as_ref().map(|heard| heard.controller.clone()),
            fence: heard
                .as_ref()
                .map_or(0, |heard| heard.standing.fence)
                .max(entry.as_ref().map_or(0, |entry| entry.fence)),
            name: entry.map_or_else(String::new, |entry| entry.name),
            seen_at_s: heard
                .as_ref()
                .map(|heard| heard_ms(now_ms, heard.at_ms) / 1000)
                .filter(|seen_at_s| *seen_at_s > 0),
            age_s: age_ms.map(|age_ms| age_ms / 1000),
            dataplane: heard.as_ref().map(|heard| heard.standing.dataplane.clone()),
            version: heard.as_ref().map(|heard| heard.standing.version.clone()),
            numbers_age_s: told
                .and_then(|told| told.told_ms)
                .map(|told_ms| now_ms.saturating_sub(heard_ms(now_ms, told_ms)) / 1000),
            authentications_per_s: told.and_then(|told| told.authentications_per_s),
            latency_us: told.and_then(Latency::of),
            devices: told.map(|told| told.devices),
            slots: told.map(|told| told.slots),
            sessions: told.and_then(|told| told.sessions),
            verdicts: told.map(|told| told.verdicts.clone()),
            dropped_types: told.map(|told| told.dropped_types.clone()),
            kernel_drops: told.map(|told| told.kernel_drops.clone()),
            tickets: told.map(|told| told.tickets.clone()),
            trust: said,
            trust_why: why,
            evidence,
            retired_at_s,
            retired_reason,
        }
    }
}

/// Those in the book, and those that were only heard.
pub(crate) async fn all(app: &App) -> Result<Vec<Gateway>> {
    Ok(Gateway::all(&app.registry, app.fleet.all(), now_ms()).await?)
}

impl Gateway {
    /// Those of a registry, as controllers have noted how they stand.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn noted(registry: &Registry) -> Result<Vec<Self>, RegistryError> {
        let heard = crate::fleet::noted(registry).await?.into_iter().collect();
        Self::all(registry, heard, now_ms()).await
    }

    async fn all(
        registry: &Registry,
        mut heard: BTreeMap<GatewayId, Heard>,
        now_ms: u64,
    ) -> Result<Vec<Self>, RegistryError> {
        let mut gateways = BTreeMap::new();
        for entry in registry.gateways().await? {
            match entry {
                Ok(entry) => {
                    let id = entry.gateway;
                    gateways.insert(id, Gateway::new(id, Some(entry), heard.remove(&id), now_ms));
                }
                Err(error) => tracing::error!(%error, "left out of a list"),
            }
        }
        for (id, heard) in heard {
            gateways.insert(id, Gateway::new(id, None, Some(heard), now_ms));
        }
        Ok(gateways.into_values().collect())
    }
}

/// Gateways, by number.
#[utoipa::path(get, path = "/api/v1/gateways", params(Part), responses((status = 200, body = List<Gateway>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(part): Query<Part>,
) -> Result<Json<List<Gateway>>> {
    part.of(all(&app).await?, |gateway| gateway.id).map(Json)
}

/// A gateway.
#[utoipa::path(get, path = "/api/v1/gateways/{id}", responses((status = 200, body = Gateway), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(_: Viewer, State(app): State<App>, Path(id): Path<String>) -> Result<Json<Gateway>> {
    one(&app, gateway(&id)?).await.map(Json)
}

/// What a gateway has shown of what it runs.
#[utoipa::path(get, path = "/api/v1/gateways/{id}/evidence", responses((status = 200, body = GatewayEvidence), (status = 404, body = ErrorBody)))]
pub(crate) async fn evidence(
    _: Viewer,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<GatewayEvidence>> {
    let id = gateway(&id)?;
    let heard = app.fleet.all().remove(&id);
    let shown = heard.and_then(|heard| GatewayEvidence::of(id, heard, now_ms()));
    shown
        .map(Json)
        .ok_or_else(|| ApiError::not_found("gateway that has to show what it runs"))
}

async fn one(app: &App, id: GatewayId) -> Result<Gateway> {
    let found = all(app).await?.into_iter().find(|gateway| gateway.id == id.0);
    found.ok_or_else(|| ApiError::not_found("such gateway"))
}

/// A gateway to be entered in the book.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGateway {
    /// Its number.
    pub id: u32,
    /// For people.
    pub name: String,
    /// Why.
    pub reason: String,
}

fn note(kind: &str, gateway: GatewayId, detail: &str) -> Note {
    Note {
        kind: kind.to_owned(),
        gateway: Some(gateway),
        device: None,
        detail: detail.to_owned(),
    }
}

/// Enters a gateway in the book, or gives it another name.
#[utoipa::path(post, path = "/api/v1/gateways", request_body = NewGateway, responses((status = 201, body = Gateway), (status = 422, body = ErrorBody)))]
pub(crate) async fn enter(
    Admin(principal): Admin,
    State(app): State<App>,
    Json(NewGateway { id, name, reason }): Json<NewGateway>,
) -> Result<(StatusCode, Json<Gateway>)> {
    let id = GatewayId(id);
    act(
        &app,
        &principal,
        &reason,
        note("gateway_entered", id, &name),
        async |registry| Ok(registry.enter_gateway(id, &name, now_s()).await?),
    )
    .await?;
    Ok((StatusCode::CREATED, Json(one(&app, id).await?)))
}

/// Retires a gateway for good: whoever has its certificate gets nothing from now on.
#[utoipa::path(post, path = "/api/v1/gateways/{id}/retire", request_body = Reason, responses((status = 200, body = Gateway)))]
pub(crate) async fn retire(
    Admin(principal): Admin,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Gateway>> {
    let id = gateway(&id)?;
    act(
        &app,
        &principal,
        &reason,
        note("gateway_retired", id, ""),
        async |registry| Ok(registry.retire_gateway(id, &reason, now_s()).await?),
    )
    .await?;
    one(&app, id).await.map(Json)
}
