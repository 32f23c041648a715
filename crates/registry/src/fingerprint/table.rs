//! The tables `fingerprint` and `fingerprint_band`.

use std::collections::{BTreeMap, HashMap};

use hmac::{Hmac, KeyInit as _, Mac as _};
use linewarden_files::seal::{Sealer, derive_key};
use linewarden_protocol::ids::DeviceId;
use sha2::Sha256;

use super::{Band, Fingerprint, agreement};
use crate::column::ColumnValue;
use crate::enroll::{IDS_PER_QUERY, NewDevice, PushIds as _};
use crate::error::{RegistryError, Result};
use crate::key::MasterKey;
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

const SEALING_PURPOSE: &str = "linewarden registry fingerprints v1";
const HASH_PURPOSE: &str = "linewarden registry fingerprint bands v1";
const LABEL: &[u8] = b"linewarden registry table fingerprint v1";
/// Bands per statement.
const BANDS_PER_QUERY: usize = 1_000;

/// Devices per chunk of a check.
const CHECK_CHUNK_DEVICES: i64 = 1_000;

/// The keys of one registry's fingerprints.
pub(crate) struct FingerprintKeys {
    sealer: Sealer,
    hash: Hmac<Sha256>,
}

impl FingerprintKeys {
    pub(crate) fn derive(key: &MasterKey, registry_id: &[u8]) -> Self {
        let hash = derive_key::<64>(key.expose(), registry_id, HASH_PURPOSE);
        Self {
            sealer: Sealer::derive(key.expose(), registry_id, SEALING_PURPOSE),
            hash: Hmac::new((&*hash).into()),
        }
    }

    fn hash(&self, band: &Band) -> i64 {
        let mut hash = self.hash.clone();
        hash.update(&band.position.to_be_bytes());
        hash.update(&band.bits.to_be_bytes());
        let code = hash.finalize().into_bytes();
        // SHA-256 has 32 bytes.
        i64::from_be_bytes(code.first_chunk().copied().unwrap_or_default())
    }

    fn hashes(&self, fingerprint: &Fingerprint) -> Vec<i64> {
        fingerprint.bands().iter().map(|band| self.hash(band)).collect()
    }
}

fn aad(device: DeviceId) -> Vec<u8> {
    [LABEL, &device.0.to_be_bytes()].concat()
}

/// Device, sealed.
type SealedRow = (ColumnValue<i64>, ColumnValue<Vec<u8>>);

impl Registry {
    /// Refuses devices whose PUF is that of another enrolled device that is not revoked, or of an earlier device in
    /// the list; stores the other fingerprints.
    pub(crate) async fn store_fingerprints(
        &self,
        connection: &mut Connection,
        devices: &[NewDevice],
    ) -> Result<()> {
        let keys = self.fingerprint_keys();
        let new: Vec<(&NewDevice, &Fingerprint, Vec<i64>)> = devices
            .iter()
            .filter_map(|device| {
                let fingerprint = device.fingerprint.as_ref()?;
                Some((device, fingerprint, keys.hashes(fingerprint)))
            })
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let all = new.iter().flat_map(|(_, _, hashes)| hashes.iter().copied());
        let mut holders = holders(connection, all.collect()).await?;
        for (device, fingerprint, hashes) in &new {
            let id = device.record.device;
            if device.status.is_active() {
                self.refuse_duplicate(connection, (id, fingerprint), hashes, &holders)
                    .await?;
                for hash in hashes {
                    holders.entry(*hash).or_default().push(id);
                }
            }
        }
        self.insert_fingerprints(connection, &new).await
    }

