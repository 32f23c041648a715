//! Trusted signers of broadcast messages.

use super::{check_text, damaged_record, invalid_field, text};
use crate::column::ColumnValue;
use crate::error::{RegistryError, Result};
use crate::record_mac::RecordMac;
use crate::row::seconds_to_column;
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table signer v1";
const NAME_BYTES_MAX: usize = 255;
const KEY_BYTES_MAX: usize = 65_536;
const ID_BYTES_MAX: usize = 32;

/// A signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerRecord {
    /// The signer id in messages.
    pub id: Vec<u8>,
    /// The display name.
    pub name: String,
    /// The signature scheme.
    pub scheme: String,
    /// The public key, as received.
    pub public_key: Vec<u8>,
    /// Seconds since 1970-01-01 UTC.
    pub added_at_s: u64,
    /// Time of the revocation, seconds since 1970-01-01 UTC.
    pub revoked_at_s: Option<u64>,
}

/// Id, name, scheme, key, added, revoked, mac.
type SignerRow = (
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<Option<i64>>,
    ColumnValue<Vec<u8>>,
);

fn code(mac: &RecordMac, row: &SignerRow) -> crate::record_mac::RowCode {
    mac.row(LABEL)
        .bytes(&row.0.0)
        .bytes(&row.1.0)
        .bytes(&row.2.0)
        .bytes(&row.3.0)
        .number(row.4.0)
        .number_or_null(row.5.0)
}

fn row_from_signer(mac: &RecordMac, signer: &SignerRecord) -> SignerRow {
    let mut row = (
        ColumnValue(signer.id.clone()),
        ColumnValue(signer.name.as_bytes().to_vec()),
        ColumnValue(signer.scheme.as_bytes().to_vec()),
        ColumnValue(signer.public_key.clone()),
        ColumnValue(seconds_to_column(signer.added_at_s)),
        ColumnValue(signer.revoked_at_s.map(seconds_to_column)),
        ColumnValue(Vec::new()),
    );
    row.6.0 = code(mac, &row).finish();
    row
}

fn signer_from_row(mac: &RecordMac, row: SignerRow) -> Result<SignerRecord> {
    if !code(mac, &row).matches(&row.6.0) {
        return Err(damaged_record(format!(
            "the record of signer {}",
            hex::encode(&row.0.0)
        )));
    }
    Ok(SignerRecord {
        id: row.0.0,
        name: text(row.1.0),
        scheme: text(row.2.0),
        public_key: row.3.0,
        added_at_s: u64::try_from(row.4.0).unwrap_or_default(),
        revoked_at_s: row.5.0.map(|at_s| u64::try_from(at_s).unwrap_or_default()),
    })
}

impl Registry {
    /// Adds a trusted signer.
    ///
    /// # Errors
    /// An existing signer, an invalid text or key, or a failure of the database.
    pub async fn add_signer(&self, signer: &SignerRecord) -> Result<()> {
        check_text("name", &signer.name, NAME_BYTES_MAX)?;
        check_text("scheme", &signer.scheme, NAME_BYTES_MAX)?;
        if signer.id.is_empty() || signer.id.len() > ID_BYTES_MAX || signer.public_key.len() > KEY_BYTES_MAX {
            return Err(invalid_field("public_key", "not a public key of a signer"));
        }
        let row = row_from_signer(self.record_mac(), signer);
        let mut transaction = self.write().await?;
        let added = sql::query(
            "INSERT INTO signer (signer_id, name, scheme, public_key, added_at_s, revoked_at_s, mac) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (signer_id) DO NOTHING",
        )
        .bind(row.0.0)
        .bind(&signer.name)
        .bind(&signer.scheme)
        .bind(row.3.0)
        .bind(row.4.0)
        .bind(row.5.0)
        .bind(row.6.0)
        .execute(&mut *transaction)
        .await?;
        if added == 0 {
            let id = hex::encode(&signer.id);
            return Err(invalid_field(
                "public_key",
                format!("signer {id} already exists; a revoked signer cannot be added again"),
            ));
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Revokes a signer permanently; returns whether it exists.
    ///
    /// # Errors
    /// A damaged record, or a failure of the database.
    pub async fn revoke_signer(&self, id: &[u8], now_s: u64) -> Result<bool> {
        let mut transaction = self.write().await?;
        let row: Option<SignerRow> = sql::query(
            "SELECT signer_id, name, scheme, public_key, added_at_s, revoked_at_s, mac FROM signer WHERE signer_id = $1",
        )
        .bind(id)
        .fetch_optional(&mut *transaction)
        .await?;
        let Some(row) = row else {
            return Ok(false);
        };
        let mut signer = signer_from_row(self.record_mac(), row)?;
        if signer.revoked_at_s.is_some() {
            return Ok(true);
        }
        signer.revoked_at_s = Some(now_s);
        let row = row_from_signer(self.record_mac(), &signer);
        sql::query("UPDATE signer SET revoked_at_s = $1, mac = $2 WHERE signer_id = $3")
            .bind(row.5.0)
            .bind(row.6.0)
            .bind(id)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// All signers, by id; an error for each damaged record.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn signers(&self) -> Result<Vec<Result<SignerRecord>>> {
        let rows: Vec<SignerRow> = sql::query(
            "SELECT signer_id, name, scheme, public_key, added_at_s, revoked_at_s, mac FROM signer ORDER BY signer_id",
        )
        .fetch_all(self.reader())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| signer_from_row(self.record_mac(), row))
            .collect())
    }
}

/// Signers that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged_signers(
    registry: &Registry,
    connection: &mut Connection,
) -> Result<Vec<RegistryError>> {
    let rows: Vec<SignerRow> =
        sql::query("SELECT signer_id, name, scheme, public_key, added_at_s, revoked_at_s, mac FROM signer")
            .fetch_all(connection)
            .await?;
    let found = rows
        .into_iter()
        .filter_map(|row| signer_from_row(registry.record_mac(), row).err());
    Ok(found.collect())
}
