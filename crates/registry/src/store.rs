//! Opening, creating and closing a registry on either database.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use linewarden_files::seal::{Sealer, derive_key};
use log::LevelFilter;

use crate::error::{DatabaseError, OpenError, RegistryError, Result};
use crate::fingerprint::FingerprintKeys;
use crate::key::MasterKey;
use crate::location::Location;
use crate::monitor::TransactionMonitor;
use crate::postgres::{self, WriteLock};
use crate::record_tag::RecordAuthenticator;
use crate::service::Action;
use crate::sql::{self, Connection, Pool, Transaction};
use crate::sqlite::{self, SchemaGuard};
use crate::storage::{CounterSchedule, Storage};

/// The plain text of the key check.
const KEY_CHECK_TEXT: &[u8] = b"linewarden registry";
const KEY_CHECK_AAD: &[u8] = b"linewarden registry key check v1";
/// Log level of SQL statements: too many for `debug`. Slow statements are logged as warnings in any case.
pub(crate) const STATEMENT_LOG_LEVEL: LevelFilter = LevelFilter::Trace;
const SEALING_PURPOSE: &str = "linewarden registry sealing v1";
const TAG_PURPOSE: &str = "linewarden registry records v1";

/// The keys of one registry.
pub(crate) struct Keys {
    sealer: Sealer,
    authenticator: RecordAuthenticator,
    fingerprints: FingerprintKeys,
}

impl Keys {
    fn derive(key: &MasterKey, registry_id: &[u8]) -> Self {
        Self {
            sealer: Sealer::derive(key.expose(), registry_id, SEALING_PURPOSE),
            authenticator: RecordAuthenticator::new(&derive_key(key.expose(), registry_id, TAG_PURPOSE)),
            fingerprints: FingerprintKeys::derive(key, registry_id),
        }
    }
}

/// Options of a registry; the defaults are suitable except for tests and measurements.
#[derive(Clone, Debug)]
pub struct Options {
    /// SQLite: page size of a new file in bytes, a power of two from 512 to 65536.
    ///
    /// 16384 by default, as measured by `cargo run -p linewarden-registry --example page_size` (10,000 devices of
    /// 100 rows, sparse ids, every commit synced, best of 5 runs on two virtual cores shared with other work):
    ///
    /// | page, B | file, B per device | file bytes per sealed byte at 50, 100, 200 rows | enroll, devices/s | look-up, µs |
    /// |---|---|---|---|---|
    /// | 4096 | 4296 | 1.12, 1.69, 1.02 | 15,300 | 61 |
    /// | 8192 | 2932 | 1.12, 1.13, 1.70 | 26,500 | 74 |
    /// | 16384 | 2936 | 1.04, 1.13, 1.13 | 33,300 | 63 |
    /// | 32768 | 2749 | 1.04, 1.05, 1.13 | 33,200 | 76 |
    /// | 65536 | 2785 | 1.05, 1.05, 1.05 | 45,700 | 79 |
    ///
    /// 16384 is the smallest size that wastes little space at every common number of rows. Larger sizes save 6 % of
    /// space, but each change of a mark writes a whole page to the log. Clustering the credentials by device id
    /// instead of by order of enrollment takes 4 to 13 times longer to load and up to 15 % more space.
    pub page_size_bytes: u32,
    /// Timeout for the lock of another program, and for a connection to PostgreSQL.
    pub busy_timeout: Duration,
    /// Number of connections for reading, in addition to the connection for writing. [Separate
    /// readers](Registry::with_separate_reader) have the same number of own connections.
    pub readers: u32,
    /// SQLite: minimum time between two leases that raise the counter of the storage. A restored backup is detected if
    /// the registry has leased rows at least this time after the backup, or was closed after a lease.
    pub storage_period: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            page_size_bytes: 16_384,
            busy_timeout: Duration::from_secs(5),
            readers: 4,
            storage_period: Duration::from_secs(1),
        }
    }
}

/// A registry of devices and their sealed credentials. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
    /// The user action on whose behalf this clone writes.
    action: Option<Arc<Action>>,
    /// Whether this clone uses the separate reader connections.
    uses_separate_reader: bool,
}

struct Inner {
    /// `None` in memory.
    location: Option<Location>,
    writer: Pool,
    reader: Pool,
    /// Connections for readers that must not wait for long queries of other readers.
    separate_reader: Pool,
    keys: Keys,
    write_access: WriteAccess,
    monitor: OnceLock<Box<dyn TransactionMonitor>>,
    storage: Storage,
    schedule: CounterSchedule,
}

