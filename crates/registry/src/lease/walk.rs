//! Reads all leases of a gateway, as needed at its start.

use super::Lease;
use super::table::{self, LeaseRow, lease_columns};
use crate::credentials::Credentials;
use crate::device::{DeviceInfo, Revision};
use crate::error::{RegistryError, Result};
use crate::gateway::FencingToken;
use crate::row::{DEVICE_COLUMNS, device_columns, device_info};
use crate::sql::{self, FromRow, Row};
use crate::store::Registry;
use crate::walk::{StoredDevice, StoredRow};

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
    rows: Vec<LeasedRow>,
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
    /// Streams all active devices of which the gateway holds unused rows or the key, `chunk_devices` at a time.
    ///
    /// The stream follows the order of revisions, which is also the order of records in the file, up to the revision
    /// at its start. Later changes are left to the feed: call [`Registry::changes_since`] with
    /// [`LeasedStream::feed_from`] afterwards to receive them. No lock is held between chunks.
    #[must_use]
    pub fn stream_leased(&self, fencing_token: FencingToken, chunk_devices: u32) -> LeasedStream {
        self.stream_leased_from(fencing_token, chunk_devices, LeasedCursor::default())
    }

    /// The same stream, continued from the position of another one.
    #[must_use]
    pub fn stream_leased_from(
        &self,
        fencing_token: FencingToken,
        chunk_devices: u32,
        place: LeasedCursor,
    ) -> LeasedStream {
        LeasedStream {
            registry: self.clone(),
            fencing_token,
            after: place.after.unwrap_or(Revision::ZERO),
            started_at: place.started_at,
            chunk_devices: chunk_devices.max(1),
        }
    }
}

/// A position in a stream; the default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedCursor {
    /// The last revision that was read.
    pub after: Option<Revision>,
    /// The registry's revision at the start of the stream.
    pub started_at: Option<Revision>,
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
    /// [`RegistryError::StaleFencingToken`], or a failure of the database. The call may be repeated.
    pub async fn next_chunk(&mut self) -> Result<Option<LeasedChunk>> {
        let sealed = self.next_sealed().await?;
        Ok(sealed.map(|sealed| self.open(sealed)))
    }

    /// The next chunk, still sealed; [`LeasedStream::open`] decrypts the chunk.
    ///
    /// # Errors
    /// As [`LeasedStream::next_chunk`].
    pub async fn next_sealed(&mut self) -> Result<Option<SealedChunk>> {
        let began_at = match self.started_at {
            Some(revision) => revision,
            None => *self.started_at.insert(self.registry.revision().await?),
        };
        let mut connection = self.registry.reader().acquire().await?;
        self.registry
            .check_fencing_token(&mut connection, &self.fencing_token)
            .await?;
        // CROSS JOIN keeps SQLite from starting with the leases, which it would sort completely for every chunk.
        let rows: Vec<LeasedRow> = sql::query(concat!(
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
        .bind(revision_to_column(began_at))
        .bind(i64::from(self.chunk_devices))
        .fetch_all(&mut connection)
        .await?;
        drop(connection);
        // A revision that is not a number may appear anywhere in the order. A chunk without a valid revision is the
        // end.
        let Some(last) = rows.iter().rev().find_map(|row| row.stored.revision) else {
            return Ok(None);
        };
        self.after = last;
        Ok(Some(SealedChunk {
            rows,
            progress: (self.after.0, began_at.0),
        }))
    }

    /// Authenticates and unseals a chunk.
    #[must_use]
    pub fn open(&self, sealed: SealedChunk) -> LeasedChunk {
        let mut chunk = LeasedChunk {
            devices: Vec::with_capacity(sealed.rows.len()),
            damaged: Vec::new(),
            progress: sealed.progress,
        };
        for row in sealed.rows {
            match self.open_row(row) {
                Ok(device) => chunk.devices.extend(device),
                Err(error) => chunk.damaged.push(error),
            }
        }
        chunk
    }

    fn open_row(&self, row: LeasedRow) -> Result<Option<LeasedDevice>> {
        let mac = self.registry.record_mac();
        let StoredRow { device, sealed, .. } = row.stored;
        let info = device_info(mac, device)?;
        let stored = table::lease_from_row(mac, &row.lease)?;
        // The replacement of credentials has ended the lease.
        if stored.epoch != info.epoch {
            return Ok(None);
        }
        let lease = stored.visible_to(&self.fencing_token, &info);
        let found = self.registry.open_record(Ok(StoredDevice { info, sealed }))?;
        Ok(Some(LeasedDevice {
            info: found.info,
            credentials: found.credentials,
            lease,
        }))
    }
}

fn revision_to_column(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

struct LeasedRow {
    stored: StoredRow,
    lease: LeaseRow,
}

impl FromRow for LeasedRow {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        // After the device's columns and the sealed credentials; columns are read by position, because names are
        // ambiguous.
        const FIRST: usize = DEVICE_COLUMNS + 1;
        Ok(Self {
            stored: StoredRow::from_row(row)?,
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
