//! Devices: looked for, enrolled, shut out and let in.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    Credentials, DeviceInfo, DeviceRecord, Filter, JournalFilter, Note, PoolRow, Registry, State as Standing,
    Status, ids_beginning,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::lists::{List, Part, Reason, device};
use crate::auth::{Operator, Principal, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::state::App;
use crate::stream::body_of;

/// Devices that can be revoked in one question.
const REVOKED_AT_ONCE_MAX: usize = 10_000;
/// Entries of the journal that come with a device.
const HISTORY_MAX: u32 = 100;

/// A device.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Device {
    id: String,
    name: String,
    /// pool or key
    mode: &'static str,
    suite: u8,
    /// active, revoked or quarantined
    status: &'static str,
    /// Why it is shut out, if it is.
    reason: Option<String>,
    /// Since when it is shut out.
    since_s: Option<u64>,
    enrolled_at_s: u64,
    rows_total: u32,
    /// Rows that may still be handed out; null in key mode, which never runs out.
    rows_left: Option<u32>,
    epoch: u32,
    revision: u64,
    puf_profile: String,
}

impl From<DeviceInfo> for Device {
    fn from(info: DeviceInfo) -> Self {
        let (status, reason, since_s) = match (&info.status, &info.quarantine) {
            (Status::Revoked { at_s, reason }, _) => ("revoked", Some(reason.clone()), Some(*at_s)),
            (Status::Active, Some(quarantine)) => (
                "quarantined",
                Some(quarantine.reason.clone()),
                Some(quarantine.at_s),
            ),
            (Status::Active, None) => ("active", None, None),
        };
        Self {
            id: info.device.to_string(),
            mode: match info.mode {
                Mode::Pool => "pool",
                Mode::Key => "key",
            },
            suite: info.suite.number(),
            status,
            reason,
            since_s,
            enrolled_at_s: info.enrolled_at_s,
            rows_total: info.rows_total,
            rows_left: info.rows_left(),
            epoch: info.epoch,
            revision: info.revision.0,
            name: info.name,
            puf_profile: info.puf_profile,
        }
    }
}

/// Which devices.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Whose names begin like this; then the list is by name.
    name_prefix: Option<String>,
    /// Whose ids begin with these hexadecimal digits, 1 to 16, as they are written: with all 16.
    id_prefix: Option<String>,
    /// active, revoked or quarantined
    status: Option<String>,
    /// pool or key
    mode: Option<String>,
    /// How many at most: 1 to 1000; 100 if not given.
    limit: Option<u32>,
    /// From the `next` of the part before.
    after: Option<String>,
}

impl Which {
    fn filter(&self) -> Result<Filter> {
        let mode = match self.mode.as_deref() {
            None => None,
            Some("pool") => Some(Mode::Pool),
            Some("key") => Some(Mode::Key),
            Some(_) => return Err(ApiError::invalid("mode", "pool or key")),
        };
        let (active, quarantined) = match self.status.as_deref() {
            None => (None, false),
            Some("active") => (Some(true), false),
            Some("revoked") => (Some(false), false),
            Some("quarantined") => (None, true),
            Some(_) => return Err(ApiError::invalid("status", "active, revoked or quarantined")),
        };
        Ok(Filter {
            name_prefix: self.name_prefix.clone().filter(|prefix| !prefix.is_empty()),
            ids: match self.id_prefix.as_deref() {
                None | Some("") => None,
                Some(digits) => Some(
                    ids_beginning(digits)
                        .ok_or_else(|| ApiError::invalid("id_prefix", "1 to 16 hexadecimal digits"))?,
                ),
            },
            mode,
            active,
            quarantined,
        })
    }
}

/// Devices, by id or, looked for by a beginning of names, by name.
#[utoipa::path(get, path = "/api/v1/devices", params(Which), responses((status = 200, body = List<Device>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(which): Query<Which>,
) -> Result<Json<List<Device>>> {
    let part = Part {
        limit: which.limit,
        after: which.after.clone(),
    };
    let page = app
        .registry
        .list(&which.filter()?, part.after_device()?, part.limit()?)
        .await?;
    for error in &page.damaged {
        tracing::error!(%error, "left out of a list");
    }
    Ok(Json(List {
        items: page.devices.into_iter().map(Device::from).collect(),
        next: page.next.map(|device| device.to_string()),
    }))
}

/// A device with all that is known of it: its leases, where it was last, how it stands, what happened.
#[utoipa::path(get, path = "/api/v1/devices/{id}", responses((status = 200, body = Device), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    _: Viewer,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<serde_json::Value>> {
    Ok(Json(whole(&app.registry, device(&id, "id")?).await?))
}

