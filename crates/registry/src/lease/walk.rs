//! Reads all leases of a gateway, which the gateway needs at its start.

use super::Lease;
use super::table::{self, LeaseColumns, lease_columns};
use crate::conversion::{DEVICE_COLUMNS, device_columns, device_info};
use crate::credentials::Credentials;
use crate::device::DeviceInfo;
use crate::error::{RegistryError, Result};
use crate::gateway::FencingToken;
use crate::sql::{self, FromRow, Row};
use crate::store::Registry;
use crate::walk::{StoredDevice, StoredDeviceColumns};
use linewarden_types::{LeasedCursor, Revision};

/// A device that is leased to a gateway, with its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedDevice {
    /// The device record.
    pub info: DeviceInfo,
    /// The credentials.
    pub credentials: Credentials,
    /// The lease.
    pub lease: Lease,
}

/// A chunk of a gateway's leases.
#[derive(Debug)]
pub struct LeasedChunk {
    /// The devices.
    pub devices: Vec<LeasedDevice>,
    /// Errors of records that could not be opened, each with the device id.
    pub damaged: Vec<RegistryError>,
    /// Progress: the revision reached, and the last revision of the stream.
    pub progress: (u64, u64),
}

/// A chunk of a gateway's leases with sealed credentials.
pub struct SealedChunk {
    records: Vec<LeasedDeviceColumns>,
    progress: (u64, u64),
}

/// A stream of leased devices, created by [`Registry::stream_leased`].
#[derive(Debug)]
pub struct LeasedStream {
    registry: Registry,
    fencing_token: FencingToken,
    after: Revision,
    /// The registry's revision at the start of the stream; unknown before the first chunk.
    started_at: Option<Revision>,
    chunk_devices: u32,
}

impl Registry {
    /// Streams all active devices for which the gateway holds unused rows or the key, `chunk_devices` devices per chunk.
    ///
    /// The stream follows the order of revisions, which in a file is mostly the order of the records, and ends at the
    /// registry's revision at the start of the stream. To receive later changes, call [`Registry::changes_since`] with
    /// [`LeasedStream::feed_from`] afterwards. No lock is held between chunks.
    #[must_use]
    pub fn stream_leased(&self, fencing_token: FencingToken, chunk_devices: u32) -> LeasedStream {
        self.stream_leased_from(fencing_token, chunk_devices, LeasedCursor::default())
    }

    /// As [`Registry::stream_leased`], but continues from the position of another stream.
    #[must_use]
    pub fn stream_leased_from(
        &self,
        fencing_token: FencingToken,
        chunk_devices: u32,
        cursor: LeasedCursor,
    ) -> LeasedStream {
        LeasedStream {
            registry: self.clone(),
            fencing_token,
            after: cursor.after.unwrap_or(Revision::ZERO),
            started_at: cursor.started_at,
            chunk_devices: chunk_devices.max(1),
        }
    }
}

impl LeasedStream {
    /// The current position.
    #[must_use]
    pub fn cursor(&self) -> LeasedCursor {
        LeasedCursor {
            after: Some(self.after),
            started_at: self.started_at,
        }
    }

    /// The revision from which to follow the feed after the stream; [`Revision::ZERO`] before the first chunk.
    #[must_use]
    pub fn feed_from(&self) -> Revision {
        self.started_at.unwrap_or(Revision::ZERO)
    }

    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`]. The call may be repeated.
    pub async fn next_chunk(&mut self) -> Result<Option<LeasedChunk>> {
        let sealed = self.next_sealed().await?;
        Ok(sealed.map(|sealed| self.open(sealed)))
    }

    /// The next chunk, still sealed; [`LeasedStream::open`] decrypts the chunk.
    ///
    /// # Errors
    /// As [`LeasedStream::next_chunk`].
    pub async fn next_sealed(&mut self) -> Result<Option<SealedChunk>> {
        let started_at = match self.started_at {
            Some(revision) => revision,
            None => *self.started_at.insert(self.registry.revision().await?),
        };
        let mut connection = self.registry.reader().acquire().await?;
        self.registry
            .check_fencing_token(&mut connection, &self.fencing_token)
            .await?;
        // CROSS JOIN makes SQLite read the devices first. If SQLite read the leases first, it would sort all leases for
        // every chunk.
        let records: Vec<LeasedDeviceColumns> = sql::query(concat!(
            "SELECT ",
            device_columns!(),
            ", credential.sealed, ",
            lease_columns!(),
            " FROM device CROSS JOIN lease \
             LEFT JOIN credential ON credential.device_id = device.device_id \
             WHERE lease.gateway_id = $1 AND lease.device_id = device.device_id AND device.revision > $2 AND device.revision <= $3 AND device.status = 1 \
             AND device.quarantined_at_s IS NULL \
             AND lease.mark < lease.end_idx \
             ORDER BY device.revision LIMIT $4"
        ))
        .bind(i64::from(self.fencing_token.gateway().0))
        .bind(revision_to_column(self.after))
        .bind(revision_to_column(started_at))
        .bind(i64::from(self.chunk_devices))
        .fetch_all(&mut connection)
        .await?;
        drop(connection);
        // A damaged revision, which is not a number, may appear anywhere in the order. A chunk without a valid
        // revision ends the stream.
        let Some(last) = records.iter().rev().find_map(|record| record.device.revision) else {
            return Ok(None);
        };
        self.after = last;
        Ok(Some(SealedChunk {
            records,
            progress: (self.after.0, started_at.0),
        }))
    }

    /// Authenticates and unseals a chunk.
    #[must_use]
    pub fn open(&self, sealed: SealedChunk) -> LeasedChunk {
        let mut chunk = LeasedChunk {
            devices: Vec::with_capacity(sealed.records.len()),
            damaged: Vec::new(),
            progress: sealed.progress,
        };
        for record in sealed.records {
            match self.open_leased(record) {
                Ok(device) => chunk.devices.extend(device),
                Err(error) => chunk.damaged.push(error),
            }
        }
        chunk
    }

    /// Authenticates and unseals one record. `None` for a lease of replaced credentials.
    fn open_leased(&self, record: LeasedDeviceColumns) -> Result<Option<LeasedDevice>> {
        let authenticator = self.registry.authenticator();
        let StoredDeviceColumns { device, sealed, .. } = record.device;
        let info = device_info(authenticator, device)?;
        let lease = table::lease_from_record(authenticator, &record.lease)?;
        // A replacement of the credentials has ended the lease.
        if lease.epoch != info.epoch {
            return Ok(None);
        }
        let lease = lease.visible_to(&self.fencing_token, &info);
        let active = self.registry.open_record(Ok(StoredDevice { info, sealed }))?;
        Ok(Some(LeasedDevice {
            info: active.info,
            credentials: active.credentials,
            lease,
        }))
    }
}

fn revision_to_column(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

struct LeasedDeviceColumns {
    device: StoredDeviceColumns,
    lease: LeaseColumns,
}

impl FromRow for LeasedDeviceColumns {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        // The columns of the lease follow the columns of the device and the sealed credentials. Columns are read by
        // position, because names are ambiguous.
        const FIRST: usize = DEVICE_COLUMNS + 1;
        Ok(Self {
            device: StoredDeviceColumns::from_row(row)?,
            lease: (
                row.get(FIRST)?,
                row.get(FIRST + 1)?,
                row.get(FIRST + 2)?,
                row.get(FIRST + 3)?,
                row.get(FIRST + 4)?,
                row.get(FIRST + 5)?,
                row.get(FIRST + 6)?,
                row.get(FIRST + 7)?,
            ),
        })
    }
}