/// The exclusive access of a writer.
enum WriteAccess {
    Sqlite(SchemaGuard),
    Postgres(WriteLock),
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("location", &self.inner.location)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Opens an existing registry.
    ///
    /// # Errors
    /// No registry, another file, a newer schema, a schema with triggers, views or other unexpected objects, the
    /// wrong master key, or a database that is locked, damaged, not writable or not reachable. Nothing is changed
    /// in any of these cases.
    pub async fn open(location: impl Into<Location>, key: &MasterKey) -> Result<Self> {
        Self::open_with(location, key, &Options::default()).await
    }

    /// [`Registry::open`] with options.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn open_with(
        location: impl Into<Location>,
        key: &MasterKey,
        options: &Options,
    ) -> Result<Self> {
        Self::open_checked(location.into(), key, options, None).await
    }

    /// [`Registry::open`] for a move to `target`. Also opens a registry that refuses requests because of an earlier
    /// move to `target` that may be incomplete; a repeated move completes the earlier move.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn open_to_move(
        location: impl Into<Location>,
        key: &MasterKey,
        target: &Location,
    ) -> Result<Self> {
        Self::open_checked(location.into(), key, &Options::default(), Some(target)).await
    }

    async fn open_checked(
        location: Location,
        key: &MasterKey,
        options: &Options,
        target: Option<&Location>,
    ) -> Result<Self> {
        let inner = match &location {
            Location::Sqlite(path) => Inner::from(sqlite::open(path, key, options).await?),
            Location::Postgres(_) => Inner::from(postgres::open(&location, key, options).await?),
        };
        let registry = Self {
            inner: Arc::new(Inner {
                location: Some(location),
                schedule: CounterSchedule::every(options.storage_period),
                ..inner
            }),
            action: None,
            uses_separate_reader: false,
        };
        let mut connection = registry.reader().acquire().await?;
        registry.refuse_moved_except_to(&mut connection, target).await?;
        drop(connection);
        // A registry that is opened for a move is not changed.
        if target.is_none() {
            registry.record_storage().await?;
        }
        Ok(registry)
    }

    /// Checks whether [`Registry::open`] would accept the registry with this key; nothing is changed.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn examine(location: impl Into<Location>, key: &MasterKey) -> Result<()> {
        let location = location.into();
        match &location {
            Location::Sqlite(path) => sqlite::examine(path, key).await,
            Location::Postgres(_) => postgres::examine(&location, key).await,
        }
    }

    /// Creates an empty registry and opens it: a file that only its owner may read, or the tables in an existing
    /// database. The creation is atomic.
    ///
    /// # Errors
    /// An existing registry, or a directory or database that is not writable or reachable.
    pub async fn create(location: impl Into<Location>, key: &MasterKey) -> Result<Self> {
        Self::create_with(location, key, &Options::default()).await
    }

    /// [`Registry::create`] with options.
    ///
    /// # Errors
    /// As [`Registry::create`].
    pub async fn create_with(
        location: impl Into<Location>,
        key: &MasterKey,
        options: &Options,
    ) -> Result<Self> {
        let location = location.into();
        let mut draft = Draft::begin(&location, options).await?;
        initialize(draft.connection()?, key)
            .await
            .map_err(with_location(&location))?;
        draft.finish().await?;
        Self::open_with(location, key, options).await
    }

    /// Opens the registry, or creates it if it does not exist.
    ///
    /// # Errors
    /// As [`Registry::open`] and [`Registry::create`].
    pub async fn open_or_create(location: impl Into<Location>, key: &MasterKey) -> Result<Self> {
        let location = location.into();
        match Self::open(&location, key).await {
            Err(RegistryError::Open(OpenError::NoRegistry { .. })) => {
                match Self::create(&location, key).await {
                    // Another program has created the registry in the meantime.
                    Err(RegistryError::Open(OpenError::AlreadyExists { .. })) => {
                        Self::open(location, key).await
                    }
                    created => created,
                }
            }
            opened => opened,
        }
    }

    /// Creates an in-memory registry, for tests, demonstrations and benchmarks.
    ///
    /// # Errors
    /// No random bytes or no memory.
    pub async fn in_memory(key: &MasterKey) -> Result<Self> {
        let opened = sqlite::in_memory(key).await?;
        Ok(Self {
            inner: Arc::new(opened.into()),
            action: None,
            uses_separate_reader: false,
        })
    }

    /// The location; `None` for an in-memory registry.
    #[must_use]
    pub fn location(&self) -> Option<&Location> {
        self.inner.location.as_ref()
    }

    /// Sets the monitor of the transactions of all clones. The first monitor cannot be replaced.
    pub fn set_monitor(&self, monitor: impl TransactionMonitor + 'static) {
        let _ = self.inner.monitor.set(Box::new(monitor));
    }

    /// Waits for pending operations and closes all connections, for all clones. SQLite copies its write-ahead log into
    /// the file. If leases have changed since the counter of the storage was raised, the counter is raised first.
    pub async fn close(self) {
        self.advance_at_close().await;
        self.inner.reader.close().await;
        self.inner.separate_reader.close().await;
        self.inner.writer.close().await;
    }

    /// Checks the database structure and opens every sealed record. Reads all data: several seconds per 10^5 devices.
    ///
    /// Returns the damaged records; empty if the registry is intact.
    ///
    /// # Errors
    /// Damage to the file structure, or unexpected objects in the schema.
    pub async fn check(&self) -> Result<Vec<RegistryError>> {
        let contents = match (self.reader(), &self.inner.write_access) {
            (Pool::Sqlite(reader), _) => {
                let (structure, contents) = sqlite::integrity_findings(reader).await?;
                if !structure.is_empty() {
                    return Err(RegistryError::Database(DatabaseError::Damaged {
                        detail: structure.join("; "),
                    }));
                }
                contents
            }
            (_, WriteAccess::Postgres(lock)) => {
                lock.refuse_foreign(self.reader()).await?;
                Vec::new()
            }
            _ => Vec::new(),
        };
        let damaged = self.damaged_records().await?;
        // A damaged value usually damages its record, which is then reported. Otherwise the finding itself is reported.
        if damaged.is_empty() && !contents.is_empty() {
            let detail = contents.join("; ");
            return Ok(vec![RegistryError::Database(DatabaseError::Damaged { detail })]);
        }
        Ok(damaged)
    }

    /// The same registry with separate connections for reading: long queries of other readers do not block this clone.
    #[must_use]
    pub fn with_separate_reader(&self) -> Self {
        Self {
            uses_separate_reader: true,
            ..self.clone()
        }
    }

    pub(crate) fn reader(&self) -> &Pool {
        match self.uses_separate_reader {
            true => &self.inner.separate_reader,
            false => &self.inner.reader,
        }
    }

    pub(crate) fn writer(&self) -> &Pool {
        &self.inner.writer
    }

    pub(crate) fn action(&self) -> Option<&Action> {
        self.action.as_deref()
    }

    pub(crate) fn acting_as(&self, action: Action) -> Self {
        Self {
            action: Some(Arc::new(action)),
            ..self.clone()
        }
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.inner.keys.sealer
    }

    pub(crate) fn authenticator(&self) -> &RecordAuthenticator {
        &self.inner.keys.authenticator
    }

    pub(crate) fn fingerprint_keys(&self) -> &FingerprintKeys {
        &self.inner.keys.fingerprints
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    pub(crate) fn schedule(&self) -> &CounterSchedule {
        &self.inner.schedule
    }

    /// Begins a writing transaction. No other writing transaction runs at the same time, in this process or in another
    /// process. A moved registry permits the transaction, too.
    pub(crate) async fn write_even_if_moved(&self) -> Result<Transaction> {
        let mut observer = self.inner.monitor.get().and_then(|monitor| monitor.observer());
        let transaction = match (&self.inner.writer, &self.inner.write_access) {
            (Pool::Sqlite(writer), WriteAccess::Sqlite(guard)) => guard.begin(writer).await?,
            (Pool::Postgres(writer), WriteAccess::Postgres(lock)) => lock.begin(writer).await?.into(),
            // Pool and write access are always of one database.
            _ => return Err(RegistryError::Database(DatabaseError::Locked)),
        };
        if let Some(observer) = &mut observer {
            observer.started();
        }
        Ok(transaction.observed_by(observer))
    }

    /// Begins a writing transaction, unless the registry was moved. A user action is recorded in the same
    /// transaction.
    pub(crate) async fn write(&self) -> Result<Transaction> {
        let mut transaction = self.write_even_if_moved().await?;
        self.refuse_moved(&mut transaction).await?;
        self.record_action(&mut transaction).await?;
        Ok(transaction)
    }

    /// Checks that the registry responds and was not moved.
    ///
    /// # Errors
    /// A moved registry, or a failure of the database.
    pub async fn check_available(&self) -> Result<()> {
        let mut connection = self.reader().acquire().await?;
        self.refuse_moved(&mut connection).await
    }

    pub(crate) async fn refuse_moved(&self, connection: &mut Connection) -> Result<()> {
        self.refuse_moved_except_to(connection, None).await
    }

    /// Refuses a moved registry, unless it was moved to `target` and that move may be incomplete.
    pub(crate) async fn refuse_moved_except_to(
        &self,
        connection: &mut Connection,
        target: Option<&Location>,
    ) -> Result<()> {
        let (moved_to, completed): (Option<String>, i64) =
            sql::query("SELECT moved_to, move_completed FROM registry")
                .fetch_one(connection)
                .await?;
        let may_repeat = |to: &str| completed == 0 && target.is_some_and(|target| target.to_string() == to);
        match moved_to {
            None => Ok(()),
            Some(to) if may_repeat(&to) => Ok(()),
            Some(to) => Err(RegistryError::Open(OpenError::Moved {
                registry: self.location().cloned().unwrap_or_else(|| PathBuf::new().into()),
                to,
            })),
        }
    }
}

