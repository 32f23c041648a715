//! The tables `lease` and `unleased_range`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};

use super::Lease;
use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::enroll::PushIds as _;
use crate::error::{DeviceError, RegistryError, Result};
use crate::record_tag::{RecordAuthenticator, halves};
use crate::sql::{self, Builder, Connection};

const LEASE_LABEL: &[u8] = b"linewarden registry table lease v1";
const UNLEASED_LABEL: &[u8] = b"linewarden registry table unleased_range v1";

/// The columns of `lease`: gateway, device, fencing token, epoch, first, end, mark, tag.
pub(crate) type LeaseColumns = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

/// The column names of [`LeaseColumns`], in the same order, as a literal for `concat!`.
macro_rules! lease_columns {
    () => {
        "lease.gateway_id, lease.device_id, lease.fencing_token, lease.epoch, lease.first_idx, lease.end_idx, lease.mark, lease.tag"
    };
}
pub(crate) use lease_columns;

/// The columns of `unleased_range`: device, epoch, first, end, tag.
type UnleasedColumns = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

/// A range of rows that were returned and are not leased.
pub(super) struct UnleasedRange {
    pub(super) epoch: u32,
    pub(super) rows: Range<u32>,
}

fn lease_fields(lease: &Lease) -> [u32; 7] {
    let Lease {
        gateway,
        fencing_token,
        rows,
        mark,
        epoch,
        ..
    } = lease;
    let [token_high, token_low] = halves(*fencing_token);
    [
        gateway.0, token_high, token_low, *epoch, rows.start, rows.end, mark.0,
    ]
}

fn lease_tag(authenticator: &RecordAuthenticator, lease: &Lease) -> Vec<u8> {
    authenticator
        .tag_of_fields(LEASE_LABEL, lease.device, &lease_fields(lease))
        .to_vec()
}

/// Decodes and authenticates a lease; an error names the device.
pub(crate) fn lease_from_record(authenticator: &RecordAuthenticator, record: &LeaseColumns) -> Result<Lease> {
    let (gateway, device, fencing_token, epoch, first, end, mark, tag) = record;
    let device = id_from_column(device.0);
    let number = |value: &ColumnValue<i64>| u32::try_from(value.0).unwrap_or(u32::MAX);
    let lease = Lease {
        device,
        gateway: GatewayId(number(gateway)),
        fencing_token: fencing_token.0.cast_unsigned(),
        epoch: number(epoch),
        rows: number(first)..number(end),
        mark: RowIndex(number(mark)),
    };
    if authenticator.verifies_fields(LEASE_LABEL, device, &lease_fields(&lease), &tag.0) {
        Ok(lease)
    } else {
        Err(damage(device, "lease"))
    }
}

fn unleased_from_record(
    authenticator: &RecordAuthenticator,
    (device, epoch, first, end, tag): &UnleasedColumns,
) -> Result<UnleasedRange> {
    let device = id_from_column(device.0);
    let [epoch, first, end] = [epoch, first, end].map(|value| u32::try_from(value.0).unwrap_or(u32::MAX));
    if authenticator.verifies_fields(UNLEASED_LABEL, device, &[epoch, first, end], &tag.0) {
        let rows = first..end;
        Ok(UnleasedRange { epoch, rows })
    } else {
        Err(damage(device, "list of unleased rows"))
    }
}

/// The error for a record of a device that does not authenticate; `table` describes the record.
pub(crate) fn damage(device: DeviceId, table: &str) -> RegistryError {
    RegistryError::Device(DeviceError::DamagedRecord {
        device,
        problem: format!("its {table} does not authenticate"),
    })
}

/// Errors of leases and unleased ranges that do not authenticate, for [`Registry::check`](crate::Registry::check).
pub(crate) async fn damaged(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
) -> Result<Vec<RegistryError>> {
    let mut damaged = Vec::new();
    let leases: Vec<LeaseColumns> = sql::query(concat!("SELECT ", lease_columns!(), " FROM lease"))
        .fetch_all(&mut *connection)
        .await?;
    damaged.extend(
        leases
            .iter()
            .filter_map(|record| lease_from_record(authenticator, record).err()),
    );
    let unleased: Vec<UnleasedColumns> =
        sql::query("SELECT device_id, epoch, first_idx, end_idx, tag FROM unleased_range")
            .fetch_all(connection)
            .await?;
    damaged.extend(
        unleased
            .iter()
            .filter_map(|record| unleased_from_record(authenticator, record).err()),
    );
    Ok(damaged)
}

