//! The tables `fingerprint` and `fingerprint_band`.

use std::collections::{BTreeMap, HashMap};

use hmac::{Hmac, KeyInit as _, Mac as _};
use linewarden_files::seal::{Sealer, derive_key};
use linewarden_protocol::ids::DeviceId;
use sha2::Sha256;

use super::{Band, Fingerprint, agreement};
use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::enroll::{IDS_PER_QUERY, NewDevice, PushIds as _};
use crate::error::{DeviceError, RegistryError, Result};
use crate::key::MasterKey;
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
        let digest = hash.finalize().into_bytes();
        // The output of SHA-256 has 32 bytes, so the default is never used.
        i64::from_be_bytes(digest.first_chunk().copied().unwrap_or_default())
    }

    fn hashes(&self, fingerprint: &Fingerprint) -> Vec<i64> {
        fingerprint.bands().iter().map(|band| self.hash(band)).collect()
    }
}

fn aad(device: DeviceId) -> Vec<u8> {
    [LABEL, &device.0.to_be_bytes()].concat()
}

/// Columns of `fingerprint`: device, sealed bands.
type SealedFingerprintColumns = (ColumnValue<i64>, ColumnValue<Vec<u8>>);

impl Registry {
    /// Stores the fingerprints of devices. Refuses a device with the PUF of another enrolled device that is not
    /// revoked, or of an earlier device in the list.
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
        let new_hashes = new.iter().flat_map(|(_, _, hashes)| hashes.iter().copied());
        let mut holders = holders(connection, new_hashes.collect()).await?;
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

