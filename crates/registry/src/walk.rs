//! Opening credentials: of one device, or of the whole fleet in the order of its changes.

use linewarden_protocol::ids::DeviceId;
use sqlx::SqliteConnection;

use crate::credentials::Credentials;
use crate::device::{DeviceInfo, Revision};
use crate::error::{RegistryError, Result};
use crate::place::Place;
use crate::row::{DeviceRow, device_columns, device_info, id_to_column};
use crate::store::Registry;

/// A device that may authenticate, with what a gateway's rows are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveDevice {
    /// Its record.
    pub info: DeviceInfo,
    /// Its credentials.
    pub credentials: Credentials,
}

/// A part of the active fleet.
#[derive(Debug)]
pub struct ActiveChunk {
    /// The devices.
    pub devices: Vec<ActiveDevice>,
    /// Records that could not be opened, each error with the device's id: report them and go on.
    pub damaged: Vec<RegistryError>,
}

/// A walk over all active devices; made by [`Registry::stream_active`].
#[derive(Debug)]
pub struct ActiveStream {
    registry: Registry,
    after: Revision,
    /// The registry's revision when the walk began; unknown before the first chunk.
    began_at: Option<Revision>,
    chunk_devices: u32,
}

impl Registry {
    /// The record and the credentials of an active device, in one look-up.
    ///
    /// # Errors
    /// An unknown or revoked device, a damaged record, or a failure of the database.
    pub async fn load(&self, device: DeviceId) -> Result<ActiveDevice> {
        let row: Option<StoredRow> = sqlx::query_as(concat!(
            "SELECT ",
            device_columns!(),
            ", credential.sealed FROM device LEFT JOIN credential ON credential.device_id = device.device_id \
             WHERE device.device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(self.reader())
        .await?;
        let StoredRow {
            device: row, sealed, ..
        } = row.ok_or(RegistryError::UnknownDevice { device })?;
        let info = device_info(self.record_mac(), row)?;
        if !info.status.is_active() {
            return Err(RegistryError::Revoked { device });
        }
        self.open_record(Ok(StoredDevice { info, sealed }))
    }

    /// Walks over all active devices with their credentials, `chunk_devices` at a time, as a gateway does at its
    /// start.
    ///
    /// The walk follows the revisions, which is also the order in which records lie in the file, up to the one at
    /// its beginning. What is changed meanwhile is left to the feed: ask [`Registry::changes_since`]
    /// [`ActiveStream::feed_from`] afterwards, and nothing is missed. No lock is held between chunks.
    #[must_use]
    pub fn stream_active(&self, chunk_devices: u32) -> ActiveStream {
        ActiveStream {
            registry: self.clone(),
            after: Revision::ZERO,
            began_at: None,
            chunk_devices: chunk_devices.max(1),
        }
    }

    pub(crate) fn unseal(&self, info: &DeviceInfo, sealed: Option<&[u8]>) -> Result<Credentials> {
        let damaged = |problem: String| RegistryError::DamagedRecord {
            device: info.device,
            problem,
        };
        let sealed = sealed.ok_or_else(|| damaged("its credentials are gone".to_owned()))?;
        let place = Place::of(info);
        let plaintext = self
            .sealer()
            .open(&place.aad(), sealed)
            .map_err(|_| damaged("its sealed credentials do not authenticate".to_owned()))?;
        Credentials::decode(place.mode, &place.indices, &plaintext).map_err(damaged)
    }

    /// Opens every record, for [`Registry::check`].
    pub(crate) async fn damaged_records(&self) -> Result<Vec<RegistryError>> {
        let mut snapshot = self.reader().begin().await?;
        let (devices,): (i64,) = sqlx::query_as("SELECT COUNT(*) FROM device")
            .fetch_one(&mut *snapshot)
            .await?;
        let (mut damaged, mut visited, mut after) = (Vec::new(), 0, Revision::ZERO);
        loop {
            let (records, upto) = self
                .records_after(&mut snapshot, after, Walk::All, CHECK_CHUNK_DEVICES)
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
            after = upto;
        }
        if i64::try_from(visited) != Ok(devices) {
            let detail = format!("{visited} of {devices} devices have a revision that can be");
            damaged.push(RegistryError::Damaged { detail });
        }
        Ok(damaged)
    }

    /// The next records after a revision, and the revision reached.
    pub(crate) async fn records_after(
        &self,
        connection: &mut SqliteConnection,
        after: Revision,
        walk: Walk,
        limit: u32,
    ) -> Result<(Vec<Result<StoredDevice>>, Revision)> {
        let (only_active, upto) = match walk {
            Walk::All => (false, i64::MAX),
            Walk::ActiveUpTo(Revision(upto)) => (true, i64::try_from(upto).unwrap_or(i64::MAX)),
        };
        let rows: Vec<StoredRow> = sqlx::query_as(concat!(
            "SELECT ",
            device_columns!(),
            ", credential.sealed FROM device LEFT JOIN credential ON credential.device_id = device.device_id \
             WHERE device.revision > $1 AND device.revision <= $2 AND (device.status = 1 OR $3 = 0) \
             ORDER BY device.revision LIMIT $4"
        ))
        .bind(i64::try_from(after.0).unwrap_or(i64::MAX))
        .bind(upto)
        .bind(i64::from(only_active))
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await?;
        let upto = rows
            .last()
            .and_then(|row| u64::try_from(row.revision).ok())
            .map_or(after, Revision);
        let records = rows
            .into_iter()
            .map(|StoredRow { device, sealed, .. }| {
                Ok(StoredDevice {
                    info: device_info(self.record_mac(), device)?,
                    sealed,
                })
            })
            .collect();
        Ok((records, upto))
    }

    fn open_record(&self, record: Result<StoredDevice>) -> Result<ActiveDevice> {
        let StoredDevice { info, sealed } = record?;
        let credentials = self.unseal(&info, sealed.as_deref())?;
        Ok(ActiveDevice { info, credentials })
    }
}

const CHECK_CHUNK_DEVICES: u32 = 1000;

/// A device with its credentials still sealed.
pub(crate) struct StoredDevice {
    pub(crate) info: DeviceInfo,
    /// Absent if the credentials' row was lost.
    pub(crate) sealed: Option<Vec<u8>>,
}

/// Which records a walk visits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Walk {
    /// All, active and revoked.
    All,
    /// The active ones that have not changed since this revision.
    ActiveUpTo(Revision),
}

/// A row of `device` joined with its sealed credentials.
struct StoredRow {
    device: DeviceRow,
    revision: i64,
    sealed: Option<Vec<u8>>,
}

impl sqlx::FromRow<'_, sqlx::sqlite::SqliteRow> for StoredRow {
    fn from_row(row: &sqlx::sqlite::SqliteRow) -> sqlx::Result<Self> {
        use sqlx::Row as _;
        Ok(Self {
            device: DeviceRow::from_row(row)?,
            revision: row.try_get("revision")?,
            sealed: row.try_get("sealed")?,
        })
    }
}

impl ActiveStream {
    /// From where to follow the feed after the walk; [`Revision::ZERO`] before the first chunk.
    #[must_use]
    pub fn feed_from(&self) -> Revision {
        self.began_at.unwrap_or(Revision::ZERO)
    }

    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// A failure of the database. The call may be repeated.
    pub async fn next_chunk(&mut self) -> Result<Option<ActiveChunk>> {
        let began_at = match self.began_at {
            Some(revision) => revision,
            None => *self.began_at.insert(self.registry.revision().await?),
        };
        let walk = Walk::ActiveUpTo(began_at);
        let mut connection = self.registry.reader().acquire().await?;
        let (records, upto) = self
            .registry
            .records_after(&mut connection, self.after, walk, self.chunk_devices)
            .await?;
        drop(connection);
        if records.is_empty() {
            return Ok(None);
        }
        self.after = upto;
        let mut chunk = ActiveChunk {
            devices: Vec::with_capacity(records.len()),
            damaged: Vec::new(),
        };
        for record in records {
            match self.registry.open_record(record) {
                Ok(device) => chunk.devices.push(device),
                Err(error) => chunk.damaged.push(error),
            }
        }
        Ok(Some(chunk))
    }
}
