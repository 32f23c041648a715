//! Copies of a whole registry, from either database to either: backups, restored ones, and moves.
//!
//! Records are copied as they stand, sealed and with their codes, under the same master key. A copy is compared with what was copied
//! before anybody sees it: SHA-256 over every value of every row, in the order of the keys, which is the same everywhere.

mod pages;
mod tables;

use sha2::{Digest as _, Sha256};

use self::pages::Pages;
pub(crate) use self::tables::TABLES;
use crate::enrol::Progress;
use crate::error::{RegistryError, Result};
use crate::location::Location;
use crate::sql::{self, Builder, Connection, Value};
use crate::storage::{self, Served};
use crate::store::{Draft, Options, Registry, at, is_copied_to};

/// Parameters of one statement: SQLite takes 32,766.
const PARAMETERS_MAX: usize = 30_000;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Integer,
    Text,
    Bytes,
}

/// A table as it is copied.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// What it is read from.
    from: &'static str,
    /// What it is ordered by; no two rows have the same.
    key: &'static [&'static str],
    pub(crate) columns: &'static [(&'static str, Kind)],
    /// Rows read at once.
    page_rows: i64,
}

/// What was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Rows of all tables.
    pub rows: u64,
    /// SHA-256 over all of them, the same of the copy as of what was copied.
    pub digest: [u8; 32],
}

