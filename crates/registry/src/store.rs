//! Opening, making and closing the database file.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linewarden_files::sync_parent;
use log::LevelFilter;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, Sqlite, SqliteConnection, Transaction};

use crate::error::{RegistryError, Result};
use crate::key::MasterKey;
use crate::migrations::{self, Schema};
use crate::record_mac::RecordMac;
use linewarden_files::seal::{Sealer, derive_key};

/// Marks the file as ours in SQLite's header (`PRAGMA application_id`): the ASCII letters "LWRG".
const APPLICATION_ID: u32 = 0x4C57_5247;
/// What the key check seals.
const KEY_CHECK_TEXT: &[u8] = b"linewarden registry";
const KEY_CHECK_AAD: &[u8] = b"linewarden registry key check v1";
/// Statements are many, and say nothing to who looks for a fault at `debug`. Slow ones are warned of all the same.
pub(crate) const STATEMENTS_AT: LevelFilter = LevelFilter::Trace;
const SEALING_PURPOSE: &str = "linewarden registry sealing v1";
const MAC_PURPOSE: &str = "linewarden registry records v1";

/// The keys of one registry.
struct Keys {
    sealer: Sealer,
    record_mac: RecordMac,
}

impl Keys {
    fn derive(key: &MasterKey, registry_id: &[u8]) -> Self {
        Self {
            sealer: Sealer::derive(key.expose(), registry_id, SEALING_PURPOSE),
            record_mac: RecordMac::new(&derive_key(key.expose(), registry_id, MAC_PURPOSE)),
        }
    }
}

/// How a registry is opened; the defaults suit everything but tests and measurements.
#[derive(Clone, Debug)]
pub struct Options {
    /// Page size of a new file in bytes, a power of two from 512 to 65536.
    ///
    /// 16384 by default, as measured by `cargo run -p linewarden-registry --example page_size` (10,000 devices of
    /// 100 rows, sparse ids, every commit synced, best of 5 runs on two virtual cores shared with other work):
    ///
    /// | page, B | file, B per device | file bytes per sealed byte at 50, 100, 200 rows | enrol, devices/s | look-up, µs |
    /// |---|---|---|---|---|
    /// | 4096 | 4296 | 1.12, 1.69, 1.02 | 15,300 | 61 |
    /// | 8192 | 2932 | 1.12, 1.13, 1.70 | 26,500 | 74 |
    /// | 16384 | 2936 | 1.04, 1.13, 1.13 | 33,300 | 63 |
    /// | 32768 | 2749 | 1.04, 1.05, 1.13 | 33,200 | 76 |
    /// | 65536 | 2785 | 1.05, 1.05, 1.05 | 45,700 | 79 |
    ///
    /// 16384 is the smallest that wastes little at every common number of rows; larger ones gain 6 % of space,
    /// but each move of one mark writes a whole page to the log. Clustering the credentials by device id instead of
    /// by order of enrolment takes 4 to 13 times longer to load and up to 15 % more space.
    pub page_size_bytes: u32,
    /// How long to wait for another program's lock.
    pub busy_timeout: Duration,
    /// Connections for reading beside the one for writing.
    pub readers: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            page_size_bytes: 16_384,
            busy_timeout: Duration::from_secs(5),
            readers: 4,
        }
    }
}

/// A registry of devices and their sealed credentials. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    path: Option<PathBuf>,
    writer: SqlitePool,
    reader: SqlitePool,
    keys: Keys,
    schema: Schema,
    /// What the schema's own count of changes was when the writing connection last found nothing foreign in it.
    schema_version: Arc<AtomicI64>,
}