    /// Refuses a device whose bands agree with the bands of another device.
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
                return Err(RegistryError::Device(DeviceError::DuplicatePuf {
                    device,
                    other,
                    bands: agreement.bands,
                    bands_compared: agreement.bands_compared,
                }));
            }
        }
        Ok(())
    }

    /// Returns whether `device`, which was found by hashes, is not revoked and its sealed fingerprint agrees with
    /// `fingerprint`. A device of the same transaction has no stored fingerprint yet: the result is `true`, because its
    /// hashes were computed in this transaction, not read from the database. The result is also `true` if the stored
    /// fingerprint is damaged.
    async fn is_enrolled_puf(
        &self,
        connection: &mut Connection,
        device: DeviceId,
        fingerprint: &Fingerprint,
    ) -> Result<bool> {
        match self.get_in(connection, device).await {
            // The chip of a revoked device may be enrolled under another id.
            Ok(info) if !info.status.is_active() => return Ok(false),
            Ok(_)
            | Err(RegistryError::Device(
                DeviceError::UnknownDevice { .. } | DeviceError::DamagedRecord { .. },
            )) => {}
            Err(error) => return Err(error),
        }
        let mut fingerprints = self.fingerprints_of(connection, &[device]).await?;
        let Some(Ok(stored)) = fingerprints.remove(&device) else {
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
            let mut records = Vec::with_capacity(chunk.len());
            for (device, fingerprint, _) in chunk {
                let id = device.record.device;
                let write = |out: &mut Vec<u8>| fingerprint.encode(out);
                let sealer = &self.fingerprint_keys().sealer;
                records.push((id, sealer.seal(&aad(id), fingerprint.encoded_len(), write)?));
            }
            let mut insert = Builder::new("INSERT INTO fingerprint (device_id, sealed) ");
            insert.push_values(records, |mut values, (id, sealed)| {
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
        for (device, fingerprint) in self.fingerprints_of(connection, devices).await? {
            let hashes = fingerprint
                .as_ref()
                .map(|fingerprint| self.fingerprint_keys().hashes(fingerprint));
            let mut delete = Builder::new("DELETE FROM fingerprint_band WHERE device_id = ");
            delete.push_bind(id_to_column(device));
            // If the fingerprint is damaged, its hashes are unknown, and the statement scans all bands.
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

    /// The fingerprints of devices; an error for each damaged fingerprint. Devices without a fingerprint are absent.
    pub(crate) async fn fingerprints_of(
        &self,
        connection: &mut Connection,
        devices: &[DeviceId],
    ) -> Result<HashMap<DeviceId, Result<Fingerprint>>> {
        let mut fingerprints = HashMap::new();
        for ids in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new("SELECT device_id, sealed FROM fingerprint WHERE device_id IN ");
            query.push_ids(ids.iter().copied());
            let records: Vec<SealedFingerprintColumns> = query.build().fetch_all(&mut *connection).await?;
            fingerprints.extend(records.iter().map(|record| self.open_fingerprint(record)));
        }
        Ok(fingerprints)
    }

    fn open_fingerprint(
        &self,
        (device, sealed): &SealedFingerprintColumns,
    ) -> (DeviceId, Result<Fingerprint>) {
        let device = id_from_column(device.0);
        let opened = self.fingerprint_keys().sealer.open(&aad(device), &sealed.0);
        let fingerprint = opened.ok().and_then(|bytes| Fingerprint::from_bytes(&bytes));
        (device, fingerprint.ok_or_else(|| damage(device)))
    }

    /// Returns an error for each fingerprint that cannot be decrypted or lacks a stored hash; [`Registry::check`]
    /// reports these errors.
    pub(crate) async fn damaged_fingerprints(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<RegistryError>> {
        let (mut damaged, mut after) = (Vec::new(), i64::MIN);
        loop {
            let records: Vec<SealedFingerprintColumns> = sql::query(
                "SELECT device_id, sealed FROM fingerprint WHERE device_id >= $1 ORDER BY device_id LIMIT $2",
            )
            .bind(after)
            .bind(CHECK_CHUNK_DEVICES)
            .fetch_all(&mut *connection)
            .await?;
            damaged.extend(self.damaged_of(connection, &records).await?);
            let last = records.iter().map(|(device, _)| device.0).max();
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
        records: &[SealedFingerprintColumns],
    ) -> Result<Vec<RegistryError>> {
        let (mut damaged, mut expected) = (Vec::new(), Vec::new());
        for record in records {
            match self.open_fingerprint(record) {
                (device, Ok(fingerprint)) => {
                    expected.push((device, self.fingerprint_keys().hashes(&fingerprint)));
                }
                (_, Err(error)) => damaged.push(error),
            }
        }
        let expected_hashes = expected.iter().flat_map(|(_, hashes)| hashes.iter().copied());
        let holders = holders(connection, expected_hashes.collect()).await?;
        let is_incomplete = |(device, hashes): &(DeviceId, Vec<i64>)| {
            let is_stored = |hash| holders.get(hash).is_some_and(|holders| holders.contains(device));
            (!hashes.iter().all(is_stored)).then_some(*device)
        };
        damaged.extend(expected.iter().filter_map(is_incomplete).map(damage));
        Ok(damaged)
    }
}

fn damage(device: DeviceId) -> RegistryError {
    RegistryError::Device(DeviceError::DamagedRecord {
        device,
        problem: "its PUF's fingerprint is damaged; enroll it again with `--replace`".to_owned(),
    })
}

/// The devices that have a band with one of these hashes, by hash.
async fn holders(connection: &mut Connection, mut hashes: Vec<i64>) -> Result<HashMap<i64, Vec<DeviceId>>> {
    hashes.sort_unstable();
    hashes.dedup();
    let mut holders: HashMap<i64, Vec<DeviceId>> = HashMap::new();
    for chunk in hashes.chunks(BANDS_PER_QUERY) {
        let mut query = Builder::new("SELECT hash, device_id FROM fingerprint_band WHERE hash IN ");
        query.push_list(chunk.iter().copied());
        let records: Vec<(ColumnValue<i64>, ColumnValue<i64>)> =
            query.build().fetch_all(&mut *connection).await?;
        for (hash, device) in records {
            holders.entry(hash.0).or_default().push(id_from_column(device.0));
        }
    }
    Ok(holders)
}