impl Registry {
    /// Writes a copy of everything that is committed to a place where no registry is, under the same master key; durable, and compared
    /// with what it is a copy of, before it can be seen. Gateways go on meanwhile. The copy is marked as one: the first gateway that
    /// is served from it, wherever it lies then, ends all leases. `progress` counts rows, of both passes.
    ///
    /// # Errors
    /// Something is there already, which is never overwritten; damage that keeps a value from being what it should be; or a failure
    /// of either database or the file system. Nothing is left then.
    pub async fn copy_to(
        &self,
        target: impl Into<Location>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Copied> {
        let mut snapshot = self.reader().snapshot().await?;
        let target = target.into();
        let mut draft = Draft::begin(&target, &Options::default()).await?;
        let copied = fill(&mut snapshot, &mut draft, &target, &mut progress).await?;
        draft.finish().await?;
        Ok(copied)
    }

    /// The same, after which this registry gives nothing out any more, to whoever has it open, and names the other one. That is durable
    /// before the copy can be seen: at no time are there two that give out the same rows. A move that was interrupted in between is
    /// repeated, with [`Registry::open_to_move`].
    ///
    /// # Errors
    /// As [`Registry::copy_to`]; then this registry goes on. [`RegistryError::MoveUnfinished`] where the copy was whole, and it is not
    /// known whether it is seen.
    pub async fn move_to(
        &self,
        target: impl Into<Location>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Copied> {
        let target = target.into();
        // Nobody writes from here on.
        let mut transaction = self.write_whatever().await?;
        if matches!(*transaction, Connection::Postgres(_)) {
            // It waits while the copy is read, which takes as long as it takes.
            sql::query("SET LOCAL idle_in_transaction_session_timeout = 0")
                .execute(&mut *transaction)
                .await?;
        }
        self.refuse_moved_but_to(&mut transaction, Some(&target)).await?;
        let begun = Draft::begin(&target, &Options::default()).await;
        let mut draft = match begun {
            // Either it was moved there already, or that is another one.
            Err(exists @ RegistryError::AlreadyExists { .. }) => {
                let Err(moved) = self.refuse_moved(&mut transaction).await else {
                    return Err(exists);
                };
                if matches!(is_copied_to(&mut transaction, &target).await, Ok(true)) {
                    note_end(&mut transaction).await?;
                    transaction.commit().await?;
                }
                return Err(moved);
            }
            begun => begun?,
        };
        let copied = fill(&mut transaction, &mut draft, &target, &mut progress).await?;
        // Leases go on there, unless they had ended here.
        let (served, _) = self.incarnation(&mut transaction).await?;
        if served != Served::Elsewhere {
            storage::forget(draft.connection()?).await?;
        }
        sql::query("UPDATE registry SET moved_to = $1")
            .bind(target.to_string())
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        draft
            .finish()
            .await
            .map_err(|source| RegistryError::MoveUnfinished {
                target,
                source: Box::new(source),
            })?;
        // Where that is lost, a move repeated while the other one is away would put the state of before in its place.
        if let Err(error) = self.end_move().await {
            log::warn!("{self:?} was moved, and could not note that: do not move it again: {error}");
        }
        Ok(copied)
    }

    async fn end_move(&self) -> Result<()> {
        let mut transaction = self.write_whatever().await?;
        note_end(&mut transaction).await?;
        Ok(transaction.commit().await?)
    }
}

/// The registry that this one was moved to has been seen there.
async fn note_end(connection: &mut Connection) -> Result<()> {
    sql::query("UPDATE registry SET move_ended = 1")
        .execute(connection)
        .await?;
    Ok(())
}

/// Copies all tables and compares the copy.
async fn fill(
    source: &mut Connection,
    draft: &mut Draft,
    target: &Location,
    progress: &mut impl FnMut(Progress),
) -> Result<Copied> {
    let rows = count(source).await?;
    let mut done = 0;
    let mut tell = |more: u64| {
        done += more;
        progress(Progress {
            done,
            total: Some(rows.saturating_mul(2)),
        });
    };
    let mut hash = Sha256::new();
    let mut copied = 0;
    for table in &TABLES {
        begin(&mut hash, table);
        let mut pages = Pages::new(table);
        while let Some(page) = pages.next(source).await? {
            for row in &page {
                add(&mut hash, row);
            }
            let count = page.len() as u64;
            insert(draft.connection()?, table, page)
                .await
                .map_err(at(target))?;
            copied += count;
            tell(count);
        }
    }
    let copied = Copied {
        rows: copied,
        digest: hash.finalize().into(),
    };
    let found = digest(draft.connection()?, &mut tell).await.map_err(at(target))?;
    if found != copied {
        return Err(RegistryError::CopyDiffers {
            registry: target.clone(),
            problem: format!(
                "{} of {} rows are there, or values differ",
                found.rows, copied.rows
            ),
        });
    }
    storage::note_copy(draft.connection()?)
        .await
        .map_err(at(target))?;
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

/// What [`fill`] has made of a registry.
async fn digest(connection: &mut Connection, tell: &mut impl FnMut(u64)) -> Result<Copied> {
    let mut hash = Sha256::new();
    let mut rows = 0;
    for table in &TABLES {
        begin(&mut hash, table);
        let mut pages = Pages::new(table);
        while let Some(page) = pages.next(connection).await? {
            for row in &page {
                add(&mut hash, row);
            }
            rows += page.len() as u64;
            tell(page.len() as u64);
        }
    }
    Ok(Copied {
        rows,
        digest: hash.finalize().into(),
    })
}

fn begin(hash: &mut Sha256, table: &Table) {
    hash.update(b"table");
    hash.update((table.name.len() as u64).to_be_bytes());
    hash.update(table.name);
}

/// Each value with its kind and length, so that no two rows read alike.
fn add(hash: &mut Sha256, row: &[Value]) {
    hash.update(b"row");
    let mut bytes = |kind: u8, bytes: &[u8]| {
        hash.update([kind]);
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    for value in row {
        match value {
            Value::Integer(Some(value)) => bytes(1, &value.to_be_bytes()),
            Value::Text(Some(value)) => bytes(2, value.as_bytes()),
            Value::Bytes(Some(value)) => bytes(3, value),
            Value::Integer(None) | Value::Text(None) | Value::Bytes(None) => bytes(0, &[]),
            Value::Bool(value) => bytes(4, &[u8::from(*value)]),
        }
    }
}

async fn insert(connection: &mut Connection, table: &Table, mut rows: Vec<Vec<Value>>) -> Result<()> {
    let rows_max = PARAMETERS_MAX / table.columns.len().max(1);
    while !rows.is_empty() {
        let rest = rows.split_off(rows.len().min(rows_max));
        let mut insert = Builder::new("INSERT INTO ");
        insert.push(table.name).push(" (");
        for (number, (column, _)) in table.columns.iter().enumerate() {
            insert.push(if number == 0 { "" } else { ", " }).push(column);
        }
        insert.push(") ");
        insert.push_values(rows, |mut values, row| {
            for value in row {
                values.push_bind(value);
            }
        });
        insert.build().execute(&mut *connection).await?;
        rows = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::MasterKey;

    /// Every column of every table is copied but those that are named here, so a new one cannot be forgotten.
    #[tokio::test]
    async fn nothing_that_a_registry_holds_is_left_behind() {
        // A copy notes that it is one. How gateways stood last is told anew within seconds.
        const LEFT: [&str; 7] = [
            "registry.storage",
            "registry.moved_to",
            "registry.move_ended",
            "gateway_state.gateway_id",
            "gateway_state.at_ms",
            "gateway_state.controller",
            "gateway_state.body",
        ];
        let registry = Registry::in_memory(&MasterKey::from_bytes([1; 32]))
            .await
            .unwrap();
        let found: Vec<(String, String)> = sql::query(
            "SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c \
             WHERE t.type = 'table' AND t.name NOT LIKE '\\_%' ESCAPE '\\'",
        )
        .fetch_all(registry.reader())
        .await
        .unwrap();
        let found: BTreeSet<String> = found
            .iter()
            .map(|(table, column)| format!("{table}.{column}"))
            .collect();
        let copied = TABLES.iter().flat_map(|table| {
            let columns = table.columns.iter();
            columns.map(|(column, _)| format!("{}.{column}", table.name))
        });
        let known: BTreeSet<String> = copied.chain(LEFT.map(ToOwned::to_owned)).collect();
        assert_eq!(found, known);
    }
}
