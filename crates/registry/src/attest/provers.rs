//! Provers: devices with an attestation key.

use super::groups::group_name_from_column;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use linewarden_measurement::configuration::{CONFIGURATION_BYTES_MAX, Configuration, ConfigurationError};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_types::{EnrollmentTime, GroupName};
use zeroize::Zeroize as _;

use super::enrollment::{check_overlay, check_overlay_fits};
use super::{Pages, address_from_column, address_to_column, next_attest_revision};
use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::error::{AttestationError, DeviceError, RegistryError, Result};
use crate::feed::PageExtent;
use crate::lease::damage;
use crate::record_tag::{RecordAuthenticator, TagBuilder};
use crate::sql::{self, Connection, FromRow, Row};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table prover v1";
/// The name of a record in errors.
const TABLE: &str = "enrollment for attestation";
/// The enrollment time of a prover whose record was damaged when it was removed.
pub(super) const UNKNOWN_TIME_S: u64 = 0;
/// The column names of [`ProverColumns`], in the same order, as a literal for `concat!`.
macro_rules! prover_columns {
    () => {
        "device_id, group_name, sealed, protection, binding, overlay, location_gateway_id, location_address, port, enrolled_at_s, \
         enrolled_period, revision, removed, tag"
    };
}

/// The protection of the attestation key on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A file: access to the device's storage reveals the key.
    Software,
    /// A TPM 2.0, which allows the use of the key only in the states that the key is bound to.
    Tpm,
}

/// The location of a device that has no session yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProverLocation {
    /// The gateway that attests the device.
    pub gateway: GatewayId,
    /// The device's address.
    pub address: IpAddr,
}

/// A prover as it is stored.
#[derive(Clone)]
pub struct ProverRecord {
    /// The device.
    pub device: DeviceId,
    /// The group: reference value and schedule.
    pub group: GroupName,
    /// The attestation key, shared with the controller; all zero if `removed`.
    pub key: AttestationKey,
    /// The protection of the key on the device.
    pub protection: Protection,
    /// JSON of `linewarden_tpm::enroll::Binding`, for a key in a TPM.
    pub binding: Option<Vec<u8>>,
    /// The overlay, encoded: the device's own entries, merged over the entries of its group.
    pub overlay: Option<Vec<u8>>,
    /// The location to use until a session or a round shows another location.
    pub location: Option<ProverLocation>,
    /// The UDP port for attestation requests.
    pub port: u16,
    /// Time of the enrollment for attestation, seconds since 1970-01-01 UTC; see [`EnrollmentTime`].
    pub enrolled_at_s: u64,
    /// The newest period at the time of the enrollment.
    pub enrolled_period: Period,
    /// Revision of the last change.
    pub revision: u64,
    /// Whether the device is no longer a prover; the record then remains as a tombstone.
    pub removed: bool,
}

impl ProverRecord {
    /// Identifies this enrollment.
    #[must_use]
    pub fn enrolled_at(&self) -> EnrollmentTime {
        EnrollmentTime(self.enrolled_at_s)
    }
}

impl fmt::Debug for ProverRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProverRecord")
            .field("device", &self.device)
            .field("group", &self.group)
            .field("protection", &self.protection)
            .field("revision", &self.revision)
            .field("removed", &self.removed)
            .finish_non_exhaustive()
    }
}

/// A page of changed provers.
#[derive(Clone, Debug)]
pub struct ProverPage {
    /// The changed provers, in the order of their revisions, including removed provers.
    pub provers: Vec<ProverRecord>,
    /// Errors of the provers that were skipped.
    pub damaged: Vec<String>,
    /// The revision to continue after.
    pub up_to_revision: u64,
    /// Whether the next page is already available.
    pub has_more: bool,
}

/// A page of ids of changed provers.
#[derive(Clone, Debug)]
pub struct ProverIdPage {
    /// Devices that are provers, in the order of their revisions.
    pub provers: Vec<DeviceId>,
    /// Devices that are no longer provers.
    pub removed: Vec<DeviceId>,
    /// Errors of the provers that were skipped.
    pub damaged: Vec<String>,
    /// The revision to continue after.
    pub up_to_revision: u64,
    /// Whether the next page is already available.
    pub has_more: bool,
}

