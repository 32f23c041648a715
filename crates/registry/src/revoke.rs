//! Revocation. There is no way back: a device that was lost is not trusted again under the same id.

use linewarden_protocol::ids::DeviceId;

use crate::device::{DeviceInfo, Revision, Status, TEXT_BYTES_MAX};
use crate::error::{RegistryError, Result};
use crate::feed;
use crate::row::{DeviceRow, REVOKED, device_columns, device_info, id_to_column};
use crate::store::Registry;

impl Registry {
    /// Revokes a device for good and returns the revision under which gateways learn of it (LAP/1 1.4.8).
    ///
    /// Revoking it again changes nothing: time and reason of the first revocation stay.
    ///
    /// # Errors
    /// An unknown device, a reason longer than [`TEXT_BYTES_MAX`], or a failure of the database.
    pub async fn revoke(&self, device: DeviceId, reason: &str, now_s: u64) -> Result<Revision> {
        let refuse = |field, problem: &str| {
            Err(RegistryError::InvalidRecord {
                device,
                field,
                problem: problem.to_owned(),
            })
        };
        if reason.len() > TEXT_BYTES_MAX || reason.contains('\0') {
            return refuse("revoked_reason", "at most 65536 B of text without NUL are stored");
        }
        let Ok(at_s) = i64::try_from(now_s) else {
            return refuse("revoked_at_s", "not a time in seconds since 1970");
        };
        let mut transaction = self.write().await?;
        let info = device_in(&mut transaction, device).await?;
        if let Status::Revoked { .. } = info.status {
            return Ok(info.revision);
        }
        let revision = feed::advance(&mut transaction, 1).await?.saturating_add(1);
        sqlx::query(
            "UPDATE device SET status = $1, revoked_at_s = $2, revoked_reason = $3, revision = $4 \
             WHERE device_id = $5",
        )
        .bind(REVOKED)
        .bind(at_s)
        .bind(reason)
        .bind(revision)
        .bind(id_to_column(device))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(Revision(revision.cast_unsigned()))
    }
}

/// The record of a device as the caller's transaction sees it.
pub(crate) async fn device_in(
    connection: &mut sqlx::SqliteConnection,
    device: DeviceId,
) -> Result<DeviceInfo> {
    let row: Option<DeviceRow> = sqlx::query_as(concat!(
        "SELECT ",
        device_columns!(),
        " FROM device WHERE device_id = $1"
    ))
    .bind(id_to_column(device))
    .fetch_optional(connection)
    .await?;
    device_info(row.ok_or(RegistryError::UnknownDevice { device })?)
}
