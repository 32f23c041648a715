//! Devices: looked for, enrolled, shut out and let in.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::StatusCode;
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    self as registry, Credentials, DeviceInfo, DeviceLine, DeviceRecord, Filter, Fingerprint, Note,
    OnConflict, PoolRow, Quarantine, Registry, State as Standing, Status, ids_beginning,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::lists::{List, Part, Reason, device};
use crate::auth::{Operator, Principal, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// Devices that can be revoked in one question.
const REVOKED_AT_ONCE_MAX: usize = 10_000;

/// A device.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Device {
    /// 16 hexadecimal digits.
    pub id: String,
    /// For people.
    pub name: String,
    /// pool or key
    pub mode: Cow<'static, str>,
    /// The one suite it speaks.
    pub suite: u8,
    /// active, revoked or quarantined
    pub status: Cow<'static, str>,
    /// Why it is shut out, if it is.
    pub reason: Option<String>,
    /// Since when it is shut out.
    pub since_s: Option<u64>,
    /// When it was enrolled, seconds since 1970-01-01 UTC.
    pub enrolled_at_s: u64,
    /// First row of its pool; 0 in key mode.
    pub first_idx: u32,
    /// Rows in its pool; 0 in key mode.
    pub rows_total: u32,
    /// No row below it is handed out any more.
    pub idx_floor: u32,
    /// Rows that may still be handed out; null in key mode, which never runs out.
    pub rows_left: Option<u32>,
    /// How often its credentials were replaced.
    pub epoch: u32,
    /// The registry's revision at its last change.
    pub revision: u64,
    /// Which PUF and error correction it has.
    pub puf_profile: String,
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
            }
            .into(),
            suite: info.suite.number(),
            status: status.into(),
            reason,
            since_s,
            enrolled_at_s: info.enrolled_at_s,
            first_idx: info.first_idx.0,
            rows_total: info.rows_total,
            idx_floor: info.idx_floor.0,
            rows_left: info.rows_left(),
            epoch: info.epoch,
            revision: info.revision.0,
            name: info.name,
            puf_profile: info.puf_profile,
        }
    }
}

/// As export files and the command line have it.
impl From<&Device> for DeviceLine {
    fn from(device: &Device) -> Self {
        let shut_out = |status: &str| (device.status == status).then_some(());
        let (revoked, quarantined) = (shut_out("revoked"), shut_out("quarantined"));
        Self {
            device_id: device.id.clone(),
            name: device.name.clone(),
            mode: device.mode.clone().into_owned(),
            suite: device.suite,
            status: device.status.clone().into_owned(),
            enrolled_at_s: device.enrolled_at_s,
            revoked_at_s: revoked.and(device.since_s),
            revoked_reason: revoked.and(device.reason.clone()),
            quarantined_at_s: quarantined.and(device.since_s),
            quarantined_reason: quarantined.and(device.reason.clone()),
            first_idx: device.first_idx,
            rows_total: device.rows_total,
            idx_floor: device.idx_floor,
            epoch: device.epoch,
            puf_profile: device.puf_profile.clone(),
            sealed: None,
        }
    }
}

/// Which devices.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WhichDevices {
    /// Whose names begin like this; then the list is by name.
    pub name_prefix: Option<String>,
    /// Whose ids begin with these hexadecimal digits, 1 to 16, as they are written: with all 16.
    pub id_prefix: Option<String>,
    /// active, revoked or quarantined
    pub status: Option<String>,
    /// pool or key
    pub mode: Option<String>,
    /// How many at most: 1 to 1000; 100 if not given.
    pub limit: Option<u32>,
    /// From the `next` of the part before.
    pub after: Option<String>,
}

impl WhichDevices {
    /// As the registry is asked.
    ///
    /// # Errors
    /// A field that holds none of what it may, and what that is.
    pub fn filter(&self) -> Result<Filter, (&'static str, &'static str)> {
        let mode = match self.mode.as_deref() {
            None => None,
            Some("pool") => Some(Mode::Pool),
            Some("key") => Some(Mode::Key),
            Some(_) => return Err(("mode", "pool or key")),
        };
        let (active, quarantined) = match self.status.as_deref() {
            None => (None, false),
            Some("active") => (Some(true), false),
            Some("revoked") => (Some(false), false),
            Some("quarantined") => (None, true),
            Some(_) => return Err(("status", "active, revoked or quarantined")),
        };
        Ok(Filter {
            name_prefix: self.name_prefix.clone().filter(|prefix| !prefix.is_empty()),
            ids: match self.id_prefix.as_deref() {
                None | Some("") => None,
                Some(digits) => {
                    Some(ids_beginning(digits).ok_or(("id_prefix", "1 to 16 hexadecimal digits"))?)
                }
            },
            mode,
            active,
            quarantined,
        })
    }
}