/// The leases of a gateway for these devices, by device; an error for each damaged record.
pub(super) async fn leases(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
    gateway: GatewayId,
    devices: &HashSet<DeviceId>,
) -> Result<HashMap<DeviceId, Result<Lease>>> {
    let mut query = Builder::new(concat!(
        "SELECT ",
        lease_columns!(),
        " FROM lease WHERE gateway_id = "
    ));
    query.push_bind(i64::from(gateway.0)).push(" AND device_id IN ");
    query.push_ids(devices.iter().copied());
    let records: Vec<LeaseColumns> = query.build().fetch_all(connection).await?;
    Ok(records
        .iter()
        .map(|record| {
            (
                id_from_column(record.1.0),
                lease_from_record(authenticator, record),
            )
        })
        .collect())
}

/// All leases of a device, by gateway.
pub(super) async fn leases_of(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
    device: DeviceId,
) -> Result<Vec<Lease>> {
    let records: Vec<LeaseColumns> = sql::query(concat!(
        "SELECT ",
        lease_columns!(),
        " FROM lease WHERE device_id = $1 ORDER BY gateway_id"
    ))
    .bind(id_to_column(device))
    .fetch_all(connection)
    .await?;
    records
        .iter()
        .map(|record| lease_from_record(authenticator, record))
        .collect()
}

/// Returns the devices among `devices` that have a lease record, even a record of an empty lease.
pub(super) async fn devices_with_lease(
    connection: &mut Connection,
    devices: &HashSet<DeviceId>,
) -> Result<Vec<DeviceId>> {
    let mut query = Builder::new("SELECT DISTINCT device_id FROM lease WHERE device_id IN ");
    query.push_ids(devices.iter().copied());
    let records: Vec<(ColumnValue<i64>,)> = query.build().fetch_all(connection).await?;
    Ok(records.iter().map(|(device,)| id_from_column(device.0)).collect())
}

/// The unleased ranges of devices in ascending order, by device; an error for a device with a damaged record.
pub(super) async fn unleased_ranges(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
    devices: &HashSet<DeviceId>,
) -> Result<HashMap<DeviceId, Result<Vec<UnleasedRange>>>> {
    let mut query = Builder::new(
        "SELECT device_id, epoch, first_idx, end_idx, tag FROM unleased_range WHERE device_id IN ",
    );
    query.push_ids(devices.iter().copied());
    query.push(" ORDER BY device_id, first_idx");
    let records: Vec<UnleasedColumns> = query.build().fetch_all(connection).await?;
    let mut unleased: HashMap<DeviceId, Result<Vec<UnleasedRange>>> = HashMap::new();
    for record in records {
        let entry = unleased
            .entry(id_from_column(record.0.0))
            .or_insert_with(|| Ok(Vec::new()));
        match (unleased_from_record(authenticator, &record), entry) {
            (Ok(range), Ok(ranges)) => ranges.push(range),
            (Err(error), entry) => *entry = Err(error),
            (Ok(_), Err(_)) => {}
        }
    }
    Ok(unleased)
}

pub(super) async fn write_leases(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
    leases: &[&Lease],
) -> Result<()> {
    if leases.is_empty() {
        return Ok(());
    }
    let mut insert = Builder::new(
        "INSERT INTO lease (gateway_id, device_id, fencing_token, epoch, first_idx, end_idx, mark, tag) ",
    );
    insert.push_values(leases, |mut values, lease| {
        values
            .push_bind(i64::from(lease.gateway.0))
            .push_bind(id_to_column(lease.device))
            .push_bind(lease.fencing_token.cast_signed())
            .push_bind(i64::from(lease.epoch))
            .push_bind(i64::from(lease.rows.start))
            .push_bind(i64::from(lease.rows.end))
            .push_bind(i64::from(lease.mark.0))
            .push_bind(lease_tag(authenticator, lease));
    });
    insert.push(
        " ON CONFLICT (gateway_id, device_id) DO UPDATE SET fencing_token = excluded.fencing_token, \
         epoch = excluded.epoch, first_idx = excluded.first_idx, end_idx = excluded.end_idx, mark = excluded.mark, tag = excluded.tag",
    );
    insert.build().execute(connection).await?;
    Ok(())
}

/// Replaces the unleased ranges of a device.
pub(super) async fn write_unleased(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
    device: DeviceId,
    epoch: u32,
    ranges: &[Range<u32>],
) -> Result<()> {
    sql::query("DELETE FROM unleased_range WHERE device_id = $1")
        .bind(id_to_column(device))
        .execute(&mut *connection)
        .await?;
    if ranges.is_empty() {
        return Ok(());
    }
    let mut insert = Builder::new("INSERT INTO unleased_range (device_id, epoch, first_idx, end_idx, tag) ");
    insert.push_values(ranges, |mut values, rows| {
        let tag = authenticator.tag_of_fields(UNLEASED_LABEL, device, &[epoch, rows.start, rows.end]);
        values
            .push_bind(id_to_column(device))
            .push_bind(i64::from(epoch))
            .push_bind(i64::from(rows.start))
            .push_bind(i64::from(rows.end))
            .push_bind(tag.to_vec());
    });
    insert.build().execute(connection).await?;
    Ok(())
}
