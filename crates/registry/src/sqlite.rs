//! The file of a registry on SQLite: found, told from others, opened, made.

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

use crate::error::{RegistryError, Result};
use crate::key::MasterKey;
use crate::migrations::{self, Schema};
use crate::sql::{self, Connection, Pool, Transaction};
use crate::storage::{self, FileStorage, Storage};
use crate::store::{Keys, Options, STATEMENTS_AT, at, check_key, initialise};

/// Marks the file as ours in SQLite's header (`PRAGMA application_id`): the ASCII letters "LWRG".
pub(crate) const APPLICATION_ID: u32 = 0x4C57_5247;

/// The connections to a file.
pub(crate) struct Opened {
    pub(crate) writer: Pool,
    pub(crate) reader: Pool,
    pub(crate) reader_apart: Pool,
    pub(crate) keys: Keys,
    pub(crate) guard: SchemaGuard,
    pub(crate) storage: Storage,
}

/// Notices what somebody puts into the schema while the registry is open.
pub(crate) struct SchemaGuard {
    schema: Schema,
    /// What the schema's own count of changes was when the writing connection last found nothing foreign in it.
    seen: Arc<AtomicI64>,
    path: PathBuf,
}

/// The log is folded into the file when it has so many pages, 256 MiB: seldom enough that a page which many devices share is folded once
/// for many of them, also where a million ids lie in no order.
const LOG_PAGES: &str = "16384";
/// Pages that a connection remembers, KiB, as SQLite has it. Who writes needs those where ids go, which come in no order, of 10^6
/// devices: what does not fit is read again for each device.
const WRITER_CACHE_KIB: &str = "-65536";
const READER_CACHE_KIB: &str = "-16384";

/// Of a connection that has not looked yet. SQLite counts in 32 bits.
const SCHEMA_UNSEEN: i64 = i64::MIN;

impl SchemaGuard {
    async fn new(path: &Path) -> Result<Self> {
        Ok(Self {
            schema: Schema::newest().await?,
            seen: Arc::new(AtomicI64::new(SCHEMA_UNSEEN)),
            path: path.to_owned(),
        })
    }

    /// Begins a transaction that may write. It takes the write lock at once: one that began as a reader could not
    /// be waited for when it wants to write. Nobody else changes the schema while it lasts, and what somebody has put there
    /// since the registry was opened is refused.
    pub(crate) async fn begin(&self, writer: &SqlitePool) -> Result<Transaction> {
        let mut transaction = Transaction::from(writer.begin_with("BEGIN IMMEDIATE").await?);
        let (version,): (i64,) = sql::query("PRAGMA schema_version")
            .fetch_one(&mut *transaction)
            .await?;
        if self.seen.load(Relaxed) != version {
            self.schema.refuse_foreign(&mut transaction, &self.path).await?;
            self.seen.store(version, Relaxed);
        }
        Ok(transaction)
    }
}

/// Opens an existing file and brings its schema up to this program's.
pub(crate) async fn open(path: &Path, key: &MasterKey, options: &Options) -> Result<Opened> {
    check_header(path)?;
    // A connection that may write empties the log beside the file when it closes: what is refused is only looked at.
    // Whatever else is wrong, opening says it better, or does not meet it.
    if let Err(
        refused @ (RegistryError::NewerSchema { .. }
        | RegistryError::WrongMasterKey { .. }
        | RegistryError::ForeignSchema { .. }),
    ) = look(path, key).await
    {
        return Err(refused);
    }
    let connect = connect_options(path, options);
    let connection = SqliteConnection::connect_with(&connect).await.map_err(at(path))?;
    let mut connection = Connection::from(connection);
    let keys = examine_with(&mut connection, path, key).await?;
    migrations::run(&mut connection).await.map_err(at(path))?;
    connection.close().await.map_err(at(path))?;

    let guard = SchemaGuard::new(path).await?;
    let writer = writer_options(&guard.seen);
    let reader = || {
        SqlitePoolOptions::new()
            .max_connections(options.readers.max(1))
            // A connection to a file does not break by itself, and to try it costs as much as to ask.
            .test_before_acquire(false)
    };
    let writing = connect.clone().pragma("cache_size", WRITER_CACHE_KIB);
    let reading = connect.pragma("cache_size", READER_CACHE_KIB);
    Ok(Opened {
        writer: Pool::Sqlite(writer.connect_with(writing).await.map_err(at(path))?),
        reader: Pool::Sqlite(reader().connect_lazy_with(reading.clone())),
        reader_apart: Pool::Sqlite(reader().connect_lazy_with(reading)),
        keys,
        guard,
        storage: Storage::File(FileStorage::of(path)?),
    })
}

