//! Conversion between table columns and the types of this crate.

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_types::Revision;

use crate::column::ColumnValue;
use crate::device::{DeviceInfo, Quarantine, Status};
use crate::error::{DeviceError, RegistryError, Result};
use crate::record_tag::RecordAuthenticator;
use crate::sql::{FromRow, Row};

/// The column names of [`DeviceColumns`], in the same order, as a literal for `concat!`.
macro_rules! device_columns {
    () => {
        "device.device_id, device.name, device.mode, device.suite, device.status, device.enrolled_at_s, \
         device.revoked_at_s, device.revoked_reason, device.first_idx, device.rows_total, device.idx_floor, \
         device.floor_version, device.epoch, device.revision, device.puf_profile, device.tag, \
         device.quarantined_at_s, device.quarantined_reason"
    };
}
pub(crate) use device_columns;

/// Number of the columns of [`DeviceColumns`].
pub(crate) const DEVICE_COLUMNS: usize = 18;
/// Position of the column `revision` in [`DeviceColumns`], from 0.
pub(crate) const DEVICE_REVISION: usize = 13;

/// The columns of `device`. Text is read as bytes: invalid UTF-8 then damages only that record and does not fail the
/// query.
// There are more than 15 fields because each is a column of a table.
pub(crate) struct DeviceColumns {
    pub(crate) id: ColumnValue<i64>,
    name: ColumnValue<Vec<u8>>,
    mode: ColumnValue<i16>,
    suite: ColumnValue<i16>,
    status: ColumnValue<i16>,
    enrolled_at_s: ColumnValue<i64>,
    revoked_at_s: ColumnValue<Option<i64>>,
    revoked_reason: ColumnValue<Option<Vec<u8>>>,
    first_idx: ColumnValue<i64>,
    rows_total: ColumnValue<i64>,
    idx_floor: ColumnValue<i64>,
    floor_version: ColumnValue<i64>,
    epoch: ColumnValue<i64>,
    revision: ColumnValue<i64>,
    puf_profile: ColumnValue<Vec<u8>>,
    tag: ColumnValue<Vec<u8>>,
    quarantined_at_s: ColumnValue<Option<i64>>,
    quarantined_reason: ColumnValue<Option<Vec<u8>>>,
}

impl FromRow for DeviceColumns {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        // Columns are read by position, because names are ambiguous in joins.
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            mode: row.get(2)?,
            suite: row.get(3)?,
            status: row.get(4)?,
            enrolled_at_s: row.get(5)?,
            revoked_at_s: row.get(6)?,
            revoked_reason: row.get(7)?,
            first_idx: row.get(8)?,
            rows_total: row.get(9)?,
            idx_floor: row.get(10)?,
            floor_version: row.get(11)?,
            epoch: row.get(12)?,
            revision: row.get(13)?,
            puf_profile: row.get(14)?,
            tag: row.get(15)?,
            quarantined_at_s: row.get(16)?,
            quarantined_reason: row.get(17)?,
        })
    }
}

pub(crate) const ACTIVE: i16 = 1;
pub(crate) const REVOKED: i16 = 2;

/// Bit-casts a device id, so that all 64 bits fit a BIGINT.
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

/// Decodes and authenticates a device record; an error names the device.
pub(crate) fn device_info(authenticator: &RecordAuthenticator, record: DeviceColumns) -> Result<DeviceInfo> {
    let device = id_from_column(record.id.0);
    let damaged = |problem: String| RegistryError::Device(DeviceError::DamagedRecord { device, problem });
    let unusable = |column: &str, value: i64| match value {
        i64::MIN => damaged(format!("{column} is not a number")),
        value => damaged(format!("{column} is {value}")),
    };
    let number = |column: &str, ColumnValue(value): ColumnValue<i64>| {
        u32::try_from(value).map_err(|_| unusable(column, value))
    };
    let seconds = |column: &str, value: i64| u64::try_from(value).map_err(|_| unusable(column, value));
    let text = |column: &str, value: ColumnValue<Vec<u8>>| {
        String::from_utf8(value.0).map_err(|_| damaged(format!("{column} is not valid UTF-8")))
    };
    let (ColumnValue(status), ColumnValue(revoked_at_s), ColumnValue(mode)) =
        (record.status, record.revoked_at_s, record.mode);
    let status = match (status, revoked_at_s) {
        (ACTIVE, None) if record.revoked_reason.0.is_none() => Status::Active,
        (REVOKED, Some(at_s)) => Status::Revoked {
            at_s: seconds("revoked_at_s", at_s)?,
            reason: text(
                "revoked_reason",
                ColumnValue(record.revoked_reason.0.unwrap_or_default()),
            )?,
        },
        _ => {
            return Err(damaged(format!(
                "status is {status} with revoked_at_s {revoked_at_s:?}"
            )));
        }
    };
    let quarantine = match (record.quarantined_at_s.0, record.quarantined_reason.0) {
        (None, None) => None,
        (Some(at_s), Some(reason)) => Some(Quarantine {
            at_s: seconds("quarantined_at_s", at_s)?,
            reason: text("quarantined_reason", ColumnValue(reason))?,
        }),
        (at_s, _) => {
            return Err(damaged(format!(
                "incomplete quarantine with quarantined_at_s {at_s:?}"
            )));
        }
    };
    let info = DeviceInfo {
        device,
        name: text("name", record.name)?,
        mode: mode_from_column(mode).ok_or_else(|| damaged(format!("mode is {mode}")))?,
        suite: u8::try_from(record.suite.0)
            .ok()
            .and_then(Suite::from_number)
            .ok_or_else(|| damaged(format!("unsupported suite {}", record.suite.0)))?,
        status,
        quarantine,
        enrolled_at_s: seconds("enrolled_at_s", record.enrolled_at_s.0)?,
        first_idx: RowIndex(number("first_idx", record.first_idx)?),
        rows_total: number("rows_total", record.rows_total)?,
        idx_floor: RowIndex(number("idx_floor", record.idx_floor)?),
        epoch: number("epoch", record.epoch)?,
        revision: Revision(seconds("revision", record.revision.0)?),
        puf_profile: text("puf_profile", record.puf_profile)?,
        floor_version: record.floor_version.0,
    };
    if authenticator.verifies(&info, &record.tag.0) {
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

/// The columns `quarantined_at_s` and `quarantined_reason`.
pub(crate) fn quarantine_to_columns(quarantine: Option<&Quarantine>) -> (Option<i64>, Option<&str>) {
    match quarantine {
        None => (None, None),
        Some(Quarantine { at_s, reason }) => (Some(seconds_to_column(*at_s)), Some(reason)),
    }
}

/// Converts a time. Callers validate times; a time that exceeds the column becomes the highest value, which means "never".
pub(crate) fn seconds_to_column(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
