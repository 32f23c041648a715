//! Renewal of credentials by a device: rows after its last row, or a new key in key mode (LAP/1 1.7).
//!
//! Each change is stored in one transaction with the number of its ticket, so that a repeated ticket changes nothing.
//! Rows are added only at the end of the pool, so that repeated rows are refused, too.

use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_protocol::keys::RowKey;
use linewarden_types::Revision;

use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::credentials::{Credentials, POOL_ROWS_MAX, PoolRow};
use crate::device::DeviceInfo;
use crate::error::{DeviceError, RegistryError, Result};
use crate::feed;
use crate::lease::damage;
use crate::record_tag::{RecordAuthenticator, halves};
use crate::seal_context::SealContext;
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table ticket v1";
/// Maximum number of unleased rows of a device after a renewal.
const UNLEASED_ROWS_MAX: usize = 4_096;

/// The new credentials of a device.
#[derive(Debug)]
pub enum Renewal {
    /// Rows that follow the last row of the pool.
    Rows {
        /// The epoch of the existing credentials.
        epoch: u32,
        /// Number of the first row.
        first: u32,
        /// The rows.
        rows: Vec<PoolRow>,
    },
    /// A key that replaces the current key.
    Key {
        /// The epoch of the current key.
        epoch: u32,
        /// The new key.
        key: RowKey,
    },
}

/// The result of a [`Renewal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalResult {
    /// The renewal is stored.
    Stored,
    /// The ticket number is not higher than the last ticket number.
    StaleTicket,
    /// Mode, epoch or first row do not match the existing credentials.
    WrongPosition,
    /// An all-zero key, or too many rows.
    Rejected,
}

/// A device's record and the number of the last ticket that changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enrollment {
    /// The record.
    pub info: DeviceInfo,
    /// The ticket number; 0 before the first ticket.
    pub ticket_number: u64,
}

impl Registry {
    /// The enrollment of a device.
    ///
    /// # Errors
    /// An unknown or revoked device, a device in quarantine, a damaged record, or a failure of the database.
    pub async fn enrollment(&self, device: DeviceId) -> Result<Enrollment> {
        let mut connection = self.reader().acquire().await?;
        self.enrollment_in(&mut connection, device).await
    }

    /// Stores a renewal durably, or changes nothing; returns the result and the resulting enrollment. `number` is the number
    /// of the device's ticket.
    ///
    /// A new key ends all leases of the old key; the change feed reports the renewal as a replacement of the credentials.
    ///
    /// # Errors
    /// An unknown or revoked device, a device in quarantine, a damaged record, or a failure of the database. Nothing
    /// is changed then.
    pub async fn renew(
        &self,
        device: DeviceId,
        number: u64,
        renewal: Renewal,
    ) -> Result<(RenewalResult, Enrollment)> {
        let mut transaction = self.write().await?;
        let before = self.enrollment_in(&mut transaction, device).await?;
        if number <= before.ticket_number || i64::try_from(number).is_err() {
            return Ok((RenewalResult::StaleTicket, before));
        }
        let (mut info, credentials) = match self
            .apply_renewal(&mut transaction, &before.info, renewal)
            .await?
        {
            Ok(after_renewal) => after_renewal,
            Err(result) => return Ok((result, before)),
        };
        let revision = feed::reserve_revisions(&mut transaction, 1)
            .await?
            .saturating_add(1);
        info.revision = Revision(revision.cast_unsigned());
        self.write_renewed(&mut transaction, &info, &credentials).await?;
        if info.epoch != before.info.epoch {
            for statement in [
                "DELETE FROM lease WHERE device_id = $1",
                "DELETE FROM unleased_range WHERE device_id = $1",
            ] {
                sql::query(statement)
                    .bind(id_to_column(device))
                    .execute(&mut *transaction)
                    .await?;
            }
        }
        self.write_number(&mut transaction, device, number).await?;
        transaction.commit().await?;
        Ok((
            RenewalResult::Stored,
            Enrollment {
                info,
                ticket_number: number,
            },
        ))
    }

