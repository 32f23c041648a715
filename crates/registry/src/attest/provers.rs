//! Provers: devices with an attestation key.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use linewarden_measurement::configuration::{CONFIGURATION_BYTES_MAX, Configuration, ConfigurationError};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use zeroize::Zeroize as _;

use super::enrolment::{EnrolledAt, check_fit, check_overlay};
use super::groups::GroupName;
use super::{Pages, address_from_column, address_to_column, advance};
use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::feed::Extent;
use crate::lease::damage;
use crate::record_mac::{RecordMac, RowCode};
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Connection, FromRow, Row};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table prover v1";
const TABLE: &str = "enrolment for attestation";
/// When a prover was enrolled whose record was damaged when it was removed.
pub(super) const UNKNOWN_S: u64 = 0;
/// The columns of [`ProverRow`], in its order, as a literal for `concat!`.
macro_rules! prover_columns {
    () => {
        "device_id, group_name, sealed, protection, binding, overlay, home_gateway, home_address, port, enrolled_at_s, \
         enrolled_period, revision, removed, mac"
    };
}

/// What keeps the attestation key on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A file: whoever has the device's memory has the key.
    Software,
    /// A TPM 2.0, which lets it be used only in the states that it is bound to.
    Tpm,
}

/// Where a device is asked that no gateway has seen yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Who asks it.
    pub gateway: GatewayId,
    /// Where it is.
    pub address: IpAddr,
}

/// A prover as it is stored.
#[derive(Clone)]
pub struct ProverRecord {
    /// Which device.
    pub device: DeviceId,
    /// What it is to run, and how often it is asked.
    pub group: GroupName,
    /// What it shares with the controller; of zeros if `removed`.
    pub key: AttestationKey,
    /// What keeps the key.
    pub protection: Protection,
    /// JSON of `linewarden_tpm::enrol::Binding`, of a key in a TPM.
    pub binding: Option<Vec<u8>>,
    /// Its own entries, laid over those of its group, encoded.
    pub overlay: Option<Vec<u8>>,
    /// Where it is asked at first.
    pub home: Option<Home>,
    /// The UDP port that it is asked at.
    pub port: u16,
    /// When it was enrolled for attestation, seconds since 1970-01-01 UTC; see [`EnrolledAt`].
    pub enrolled_at_s: u64,
    /// The newest period then.
    pub enrolled_period: Period,
    /// Of its last change.
    pub revision: u64,
    /// It is no prover any more: all that is left is that it was one.
    pub removed: bool,
}

impl ProverRecord {
    /// Which enrolment this is.
    #[must_use]
    pub fn enrolled_at(&self) -> EnrolledAt {
        EnrolledAt(self.enrolled_at_s)
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

/// Provers that have changed.
#[derive(Clone, Debug)]
pub struct ProverPage {
    /// In the order of their revisions; removed ones, too.
    pub provers: Vec<ProverRecord>,
    /// What is wrong with those that were left out.
    pub damaged: Vec<String>,
    /// Ask from here next.
    pub upto: u64,
    /// Whether there is more to be had at once.
    pub more: bool,
}

/// Who has become a prover, or is none any more.
#[derive(Clone, Debug)]
pub struct ProverIdPage {
    /// Those that are, in the order of their revisions.
    pub provers: Vec<DeviceId>,
    /// Those that no longer are.
    pub removed: Vec<DeviceId>,
    /// What is wrong with those that were left out.
    pub damaged: Vec<String>,
    /// Ask from here next.
    pub upto: u64,
    /// Whether there is more to be had at once.
    pub more: bool,
}

impl Registry {
    /// A device as a prover; `None` if it is none, or none any more.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn prover(&self, device: DeviceId) -> Result<Option<ProverRecord>> {
        let mut connection = self.reader().acquire().await?;
        let found = self.prover_in(&mut connection, device).await?;
        Ok(found.map(|(record, _)| record).filter(|record| !record.removed))
    }

    /// Makes a prover a mere device again; whether it was one. A damaged record is overwritten. One in quarantine stays
    /// there.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn remove_prover(&self, device: DeviceId) -> Result<bool> {
        let mut transaction = self.write().await?;
        let mut record = match self.prover_in(&mut transaction, device).await {
            Ok(None) => return Ok(false),
            Ok(Some((record, _))) if record.removed => return Ok(false),
            Ok(Some((record, _))) => ProverRecord {
                home: record.home,
                ..remains(device, record.group, record.enrolled_at_s)
            },
            Err(RegistryError::DamagedRecord { .. }) => remains(device, GroupName::unknown(), UNKNOWN_S),
            Err(error) => return Err(error),
        };
        // Should it become one again.
        let last = self.last_asked_in(&mut transaction, device).await?;
        record.home = last.or(record.home);
        record.revision = advance(&mut transaction).await?.cast_unsigned();
        forget(&mut transaction, device).await?;
        self.write_prover(&mut transaction, &record, None).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Provers changed after a revision, oldest change first: at most `limit` of them, and more only where most do not
    /// authenticate. Those are left out, and lift nothing that is asked for next.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn provers_since(&self, revision: u64, limit: u32) -> Result<ProverPage> {
        let read = |registry: &Self, row| {
            let (record, _) = registry.prover_from_row(row)?;
            Ok((record.revision, record))
        };
        let page = self.rows_since(revision, limit, read).await?;
        Ok(ProverPage {
            provers: page.found,
            damaged: page.damaged,
            upto: page.upto,
            more: page.more,
        })
    }

