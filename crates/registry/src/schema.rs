//! The schema of a registry and its version.
//!
//! The SQL text is written for SQLite. [`for_postgres`] derives the text for PostgreSQL: other names of two types, and
//! a collation that sorts text by bytes. A second file adds equivalents of two SQLite features: `rowid` and `typeof`.
//!
//! A later version of the schema is a new entry of [`MIGRATIONS`]. The text of a released version never changes.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, SqlSafeStr as _, SqlStr, SqliteConnection};

use crate::column::ColumnValue;
use crate::error::{OpenError, RegistryError, Result};
use crate::location::Location;
use crate::sql::{self, Connection};
use crate::store::{STATEMENT_LOG_LEVEL, with_location};

/// Version, name, SQL text, and additional SQL text for PostgreSQL.
const MIGRATIONS: [(i64, &str, &str, &str); 1] = [(
    1,
    "initial",
    include_str!("../migrations/0001_initial.sql"),
    include_str!("../migrations/postgres/0001_initial.sql"),
)];

fn migrator(text: impl Fn(&'static str, &'static str) -> SqlStr) -> Migrator {
    let migration = |&(version, name, sqlite, addition): &(i64, &'static str, &'static str, &'static str)| {
        Migration::new(
            version,
            name.into(),
            MigrationType::Simple,
            text(sqlite, addition),
            false,
        )
    };
    Migrator::with_migrations(MIGRATIONS.iter().map(migration).collect())
}

fn sqlite_migrator() -> Migrator {
    migrator(|sqlite, _| SqlStr::from_static(sqlite))
}

fn postgres_migrator() -> Migrator {
    migrator(|sqlite, addition| AssertSqlSafe(for_postgres(sqlite) + addition).into_sql_str())
}

/// Translates the SQL text to PostgreSQL. Text is compared by bytes, as in SQLite.
fn for_postgres(text: &str) -> String {
    text.replace(" BLOB", " BYTEA")
        .replace(" TEXT", " TEXT COLLATE \"C\"")
}

/// Applies the migrations that the database lacks, each in its own transaction, and refuses a database whose schema version has
/// another text.
pub(crate) async fn run(connection: &mut Connection) -> Result<()> {
    match connection {
        Connection::Sqlite(handle) => Ok(sqlite_migrator().run(&mut **handle).await?),
        Connection::Postgres(handle) => Ok(postgres_migrator().run(&mut **handle).await?),
    }
}

/// The table in which sqlx records the applied migrations. Its definition depends on the version of sqlx.
const MIGRATIONS_TABLE: &str = "_sqlx_migrations";
/// Tables that SQLite creates itself, for `ANALYZE`.
const SQLITE_TABLES: [&str; 2] = ["sqlite_stat1", "sqlite_stat4"];

/// An object of the schema: type, name, SQL text.
type Object = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

/// An [`Object`] as read from the database.
type StoredObject = (
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Option<Vec<u8>>>,
);

/// The objects that the migrations create in SQLite.
pub(crate) struct Schema {
    objects: HashSet<Object>,
}

impl Schema {
    /// The schema of the newest version, built in memory.
    pub(crate) async fn newest() -> Result<Self> {
        let memory = SqliteConnectOptions::new()
            .in_memory(true)
            .log_statements(STATEMENT_LOG_LEVEL);
        let mut model = SqliteConnection::connect_with(&memory).await?;
        sqlite_migrator().run(&mut model).await?;
        let mut model = Connection::from(model);
        let objects = objects(&mut model).await?.into_iter().collect();
        model.close().await?;
        Ok(Self { objects })
    }

    /// Refuses a registry whose schema has an object that the migrations do not create. A trigger could undo each
    /// quarantine and revocation when it is written; a unique index or a changed table could drop records. The tags of
    /// records would not reveal this.
    pub(crate) async fn refuse_foreign(&self, connection: &mut Connection, path: &Path) -> Result<()> {
        for (kind, name, text) in objects(connection).await.map_err(with_location(path))? {
            let is_internal = match kind.as_slice() {
                b"table" => [MIGRATIONS_TABLE]
                    .iter()
                    .chain(&SQLITE_TABLES)
                    .any(|known| known.as_bytes() == name),
                b"index" => text.is_none(),
                _ => false,
            };
            let object = (kind, name, text);
            if !is_internal && !self.objects.contains(&object) {
                let is_changed = self
                    .objects
                    .iter()
                    .any(|(kind, name, _)| (kind, name) == (&object.0, &object.1));
                return Err(unexpected_object(path, &object.0, &object.1, is_changed));
            }
        }
        Ok(())
    }
}

/// [`Schema::refuse_foreign`] with the newest schema.
pub(crate) async fn refuse_foreign(connection: &mut Connection, path: &Path) -> Result<()> {
    Schema::newest().await?.refuse_foreign(connection, path).await
}