    /// Refuses a device whose bands agree with those of another device.
    async fn refuse_duplicate(
        &self,
        connection: &mut Connection,
        (device, fingerprint): (DeviceId, &Fingerprint),
        hashes: &[i64],
        holders: &HashMap<i64, Vec<DeviceId>>,
    ) -> Result<()> {
        let mut agreeing: BTreeMap<DeviceId, Vec<bool>> = BTreeMap::new();
        for (index, hash) in hashes.iter().enumerate() {
            for holder in holders.get(hash).into_iter().flatten() {
                let agrees = agreeing
                    .entry(*holder)
                    .or_insert_with(|| vec![false; hashes.len()]);
                if let Some(agrees) = agrees.get_mut(index) {
                    *agrees = true;
                }
            }
        }
        for (other, agrees) in agreeing {
            let Some(agreement) = agreement(&agrees) else {
                continue;
            };
            if self.is_enrolled_puf(connection, other, fingerprint).await? {
                return Err(RegistryError::DuplicatePuf {
                    device,
                    other,
                    bands: agreement.bands,
                    of: agreement.of,
                });
            }
        }
        Ok(())
    }

    /// Whether a device found by the index is not revoked and has this PUF according to its sealed fingerprint. A
    /// device of the same transaction is not yet stored; the index is then correct.
    async fn is_enrolled_puf(
        &self,
        connection: &mut Connection,
        device: DeviceId,
        fingerprint: &Fingerprint,
    ) -> Result<bool> {
        match self.get_in(connection, device).await {
            // The chip of a revoked device may be enrolled under another id.
            Ok(info) if !info.status.is_active() => return Ok(false),
            Ok(_) | Err(RegistryError::UnknownDevice { .. } | RegistryError::DamagedRecord { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut found = self.fingerprints_of(connection, &[device]).await?;
        let Some(Ok(stored)) = found.remove(&device) else {
            return Ok(true);
        };
        let is_common = |band: &Band| stored.bands().contains(band);
        let agrees: Vec<bool> = fingerprint.bands().iter().map(is_common).collect();
        Ok(agreement(&agrees).is_some())
    }

    async fn insert_fingerprints(
        &self,
        connection: &mut Connection,
        new: &[(&NewDevice, &Fingerprint, Vec<i64>)],
    ) -> Result<()> {
        for chunk in new.chunks(IDS_PER_QUERY) {
            let mut rows = Vec::with_capacity(chunk.len());
            for (device, fingerprint, _) in chunk {
                let id = device.record.device;
                let write = |out: &mut Vec<u8>| fingerprint.encode(out);
                let sealer = &self.fingerprint_keys().sealer;
                rows.push((id, sealer.seal(&aad(id), fingerprint.encoded_len(), write)?));
            }
            let mut insert = Builder::new("INSERT INTO fingerprint (device_id, sealed) ");
            insert.push_values(rows, |mut values, (id, sealed)| {
                values.push_bind(id_to_column(id)).push_bind(sealed);
            });
            insert.build().execute(&mut *connection).await?;
        }
        let bands: Vec<(i64, DeviceId)> = new
            .iter()
            .flat_map(|(device, _, hashes)| hashes.iter().map(|hash| (*hash, device.record.device)))
            .collect();
        for chunk in bands.chunks(BANDS_PER_QUERY) {
            let mut insert = Builder::new("INSERT INTO fingerprint_band (hash, device_id) ");
            insert.push_values(chunk, |mut values, (hash, device)| {
                values.push_bind(*hash).push_bind(id_to_column(*device));
            });
            insert.build().execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// Deletes the fingerprints of devices.
    pub(crate) async fn remove_fingerprints(
        &self,
        connection: &mut Connection,
        devices: &[DeviceId],
    ) -> Result<()> {
        for (device, found) in self.fingerprints_of(connection, devices).await? {
            let hashes = found.as_ref().map(|found| self.fingerprint_keys().hashes(found));
            let mut delete = Builder::new("DELETE FROM fingerprint_band WHERE device_id = ");
            delete.push_bind(id_to_column(device));
            // Without the hashes, all bands are scanned.
            if let Ok(hashes) = hashes {
                delete.push(" AND hash IN ");
                delete.push_list(hashes.into_iter());
            }
            delete.build().execute(&mut *connection).await?;
        }
        for ids in devices.chunks(IDS_PER_QUERY) {
            let mut delete = Builder::new("DELETE FROM fingerprint WHERE device_id IN ");
            delete.push_ids(ids.iter().copied());
            delete.build().execute(&mut *connection).await?;
        }
        Ok(())
    }

    /// The fingerprints of those of these devices that have one.
    pub(crate) async fn fingerprints_of(
        &self,
        connection: &mut Connection,
        devices: &[DeviceId],
    ) -> Result<HashMap<DeviceId, Result<Fingerprint>>> {
        let mut found = HashMap::new();
        for ids in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new("SELECT device_id, sealed FROM fingerprint WHERE device_id IN ");
            query.push_ids(ids.iter().copied());
            let rows: Vec<SealedRow> = query.build().fetch_all(&mut *connection).await?;
            found.extend(rows.iter().map(|row| self.open_fingerprint(row)));
        }
        Ok(found)
    }

    fn open_fingerprint(&self, (device, sealed): &SealedRow) -> (DeviceId, Result<Fingerprint>) {
        let device = id_from_column(device.0);
        let opened = self.fingerprint_keys().sealer.open(&aad(device), &sealed.0);
        let fingerprint = opened.ok().and_then(|bytes| Fingerprint::from_bytes(&bytes));
        (device, fingerprint.ok_or_else(|| damage(device)))
    }

    /// Fingerprints that do not open, or whose hashes are missing, for [`Registry::check`].
    pub(crate) async fn damaged_fingerprints(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<RegistryError>> {
        let (mut damaged, mut after) = (Vec::new(), i64::MIN);
        loop {
            let rows: Vec<SealedRow> = sql::query(
                "SELECT device_id, sealed FROM fingerprint WHERE device_id >= $1 ORDER BY device_id LIMIT $2",
            )
            .bind(after)
            .bind(CHECK_CHUNK_DEVICES)
            .fetch_all(&mut *connection)
            .await?;
            damaged.extend(self.damaged_of(connection, &rows).await?);
            let last = rows.iter().map(|(device, _)| device.0).max();
            match last
                .and_then(|last| last.checked_add(1))
                .filter(|next| *next > after)
            {
                Some(next) => after = next,
                None => return Ok(damaged),
            }
        }
    }

    async fn damaged_of(
        &self,
        connection: &mut Connection,
        rows: &[SealedRow],
    ) -> Result<Vec<RegistryError>> {
        let (mut damaged, mut expected) = (Vec::new(), Vec::new());
        for row in rows {
            match self.open_fingerprint(row) {
                (device, Ok(found)) => expected.push((device, self.fingerprint_keys().hashes(&found))),
                (_, Err(error)) => damaged.push(error),
            }
        }
        let all = expected.iter().flat_map(|(_, hashes)| hashes.iter().copied());
        let holders = holders(connection, all.collect()).await?;
        let is_incomplete = |(device, hashes): &(DeviceId, Vec<i64>)| {
            let is_there = |hash| holders.get(hash).is_some_and(|holders| holders.contains(device));
            (!hashes.iter().all(is_there)).then_some(*device)
        };
        damaged.extend(expected.iter().filter_map(is_incomplete).map(damage));
        Ok(damaged)
    }
}

fn damage(device: DeviceId) -> RegistryError {
    RegistryError::DamagedRecord {
        device,
        problem: "its PUF's fingerprint is damaged; enroll it again with `--replace`".to_owned(),
    }
}

/// The devices that have bands of these hashes.
async fn holders(connection: &mut Connection, mut hashes: Vec<i64>) -> Result<HashMap<i64, Vec<DeviceId>>> {
    hashes.sort_unstable();
    hashes.dedup();
    let mut holders: HashMap<i64, Vec<DeviceId>> = HashMap::new();
    for chunk in hashes.chunks(BANDS_PER_QUERY) {
        let mut query = Builder::new("SELECT hash, device_id FROM fingerprint_band WHERE hash IN ");
        query.push_list(chunk.iter().copied());
        let rows: Vec<(ColumnValue<i64>, ColumnValue<i64>)> =
            query.build().fetch_all(&mut *connection).await?;
        for (hash, device) in rows {
            holders.entry(hash.0).or_default().push(id_from_column(device.0));
        }
    }
    Ok(holders)
}
