//! Revocation. There is no way back: a device that was lost is not trusted again under the same id.

use linewarden_protocol::ids::DeviceId;

use crate::device::{Revision, Status, TEXT_BYTES_MAX};
use crate::error::{RegistryError, Result};
use crate::feed;
use crate::row::{id_to_column, status_to_columns};
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
        if i64::try_from(now_s).is_err() {
            return refuse("revoked_at_s", "not a time in seconds since 1970");
        }
        let mut transaction = self.write().await?;
        let mut info = self.get_in(&mut transaction, device).await?;
        if !info.status.is_active() {
            return Ok(info.revision);
        }
        let revision = feed::advance(&mut transaction, 1).await?.saturating_add(1);
        info.status = Status::Revoked {
            at_s: now_s,
            reason: reason.to_owned(),
        };
        info.revision = Revision(revision.cast_unsigned());
        let (status, at_s, reason) = status_to_columns(&info.status);
        sqlx::query(
            "UPDATE device SET status = $1, revoked_at_s = $2, revoked_reason = $3, revision = $4, mac = $5 \
             WHERE device_id = $6",
        )
        .bind(status)
        .bind(at_s)
        .bind(reason)
        .bind(revision)
        .bind(self.record_mac().code(&info).as_slice())
        .bind(id_to_column(device))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(info.revision)
    }
}