/// Whether [`open`] would find a registry of this key that this program knows; nothing is changed.
pub(crate) async fn examine(path: &Path, key: &MasterKey) -> Result<()> {
    look(path, key).await
}

/// A file that is being filled: it has its name once it is whole, or vanishes.
pub(crate) struct Draft {
    connection: Option<Connection>,
    draft: PathBuf,
    path: PathBuf,
}

impl Draft {
    /// Makes the tables of a new file, readable by its owner only, in a transaction.
    pub(crate) async fn begin(path: &Path, options: &Options) -> Result<Self> {
        if path.symlink_metadata().is_ok() {
            return Err(RegistryError::AlreadyExists {
                registry: path.into(),
            });
        }
        let mut draft = Self {
            connection: None,
            draft: draft_path(path)?,
            path: path.to_owned(),
        };
        draft.make(options).await.map_err(at(path))?;
        Ok(draft)
    }

    async fn make(&mut self, options: &Options) -> Result<()> {
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
            .log_statements(STATEMENTS_AT)
            .page_size(options.page_size_bytes)
            .foreign_keys(true)
            .synchronous(SqliteSynchronous::Full);
        let mut connection = SqliteConnection::connect_with(&connect).await?;
        // PRAGMA takes no parameters; the number is APPLICATION_ID.
        connection.execute("PRAGMA application_id = 1280791111").await?;
        let connection = self.connection.insert(connection.into());
        migrations::run(connection).await?;
        sql::query("BEGIN").execute(connection).await?;
        Ok(())
    }

    /// What it is filled by.
    pub(crate) fn connection(&mut self) -> Result<&mut Connection> {
        self.connection.as_mut().ok_or(RegistryError::Locked)
    }

