//! A registry in a SQLite file: checking, opening, creating.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use linewarden_files::{open_regular, sync_parent};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, SqliteConnection};

use crate::error::{DatabaseError, OpenError, RegistryError, Result};
use crate::key::MasterKey;
use crate::schema::{self, Schema};
use crate::sql::{self, Connection, Pool, Transaction};
use crate::storage::{self, FileStorage, Storage};
use crate::store::{Keys, Options, STATEMENT_LOG_LEVEL, check_key, initialize, with_location};

/// Identifies a registry in SQLite's header (`PRAGMA application_id`): the ASCII letters "LWRG".
pub(crate) const APPLICATION_ID: u32 = 0x4C57_5247;

/// The connections to a file.
pub(crate) struct Connections {
    pub(crate) writer: Pool,
    pub(crate) reader: Pool,
    pub(crate) separate_reader: Pool,
    pub(crate) keys: Keys,
    pub(crate) guard: SchemaGuard,
    pub(crate) storage: Storage,
}

/// Detects objects that are added to the schema while the registry is open.
pub(crate) struct SchemaGuard {
    schema: Schema,
    /// The schema version counter of SQLite at the last check of the writing connection.
    checked_version: Arc<AtomicI64>,
    path: PathBuf,
}

/// The number of pages at which the write-ahead log is copied into the file: 256 MiB. Checkpoints are rare: a page that
/// many devices share is then written once for many changes, even if a million ids arrive in random order.
const WAL_CHECKPOINT_PAGES: &str = "16384";
/// Page cache of a connection, KiB, in SQLite's notation. The writer needs the pages of the indexes by id of 10^6
/// devices, whose ids arrive in random order; pages that do not fit are read again for each device.
const WRITER_CACHE_KIB: &str = "-65536";
const READER_CACHE_KIB: &str = "-16384";

/// The value before the first check; SQLite's counter has 32 bits.
const SCHEMA_UNCHECKED: i64 = i64::MIN;

impl SchemaGuard {
    async fn new(path: &Path) -> Result<Self> {
        Ok(Self {
            schema: Schema::newest().await?,
            checked_version: Arc::new(AtomicI64::new(SCHEMA_UNCHECKED)),
            path: path.to_owned(),
        })
    }

    /// Begins a writing transaction. The transaction acquires the write lock immediately, because a transaction that begins as
    /// a reader cannot wait for the lock later. No other program changes the schema during the transaction. Objects that
    /// were added to the schema since the registry was opened are refused.
    pub(crate) async fn begin(&self, writer: &SqlitePool) -> Result<Transaction> {
        let mut transaction = Transaction::from(writer.begin_with("BEGIN IMMEDIATE").await?);
        let (version,): (i64,) = sql::query("PRAGMA schema_version")
            .fetch_one(&mut *transaction)
            .await?;
        if self.checked_version.load(Relaxed) != version {
            self.schema.refuse_foreign(&mut transaction, &self.path).await?;
            self.checked_version.store(version, Relaxed);
        }
        Ok(transaction)
    }
}

/// Opens an existing file.
pub(crate) async fn open(path: &Path, key: &MasterKey, options: &Options) -> Result<Connections> {
    check_header(path)?;
    // A writable connection empties the write-ahead log when it closes. A file that must be refused may not be changed,
    // so the file is examined over a read-only connection first. Other errors of the examination are ignored: if they
    // persist, opening the writable connection reports them.
    if let Err(
        refusal @ RegistryError::Open(
            OpenError::NewerSchema { .. }
            | OpenError::WrongMasterKey { .. }
            | OpenError::UnexpectedSchemaObject { .. },
        ),
    ) = examine_read_only(path, key).await
    {
        return Err(refusal);
    }
    let connect = connect_options(path, options);
    let connection = SqliteConnection::connect_with(&connect)
        .await
        .map_err(with_location(path))?;
    let mut connection = Connection::from(connection);
    let keys = examine_with(&mut connection, path, key).await?;
    schema::run(&mut connection).await.map_err(with_location(path))?;
    connection.close().await.map_err(with_location(path))?;

    let guard = SchemaGuard::new(path).await?;
    let writer = writer_options(&guard.checked_version);
    let reader = || {
        SqlitePoolOptions::new()
            .max_connections(options.readers.max(1))
            // A connection to a file does not fail by itself, and a test would take as long as a query.
            .test_before_acquire(false)
            // See [`writer_options`].
            .idle_timeout(None)
            .max_lifetime(None)
    };
    let writer_connect = connect.clone().pragma("cache_size", WRITER_CACHE_KIB);
    let reader_connect = connect.pragma("cache_size", READER_CACHE_KIB);
    Ok(Connections {
        writer: Pool::Sqlite(
            writer
                .connect_with(writer_connect)
                .await
                .map_err(with_location(path))?,
        ),
        reader: Pool::Sqlite(reader().connect_lazy_with(reader_connect.clone())),
        separate_reader: Pool::Sqlite(reader().connect_lazy_with(reader_connect)),
        keys,
        guard,
        storage: Storage::File(FileStorage::of(path)?),
    })
}

