//! Quarantine: a device that misses too many rounds may not authenticate. Unlike a revoked device, a device in
//! quarantine can be released.

use std::collections::HashSet;

use linewarden_protocol::ids::DeviceId;
use linewarden_types::{EnrollmentTime, Revision};

use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column, quarantine_to_columns, seconds_to_column};
use crate::device::{DeviceInfo, Quarantine, TEXT_BYTES_MAX, check_text};
use crate::error::{DeviceError, RegistryError, Result};
use crate::feed;
use crate::gateway::FencingToken;
use crate::record_tag::{RecordAuthenticator, TagBuilder};
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
    /// Devices that were not put into quarantine, because they were enrolled again after the missed rounds or are no
    /// longer provers ([`Registry::superseded`]).
    pub superseded: HashSet<DeviceId>,
}

impl Registry {
    /// Puts devices into quarantine in one transaction. Devices that are already in quarantine or revoked do not
    /// change, and unknown ids are ignored. Devices that were enrolled again for attestation after the missed rounds are
    /// skipped and returned, because the new enrollment has not missed these rounds.
    ///
    /// A damaged record stays damaged, and the feed reports the device as inactive: write access to the database
    /// without the master key must not prevent a quarantine.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`]; also a reason longer than [`TEXT_BYTES_MAX`] or with a control character,
    /// or an invalid time. Nothing is changed then.
    pub async fn quarantine(
        &self,
        fencing_token: &FencingToken,
        requests: &[QuarantineRequest],
        now_s: u64,
    ) -> Result<QuarantineResult> {
        for request in requests {
            let invalid = |field, problem| {
                RegistryError::Device(DeviceError::InvalidRecord {
                    device: request.device,
                    field,
                    problem,
                })
            };
            check_text(&request.reason, TEXT_BYTES_MAX, true)
                .map_err(|problem| invalid("quarantined_reason", problem))?;
            if i64::try_from(now_s).is_err() {
                let problem = "not a valid time in seconds since 1970".to_owned();
                return Err(invalid("quarantined_at_s", problem));
            }
        }
        let mut transaction = self.write().await?;
        self.check_fencing_token(&mut transaction, fencing_token).await?;
        let (mut newest, mut superseded) = (None, HashSet::new());
        for request in requests {
            let device = request.device;
            if self
                .is_superseded(&mut transaction, device, request.enrolled_at)
                .await?
            {
                superseded.insert(device);
                continue;
            }
            let quarantine = Quarantine {
                at_s: now_s,
                reason: request.reason.clone(),
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
        Ok(QuarantineResult { revision, superseded })
    }

    /// Puts a device into quarantine at the command of an operator: only [`Registry::release`] releases the device, not a
    /// proof. Returns the revision under which gateways learn of the change.
    ///
    /// # Errors
    /// An unknown or revoked device, a reason longer than [`TEXT_BYTES_MAX`] or with a control character, a damaged
    /// record, or a failure of the database.
    pub async fn quarantine_manually(&self, device: DeviceId, reason: &str, now_s: u64) -> Result<Revision> {
        check_text(reason, TEXT_BYTES_MAX, true).map_err(|problem| {
            RegistryError::Device(DeviceError::InvalidRecord {
                device,
                field: "quarantined_reason",
                problem,
            })
        })?;
        let at_s = seconds_to_column(now_s);
        let mut transaction = self.write().await?;
        let info = self.get_in(&mut transaction, device).await?;
        if !info.status.is_active() {
            return Err(RegistryError::Device(DeviceError::Revoked { device }));
        }
        let quarantine = Quarantine {
            at_s: now_s,
            reason: reason.to_owned(),
        };
        let revision = self.quarantine_in(&mut transaction, device, quarantine).await?;
        sql::query(
            "INSERT INTO manual_quarantine (device_id, at_s, tag) VALUES ($1, $2, $3) \
             ON CONFLICT (device_id) DO UPDATE SET at_s = excluded.at_s, tag = excluded.tag",
        )
        .bind(id_to_column(device))
        .bind(at_s)
        .bind(manual_quarantine_tag(self.authenticator(), device, at_s).finish())
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(revision.unwrap_or(info.revision))
    }

    /// Whether an operator put the device into quarantine. The record is not authenticated, because the record can only
    /// keep a device in quarantine.
    async fn is_manual(&self, connection: &mut Connection, device: DeviceId) -> Result<bool> {
        let record: Option<(ColumnValue<i64>,)> =
            sql::query("SELECT at_s FROM manual_quarantine WHERE device_id = $1")
                .bind(id_to_column(device))
                .fetch_optional(connection)
                .await?;
        Ok(record.is_some())
    }

    /// Releases a device from quarantine; returns the revision under which gateways learn of the change. A device
    /// that is not in quarantine does not change.
    ///
    /// # Errors
    /// An unknown or revoked device, a damaged record, or a failure of the database.
    pub async fn release(&self, device: DeviceId) -> Result<Revision> {
        let mut transaction = self.write().await?;
        let deleted = sql::query("DELETE FROM manual_quarantine WHERE device_id = $1")
            .bind(id_to_column(device))
            .execute(&mut *transaction)
            .await?;
        let (revision, is_changed) = self.release_in(&mut transaction, device).await?;
        match is_changed || deleted > 0 {
            true => transaction.commit().await?,
            false => transaction.rollback().await?,
        }
        Ok(revision)
    }

    /// As [`Registry::release`], for a device that has sent a valid proof with the key of this enrollment. Returns `None`
    /// if the device stays in quarantine: an operator has set the quarantine, or no authentic record of the device shows
    /// this enrollment. So write access to the database does not release a device.
    ///
    /// # Errors
    /// As [`Registry::release`] and [`Registry::verify_fencing_token`].
    pub async fn release_prover(
        &self,
        fencing_token: &FencingToken,
        device: DeviceId,
        enrolled_at: EnrollmentTime,
    ) -> Result<Option<Revision>> {
        let mut transaction = self.write().await?;
        self.check_fencing_token(&mut transaction, fencing_token).await?;
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

    /// Ends the quarantine of a device. Returns the revision, and whether there is a change to commit.
    async fn release_in(&self, connection: &mut Connection, device: DeviceId) -> Result<(Revision, bool)> {
        let mut info = self.get_in(connection, device).await?;
        if !info.status.is_active() {
            return Err(RegistryError::Device(DeviceError::Revoked { device }));
        }
        if info.quarantine.is_none() {
            return Ok((info.revision, false));
        }
        info.quarantine = None;
        Ok((self.write_quarantine(connection, info).await?, true))
    }

    /// Puts a device into quarantine and returns the revision of the change; `None` if nothing changes.
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
            Err(RegistryError::Device(DeviceError::UnknownDevice { .. })) => Ok(None),
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => {
                let revision = next_revision(connection).await?;
                let (at_s, reason) = quarantine_to_columns(Some(&quarantine));
                // The tag remains invalid.
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
            "UPDATE device SET quarantined_at_s = $1, quarantined_reason = $2, revision = $3, tag = $4 WHERE device_id = $5",
        )
        .bind(at_s)
        .bind(reason)
        .bind(info.revision.0.cast_signed())
        .bind(self.authenticator().tag(&info).as_slice())
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

/// The columns of `manual_quarantine`: device, time, tag.
type ManualQuarantineColumns = (ColumnValue<i64>, ColumnValue<i64>, ColumnValue<Vec<u8>>);

fn manual_quarantine_tag(authenticator: &RecordAuthenticator, device: DeviceId, at_s: i64) -> TagBuilder {
    authenticator
        .begin(MANUAL_LABEL)
        .number(id_to_column(device))
        .number(at_s)
}

/// Errors of manual quarantines that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
) -> Result<Vec<RegistryError>> {
    let records: Vec<ManualQuarantineColumns> =
        sql::query("SELECT device_id, at_s, tag FROM manual_quarantine")
            .fetch_all(connection)
            .await?;
    let is_damaged = |(device, at_s, tag): &&ManualQuarantineColumns| {
        !manual_quarantine_tag(authenticator, id_from_column(device.0), at_s.0).matches(&tag.0)
    };
    let damaged_records = records.iter().filter(is_damaged);
    Ok(damaged_records
        .map(|(device, ..)| crate::lease::damage(id_from_column(device.0), "manual quarantine"))
        .collect())
}
