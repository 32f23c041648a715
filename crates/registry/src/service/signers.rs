//! Whose broadcast messages are believed.

use super::{check, damaged, invalid, text};
use crate::column::Stored;
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
pub struct SignerEntry {
    /// What messages name it by.
    pub id: Vec<u8>,
    /// For people.
    pub name: String,
    /// Its scheme.
    pub scheme: String,
    /// Its public key, as it was given.
    pub public_key: Vec<u8>,
    /// Seconds since 1970-01-01 UTC.
    pub added_at_s: u64,
    /// Since when it is believed no more, likewise.
    pub revoked_at_s: Option<u64>,
}

/// Id, name, scheme, key, added, revoked, mac.
type SignerRow = (
    Stored<Vec<u8>>,
    Stored<Vec<u8>>,
    Stored<Vec<u8>>,
    Stored<Vec<u8>>,
    Stored<i64>,
    Stored<Option<i64>>,
    Stored<Vec<u8>>,
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

fn row_of(mac: &RecordMac, signer: &SignerEntry) -> SignerRow {
    let mut row = (
        Stored(signer.id.clone()),
        Stored(signer.name.as_bytes().to_vec()),
        Stored(signer.scheme.as_bytes().to_vec()),
        Stored(signer.public_key.clone()),
        Stored(seconds_to_column(signer.added_at_s)),
        Stored(signer.revoked_at_s.map(seconds_to_column)),
        Stored(Vec::new()),
    );
    row.6.0 = code(mac, &row).finish();
    row
}

fn entry(mac: &RecordMac, row: SignerRow) -> Result<SignerEntry> {
    if !code(mac, &row).is(&row.6.0) {
        return Err(damaged(format!("the record of signer {}", hex::encode(&row.0.0))));
    }
    Ok(SignerEntry {
        id: row.0.0,
        name: text(row.1.0),
        scheme: text(row.2.0),
        public_key: row.3.0,
        added_at_s: u64::try_from(row.4.0).unwrap_or_default(),
        revoked_at_s: row.5.0.map(|at_s| u64::try_from(at_s).unwrap_or_default()),
    })
}

impl Registry {
    /// Believes a signer from now on.
    ///
    /// # Errors
    /// One that is there already, a text or key that must not be stored, or a failure of the database.
    pub async fn add_signer(&self, signer: &SignerEntry) -> Result<()> {
        check("name", &signer.name, NAME_BYTES_MAX)?;
        check("scheme", &signer.scheme, NAME_BYTES_MAX)?;
        if signer.id.is_empty() || signer.id.len() > ID_BYTES_MAX || signer.public_key.len() > KEY_BYTES_MAX {
            return Err(invalid("public_key", "no key of a signer"));
        }
        let row = row_of(self.record_mac(), signer);
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
            return Err(invalid(
                "public_key",
                format!("signer {id} is there already; one that was revoked stays so"),
            ));
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Believes a signer no more, for good; whether there is one.
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
        let mut signer = entry(self.record_mac(), row)?;
        if signer.revoked_at_s.is_some() {
            return Ok(true);
        }
        signer.revoked_at_s = Some(now_s);
        let row = row_of(self.record_mac(), &signer);
        sql::query("UPDATE signer SET revoked_at_s = $1, mac = $2 WHERE signer_id = $3")
            .bind(row.5.0)
            .bind(row.6.0)
            .bind(id)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// All signers, by their ids; each, or what is wrong with the record.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn signers(&self) -> Result<Vec<Result<SignerEntry>>> {
        let rows: Vec<SignerRow> = sql::query(
            "SELECT signer_id, name, scheme, public_key, added_at_s, revoked_at_s, mac FROM signer ORDER BY signer_id",
        )
        .fetch_all(self.reader())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| entry(self.record_mac(), row))
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
        .filter_map(|row| entry(registry.record_mac(), row).err());
    Ok(found.collect())
}
