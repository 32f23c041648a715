//! The schema's versions. A migration that has been released is never edited; a change is a new one.

use std::collections::HashSet;
use std::path::Path;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqlStr, SqliteConnection, query_as};

use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::store::{STATEMENTS_AT, at};

fn migrator() -> Migrator {
    let simple = |version, name: &'static str, sql| {
        let sql = SqlStr::from_static(sql);
        Migration::new(version, name.into(), MigrationType::Simple, sql, false)
    };
    Migrator::with_migrations(vec![
        simple(1, "registry", include_str!("../migrations/0001_registry.sql")),
        simple(2, "leases", include_str!("../migrations/0002_leases.sql")),
        simple(3, "tickets", include_str!("../migrations/0003_tickets.sql")),
        simple(4, "roaming", include_str!("../migrations/0004_roaming.sql")),
        simple(
            5,
            "attestation",
            include_str!("../migrations/0005_attestation.sql"),
        ),
    ])
}

/// Applies what is missing, each migration in a transaction of its own.
pub(crate) async fn run(connection: &mut SqliteConnection) -> Result<()> {
    Ok(migrator().run(connection).await?)
}

/// What the migrations' own table is called. Its text is sqlx's, and differs from one of its versions to another.
const MIGRATIONS_TABLE: &str = "_sqlx_migrations";
/// What SQLite itself makes: by `ANALYZE`, and behind keys.
const SQLITES_TABLES: [&str; 2] = ["sqlite_stat1", "sqlite_stat4"];

/// An object of the schema: kind, name, text.
type Object = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

/// The same as it stands in the file.
type StoredObject = (Stored<Vec<u8>>, Stored<Vec<u8>>, Stored<Option<Vec<u8>>>);

/// What the migrations make of a schema.
pub(crate) struct Schema {
    objects: HashSet<Object>,
}

impl Schema {
    /// By all of them.
    pub(crate) async fn newest() -> Result<Self> {
        Self::of(Some(i64::MAX)).await
    }

    /// By those up to a version.
    async fn of(version: Option<i64>) -> Result<Self> {
        let applied = migrator()
            .iter()
            .filter(|migration| Some(migration.version) <= version)
            .cloned()
            .collect();
        let in_memory = SqliteConnectOptions::new()
            .in_memory(true)
            .log_statements(STATEMENTS_AT);
        let mut model = SqliteConnection::connect_with(&in_memory).await?;
        Migrator::with_migrations(applied).run(&mut model).await?;
        let objects = objects(&mut model).await?.into_iter().collect();
        model.close().await?;
        Ok(Self { objects })
    }

    /// Refuses a registry with anything in its schema that the migrations have not made. A trigger could undo each quarantine and
    /// revocation as it is written, a unique index or another text of a table drop rows: no record's code would tell.
    pub(crate) async fn refuse_foreign(&self, connection: &mut SqliteConnection, path: &Path) -> Result<()> {
        for (kind, name, text) in objects(connection).await.map_err(at(path))? {
            let is_sqlites = match kind.as_slice() {
                b"table" => [MIGRATIONS_TABLE]
                    .iter()
                    .chain(&SQLITES_TABLES)
                    .any(|known| known.as_bytes() == name),
                b"index" => text.is_none(),
                _ => false,
            };
            let object = (kind, name, text);
            if !is_sqlites && !self.objects.contains(&object) {
                let is_changed = self
                    .objects
                    .iter()
                    .any(|(kind, name, _)| (kind, name) == (&object.0, &object.1));
                return Err(foreign(path, &object.0, &object.1, is_changed));
            }
        }
        Ok(())
    }
}

/// [`Schema::refuse_foreign`] of a registry that may lack the newest migrations.
pub(crate) async fn refuse_foreign(connection: &mut SqliteConnection, path: &Path) -> Result<()> {
    let (version,): (Option<i64>,) = query_as("SELECT MAX(version) FROM _sqlx_migrations")
        .fetch_one(&mut *connection)
        .await
        .map_err(at(path))?;
    Schema::of(version).await?.refuse_foreign(connection, path).await
}

/// Triggers and views first.
async fn objects(connection: &mut SqliteConnection) -> sqlx::Result<Vec<Object>> {
    let stored: Vec<StoredObject> =
        query_as("SELECT type, name, sql FROM sqlite_schema ORDER BY type IN ('table', 'index')")
            .fetch_all(connection)
            .await?;
    let plain = |(kind, name, text): StoredObject| (kind.0, name.0, text.0);
    Ok(stored.into_iter().map(plain).collect())
}

/// `is_changed`: one of this name belongs there, and is another.
fn foreign(path: &Path, kind: &[u8], name: &[u8], is_changed: bool) -> RegistryError {
    let [kind, name] = [kind, name].map(|text| String::from_utf8_lossy(text).escape_debug().to_string());
    let remedy = match is_changed {
        true => "restore a backup".to_owned(),
        false => format!(
            "stop the gateways and restore a backup, or, if you know who made it, take it out with `sqlite3 {} 'DROP {kind} \"{name}\"'` and run `linewarden registry check`",
            path.display()
        ),
    };
    RegistryError::ForeignSchema {
        path: path.to_owned(),
        kind,
        name,
        remedy,
    }
}

/// Refuses a registry that a newer program has changed, before anything in it is interpreted.
pub(crate) async fn refuse_newer(connection: &mut SqliteConnection, path: &Path) -> Result<()> {
    let (found,): (Option<i64>,) = query_as("SELECT MAX(version) FROM _sqlx_migrations")
        .fetch_one(connection)
        .await
        .map_err(at(path))?;
    let supported = migrator()
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or(0);
    match found {
        Some(found) if found > supported => Err(RegistryError::NewerSchema {
            path: path.to_owned(),
            found,
            supported,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A registry that was made with another text of a version is refused: once released, not even a comment changes.
    #[test]
    fn no_migration_is_edited() {
        let beginnings: Vec<String> = migrator()
            .iter()
            .map(|migration| {
                migration
                    .checksum
                    .iter()
                    .take(4)
                    .map(|byte| format!("{byte:02x}"))
                    .collect()
            })
            .collect();
        assert_eq!(
            beginnings,
            ["885767aa", "893e23db", "259b04d0", "924af22e", "c876b48e"]
        );
    }
}
