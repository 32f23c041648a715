//! Enrolment: one device, or many in chunks, each chunk one transaction.

use std::collections::{HashMap, HashSet};

use linewarden_protocol::ids::{DeviceId, RowIndex};

use crate::device::{DeviceInfo, DeviceRecord, Quarantine, Revision, Status, TEXT_BYTES_MAX, check_text};
use crate::error::{RegistryError, Result};
use crate::feed;
use crate::fingerprint::Fingerprint;
use crate::place::Place;
use crate::record_mac::MAC_BYTES;
use crate::row::{id_to_column, mode_to_column, quarantine_to_columns, seconds_to_column, status_to_columns};
use crate::sql::{Builder, Connection};
use crate::store::Registry;

/// Devices per INSERT: fewer round trips to the database's thread, and far below SQLite's 32,766 parameters.
const DEVICES_PER_INSERT: usize = 100;
/// Ids per IN list.
pub(crate) const IDS_PER_QUERY: usize = 500;

/// What to do with a device that is enrolled already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// Refuse the chunk, naming the device.
    #[default]
    Refuse,
    /// Give it the new credentials, name and profile. Its mark never goes down: of a new pool, the rows below
    /// the mark are lost, unless its numbers start at the mark. A revoked device is refused, one in quarantine stays
    /// there.
    Replace,
}

/// How a bulk enrolment goes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkOptions {
    /// Devices per transaction: each chunk is stored as a whole or not at all.
    pub chunk_devices: usize,
    /// What to do with a device that is enrolled already.
    pub on_conflict: OnConflict,
}

impl Default for BulkOptions {
    fn default() -> Self {
        Self {
            chunk_devices: 1000,
            on_conflict: OnConflict::Refuse,
        }
    }
}

/// How far a long operation has come; given after each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Devices done.
    pub done: u64,
    /// Devices in all, where that is known.
    pub total: Option<u64>,
}

/// A device with the state that an import carries over and an enrolment starts afresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// The device.
    pub record: DeviceRecord,
    /// The mark: no row below it is handed out any more.
    pub idx_floor: RowIndex,
    /// How often its credentials have been replaced.
    pub epoch: u32,
    /// Active, or revoked for good.
    pub status: Status,
    /// Why it is shut out for the time being, if it is.
    pub quarantine: Option<Quarantine>,
    /// By what its PUF is recognized, where the enrolling side had the PUF.
    pub fingerprint: Option<Fingerprint>,
}

impl NewDevice {
    /// Refuses what must never be stored.
    fn validate(&self) -> Result<()> {
        self.record.validate()?;
        let revoked = match &self.status {
            Status::Active => None,
            Status::Revoked { at_s, reason } => Some(("revoked_reason", *at_s, reason)),
        };
        let quarantined = self
            .quarantine
            .as_ref()
            .map(|quarantine| ("quarantined_reason", quarantine.at_s, &quarantine.reason));
        for (field, at_s, reason) in revoked.into_iter().chain(quarantined) {
            let invalid = |problem| RegistryError::InvalidRecord {
                device: self.record.device,
                field,
                problem,
            };
            check_text(reason, TEXT_BYTES_MAX, true).map_err(invalid)?;
            if i64::try_from(at_s).is_err() {
                return Err(invalid("its time is not one in seconds since 1970".to_owned()));
            }
        }
        Ok(())
    }
}

impl From<DeviceRecord> for NewDevice {
    fn from(record: DeviceRecord) -> Self {
        let idx_floor = RowIndex(record.credentials.indices().start);
        Self {
            record,
            idx_floor,
            epoch: 0,
            status: Status::Active,
            quarantine: None,
            fingerprint: None,
        }
    }
}

/// Devices that are ready to be stored; made by [`Registry::seal_chunk`] of the same registry.
#[derive(Debug)]
pub struct SealedDevices {
    devices: Vec<NewDevice>,
    /// Of each, as of a device that is not enrolled yet.
    sealed: Vec<Vec<u8>>,
}