/// Of a connection that has not looked yet. SQLite counts in 32 bits.
const SCHEMA_UNSEEN: i64 = i64::MIN;

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("path", &self.inner.path)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Opens an existing registry and brings its schema up to this program's.
    ///
    /// # Errors
    /// No file, a file that is something else, a newer schema, one with triggers, views or anything else that no migration
    /// makes, the wrong master key, a locked or damaged file, a directory that cannot be written. Nothing is changed in any
    /// of these cases.
    pub async fn open(path: impl AsRef<Path>, key: &MasterKey) -> Result<Self> {
        Self::open_with(path, key, &Options::default()).await
    }

    /// [`Registry::open`] with other than the default options.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn open_with(path: impl AsRef<Path>, key: &MasterKey, options: &Options) -> Result<Self> {
        let path = path.as_ref();
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
        let mut connection = SqliteConnection::connect_with(&connect).await.map_err(at(path))?;
        migrations::refuse_newer(&mut connection, path).await?;
        let keys = check_key(&mut connection, path, key).await?;
        migrations::refuse_foreign(&mut connection, path).await?;
        migrations::run(&mut connection).await.map_err(at(path))?;
        connection.close().await.map_err(at(path))?;

        let schema_version = Arc::new(AtomicI64::new(SCHEMA_UNSEEN));
        let writer = writer_options(&schema_version);
        let reader = SqlitePoolOptions::new().max_connections(options.readers.max(1));
        let inner = Inner {
            path: Some(path.to_owned()),
            writer: writer.connect_with(connect.clone()).await.map_err(at(path))?,
            reader: reader.connect_lazy_with(connect),
            keys,
            schema: Schema::newest().await?,
            schema_version,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Whether [`Registry::open`] would find a registry of this key that this program knows; nothing is changed.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn examine(path: impl AsRef<Path>, key: &MasterKey) -> Result<()> {
        let path = path.as_ref();
        check_header(path)?;
        look(path, key).await
    }

    /// Makes a new, empty registry, readable by its owner only, and opens it.
    ///
    /// The file appears at `path` whole or not at all.
    ///
    /// # Errors
    /// Something exists at `path`, or its directory cannot be written.
    pub async fn create(path: impl AsRef<Path>, key: &MasterKey) -> Result<Self> {
        Self::create_with(path, key, &Options::default()).await
    }

    /// [`Registry::create`] with other than the default options.
    ///
    /// # Errors
    /// As [`Registry::create`].
    pub async fn create_with(path: impl AsRef<Path>, key: &MasterKey, options: &Options) -> Result<Self> {
        let path = path.as_ref();
        if path.symlink_metadata().is_ok() {
            return Err(RegistryError::AlreadyExists {
                path: path.to_owned(),
            });
        }
        let draft = draft_path(path)?;
        let made = make_file(&draft, key, options)
            .await
            .and_then(|()| publish(&draft, path));
        // Published, it has its second name; otherwise nothing of it shall stay.
        let _ = std::fs::remove_file(&draft);
        made.map_err(|error| match error {
            RegistryError::FileExists { path } => RegistryError::AlreadyExists { path },
            other => RegistryError::Open {
                path: path.to_owned(),
                source: Box::new(other),
            },
        })?;
        Self::open_with(path, key, options).await
    }

    /// Opens the registry at `path`, or makes it if nothing is there.
    ///
    /// # Errors
    /// As [`Registry::open`] and [`Registry::create`].
    pub async fn open_or_create(path: impl AsRef<Path>, key: &MasterKey) -> Result<Self> {
        match Self::open(&path, key).await {
            Err(RegistryError::NoRegistry { .. }) => match Self::create(&path, key).await {
                // Another program was faster.
                Err(RegistryError::AlreadyExists { .. }) => Self::open(&path, key).await,
                made => made,
            },
            opened => opened,
        }
    }

    /// Makes a registry that lives in memory and vanishes when dropped: for tests, demonstrations and benchmarks.
    ///
    /// # Errors
    /// No random bytes or no memory.
    pub async fn in_memory(key: &MasterKey) -> Result<Self> {
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
        let keys = {
            let mut connection = pool.acquire().await?;
            initialise(&mut connection, key).await?
        };
        Ok(Self {
            inner: Arc::new(Inner {
                path: None,
                writer: pool.clone(),
                reader: pool,
                keys,
                schema: Schema::newest().await?,
                schema_version: Arc::new(AtomicI64::new(SCHEMA_UNSEEN)),
            }),
        })
    }

    /// The file; `None` for a registry in memory.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.inner.path.as_deref()
    }

    /// Waits for what is under way, folds the write-ahead log into the file and closes it, for all clones.
    pub async fn close(self) {
        self.inner.reader.close().await;
        self.inner.writer.close().await;
    }

    /// Checks the file's structure and opens every sealed record. Reads everything: seconds per 10^5 devices.
    ///
    /// Returns the damaged records; none means that all is well.
    ///
    /// # Errors
    /// Damage to the file's structure.
    pub async fn check(&self) -> Result<Vec<RegistryError>> {
        let findings: Vec<(String,)> = sqlx::query_as("PRAGMA integrity_check(10)")
            .fetch_all(self.reader())
            .await?;
        let (contents, structure): (Vec<String>, Vec<String>) = findings
            .into_iter()
            .map(|(text,)| text)
            .filter(|text| text != "ok")
            .partition(|text| CONTENT_FINDINGS.iter().any(|part| text.contains(part)));
        if !structure.is_empty() {
            return Err(RegistryError::Damaged {
                detail: structure.join("; "),
            });
        }
        let damaged = self.damaged_records().await?;
        // What a value breaks is told by its record, unless its record bears it.
        if damaged.is_empty() && !contents.is_empty() {
            let detail = contents.join("; ");
            return Ok(vec![RegistryError::Damaged { detail }]);
        }
        Ok(damaged)
    }

    pub(crate) fn reader(&self) -> &SqlitePool {
        &self.inner.reader
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.inner.keys.sealer
    }

    pub(crate) fn record_mac(&self) -> &RecordMac {
        &self.inner.keys.record_mac
    }

    /// Begins a transaction that may write. It takes the write lock at once: one that began as a reader could not
    /// be waited for when it wants to write. Nobody else changes the schema while it lasts, and what somebody has put there
    /// since the registry was opened is refused.
    pub(crate) async fn write(&self) -> Result<Transaction<'static, Sqlite>> {
        let mut transaction = self.inner.writer.begin_with("BEGIN IMMEDIATE").await?;
        let (version,): (i64,) = sqlx::query_as("PRAGMA schema_version")
            .fetch_one(&mut *transaction)
            .await?;
        if self.inner.schema_version.load(Relaxed) != version {
            let path = self.path().unwrap_or(Path::new(":memory:"));
            self.inner.schema.refuse_foreign(&mut transaction, path).await?;
            self.inner.schema_version.store(version, Relaxed);
        }
        Ok(transaction)
    }
}

