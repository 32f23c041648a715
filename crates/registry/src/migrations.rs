//! The schema's versions. A migration that has been released is never edited; a change is a new one.
//!
//! The texts are SQLite's. PostgreSQL's are made from them ([`for_postgres`]): other names of two types, an order of texts that is the
//! same everywhere, and what SQLite has of itself, the place of a row and the type of a value.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, SqlSafeStr as _, SqlStr, SqliteConnection};

use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::location::Location;
use crate::sql::{self, Connection};
use crate::store::{STATEMENTS_AT, at};

/// Version, name, text, and what PostgreSQL needs beside it.
const MIGRATIONS: [(i64, &str, &str, &str); 10] = [
    (
        1,
        "registry",
        include_str!("../migrations/0001_registry.sql"),
        include_str!("../migrations/postgres/0001_registry.sql"),
    ),
    (2, "leases", include_str!("../migrations/0002_leases.sql"), ""),
    (3, "tickets", include_str!("../migrations/0003_tickets.sql"), ""),
    (4, "roaming", include_str!("../migrations/0004_roaming.sql"), ""),
    (
        5,
        "attestation",
        include_str!("../migrations/0005_attestation.sql"),
        include_str!("../migrations/postgres/0005_attestation.sql"),
    ),
    (
        6,
        "moves and lists",
        include_str!("../migrations/0006_moves_and_lists.sql"),
        "",
    ),
    (7, "service", include_str!("../migrations/0007_service.sql"), ""),
    (
        8,
        "moves and history",
        include_str!("../migrations/0008_moves_and_history.sql"),
        "",
    ),
    (9, "restored", include_str!("../migrations/0009_restored.sql"), ""),
    (
        10,
        "fingerprints",
        include_str!("../migrations/0010_fingerprints.sql"),
        "",
    ),
];

fn migrator(text: impl Fn(&'static str, &'static str) -> SqlStr) -> Migrator {
    let migration = |&(version, name, own, beside): &(i64, &'static str, &'static str, &'static str)| {
        Migration::new(
            version,
            name.into(),
            MigrationType::Simple,
            text(own, beside),
            false,
        )
    };
    Migrator::with_migrations(MIGRATIONS.iter().map(migration).collect())
}

fn of_sqlite() -> Migrator {
    migrator(|own, _| SqlStr::from_static(own))
}

fn of_postgres() -> Migrator {
    migrator(|own, beside| AssertSqlSafe(for_postgres(own) + beside).into_sql_str())
}

/// The same schema in PostgreSQL's words. Texts compare by their bytes, as they do in SQLite.
fn for_postgres(text: &str) -> String {
    text.replace(" BLOB", " BYTEA")
        .replace(" TEXT", " TEXT COLLATE \"C\"")
}

/// Applies what is missing, each migration in a transaction of its own.
pub(crate) async fn run(connection: &mut Connection) -> Result<()> {
    match connection {
        Connection::Sqlite(handle) => Ok(of_sqlite().run(&mut **handle).await?),
        Connection::Postgres(handle) => Ok(of_postgres().run(&mut **handle).await?),
    }
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
        let applied = of_sqlite()
            .iter()
            .filter(|migration| Some(migration.version) <= version)
            .cloned()
            .collect();
        let in_memory = SqliteConnectOptions::new()
            .in_memory(true)
            .log_statements(STATEMENTS_AT);
        let mut model = SqliteConnection::connect_with(&in_memory).await?;
        Migrator::with_migrations(applied).run(&mut model).await?;
        let mut model = Connection::from(model);
        let objects = objects(&mut model).await?.into_iter().collect();
        model.close().await?;
        Ok(Self { objects })
    }

    /// Refuses a registry with anything in its schema that the migrations have not made. A trigger could undo each quarantine and
    /// revocation as it is written, a unique index or another text of a table drop rows: no record's code would tell.
    pub(crate) async fn refuse_foreign(&self, connection: &mut Connection, path: &Path) -> Result<()> {
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
pub(crate) async fn refuse_foreign(connection: &mut Connection, path: &Path) -> Result<()> {
    let (version,): (Option<i64>,) = sql::query("SELECT MAX(version) FROM _sqlx_migrations")
        .fetch_one(&mut *connection)
        .await
        .map_err(at(path))?;
    Schema::of(version).await?.refuse_foreign(connection, path).await
}

/// Triggers and views first.
async fn objects(connection: &mut Connection) -> sqlx::Result<Vec<Object>> {
    let stored: Vec<StoredObject> =
        sql::query("SELECT type, name, sql FROM sqlite_schema ORDER BY type IN ('table', 'index')")
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
        registry: path.into(),
        kind,
        name,
        remedy,
    }
}

/// What of a schema in PostgreSQL must be as the migrations make it: tables with their columns, indexes and constraints, the function
/// beside them, and whatever acts when something is written. What else lies in the schema acts on nothing of ours.
const POSTGRES_OBJECTS: &str = include_str!("../migrations/postgres/objects.sql");
/// What that finds after all migrations; written by a test.
const POSTGRES_MODEL: &str = include_str!("../migrations/postgres/objects.txt");

