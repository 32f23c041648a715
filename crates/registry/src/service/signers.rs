//! Trusted signers of broadcast messages.

use super::{check_text, damaged_record, invalid_field, text};
use crate::column::ColumnValue;
use crate::conversion::seconds_to_column;
use crate::error::{RegistryError, Result};
use crate::record_tag::RecordAuthenticator;
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
    /// Time of addition, seconds since 1970-01-01 UTC.
    pub added_at_s: u64,
    /// Time of the revocation, seconds since 1970-01-01 UTC.
    pub revoked_at_s: Option<u64>,
}

/// The columns of `signer`: id, name, scheme, key, time of addition, time of revocation, tag.
type SignerColumns = (
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<Option<i64>>,
    ColumnValue<Vec<u8>>,
);

fn tag(authenticator: &RecordAuthenticator, record: &SignerColumns) -> crate::record_tag::TagBuilder {
    authenticator
        .begin(LABEL)
        .bytes(&record.0.0)
        .bytes(&record.1.0)
        .bytes(&record.2.0)
        .bytes(&record.3.0)
        .number(record.4.0)
        .number_or_null(record.5.0)
}

fn columns_from_signer(authenticator: &RecordAuthenticator, signer: &SignerRecord) -> SignerColumns {
    let mut record = (
        ColumnValue(signer.id.clone()),
        ColumnValue(signer.name.as_bytes().to_vec()),
        ColumnValue(signer.scheme.as_bytes().to_vec()),
        ColumnValue(signer.public_key.clone()),
        ColumnValue(seconds_to_column(signer.added_at_s)),
        ColumnValue(signer.revoked_at_s.map(seconds_to_column)),
        ColumnValue(Vec::new()),
    );
    record.6.0 = tag(authenticator, &record).finish();
    record
}

fn signer_from_record(authenticator: &RecordAuthenticator, record: SignerColumns) -> Result<SignerRecord> {
    if !tag(authenticator, &record).matches(&record.6.0) {
        return Err(damaged_record(format!(
            "the record of signer {}",
            hex::encode(&record.0.0)
        )));
    }
    Ok(SignerRecord {
        id: record.0.0,
        name: text(record.1.0),
        scheme: text(record.2.0),
        public_key: record.3.0,
        added_at_s: u64::try_from(record.4.0).unwrap_or_default(),
        revoked_at_s: record.5.0.map(|at_s| u64::try_from(at_s).unwrap_or_default()),
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
        let record = columns_from_signer(self.authenticator(), signer);
        let mut transaction = self.write().await?;
        let added = sql::query(
            "INSERT INTO signer (signer_id, name, scheme, public_key, added_at_s, revoked_at_s, tag) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (signer_id) DO NOTHING",
        )
        .bind(record.0.0)
        .bind(&signer.name)
        .bind(&signer.scheme)
        .bind(record.3.0)
        .bind(record.4.0)
        .bind(record.5.0)
        .bind(record.6.0)
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
        let record: Option<SignerColumns> = sql::query(
            "SELECT signer_id, name, scheme, public_key, added_at_s, revoked_at_s, tag FROM signer WHERE signer_id = $1",
        )
        .bind(id)
        .fetch_optional(&mut *transaction)
        .await?;
        let Some(record) = record else {
            return Ok(false);
        };
        let mut signer = signer_from_record(self.authenticator(), record)?;
        if signer.revoked_at_s.is_some() {
            return Ok(true);
        }
        signer.revoked_at_s = Some(now_s);
        let record = columns_from_signer(self.authenticator(), &signer);
        sql::query("UPDATE signer SET revoked_at_s = $1, tag = $2 WHERE signer_id = $3")
            .bind(record.5.0)
            .bind(record.6.0)
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
        let records: Vec<SignerColumns> = sql::query(
            "SELECT signer_id, name, scheme, public_key, added_at_s, revoked_at_s, tag FROM signer ORDER BY signer_id",
        )
        .fetch_all(self.reader())
        .await?;
        Ok(records
            .into_iter()
            .map(|record| signer_from_record(self.authenticator(), record))
            .collect())
    }
}

/// Errors of signers that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged_signers(
    registry: &Registry,
    connection: &mut Connection,
) -> Result<Vec<RegistryError>> {
    let records: Vec<SignerColumns> =
        sql::query("SELECT signer_id, name, scheme, public_key, added_at_s, revoked_at_s, tag FROM signer")
            .fetch_all(connection)
            .await?;
    let damaged = records
        .into_iter()
        .filter_map(|record| signer_from_record(registry.authenticator(), record).err());
    Ok(damaged.collect())
}
