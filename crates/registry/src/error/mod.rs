//! The error types of this crate, by subject. Each message names the failure, the cause and the remedy.

mod attestation;
mod database;
mod device;
mod fencing;
mod key;
mod line_problem;
mod service;

use std::io;
use std::path::PathBuf;

pub use self::attestation::AttestationError;
pub use self::database::DatabaseError;
pub use self::device::DeviceError;
pub use self::fencing::FencingError;
pub use self::key::KeyError;
pub use self::line_problem::LineProblem;
pub use self::service::ServiceError;

use crate::location::Location;

/// The result type of this crate.
pub type Result<T, E = RegistryError> = std::result::Result<T, E>;

/// An error of the registry. No message holds key material.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Errors of key files.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Errors of creating, opening, copying and moving a registry.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Errors of the database, its files and the operating system.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Errors of devices and their rows.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Errors of gateways and their registrations.
    #[error(transparent)]
    Fencing(#[from] FencingError),
    /// Errors of the records of a controller.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// Errors of provers, groups, periods and rounds.
    #[error(transparent)]
    Attestation(#[from] AttestationError),
    /// Errors of bulk enrollments and imports.
    #[error(transparent)]
    Bulk(#[from] BulkError),
}

// `OpenError` and `BulkError` contain a `RegistryError`. In separate files, they would form an import cycle with this file.

/// Errors of creating, opening, copying and moving a registry.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
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
    /// The server is reachable, but the database cannot be used as a registry.
    #[error("the database at {registry} cannot be used as a registry: {problem}")]
    UnsuitableDatabase {
        /// The location.
        registry: Location,
        /// The problem and the remedy.
        problem: String,
    },
}

/// Errors of bulk enrollments and imports.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
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

impl From<sqlx::Error> for RegistryError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<sqlx::migrate::MigrateError> for RegistryError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        Self::Database(error.into())
    }
}

impl From<getrandom::Error> for RegistryError {
    fn from(error: getrandom::Error) -> Self {
        Self::Database(error.into())
    }
}

impl RegistryError {
    /// A copy of this error for another request about the same record.
    pub(crate) fn for_same_record(&self) -> Self {
        match self {
            Self::Device(DeviceError::DamagedRecord { device, problem }) => DeviceError::DamagedRecord {
                device: *device,
                problem: problem.clone(),
            }
            .into(),
            other => DatabaseError::Damaged {
                detail: other.to_string(),
            }
            .into(),
        }
    }

    /// Adds the operation to an I/O error.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let add_action = DatabaseError::io(action);
        move |source| add_action(source).into()
    }
}