impl SealedDevices {
    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.devices.len()
    }
}

impl Registry {
    /// Enrols one device.
    ///
    /// # Errors
    /// A record that must not be stored (zero id or key, no rows, text too long), a device that is enrolled
    /// already, or a failure of the database. Nothing is stored then.
    pub async fn enrol(&self, record: DeviceRecord) -> Result<()> {
        self.enrol_chunk(vec![record], OnConflict::Refuse).await
    }

    /// Enrols these devices in one transaction, all or none; for callers that produce devices asynchronously.
    ///
    /// # Errors
    /// As [`Registry::enrol`], also for a device that occurs twice.
    pub async fn enrol_chunk(&self, records: Vec<DeviceRecord>, on_conflict: OnConflict) -> Result<()> {
        let devices: Vec<NewDevice> = records.into_iter().map(NewDevice::from).collect();
        self.import_chunk(self.seal_chunk(devices)?, on_conflict).await
    }

    /// Seals what the devices are to prove themselves by, for [`Registry::import_chunk`]: half of the work, and nobody waits for it.
    ///
    /// # Errors
    /// A record that must not be stored, a device that occurs twice, or no random bytes.
    pub fn seal_chunk(&self, devices: Vec<NewDevice>) -> Result<SealedDevices> {
        let mut seen = HashSet::with_capacity(devices.len());
        for device in &devices {
            device.validate()?;
            let device = device.record.device;
            if !seen.insert(device) {
                return Err(RegistryError::RepeatedDevice { device });
            }
        }
        let seal = |device: &NewDevice| self.seal(device, &described(device, None, 0)?);
        let sealed = devices.iter().map(seal).collect::<Result<_>>()?;
        Ok(SealedDevices { devices, sealed })
    }