    /// Who they are, as [`Registry::provers_since`] tells it; no key is opened.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn prover_ids_since(&self, revision: u64, limit: u32) -> Result<ProverIdPage> {
        let read = |registry: &Self, row: ProverRow| {
            let device = id_from_column(row.0.0);
            let at = u64::try_from(row.11.0).ok();
            let at = at.filter(|_| code(registry.record_mac(), &row).is(&row.13.0));
            let at = at.ok_or_else(|| damage(device, TABLE))?;
            Ok((at, (device, row.12.0 != 0)))
        };
        let page = self.rows_since(revision, limit, read).await?;
        let (removed, provers): (Vec<_>, Vec<_>) = page.found.into_iter().partition(|(_, removed)| *removed);
        let ids = |found: Vec<(DeviceId, bool)>| found.into_iter().map(|(device, _)| device).collect();
        Ok(ProverIdPage {
            provers: ids(provers),
            removed: ids(removed),
            damaged: page.damaged,
            upto: page.upto,
            more: page.more,
        })
    }

    /// What `read` makes of the rows that have changed since a revision; it tells the revision of those that authenticate.
    async fn rows_since<T: Send>(
        &self,
        revision: u64,
        limit: u32,
        read: impl Fn(&Self, ProverRow) -> Result<(u64, T)> + Send,
    ) -> Result<Found<T>> {
        let mut limit = limit.max(1);
        loop {
            let rows: Vec<Counted> = sql::query(concat!(
                "SELECT ",
                prover_columns!(),
                ", (SELECT attest_revision FROM registry) AS newest FROM prover \
                 WHERE revision > $1 AND revision <= 9223372036854775807 ORDER BY revision LIMIT $2"
            ))
            .bind(i64::try_from(revision).unwrap_or(i64::MAX))
            .bind(i64::from(limit))
            .fetch_all(self.reader())
            .await?;
            let newest = rows.first().map_or(revision, |row| row.newest);
            let (count, mut highest) = (rows.len(), revision);
            let (mut found, mut damaged) = (Vec::with_capacity(count), Vec::new());
            for Counted { row, .. } in rows {
                match read(self, row) {
                    Ok((at, record)) => {
                        highest = highest.max(at);
                        found.push(record);
                    }
                    Err(error) => damaged.push(error.to_string()),
                }
            }
            if let Some(Extent { upto, more }) = Extent::of(count, limit, (revision, highest), newest) {
                return Ok(Found {
                    found,
                    damaged,
                    upto,
                    more,
                });
            }
            limit = limit.saturating_mul(2);
        }
    }

    /// Sets what a device has of its own, or takes it away; returns the revision under which gateways learn of it.
    ///
    /// # Errors
    /// [`RegistryError::NotAProver`], an overlay that is no encoded configuration, longer than [`OVERLAY_BYTES_MAX`](super::OVERLAY_BYTES_MAX) or cannot be
    /// laid over what the group is to run or is being updated to, a damaged record, or a failure of the database.
    pub async fn set_overlay(&self, device: DeviceId, overlay: Option<Vec<u8>>) -> Result<u64> {
        check_overlay(device, overlay.as_deref())?;
        let mut transaction = self.write().await?;
        let found = self.prover_in(&mut transaction, device).await?;
        let Some((mut record, sealed)) = found.filter(|(record, _)| !record.removed) else {
            return Err(RegistryError::NotAProver { device });
        };
        if overlay.is_some() {
            let group = self.group_in(&mut transaction, &record.group).await?;
            let group = group.ok_or_else(|| RegistryError::UnknownGroup {
                group: record.group.clone(),
            })?;
            check_fit(device, overlay.as_deref(), &group)?;
        }
        record.overlay = overlay;
        record.revision = advance(&mut transaction).await?.cast_unsigned();
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
        let row: Option<ProverRow> = sql::query(concat!(
            "SELECT ",
            prover_columns!(),
            " FROM prover WHERE device_id = $1"
        ))
        .bind(id_to_column(device))
        .fetch_optional(connection)
        .await?;
        row.map(|row| self.prover_from_row(row)).transpose()
    }

    pub(super) async fn is_prover(&self, connection: &mut Connection, device: DeviceId) -> Result<bool> {
        let found = self.prover_in(connection, device).await?;
        Ok(found.is_some_and(|(record, _)| !record.removed))
    }

    pub(super) async fn damaged_provers(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let mut found = Vec::new();
        let mut pages = Pages::new();
        while let Some(rows) = pages
            .next::<ProverRow>(
                connection,
                concat!(
                    "SELECT ",
                    prover_columns!(),
                    ", rowid AS place FROM prover WHERE rowid >= $1 ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            found.extend(rows.into_iter().filter_map(|row| self.prover_from_row(row).err()));
        }
        Ok(found)
    }

    /// The newest revision of all that authenticate, removed ones, too.
    pub(super) async fn newest_of_provers(&self, connection: &mut Connection) -> Result<u64> {
        let mut newest = 0;
        let mut pages = Pages::new();
        while let Some(rows) = pages
            .next::<ProverRow>(
                connection,
                concat!(
                    "SELECT ",
                    prover_columns!(),
                    ", rowid AS place FROM prover WHERE rowid >= $1 ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            let sound = rows
                .iter()
                .filter(|row| code(self.record_mac(), row).is(&row.13.0));
            let revisions = sound.filter_map(|row| u64::try_from(row.11.0).ok());
            newest = revisions.fold(newest, u64::max);
        }
        Ok(newest)
    }

    /// The first prover of a group whose own entries cannot be laid over this configuration, and why.
    pub(super) async fn first_unfit(
        &self,
        connection: &mut Connection,
        group: &GroupName,
        base: &Configuration,
    ) -> Result<Option<(DeviceId, ConfigurationError)>> {
        // Most overlays are short: then only the banks of PCRs can differ, and the files need not be gone through.
        let base_bytes = base.encode().len();
        let without_files = Configuration::new(base.pcrs().clone(), BTreeMap::new()).ok();
        let mut pages = Pages::new();
        while let Some(rows) = pages
            .next::<ProverRow>(
                connection,
                concat!(
                    "SELECT ",
                    prover_columns!(),
                    ", rowid AS place FROM prover WHERE rowid >= $1 AND overlay IS NOT NULL AND removed = 0 \
                     ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            // Those that cannot be read are attested by nobody.
            for (prover, _) in rows.into_iter().filter_map(|row| self.prover_from_row(row).ok()) {
                let overlay = prover.overlay.filter(|_| prover.group == *group);
                let Some(encoding) = overlay else {
                    continue;
                };
                let fits = base_bytes.saturating_add(encoding.len()) <= CONFIGURATION_BYTES_MAX;
                let base = without_files.as_ref().filter(|_| fits).unwrap_or(base);
                let laid = Configuration::decode(&encoding).and_then(|overlay| base.overlaid(&overlay));
                if let Err(error) = laid {
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
        let row = row_of(record, sealed);
        let code = code(self.record_mac(), &row).finish();
        sql::query(
            "INSERT INTO prover (device_id, group_name, sealed, protection, binding, overlay, home_gateway, home_address, \
             port, enrolled_at_s, enrolled_period, revision, removed, mac) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
             ON CONFLICT (device_id) DO UPDATE SET group_name = excluded.group_name, sealed = excluded.sealed, \
             protection = excluded.protection, binding = excluded.binding, overlay = excluded.overlay, \
             home_gateway = excluded.home_gateway, home_address = excluded.home_address, port = excluded.port, \
             enrolled_at_s = excluded.enrolled_at_s, enrolled_period = excluded.enrolled_period, \
             revision = excluded.revision, removed = excluded.removed, mac = excluded.mac",
        )
        .bind(row.0.0)
        .bind(record.group.as_str())
        .bind(row.2.0)
        .bind(row.3.0)
        .bind(row.4.0)
        .bind(row.5.0)
        .bind(row.6.0)
        .bind(row.7.0)
        .bind(row.8.0)
        .bind(row.9.0)
        .bind(row.10.0)
        .bind(row.11.0)
        .bind(row.12.0)
        .bind(code)
        .execute(connection)
        .await?;
        Ok(())
    }

    /// Turns a stored row into the record, and its sealed key; one that does not authenticate is that device's damage.
    fn prover_from_row(&self, row: ProverRow) -> Result<(ProverRecord, Option<Vec<u8>>)> {
        let device = id_from_column(row.0.0);
        if !code(self.record_mac(), &row).is(&row.13.0) {
            return Err(damage(device, TABLE));
        }
        let key = match &row.2.0 {
            Some(sealed) => self.open_key(device, sealed),
            None => Some(AttestationKey::from_bytes([0; 32])),
        };
        let record = key.and_then(|key| decoded(&row, key));
        let record = record.ok_or_else(|| damage(device, TABLE))?;
        Ok((record, row.2.0))
    }

    fn open_key(&self, device: DeviceId, sealed: &[u8]) -> Option<AttestationKey> {
        let plain = self.sealer().open(&aad(device), sealed).ok()?;
        let mut bytes = <[u8; 32]>::try_from(plain.as_slice()).ok()?;
        let key = AttestationKey::from_bytes(bytes);
        bytes.zeroize();
        Some(key)
    }
}

/// Devices that are on record as standing somewhere, if only since they were enrolled, or have sent evidence, and are on record as no
/// provers, nor as having been some: the row was deleted.
pub(super) async fn missing_provers(connection: &mut Connection) -> Result<Vec<RegistryError>> {
    let missing: Vec<(Stored<i64>,)> = sql::query(
        "SELECT device_id FROM (SELECT device_id FROM appraisal UNION SELECT device_id FROM evidence) AS told \
         WHERE NOT EXISTS (SELECT 1 FROM prover WHERE prover.device_id = told.device_id)",
    )
    .fetch_all(connection)
    .await?;
    let missing = missing.iter().map(|(device,)| RegistryError::DamagedRecord {
        device: id_from_column(device.0),
        problem: format!("its {TABLE} is gone"),
    });
    Ok(missing.collect())
}

/// Who is no prover, or another one, stands nowhere and has sent nothing.
pub(super) async fn forget(connection: &mut Connection, device: DeviceId) -> Result<()> {
    for table in [
        "DELETE FROM appraisal WHERE device_id = $1",
        "DELETE FROM evidence WHERE device_id = $1",
    ] {
        sql::query(table)
            .bind(id_to_column(device))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// That a device was a prover.
fn remains(device: DeviceId, group: GroupName, enrolled_at_s: u64) -> ProverRecord {
    ProverRecord {
        device,
        group,
        key: AttestationKey::from_bytes([0; 32]),
        protection: Protection::Software,
        binding: None,
        overlay: None,
        home: None,
        port: 0,
        enrolled_at_s,
        enrolled_period: Period(0),
        revision: 0,
        removed: true,
    }
}

/// A part of the provers, as far as it could be read.
struct Found<T> {
    found: Vec<T>,
    damaged: Vec<String>,
    upto: u64,
    more: bool,
}

/// A row, and what the registry counts as the newest revision.
struct Counted {
    row: ProverRow,
    newest: u64,
}

impl FromRow for Counted {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        let Stored(newest): Stored<i64> = row.last()?;
        Ok(Self {
            row: ProverRow::from_row(row)?,
            newest: u64::try_from(newest).unwrap_or_default(),
        })
    }
}

/// A row of `prover`.
type ProverRow = (
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<Option<Vec<u8>>>,
    Stored<i64>,
    Stored<Option<Vec<u8>>>,
    Stored<Option<Vec<u8>>>,
    Stored<Option<i64>>,
    Stored<Option<Vec<u8>>>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<Vec<u8>>,
);

pub(super) fn aad(device: DeviceId) -> Vec<u8> {
    [LABEL, &device.0.to_be_bytes()].concat()
}

/// Without its code.
fn row_of(record: &ProverRecord, sealed: Option<&[u8]>) -> ProverRow {
    let protection = match record.protection {
        Protection::Software => 1,
        Protection::Tpm => 2,
    };
    (
        Stored(id_to_column(record.device)),
        Stored(record.group.as_str().as_bytes().to_vec()),
        Stored(sealed.map(<[u8]>::to_vec)),
        Stored(protection),
        Stored(record.binding.clone()),
        Stored(record.overlay.clone()),
        Stored(record.home.map(|home| i64::from(home.gateway.0))),
        Stored(record.home.map(|home| address_to_column(home.address))),
        Stored(i64::from(record.port)),
        Stored(record.enrolled_at_s.cast_signed()),
        Stored(record.enrolled_period.0.cast_signed()),
        Stored(record.revision.cast_signed()),
        Stored(i64::from(record.removed)),
        Stored(Vec::new()),
    )
}

/// The sealed key is under the code as well, so that nobody puts an older one of the same device there.
fn code(mac: &RecordMac, row: &ProverRow) -> RowCode {
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
        at,
        period,
        revision,
        removed,
        _,
    ) = row;
    mac.row(LABEL)
        .number(device.0)
        .bytes(&group.0)
        .bytes_or_null(sealed.0.as_deref())
        .number(protection.0)
        .bytes_or_null(binding.0.as_deref())
        .bytes_or_null(overlay.0.as_deref())
        .number_or_null(gateway.0)
        .bytes_or_null(address.0.as_deref())
        .number(port.0)
        .number(at.0)
        .number(period.0)
        .number(revision.0)
        .number(removed.0)
}

/// Of a row that authenticates; `None` if another program's.
fn decoded(row: &ProverRow, key: AttestationKey) -> Option<ProverRecord> {
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
        at,
        period,
        revision,
        removed,
        _,
    ) = row;
    let removed = removed.0 != 0;
    if removed != sealed.0.is_none() {
        return None;
    }
    Some(ProverRecord {
        device: id_from_column(device.0),
        group: GroupName::from_column(&group.0)?,
        key,
        protection: match protection.0 {
            1 => Protection::Software,
            2 => Protection::Tpm,
            _ => return None,
        },
        binding: binding.0.clone(),
        overlay: overlay.0.clone(),
        home: match (gateway.0, &address.0) {
            (Some(gateway), Some(address)) => Some(Home {
                gateway: GatewayId(u32::try_from(gateway).ok()?),
                address: address_from_column(address)?,
            }),
            _ => None,
        },
        port: u16::try_from(port.0).ok()?,
        enrolled_at_s: u64::try_from(at.0).ok()?,
        enrolled_period: Period(period.0.cast_unsigned()),
        revision: u64::try_from(revision.0).ok()?,
        removed,
    })
}