/// A registry that is being created in one transaction: the registry becomes visible completely or not at all.
pub(crate) enum Draft {
    Sqlite(sqlite::Draft),
    Postgres(postgres::Draft),
}

impl Draft {
    pub(crate) async fn begin(location: &Location, options: &Options) -> Result<Self> {
        Ok(match location {
            Location::Sqlite(path) => Self::Sqlite(sqlite::Draft::begin(path, options).await?),
            Location::Postgres(_) => Self::Postgres(postgres::Draft::begin(location).await?),
        })
    }

    pub(crate) fn connection(&mut self) -> Result<&mut Connection> {
        match self {
            Self::Sqlite(draft) => draft.connection(),
            Self::Postgres(draft) => Ok(draft.connection()),
        }
    }

    pub(crate) async fn finish(self) -> Result<()> {
        match self {
            Self::Sqlite(draft) => draft.finish().await,
            Self::Postgres(draft) => draft.finish().await,
        }
    }
}

impl From<sqlite::Connections> for Inner {
    fn from(opened: sqlite::Connections) -> Self {
        Self {
            location: None,
            writer: opened.writer,
            reader: opened.reader,
            separate_reader: opened.separate_reader,
            keys: opened.keys,
            write_access: WriteAccess::Sqlite(opened.guard),
            monitor: OnceLock::new(),
            storage: opened.storage,
            schedule: CounterSchedule::every(Options::default().storage_period),
        }
    }
}