    /// Enrols these devices in one transaction, all or none, with what they have been through elsewhere.
    ///
    /// # Errors
    /// A device that is enrolled already, or whose PUF is another device's that is not revoked, or a failure of the database. Nothing is stored then.
    pub async fn import_chunk(&self, chunk: SealedDevices, on_conflict: OnConflict) -> Result<()> {
        let SealedDevices { devices, sealed } = chunk;
        let mut sealed = sealed.into_iter();
        let mut transaction = self.write().await?;
        let existing = self.replaceable(&mut transaction, &devices, on_conflict).await?;
        let replaced: Vec<DeviceId> = existing.keys().copied().collect();
        self.remove_fingerprints(&mut transaction, &replaced).await?;
        remove(&mut transaction, replaced).await?;
        self.put_fingerprints(&mut transaction, &devices).await?;
        let mut revision = feed::advance(&mut transaction, devices.len()).await?;
        for batch in devices.chunks(DEVICES_PER_INSERT) {
            let mut records = Vec::with_capacity(batch.len());
            for (device, sealed) in batch.iter().zip(sealed.by_ref()) {
                revision = revision.saturating_add(1);
                let old = existing.get(&device.record.device);
                let info = described(device, old, revision)?;
                let sealed = match old {
                    None => sealed,
                    // It is bound to its epoch, which is another one.
                    Some(_) => self.seal(device, &info)?,
                };
                let mac = self.record_mac().code(&info);
                records.push(Prepared { info, mac, sealed });
            }
            insert(&mut transaction, &records).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Enrols many devices, a transaction per chunk, and returns how many were stored.
    ///
    /// `progress` is called after each chunk. Dropping the future stops between chunks; what was reported as done
    /// stays.
    ///
    /// # Errors
    /// [`RegistryError::Chunk`] says how many devices were stored before the refused chunk, and why it was.
    pub async fn enrol_bulk(
        &self,
        records: impl IntoIterator<Item: Into<NewDevice>>,
        options: BulkOptions,
        progress: impl FnMut(Progress),
    ) -> Result<u64> {
        let records = records.into_iter();
        let total = match records.size_hint() {
            (low, Some(high)) if low == high => u64::try_from(low).ok(),
            _ => None,
        };
        self.store_bulk(records.map(|record| Ok(record.into())), total, options, progress)
            .await
    }

    pub(crate) async fn store_bulk(
        &self,
        mut devices: impl Iterator<Item = Result<NewDevice>>,
        total: Option<u64>,
        options: BulkOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<u64> {
        let mut done = 0;
        loop {
            let chunk: Vec<Result<NewDevice>> = devices.by_ref().take(options.chunk_devices.max(1)).collect();
            if chunk.is_empty() {
                return Ok(done);
            }
            let end = done.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
            let stored = match chunk.into_iter().collect::<Result<Vec<NewDevice>>>() {
                Ok(chunk) => match self.seal_chunk(chunk) {
                    Ok(sealed) => self.import_chunk(sealed, options.on_conflict).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            stored.map_err(|source| RegistryError::Chunk {
                committed: done,
                first: done,
                end,
                source: Box::new(source),
            })?;
            done = end;
            progress(Progress { done, total });
        }
    }

    /// Those of the devices that are enrolled and may be replaced; an error for the first that may not.
    async fn replaceable(
        &self,
        connection: &mut Connection,
        devices: &[NewDevice],
        on_conflict: OnConflict,
    ) -> Result<HashMap<DeviceId, DeviceInfo>> {
        let mut replaceable = HashMap::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            let ids = batch.iter().map(|device| device.record.device);
            let mut enrolled = self.get_many_in(connection, ids).await?;
            for NewDevice {
                record: DeviceRecord { device, .. },
                status,
                ..
            } in batch
            {
                let device = *device;
                let Some(info) = enrolled.remove(&device) else {
                    continue;
                };
                if on_conflict == OnConflict::Refuse {
                    let is_revoked = info.is_ok_and(|info| !info.status.is_active());
                    // An active device could not replace it either.
                    return Err(match is_revoked {
                        true => RegistryError::Revoked { device },
                        false => RegistryError::AlreadyEnrolled { device },
                    });
                }
                // A damaged record cannot be replaced: nobody knows where its mark stood.
                let info = info?;
                if !info.status.is_active() && status.is_active() {
                    return Err(RegistryError::Revoked { device });
                }
                replaceable.insert(device, info);
            }
        }
        Ok(replaceable)
    }

    fn seal(&self, new: &NewDevice, info: &DeviceInfo) -> Result<Vec<u8>> {
        let credentials = &new.record.credentials;
        let aad = Place::of(info).aad();
        let write = |out: &mut Vec<u8>| credentials.encode(out);
        Ok(self.sealer().seal(&aad, credentials.encoded_len(), write)?)
    }
}

/// What is written for a device, given what is there.
fn described(new: &NewDevice, old: Option<&DeviceInfo>, revision: i64) -> Result<DeviceInfo> {
    let record = &new.record;
    let indices = record.credentials.indices();
    let idx_floor = new
        .idx_floor
        .0
        .max(indices.start)
        .max(old.map_or(0, |old| old.idx_floor.0));
    if old.is_some() && !indices.is_empty() && idx_floor >= indices.end {
        return Err(RegistryError::InvalidRecord {
            device: record.device,
            field: "credentials",
            problem: format!(
                "rows {}..{} were all handed out before (numbers are never used twice); make the new pool \
                 start at row {idx_floor}",
                indices.start, indices.end
            ),
        });
    }
    Ok(DeviceInfo {
        device: record.device,
        name: record.name.clone(),
        mode: record.credentials.mode(),
        suite: record.suite,
        status: new.status.clone(),
        // New credentials say nothing of what the device runs.
        quarantine: old
            .and_then(|old| old.quarantine.clone())
            .or_else(|| new.quarantine.clone()),
        enrolled_at_s: record.enrolled_at_s,
        first_idx: RowIndex(indices.start),
        rows_total: indices.end.saturating_sub(indices.start),
        idx_floor: RowIndex(idx_floor),
        epoch: old.map_or(new.epoch, |old| new.epoch.max(old.epoch.saturating_add(1))),
        revision: Revision(revision.cast_unsigned()),
        puf_profile: record.puf_profile.clone(),
        floor_version: old.map_or(0, |old| old.floor_version.saturating_add(1)),
    })
}

/// A device's record, ready to be written.
struct Prepared {
    info: DeviceInfo,
    mac: [u8; MAC_BYTES],
    sealed: Vec<u8>,
}

async fn insert(connection: &mut Connection, records: &[Prepared]) -> Result<()> {
    let mut insert = Builder::new(
        "INSERT INTO device (device_id, name, mode, suite, status, enrolled_at_s, revoked_at_s, revoked_reason, \
         first_idx, rows_total, idx_floor, floor_version, epoch, revision, puf_profile, mac, quarantined_at_s, \
         quarantined_reason) ",
    );
    insert.push_values(records, |mut values, Prepared { info, mac, .. }| {
        let (status, revoked_at_s, reason) = status_to_columns(&info.status);
        let (quarantined_at_s, quarantined_reason) = quarantine_to_columns(info.quarantine.as_ref());
        values
            .push_bind(id_to_column(info.device))
            .push_bind(&info.name)
            .push_bind(mode_to_column(info.mode))
            .push_bind(i16::from(info.suite.number()))
            .push_bind(status)
            .push_bind(seconds_to_column(info.enrolled_at_s))
            .push_bind(revoked_at_s)
            .push_bind(reason)
            .push_bind(i64::from(info.first_idx.0))
            .push_bind(i64::from(info.rows_total))
            .push_bind(i64::from(info.idx_floor.0))
            .push_bind(info.floor_version)
            .push_bind(i64::from(info.epoch))
            .push_bind(info.revision.0.cast_signed())
            .push_bind(&info.puf_profile)
            .push_bind(mac.as_slice())
            .push_bind(quarantined_at_s)
            .push_bind(quarantined_reason);
    });
    insert.build().execute(&mut *connection).await?;

    let mut insert = Builder::new("INSERT INTO credential (device_id, sealed) ");
    insert.push_values(records, |mut values, Prepared { info, sealed, .. }| {
        values.push_bind(id_to_column(info.device)).push_bind(sealed);
    });
    insert.build().execute(&mut *connection).await?;
    Ok(())
}

async fn remove(connection: &mut Connection, devices: Vec<DeviceId>) -> Result<()> {
    for ids in devices.chunks(IDS_PER_QUERY) {
        // Credentials first: they refer to the device. Leases are of its old rows, and so is the last ticket's number: a
        // device that has used them up begins anew when it is enrolled anew. Tickets of before are of another epoch.
        for table in [
            "DELETE FROM lease WHERE device_id IN ",
            "DELETE FROM spare WHERE device_id IN ",
            "DELETE FROM ticket WHERE device_id IN ",
            "DELETE FROM roaming WHERE device_id IN ",
            "DELETE FROM credential WHERE device_id IN ",
            "DELETE FROM device WHERE device_id IN ",
        ] {
            let mut query = Builder::new(table);
            query.push_ids(ids.iter().copied());
            query.build().execute(&mut *connection).await?;
        }
    }
    Ok(())
}

/// Lists of ids in queries.
pub(crate) trait PushIds {
    /// Appends `(id, id, …)`.
    fn push_ids(&mut self, ids: impl Iterator<Item = DeviceId>);
}

impl PushIds for Builder {
    fn push_ids(&mut self, ids: impl Iterator<Item = DeviceId>) {
        self.push_list(ids.map(id_to_column));
    }
}