    /// The record and the credentials after the renewal; the inner error if the renewal is refused.
    async fn apply_renewal(
        &self,
        connection: &mut Connection,
        info: &DeviceInfo,
        renewal: Renewal,
    ) -> Result<Result<(DeviceInfo, Credentials), RenewalResult>> {
        let mut info = info.clone();
        match (renewal, info.mode) {
            (Renewal::Key { epoch, key }, Mode::Key) if epoch == info.epoch => {
                let Some(next) = epoch.checked_add(1) else {
                    return Ok(Err(RenewalResult::Rejected));
                };
                if key.as_bytes() == &[0; 16] {
                    return Ok(Err(RenewalResult::Rejected));
                }
                info.epoch = next;
                Ok(Ok((info, Credentials::Key(key))))
            }
            (Renewal::Rows { epoch, first, rows }, Mode::Pool)
                if epoch == info.epoch && first == info.indices().end =>
            {
                let unleased_rows =
                    usize::try_from(info.rows_left().unwrap_or_default()).unwrap_or(usize::MAX);
                let Credentials::Pool {
                    first_idx,
                    rows: mut all_rows,
                } = self.credentials_in(connection, &info).await?
                else {
                    return Err(RegistryError::Device(DeviceError::DamagedRecord {
                        device: info.device,
                        problem: "its credentials have another mode".to_owned(),
                    }));
                };
                all_rows.extend(rows.iter().cloned());
                let total = u32::try_from(all_rows.len()).ok().filter(|total| {
                    all_rows.len() <= POOL_ROWS_MAX && info.first_idx.0.checked_add(*total).is_some()
                });
                let is_zero = |row: &PoolRow| row.row_key.as_bytes() == &[0; 16];
                match total {
                    Some(total)
                        if unleased_rows + rows.len() <= UNLEASED_ROWS_MAX && !rows.iter().any(is_zero) =>
                    {
                        info.rows_total = total;
                        Ok(Ok((
                            info,
                            Credentials::Pool {
                                first_idx,
                                rows: all_rows,
                            },
                        )))
                    }
                    _ => Ok(Err(RenewalResult::Rejected)),
                }
            }
            _ => Ok(Err(RenewalResult::WrongPosition)),
        }
    }

    async fn credentials_in(&self, connection: &mut Connection, info: &DeviceInfo) -> Result<Credentials> {
        let sealed: Option<(ColumnValue<Vec<u8>>,)> =
            sql::query("SELECT sealed FROM credential WHERE device_id = $1")
                .bind(id_to_column(info.device))
                .fetch_optional(connection)
                .await?;
        self.unseal(info, sealed.as_ref().map(|(sealed,)| sealed.0.as_slice()))
    }

    async fn write_renewed(
        &self,
        connection: &mut Connection,
        info: &DeviceInfo,
        credentials: &Credentials,
    ) -> Result<()> {
        let sealed = self
            .sealer()
            .seal(&SealContext::of(info).aad(), credentials.encoded_len(), |out| {
                credentials.encode(out);
            })?;
        sql::query("UPDATE credential SET sealed = $1 WHERE device_id = $2")
            .bind(sealed)
            .bind(id_to_column(info.device))
            .execute(&mut *connection)
            .await?;
        sql::query(
            "UPDATE device SET rows_total = $1, epoch = $2, revision = $3, tag = $4 WHERE device_id = $5",
        )
        .bind(i64::from(info.rows_total))
        .bind(i64::from(info.epoch))
        .bind(info.revision.0.cast_signed())
        .bind(self.authenticator().tag(info).as_slice())
        .bind(id_to_column(info.device))
        .execute(connection)
        .await?;
        Ok(())
    }

    async fn enrollment_in(&self, connection: &mut Connection, device: DeviceId) -> Result<Enrollment> {
        let info = self.get_in(connection, device).await?;
        info.check_may_authenticate()?;
        let record: Option<TicketColumns> =
            sql::query("SELECT device_id, number, tag FROM ticket WHERE device_id = $1")
                .bind(id_to_column(device))
                .fetch_optional(connection)
                .await?;
        let number = record.map_or(Ok(0), |record| number_from_record(self.authenticator(), &record))?;
        Ok(Enrollment {
            info,
            ticket_number: number,
        })
    }

    async fn write_number(&self, connection: &mut Connection, device: DeviceId, number: u64) -> Result<()> {
        sql::query(
            "INSERT INTO ticket (device_id, number, tag) VALUES ($1, $2, $3) \
             ON CONFLICT (device_id) DO UPDATE SET number = excluded.number, tag = excluded.tag",
        )
        .bind(id_to_column(device))
        .bind(number.cast_signed())
        .bind(
            self.authenticator()
                .tag_of_fields(LABEL, device, &halves(number))
                .to_vec(),
        )
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// The columns of `ticket`: device, number, tag.
type TicketColumns = (ColumnValue<i64>, ColumnValue<i64>, ColumnValue<Vec<u8>>);

fn number_from_record(
    authenticator: &RecordAuthenticator,
    (device, number, tag): &TicketColumns,
) -> Result<u64> {
    let (device, number) = (id_from_column(device.0), number.0.cast_unsigned());
    match authenticator.verifies_fields(LABEL, device, &halves(number), &tag.0) {
        true => Ok(number),
        false => Err(damage(device, "ticket number")),
    }
}

/// Errors of ticket numbers that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
) -> Result<Vec<RegistryError>> {
    let records: Vec<TicketColumns> = sql::query("SELECT device_id, number, tag FROM ticket")
        .fetch_all(connection)
        .await?;
    Ok(records
        .iter()
        .filter_map(|record| number_from_record(authenticator, record).err())
        .collect())
}
