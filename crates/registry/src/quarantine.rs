//! Quarantine: a device that misses too many rounds may not authenticate, like a revoked device, but it can be
//! released.

use std::collections::HashSet;

use linewarden_protocol::ids::DeviceId;

use crate::attest::EnrollmentTime;
use crate::column::ColumnValue;
use crate::device::{DeviceInfo, Quarantine, Revision, TEXT_BYTES_MAX, check_text};
use crate::error::{RegistryError, Result};
use crate::feed;
use crate::record_mac::{RecordMac, RowCode};
use crate::row::{id_from_column, id_to_column, quarantine_to_columns, seconds_to_column};
use crate::sql::{self, Connection};
use crate::store::Registry;

const MANUAL_LABEL: &[u8] = b"linewarden registry table manual_quarantine v1";

/// A request to put a prover into quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineRequest {
    /// The device.
    pub device: DeviceId,
    /// The enrollment that missed the rounds.
    pub enrolled_at: EnrollmentTime,
    /// The reason, for display.
    pub reason: String,
}

/// The result of quarantine requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineResult {
    /// The newest revision under which gateways learn of the change.
    pub revision: Revision,
    /// Devices that were not put into quarantine because they were enrolled again since, or are no longer provers
    /// ([`Registry::superseded`]).
    pub superseded: HashSet<DeviceId>,
}

impl Registry {
    /// Puts devices into quarantine in one transaction. Devices that are already in quarantine or revoked do not
    /// change, and unknown ids are ignored. Devices that were enrolled again for attestation since are skipped and
    /// returned: another enrollment missed the rounds.
    ///
    /// A damaged record stays damaged, and the feed reports the device as inactive: write access to the database
    /// without the master key must not prevent a quarantine.
    ///
    /// # Errors
    /// A reason longer than [`TEXT_BYTES_MAX`], or a failure of the database. Nothing is changed then.
    pub async fn quarantine(&self, suspects: &[QuarantineRequest], now_s: u64) -> Result<QuarantineResult> {
        for suspect in suspects {
            let invalid = |field, problem| RegistryError::InvalidRecord {
                device: suspect.device,
                field,
                problem,
            };
            check_text(&suspect.reason, TEXT_BYTES_MAX, true)
                .map_err(|problem| invalid("quarantined_reason", problem))?;
            if i64::try_from(now_s).is_err() {
                let problem = "not a valid time in seconds since 1970".to_owned();
                return Err(invalid("quarantined_at_s", problem));
            }
        }
        let mut transaction = self.write().await?;
        let (mut newest, mut overtaken) = (None, HashSet::new());
        for suspect in suspects {
            let device = suspect.device;
            if self
                .is_superseded(&mut transaction, device, suspect.enrolled_at)
                .await?
            {
                overtaken.insert(device);
                continue;
            }
            let quarantine = Quarantine {
                at_s: now_s,
                reason: suspect.reason.clone(),
            };
            let revision = self.quarantine_in(&mut transaction, device, quarantine).await?;
            newest = revision.or(newest);
        }
        let revision = match newest {
            Some(revision) => {
                transaction.commit().await?;
                revision
            }
            None => {
                let revision = feed::revision_in(&mut transaction).await?;
                transaction.rollback().await?;
                revision
            }
        };
        Ok(QuarantineResult {
            revision,
            superseded: overtaken,
        })
    }

    /// Puts a device into quarantine by a command: no proof releases it, only [`Registry::release`]. Returns the
    /// revision under which gateways learn of the change.
    ///
    /// # Errors
    /// An unknown or revoked device, a reason longer than [`TEXT_BYTES_MAX`], a damaged record, or a failure of the
    /// database.
    pub async fn quarantine_manually(&self, device: DeviceId, reason: &str, now_s: u64) -> Result<Revision> {
        check_text(reason, TEXT_BYTES_MAX, true).map_err(|problem| RegistryError::InvalidRecord {
            device,
            field: "quarantined_reason",
            problem,
        })?;
        let at_s = seconds_to_column(now_s);
        let mut transaction = self.write().await?;
        let info = self.get_in(&mut transaction, device).await?;
        if !info.status.is_active() {
            return Err(RegistryError::Revoked { device });
        }
        let quarantine = Quarantine {
            at_s: now_s,
            reason: reason.to_owned(),
        };
        let revision = self.quarantine_in(&mut transaction, device, quarantine).await?;
        sql::query(
            "INSERT INTO manual_quarantine (device_id, at_s, mac) VALUES ($1, $2, $3) \
             ON CONFLICT (device_id) DO UPDATE SET at_s = excluded.at_s, mac = excluded.mac",
        )
        .bind(id_to_column(device))
        .bind(at_s)
        .bind(manual_quarantine_code(self.record_mac(), device, at_s).finish())
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(revision.unwrap_or(info.revision))
    }

    /// Whether the device was put into quarantine by a command. A record that does not authenticate counts, because
    /// it can only keep a device in quarantine.
    async fn is_manual(&self, connection: &mut Connection, device: DeviceId) -> Result<bool> {
        let order: Option<(ColumnValue<i64>,)> =
            sql::query("SELECT at_s FROM manual_quarantine WHERE device_id = $1")
                .bind(id_to_column(device))
                .fetch_optional(connection)
                .await?;
        Ok(order.is_some())
    }

