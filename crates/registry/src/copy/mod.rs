//! Copies of a whole registry, between SQLite and PostgreSQL in any combination: backups, restores and moves.
//!
//! Records are copied unchanged, sealed and with their tags, under the same master key. Before a copy becomes visible,
//! its digest is compared with the digest of the source: SHA-256 over every value of every record, in the order of the keys.

mod pages;
mod tables;

use sha2::{Digest as _, Sha256};

use self::pages::Pages;
pub(crate) use self::tables::TABLES;
use crate::enroll::Progress;
use crate::error::{OpenError, RegistryError, Result};
use crate::location::Location;
use crate::sql::{self, Builder, Connection, Value};
use crate::storage::{self, StorageMatch};
use crate::store::{Draft, Options, Registry, is_copy_of, with_location};

/// Maximum number of parameters of one statement; SQLite accepts 32,766.
const PARAMETERS_MAX: usize = 30_000;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Integer,
    Text,
    Bytes,
}

/// A table to copy.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The FROM clause.
    source: &'static str,
    /// The columns that define the order; their values are unique for each record.
    key: &'static [&'static str],
    pub(crate) columns: &'static [(&'static str, ColumnKind)],
    /// Records per query.
    page_records: i64,
}

/// The result of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySummary {
    /// Number of records in all copied tables together, equal for source and copy.
    pub records_in_all_tables: u64,
    /// SHA-256 over all records, equal for source and copy.
    pub digest: [u8; 32],
}

impl Registry {
    /// Copies all committed data to a location without a registry, under the same master key. The copy is durable and
    /// verified before it becomes visible. This registry serves gateways during the operation. The new registry is
    /// marked as a copy: the first registration of a gateway there ends all leases. `progress` counts the records of
    /// both passes, copying and verifying.
    ///
    /// # Errors
    /// An existing file or registry, which is never overwritten; a value of an unexpected type; or a failure
    /// of either database or the file system. An existing target then stays unchanged, and no incomplete copy is
    /// visible. If only the last step fails, the complete copy may exist at the target.
    pub async fn copy_to(
        &self,
        target: impl Into<Location>,
        mut progress: impl FnMut(Progress),
    ) -> Result<CopySummary> {
        let mut snapshot = self.reader().snapshot().await?;
        let target = target.into();
        let mut draft = Draft::begin(&target, &Options::default()).await?;
        let copied = copy_tables(&mut snapshot, &mut draft, &target, &mut progress).await?;
        draft.finish().await?;
        Ok(copied)
    }

    /// Moves the registry: copies as [`Registry::copy_to`] does. Afterwards this registry refuses all requests, with an
    /// error that names the target. The refusal is durable before the copy becomes visible, so two registries never
    /// lease the same rows. To repeat an interrupted move, open the registry with [`Registry::open_to_move`].
    ///
    /// # Errors
    /// As [`Registry::copy_to`]; this registry then continues to serve requests. [`OpenError::MoveUnfinished`] if the copy is
    /// complete but its publication may have failed.
    pub async fn move_to(
        &self,
        target: impl Into<Location>,
        mut progress: impl FnMut(Progress),
    ) -> Result<CopySummary> {
        let target = target.into();
        // The transaction holds the write lock: no other program writes from here on.
        let mut transaction = self.write_even_if_moved().await?;
        if matches!(*transaction, Connection::Postgres(_)) {
            // While the copy is written and verified, this transaction is idle, possibly for longer than the timeout of
            // the session.
            sql::query("SET LOCAL idle_in_transaction_session_timeout = 0")
                .execute(&mut *transaction)
                .await?;
        }
        self.refuse_moved_except_to(&mut transaction, Some(&target))
            .await?;
        let draft_result = Draft::begin(&target, &Options::default()).await;
        let mut draft = match draft_result {
            // The target exists: as the result of an earlier move, or as another registry.
            Err(exists @ RegistryError::Open(OpenError::AlreadyExists { .. })) => {
                let Err(moved) = self.refuse_moved(&mut transaction).await else {
                    return Err(exists);
                };
                if matches!(is_copy_of(&mut transaction, &target).await, Ok(true)) {
                    mark_move_completed(&mut transaction).await?;
                    transaction.commit().await?;
                }
                return Err(moved);
            }
            draft_result => draft_result?,
        };
        let copied = copy_tables(&mut transaction, &mut draft, &target, &mut progress).await?;
        // Leases remain valid at the target. The exception is a registry that is itself a copy or was restored, and at
        // which no gateway has registered since: the first registration at the target then ends all leases.
        let (storage_match, _) = self.incarnation(&mut transaction).await?;
        if storage_match != StorageMatch::Different {
            storage::clear_storage(draft.connection()?).await?;
        }
        sql::query("UPDATE registry SET moved_to = $1")
            .bind(target.to_string())
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        draft.finish().await.map_err(|source| {
            RegistryError::Open(OpenError::MoveUnfinished {
                target,
                source: Box::new(source),
            })
        })?;
        // Without this record, a repeated move would copy the old state again if the target no longer existed.
        if let Err(error) = self.complete_move().await {
            log::warn!(
                "recording the completed move of {self:?} failed: {error}; do not move the registry again"
            );
        }
        Ok(copied)
    }

    async fn complete_move(&self) -> Result<()> {
        let mut transaction = self.write_even_if_moved().await?;
        mark_move_completed(&mut transaction).await?;
        Ok(transaction.commit().await?)
    }
}

/// Records that the target of the move was published.
async fn mark_move_completed(connection: &mut Connection) -> Result<()> {
    sql::query("UPDATE registry SET move_completed = 1")
        .execute(connection)
        .await?;
    Ok(())
}

