//! The schema's versions. A migration that has been released is never edited; a change is a new one.

use std::path::Path;

use sqlx::SqliteConnection;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{SqlStr, query_as};

use crate::error::{RegistryError, Result};
use crate::store::at;

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
