//! The error type of this crate. Each message names the failure, the cause and the remedy.

use std::io;
use std::path::PathBuf;

use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_types::GroupName;

use crate::location::Location;

/// The result type of this crate.
pub type Result<T, E = RegistryError> = std::result::Result<T, E>;

/// An error of the registry. No message holds key material.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    // ---- key files ----
    /// A key file cannot be opened or read.
    #[error("reading the key file {path} failed: {source}; check the path, or create a key file")]
    KeyFileUnreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A key file that other users can read or could have written.
    #[error("key file {path} is unsafe: {problem}; {remedy}")]
    KeyFileUnsafe {
        /// The file.
        path: PathBuf,
        /// Why the file is unsafe.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// A key that is not 32 bytes in hexadecimal.
    #[error("malformed key in {origin}: {problem}; expected are exactly 64 hexadecimal digits (32 bytes)")]
    KeyMalformed {
        /// The file or environment variable.
        origin: String,
        /// The problem, without the content.
        problem: String,
    },
    /// The environment variable for a key is not set.
    #[error(
        "environment variable {variable} is not set; set it to 64 hexadecimal digits, or specify a key file"
    )]
    KeyVariableMissing {
        /// The name of the variable.
        variable: String,
    },
    /// A new key file would overwrite something.
    #[error(
        "{path} already exists, and keys are never overwritten; choose another path, or use the existing key"
    )]
    KeyFileExists {
        /// The file.
        path: PathBuf,
    },

    // ---- opening ----
    /// The location has no registry.
    #[error("no registry at {registry}; check the path, or create a registry")]
    NoRegistry {
        /// The location.
        registry: Location,
    },
    /// The location of a new registry is not empty.
    #[error("{registry} already exists and is not overwritten; open it, or choose another path")]
    AlreadyExists {
        /// The location.
        registry: Location,
    },
    /// The path of a copy or an export exists.
    #[error("{path} already exists and is not overwritten; choose another file, or move this one")]
    FileExists {
        /// The path.
        path: PathBuf,
    },
    /// The file is not a registry.
    #[error("{path} is not a Linewarden registry: {problem}; check the path; nothing was changed")]
    NotARegistry {
        /// The path.
        path: PathBuf,
        /// Why the file is not a registry.
        problem: String,
    },
    /// The registry was written by a newer program.
    #[error(
        "registry {registry} has schema version {found}, but this program supports versions up to {supported}; use a newer program; nothing was changed"
    )]
    NewerSchema {
        /// The location.
        registry: Location,
        /// The schema version of the registry.
        found: i64,
        /// The newest schema version that this program supports.
        supported: i64,
    },
    /// The registry's schema has an object that this program does not create.
    #[error("registry {registry} has an unexpected {kind} \"{name}\", which could undo changes; {remedy}")]
    UnexpectedSchemaObject {
        /// The location.
        registry: Location,
        /// The type of the object: trigger, view, table or index.
        kind: String,
        /// The name of the object.
        name: String,
        /// The remedy.
        remedy: String,
    },
    /// The master key does not fit the registry.
    #[error(
        "wrong master key for registry {registry}; specify the right key file (if the key is right, the registry's key check is damaged: restore a backup)"
    )]
    WrongMasterKey {
        /// The location.
        registry: Location,
    },
    /// The registry was moved.
    #[error("registry {registry} was moved to {to} and refuses requests; use the new location")]
    Moved {
        /// The old location.
        registry: Location,
        /// The new location.
        to: String,
    },
    /// A copy that differs from its source.
    #[error("the copy at {registry} differs from its source: {problem}; try again; nothing was changed")]
    CopyDiffers {
        /// The location of the copy.
        registry: Location,
        /// The difference.
        problem: String,
    },
    /// A move whose last step may have failed: the source refuses all requests, and the target may not exist yet.
    #[error(
        "the move to {target} is not complete: {source}; repeat the move; requests are refused until then"
    )]
    MoveUnfinished {
        /// The target.
        target: Location,
        /// The cause.
        source: Box<RegistryError>,
    },
    /// An error without a location of its own, from opening or creating a registry.
    #[error("opening registry {registry} failed: {source}")]
    Open {
        /// The location.
        registry: Location,
        /// The cause.
        source: Box<RegistryError>,
    },

    // ---- the database ----
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
    /// The server is reachable, but the database cannot be used as a registry.
    #[error("the database at {registry} cannot be used as a registry: {problem}")]
    UnsuitableDatabase {
        /// The location.
        registry: Location,
        /// The problem and the remedy.
        problem: String,
    },

    // ---- devices ----
    /// The device is not enrolled.
    #[error("device {device} is not enrolled; check the id")]
    UnknownDevice {
        /// The requested id.
        device: DeviceId,
    },
    /// The device is already enrolled.
    #[error(
        "device {device} is already enrolled; choose another id, or replace its credentials with `--replace`"
    )]
    AlreadyEnrolled {
        /// The id.
        device: DeviceId,
    },
    /// The PUF is already enrolled as another device.
    #[error(
        "device {device}: its PUF matches that of device {other} in {bands} of {bands_compared} samples: the same chip, or chips \
         with common memory content other than power-up state; revoke {other} if this is its chip, otherwise enroll another PUF or \
         another part of the memory (`--range`)"
    )]
    DuplicatePuf {
        /// The device to enroll.
        device: DeviceId,
        /// The device that has the PUF.
        other: DeviceId,
        /// Number of bands in which the PUFs agree.
        bands: usize,
        /// Number of bands that were compared.
        bands_compared: usize,
    },
    /// A device that occurs twice in one input.
    #[error("device {device} occurs twice in the input; remove one of the two")]
    DuplicateDevice {
        /// The id.
        device: DeviceId,
    },
    /// The device is revoked permanently.
    #[error("device {device} is revoked permanently; enroll it under another id")]
    Revoked {
        /// The id.
        device: DeviceId,
    },
    /// The device is in quarantine until its next valid proof, or until an operator releases the device.
    #[error("device {device} is in quarantine; check the reason, then release it")]
    Quarantined {
        /// The id.
        device: DeviceId,
    },
    /// A field of a device record is invalid.
    #[error("device {device}: field {field}: {problem}")]
    InvalidRecord {
        /// The device.
        device: DeviceId,
        /// The field's name.
        field: &'static str,
        /// The problem and the accepted values.
        problem: String,
    },
    /// A stored device record does not authenticate or is invalid.
    #[error(
        "the record of device {device} is damaged or was modified: {problem}; restore a backup, or enroll the device under another id"
    )]
    DamagedRecord {
        /// The device.
        device: DeviceId,
        /// The problem.
        problem: String,
    },

    // ---- rows ----
    /// The device has no rows left to lease.
    #[error("device {device} has no rows left: its pool ends at {rows_end}; enroll new rows")]
    RowsExhausted {
        /// The device.
        device: DeviceId,
        /// One past the last row of the device's pool.
        rows_end: u32,
    },
    /// A gateway reports unused rows that are not in its lease.
    #[error(
        "device {device}: gateway {gateway} reports unused rows from {unused_from}, but its lease is {rows_start}..{rows_end}"
    )]
    InvalidUnusedRows {
        /// The device.
        device: DeviceId,
        /// The gateway.
        gateway: GatewayId,
        /// The first row reported as unused.
        unused_from: u32,
        /// First row of the gateway's lease.
        rows_start: u32,
        /// One past the last row of the gateway's lease.
        rows_end: u32,
    },

    /// A gateway requests more rows for a device without a lease.
    #[error(
        "gateway {gateway} has no lease for device {device}; the device must authenticate at that gateway first"
    )]
    NoLease {
        /// The device.
        device: DeviceId,
        /// The gateway.
        gateway: GatewayId,
    },

    // ---- gateways ----
    /// A fencing token that is not the newest.
    #[error(
        "fencing token {presented} of gateway {gateway} is stale, the newest is {newest}: another process has registered with this id; stop this process, or configure another id"
    )]
    StaleFencingToken {
        /// The gateway.
        gateway: GatewayId,
        /// The presented token.
        presented: u64,
        /// The newest token; 0 for none.
        newest: u64,
    },
    /// A request that its gateway sent before it abandoned another request. A later request was recorded since.
    #[error(
        "request of gateway {gateway} refused: a later request with a higher number of abandoned requests was recorded; send the request again"
    )]
    OutdatedRequest {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A gateway that registered before the registry was restored to an earlier state.
    #[error(
        "the registry was restored or copied since gateway {gateway} registered: its leases are void; the gateway registers again"
    )]
    RegistryRestored {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A revoked gateway.
    #[error("gateway {gateway} is revoked, and its id is never used again; configure another id")]
    GatewayRevoked {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A gateway's record does not authenticate.
    #[error(
        "the record of gateway {gateway} is damaged or was modified; restore a backup, or configure another id"
    )]
    DamagedGateway {
        /// The gateway.
        gateway: GatewayId,
    },

    // ---- running as a service ----
    /// A field of a service record is invalid.
    #[error("field {field}: {problem}")]
    InvalidField {
        /// The field's name.
        field: &'static str,
        /// The problem and the accepted values.
        problem: String,
    },
    /// An event does not authenticate, or does not follow the previous event.
    #[error(
        "event {number}, or the one before it, was modified or deleted; check write access to the database"
    )]
    DamagedEvent {
        /// The number of the event.
        number: u64,
    },

    // ---- attestation ----
    /// The device is not a prover.
    #[error("device {device} is not enrolled for attestation; enroll it first")]
    NotAProver {
        /// The id.
        device: DeviceId,
    },
    /// The group does not exist.
    #[error("group {group} does not exist; create it, or check the name")]
    UnknownGroup {
        /// The requested name.
        group: GroupName,
    },
    /// A group that cannot be deleted because it has provers.
    #[error(
        "group {group} has provers, for example {device}; enroll them into another group, or remove them first"
    )]
    GroupInUse {
        /// The group.
        group: GroupName,
        /// One of its provers.
        device: DeviceId,
    },
    /// A field of a group is invalid.
    #[error("group {group}: field {field}: {problem}")]
    InvalidGroup {
        /// The group.
        group: GroupName,
        /// The field's name.
        field: &'static str,
        /// The problem and the accepted values.
        problem: String,
    },
    /// A stored group does not authenticate or is invalid.
    #[error(
        "the record of group {group} is damaged or was modified; set the group again, or restore a backup"
    )]
    DamagedGroup {
        /// The stored name.
        group: String,
    },
    /// A period that does not exist.
    #[error("period {period} does not exist; create it first")]
    UnknownPeriod {
        /// The number of the period.
        period: Period,
    },
    /// A stored period does not authenticate.
    #[error("the record of period {period} is damaged or was modified; create and start a later period")]
    DamagedPeriod {
        /// The number of the period.
        period: Period,
    },
    /// A reported round that is invalid.
    #[error("round {number} of gateway {gateway}: {problem}")]
    InvalidRound {
        /// The gateway.
        gateway: GatewayId,
        /// The round's number.
        number: u32,
        /// The problem.
        problem: String,
    },
    /// The round counter of a gateway does not authenticate, or is lower than its rounds.
    #[error(
        "the round counter of gateway {gateway} is damaged, missing or was modified; the gateway's next reservation repairs it (restart the gateway to repair it now); check write access to the database"
    )]
    DamagedRoundCounter {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A stored round does not authenticate.
    #[error(
        "the record of round {number} of gateway {gateway} is damaged or was modified; lists skip the round"
    )]
    DamagedRound {
        /// The gateway.
        gateway: GatewayId,
        /// The round's number.
        number: u32,
    },
    /// All round numbers of a gateway are used.
    #[error("gateway {gateway} has used all round numbers; configure another id")]
    RoundNumbersExhausted {
        /// The gateway.
        gateway: GatewayId,
    },

    // ---- bulk ----
    /// A bulk enrollment or import stopped at a chunk.
    #[error(
        "{committed} devices were stored, then the chunk of records {first}..{end} (counted from 0) was refused: {source}"
    )]
    ChunkRefused {
        /// Number of devices stored by earlier chunks.
        committed: u64,
        /// Position in the input of the chunk's first record, from 0.
        first: u64,
        /// One past the position of the chunk's last record.
        end: u64,
        /// The cause.
        source: Box<RegistryError>,
    },
    /// Lines of an import file are invalid.
    #[error("{}; nothing was imported", .problems.iter().map(|problem| problem.with_path(.path)).collect::<Vec<_>>().join("; "))]
    InvalidImportLines {
        /// The file.
        path: PathBuf,
        /// The problems, in the order of their first lines; not empty.
        problems: Vec<LineProblem>,
    },
}