/// Devices, by id or, looked for by a beginning of names, by name.
#[utoipa::path(get, path = "/api/v1/devices", params(WhichDevices), responses((status = 200, body = List<Device>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(which): Query<WhichDevices>,
) -> Result<Json<List<Device>>> {
    let part = Part {
        limit: which.limit,
        after: which.after.clone(),
    };
    let filter = which
        .filter()
        .map_err(|(field, problem)| ApiError::invalid(field, problem))?;
    let page = app
        .registry
        .list(&filter, part.after_device()?, part.limit()?)
        .await?;
    for error in &page.damaged {
        tracing::error!(%error, "left out of a list");
    }
    Ok(Json(List {
        items: page.devices.into_iter().map(Device::from).collect(),
        next: page.next.map(|device| device.to_string()),
    }))
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
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NewCredentials {
    /// Key mode: 32 hexadecimal digits.
    Key(String),
    /// Pool mode: rows of a challenge (16 hexadecimal digits) and a key (32), and the number of the first.
    #[serde(untagged)]
    Pool {
        /// Number of the first row.
        #[serde(default)]
        first_idx: u32,
        /// Challenge and key of each.
        rows: Vec<(String, String)>,
    },
}

/// A device to be enrolled.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDevice {
    /// 1 to 16 hexadecimal digits.
    pub id: String,
    /// For people.
    #[serde(default)]
    pub name: String,
    /// 1 if not given.
    pub suite: Option<u8>,
    /// Which PUF and error correction it has.
    #[serde(default)]
    pub puf_profile: String,
    /// What proves it.
    pub credentials: NewCredentials,
    /// Why; not in imports, which have one for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was enrolled, if that was elsewhere; now if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enrolled_at_s: Option<u64>,
    /// The mark that it had elsewhere: no row below it is handed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idx_floor: Option<u32>,
    /// How often its credentials were replaced elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u32>,
    /// If it was revoked or put into quarantine elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shut_out: Option<ShutOut>,
    /// By what its PUF is recognized, hexadecimal: of each band its place (4 digits) and its bits (6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// That a device was shut out elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutOut {
    /// revoked or quarantined
    pub status: Cow<'static, str>,
    /// Since when.
    pub since_s: u64,
    /// Why.
    pub reason: String,
}

/// For who enrols devices at a controller elsewhere.
impl From<&registry::NewDevice> for NewDevice {
    fn from(new: &registry::NewDevice) -> Self {
        let record = &new.record;
        let shut_out = |status: &'static str, since_s, reason: &str| ShutOut {
            status: status.into(),
            since_s,
            reason: reason.to_owned(),
        };
        Self {
            id: record.device.to_string(),
            name: record.name.clone(),
            suite: Some(record.suite.number()),
            puf_profile: record.puf_profile.clone(),
            credentials: (&record.credentials).into(),
            reason: None,
            enrolled_at_s: Some(record.enrolled_at_s),
            idx_floor: Some(new.idx_floor.0),
            epoch: Some(new.epoch),
            shut_out: match (&new.status, &new.quarantine) {
                (Status::Revoked { at_s, reason }, _) => Some(shut_out("revoked", *at_s, reason)),
                (Status::Active, Some(quarantine)) => {
                    Some(shut_out("quarantined", quarantine.at_s, &quarantine.reason))
                }
                (Status::Active, None) => None,
            },
            fingerprint: new
                .fingerprint
                .as_ref()
                .map(|found| hex::encode(found.to_bytes())),
        }
    }
}

impl From<&Credentials> for NewCredentials {
    fn from(credentials: &Credentials) -> Self {
        match credentials {
            Credentials::Key(key) => Self::Key(hex::encode(key.as_bytes())),
            Credentials::Pool { first_idx, rows } => Self::Pool {
                first_idx: first_idx.0,
                rows: rows
                    .iter()
                    .map(|row| (hex::encode(row.challenge), hex::encode(row.row_key.as_bytes())))
                    .collect(),
            },
        }
    }
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
    /// What is stored of it.
    pub(crate) fn to_stored(&self, now_s: u64) -> Result<registry::NewDevice> {
        let mut new = registry::NewDevice::from(self.record(self.enrolled_at_s.unwrap_or(now_s))?);
        // The numbers of a pool begin where it begins.
        new.idx_floor = RowIndex(self.idx_floor.unwrap_or_default()).max(new.idx_floor);
        new.epoch = self.epoch.unwrap_or_default();
        if let Some(shut_out) = &self.shut_out {
            let (at_s, reason) = (shut_out.since_s, shut_out.reason.clone());
            match &*shut_out.status {
                "revoked" => new.status = Status::Revoked { at_s, reason },
                "quarantined" => new.quarantine = Some(Quarantine { at_s, reason }),
                _ => return Err(ApiError::invalid("shut_out.status", "revoked or quarantined")),
            }
        }
        if let Some(digits) = &self.fingerprint {
            let bytes = hex::decode(digits).ok();
            new.fingerprint = bytes.and_then(|bytes| Fingerprint::from_bytes(&bytes));
            if new.fingerprint.is_none() {
                return Err(ApiError::invalid(
                    "fingerprint",
                    "bands of 10 hexadecimal digits, by place",
                ));
            }
        }
        Ok(new)
    }

    fn record(&self, enrolled_at_s: u64) -> Result<DeviceRecord> {
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
    let stored = new.to_stored(now_s())?;
    let id = stored.record.device;
    let reason = new.reason.as_deref().unwrap_or_default();
    act(
        &app,
        &principal,
        reason,
        note("enrolled", Some(id), ""),
        async |registry| {
            let sealed = registry.seal_chunk(vec![stored])?;
            Ok(registry.import_chunk(sealed, OnConflict::Refuse).await?)
        },
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
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeAll {
    /// At most 10,000.
    pub ids: Vec<String>,
    /// Why.
    pub reason: String,
}

/// What came of it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct RevokedAll {
    /// Devices that were not revoked before.
    pub revoked: u64,
    /// What is wrong with others, in words.
    pub problems: Vec<String>,
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
