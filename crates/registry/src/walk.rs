//! Reading and opening credentials: of one device, or of all devices in the order of their changes.

use linewarden_protocol::ids::DeviceId;
use linewarden_types::Revision;

use crate::column::ColumnValue;
use crate::conversion::{
    DEVICE_COLUMNS, DEVICE_REVISION, DeviceColumns, device_columns, device_info, id_from_column, id_to_column,
};
use crate::credentials::Credentials;
use crate::device::DeviceInfo;
use crate::error::{DatabaseError, DeviceError, RegistryError, Result};
use crate::gateway;
use crate::lease;
use crate::pair;
use crate::quarantine;
use crate::renew;
use crate::roaming;
use crate::seal_context::SealContext;
use crate::service;
use crate::sql::{self, Connection, FromRow, Row};
use crate::store::Registry;

/// A device that may authenticate, with its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveDevice {
    /// The device record.
    pub info: DeviceInfo,
    /// The credentials.
    pub credentials: Credentials,
}

impl Registry {
    /// The record and the credentials of an active device, in one look-up.
    ///
    /// # Errors
    /// An unknown or revoked device, a device in quarantine, a damaged record, or a failure of the database.
    pub async fn load(&self, device: DeviceId) -> Result<ActiveDevice> {
        let columns: Option<StoredDeviceColumns> = sql::query(concat!(
            "SELECT ",
            device_columns!(),
            ", credential.sealed FROM device LEFT JOIN credential ON credential.device_id = device.device_id \
             WHERE device.device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(self.reader())
        .await?;
        let StoredDeviceColumns {
            device: columns,
            sealed,
            ..
        } = columns.ok_or(RegistryError::Device(DeviceError::UnknownDevice { device }))?;
        let info = device_info(self.authenticator(), columns)?;
        info.check_may_authenticate()?;
        self.open_record(Ok(StoredDevice { info, sealed }))
    }

    /// Opens and decodes the sealed credentials of a device.
    pub(crate) fn unseal(&self, info: &DeviceInfo, sealed: Option<&[u8]>) -> Result<Credentials> {
        let damaged = |problem: String| {
            RegistryError::Device(DeviceError::DamagedRecord {
                device: info.device,
                problem,
            })
        };
        let sealed = sealed.ok_or_else(|| damaged("its credentials are missing".to_owned()))?;
        let context = SealContext::of(info);
        let plaintext = self
            .sealer()
            .open(&context.aad(), sealed)
            .map_err(|_| damaged("its sealed credentials do not authenticate".to_owned()))?;
        Credentials::decode(context.mode, &context.indices, &plaintext).map_err(damaged)
    }

    /// Errors of all records, for [`Registry::check`]: opens every record.
    pub(crate) async fn damaged_records(&self) -> Result<Vec<RegistryError>> {
        let mut snapshot = self.reader().snapshot().await?;
        let (devices,): (i64,) = sql::query("SELECT COUNT(*) FROM device")
            .fetch_one(&mut *snapshot)
            .await?;
        let (mut damaged, mut visited, mut after) = (Vec::new(), 0, Revision::ZERO);
        loop {
            let (records, up_to) = self
                .records_after(&mut snapshot, after, CHECK_CHUNK_DEVICES)
                .await?;
            if records.is_empty() {
                break;
            }
            visited += records.len();
            damaged.extend(
                records
                    .into_iter()
                    .filter_map(|record| self.open_record(record).err()),
            );
            after = up_to;
        }
        damaged.extend(deleted_devices(&mut snapshot).await?);
        damaged.extend(gateway::damaged(&mut snapshot, self.authenticator()).await?);
        damaged.extend(roaming::damaged(&mut snapshot, self.authenticator()).await?);
        damaged.extend(lease::damaged(&mut snapshot, self.authenticator()).await?);
        damaged.extend(pair::damaged(&mut snapshot, self.authenticator()).await?);
        damaged.extend(renew::damaged(&mut snapshot, self.authenticator()).await?);
        damaged.extend(self.damaged_fingerprints(&mut snapshot).await?);
        damaged.extend(self.damaged_attestation(&mut snapshot).await?);
        damaged.extend(quarantine::damaged(&mut snapshot, self.authenticator()).await?);
        damaged.extend(service::damaged_entries(self, &mut snapshot).await?);
        if i64::try_from(visited) != Ok(devices) {
            let detail = format!("only {visited} of {devices} devices have a valid revision");
            damaged.push(RegistryError::Database(DatabaseError::Damaged { detail }));
        }
        Ok(damaged)
    }

    /// At most `limit` records after a revision, and the revision of the last of these records; no records at the end.
    pub(crate) async fn records_after(
        &self,
        connection: &mut Connection,
        after: Revision,
        limit: u32,
    ) -> Result<(Vec<Result<StoredDevice>>, Revision)> {
        let stored: Vec<StoredDeviceColumns> = sql::query(concat!(
            "SELECT ",
            device_columns!(),
            ", credential.sealed FROM device LEFT JOIN credential ON credential.device_id = device.device_id \
             WHERE device.revision > $1 AND device.revision <= 9223372036854775807 ORDER BY device.revision LIMIT $2"
        ))
        .bind(i64::try_from(after.0).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await?;
        // A damaged revision, which is not a number, may appear anywhere in the order. A chunk without a valid revision
        // is treated as the end; [`Registry::check`] compares the number of records.
        let Some(up_to) = stored.iter().rev().find_map(|columns| columns.revision) else {
            return Ok((Vec::new(), after));
        };
        let records = stored
            .into_iter()
            .map(|StoredDeviceColumns { device, sealed, .. }| {
                Ok(StoredDevice {
                    info: device_info(self.authenticator(), device)?,
                    sealed,
                })
            })
            .collect();
        Ok((records, up_to))
    }

    /// Opens the credentials of a stored device.
    pub(crate) fn open_record(&self, record: Result<StoredDevice>) -> Result<ActiveDevice> {
        let StoredDevice { info, sealed } = record?;
        let credentials = self.unseal(&info, sealed.as_deref())?;
        Ok(ActiveDevice { info, credentials })
    }
}

/// Errors of devices with credentials but without a device record: a device record is never deleted.
async fn deleted_devices(connection: &mut Connection) -> Result<Vec<RegistryError>> {
    let missing: Vec<(ColumnValue<i64>,)> = sql::query(
        "SELECT device_id FROM credential WHERE NOT EXISTS \
         (SELECT 1 FROM device WHERE device.device_id = credential.device_id)",
    )
    .fetch_all(connection)
    .await?;
    let missing = missing.iter().map(|(device,)| {
        RegistryError::Device(DeviceError::DamagedRecord {
            device: id_from_column(device.0),
            problem: "its record is missing, but its credentials exist".to_owned(),
        })
    });
    Ok(missing.collect())
}

/// Devices per chunk of a check.
const CHECK_CHUNK_DEVICES: u32 = 1000;

/// A device with its credentials still sealed.
pub(crate) struct StoredDevice {
    pub(crate) info: DeviceInfo,
    /// `None` if the record of the credentials is missing.
    pub(crate) sealed: Option<Vec<u8>>,
}

/// The columns of a device, joined with its sealed credentials.
pub(crate) struct StoredDeviceColumns {
    pub(crate) device: DeviceColumns,
    /// `None` if the column is not a number.
    pub(crate) revision: Option<Revision>,
    pub(crate) sealed: Option<Vec<u8>>,
}

impl FromRow for StoredDeviceColumns {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        Ok(Self {
            device: DeviceColumns::from_row(row)?,
            revision: revision(&row.get(DEVICE_REVISION)?),
            sealed: row.get::<ColumnValue<_>>(DEVICE_COLUMNS)?.0,
        })
    }
}

/// The revision, if the column is a number.
pub(crate) fn revision(column: &ColumnValue<i64>) -> Option<Revision> {
    u64::try_from(column.0).ok().map(Revision)
}
