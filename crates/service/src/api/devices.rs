//! Devices: list, enroll, quarantine, release, revoke.

use axum::extract::State;
use axum::http::StatusCode;
use linewarden_api::{
    Device, DeviceQuery, ErrorBody, List, NewCredentials, NewDevice, Reason, Restriction, RevokeRequest,
    RevokeResult,
};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    self as registry, AttestationState, Credentials, DeviceFilter, DeviceInfo, DeviceLine, DeviceRecord,
    Fingerprint, NewEvent, OnConflict, PoolRow, Protection, Quarantine, Registry, Status, ids_with_prefix,
};

use super::lists::{log_damaged, parse_device_cursor, parse_device_id, parse_limit};
use crate::auth::{Operator, Principal, Viewer};
use crate::clock::now_s;
use crate::error::{ApiError, Result};
use crate::extract::{Json, Path, Query};
use crate::state::App;

/// Maximum number of devices in one request to revoke.
const REVOKE_BATCH_MAX: usize = 10_000;

/// Converts a device of the registry.
pub(crate) fn device_from_info(info: DeviceInfo) -> Device {
    let (status, reason, since_s) = match (&info.status, &info.quarantine) {
        (Status::Revoked { at_s, reason }, _) => ("revoked", Some(reason.clone()), Some(*at_s)),
        (Status::Active, Some(quarantine)) => (
            "quarantined",
            Some(quarantine.reason.clone()),
            Some(quarantine.at_s),
        ),
        (Status::Active, None) => ("active", None, None),
    };
    Device {
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

/// Converts a device to a line of an export file or of command output.
#[must_use]
pub fn device_line(device: &Device) -> DeviceLine {
    let restriction = |status: &str| (device.status == status).then_some(());
    let (revoked, quarantined) = (restriction("revoked"), restriction("quarantined"));
    DeviceLine {
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

/// Converts a query to a filter for the registry.
fn device_filter(query: &DeviceQuery) -> Result<DeviceFilter> {
    let mode = match query.mode.as_deref() {
        None => None,
        Some("pool") => Some(Mode::Pool),
        Some("key") => Some(Mode::Key),
        Some(_) => return Err(ApiError::invalid("mode", "pool or key")),
    };
    let (active, quarantined) = match query.status.as_deref() {
        None => (None, false),
        Some("active") => (Some(true), false),
        Some("revoked") => (Some(false), false),
        Some("quarantined") => (None, true),
        Some(_) => return Err(ApiError::invalid("status", "active, revoked or quarantined")),
    };
    Ok(DeviceFilter {
        name_prefix: query.name_prefix.clone().filter(|prefix| !prefix.is_empty()),
        ids: match query.id_prefix.as_deref() {
            None | Some("") => None,
            Some(digits) => Some(
                ids_with_prefix(digits)
                    .ok_or_else(|| ApiError::invalid("id_prefix", "1 to 16 hexadecimal digits"))?,
            ),
        },
        mode,
        active,
        quarantined,
    })
}

/// Lists devices by id, or by name if a name prefix is given.
#[utoipa::path(get, path = "/api/v1/devices", params(DeviceQuery), responses((status = 200, body = List<Device>), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    _: Viewer,
    State(app): State<App>,
    Query(query): Query<DeviceQuery>,
) -> Result<Json<List<Device>>> {
    let filter = device_filter(&query)?;
    let page = app
        .registry
        .list(
            &filter,
            parse_device_cursor(query.after.as_deref())?,
            parse_limit(query.limit)?,
        )
        .await?;
    Ok(Json(List {
        items: page.devices.into_iter().map(device_from_info).collect(),
        next: page.next.map(|device| device.to_string()),
        damaged_records: log_damaged(&page.damaged),
    }))
}

pub(crate) fn state_name(state: AttestationState) -> &'static str {
    match state {
        AttestationState::Ok => "ok",
        AttestationState::Late => "late",
        AttestationState::Missed => "missed",
        AttestationState::Quarantined => "quarantined",
        AttestationState::Unproven => "unproven",
    }
}

pub(crate) fn protection_name(protection: Protection) -> &'static str {
    match protection {
        Protection::Software => "software",
        Protection::Tpm => "tpm",
    }
}

/// Converts a device to the request that enrolls the device at a remote controller.
#[must_use]
pub fn new_device_from_record(new: &registry::NewDevice) -> NewDevice {
    let record = &new.record;
    let restriction = |status: &'static str, since_s, reason: &str| Restriction {
        status: status.into(),
        since_s,
        reason: reason.to_owned(),
    };
    NewDevice {
        id: record.device.to_string(),
        name: record.name.clone(),
        suite: Some(record.suite.number()),
        puf_profile: record.puf_profile.clone(),
        credentials: new_credentials(&record.credentials),
        reason: None,
        enrolled_at_s: Some(record.enrolled_at_s),
        idx_floor: Some(new.idx_floor.0),
        epoch: Some(new.epoch),
        restriction: match (&new.status, &new.quarantine) {
            (Status::Revoked { at_s, reason }, _) => Some(restriction("revoked", *at_s, reason)),
            (Status::Active, Some(quarantine)) => {
                Some(restriction("quarantined", quarantine.at_s, &quarantine.reason))
            }
            (Status::Active, None) => None,
        },
        fingerprint: new
            .fingerprint
            .as_ref()
            .map(|fingerprint| hex::encode(fingerprint.to_bytes())),
    }
}

