//! The tables `lease` and `unleased_range`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};

use super::Lease;
use crate::column::ColumnValue;
use crate::enroll::PushIds as _;
use crate::error::{RegistryError, Result};
use crate::record_mac::{RecordMac, halves};
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Builder, Connection};

const LEASE_LABEL: &[u8] = b"linewarden registry table lease v1";
const UNLEASED_LABEL: &[u8] = b"linewarden registry table unleased_range v1";

/// A row of `lease`: gateway, device, fencing token, epoch, first, end, mark, mac.
pub(crate) type LeaseRow = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

/// The columns of [`LeaseRow`], in its order, as a literal for `concat!`.
macro_rules! lease_columns {
    () => {
        "lease.gateway_id, lease.device_id, lease.fencing_token, lease.epoch, lease.first_idx, lease.end_idx, lease.mark, lease.mac"
    };
}
pub(crate) use lease_columns;

/// A row of `unleased_range`: device, epoch, first, end, mac.
type UnleasedRow = (
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

fn lease_code(mac: &RecordMac, lease: &Lease) -> Vec<u8> {
    mac.code_of(LEASE_LABEL, lease.device, &lease_fields(lease))
        .to_vec()
}

/// Decodes a stored row into a lease; a row that does not authenticate is damage of that device.
pub(crate) fn lease_from_row(mac: &RecordMac, row: &LeaseRow) -> Result<Lease> {
    let (gateway, device, fencing_token, epoch, first, end, mark, code) = row;
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
    if mac.verifies_of(LEASE_LABEL, device, &lease_fields(&lease), &code.0) {
        Ok(lease)
    } else {
        Err(damage(device, "lease"))
    }
}

fn unleased_from_row(
    mac: &RecordMac,
    (device, epoch, first, end, code): &UnleasedRow,
) -> Result<UnleasedRange> {
    let device = id_from_column(device.0);
    let [epoch, first, end] = [epoch, first, end].map(|value| u32::try_from(value.0).unwrap_or(u32::MAX));
    if mac.verifies_of(UNLEASED_LABEL, device, &[epoch, first, end], &code.0) {
        let rows = first..end;
        Ok(UnleasedRange { epoch, rows })
    } else {
        Err(damage(device, "list of unleased rows"))
    }
}

pub(crate) fn damage(device: DeviceId, table: &str) -> RegistryError {
    RegistryError::DamagedRecord {
        device,
        problem: format!("its {table} does not authenticate"),
    }
}

/// Leases and unleased ranges that do not authenticate, for [`Registry::check`](crate::Registry::check).
pub(crate) async fn damaged(connection: &mut Connection, mac: &RecordMac) -> Result<Vec<RegistryError>> {
    let mut found = Vec::new();
    let leases: Vec<LeaseRow> = sql::query(concat!("SELECT ", lease_columns!(), " FROM lease"))
        .fetch_all(&mut *connection)
        .await?;
    found.extend(leases.iter().filter_map(|row| lease_from_row(mac, row).err()));
    let spares: Vec<UnleasedRow> =
        sql::query("SELECT device_id, epoch, first_idx, end_idx, mac FROM unleased_range")
            .fetch_all(connection)
            .await?;
    found.extend(spares.iter().filter_map(|row| unleased_from_row(mac, row).err()));
    Ok(found)
}

pub(super) async fn leases(
    connection: &mut Connection,
    mac: &RecordMac,
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
    let rows: Vec<LeaseRow> = query.build().fetch_all(connection).await?;
    Ok(rows
        .iter()
        .map(|row| (id_from_column(row.1.0), lease_from_row(mac, row)))
        .collect())
}

pub(super) async fn leases_of(
    connection: &mut Connection,
    mac: &RecordMac,
    device: DeviceId,
) -> Result<Vec<Lease>> {
    let rows: Vec<LeaseRow> = sql::query(concat!(
        "SELECT ",
        lease_columns!(),
        " FROM lease WHERE device_id = $1 ORDER BY gateway_id"
    ))
    .bind(id_to_column(device))
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| lease_from_row(mac, row)).collect()
}

/// Those of these devices that have a lease record, even an empty one.
pub(super) async fn devices_with_lease(
    connection: &mut Connection,
    devices: &HashSet<DeviceId>,
) -> Result<Vec<DeviceId>> {
    let mut query = Builder::new("SELECT DISTINCT device_id FROM lease WHERE device_id IN ");
    query.push_ids(devices.iter().copied());
    let rows: Vec<(ColumnValue<i64>,)> = query.build().fetch_all(connection).await?;
    Ok(rows.iter().map(|(device,)| id_from_column(device.0)).collect())
}

/// The unleased ranges of devices, in ascending order.
pub(super) async fn unleased_ranges(
    connection: &mut Connection,
    mac: &RecordMac,
    devices: &HashSet<DeviceId>,
) -> Result<HashMap<DeviceId, Result<Vec<UnleasedRange>>>> {
    let mut query = Builder::new(
        "SELECT device_id, epoch, first_idx, end_idx, mac FROM unleased_range WHERE device_id IN ",
    );
    query.push_ids(devices.iter().copied());
    query.push(" ORDER BY device_id, first_idx");
    let rows: Vec<UnleasedRow> = query.build().fetch_all(connection).await?;
    let mut spares: HashMap<DeviceId, Result<Vec<UnleasedRange>>> = HashMap::new();
    for row in rows {
        let entry = spares
            .entry(id_from_column(row.0.0))
            .or_insert_with(|| Ok(Vec::new()));
        match (unleased_from_row(mac, &row), entry) {
            (Ok(unleased), Ok(list)) => list.push(unleased),
            (Err(error), entry) => *entry = Err(error),
            (Ok(_), Err(_)) => {}
        }
    }
    Ok(spares)
}

pub(super) async fn write_leases(
    connection: &mut Connection,
    mac: &RecordMac,
    leases: &[&Lease],
) -> Result<()> {
    if leases.is_empty() {
        return Ok(());
    }
    let mut insert = Builder::new(
        "INSERT INTO lease (gateway_id, device_id, fencing_token, epoch, first_idx, end_idx, mark, mac) ",
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
            .push_bind(lease_code(mac, lease));
    });
    insert.push(
        " ON CONFLICT (gateway_id, device_id) DO UPDATE SET fencing_token = excluded.fencing_token, \
         epoch = excluded.epoch, first_idx = excluded.first_idx, end_idx = excluded.end_idx, mark = excluded.mark, mac = excluded.mac",
    );
    insert.build().execute(connection).await?;
    Ok(())
}

pub(super) async fn write_unleased(
    connection: &mut Connection,
    mac: &RecordMac,
    device: DeviceId,
    epoch: u32,
    spares: &[Range<u32>],
) -> Result<()> {
    sql::query("DELETE FROM unleased_range WHERE device_id = $1")
        .bind(id_to_column(device))
        .execute(&mut *connection)
        .await?;
    if spares.is_empty() {
        return Ok(());
    }
    let mut insert = Builder::new("INSERT INTO unleased_range (device_id, epoch, first_idx, end_idx, mac) ");
    insert.push_values(spares, |mut values, rows| {
        let code = mac.code_of(UNLEASED_LABEL, device, &[epoch, rows.start, rows.end]);
        values
            .push_bind(id_to_column(device))
            .push_bind(i64::from(epoch))
            .push_bind(i64::from(rows.start))
            .push_bind(i64::from(rows.end))
            .push_bind(code.to_vec());
    });
    insert.build().execute(connection).await?;
    Ok(())
}
