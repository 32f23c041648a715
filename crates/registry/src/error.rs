//! Everything that can go wrong, in one enum; each message says what is wrong and what to do about it.

use std::io;
use std::path::PathBuf;

use linewarden_protocol::ids::{DeviceId, GatewayId, Period};

use crate::attest::GroupName;
use crate::location::Location;

/// What the functions of this crate return.
pub type Result<T, E = RegistryError> = std::result::Result<T, E>;

/// An error of the registry. No message holds key material.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    // ---- key files ----
    /// A key file cannot be opened or read.
    #[error("cannot read the key file {path}: {source}; check the path, or make a new key file")]
    KeyFileUnreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A key file that somebody else may read or have written.
    #[error("refused the key file {path}: {problem}; {remedy}")]
    KeyFileUnsafe {
        /// The file.
        path: PathBuf,
        /// What makes it unsafe.
        problem: String,
        /// What mends it.
        remedy: String,
    },
    /// A key that is not 32 bytes in hexadecimal.
    #[error(
        "the key in {origin} is malformed: {problem}; expected are exactly 64 hexadecimal digits (32 bytes) and nothing else"
    )]
    KeyMalformed {
        /// The file or environment variable.
        origin: String,
        /// What is wrong with it; never the content.
        problem: String,
    },
    /// The environment variable that should hold a key is not set.
    #[error(
        "the environment variable {variable} is not set; set it to 64 hexadecimal digits, or give a key file"
    )]
    KeyVariableUnset {
        /// Its name.
        variable: String,
    },
    /// A new key file would overwrite something.
    #[error(
        "{path} exists already and a key is never overwritten; choose another path, or use the key that is there"
    )]
    KeyFileExists {
        /// The file.
        path: PathBuf,
    },

    // ---- opening ----
    /// Nothing is at the given path.
    #[error("there is no registry at {registry}; check the path, or create one first")]
    NoRegistry {
        /// Where it is, or should be.
        registry: Location,
    },
    /// Something is at the path where a new registry should be made.
    #[error("{registry} exists already and is not overwritten; open it, or choose another path")]
    AlreadyExists {
        /// Where it is, or should be.
        registry: Location,
    },
    /// Something is at the path where a copy or an export should be written.
    #[error("{path} exists already and is not overwritten; name another file, or move this one away")]
    FileExists {
        /// The path.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{path} is not a Linewarden registry: {problem}; it was left as it is, check the path")]
    NotARegistry {
        /// The path.
        path: PathBuf,
        /// How one can tell.
        problem: String,
    },
    /// The registry was written by a newer program.
    #[error(
        "the registry {registry} has schema {found}, this program knows up to {supported}; use the newer program, nothing was changed"
    )]
    NewerSchema {
        /// Where it is, or should be.
        registry: Location,
        /// The newest migration in the file.
        found: i64,
        /// The newest migration in this program.
        supported: i64,
    },
    /// The registry's schema holds what no version of this program makes.
    #[error(
        "the registry {registry} holds the {kind} \"{name}\" as Linewarden does not make it, which could undo what is written; {remedy}"
    )]
    ForeignSchema {
        /// Where it is, or should be.
        registry: Location,
        /// What it is, in SQL's words: a trigger, a view, a table or an index.
        kind: String,
        /// Its name.
        name: String,
        /// What mends it.
        remedy: String,
    },
    /// The master key does not fit the registry.
    #[error(
        "this master key is not the one that the registry {registry} was made with; give the right key file (if you are sure of the key, the registry's key check is damaged: restore a backup)"
    )]
    WrongMasterKey {
        /// Where it is, or should be.
        registry: Location,
    },
    /// The registry was moved.
    #[error("the registry {registry} was moved to {to} and gives nothing out any more; name that one")]
    Moved {
        /// Where it was.
        registry: Location,
        /// Where it is.
        to: String,
    },
    /// A copy that is not what was copied.
    #[error("the copy at {registry} is not what was copied ({problem}); nothing was changed, try again")]
    CopyDiffers {
        /// Where the copy is.
        registry: Location,
        /// In what.
        problem: String,
    },
    /// A move whose last step was not seen to succeed: the registry that is moved gives nothing out any more, and the other one may not be
    /// there yet.
    #[error(
        "the move to {target} has not ended: {source}; move there once more, nothing is given out until then"
    )]
    MoveUnfinished {
        /// Where it is moved to.
        target: Location,
        /// The cause.
        source: Box<RegistryError>,
    },
    /// Another error while a registry was opened or made, with its path.
    #[error("cannot open the registry {registry}: {source}")]
    Open {
        /// Where it is, or should be.
        registry: Location,
        /// The cause.
        source: Box<RegistryError>,
    },

    // ---- the database underneath ----
    /// Another program kept the registry locked.
    #[error(
        "the registry is locked by another program; wait for it to end (or stop it) and try again, nothing was changed"
    )]
    Locked,
    /// No space is left.
    #[error("the disk (or quota) of the registry is full; make room and try again, the change was not made")]
    DiskFull,
    /// The file or its directory cannot be written.
    #[error(
        "the registry or its directory cannot be written ({detail}); allow this user to write both, or move the registry"
    )]
    NotWritable {
        /// What SQLite or the operating system said.
        detail: String,
    },
    /// Pages of the file are damaged.
    #[error(
        "the registry file is damaged ({detail}); restore a backup, or save what can be read with `sqlite3 FILE .recover`"
    )]
    Damaged {
        /// What was found.
        detail: String,
    },
    /// The server does not let the registry's role do what it has to.
    #[error(
        "the registry's database does not let this role read or write it ({detail}); give the role of the registry's address all rights in its schema"
    )]
    NotPermitted {
        /// What the server said.
        detail: String,
    },
    /// The database is damaged, or lacks what makes it a registry.
    #[error("the registry's database is damaged ({detail}); see the server's log, and restore a backup")]
    DamagedDatabase {
        /// What the server said.
        detail: String,
    },
    /// Reading or writing failed below the database.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried, with the file's name.
        action: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes: {0}")]
    Entropy(getrandom::Error),
    /// Any other failure of the database.
    #[error("the registry's database failed: {0}")]
    Database(#[source] sqlx::Error),
    /// The database server does not answer, or refuses the connection.
    #[error("the registry's database cannot be reached: {0}; it is asked again when it is needed again")]
    Unreachable(#[source] sqlx::Error),
    /// The server answers, but cannot serve as a registry.
    #[error("the database at {registry} cannot hold a registry: {problem}")]
    UnfitDatabase {
        /// Where it is.
        registry: Location,
        /// Why, and what to do.
        problem: String,
    },

    // ---- devices ----
    /// No such device.
    #[error("device {device} is not enrolled; check the id")]
    UnknownDevice {
        /// The id asked for.
        device: DeviceId,
    },
    /// The device is there already.
    #[error(
        "device {device} is enrolled already; choose another id, or have its credentials replaced (`--replace`)"
    )]
    AlreadyEnrolled {
        /// The id.
        device: DeviceId,
    },
    /// The PUF is that of another device.
    #[error(
        "device {device}: its PUF answers as that of device {other}, in {bands} of {of} samples: the same chip, or chips \
         with memory in common that is not power-up state; revoke {other} if this is its chip, else enroll another PUF or \
         another part of the memory (`--range`)"
    )]
    SamePuf {
        /// The device to be enrolled.
        device: DeviceId,
        /// The device that has the PUF.
        other: DeviceId,
        /// Samples in which they agree.
        bands: usize,
        /// Samples that were compared.
        of: usize,
    },
    /// The same device twice in one input.
    #[error("device {device} occurs twice in the input; remove one of the two")]
    RepeatedDevice {
        /// The id.
        device: DeviceId,
    },
    /// The device is revoked, for good.
    #[error("device {device} is revoked, and stays so; enrol it anew under another id")]
    Revoked {
        /// The id.
        device: DeviceId,
    },
    /// The device is shut out until it proves again what it runs, or is readmitted.
    #[error("device {device} is in quarantine; see why it was put there, then readmit it")]
    Quarantined {
        /// The id.
        device: DeviceId,
    },
    /// A field of a record is not acceptable.
    #[error("device {device}: field {field}: {problem}")]
    InvalidRecord {
        /// The device.
        device: DeviceId,
        /// The field's name.
        field: &'static str,
        /// What is wrong with it, and what is accepted.
        problem: String,
    },
    /// A stored record does not authenticate or makes no sense.
    #[error(
        "the record of device {device} is damaged or was tampered with ({problem}); restore a backup, or enrol the device under another id"
    )]
    DamagedRecord {
        /// The device.
        device: DeviceId,
        /// What was found.
        problem: String,
    },

    // ---- rows ----
    /// No row is left to hand out.
    #[error("device {device} has no rows left (its pool ends at {rows_end}); give it new rows")]
    RowsExhausted {
        /// The device.
        device: DeviceId,
        /// One past the last row of its pool.
        rows_end: u32,
    },
    /// Rows said to be unused that are not the gateway's.
    #[error(
        "device {device}: gateway {gateway} says that its rows from {unused_from} on are unused, but it holds rows {rows_start}..{rows_end}"
    )]
    NotLeased {
        /// The device.
        device: DeviceId,
        /// The gateway.
        gateway: GatewayId,
        /// The first row said to be unused.
        unused_from: u32,
        /// First row of its lease.
        rows_start: u32,
        /// One past its last row.
        rows_end: u32,
    },

    /// More rows for a device of which the gateway holds none.
    #[error("gateway {gateway} holds nothing of device {device}: the device is to authenticate there first")]
    NotHeld {
        /// The device.
        device: DeviceId,
        /// The gateway.
        gateway: GatewayId,
    },

    // ---- gateways ----
    /// A gateway that has been replaced by a newer process.
    #[error(
        "gateway {gateway} shows fence {shown}, the newest is {newest}: another process has registered under this id since; stop this one, or give it an id of its own"
    )]
    OldFence {
        /// The gateway.
        gateway: GatewayId,
        /// What it shows.
        shown: u64,
        /// The number of the newest registration; 0 for none.
        newest: u64,
    },
    /// A gateway that registered before the registry was put back to an earlier state.
    #[error(
        "the registry was put back to an earlier state, or copied, since gateway {gateway} registered: its rows are void; it registers anew"
    )]
    Restored {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A gateway that was retired.
    #[error("gateway {gateway} is retired, and its number is never used again; give the gateway another one")]
    RetiredGateway {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A gateway's record does not authenticate.
    #[error(
        "the record of gateway {gateway} is damaged or was tampered with; restore a backup, or give the gateway another id"
    )]
    DamagedGateway {
        /// The gateway.
        gateway: GatewayId,
    },

    // ---- running as a service ----
    /// A field of something that is to be entered is not acceptable.
    #[error("field {field}: {problem}")]
    InvalidEntry {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it, and what is accepted.
        problem: String,
    },
    /// An entry of the journal does not authenticate, or does not follow the one before it.
    #[error(
        "entry {number} of the journal, or the one before it, was changed, damaged or taken out; see who can write the database"
    )]
    DamagedEntry {
        /// Its number.
        number: u64,
    },

    // ---- attestation ----
    /// The device is not attested.
    #[error("device {device} is not enrolled for attestation; enrol it first")]
    NotAProver {
        /// The id.
        device: DeviceId,
    },
    /// No such group.
    #[error("there is no group {group}; make it first, or check the name")]
    UnknownGroup {
        /// The name asked for.
        group: GroupName,
    },
    /// A group that is to be removed, and has provers.
    #[error(
        "group {group} has provers, {device} among them; enrol them into another group, or remove them first"
    )]
    GroupInUse {
        /// The group.
        group: GroupName,
        /// One of its provers.
        device: DeviceId,
    },
    /// A field of a group is not acceptable.
    #[error("group {group}: field {field}: {problem}")]
    InvalidGroup {
        /// The group.
        group: GroupName,
        /// The field's name.
        field: &'static str,
        /// What is wrong with it, and what is accepted.
        problem: String,
    },
    /// A stored group does not authenticate or makes no sense.
    #[error(
        "the record of group {group} is damaged or was tampered with; set the group anew, or restore a backup"
    )]
    DamagedGroup {
        /// Its name as it stands there.
        group: String,
    },
    /// A period that was never drawn.
    #[error("period {period} was never drawn; draw it first")]
    UnknownPeriod {
        /// Its number.
        period: Period,
    },
    /// A stored period does not authenticate.
    #[error("the record of period {period} is damaged or was tampered with; draw and begin a later one")]
    DamagedPeriod {
        /// Its number.
        period: Period,
    },
    /// A round that its gateway cannot have had.
    #[error("round {number} of gateway {gateway}: {problem}")]
    InvalidRound {
        /// The gateway.
        gateway: GatewayId,
        /// The round's number.
        number: u32,
        /// What does not fit.
        problem: String,
    },
    /// The count of a gateway's rounds does not authenticate, or is behind its rounds.
    #[error(
        "the count of gateway {gateway}'s rounds is damaged, missing or was tampered with; nothing need be done: the gateway goes on far behind it when it next asks for numbers (restart it for that to be now); see who can write the file"
    )]
    DamagedRoundCount {
        /// The gateway.
        gateway: GatewayId,
    },
    /// A stored round does not authenticate.
    #[error(
        "the record of round {number} of gateway {gateway} is damaged or was tampered with; it is left out of what is shown"
    )]
    DamagedRound {
        /// The gateway.
        gateway: GatewayId,
        /// The round's number.
        number: u32,
    },
    /// All numbers of a gateway's rounds are used up.
    #[error("gateway {gateway} has used up the numbers of its rounds; give it another id")]
    NoRoundsLeft {
        /// The gateway.
        gateway: GatewayId,
    },

    // ---- bulk ----
    /// A bulk enrolment or import stopped at a chunk.
    #[error(
        "{committed} devices were stored, then records {first}..{end} (counted from 0) were refused as one chunk: {source}"
    )]
    Chunk {
        /// Devices stored by the chunks before.
        committed: u64,
        /// Position in the input of the chunk's first record, from 0.
        first: u64,
        /// One past the position of its last record.
        end: u64,
        /// Why.
        source: Box<RegistryError>,
    },
    /// Lines of an import file are not acceptable.
    #[error("{}; nothing was imported", .mistakes.iter().map(|mistake| mistake.of(.path)).collect::<Vec<_>>().join("; "))]
    ImportLines {
        /// The file.
        path: PathBuf,
        /// What is wrong with which lines, in the order of the first of them; never none.
        mistakes: Vec<LineMistake>,
    },
}