/// Checks whether [`open`] would accept the registry with this key; nothing is changed.
pub(crate) async fn examine(path: &Path, key: &MasterKey) -> Result<()> {
    examine_read_only(path, key).await
}

/// A file that is being created. The file gets its final name when it is complete; otherwise it is deleted.
pub(crate) struct Draft {
    /// `None` after the commit.
    connection: Option<Connection>,
    /// The temporary name.
    draft: PathBuf,
    path: PathBuf,
}

impl Draft {
    /// Creates a new file, readable by its owner only, with empty tables, and begins a transaction.
    pub(crate) async fn begin(path: &Path, options: &Options) -> Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(RegistryError::Open(OpenError::AlreadyExists {
                registry: path.into(),
            }));
        }
        let mut draft = Self {
            connection: None,
            draft: draft_path(path)?,
            path: path.to_owned(),
        };
        draft.create_file(options).await.map_err(with_location(path))?;
        Ok(draft)
    }

    async fn create_file(&mut self, options: &Options) -> Result<()> {
        let draft = &self.draft;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(draft)
            .map_err(RegistryError::io(format!(
                "create the registry {}",
                draft.display()
            )))?;
        let connect = SqliteConnectOptions::new()
            .filename(draft)
            .log_statements(STATEMENT_LOG_LEVEL)
            .page_size(options.page_size_bytes)
            .foreign_keys(true)
            .synchronous(SqliteSynchronous::Full);
        let mut connection = SqliteConnection::connect_with(&connect).await?;
        // PRAGMA takes no parameters; the number is APPLICATION_ID.
        connection.execute("PRAGMA application_id = 1280791111").await?;
        let connection = self.connection.insert(connection.into());
        schema::run(connection).await?;
        sql::query("BEGIN").execute(connection).await?;
        Ok(())
    }

    /// The connection of the transaction.
    pub(crate) fn connection(&mut self) -> Result<&mut Connection> {
        self.connection
            .as_mut()
            .ok_or(RegistryError::Database(DatabaseError::Locked))
    }

    /// Commits, and publishes the file durably under its final name.
    pub(crate) async fn finish(mut self) -> Result<()> {
        self.publish().await.map_err(|error| match error {
            RegistryError::Open(OpenError::FileExists { path }) => {
                RegistryError::Open(OpenError::AlreadyExists {
                    registry: path.into(),
                })
            }
            error => with_location(&*self.path)(error),
        })
    }

    async fn publish(&mut self) -> Result<()> {
        if let Some(mut connection) = self.connection.take() {
            sql::query("COMMIT").execute(&mut connection).await?;
            connection.close().await?;
        }
        File::open(&self.draft)
            .and_then(|file| file.sync_all())
            .map_err(RegistryError::io("write the new registry to disk"))?;
        storage::remove_stale_record(&self.path)?;
        publish(&self.draft, &self.path)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // This removes only the temporary name: a published file keeps its final name.
        let _ = std::fs::remove_file(&self.draft);
    }
}

/// An in-memory database, which ends with its connections.
pub(crate) async fn in_memory(key: &MasterKey) -> Result<Connections> {
    let connect = SqliteConnectOptions::new()
        .in_memory(true)
        .log_statements(STATEMENT_LOG_LEVEL)
        .shared_cache(false)
        .foreign_keys(true);
    // The database ends with its only connection, which must therefore remain open.
    let pool = SqlitePoolOptions::new()
        .min_connections(1)
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_with(connect)
        .await?;
    let pool = Pool::Sqlite(pool);
    let keys = {
        let mut connection = pool.acquire().await?;
        schema::run(&mut connection).await?;
        let keys = initialize(&mut connection, key).await?;
        storage::write_storage(&mut connection, storage::MEMORY).await?;
        keys
    };
    Ok(Connections {
        writer: pool.clone(),
        reader: pool.clone(),
        separate_reader: pool,
        keys,
        guard: SchemaGuard::new(Path::new(":memory:")).await?,
        storage: Storage::Fixed(storage::MEMORY.to_owned()),
    })
}

/// The findings of SQLite's integrity check: first the findings about the file structure, then the findings about values.
pub(crate) async fn integrity_findings(reader: &SqlitePool) -> Result<(Vec<String>, Vec<String>)> {
    let findings: Vec<(String,)> = sqlx::query_as("PRAGMA integrity_check(10)")
        .fetch_all(reader)
        .await?;
    let (contents, structure) = findings
        .into_iter()
        .map(|(text,)| text)
        .filter(|text| text != "ok")
        .partition(|text| VALUE_FINDINGS.iter().any(|part| text.contains(part)));
    Ok((structure, contents))
}

/// Findings about a value and not about the file structure.
const VALUE_FINDINGS: [&str; 4] = [
    "CHECK constraint failed in ",
    "NULL value in ",
    "TEXT value in ",
    "NUMERIC value in ",
];