    /// Releases a device from quarantine; returns the revision under which gateways learn of the change. A device
    /// that is not in quarantine does not change.
    ///
    /// # Errors
    /// An unknown or revoked device, a damaged record, or a failure of the database.
    pub async fn release(&self, device: DeviceId) -> Result<Revision> {
        let mut transaction = self.write().await?;
        let lifted = sql::query("DELETE FROM manual_quarantine WHERE device_id = $1")
            .bind(id_to_column(device))
            .execute(&mut *transaction)
            .await?;
        let (revision, is_changed) = self.release_in(&mut transaction, device).await?;
        match is_changed || lifted > 0 {
            true => transaction.commit().await?,
            false => transaction.rollback().await?,
        }
        Ok(revision)
    }

    /// As [`Registry::release`], for a device that has sent a valid proof with the key of this enrollment. `None`,
    /// and the device stays in quarantine, if its authentic record has another enrollment, or the quarantine was set
    /// by a command. So write access to the database does not release a device.
    ///
    /// # Errors
    /// As [`Registry::release`].
    pub async fn release_prover(
        &self,
        device: DeviceId,
        enrolled_at: EnrollmentTime,
    ) -> Result<Option<Revision>> {
        let mut transaction = self.write().await?;
        if !self.is_enrolled(&mut transaction, device, enrolled_at).await?
            || self.is_manual(&mut transaction, device).await?
        {
            transaction.rollback().await?;
            return Ok(None);
        }
        let (revision, is_changed) = self.release_in(&mut transaction, device).await?;
        match is_changed {
            true => transaction.commit().await?,
            false => transaction.rollback().await?,
        }
        Ok(Some(revision))
    }

    /// Returns the revision, and whether there is a change to commit.
    async fn release_in(&self, connection: &mut Connection, device: DeviceId) -> Result<(Revision, bool)> {
        let mut info = self.get_in(connection, device).await?;
        if !info.status.is_active() {
            return Err(RegistryError::Revoked { device });
        }
        if info.quarantine.is_none() {
            return Ok((info.revision, false));
        }
        info.quarantine = None;
        Ok((self.write_quarantine(connection, info).await?, true))
    }

    /// `None` if nothing changes.
    async fn quarantine_in(
        &self,
        connection: &mut Connection,
        device: DeviceId,
        quarantine: Quarantine,
    ) -> Result<Option<Revision>> {
        match self.get_in(connection, device).await {
            Ok(info) if !info.may_authenticate() => Ok(None),
            Ok(mut info) => {
                info.quarantine = Some(quarantine);
                self.write_quarantine(connection, info).await.map(Some)
            }
            Err(RegistryError::UnknownDevice { .. }) => Ok(None),
            Err(RegistryError::DamagedRecord { .. }) => {
                let revision = next_revision(connection).await?;
                let (at_s, reason) = quarantine_to_columns(Some(&quarantine));
                // The MAC remains invalid.
                sql::query(
                    "UPDATE device SET quarantined_at_s = $1, quarantined_reason = $2, revision = $3 WHERE device_id = $4",
                )
                .bind(at_s)
                .bind(reason)
                .bind(revision.0.cast_signed())
                .bind(id_to_column(device))
                .execute(connection)
                .await?;
                Ok(Some(revision))
            }
            Err(error) => Err(error),
        }
    }

    async fn write_quarantine(&self, connection: &mut Connection, mut info: DeviceInfo) -> Result<Revision> {
        info.revision = next_revision(connection).await?;
        let (at_s, reason) = quarantine_to_columns(info.quarantine.as_ref());
        sql::query(
            "UPDATE device SET quarantined_at_s = $1, quarantined_reason = $2, revision = $3, mac = $4 WHERE device_id = $5",
        )
        .bind(at_s)
        .bind(reason)
        .bind(info.revision.0.cast_signed())
        .bind(self.record_mac().code(&info).as_slice())
        .bind(id_to_column(info.device))
        .execute(connection)
        .await?;
        Ok(info.revision)
    }
}

async fn next_revision(connection: &mut Connection) -> Result<Revision> {
    let before = feed::reserve_revisions(connection, 1).await?;
    Ok(Revision(before.saturating_add(1).cast_unsigned()))
}

/// A row of `quarantine_order`: device, at, mac.
type ManualQuarantineRow = (ColumnValue<i64>, ColumnValue<i64>, ColumnValue<Vec<u8>>);

fn manual_quarantine_code(mac: &RecordMac, device: DeviceId, at_s: i64) -> RowCode {
    mac.row(MANUAL_LABEL).number(id_to_column(device)).number(at_s)
}

/// Manual quarantines that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(connection: &mut Connection, mac: &RecordMac) -> Result<Vec<RegistryError>> {
    let rows: Vec<ManualQuarantineRow> = sql::query("SELECT device_id, at_s, mac FROM manual_quarantine")
        .fetch_all(connection)
        .await?;
    let is_damaged = |(device, at_s, code): &&ManualQuarantineRow| {
        !manual_quarantine_code(mac, id_from_column(device.0), at_s.0).matches(&code.0)
    };
    let damaged = rows.iter().filter(is_damaged);
    Ok(damaged
        .map(|(device, ..)| crate::lease::damage(id_from_column(device.0), "manual quarantine"))
        .collect())
}
