//! Revocation, which is permanent: a lost device is never trusted again under the same id.

use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_types::Revision;

use crate::conversion::{
    id_to_column, mode_to_column, quarantine_to_columns, seconds_to_column, status_to_columns,
};
use crate::device::{DeviceInfo, Status, TEXT_BYTES_MAX, check_text};
use crate::error::{DeviceError, RegistryError, Result};
use crate::feed;
use crate::sql::{self, Connection};
use crate::store::Registry;

impl Registry {
    /// Revokes a device permanently and returns the revision under which gateways learn of the revocation (LAP/1
    /// 1.4.8).
    ///
    /// A repeated revocation changes nothing: time and reason of the first revocation remain. A damaged record is
    /// overwritten by a revoked record without name and rows: a party with write access to the database, but without the
    /// master key, must not prevent a revocation. [`Registry::check`] still reports the device, because of its credentials.
    ///
    /// # Errors
    /// An unknown device, a reason longer than [`TEXT_BYTES_MAX`] or with a control character, an invalid time, or a
    /// failure of the database.
    pub async fn revoke(&self, device: DeviceId, reason: &str, now_s: u64) -> Result<Revision> {
        check(device, reason, now_s)?;
        let mut transaction = self.write().await?;
        let (revision, is_new) = self.revoke_in(&mut transaction, device, reason, now_s).await?;
        if is_new {
            transaction.commit().await?;
        }
        Ok(revision)
    }

    /// Revokes devices in one transaction. Returns the number of devices that were not revoked before, and an error for
    /// each unknown device.
    ///
    /// # Errors
    /// As [`Registry::revoke`]. No device is revoked then.
    pub async fn revoke_all(
        &self,
        devices: &[DeviceId],
        reason: &str,
        now_s: u64,
    ) -> Result<(u64, Vec<RegistryError>)> {
        let (mut revoked, mut unknown) = (0, Vec::new());
        let mut transaction = self.write().await?;
        for device in devices {
            check(*device, reason, now_s)?;
            match self.revoke_in(&mut transaction, *device, reason, now_s).await {
                Ok((_, is_new)) => revoked += u64::from(is_new),
                Err(error @ RegistryError::Device(DeviceError::UnknownDevice { .. })) => unknown.push(error),
                Err(error) => return Err(error),
            }
        }
        if revoked > 0 {
            transaction.commit().await?;
        }
        Ok((revoked, unknown))
    }

    /// Returns the revision of the revocation, and whether the revocation is new.
    async fn revoke_in(
        &self,
        connection: &mut Connection,
        device: DeviceId,
        reason: &str,
        now_s: u64,
    ) -> Result<(Revision, bool)> {
        let mut info = match self.get_in(connection, device).await {
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => blank_record(device),
            stored => stored?,
        };
        if !info.status.is_active() {
            return Ok((info.revision, false));
        }
        let revision = feed::reserve_revisions(connection, 1).await?.saturating_add(1);
        info.status = Status::Revoked {
            at_s: now_s,
            reason: reason.to_owned(),
        };
        info.revision = Revision(revision.cast_unsigned());
        let (status, at_s, reason) = status_to_columns(&info.status);
        let (quarantined_at_s, quarantined_reason) = quarantine_to_columns(info.quarantine.as_ref());
        sql::query(
            "UPDATE device SET status = $1, revoked_at_s = $2, revoked_reason = $3, revision = $4, tag = $5, \
             name = $6, mode = $7, suite = $8, enrolled_at_s = $9, first_idx = $10, rows_total = $11, \
             idx_floor = $12, floor_version = $13, epoch = $14, puf_profile = $15, quarantined_at_s = $16, \
             quarantined_reason = $17 WHERE device_id = $18",
        )
        .bind(status)
        .bind(at_s)
        .bind(reason)
        .bind(revision)
        .bind(self.authenticator().tag(&info).as_slice())
        .bind(&info.name)
        .bind(mode_to_column(info.mode))
        .bind(i16::from(info.suite.number()))
        .bind(seconds_to_column(info.enrolled_at_s))
        .bind(i64::from(info.first_idx.0))
        .bind(i64::from(info.rows_total))
        .bind(i64::from(info.idx_floor.0))
        .bind(info.floor_version)
        .bind(i64::from(info.epoch))
        .bind(&info.puf_profile)
        .bind(quarantined_at_s)
        .bind(quarantined_reason)
        .bind(id_to_column(device))
        .execute(connection)
        .await?;
        Ok((info.revision, true))
    }
}

/// Validates reason and time.
fn check(device: DeviceId, reason: &str, now_s: u64) -> Result<()> {
    let refuse = |field, problem: String| {
        Err(RegistryError::Device(DeviceError::InvalidRecord {
            device,
            field,
            problem,
        }))
    };
    if let Err(problem) = check_text(reason, TEXT_BYTES_MAX, true) {
        return refuse("revoked_reason", problem);
    }
    if i64::try_from(now_s).is_err() {
        return refuse(
            "revoked_at_s",
            "not a valid time in seconds since 1970".to_owned(),
        );
    }
    Ok(())
}

/// A record that contains only the device id.
fn blank_record(device: DeviceId) -> DeviceInfo {
    DeviceInfo {
        device,
        name: String::new(),
        mode: Mode::Pool,
        suite: Suite::SipHash128,
        status: Status::Active,
        quarantine: None,
        enrolled_at_s: 0,
        first_idx: RowIndex(0),
        rows_total: 0,
        idx_floor: RowIndex(0),
        epoch: u32::MAX,
        revision: Revision::ZERO,
        puf_profile: String::new(),
        floor_version: 0,
    }
}