    /// Puts it where it belongs, durable.
    pub(crate) async fn finish(mut self) -> Result<()> {
        self.publish().await.map_err(|error| match error {
            RegistryError::FileExists { path } => RegistryError::AlreadyExists {
                registry: path.into(),
            },
            other => at(&*self.path)(other),
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
        storage::remove_left_record(&self.path)?;
        publish(&self.draft, &self.path)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Published, it has its second name; otherwise nothing of it shall stay.
        let _ = std::fs::remove_file(&self.draft);
    }
}

/// A database that lives in memory and vanishes with its connections.
pub(crate) async fn in_memory(key: &MasterKey) -> Result<Opened> {
    let connect = SqliteConnectOptions::new()
        .in_memory(true)
        .log_statements(STATEMENTS_AT)
        .shared_cache(false)
        .foreign_keys(true);
    // The database dies with its only connection, so that one must stay.
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
        migrations::run(&mut connection).await?;
        let keys = initialise(&mut connection, key).await?;
        storage::note(&mut connection, storage::MEMORY).await?;
        keys
    };
    Ok(Opened {
        writer: pool.clone(),
        reader: pool.clone(),
        reader_apart: pool,
        keys,
        guard: SchemaGuard::new(Path::new(":memory:")).await?,
        storage: Storage::Fixed(storage::MEMORY.to_owned()),
    })
}

/// What SQLite's own check finds in the file's structure, and what in values.
pub(crate) async fn findings(reader: &SqlitePool) -> Result<(Vec<String>, Vec<String>)> {
    let findings: Vec<(String,)> = sqlx::query_as("PRAGMA integrity_check(10)")
        .fetch_all(reader)
        .await?;
    let (contents, structure) = findings
        .into_iter()
        .map(|(text,)| text)
        .filter(|text| text != "ok")
        .partition(|text| CONTENT_FINDINGS.iter().any(|part| text.contains(part)));
    Ok((structure, contents))
}

/// What SQLite's check says of a value, and not of the file's structure.
const CONTENT_FINDINGS: [&str; 4] = [
    "CHECK constraint failed in ",
    "NULL value in ",
    "TEXT value in ",
    "NUMERIC value in ",
];

/// A connection to a registry that writes nothing.
pub(crate) async fn reading(path: &Path) -> Result<Connection> {
    check_header(path)?;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    // Without a log the file is all there is, and SQLite need make none to read it.
    let is_alone = Path::new(&log).metadata().map_or(true, |log| log.len() == 0);
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .log_statements(STATEMENTS_AT)
        .create_if_missing(false)
        .read_only(true)
        .immutable(is_alone);
    let connection = SqliteConnection::connect_with(&connect).await.map_err(at(path))?;
    Ok(connection.into())
}

/// Reads the schema and the key check, and writes nothing.
async fn look(path: &Path, key: &MasterKey) -> Result<()> {
    let mut connection = reading(path).await?;
    examine_with(&mut connection, path, key).await?;
    connection.close().await.map_err(at(path))
}

/// Refuses another key's registry, a newer one, and one with what no migration makes.
async fn examine_with(connection: &mut Connection, path: &Path, key: &MasterKey) -> Result<Keys> {
    migrations::refuse_newer(connection, &path.into()).await?;
    let keys = check_key(connection, &path.into(), key).await?;
    migrations::refuse_foreign(connection, path).await?;
    Ok(keys)
}

/// Says what the file is before SQLite touches it.
fn check_header(path: &Path) -> Result<()> {
    let not_ours = |problem: &str| {
        Err(RegistryError::NotARegistry {
            path: path.to_owned(),
            problem: problem.to_owned(),
        })
    };
    let mut file = match open_regular(path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RegistryError::NoRegistry {
                registry: path.into(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return not_ours(&error.to_string()),
        Err(error) => return Err(RegistryError::io(format!("open the registry {}", path.display()))(error)),
    };
    let metadata = file
        .metadata()
        .map_err(RegistryError::io(format!("examine {}", path.display())))?;
    let mut header = [0u8; 100];
    if let Err(error) = file.read_exact(&mut header) {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof if metadata.len() == 0 => not_ours("it is empty"),
            io::ErrorKind::UnexpectedEof => not_ours("it is shorter than a database's header"),
            _ => Err(RegistryError::io(format!("read {}", path.display()))(error)),
        };
    }
    if !header.starts_with(b"SQLite format 3\0") {
        return not_ours("it is not a SQLite database");
    }
    let [.., a, b, c, d] = *header.first_chunk::<72>().unwrap_or(&[0; 72]);
    if u32::from_be_bytes([a, b, c, d]) != APPLICATION_ID {
        return not_ours("it is the SQLite database of another program");
    }
    Ok(())
}

/// One connection writes. After a full disk or a failed sync SQLite itself has rolled the transaction back; sqlx goes on
/// counting it, and would refuse every later one: such a connection is exchanged for a new one, which reads the schema anew.
fn writer_options(schema_version: &Arc<AtomicI64>) -> SqlitePoolOptions {
    let schema_version = Arc::clone(schema_version);
    SqlitePoolOptions::new()
        .max_connections(1)
        .after_connect(move |_, _| {
            schema_version.store(SCHEMA_UNSEEN, Relaxed);
            Box::pin(async { Ok(()) })
        })
        // A connection is tested when it comes back, after its rollback.
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(async { Ok(!connection.is_in_transaction()) }))
}

fn connect_options(path: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .log_statements(STATEMENTS_AT)
        .create_if_missing(false)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        // Each commit is on the disk before it returns: a mark that a power cut takes back hands rows out twice.
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(options.busy_timeout)
        .pragma("wal_autocheckpoint", LOG_PAGES)
        // After a bulk load the log file is cut back to this many bytes.
        .pragma("journal_size_limit", "67108864")
}

/// Refuses what [`publish`] would refuse in the end.
pub(crate) fn refuse_existing(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(RegistryError::FileExists {
            path: path.to_owned(),
        }),
        Err(_) => Ok(()),
    }
}

/// A name beside `path`, so that linking it to `path` stays within one file system.
pub(crate) fn draft_path(path: &Path) -> Result<PathBuf> {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(RegistryError::Entropy)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", hex::encode(random)));
    Ok(path.with_file_name(name))
}

pub(crate) fn publish(draft: &Path, path: &Path) -> Result<()> {
    // A link, not a rename: a rename would overwrite a file that came into being meanwhile.
    match std::fs::hard_link(draft, path) {
        Ok(()) => sync_parent(path).map_err(RegistryError::io(format!(
            "write the directory of {} to disk",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(RegistryError::FileExists {
            path: path.to_owned(),
        }),
        Err(error) => Err(RegistryError::io(format!(
            "put the new file at {}",
            path.display()
        ))(error)),
    }
}
