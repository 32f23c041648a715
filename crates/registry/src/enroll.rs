//! Enrollment of devices, one by one or in chunks with one transaction each.

use std::collections::{HashMap, HashSet};

use linewarden_protocol::ids::{DeviceId, RowIndex};
use linewarden_types::Revision;

use crate::conversion::{
    id_to_column, mode_to_column, quarantine_to_columns, seconds_to_column, status_to_columns,
};
use crate::device::{DeviceInfo, DeviceRecord, Quarantine, Status, TEXT_BYTES_MAX, check_text};
use crate::error::{BulkError, DeviceError, RegistryError, Result};
use crate::feed;
use crate::fingerprint::Fingerprint;
use crate::record_tag::TAG_BYTES;
use crate::seal_context::SealContext;
use crate::sql::{Builder, Connection};
use crate::store::Registry;

/// Devices per INSERT statement: few round trips, and far below SQLite's limit of 32,766 parameters.
const DEVICES_PER_INSERT: usize = 100;
/// Device ids per IN list.
pub(crate) const IDS_PER_QUERY: usize = 500;

/// The action for a device that is already enrolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// Refuse the chunk with an error that names the device.
    #[default]
    Refuse,
    /// Replace its credentials, name and profile. `idx_floor` never decreases: rows of the new pool below `idx_floor` are
    /// lost, so let the pool start at `idx_floor`. A revoked device is refused; a device in quarantine stays in quarantine.
    Replace,
}

/// Options of a bulk enrollment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkOptions {
    /// Devices per transaction: each chunk is stored completely or not at all.
    pub chunk_devices: usize,
    /// The action for a device that is already enrolled.
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

/// The progress of a long operation, reported after each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of devices processed; in copies, number of records.
    pub done: u64,
    /// Total number of devices or records, if known.
    pub total: Option<u64>,
}

/// A device to store, with its state: an import keeps the state of the export, an enrollment starts with a new state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// The device.
    pub record: DeviceRecord,
    /// From this row on, no row is leased or was used ([`DeviceInfo::idx_floor`]).
    pub idx_floor: RowIndex,
    /// Number of replacements of the credentials.
    pub epoch: u32,
    /// Active or revoked.
    pub status: Status,
    /// The quarantine, if the device is in quarantine.
    pub quarantine: Option<Quarantine>,
    /// The fingerprint of the PUF, if the enrolling side had access to the PUF.
    pub fingerprint: Option<Fingerprint>,
}