async fn whole(registry: &Registry, device: DeviceId) -> Result<serde_json::Value> {
    let info = registry.get(device).await?;
    let leases = registry.leases_of(device).await?;
    let leases: Vec<_> = leases
        .iter()
        .map(|lease| {
            json!({
                "gateway": lease.gateway.0, "rows": [lease.rows.start, lease.rows.end],
                "mark": lease.mark.0, "fence": lease.fence,
            })
        })
        .collect();
    let attestation = match registry.prover(device).await? {
        Some(prover) if !prover.removed => {
            let appraisal = registry.appraisal(device).await?;
            json!({
                "group": prover.group.as_str(),
                "protection": match prover.protection {
                    linewarden_registry::Protection::Software => "software",
                    linewarden_registry::Protection::Tpm => "tpm",
                },
                "state": appraisal.as_ref().map_or("unproven", |appraisal| state_name(appraisal.state)),
                "since_s": appraisal.as_ref().map(|appraisal| appraisal.since_s),
                "gateway": appraisal.as_ref().map(|appraisal| appraisal.gateway.0),
            })
        }
        _ => serde_json::Value::Null,
    };
    let filter = JournalFilter {
        device: Some(device),
        without_refused: true,
        ..JournalFilter::default()
    };
    let history = registry.journal(&filter, None, HISTORY_MAX).await?;
    let history: Vec<_> = history.entries.iter().map(body_of).collect();
    let mut body = serde_json::to_value(Device::from(info)).unwrap_or_default();
    if let Some(fields) = body.as_object_mut() {
        fields.insert("leases".to_owned(), leases.into());
        fields.insert("attestation".to_owned(), attestation);
        fields.insert("history".to_owned(), history.into());
    }
    Ok(body)
}

pub(crate) fn state_name(state: Standing) -> &'static str {
    match state {
        Standing::Ok => "ok",
        Standing::Late => "late",
        Standing::Silent => "silent",
        Standing::Quarantined => "quarantined",
        Standing::Unproven => "unproven",
    }
}

/// What proves a device.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum NewCredentials {
    /// Key mode: 32 hexadecimal digits.
    Key(String),
    /// Pool mode: rows of a challenge (16 hexadecimal digits) and a key (32), and the number of the first.
    #[serde(untagged)]
    Pool {
        #[serde(default)]
        first_idx: u32,
        rows: Vec<(String, String)>,
    },
}

/// A device to be enrolled.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDevice {
    pub(crate) id: String,
    #[serde(default)]
    name: String,
    /// 1 if not given.
    suite: Option<u8>,
    #[serde(default)]
    puf_profile: String,
    credentials: NewCredentials,
    /// Why; not in imports, which have one for all.
    reason: Option<String>,
}

fn bytes<const N: usize>(digits: &str, field: &str) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match hex::decode_to_slice(digits, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(ApiError::invalid(
            field,
            format!("expected are {} hexadecimal digits", N * 2),
        )),
    }
}

impl NewDevice {
    pub(crate) fn record(&self, enrolled_at_s: u64) -> Result<DeviceRecord> {
        let suite = self.suite.unwrap_or(Suite::SipHash128.number());
        let credentials = match &self.credentials {
            NewCredentials::Key(key) => Credentials::Key(RowKey::from_bytes(bytes(key, "credentials.key")?)),
            NewCredentials::Pool { first_idx, rows } => {
                let row = |(challenge, key): &(String, String)| {
                    Ok(PoolRow {
                        challenge: bytes(challenge, "credentials.rows")?,
                        row_key: RowKey::from_bytes(bytes(key, "credentials.rows")?),
                    })
                };
                Credentials::Pool {
                    first_idx: RowIndex(*first_idx),
                    rows: rows.iter().map(row).collect::<Result<_>>()?,
                }
            }
        };
        Ok(DeviceRecord {
            device: device(&self.id, "id")?,
            name: self.name.clone(),
            suite: Suite::from_number(suite).ok_or_else(|| ApiError::invalid("suite", "1 is spoken"))?,
            enrolled_at_s,
            puf_profile: self.puf_profile.clone(),
            credentials,
        })
    }
}

pub(crate) fn note(kind: &str, device: Option<DeviceId>, detail: impl Into<String>) -> Note {
    Note {
        kind: kind.to_owned(),
        device,
        gateway: None,
        detail: detail.into(),
    }
}

