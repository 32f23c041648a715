//! Between the tables' columns and the types of this crate.

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};

use crate::column::Stored;
use crate::device::{DeviceInfo, Revision, Status};
use crate::error::{RegistryError, Result};
use crate::record_mac::RecordMac;

/// The columns of [`DeviceRow`], in its order, as a literal for `concat!`.
macro_rules! device_columns {
    () => {
        "device.device_id, device.name, device.mode, device.suite, device.status, device.enrolled_at_s, \
         device.revoked_at_s, device.revoked_reason, device.first_idx, device.rows_total, device.idx_floor, \
         device.floor_version, device.epoch, device.revision, device.puf_profile, \
         device.mac"
    };
}
pub(crate) use device_columns;

/// A row of the table `device`. Text comes as bytes: a flipped bit that makes it no text is that record's damage, not
/// the whole question's.
pub(crate) type DeviceRow = (
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<i16>,
    Stored<i16>,
    Stored<i16>,
    Stored<i64>,
    Stored<Option<i64>>,
    Stored<Option<Vec<u8>>>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<Vec<u8>>,
);

pub(crate) const ACTIVE: i16 = 1;
pub(crate) const REVOKED: i16 = 2;

/// Ids are stored bit-cast, so that all 64 bits fit a BIGINT.
pub(crate) fn id_to_column(device: DeviceId) -> i64 {
    device.0.cast_signed()
}

pub(crate) fn id_from_column(column: i64) -> DeviceId {
    DeviceId(column.cast_unsigned())
}

pub(crate) fn mode_to_column(mode: Mode) -> i16 {
    match mode {
        Mode::Pool => 1,
        Mode::Key => 2,
    }
}

pub(crate) fn mode_from_column(column: i16) -> Option<Mode> {
    match column {
        1 => Some(Mode::Pool),
        2 => Some(Mode::Key),
        _ => None,
    }
}

/// Turns a stored row into what the API shows; every value that cannot be is an error that names the device.
pub(crate) fn device_info(mac: &RecordMac, row: DeviceRow) -> Result<DeviceInfo> {
    let (id, name, mode, suite, status, enrolled_at_s, revoked_at_s, revoked_reason, first, total, floor, ..) =
        row;
    let (.., floor_version, epoch, revision, puf_profile, stored_mac) = row;
    let device = id_from_column(id.0);
    let damaged = |problem: String| RegistryError::DamagedRecord { device, problem };
    let unusable = |column: &str, value: i64| match value {
        i64::MIN => damaged(format!("{column} is no number")),
        value => damaged(format!("{column} is {value}")),
    };
    let number =
        |column: &str, Stored(value): Stored<i64>| u32::try_from(value).map_err(|_| unusable(column, value));
    let seconds = |column: &str, value: i64| u64::try_from(value).map_err(|_| unusable(column, value));
    let text = |column: &str, value: Stored<Vec<u8>>| {
        String::from_utf8(value.0).map_err(|_| damaged(format!("{column} is no text")))
    };
    let (Stored(status), Stored(revoked_at_s), Stored(mode)) = (status, revoked_at_s, mode);
    let status = match (status, revoked_at_s) {
        (ACTIVE, None) if revoked_reason.0.is_none() => Status::Active,
        (REVOKED, Some(at_s)) => Status::Revoked {
            at_s: seconds("revoked_at_s", at_s)?,
            reason: text("revoked_reason", Stored(revoked_reason.0.unwrap_or_default()))?,
        },
        _ => {
            return Err(damaged(format!(
                "status is {status} with revoked_at_s {revoked_at_s:?}"
            )));
        }
    };
    let info = DeviceInfo {
        device,
        name: text("name", name)?,
        mode: mode_from_column(mode).ok_or_else(|| damaged(format!("mode is {mode}")))?,
        suite: u8::try_from(suite.0)
            .ok()
            .and_then(Suite::from_number)
            .ok_or_else(|| damaged(format!("suite {} is not spoken by this program", suite.0)))?,
        status,
        enrolled_at_s: seconds("enrolled_at_s", enrolled_at_s.0)?,
        first_idx: RowIndex(number("first_idx", first)?),
        rows_total: number("rows_total", total)?,
        idx_floor: RowIndex(number("idx_floor", floor)?),
        epoch: number("epoch", epoch)?,
        revision: Revision(seconds("revision", revision.0)?),
        puf_profile: text("puf_profile", puf_profile)?,
        floor_version: floor_version.0,
    };
    if mac.verifies(&info, &stored_mac.0) {
        Ok(info)
    } else {
        Err(damaged("its fields do not authenticate".to_owned()))
    }
}

/// The columns `status`, `revoked_at_s` and `revoked_reason`.
pub(crate) fn status_to_columns(status: &Status) -> (i16, Option<i64>, Option<&str>) {
    match status {
        Status::Active => (ACTIVE, None, None),
        Status::Revoked { at_s, reason } => (REVOKED, Some(seconds_to_column(*at_s)), Some(reason)),
    }
}

/// Times are checked before they get here; a later one than the column holds means "the end of time".
pub(crate) fn seconds_to_column(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