/// Something that is wrong with lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineMistake {
    /// The lines' numbers, from 1, ascending, never none.
    pub lines: Vec<u64>,
    /// What is wrong with each of them.
    pub problem: String,
}

/// Of more lines, or ranges of them, the others are counted.
const RANGES_TOLD_MAX: usize = 20;

impl LineMistake {
    /// With the file's name before it.
    #[must_use]
    pub fn of(&self, path: &std::path::Path) -> String {
        format!("{}, {self}", path.display())
    }
}

impl std::fmt::Display for LineMistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges: Vec<&[u64]> = self
            .lines
            .chunk_by(|line, next| line.checked_add(1) == Some(*next))
            .collect();
        let told: Vec<String> = ranges
            .iter()
            .take(RANGES_TOLD_MAX)
            .map(|range| match range {
                [first, .., last] => format!("{first} to {last}"),
                [only] => only.to_string(),
                [] => String::new(),
            })
            .collect();
        let lines = if self.lines.len() == 1 { "line" } else { "lines" };
        write!(f, "{lines} {}", told.join(", "))?;
        let more: usize = ranges.iter().skip(RANGES_TOLD_MAX).map(|range| range.len()).sum();
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        write!(f, ": {}", self.problem)
    }
}

// SQLite's primary result codes (https://www.sqlite.org/rescode.html); the extended ones differ above the low byte.
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
        Self::Entropy(error)
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
        if let Some(known) = of_postgres(&error) {
            return match known {
                Postgres::Locked => Self::Locked,
                Postgres::DiskFull => Self::DiskFull,
                Postgres::NotPermitted => Self::NotPermitted {
                    detail: error.to_string(),
                },
                Postgres::Damaged => Self::DamagedDatabase {
                    detail: error.to_string(),
                },
                Postgres::Unreachable => Self::Unreachable(error),
            };
        }
        let code = match &error {
            sqlx::Error::Database(database) => database.code().and_then(|code| code.parse::<u32>().ok()),
            // All connections in use for longer than the pool waits: somebody holds a lock.
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

/// What PostgreSQL's codes mean here.
enum Postgres {
    Locked,
    DiskFull,
    NotPermitted,
    Damaged,
    Unreachable,
}

/// `None` for what is none of PostgreSQL's failures, or none that calls for more than its words.
fn of_postgres(error: &sqlx::Error) -> Option<Postgres> {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            Some(Postgres::Unreachable)
        }
        sqlx::Error::Database(database) => {
            let database = database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
            // By class and code: PostgreSQL's documentation, appendix A.
            match database.code() {
                // lock_not_available, query_canceled, deadlock_detected
                "55P03" | "57014" | "40P01" => Some(Postgres::Locked),
                // disk_full
                "53100" => Some(Postgres::DiskFull),
                // read_only_sql_transaction, insufficient_privilege
                "25006" | "42501" => Some(Postgres::NotPermitted),
                // data_corrupted, index_corrupted, undefined_table, undefined_column
                "XX001" | "XX002" | "42P01" | "42703" => Some(Postgres::Damaged),
                // Connection exceptions, refused logins, too many connections, a server that is shutting down or starting.
                code if code.starts_with("08") || code.starts_with("28") || code.starts_with("57P") => {
                    Some(Postgres::Unreachable)
                }
                "53300" | "3D000" => Some(Postgres::Unreachable),
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
    /// The error once more, for a record that is asked for twice.
    pub(crate) fn of_one_record(&self) -> Self {
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

    /// Wraps the failure of a file operation with what was tried.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::NotWritable {
                detail: format!("cannot {action}: {source}"),
            },
            _ => Self::Io { action, source },
        }
    }
}