/// What SQLite's check says of a value, and not of the file's structure.
const CONTENT_FINDINGS: [&str; 4] = [
    "CHECK constraint failed in ",
    "NULL value in ",
    "TEXT value in ",
    "NUMERIC value in ",
];

/// Reads the schema and the key check, and writes nothing.
async fn look(path: &Path, key: &MasterKey) -> Result<()> {
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
    let mut connection = SqliteConnection::connect_with(&connect).await.map_err(at(path))?;
    migrations::refuse_newer(&mut connection, path).await?;
    check_key(&mut connection, path, key).await?;
    migrations::refuse_foreign(&mut connection, path).await?;
    connection.close().await.map_err(at(path))
}

/// Says what the file is before SQLite touches it.
fn check_header(path: &Path) -> Result<()> {
    let not_ours = |problem: &str| {
        Err(RegistryError::NotARegistry {
            path: path.to_owned(),
            problem: problem.to_owned(),
        })
    };
    let mut file = match OpenOptions::new().read(true).custom_flags(nonblock()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RegistryError::NoRegistry {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(RegistryError::io(format!("open the registry {}", path.display()))(error)),
    };
    let metadata = file
        .metadata()
        .map_err(RegistryError::io(format!("examine {}", path.display())))?;
    if !metadata.is_file() {
        return not_ours("it is not a regular file");
    }
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

fn nonblock() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits().cast_signed()
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

async fn make_file(draft: &Path, key: &MasterKey, options: &Options) -> Result<()> {
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
    initialise(&mut connection, key).await?;
    connection.close().await?;
    File::open(draft)
        .and_then(|file| file.sync_all())
        .map_err(RegistryError::io("write the new registry to disk"))
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

/// Fills an empty database: schema, registry id, key check.
async fn initialise(connection: &mut SqliteConnection, key: &MasterKey) -> Result<Keys> {
    migrations::run(connection).await?;
    let mut registry_id = [0u8; 16];
    getrandom::fill(&mut registry_id).map_err(RegistryError::Entropy)?;
    let keys = Keys::derive(key, &registry_id);
    let key_check = keys.sealer.seal(KEY_CHECK_AAD, KEY_CHECK_TEXT.len(), |out| {
        out.extend_from_slice(KEY_CHECK_TEXT)
    })?;
    sqlx::query("INSERT INTO registry (singleton, registry_id, key_check, revision) VALUES (1, $1, $2, 0)")
        .bind(registry_id.as_slice())
        .bind(key_check)
        .execute(connection)
        .await?;
    Ok(keys)
}

async fn check_key(connection: &mut SqliteConnection, path: &Path, key: &MasterKey) -> Result<Keys> {
    let found: Option<(Vec<u8>, Vec<u8>)> = sqlx::query_as("SELECT registry_id, key_check FROM registry")
        .fetch_optional(connection)
        .await
        .map_err(at(path))?;
    let (registry_id, key_check) = found.ok_or_else(|| RegistryError::Open {
        path: path.to_owned(),
        source: Box::new(RegistryError::Damaged {
            detail: "its key check is gone".to_owned(),
        }),
    })?;
    let keys = Keys::derive(key, &registry_id);
    match keys.sealer.open(KEY_CHECK_AAD, &key_check) {
        Ok(text) if text.as_slice() == KEY_CHECK_TEXT => Ok(keys),
        _ => Err(RegistryError::WrongMasterKey {
            path: path.to_owned(),
        }),
    }
}

/// Adds the path to an error met while opening.
pub(crate) fn at<E: Into<RegistryError>>(path: &Path) -> impl FnOnce(E) -> RegistryError {
    move |error| RegistryError::Open {
        path: path.to_owned(),
        source: Box::new(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::{DeviceId, Suite};
    use linewarden_protocol::keys::RowKey;

    use super::*;
    use crate::{BulkOptions, Credentials, DeviceRecord, Filter, PoolRow};

    fn device(id: u64) -> DeviceRecord {
        let row = PoolRow {
            challenge: [1; 8],
            row_key: RowKey::from_bytes([2; 16]),
        };
        DeviceRecord {
            device: DeviceId(id),
            name: String::new(),
            suite: Suite::SipHash128,
            enrolled_at_s: 0,
            puf_profile: String::new(),
            credentials: Credentials::pool(vec![row; 100]),
        }
    }

    /// SQLite's own limit of pages stands for a full disk: it fails in the same place with the same code.
    #[tokio::test]
    async fn a_full_disk_keeps_whole_chunks_and_the_registry_usable() {
        let directory = tempfile::tempdir().unwrap();
        let key = MasterKey::from_bytes([1; 32]);
        let registry = Registry::create(directory.path().join("registry"), &key)
            .await
            .unwrap();
        sqlx::query("PRAGMA max_page_count = 60")
            .fetch_all(&registry.inner.writer)
            .await
            .unwrap();
        let options = BulkOptions {
            chunk_devices: 50,
            ..BulkOptions::default()
        };
        let error = registry
            .enrol_bulk((1..=2000).map(device), options, |_| ())
            .await
            .unwrap_err();
        let RegistryError::Chunk {
            committed, source, ..
        } = error
        else {
            panic!("{error}")
        };
        assert!(matches!(*source, RegistryError::DiskFull), "{source}");
        assert!(committed > 0 && committed % 50 == 0, "{committed}");
        assert_eq!(registry.count(&Filter::default()).await.unwrap(), committed);
        assert!(registry.check().await.unwrap().is_empty());

        sqlx::query("PRAGMA max_page_count = 1000000")
            .fetch_all(&registry.inner.writer)
            .await
            .unwrap();
        registry.enrol(device(committed + 1)).await.unwrap();
    }

    /// SQLite rolls back by itself when a commit meets a full disk or a failed sync.
    #[tokio::test]
    async fn a_transaction_that_sqlite_has_ended_is_not_the_last_one() {
        let directory = tempfile::tempdir().unwrap();
        let key = MasterKey::from_bytes([1; 32]);
        let registry = Registry::create(directory.path().join("registry"), &key)
            .await
            .unwrap();
        for id in 1..=3 {
            let mut transaction = registry.write().await.unwrap();
            sqlx::query("ROLLBACK").execute(&mut *transaction).await.unwrap();
            assert!(transaction.commit().await.is_err());
            registry.enrol(device(id)).await.unwrap();
        }
        assert_eq!(registry.count(&Filter::default()).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_new_file_has_the_settings_that_durability_rests_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry");
        let options = Options {
            page_size_bytes: 4096,
            ..Options::default()
        };
        let registry = Registry::create_with(&path, &MasterKey::from_bytes([1; 32]), &options)
            .await
            .unwrap();
        for pool in [&registry.inner.writer, &registry.inner.reader] {
            let mut connection = pool.acquire().await.unwrap();
            let mut pragma = async |query: &'static str| {
                let (value,): (i64,) = sqlx::query_as(query).fetch_one(&mut *connection).await.unwrap();
                value
            };
            assert_eq!(pragma("PRAGMA page_size").await, 4096);
            assert_eq!(pragma("PRAGMA application_id").await, i64::from(APPLICATION_ID));
            assert_eq!(pragma("PRAGMA foreign_keys").await, 1);
            assert_eq!(pragma("PRAGMA synchronous").await, 2, "FULL");
            let (mode,): (String,) = sqlx::query_as("PRAGMA journal_mode")
                .fetch_one(&mut *connection)
                .await
                .unwrap();
            assert_eq!(mode, "wal");
        }
    }
}