/// All objects of the schema, triggers and views first.
async fn objects(connection: &mut Connection) -> sqlx::Result<Vec<Object>> {
    let stored: Vec<StoredObject> =
        sql::query("SELECT type, name, sql FROM sqlite_schema ORDER BY type IN ('table', 'index')")
            .fetch_all(connection)
            .await?;
    let object = |(kind, name, text): StoredObject| (kind.0, name.0, text.0);
    Ok(stored.into_iter().map(object).collect())
}

/// The error for an unexpected object. `is_changed`: the schema has an object of this type and name, with another definition.
fn unexpected_object(path: &Path, kind: &[u8], name: &[u8], is_changed: bool) -> RegistryError {
    let [kind, name] = [kind, name].map(|text| String::from_utf8_lossy(text).escape_debug().to_string());
    let remedy = match is_changed {
        true => "restore a backup".to_owned(),
        false => format!(
            "stop the gateways and restore a backup; if the object is known to be harmless, remove it with `sqlite3 {} 'DROP {kind} \"{name}\"'` and run `linewarden registry check`",
            path.display()
        ),
    };
    RegistryError::Open(OpenError::UnexpectedSchemaObject {
        registry: path.into(),
        kind,
        name,
        remedy,
    })
}

/// Lists the objects in a PostgreSQL schema that must match the migrations: tables with their columns, indexes and
/// constraints, the function `typeof`, and every object that acts on writes. Other objects in the schema do not affect
/// the registry.
const POSTGRES_OBJECTS: &str = include_str!("../migrations/postgres/objects.sql");
/// The list of objects after all migrations; a test writes this file.
const POSTGRES_MODEL: &str = include_str!("../migrations/postgres/objects.txt");

/// The objects in the connection's schema, a line of text for each: type, name, properties.
pub(crate) async fn postgres_objects(connection: &mut Connection) -> Result<BTreeSet<String>> {
    let objects: Vec<(String, String, String)> = sql::query(POSTGRES_OBJECTS).fetch_all(connection).await?;
    let line = |(kind, name, detail): (String, String, String)| format!("{kind}\t{name}\t{detail}");
    Ok(objects.into_iter().map(line).collect())
}

/// Refuses a registry whose tables differ from the tables that the migrations create, or have triggers, rules or policies.
pub(crate) async fn refuse_foreign_postgres(connection: &mut Connection, registry: &Location) -> Result<()> {
    let found = postgres_objects(connection)
        .await
        .map_err(with_location(registry))?;
    let model: BTreeSet<String> = POSTGRES_MODEL.lines().map(ToOwned::to_owned).collect();
    // An object that differs appears as an additional and as a missing object; the additional object is reported first.
    let Some(line) = found.difference(&model).chain(model.difference(&found)).next() else {
        return Ok(());
    };
    let mut fields = line.split('\t');
    let [kind, name] =
        [fields.next(), fields.next()].map(|field| field.unwrap_or_default().escape_debug().to_string());
    Err(RegistryError::Open(OpenError::UnexpectedSchemaObject {
        registry: registry.clone(),
        kind,
        name,
        remedy: "stop the controllers, then remove the object or restore a backup".to_owned(),
    }))
}

fn newest_version() -> i64 {
    MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0)
}

/// Refuses a registry with a newer schema version, before reading anything else from it.
pub(crate) async fn refuse_newer(connection: &mut Connection, registry: &Location) -> Result<()> {
    let (found,): (Option<i64>,) = sql::query("SELECT MAX(version) FROM _sqlx_migrations")
        .fetch_one(connection)
        .await
        .map_err(with_location(registry))?;
    let supported = newest_version();
    match found {
        Some(found) if found > supported => Err(RegistryError::Open(OpenError::NewerSchema {
            registry: registry.clone(),
            found,
            supported,
        })),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `LINEWARDEN_REWRITE=1` writes the file again.
    #[test]
    async fn the_model_matches_the_migrations() {
        use linewarden_testbed::{Postgres, PostgresOptions};
        let server = match Postgres::start(PostgresOptions::default()) {
            Ok(server) => server,
            Err(missing) => linewarden_harness::skip!("needs PostgreSQL: {missing}"),
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
            "objects.txt differs from the schema; run the test again with LINEWARDEN_REWRITE=1"
        );
        refuse_foreign_postgres(&mut connection, &location).await.unwrap();
    }

    fn checksum_prefixes(migrator: &Migrator) -> Vec<String> {
        let prefix = |migration: &Migration| {
            let bytes = migration.checksum.iter().take(4);
            bytes.map(|byte| format!("{byte:02x}")).collect()
        };
        migrator.iter().map(prefix).collect()
    }

    /// A registry that was created with another text of the same version is refused. So after a release, not even a comment
    /// of a migration may change.
    #[test]
    fn no_migration_is_edited() {
        assert_eq!(checksum_prefixes(&sqlite_migrator()), ["6557b657"]);
        assert_eq!(checksum_prefixes(&postgres_migrator()), ["c67b97b4"]);
    }

    /// [`for_postgres`] replaces types only.
    #[test]
    fn the_sql_text_can_be_translated_to_postgresql() {
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
