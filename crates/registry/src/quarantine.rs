//! Quarantine: a device that no longer proves what it is to run is shut out like a revoked one, but not for good.

use std::collections::HashSet;

use linewarden_protocol::ids::DeviceId;

use crate::attest::EnrolledAt;
use crate::column::Stored;
use crate::device::{DeviceInfo, Quarantine, Revision, TEXT_BYTES_MAX, check_text};
use crate::error::{RegistryError, Result};
use crate::feed;
use crate::record_mac::{RecordMac, RowCode};
use crate::row::{id_from_column, id_to_column, quarantine_to_columns, seconds_to_column};
use crate::sql::{self, Connection};
use crate::store::Registry;

const ORDER_LABEL: &[u8] = b"linewarden registry table quarantine_order v1";

/// A prover that is to be put into quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Which device.
    pub device: DeviceId,
    /// The enrolment that it is for.
    pub enrolled_at: EnrolledAt,
    /// By which rule, in words.
    pub reason: String,
}

/// What putting devices into quarantine has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutOut {
    /// The newest revision under which gateways learn of it.
    pub revision: Revision,
    /// Who stays in: it was enrolled anew since, or is no prover any more ([`Registry::overtaken`]).
    pub overtaken: HashSet<DeviceId>,
}

impl Registry {
    /// Puts devices into quarantine, in one transaction. Those that are in quarantine or revoked already stay as they are, and ids
    /// that are not enrolled are passed over, for the others' sake. Who was enrolled anew for attestation since is passed over and told:
    /// another key, or another device, has been silent.
    ///
    /// A record that is damaged stays damaged, and is told as shut out: whoever can write the file but lacks the key shall not
    /// keep a device in by spoiling its record.
    ///
    /// # Errors
    /// A reason longer than [`TEXT_BYTES_MAX`], or a failure of the database; nothing is changed then.
    pub async fn quarantine(&self, suspects: &[Suspect], now_s: u64) -> Result<ShutOut> {
        for suspect in suspects {
            let invalid = |field, problem| RegistryError::InvalidRecord {
                device: suspect.device,
                field,
                problem,
            };
            check_text(&suspect.reason, TEXT_BYTES_MAX, true)
                .map_err(|problem| invalid("quarantined_reason", problem))?;
            if i64::try_from(now_s).is_err() {
                let problem = "not a time in seconds since 1970".to_owned();
                return Err(invalid("quarantined_at_s", problem));
            }
        }
        let mut transaction = self.write().await?;
        let (mut newest, mut overtaken) = (None, HashSet::new());
        for suspect in suspects {
            let device = suspect.device;
            if self
                .is_overtaken(&mut transaction, device, suspect.enrolled_at)
                .await?
            {
                overtaken.insert(device);
                continue;
            }
            let quarantine = Quarantine {
                at_s: now_s,
                reason: suspect.reason.clone(),
            };
            let told = self.shut_out(&mut transaction, device, quarantine).await?;
            newest = told.or(newest);
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
        Ok(ShutOut { revision, overtaken })
    }

    /// Puts a device into quarantine because somebody wants it there: nothing that it proves lets it out, only [`Registry::readmit`] does.
    /// Returns the revision under which gateways learn of it.
    ///
    /// # Errors
    /// A device that is unknown or revoked, a reason longer than [`TEXT_BYTES_MAX`], a damaged record, or a failure of the database.
    pub async fn quarantine_by_order(&self, device: DeviceId, reason: &str, now_s: u64) -> Result<Revision> {
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
        let revision = self.shut_out(&mut transaction, device, quarantine).await?;
        sql::query(
            "INSERT INTO quarantine_order (device_id, at_s, mac) VALUES ($1, $2, $3) \
             ON CONFLICT (device_id) DO UPDATE SET at_s = excluded.at_s, mac = excluded.mac",
        )
        .bind(id_to_column(device))
        .bind(at_s)
        .bind(order_code(self.record_mac(), device, at_s).finish())
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(revision.unwrap_or(info.revision))
    }

    /// Whether somebody has put the device into quarantine. An order that does not authenticate is one: it keeps a device out, and lets
    /// none in.
    async fn is_ordered(&self, connection: &mut Connection, device: DeviceId) -> Result<bool> {
        let order: Option<(Stored<i64>,)> =
            sql::query("SELECT at_s FROM quarantine_order WHERE device_id = $1")
                .bind(id_to_column(device))
                .fetch_optional(connection)
                .await?;
        Ok(order.is_some())
    }

    /// Takes a device out of quarantine; returns the revision under which gateways learn of it. One that is in none stays as it
    /// is.
    ///
    /// # Errors
    /// A device that is unknown or revoked, a damaged record, or a failure of the database.
    pub async fn readmit(&self, device: DeviceId) -> Result<Revision> {
        let mut transaction = self.write().await?;
        let lifted = sql::query("DELETE FROM quarantine_order WHERE device_id = $1")
            .bind(id_to_column(device))
            .execute(&mut *transaction)
            .await?;
        let (revision, is_changed) = self.readmit_in(&mut transaction, device).await?;
        match is_changed || lifted > 0 {
            true => transaction.commit().await?,
            false => transaction.rollback().await?,
        }
        Ok(revision)
    }

    /// As [`Registry::readmit`], of a device that has proven itself by the key of this enrolment. `None` if that is not the one of its
    /// record, is in none that authenticates, or somebody has put it there: it stays where it is. Who can write the file lets nobody in by it.
    ///
    /// # Errors
    /// As [`Registry::readmit`].
    pub async fn readmit_prover(
        &self,
        device: DeviceId,
        enrolled_at: EnrolledAt,
    ) -> Result<Option<Revision>> {
        let mut transaction = self.write().await?;
        if !self.is_enrolled(&mut transaction, device, enrolled_at).await?
            || self.is_ordered(&mut transaction, device).await?
        {
            transaction.rollback().await?;
            return Ok(None);
        }
        let (revision, is_changed) = self.readmit_in(&mut transaction, device).await?;
        match is_changed {
            true => transaction.commit().await?,
            false => transaction.rollback().await?,
        }
        Ok(Some(revision))
    }

    /// The revision, and whether there is anything to be committed.
    async fn readmit_in(&self, connection: &mut Connection, device: DeviceId) -> Result<(Revision, bool)> {
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

    /// `None` if there is nothing to be done.
    async fn shut_out(
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
                let revision = next(connection).await?;
                let (at_s, reason) = quarantine_to_columns(Some(&quarantine));
                // Its code does not fit afterwards, as it did not before.
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
        info.revision = next(connection).await?;
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

async fn next(connection: &mut Connection) -> Result<Revision> {
    let before = feed::advance(connection, 1).await?;
    Ok(Revision(before.saturating_add(1).cast_unsigned()))
}

/// A row of `quarantine_order`: device, at, mac.
type OrderRow = (Stored<i64>, Stored<i64>, Stored<Vec<u8>>);

fn order_code(mac: &RecordMac, device: DeviceId, at_s: i64) -> RowCode {
    mac.row(ORDER_LABEL).number(id_to_column(device)).number(at_s)
}

/// Orders that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(connection: &mut Connection, mac: &RecordMac) -> Result<Vec<RegistryError>> {
    let rows: Vec<OrderRow> = sql::query("SELECT device_id, at_s, mac FROM quarantine_order")
        .fetch_all(connection)
        .await?;
    let is_damaged =
        |(device, at_s, code): &&OrderRow| !order_code(mac, id_from_column(device.0), at_s.0).is(&code.0);
    let damaged = rows.iter().filter(is_damaged);
    Ok(damaged
        .map(|(device, ..)| crate::lease::damage(id_from_column(device.0), "order of quarantine"))
        .collect())
}