impl NewDevice {
    /// Validates the device before it is stored.
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
            let invalid = |problem| {
                RegistryError::Device(DeviceError::InvalidRecord {
                    device: self.record.device,
                    field,
                    problem,
                })
            };
            check_text(reason, TEXT_BYTES_MAX, true).map_err(invalid)?;
            if i64::try_from(at_s).is_err() {
                return Err(invalid("not a valid time in seconds since 1970".to_owned()));
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

/// Devices that are ready to be stored, created by [`Registry::seal_chunk`] of the same registry.
#[derive(Debug)]
pub struct SealedDevices {
    devices: Vec<NewDevice>,
    /// The sealed credentials of each device, for a device that is not yet enrolled.
    sealed: Vec<Vec<u8>>,
}

impl SealedDevices {
    /// The number of devices.
    #[must_use]
    pub fn count(&self) -> usize {
        self.devices.len()
    }
}

impl Registry {
    /// Enrolls one device.
    ///
    /// # Errors
    /// An invalid record (zero id or key, no rows, text too long), a device that is already enrolled, or a failure of
    /// the database. Nothing is stored then.
    pub async fn enroll(&self, record: DeviceRecord) -> Result<()> {
        self.enroll_chunk(vec![record], OnConflict::Refuse).await
    }

    /// Enrolls all devices in one transaction, or none; for callers that produce devices asynchronously.
    ///
    /// # Errors
    /// As [`Registry::enroll`]; also a device that occurs twice.
    pub async fn enroll_chunk(&self, records: Vec<DeviceRecord>, on_conflict: OnConflict) -> Result<()> {
        let devices: Vec<NewDevice> = records.into_iter().map(NewDevice::from).collect();
        self.import_chunk(self.seal_chunk(devices)?, on_conflict).await
    }

    /// Seals the credentials of devices for [`Registry::import_chunk`]. Sealing takes half of the time of an import and
    /// needs no lock.
    ///
    /// # Errors
    /// An invalid record, a device that occurs twice, or no random bytes.
    pub fn seal_chunk(&self, devices: Vec<NewDevice>) -> Result<SealedDevices> {
        let mut seen = HashSet::with_capacity(devices.len());
        for device in &devices {
            device.validate()?;
            let device = device.record.device;
            if !seen.insert(device) {
                return Err(RegistryError::Device(DeviceError::DuplicateDevice { device }));
            }
        }
        let seal = |device: &NewDevice| self.seal(device, &merged_info(device, None, 0)?);
        let sealed = devices.iter().map(seal).collect::<Result<_>>()?;
        Ok(SealedDevices { devices, sealed })
    }

    /// Enrolls all devices with their imported state in one transaction, or none.
    ///
    /// # Errors
    /// A device that is already enrolled, a PUF of another device that is not revoked, or a failure of the database.
    /// Nothing is stored then.
    pub async fn import_chunk(&self, chunk: SealedDevices, on_conflict: OnConflict) -> Result<()> {
        let SealedDevices { devices, sealed } = chunk;
        let mut sealed = sealed.into_iter();
        let mut transaction = self.write().await?;
        let existing = self.replaceable(&mut transaction, &devices, on_conflict).await?;
        let replaced: Vec<DeviceId> = existing.keys().copied().collect();
        self.remove_fingerprints(&mut transaction, &replaced).await?;
        remove(&mut transaction, replaced).await?;
        self.store_fingerprints(&mut transaction, &devices).await?;
        let mut revision = feed::reserve_revisions(&mut transaction, devices.len()).await?;
        for batch in devices.chunks(DEVICES_PER_INSERT) {
            let mut records = Vec::with_capacity(batch.len());
            for (device, sealed) in batch.iter().zip(sealed.by_ref()) {
                revision = revision.saturating_add(1);
                let old = existing.get(&device.record.device);
                let info = merged_info(device, old, revision)?;
                let sealed = match old {
                    None => sealed,
                    // The seal is bound to the epoch, which changes.
                    Some(_) => self.seal(device, &info)?,
                };
                let tag = self.authenticator().tag(&info);
                records.push(PreparedRecord { info, tag, sealed });
            }
            insert(&mut transaction, &records).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Enrolls many devices, one transaction per chunk; returns the number of devices stored.
    ///
    /// `progress` is called after each chunk. If the caller drops the future, the enrollment stops between two chunks;
    /// reported devices remain stored.
    ///
    /// # Errors
    /// [`BulkError::ChunkRefused`] names the number of devices stored before the refused chunk, and the cause.
    pub async fn enroll_bulk(
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
            let result = match chunk.into_iter().collect::<Result<Vec<NewDevice>>>() {
                Ok(chunk) => match self.seal_chunk(chunk) {
                    Ok(sealed) => self.import_chunk(sealed, options.on_conflict).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            result.map_err(|source| {
                RegistryError::Bulk(BulkError::ChunkRefused {
                    committed: done,
                    first: done,
                    end,
                    source: Box::new(source),
                })
            })?;
            done = end;
            progress(Progress { done, total });
        }
    }

    /// The records of the devices that are already enrolled. An error if one of these devices may not be replaced.
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
                    // A revoked device cannot be replaced by an active one in any case.
                    return Err(match is_revoked {
                        true => RegistryError::Device(DeviceError::Revoked { device }),
                        false => RegistryError::Device(DeviceError::AlreadyEnrolled { device }),
                    });
                }
                // A damaged record cannot be replaced, because its `idx_floor` is unknown.
                let info = info?;
                if !info.status.is_active() && status.is_active() {
                    return Err(RegistryError::Device(DeviceError::Revoked { device }));
                }
                replaceable.insert(device, info);
            }
        }
        Ok(replaceable)
    }

    fn seal(&self, new: &NewDevice, info: &DeviceInfo) -> Result<Vec<u8>> {
        let credentials = &new.record.credentials;
        let aad = SealContext::of(info).aad();
        let write = |out: &mut Vec<u8>| credentials.encode(out);
        Ok(self.sealer().seal(&aad, credentials.encoded_len(), write)?)
    }
}

/// The record to write for a device; `old` is the existing record.
fn merged_info(new: &NewDevice, old: Option<&DeviceInfo>, revision: i64) -> Result<DeviceInfo> {
    let record = &new.record;
    let indices = record.credentials.indices();
    let idx_floor = new
        .idx_floor
        .0
        .max(indices.start)
        .max(old.map_or(0, |old| old.idx_floor.0));
    if old.is_some() && !indices.is_empty() && idx_floor >= indices.end {
        return Err(RegistryError::Device(DeviceError::InvalidRecord {
            device: record.device,
            field: "credentials",
            problem: format!(
                "rows {}..{} were already leased, and row numbers are never used twice; let the new pool \
                 start at row {idx_floor}",
                indices.start, indices.end
            ),
        }));
    }
    Ok(DeviceInfo {
        device: record.device,
        name: record.name.clone(),
        mode: record.credentials.mode(),
        suite: record.suite,
        status: new.status.clone(),
        // New credentials do not end a quarantine.
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

/// A device record that is ready to be written.
struct PreparedRecord {
    info: DeviceInfo,
    tag: [u8; TAG_BYTES],
    sealed: Vec<u8>,
}

async fn insert(connection: &mut Connection, records: &[PreparedRecord]) -> Result<()> {
    let mut insert = Builder::new(
        "INSERT INTO device (device_id, name, mode, suite, status, enrolled_at_s, revoked_at_s, revoked_reason, \
         first_idx, rows_total, idx_floor, floor_version, epoch, revision, puf_profile, tag, quarantined_at_s, \
         quarantined_reason) ",
    );
    insert.push_values(records, |mut values, PreparedRecord { info, tag, .. }| {
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
            .push_bind(tag.as_slice())
            .push_bind(quarantined_at_s)
            .push_bind(quarantined_reason);
    });
    insert.build().execute(&mut *connection).await?;

    let mut insert = Builder::new("INSERT INTO credential (device_id, sealed) ");
    insert.push_values(records, |mut values, PreparedRecord { info, sealed, .. }| {
        values.push_bind(id_to_column(info.device)).push_bind(sealed);
    });
    insert.build().execute(&mut *connection).await?;
    Ok(())
}

async fn remove(connection: &mut Connection, devices: Vec<DeviceId>) -> Result<()> {
    for ids in devices.chunks(IDS_PER_QUERY) {
        // Credentials are deleted before the device that they reference. The leases belong to the old rows. The
        // number of the last ticket is deleted, so that a device that has used up its numbers starts at 1; earlier
        // tickets are of another epoch and therefore invalid.
        for statement in [
            "DELETE FROM lease WHERE device_id IN ",
            "DELETE FROM unleased_range WHERE device_id IN ",
            "DELETE FROM ticket WHERE device_id IN ",
            "DELETE FROM newest_session WHERE device_id IN ",
            "DELETE FROM credential WHERE device_id IN ",
            "DELETE FROM device WHERE device_id IN ",
        ] {
            let mut query = Builder::new(statement);
            query.push_ids(ids.iter().copied());
            query.build().execute(&mut *connection).await?;
        }
    }
    Ok(())
}

/// Lists of device ids in queries.
pub(crate) trait PushIds {
    /// Appends `(id, id, …)`.
    fn push_ids(&mut self, ids: impl Iterator<Item = DeviceId>);
}

impl PushIds for Builder {
    fn push_ids(&mut self, ids: impl Iterator<Item = DeviceId>) {
        self.push_list(ids.map(id_to_column));
    }
}
