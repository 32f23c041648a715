//! Errors of the database, its files and the operating system.

use std::io;

/// Errors of the database, its files and the operating system.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// Another program holds the lock of the registry.
    #[error(
        "the registry is locked by another program; wait until it ends, or stop it, and try again; nothing was changed"
    )]
    Locked,
    /// No space is left.
    #[error("the disk or quota of the registry is full; free space and try again; nothing was changed")]
    DiskFull,
    /// The file or its directory cannot be written.
    #[error(
        "the registry or its directory is not writable: {detail}; allow this user to write both, or move the registry"
    )]
    NotWritable {
        /// The error of SQLite or the operating system.
        detail: String,
    },
    /// Pages of the file are damaged.
    #[error(
        "the registry file is damaged: {detail}; restore a backup, or recover readable data with `sqlite3 FILE .recover`"
    )]
    Damaged {
        /// The problem.
        detail: String,
    },
    /// The registry's database role lacks permissions.
    #[error(
        "the database role of the registry lacks permissions: {detail}; grant the role of the registry's address all rights in its schema"
    )]
    NotPermitted {
        /// The error of the server.
        detail: String,
    },
    /// The database is damaged or lacks tables of a registry.
    #[error("the registry's database is damaged: {detail}; see the server's log, and restore a backup")]
    DamagedDatabase {
        /// The error of the server.
        detail: String,
    },
    /// A file operation failed.
    #[error("failed to {action}: {source}")]
    Io {
        /// The operation, with the file name.
        action: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The operating system provided no random bytes.
    #[error("the operating system provided no random bytes: {0}")]
    NoRandomBytes(getrandom::Error),
    /// Any other failure of the database.
    #[error("query of the registry's database failed: {0}")]
    Database(#[source] sqlx::Error),
    /// The database server does not respond, or refuses the connection.
    #[error(
        "the registry's database is unreachable: {0}; check that the database server runs and accepts connections"
    )]
    Unreachable(#[source] sqlx::Error),
}

// SQLite's primary result codes (https://www.sqlite.org/rescode.html); an extended code has the primary code as low byte.
const SQLITE_BUSY: u32 = 5;
const SQLITE_LOCKED: u32 = 6;
const SQLITE_READONLY: u32 = 8;
const SQLITE_IOERR: u32 = 10;
const SQLITE_CORRUPT: u32 = 11;
const SQLITE_FULL: u32 = 13;
const SQLITE_CANTOPEN: u32 = 14;
const SQLITE_NOTADB: u32 = 26;

impl From<getrandom::Error> for DatabaseError {
    fn from(error: getrandom::Error) -> Self {
        Self::NoRandomBytes(error)
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Database(database) = &error
            && database.message().starts_with("no such table")
        {
            return Self::Damaged {
                detail: database.message().to_owned(),
            };
        }
        if let Some(failure) = classify_postgres(&error) {
            return match failure {
                PostgresFailure::Locked => Self::Locked,
                PostgresFailure::DiskFull => Self::DiskFull,
                PostgresFailure::NotPermitted => Self::NotPermitted {
                    detail: error.to_string(),
                },
                PostgresFailure::Damaged => Self::DamagedDatabase {
                    detail: error.to_string(),
                },
                PostgresFailure::Unreachable => Self::Unreachable(error),
            };
        }
        let code = match &error {
            sqlx::Error::Database(database) => database.code().and_then(|code| code.parse::<u32>().ok()),
            // All connections were in use for longer than the pool waits: another program holds a lock.
            sqlx::Error::PoolTimedOut => Some(SQLITE_BUSY),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Some(SQLITE_CORRUPT),
            _ => None,
        };
        match code.map(|code| code & 0xff) {
            Some(SQLITE_BUSY | SQLITE_LOCKED) => Self::Locked,
            Some(SQLITE_FULL) => Self::DiskFull,
            Some(SQLITE_READONLY | SQLITE_CANTOPEN) => Self::NotWritable {
                detail: error.to_string(),
            },
            Some(SQLITE_CORRUPT | SQLITE_NOTADB | SQLITE_IOERR) => Self::Damaged {
                detail: error.to_string(),
            },
            _ => Self::Database(error),
        }
    }
}

/// The meaning of PostgreSQL's error codes for a registry.
enum PostgresFailure {
    Locked,
    DiskFull,
    NotPermitted,
    Damaged,
    Unreachable,
}

/// Classifies an error of PostgreSQL. `None` for errors of SQLite, and for codes without a specific remedy.
fn classify_postgres(error: &sqlx::Error) -> Option<PostgresFailure> {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            Some(PostgresFailure::Unreachable)
        }
        sqlx::Error::Database(database) => {
            let database = database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
            // Codes and their classes: PostgreSQL's documentation, appendix A.
            match database.code() {
                // lock_not_available, query_canceled, deadlock_detected
                "55P03" | "57014" | "40P01" => Some(PostgresFailure::Locked),
                // disk_full
                "53100" => Some(PostgresFailure::DiskFull),
                // read_only_sql_transaction, insufficient_privilege
                "25006" | "42501" => Some(PostgresFailure::NotPermitted),
                // data_corrupted, index_corrupted, undefined_table, undefined_column
                "XX001" | "XX002" | "42P01" | "42703" => Some(PostgresFailure::Damaged),
                // Connection exceptions, refused logins, too many connections, a server that is shutting down or starting.
                code if code.starts_with("08") || code.starts_with("28") || code.starts_with("57P") => {
                    Some(PostgresFailure::Unreachable)
                }
                "53300" | "3D000" => Some(PostgresFailure::Unreachable),
                _ => None,
            }
        }
        _ => None,
    }
}

impl From<sqlx::migrate::MigrateError> for DatabaseError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        use sqlx::migrate::MigrateError;
        match error {
            MigrateError::Execute(cause) | MigrateError::ExecuteMigration(cause, _) => cause.into(),
            other => Self::Damaged {
                detail: other.to_string(),
            },
        }
    }
}

impl DatabaseError {
    /// Adds the operation to an I/O error.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::NotWritable {
                detail: format!("failed to {action}: {source}"),
            },
            _ => Self::Io { action, source },
        }
    }
}