/// Opens a read-only connection.
pub(crate) async fn open_read_only(path: &Path) -> Result<Connection> {
    check_header(path)?;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    // Without a write-ahead log the file is complete, and SQLite must not create a log to read it.
    let is_without_log = Path::new(&log).metadata().map_or(true, |log| log.len() == 0);
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .log_statements(STATEMENT_LOG_LEVEL)
        .create_if_missing(false)
        .read_only(true)
        .immutable(is_without_log);
    let connection = SqliteConnection::connect_with(&connect)
        .await
        .map_err(with_location(path))?;
    Ok(connection.into())
}

/// Checks schema and key over a read-only connection.
async fn examine_read_only(path: &Path, key: &MasterKey) -> Result<()> {
    let mut connection = open_read_only(path).await?;
    examine_with(&mut connection, path, key).await?;
    connection.close().await.map_err(with_location(path))
}

/// Refuses a registry with another master key, a newer schema or unexpected objects; returns the registry's keys.
async fn examine_with(connection: &mut Connection, path: &Path, key: &MasterKey) -> Result<Keys> {
    schema::refuse_newer(connection, &path.into()).await?;
    let keys = check_key(connection, &path.into(), key).await?;
    schema::refuse_foreign(connection, path).await?;
    Ok(keys)
}

/// Checks the file header before SQLite opens the file.
fn check_header(path: &Path) -> Result<()> {
    let not_a_registry = |problem: &str| {
        Err(RegistryError::Open(OpenError::NotARegistry {
            path: path.to_owned(),
            problem: problem.to_owned(),
        }))
    };
    let mut file = match open_regular(path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RegistryError::Open(OpenError::NoRegistry {
                registry: path.into(),
            }));
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return not_a_registry(&error.to_string());
        }
        Err(error) => return Err(RegistryError::io(format!("open the registry {}", path.display()))(error)),
    };
    let metadata = file
        .metadata()
        .map_err(RegistryError::io(format!("examine {}", path.display())))?;
    let mut header = [0u8; 100];
    if let Err(error) = file.read_exact(&mut header) {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof if metadata.len() == 0 => not_a_registry("the file is empty"),
            io::ErrorKind::UnexpectedEof => not_a_registry("the file is shorter than a database header"),
            _ => Err(RegistryError::io(format!("read {}", path.display()))(error)),
        };
    }
    if !header.starts_with(b"SQLite format 3\0") {
        return not_a_registry("the file is not a SQLite database");
    }
    let [.., a, b, c, d] = *header.first_chunk::<72>().unwrap_or(&[0; 72]);
    if u32::from_be_bytes([a, b, c, d]) != APPLICATION_ID {
        return not_a_registry("the file is a SQLite database of another program");
    }
    Ok(())
}

/// Options of the pool with the only writing connection. After a full disk or a failed sync, SQLite rolls the
/// transaction back itself, but sqlx still counts the transaction as open and would refuse all later transactions. The pool
/// therefore replaces such a connection; a new connection checks the schema again.
fn writer_options(schema_version: &Arc<AtomicI64>) -> SqlitePoolOptions {
    let schema_version = Arc::clone(schema_version);
    SqlitePoolOptions::new()
        .max_connections(1)
        .after_connect(move |_, _| {
            schema_version.store(SCHEMA_UNCHECKED, Relaxed);
            Box::pin(async { Ok(()) })
        })
        // The pool makes this check when a connection is acquired: by then, a pending rollback is complete.
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(async { Ok(!connection.is_in_transaction()) }))
        // Without these limits, the pool has no maintenance task. This task can loop endlessly, and then the process does not end
        // (sqlx issue 3645).
        .idle_timeout(None)
        .max_lifetime(None)
}

fn connect_options(path: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .log_statements(STATEMENT_LOG_LEVEL)
        .create_if_missing(false)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        // Each commit is on disk before it returns. If a power failure could lose a mark, rows would be leased twice.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(options.busy_timeout)
        .pragma("wal_autocheckpoint", WAL_CHECKPOINT_PAGES)
        // After a bulk load the log file is truncated to this number of bytes.
        .pragma("journal_size_limit", "67108864")
}

/// Refuses an existing path early, as [`publish`] would.
pub(crate) fn refuse_existing(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(RegistryError::Open(OpenError::FileExists {
            path: path.to_owned(),
        })),
        Err(_) => Ok(()),
    }
}

/// A temporary name in the directory of `path`, so that both names are in one file system.
pub(crate) fn draft_path(path: &Path) -> Result<PathBuf> {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(DatabaseError::NoRandomBytes)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", hex::encode(random)));
    Ok(path.with_file_name(name))
}

/// Gives a complete file its final name durably.
pub(crate) fn publish(draft: &Path, path: &Path) -> Result<()> {
    // A hard link, because a rename would overwrite a file that was created in the meantime.
    match std::fs::hard_link(draft, path) {
        Ok(()) => sync_parent(path).map_err(RegistryError::io(format!(
            "write the directory of {} to disk",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(RegistryError::Open(OpenError::FileExists {
                path: path.to_owned(),
            }))
        }
        Err(error) => Err(RegistryError::io(format!(
            "put the new file at {}",
            path.display()
        ))(error)),
    }
}