fn new_credentials(credentials: &Credentials) -> NewCredentials {
    match credentials {
        Credentials::Key(key) => NewCredentials::Key(hex::encode(key.as_bytes())),
        Credentials::Pool { first_idx, rows } => NewCredentials::Pool {
            first_idx: first_idx.0,
            rows: rows
                .iter()
                .map(|row| (hex::encode(row.challenge), hex::encode(row.row_key.as_bytes())))
                .collect(),
        },
    }
}

fn decode_hex<const N: usize>(digits: &str, field: &str) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match hex::decode_to_slice(digits, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(ApiError::invalid(
            field,
            format!("expected {} hexadecimal digits", N * 2),
        )),
    }
}

/// Converts a request to a record of the registry.
pub(crate) fn new_device_record(request: &NewDevice, now_s: u64) -> Result<registry::NewDevice> {
    let enrolled_at_s = request.enrolled_at_s.unwrap_or(now_s);
    let mut new = registry::NewDevice::from(device_record(request, enrolled_at_s)?);
    // A pool has no rows below its first row.
    new.idx_floor = RowIndex(request.idx_floor.unwrap_or_default()).max(new.idx_floor);
    new.epoch = request.epoch.unwrap_or_default();
    if let Some(restriction) = &request.restriction {
        let (at_s, reason) = (restriction.since_s, restriction.reason.clone());
        match &*restriction.status {
            "revoked" => new.status = Status::Revoked { at_s, reason },
            "quarantined" => new.quarantine = Some(Quarantine { at_s, reason }),
            _ => return Err(ApiError::invalid("restriction.status", "revoked or quarantined")),
        }
    }
    if let Some(digits) = &request.fingerprint {
        let bytes = hex::decode(digits).ok();
        new.fingerprint = bytes.and_then(|bytes| Fingerprint::from_bytes(&bytes));
        if new.fingerprint.is_none() {
            return Err(ApiError::invalid(
                "fingerprint",
                "expected bands of 10 hexadecimal digits, in the order of their positions",
            ));
        }
    }
    Ok(new)
}

fn device_record(request: &NewDevice, enrolled_at_s: u64) -> Result<DeviceRecord> {
    let suite = request.suite.unwrap_or(Suite::SipHash128.number());
    let credentials = match &request.credentials {
        NewCredentials::Key(key) => Credentials::Key(RowKey::from_bytes(decode_hex(key, "credentials.key")?)),
        NewCredentials::Pool { first_idx, rows } => {
            let row = |(challenge, key): &(String, String)| {
                Ok(PoolRow {
                    challenge: decode_hex(challenge, "credentials.rows")?,
                    row_key: RowKey::from_bytes(decode_hex(key, "credentials.rows")?),
                })
            };
            Credentials::Pool {
                first_idx: RowIndex(*first_idx),
                rows: rows.iter().map(row).collect::<Result<_>>()?,
            }
        }
    };
    Ok(DeviceRecord {
        device: parse_device_id(&request.id, "id")?,
        name: request.name.clone(),
        suite: Suite::from_number(suite)
            .ok_or_else(|| ApiError::invalid("suite", "unsupported suite; supported is 1"))?,
        enrolled_at_s,
        puf_profile: request.puf_profile.clone(),
        credentials,
    })
}

pub(crate) fn new_event(kind: &str, device: Option<DeviceId>, detail: impl Into<String>) -> NewEvent {
    NewEvent {
        kind: kind.to_owned(),
        device,
        gateway: None,
        detail: detail.into(),
    }
}