/// What stands in the connection's schema, a line an object: kind, name, and what it is like.
pub(crate) async fn postgres_objects(connection: &mut Connection) -> Result<BTreeSet<String>> {
    let rows: Vec<(String, String, String)> = sql::query(POSTGRES_OBJECTS).fetch_all(connection).await?;
    let line = |(kind, name, detail): (String, String, String)| format!("{kind}\t{name}\t{detail}");
    Ok(rows.into_iter().map(line).collect())
}

/// Refuses a registry whose tables are not as the migrations make them, or have triggers, rules or policies. One that lacks the newest
/// migrations is looked at once it has them.
pub(crate) async fn refuse_foreign_postgres(connection: &mut Connection, registry: &Location) -> Result<()> {
    let (version,): (Option<i64>,) = sql::query("SELECT MAX(version) FROM _sqlx_migrations")
        .fetch_one(&mut *connection)
        .await
        .map_err(at(registry))?;
    if version != Some(newest_version()) {
        return Ok(());
    }
    let found = postgres_objects(connection).await.map_err(at(registry))?;
    let model: BTreeSet<String> = POSTGRES_MODEL.lines().map(ToOwned::to_owned).collect();
    // What is there too much says more than what is missing for it.
    let Some(line) = found.difference(&model).chain(model.difference(&found)).next() else {
        return Ok(());
    };
    let mut fields = line.split('\t');
    let [kind, name] =
        [fields.next(), fields.next()].map(|field| field.unwrap_or_default().escape_debug().to_string());
    Err(RegistryError::ForeignSchema {
        registry: registry.clone(),
        kind,
        name,
        remedy: "stop the controllers, and take it out or restore a backup".to_owned(),
    })
}

fn newest_version() -> i64 {
    MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0)
}

/// Refuses a registry that a newer program has changed, before anything in it is interpreted.
pub(crate) async fn refuse_newer(connection: &mut Connection, registry: &Location) -> Result<()> {
    let (found,): (Option<i64>,) = sql::query("SELECT MAX(version) FROM _sqlx_migrations")
        .fetch_one(connection)
        .await
        .map_err(at(registry))?;
    let supported = newest_version();
    match found {
        Some(found) if found > supported => Err(RegistryError::NewerSchema {
            registry: registry.clone(),
            found,
            supported,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `LINEWARDEN_REWRITE=1` writes it anew.
    #[tokio::test]
    async fn the_model_is_what_the_migrations_make() {
        use linewarden_testbed::{Postgres, PostgresOptions};
        let server = match Postgres::start(PostgresOptions::default()) {
            Ok(server) => server,
            Err(missing) => {
                println!("SKIPPED: needs PostgreSQL: {missing}");
                return;
            }
        };
        let location: Location = server.new_schema("model").unwrap().parse().unwrap();
        let Location::Postgres(address) = &location else {
            panic!("{location}")
        };
        let connection = sqlx::PgConnection::connect_with(&address.options).await.unwrap();
        let mut connection = Connection::from(connection);
        run(&mut connection).await.unwrap();
        let objects = postgres_objects(&mut connection).await.unwrap();
        let found: String = objects.iter().map(|line| format!("{line}\n")).collect();
        if std::env::var_os("LINEWARDEN_REWRITE").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres/objects.txt");
            std::fs::write(path, &found).unwrap();
        }
        assert!(
            found == POSTGRES_MODEL,
            "run it once more with LINEWARDEN_REWRITE=1"
        );
        refuse_foreign_postgres(&mut connection, &location).await.unwrap();
    }

    fn beginnings(migrator: &Migrator) -> Vec<String> {
        let beginning = |migration: &Migration| {
            let bytes = migration.checksum.iter().take(4);
            bytes.map(|byte| format!("{byte:02x}")).collect()
        };
        migrator.iter().map(beginning).collect()
    }

    /// A registry that was made with another text of a version is refused: once released, not even a comment changes.
    #[test]
    fn no_migration_is_edited() {
        assert_eq!(
            beginnings(&of_sqlite()),
            [
                "885767aa", "893e23db", "259b04d0", "924af22e", "c876b48e", "5561907e", "7f237d37",
                "ef4cce83", "9b6b6b91", "eea36ecc"
            ]
        );
        assert_eq!(
            beginnings(&of_postgres()),
            [
                "e9db6bf7", "0d457dc7", "6739cf4a", "16034b67", "31e52a69", "5a7152cd", "66ebb5de",
                "ef4cce83", "cbea9435", "21553a09"
            ]
        );
    }

    /// What [`for_postgres`] replaces are types and nothing else.
    #[test]
    fn types_are_written_as_postgres_texts_are_made_from_them() {
        for (_, name, text, _) in MIGRATIONS {
            for line in text.lines() {
                let code = line.split("--").next().unwrap_or_default();
                assert!(
                    !code.contains("(TEXT") && !code.contains("\tTEXT"),
                    "{name}: {line}"
                );
                assert!(!code.contains('\''), "{name}: {line}");
            }
        }
    }
}
