//! Evidence documents of devices: logs that explain a measurement, stored as received.

use linewarden_protocol::ids::DeviceId;
use zeroize::Zeroizing;

use super::{Pages, seconds};
use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::error::{AttestationError, DeviceError, RegistryError, Result};
use crate::lease::damage;
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table evidence v1";
/// Maximum length of a document, bytes.
pub const EVIDENCE_BYTES_MAX: usize = 2 << 20;

/// The columns of `evidence`: device, number, time, sealed document.
type EvidenceColumns = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

impl Registry {
    /// Stores an evidence document of a prover; the newest and the previous document are kept.
    ///
    /// # Errors
    /// [`AttestationError::NotAProver`], an empty document or a document longer than [`EVIDENCE_BYTES_MAX`], a damaged
    /// record, or a failure of the database.
    pub async fn store_evidence(&self, device: DeviceId, document: &[u8], at_s: u64) -> Result<()> {
        let invalid = |problem| {
            RegistryError::Device(DeviceError::InvalidRecord {
                device,
                field: "evidence",
                problem,
            })
        };
        if !(1..=EVIDENCE_BYTES_MAX).contains(&document.len()) {
            return Err(invalid(format!(
                "{} B; 1 to {EVIDENCE_BYTES_MAX} B are accepted",
                document.len()
            )));
        }
        let at_s = seconds(at_s).map_err(invalid)?;
        let mut transaction = self.write().await?;
        if !self.is_prover(&mut transaction, device).await? {
            return Err(RegistryError::Attestation(AttestationError::NotAProver {
                device,
            }));
        }
        let (newest,): (Option<i64>,) = sql::query(
            "SELECT MAX(number) FROM evidence WHERE device_id = $1 AND typeof(number) = 'integer'",
        )
        .bind(id_to_column(device))
        .fetch_one(&mut *transaction)
        .await?;
        let number = newest.unwrap_or_default().saturating_add(1);
        let aad = aad(id_to_column(device), number, at_s);
        let sealed = self
            .sealer()
            .seal(&aad, document.len(), |out| out.extend_from_slice(document))?;
        sql::query(
            "INSERT INTO evidence (device_id, number, at_s, sealed) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (device_id, number) DO UPDATE SET at_s = excluded.at_s, sealed = excluded.sealed",
        )
        .bind(id_to_column(device))
        .bind(number)
        .bind(at_s)
        .bind(sealed)
        .execute(&mut *transaction)
        .await?;
        // A damaged number that is a text would sort above all numbers and remain the newest document forever.
        sql::query(
            "DELETE FROM evidence WHERE device_id = $1 AND (number < $2 - 1 OR typeof(number) <> 'integer')",
        )
        .bind(id_to_column(device))
        .bind(number)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// The newest document of a device and its time of arrival in seconds since 1970-01-01 UTC; `None` without
    /// documents.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn evidence(&self, device: DeviceId) -> Result<Option<(u64, Zeroizing<Vec<u8>>)>> {
        self.evidence_at(device, 0).await
    }

    /// The document before the newest document, as [`Registry::evidence`]; `None` if there is no such document.
    ///
    /// # Errors
    /// As [`Registry::evidence`].
    pub async fn previous_evidence(&self, device: DeviceId) -> Result<Option<(u64, Zeroizing<Vec<u8>>)>> {
        self.evidence_at(device, 1).await
    }

    /// The document that is older than exactly `newer` documents of the device: 0 selects the newest document.
    async fn evidence_at(&self, device: DeviceId, newer: i64) -> Result<Option<(u64, Zeroizing<Vec<u8>>)>> {
        let record: Option<EvidenceColumns> = sql::query(
            "SELECT device_id, number, at_s, sealed FROM evidence WHERE device_id = $1 \
             ORDER BY number DESC LIMIT 1 OFFSET $2",
        )
        .bind(id_to_column(device))
        .bind(newer)
        .fetch_optional(self.reader())
        .await?;
        record.map(|record| self.open_evidence(&record)).transpose()
    }

    fn open_evidence(
        &self,
        (device, number, at_s, sealed): &EvidenceColumns,
    ) -> Result<(u64, Zeroizing<Vec<u8>>)> {
        let opened = self.sealer().open(&aad(device.0, number.0, at_s.0), &sealed.0);
        let at_s = u64::try_from(at_s.0);
        opened
            .ok()
            .and_then(|document| Some((at_s.ok()?, document)))
            .ok_or_else(|| damage(id_from_column(device.0), "evidence"))
    }

    pub(super) async fn damaged_evidence(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let (mut damaged, mut pages) = (Vec::new(), Pages::new());
        // Documents are long, so they are opened one by one.
        let positions = "SELECT rowid AS position FROM evidence WHERE rowid >= $1 ORDER BY rowid LIMIT $2";
        while let Some(records) = pages.next::<(i64,)>(connection, positions).await? {
            for (position,) in records {
                let record: EvidenceColumns =
                    sql::query("SELECT device_id, number, at_s, sealed FROM evidence WHERE rowid = $1")
                        .bind(position)
                        .fetch_one(&mut *connection)
                        .await?;
                damaged.extend(self.open_evidence(&record).err());
            }
        }
        Ok(damaged)
    }
}

/// The associated data that binds a sealed document to its device, number and time.
fn aad(device: i64, number: i64, at_s: i64) -> Vec<u8> {
    [
        LABEL,
        &device.to_be_bytes(),
        &number.to_be_bytes(),
        &at_s.to_be_bytes(),
    ]
    .concat()
}