impl From<postgres::Connections> for Inner {
    fn from(opened: postgres::Connections) -> Self {
        Self {
            location: None,
            writer: opened.writer,
            reader: opened.reader,
            separate_reader: opened.separate_reader,
            keys: opened.keys,
            write_access: WriteAccess::Postgres(opened.lock),
            monitor: OnceLock::new(),
            storage: opened.storage,
            schedule: CounterSchedule::every(Options::default().storage_period),
        }
    }
}

/// Initializes an empty schema: registry id and key check.
pub(crate) async fn initialize(connection: &mut Connection, key: &MasterKey) -> Result<Keys> {
    let mut registry_id = [0u8; 16];
    getrandom::fill(&mut registry_id).map_err(DatabaseError::NoRandomBytes)?;
    let keys = Keys::derive(key, &registry_id);
    let key_check = keys.sealer.seal(KEY_CHECK_AAD, KEY_CHECK_TEXT.len(), |out| {
        out.extend_from_slice(KEY_CHECK_TEXT)
    })?;
    sql::query("INSERT INTO registry (singleton, registry_id, key_check, revision) VALUES (1, $1, $2, 0)")
        .bind(registry_id.as_slice())
        .bind(key_check)
        .execute(connection)
        .await?;
    Ok(keys)
}

/// The identity of a registry and its copies: registry id and key check.
type RegistryIdentity = (Vec<u8>, Vec<u8>);

async fn registry_identity(connection: &mut Connection) -> Result<Option<RegistryIdentity>> {
    let identity = sql::query("SELECT registry_id, key_check FROM registry").fetch_optional(connection);
    Ok(identity.await?)
}

/// Whether the registry at `location` is a copy of the registry of this connection, or the same registry.
pub(crate) async fn is_copy_of(connection: &mut Connection, location: &Location) -> Result<bool> {
    let mut other = match location {
        Location::Sqlite(path) => sqlite::open_read_only(path).await?,
        Location::Postgres(_) => postgres::open_read_only(location).await?,
    };
    let other_identity = registry_identity(&mut other).await;
    other.close().await?;
    Ok(registry_identity(connection).await? == other_identity?)
}