/// Does something in somebody's name; what is refused is in the journal as well.
pub(crate) async fn act<T>(
    app: &App,
    principal: &Principal,
    reason: &str,
    note: Note,
    what: impl AsyncFnOnce(&Registry) -> Result<T>,
) -> Result<T> {
    let acting = principal.acting(&app.registry, reason, note)?;
    let done = what(&acting).await;
    if let Err(error) = &done
        && !error.is_passing()
        && let Err(unnoted) = acting.note_refused(error.message()).await
    {
        tracing::warn!(error = %unnoted, "a refusal is not in the journal");
    }
    done
}

/// Enrols a device.
#[utoipa::path(post, path = "/api/v1/devices", request_body = NewDevice, responses((status = 201, body = Device), (status = 409, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn enrol(
    Operator(principal): Operator,
    State(app): State<App>,
    Json(new): Json<NewDevice>,
) -> Result<(StatusCode, Json<Device>)> {
    let record = new.record(now_s())?;
    let id = record.device;
    let reason = new.reason.as_deref().unwrap_or_default();
    act(
        &app,
        &principal,
        reason,
        note("enrolled", Some(id), ""),
        async |registry| Ok(registry.enrol(record).await?),
    )
    .await?;
    Ok((StatusCode::CREATED, Json(app.registry.get(id).await?.into())))
}

/// Does something to one device, and tells how it stands then.
async fn treat<T>(
    app: &App,
    principal: &Principal,
    id: &str,
    kind: &str,
    reason: &str,
    what: impl AsyncFnOnce(&Registry, DeviceId) -> Result<T>,
) -> Result<Json<Device>> {
    let id = device(id, "id")?;
    let done = async |registry: &Registry| what(registry, id).await;
    act(app, principal, reason, note(kind, Some(id), ""), done).await?;
    Ok(Json(app.registry.get(id).await?.into()))
}

/// Shuts a device out for good.
#[utoipa::path(post, path = "/api/v1/devices/{id}/revoke", request_body = Reason, responses((status = 200, body = Device), (status = 404, body = ErrorBody)))]
pub(crate) async fn revoke(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Device>> {
    treat(&app, &principal, &id, "revoked", &reason, async |registry, id| {
        Ok(registry.revoke(id, &reason, now_s()).await?)
    })
    .await
}

/// Shuts a device out until it is released.
#[utoipa::path(post, path = "/api/v1/devices/{id}/quarantine", request_body = Reason, responses((status = 200, body = Device), (status = 404, body = ErrorBody)))]
pub(crate) async fn quarantine(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Device>> {
    treat(
        &app,
        &principal,
        &id,
        "quarantined",
        &reason,
        async |registry, id| Ok(registry.quarantine_by_order(id, &reason, now_s()).await?),
    )
    .await
}

/// Lets a device in again.
#[utoipa::path(post, path = "/api/v1/devices/{id}/release", request_body = Reason, responses((status = 200, body = Device), (status = 404, body = ErrorBody)))]
pub(crate) async fn release(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Device>> {
    treat(
        &app,
        &principal,
        &id,
        "released",
        &reason,
        async |registry, id| Ok(registry.readmit(id).await?),
    )
    .await
}

/// Devices to be revoked.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RevokeAll {
    /// At most 10,000.
    ids: Vec<String>,
    reason: String,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RevokedAll {
    /// Devices that were not revoked before.
    revoked: u64,
    /// What is wrong with others, in words.
    problems: Vec<String>,
}

/// Shuts many devices out for good, in one transaction.
#[utoipa::path(post, path = "/api/v1/devices/revoke", request_body = RevokeAll, responses((status = 200, body = RevokedAll), (status = 422, body = ErrorBody)))]
pub(crate) async fn revoke_all(
    Operator(principal): Operator,
    State(app): State<App>,
    Json(RevokeAll { ids, reason }): Json<RevokeAll>,
) -> Result<Json<RevokedAll>> {
    if ids.len() > REVOKED_AT_ONCE_MAX {
        return Err(ApiError::invalid("ids", "at most 10000 at once"));
    }
    let devices = ids
        .iter()
        .map(|id| device(id, "ids"))
        .collect::<Result<Vec<_>>>()?;
    let what = note("revoked", None, format!("{} devices at once", devices.len()));
    let (revoked, problems) = act(&app, &principal, &reason, what, async |registry| {
        Ok(registry.revoke_all(&devices, &reason, now_s()).await?)
    })
    .await?;
    Ok(Json(RevokedAll {
        revoked,
        problems: problems.iter().map(ToString::to_string).collect(),
    }))
}