/// Copies all tables and verifies the copy.
async fn copy_tables(
    source: &mut Connection,
    draft: &mut Draft,
    target: &Location,
    progress: &mut impl FnMut(Progress),
) -> Result<CopySummary> {
    let rows = count(source).await?;
    let mut done = 0;
    let mut report = |count: u64| {
        done += count;
        progress(Progress {
            done,
            total: Some(rows.saturating_mul(2)),
        });
    };
    let mut hash = Sha256::new();
    let mut copied = 0;
    for table in &TABLES {
        hash_table_name(&mut hash, table);
        let mut pages = Pages::new(table);
        while let Some(page) = pages.next(source).await? {
            for record in &page {
                hash_record(&mut hash, record);
            }
            let count = page.len() as u64;
            insert(draft.connection()?, table, page)
                .await
                .map_err(with_location(target))?;
            copied += count;
            report(count);
        }
    }
    let copied = CopySummary {
        records_in_all_tables: copied,
        digest: hash.finalize().into(),
    };
    let verified = copied_digest(draft.connection()?, &mut report)
        .await
        .map_err(with_location(target))?;
    if verified != copied {
        return Err(RegistryError::Open(OpenError::CopyDiffers {
            registry: target.clone(),
            problem: format!(
                "{} of {} rows were found, or values differ",
                verified.records_in_all_tables, copied.records_in_all_tables
            ),
        }));
    }
    storage::mark_as_copy(draft.connection()?)
        .await
        .map_err(with_location(target))?;
    Ok(copied)
}

async fn count(connection: &mut Connection) -> Result<u64> {
    let mut rows = 0;
    for table in &TABLES {
        let (count,): (i64,) = sql::text(format!("SELECT COUNT(*) FROM {}", table.name))
            .fetch_one(&mut *connection)
            .await?;
        rows += u64::try_from(count).unwrap_or_default();
    }
    Ok(rows)
}

/// Reads the copy that [`copy_tables`] has written, and returns the number and digest of its records.
async fn copied_digest(connection: &mut Connection, report: &mut impl FnMut(u64)) -> Result<CopySummary> {
    let mut hash = Sha256::new();
    let mut rows = 0;
    for table in &TABLES {
        hash_table_name(&mut hash, table);
        let mut pages = Pages::new(table);
        while let Some(page) = pages.next(connection).await? {
            for record in &page {
                hash_record(&mut hash, record);
            }
            rows += page.len() as u64;
            report(page.len() as u64);
        }
    }
    Ok(CopySummary {
        records_in_all_tables: rows,
        digest: hash.finalize().into(),
    })
}

fn hash_table_name(hash: &mut Sha256, table: &Table) {
    hash.update(b"table");
    hash.update((table.name.len() as u64).to_be_bytes());
    hash.update(table.name);
}

/// Hashes each value with its type and length, so that different records have different encodings.
fn hash_record(hash: &mut Sha256, record: &[Value]) {
    hash.update(b"row");
    let mut bytes = |kind: u8, bytes: &[u8]| {
        hash.update([kind]);
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    for value in record {
        match value {
            Value::Integer(Some(value)) => bytes(1, &value.to_be_bytes()),
            Value::Text(Some(value)) => bytes(2, value.as_bytes()),
            Value::Bytes(Some(value)) => bytes(3, value),
            Value::Integer(None) | Value::Text(None) | Value::Bytes(None) => bytes(0, &[]),
            Value::Bool(value) => bytes(4, &[u8::from(*value)]),
        }
    }
}

async fn insert(connection: &mut Connection, table: &Table, mut records: Vec<Vec<Value>>) -> Result<()> {
    let records_max = PARAMETERS_MAX / table.columns.len().max(1);
    while !records.is_empty() {
        let remaining = records.split_off(records.len().min(records_max));
        let mut insert = Builder::new("INSERT INTO ");
        insert.push(table.name).push(" (");
        for (number, (column, _)) in table.columns.iter().enumerate() {
            insert.push(if number == 0 { "" } else { ", " }).push(column);
        }
        insert.push(") ");
        insert.push_values(records, |mut values, record| {
            for value in record {
                values.push_bind(value);
            }
        });
        insert.build().execute(&mut *connection).await?;
        records = remaining;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::MasterKey;

    /// Every column of every table is copied except those listed here, so that a new column cannot be forgotten.
    #[test]
    async fn every_column_of_a_registry_is_copied() {
        // A copy is marked as a copy. Gateways report their status again within seconds.
        const NOT_COPIED: [&str; 7] = [
            "registry.storage",
            "registry.moved_to",
            "registry.move_completed",
            "gateway_state.gateway_id",
            "gateway_state.at_ms",
            "gateway_state.controller",
            "gateway_state.body",
        ];
        let registry = Registry::in_memory(&MasterKey::from_bytes([1; 32]))
            .await
            .unwrap();
        let columns: Vec<(String, String)> = sql::query(
            "SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c \
             WHERE t.type = 'table' AND t.name NOT LIKE '\\_%' ESCAPE '\\'",
        )
        .fetch_all(registry.reader())
        .await
        .unwrap();
        let existing: BTreeSet<String> = columns
            .iter()
            .map(|(table, column)| format!("{table}.{column}"))
            .collect();
        let copied = TABLES.iter().flat_map(|table| {
            let columns = table.columns.iter();
            columns.map(|(column, _)| format!("{}.{column}", table.name))
        });
        let known: BTreeSet<String> = copied.chain(NOT_COPIED.map(ToOwned::to_owned)).collect();
        assert_eq!(existing, known);
    }
}