/// The registry's keys; an error if `key` is not its master key.
pub(crate) async fn check_key(
    connection: &mut Connection,
    registry: &Location,
    key: &MasterKey,
) -> Result<Keys> {
    let identity = registry_identity(connection)
        .await
        .map_err(with_location(registry))?;
    let (registry_id, key_check) = identity.ok_or_else(|| {
        RegistryError::Open(OpenError::Open {
            registry: registry.clone(),
            source: Box::new(RegistryError::Database(DatabaseError::Damaged {
                detail: "the key check is missing".to_owned(),
            })),
        })
    })?;
    let keys = Keys::derive(key, &registry_id);
    match keys.sealer.open(KEY_CHECK_AAD, &key_check) {
        Ok(text) if text.as_slice() == KEY_CHECK_TEXT => Ok(keys),
        _ => Err(RegistryError::Open(OpenError::WrongMasterKey {
            registry: registry.clone(),
        })),
    }
}

/// Adds the location to an error of opening a registry.
pub(crate) fn with_location<E: Into<RegistryError>>(
    registry: impl Into<Location>,
) -> impl FnOnce(E) -> RegistryError {
    let registry = registry.into();
    move |error| {
        RegistryError::Open(OpenError::Open {
            registry,
            source: Box::new(error.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::{DeviceId, Suite};
    use linewarden_protocol::keys::RowKey;

    use super::*;
    use crate::error::BulkError;
    use crate::sqlite::APPLICATION_ID;
    use crate::{BulkOptions, Credentials, DeviceFilter, DeviceRecord, PoolRow};

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

    async fn set(registry: &Registry, pragma: &'static str) {
        let _: (i64,) = sql::query(pragma)
            .fetch_one(&registry.inner.writer)
            .await
            .unwrap();
    }

    /// SQLite's page limit simulates a full disk: it fails at the same point with the same code.
    #[test]
    async fn a_full_disk_keeps_whole_chunks_and_the_registry_usable() {
        let directory = tempfile::tempdir().unwrap();
        let key = MasterKey::from_bytes([1; 32]);
        let registry = Registry::create(directory.path().join("registry"), &key)
            .await
            .unwrap();
        set(&registry, "PRAGMA max_page_count = 90").await;
        let options = BulkOptions {
            chunk_devices: 50,
            ..BulkOptions::default()
        };
        let error = registry
            .enroll_bulk((1..=2000).map(device), options, |_| ())
            .await
            .unwrap_err();
        let RegistryError::Bulk(BulkError::ChunkRefused {
            committed, source, ..
        }) = error
        else {
            panic!("{error}")
        };
        assert!(
            matches!(*source, RegistryError::Database(DatabaseError::DiskFull)),
            "{source}"
        );
        assert!(committed > 0 && committed % 50 == 0, "{committed}");
        assert_eq!(registry.count(&DeviceFilter::default()).await.unwrap(), committed);
        assert!(registry.check().await.unwrap().is_empty());

        set(&registry, "PRAGMA max_page_count = 1000000").await;
        registry.enroll(device(committed + 1)).await.unwrap();
    }

    /// SQLite rolls back itself when a commit fails because of a full disk or a failed sync.
    #[test]
    async fn transactions_work_after_sqlite_has_rolled_one_back() {
        let directory = tempfile::tempdir().unwrap();
        let key = MasterKey::from_bytes([1; 32]);
        let registry = Registry::create(directory.path().join("registry"), &key)
            .await
            .unwrap();
        for id in 1..=3 {
            let mut transaction = registry.write().await.unwrap();
            sql::query("ROLLBACK").execute(&mut *transaction).await.unwrap();
            assert!(transaction.commit().await.is_err());
            registry.enroll(device(id)).await.unwrap();
        }
        assert_eq!(registry.count(&DeviceFilter::default()).await.unwrap(), 3);
    }

    #[test]
    async fn a_new_file_has_the_settings_for_durability() {
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
                let (value,): (i64,) = sql::query(query).fetch_one(&mut connection).await.unwrap();
                value
            };
            assert_eq!(pragma("PRAGMA page_size").await, 4096);
            assert_eq!(pragma("PRAGMA application_id").await, i64::from(APPLICATION_ID));
            assert_eq!(pragma("PRAGMA foreign_keys").await, 1);
            assert_eq!(pragma("PRAGMA synchronous").await, 2, "FULL");
            let (mode,): (String,) = sql::query("PRAGMA journal_mode")
                .fetch_one(&mut connection)
                .await
                .unwrap();
            assert_eq!(mode, "wal");
        }
    }
}