/// A problem that occurs in one or more lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineProblem {
    /// The line numbers, from 1, ascending; not empty.
    pub lines: Vec<u64>,
    /// The problem of each line.
    pub problem: String,
}

/// Maximum number of lines or ranges in a message; further lines are only counted.
const RANGES_SHOWN_MAX: usize = 20;

impl LineProblem {
    /// The problem, prefixed with the file name.
    #[must_use]
    pub fn with_path(&self, path: &std::path::Path) -> String {
        format!("{}, {self}", path.display())
    }
}

impl std::fmt::Display for LineProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges: Vec<&[u64]> = self
            .lines
            .chunk_by(|line, next| line.checked_add(1) == Some(*next))
            .collect();
        let range_texts: Vec<String> = ranges
            .iter()
            .take(RANGES_SHOWN_MAX)
            .map(|range| match range {
                [first, .., last] => format!("{first} to {last}"),
                [number] => number.to_string(),
                [] => String::new(),
            })
            .collect();
        let lines = if self.lines.len() == 1 { "line" } else { "lines" };
        write!(f, "{lines} {}", range_texts.join(", "))?;
        let unlisted: usize = ranges
            .iter()
            .skip(RANGES_SHOWN_MAX)
            .map(|range| range.len())
            .sum();
        if unlisted > 0 {
            write!(f, " and {unlisted} more")?;
        }
        write!(f, ": {}", self.problem)
    }
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

impl From<getrandom::Error> for RegistryError {
    fn from(error: getrandom::Error) -> Self {
        Self::NoRandomBytes(error)
    }
}

impl From<sqlx::Error> for RegistryError {
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

impl From<sqlx::migrate::MigrateError> for RegistryError {
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

impl RegistryError {
    /// A copy of this error for another request about the same record.
    pub(crate) fn for_same_record(&self) -> Self {
        match self {
            Self::DamagedRecord { device, problem } => Self::DamagedRecord {
                device: *device,
                problem: problem.clone(),
            },
            other => Self::Damaged {
                detail: other.to_string(),
            },
        }
    }

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