impl Registry {
    /// The prover record of a device; `None` if the device is not a prover.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn prover(&self, device: DeviceId) -> Result<Option<ProverRecord>> {
        let mut connection = self.reader().acquire().await?;
        let stored = self.prover_in(&mut connection, device).await?;
        Ok(stored.map(|(record, _)| record).filter(|record| !record.removed))
    }

    /// Removes a device from attestation; returns whether it was a prover. A damaged record is overwritten. A device
    /// in quarantine stays in quarantine.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn remove_prover(&self, device: DeviceId) -> Result<bool> {
        let mut transaction = self.write().await?;
        let mut record = match self.prover_in(&mut transaction, device).await {
            Ok(None) => return Ok(false),
            Ok(Some((record, _))) if record.removed => return Ok(false),
            Ok(Some((record, _))) => ProverRecord {
                location: record.location,
                ..tombstone(device, record.group, record.enrolled_at_s)
            },
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => {
                tombstone(device, GroupName::unknown(), UNKNOWN_TIME_S)
            }
            Err(error) => return Err(error),
        };
        // A later enrollment of a device in quarantine uses this location.
        let last = self.last_location_in(&mut transaction, device).await?;
        record.location = last.or(record.location);
        record.revision = next_attest_revision(&mut transaction).await?.cast_unsigned();
        delete_attestation_data(&mut transaction, device).await?;
        self.write_prover(&mut transaction, &record, None).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Provers changed after a revision, oldest change first: at most `limit`, or more if most records do not
    /// authenticate. Records that do not authenticate are skipped and do not advance the revision to continue after.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn provers_since(&self, revision: u64, limit: u32) -> Result<ProverPage> {
        let read = |registry: &Self, columns| {
            let (record, _) = registry.prover_from_record(columns)?;
            Ok((record.revision, record))
        };
        let page = self.prover_records_since(revision, limit, read).await?;
        Ok(ProverPage {
            provers: page.records,
            damaged: page.damaged,
            up_to_revision: page.up_to_revision,
            has_more: page.has_more,
        })
    }

    /// The ids of changed provers, as in [`Registry::provers_since`], without decrypting keys.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn prover_ids_since(&self, revision: u64, limit: u32) -> Result<ProverIdPage> {
        let read = |registry: &Self, columns: ProverColumns| {
            let device = id_from_column(columns.0.0);
            let revision = u64::try_from(columns.11.0).ok();
            let revision =
                revision.filter(|_| tag(registry.authenticator(), &columns).matches(&columns.13.0));
            let revision = revision.ok_or_else(|| damage(device, TABLE))?;
            Ok((revision, (device, columns.12.0 != 0)))
        };
        let page = self.prover_records_since(revision, limit, read).await?;
        let (removed, provers): (Vec<_>, Vec<_>) =
            page.records.into_iter().partition(|(_, removed)| *removed);
        let ids = |entries: Vec<(DeviceId, bool)>| entries.into_iter().map(|(device, _)| device).collect();
        Ok(ProverIdPage {
            provers: ids(provers),
            removed: ids(removed),
            damaged: page.damaged,
            up_to_revision: page.up_to_revision,
            has_more: page.has_more,
        })
    }

    /// Applies `read` to the records that changed since a revision; `read` returns the revision and the result of an
    /// authentic record.
    async fn prover_records_since<T: Send>(
        &self,
        revision: u64,
        limit: u32,
        read: impl Fn(&Self, ProverColumns) -> Result<(u64, T)> + Send,
    ) -> Result<ReadRecords<T>> {
        let mut limit = limit.max(1);
        loop {
            let records: Vec<ProverWithNewestRevision> = sql::query(concat!(
                "SELECT ",
                prover_columns!(),
                ", (SELECT attest_revision FROM registry) AS newest FROM prover \
                 WHERE revision > $1 AND revision <= 9223372036854775807 ORDER BY revision LIMIT $2"
            ))
            .bind(i64::try_from(revision).unwrap_or(i64::MAX))
            .bind(i64::from(limit))
            .fetch_all(self.reader())
            .await?;
            let newest = records.first().map_or(revision, |record| record.newest);
            let (count, mut highest) = (records.len(), revision);
            let (mut results, mut damaged) = (Vec::with_capacity(count), Vec::new());
            for ProverWithNewestRevision { columns, .. } in records {
                match read(self, columns) {
                    Ok((record_revision, result)) => {
                        highest = highest.max(record_revision);
                        results.push(result);
                    }
                    Err(error) => damaged.push(error.to_string()),
                }
            }
            if let Some(PageExtent {
                up_to_revision,
                has_more,
            }) = PageExtent::of(count, limit, (revision, highest), newest)
            {
                return Ok(ReadRecords {
                    records: results,
                    damaged,
                    up_to_revision,
                    has_more,
                });
            }
            limit = limit.saturating_mul(2);
        }
    }

    /// Sets or removes the overlay of a device; returns the revision under which gateways learn of the change.
    ///
    /// # Errors
    /// [`AttestationError::NotAProver`], an overlay that is not an encoded configuration, is longer than
    /// [`OVERLAY_BYTES_MAX`](super::OVERLAY_BYTES_MAX) or does not fit the group, a damaged record, or a failure of
    /// the database.
    pub async fn set_overlay(&self, device: DeviceId, overlay: Option<Vec<u8>>) -> Result<u64> {
        check_overlay(device, overlay.as_deref())?;
        let mut transaction = self.write().await?;
        let stored = self.prover_in(&mut transaction, device).await?;
        let Some((mut record, sealed)) = stored.filter(|(record, _)| !record.removed) else {
            return Err(RegistryError::Attestation(AttestationError::NotAProver {
                device,
            }));
        };
        if overlay.is_some() {
            let group = self.group_in(&mut transaction, &record.group).await?;
            let group = group.ok_or_else(|| {
                RegistryError::Attestation(AttestationError::UnknownGroup {
                    group: record.group.clone(),
                })
            })?;
            check_overlay_fits(device, overlay.as_deref(), &group)?;
        }
        record.overlay = overlay;
        record.revision = next_attest_revision(&mut transaction).await?.cast_unsigned();
        self.write_prover(&mut transaction, &record, sealed.as_deref())
            .await?;
        transaction.commit().await?;
        Ok(record.revision)
    }

    /// A prover and its sealed key.
    pub(super) async fn prover_in(
        &self,
        connection: &mut Connection,
        device: DeviceId,
    ) -> Result<Option<(ProverRecord, Option<Vec<u8>>)>> {
        let columns: Option<ProverColumns> = sql::query(concat!(
            "SELECT ",
            prover_columns!(),
            " FROM prover WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(connection)
        .await?;
        columns
            .map(|columns| self.prover_from_record(columns))
            .transpose()
    }

    pub(super) async fn is_prover(&self, connection: &mut Connection, device: DeviceId) -> Result<bool> {
        let stored = self.prover_in(connection, device).await?;
        Ok(stored.is_some_and(|(record, _)| !record.removed))
    }

    pub(super) async fn damaged_provers(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let mut damaged = Vec::new();
        let mut pages = Pages::new();
        while let Some(records) = pages
            .next::<ProverColumns>(
                connection,
                concat!(
                    "SELECT ",
                    prover_columns!(),
                    ", rowid AS position FROM prover WHERE rowid >= $1 ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            damaged.extend(
                records
                    .into_iter()
                    .filter_map(|columns| self.prover_from_record(columns).err()),
            );
        }
        Ok(damaged)
    }

    /// The newest revision of all authentic records, including removed provers.
    pub(super) async fn newest_prover_revision(&self, connection: &mut Connection) -> Result<u64> {
        let mut newest = 0;
        let mut pages = Pages::new();
        while let Some(records) = pages
            .next::<ProverColumns>(
                connection,
                concat!(
                    "SELECT ",
                    prover_columns!(),
                    ", rowid AS position FROM prover WHERE rowid >= $1 ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            let authentic = records
                .iter()
                .filter(|columns| tag(self.authenticator(), columns).matches(&columns.13.0));
            let revisions = authentic.filter_map(|columns| u64::try_from(columns.11.0).ok());
            newest = revisions.fold(newest, u64::max);
        }
        Ok(newest)
    }

    /// The first prover of a group whose overlay does not fit this configuration, and the error.
    pub(super) async fn first_incompatible_overlay(
        &self,
        connection: &mut Connection,
        group: &GroupName,
        base: &Configuration,
    ) -> Result<Option<(DeviceId, ConfigurationError)>> {
        // A short overlay can conflict only in the banks of PCRs, so its files need not be merged. A long overlay is merged
        // completely, because the result may be too long.
        let base_bytes = base.encode().len();
        let without_files = Configuration::new(base.pcrs().clone(), BTreeMap::new()).ok();
        let mut pages = Pages::new();
        while let Some(records) = pages
            .next::<ProverColumns>(
                connection,
                concat!(
                    "SELECT ",
                    prover_columns!(),
                    ", rowid AS position FROM prover WHERE rowid >= $1 AND overlay IS NOT NULL AND removed = 0 \
                     ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            // Provers with damaged records are not attested.
            let provers = records
                .into_iter()
                .filter_map(|columns| self.prover_from_record(columns).ok());
            for (prover, _) in provers {
                let overlay = prover.overlay.filter(|_| prover.group == *group);
                let Some(encoding) = overlay else {
                    continue;
                };
                let fits = base_bytes.saturating_add(encoding.len()) <= CONFIGURATION_BYTES_MAX;
                let base = without_files.as_ref().filter(|_| fits).unwrap_or(base);
                let merged = Configuration::decode(&encoding).and_then(|overlay| base.with_overlay(&overlay));
                if let Err(error) = merged {
                    return Ok(Some((prover.device, error)));
                }
            }
        }
        Ok(None)
    }

    pub(super) async fn write_prover(
        &self,
        connection: &mut Connection,
        record: &ProverRecord,
        sealed: Option<&[u8]>,
    ) -> Result<()> {
        let columns = columns_from_prover(record, sealed);
        let tag = tag(self.authenticator(), &columns).finish();
        sql::query(
            "INSERT INTO prover (device_id, group_name, sealed, protection, binding, overlay, location_gateway_id, location_address, \
             port, enrolled_at_s, enrolled_period, revision, removed, tag) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
             ON CONFLICT (device_id) DO UPDATE SET group_name = excluded.group_name, sealed = excluded.sealed, \
             protection = excluded.protection, binding = excluded.binding, overlay = excluded.overlay, \
             location_gateway_id = excluded.location_gateway_id, location_address = excluded.location_address, port = excluded.port, \
             enrolled_at_s = excluded.enrolled_at_s, enrolled_period = excluded.enrolled_period, \
             revision = excluded.revision, removed = excluded.removed, tag = excluded.tag",
        )
        .bind(columns.0.0)
        .bind(record.group.as_str())
        .bind(columns.2.0)
        .bind(columns.3.0)
        .bind(columns.4.0)
        .bind(columns.5.0)
        .bind(columns.6.0)
        .bind(columns.7.0)
        .bind(columns.8.0)
        .bind(columns.9.0)
        .bind(columns.10.0)
        .bind(columns.11.0)
        .bind(columns.12.0)
        .bind(tag)
        .execute(connection)
        .await?;
        Ok(())
    }

    /// Authenticates and decodes a record and its sealed key; an error names the device.
    fn prover_from_record(&self, columns: ProverColumns) -> Result<(ProverRecord, Option<Vec<u8>>)> {
        let device = id_from_column(columns.0.0);
        if !tag(self.authenticator(), &columns).matches(&columns.13.0) {
            return Err(damage(device, TABLE));
        }
        let key = match &columns.2.0 {
            Some(sealed) => self.open_key(device, sealed),
            None => Some(AttestationKey::from_bytes([0; 32])),
        };
        let record = key.and_then(|key| prover_from_columns(&columns, key));
        let record = record.ok_or_else(|| damage(device, TABLE))?;
        Ok((record, columns.2.0))
    }

    fn open_key(&self, device: DeviceId, sealed: &[u8]) -> Option<AttestationKey> {
        let plain = self.sealer().open(&aad(device), sealed).ok()?;
        let mut bytes = <[u8; 32]>::try_from(plain.as_slice()).ok()?;
        let key = AttestationKey::from_bytes(bytes);
        bytes.zeroize();
        Some(key)
    }
}

/// Errors of devices with an appraisal or evidence but without a prover record: the record was deleted.
pub(super) async fn deleted_provers(connection: &mut Connection) -> Result<Vec<RegistryError>> {
    let missing: Vec<(ColumnValue<i64>,)> = sql::query(
        "SELECT device_id FROM (SELECT device_id FROM appraisal UNION SELECT device_id FROM evidence) AS known \
         WHERE NOT EXISTS (SELECT 1 FROM prover WHERE prover.device_id = known.device_id)",
    )
    .fetch_all(connection)
    .await?;
    let missing = missing.iter().map(|(device,)| {
        RegistryError::Device(DeviceError::DamagedRecord {
            device: id_from_column(device.0),
            problem: format!("its {TABLE} is missing"),
        })
    });
    Ok(missing.collect())
}

/// Deletes appraisal and evidence of a device, which belong to an earlier enrollment.
pub(super) async fn delete_attestation_data(connection: &mut Connection, device: DeviceId) -> Result<()> {
    for statement in [
        "DELETE FROM appraisal WHERE device_id = $1",
        "DELETE FROM evidence WHERE device_id = $1",
    ] {
        sql::query(statement)
            .bind(id_to_column(device))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// The record of a removed prover.
fn tombstone(device: DeviceId, group: GroupName, enrolled_at_s: u64) -> ProverRecord {
    ProverRecord {
        device,
        group,
        key: AttestationKey::from_bytes([0; 32]),
        protection: Protection::Software,
        binding: None,
        overlay: None,
        location: None,
        port: 0,
        enrolled_at_s,
        enrolled_period: Period(0),
        revision: 0,
        removed: true,
    }
}

/// A page of results about changed provers.
struct ReadRecords<T> {
    records: Vec<T>,
    damaged: Vec<String>,
    up_to_revision: u64,
    has_more: bool,
}

/// The columns of a prover, and the registry's newest revision.
struct ProverWithNewestRevision {
    columns: ProverColumns,
    newest: u64,
}

impl FromRow for ProverWithNewestRevision {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        let ColumnValue(newest): ColumnValue<i64> = row.last()?;
        Ok(Self {
            columns: ProverColumns::from_row(row)?,
            newest: u64::try_from(newest).unwrap_or_default(),
        })
    }
}

/// The columns of `prover`.
type ProverColumns = (
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<i64>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<Option<i64>>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

pub(super) fn aad(device: DeviceId) -> Vec<u8> {
    [LABEL, &device.0.to_be_bytes()].concat()
}

/// The columns of a prover, with an empty tag.
fn columns_from_prover(record: &ProverRecord, sealed: Option<&[u8]>) -> ProverColumns {
    let protection = match record.protection {
        Protection::Software => 1,
        Protection::Tpm => 2,
    };
    (
        ColumnValue(id_to_column(record.device)),
        ColumnValue(record.group.as_str().as_bytes().to_vec()),
        ColumnValue(sealed.map(<[u8]>::to_vec)),
        ColumnValue(protection),
        ColumnValue(record.binding.clone()),
        ColumnValue(record.overlay.clone()),
        ColumnValue(record.location.map(|location| i64::from(location.gateway.0))),
        ColumnValue(
            record
                .location
                .map(|location| address_to_column(location.address)),
        ),
        ColumnValue(i64::from(record.port)),
        ColumnValue(record.enrolled_at_s.cast_signed()),
        ColumnValue(record.enrolled_period.0.cast_signed()),
        ColumnValue(record.revision.cast_signed()),
        ColumnValue(i64::from(record.removed)),
        ColumnValue(Vec::new()),
    )
}

/// The tag also covers the sealed key, so that an older key of the same device is detected.
fn tag(authenticator: &RecordAuthenticator, columns: &ProverColumns) -> TagBuilder {
    let (
        device,
        group,
        sealed,
        protection,
        binding,
        overlay,
        gateway,
        address,
        port,
        enrolled_at_s,
        period,
        revision,
        removed,
        _,
    ) = columns;
    authenticator
        .begin(LABEL)
        .number(device.0)
        .bytes(&group.0)
        .bytes_or_null(sealed.0.as_deref())
        .number(protection.0)
        .bytes_or_null(binding.0.as_deref())
        .bytes_or_null(overlay.0.as_deref())
        .number_or_null(gateway.0)
        .bytes_or_null(address.0.as_deref())
        .number(port.0)
        .number(enrolled_at_s.0)
        .number(period.0)
        .number(revision.0)
        .number(removed.0)
}

/// Decodes a record that authenticates; `None` for unknown values.
fn prover_from_columns(columns: &ProverColumns, key: AttestationKey) -> Option<ProverRecord> {
    let (
        device,
        group,
        sealed,
        protection,
        binding,
        overlay,
        gateway,
        address,
        port,
        enrolled_at_s,
        period,
        revision,
        removed,
        _,
    ) = columns;
    let removed = removed.0 != 0;
    if removed != sealed.0.is_none() {
        return None;
    }
    Some(ProverRecord {
        device: id_from_column(device.0),
        group: group_name_from_column(&group.0)?,
        key,
        protection: match protection.0 {
            1 => Protection::Software,
            2 => Protection::Tpm,
            _ => return None,
        },
        binding: binding.0.clone(),
        overlay: overlay.0.clone(),
        location: match (gateway.0, &address.0) {
            (Some(gateway), Some(address)) => Some(ProverLocation {
                gateway: GatewayId(u32::try_from(gateway).ok()?),
                address: address_from_column(address)?,
            }),
            _ => None,
        },
        port: u16::try_from(port.0).ok()?,
        enrolled_at_s: u64::try_from(enrolled_at_s.0).ok()?,
        enrolled_period: Period(period.0.cast_unsigned()),
        revision: u64::try_from(revision.0).ok()?,
        removed,
    })
}