/// Carries out an action of a user. The event log records the action with `event`. The event log also records a refused
/// action, except after a temporary error.
pub(crate) async fn run_action<T>(
    app: &App,
    principal: &Principal,
    reason: &str,
    event: NewEvent,
    change: impl AsyncFnOnce(&Registry) -> Result<T>,
) -> Result<T> {
    let acting_registry = principal.registry_for_action(&app.registry, reason, event)?;
    let result = change(&acting_registry).await;
    if let Err(error) = &result
        && !error.is_temporary()
        && let Err(record_error) = acting_registry.record_refusal(error.message()).await
    {
        tracing::warn!(error = %record_error, "recording a refused action in the event log failed");
    }
    result
}

/// Enrolls a device.
#[utoipa::path(post, path = "/api/v1/devices", request_body = NewDevice, responses((status = 201, body = Device), (status = 409, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn enroll(
    Operator(principal): Operator,
    State(app): State<App>,
    Json(new): Json<NewDevice>,
) -> Result<(StatusCode, Json<Device>)> {
    let stored = new_device_record(&new, now_s())?;
    let id = stored.record.device;
    let reason = new.reason.as_deref().unwrap_or_default();
    run_action(
        &app,
        &principal,
        reason,
        new_event("enrolled", Some(id), ""),
        async |registry| {
            let sealed = registry.seal_chunk(vec![stored])?;
            Ok(registry.import_chunk(sealed, OnConflict::Refuse).await?)
        },
    )
    .await?;
    Ok((
        StatusCode::CREATED,
        Json(device_from_info(app.registry.get(id).await?)),
    ))
}

/// Changes the state of a device; returns the device after the change.
async fn change_state<T>(
    app: &App,
    principal: &Principal,
    id: &str,
    kind: &str,
    reason: &str,
    change: impl AsyncFnOnce(&Registry, DeviceId) -> Result<T>,
) -> Result<Json<Device>> {
    let id = parse_device_id(id, "id")?;
    let change = async |registry: &Registry| change(registry, id).await;
    run_action(app, principal, reason, new_event(kind, Some(id), ""), change).await?;
    Ok(Json(device_from_info(app.registry.get(id).await?)))
}

/// Revokes a device permanently.
#[utoipa::path(post, path = "/api/v1/devices/{id}/revoke", request_body = Reason, responses((status = 200, body = Device), (status = 404, body = ErrorBody)))]
pub(crate) async fn revoke(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Device>> {
    change_state(&app, &principal, &id, "revoked", &reason, async |registry, id| {
        Ok(registry.revoke(id, &reason, now_s()).await?)
    })
    .await
}

/// Puts a device into quarantine until it is released.
#[utoipa::path(post, path = "/api/v1/devices/{id}/quarantine", request_body = Reason, responses((status = 200, body = Device), (status = 404, body = ErrorBody)))]
pub(crate) async fn quarantine(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Device>> {
    change_state(
        &app,
        &principal,
        &id,
        "quarantined",
        &reason,
        async |registry, id| Ok(registry.quarantine_manually(id, &reason, now_s()).await?),
    )
    .await
}

/// Releases a device from quarantine.
#[utoipa::path(post, path = "/api/v1/devices/{id}/release", request_body = Reason, responses((status = 200, body = Device), (status = 404, body = ErrorBody)))]
pub(crate) async fn release(
    Operator(principal): Operator,
    State(app): State<App>,
    Path(id): Path<String>,
    Json(Reason { reason }): Json<Reason>,
) -> Result<Json<Device>> {
    change_state(
        &app,
        &principal,
        &id,
        "released",
        &reason,
        async |registry, id| Ok(registry.release(id).await?),
    )
    .await
}

/// Revokes many devices in one transaction.
#[utoipa::path(post, path = "/api/v1/devices/revoke", request_body = RevokeRequest, responses((status = 200, body = RevokeResult), (status = 422, body = ErrorBody)))]
pub(crate) async fn revoke_all(
    Operator(principal): Operator,
    State(app): State<App>,
    Json(RevokeRequest { ids, reason }): Json<RevokeRequest>,
) -> Result<Json<RevokeResult>> {
    if ids.len() > REVOKE_BATCH_MAX {
        return Err(ApiError::invalid("ids", "at most 10000 devices in one request"));
    }
    let devices = ids
        .iter()
        .map(|id| parse_device_id(id, "ids"))
        .collect::<Result<Vec<_>>>()?;
    let event = new_event(
        "revoked",
        None,
        format!("{} devices in one request", devices.len()),
    );
    let (revoked, problems) = run_action(&app, &principal, &reason, event, async |registry| {
        Ok(registry.revoke_all(&devices, &reason, now_s()).await?)
    })
    .await?;
    Ok(Json(RevokeResult {
        revoked,
        problems: problems.iter().map(ToString::to_string).collect(),
    }))
}
