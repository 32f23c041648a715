//! A walk over all that a gateway holds, as it does at its start.

use super::Lease;
use super::table::{self, LeaseRow, lease_columns};
use crate::credentials::Credentials;
use crate::device::{DeviceInfo, Revision};
use crate::error::{RegistryError, Result};
use crate::gateway::Fence;
use crate::row::{DEVICE_COLUMNS, device_columns, device_info};
use crate::sql::{self, FromRow, Row};
use crate::store::Registry;
use crate::walk::{StoredDevice, StoredRow};

/// A device that a gateway holds rows of, with what they are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedDevice {
    /// Its record.
    pub info: DeviceInfo,
    /// Its credentials.
    pub credentials: Credentials,
    /// What the gateway holds.
    pub lease: Lease,
}

/// A part of a gateway's leases.
#[derive(Debug)]
pub struct LeasedChunk {
    /// The devices.
    pub devices: Vec<LeasedDevice>,
    /// Records that could not be opened, each error with the device's id: report them and go on.
    pub damaged: Vec<RegistryError>,
    /// How many devices of the registry lie behind this chunk, out of how many: for a progress bar.
    pub progress: (u64, u64),
}

/// A part of a gateway's leases with its credentials still sealed.
pub struct SealedChunk {
    rows: Vec<LeasedRow>,
    progress: (u64, u64),
}

/// The walk; made by [`Registry::stream_leased`].
#[derive(Debug)]
pub struct LeasedStream {
    registry: Registry,
    fence: Fence,
    after: Revision,
    /// The registry's revision when the walk began; unknown before the first chunk.
    began_at: Option<Revision>,
    chunk_devices: u32,
}

impl Registry {
    /// Walks over all active devices of which the gateway holds unspent rows or the key, `chunk_devices` at a time.
    ///
    /// The walk follows the revisions, which is also the order in which records lie in the file, up to the one at
    /// its beginning. What is changed meanwhile is left to the feed: ask [`Registry::changes_since`]
    /// [`LeasedStream::feed_from`] afterwards, and nothing is missed. No lock is held between chunks.
    #[must_use]
    pub fn stream_leased(&self, fence: Fence, chunk_devices: u32) -> LeasedStream {
        self.stream_leased_from(fence, chunk_devices, LeasedPlace::default())
    }

    /// The same walk, from where another one stood.
    #[must_use]
    pub fn stream_leased_from(&self, fence: Fence, chunk_devices: u32, place: LeasedPlace) -> LeasedStream {
        LeasedStream {
            registry: self.clone(),
            fence,
            after: place.after.unwrap_or(Revision::ZERO),
            began_at: place.began_at,
            chunk_devices: chunk_devices.max(1),
        }
    }
}

/// Where a walk stands; the default is its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeasedPlace {
    /// Up to which revision it has come.
    pub after: Option<Revision>,
    /// The registry's revision when it began.
    pub began_at: Option<Revision>,
}

impl LeasedStream {
    /// Where it stands.
    #[must_use]
    pub fn place(&self) -> LeasedPlace {
        LeasedPlace {
            after: Some(self.after),
            began_at: self.began_at,
        }
    }

    /// From where to follow the feed after the walk; [`Revision::ZERO`] before the first chunk.
    #[must_use]
    pub fn feed_from(&self) -> Revision {
        self.began_at.unwrap_or(Revision::ZERO)
    }

    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`], or a failure of the database. The call may be repeated.
    pub async fn next_chunk(&mut self) -> Result<Option<LeasedChunk>> {
        let sealed = self.next_sealed().await?;
        Ok(sealed.map(|sealed| self.open(sealed)))
    }

    /// The next chunk as it lies in the file; [`LeasedStream::open`] is the other half of the work.
    ///
    /// # Errors
    /// As [`LeasedStream::next_chunk`].
    pub async fn next_sealed(&mut self) -> Result<Option<SealedChunk>> {
        let began_at = match self.began_at {
            Some(revision) => revision,
            None => *self.began_at.insert(self.registry.revision().await?),
        };
        let mut connection = self.registry.reader().acquire().await?;
        self.registry.check_fence(&mut connection, &self.fence).await?;
        // CROSS JOIN keeps SQLite from beginning with the leases, all of which it would sort for every chunk.
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
        .bind(i64::from(self.fence.gateway().0))
        .bind(column(self.after))
        .bind(column(began_at))
        .bind(i64::from(self.chunk_devices))
        .fetch_all(&mut connection)
        .await?;
        drop(connection);
        // A revision that is no number sorts among the others; of a chunk without any other nothing can follow.
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
        // Credentials that were replaced have ended the lease.
        if stored.epoch != info.epoch {
            return Ok(None);
        }
        let lease = stored.found_by(&self.fence, &info);
        let found = self.registry.open_record(Ok(StoredDevice { info, sealed }))?;
        Ok(Some(LeasedDevice {
            info: found.info,
            credentials: found.credentials,
            lease,
        }))
    }
}

fn column(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

struct LeasedRow {
    stored: StoredRow,
    lease: LeaseRow,
}

impl FromRow for LeasedRow {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        // Behind the device's columns and the sealed credentials; names occur twice.
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
