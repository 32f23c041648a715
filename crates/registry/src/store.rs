//! Opening, making and closing a registry, whatever it lies in.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use linewarden_files::seal::{Sealer, derive_key};
use log::LevelFilter;

use crate::error::{RegistryError, Result};
use crate::fingerprint::FingerprintKeys;
use crate::key::MasterKey;
use crate::location::Location;
use crate::postgres::{self, WriteLock};
use crate::record_mac::RecordMac;
use crate::service::Act;
use crate::sql::{self, Connection, Pool, Transaction};
use crate::sqlite::{self, SchemaGuard};
use crate::storage::{Schedule, Storage};
use crate::watch::Watch;

/// What the key check seals.
const KEY_CHECK_TEXT: &[u8] = b"linewarden registry";
const KEY_CHECK_AAD: &[u8] = b"linewarden registry key check v1";
/// Statements are many, and say nothing to who looks for a fault at `debug`. Slow ones are warned of all the same.
pub(crate) const STATEMENTS_AT: LevelFilter = LevelFilter::Trace;
const SEALING_PURPOSE: &str = "linewarden registry sealing v1";
const MAC_PURPOSE: &str = "linewarden registry records v1";

/// The keys of one registry.
pub(crate) struct Keys {
    sealer: Sealer,
    record_mac: RecordMac,
    fingerprints: FingerprintKeys,
}

impl Keys {
    fn derive(key: &MasterKey, registry_id: &[u8]) -> Self {
        Self {
            sealer: Sealer::derive(key.expose(), registry_id, SEALING_PURPOSE),
            record_mac: RecordMac::new(&derive_key(key.expose(), registry_id, MAC_PURPOSE)),
            fingerprints: FingerprintKeys::derive(key, registry_id),
        }
    }
}

/// How a registry is opened; the defaults suit everything but tests and measurements.
#[derive(Clone, Debug)]
pub struct Options {
    /// SQLite: page size of a new file in bytes, a power of two from 512 to 65536.
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
    /// How long to wait for another program's lock, and for a connection to PostgreSQL.
    pub busy_timeout: Duration,
    /// Connections for reading beside the one for writing; as many again for who reads [apart](Registry::apart), once somebody does.
    pub readers: u32,
    /// SQLite: time between two leases that raise the count of the storage. A restore of a backup is detected if the registry has leased
    /// that long after the backup, or was closed after a lease.
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
    /// Whose hands it is in.
    act: Option<Arc<Act>>,
    /// It reads by connections of its own.
    is_apart: bool,
}

struct Inner {
    /// `None` in memory.
    location: Option<Location>,
    writer: Pool,
    reader: Pool,
    /// For who must not wait for who reads much.
    reader_apart: Pool,
    keys: Keys,
    writing: Writing,
    watch: OnceLock<Box<dyn Watch>>,
    storage: Storage,
    schedule: Schedule,
}

/// What it takes to write alone.
enum Writing {
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
    /// Opens an existing registry and brings its schema up to this program's.
    ///
    /// # Errors
    /// Nothing there, something else, a newer schema, one with triggers, views or anything else that no migration
    /// makes, the wrong master key, a locked or damaged database, one that cannot be written or reached. Nothing is changed in any
    /// of these cases.
    pub async fn open(location: impl Into<Location>, key: &MasterKey) -> Result<Self> {
        Self::open_with(location, key, &Options::default()).await
    }

    /// [`Registry::open`] with other than the default options.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn open_with(
        location: impl Into<Location>,
        key: &MasterKey,
        options: &Options,
    ) -> Result<Self> {
        Self::open_but_moved(location.into(), key, options, None).await
    }

    /// [`Registry::open`] of one that is to be moved to `target`: also if it gives nothing out any more because it was to be moved there
    /// before, and it is not known that it came there. That move is ended by repeating it.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn open_to_move(
        location: impl Into<Location>,
        key: &MasterKey,
        target: &Location,
    ) -> Result<Self> {
        Self::open_but_moved(location.into(), key, &Options::default(), Some(target)).await
    }

    async fn open_but_moved(
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
                schedule: Schedule::every(options.storage_period),
                ..inner
            }),
            act: None,
            is_apart: false,
        };
        let mut connection = registry.reader().acquire().await?;
        registry.refuse_moved_but_to(&mut connection, target).await?;
        drop(connection);
        // One that is to be moved keeps what it has.
        if target.is_none() {
            registry.note_storage().await?;
        }
        Ok(registry)
    }

    /// Whether [`Registry::open`] would find a registry of this key that this program knows; nothing is changed.
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

    /// Makes a new, empty registry and opens it: a file, readable by its owner only, or the tables in a database that is
    /// there already. All of it appears, or nothing.
    ///
    /// # Errors
    /// Something is there already, or the directory or database cannot be written or reached.
    pub async fn create(location: impl Into<Location>, key: &MasterKey) -> Result<Self> {
        Self::create_with(location, key, &Options::default()).await
    }

    /// [`Registry::create`] with other than the default options.
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
        initialise(draft.connection()?, key)
            .await
            .map_err(at(&location))?;
        draft.finish().await?;
        Self::open_with(location, key, options).await
    }

    /// Opens the registry there, or makes it if nothing is there.
    ///
    /// # Errors
    /// As [`Registry::open`] and [`Registry::create`].
    pub async fn open_or_create(location: impl Into<Location>, key: &MasterKey) -> Result<Self> {
        let location = location.into();
        match Self::open(&location, key).await {
            Err(RegistryError::NoRegistry { .. }) => match Self::create(&location, key).await {
                // Another program was faster.
                Err(RegistryError::AlreadyExists { .. }) => Self::open(location, key).await,
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
        let opened = sqlite::in_memory(key).await?;
        Ok(Self {
            inner: Arc::new(opened.into()),
            act: None,
            is_apart: false,
        })
    }

    /// Where it is; `None` for a registry in memory.
    #[must_use]
    pub fn location(&self) -> Option<&Location> {
        self.inner.location.as_ref()
    }

    /// Has `watch` know how transactions go, of all clones, from now on. The first one stays.
    pub fn watch(&self, watch: impl Watch + 'static) {
        let _ = self.inner.watch.set(Box::new(watch));
    }

    /// Waits for what is under way and ends all connections, for all clones. SQLite folds its write-ahead log into the file.
    /// Leases since the last count of the storage raise that count first.
    pub async fn close(self) {
        self.advance_at_close().await;
        self.inner.reader.close().await;
        self.inner.reader_apart.close().await;
        self.inner.writer.close().await;
    }

    /// Checks the database's structure and opens every sealed record. Reads everything: seconds per 10^5 devices.
    ///
    /// Returns the damaged records; none means that all is well.
    ///
    /// # Errors
    /// Damage to the file's structure, or anything in the schema that no migration makes.
    pub async fn check(&self) -> Result<Vec<RegistryError>> {
        let contents = match (self.reader(), &self.inner.writing) {
            (Pool::Sqlite(reader), _) => {
                let (structure, contents) = sqlite::findings(reader).await?;
                if !structure.is_empty() {
                    return Err(RegistryError::Damaged {
                        detail: structure.join("; "),
                    });
                }
                contents
            }
            (_, Writing::Postgres(lock)) => {
                lock.refuse_foreign(self.reader()).await?;
                Vec::new()
            }
            _ => Vec::new(),
        };
        let damaged = self.damaged_records().await?;
        // What a value breaks is told by its record, unless its record bears it.
        if damaged.is_empty() && !contents.is_empty() {
            let detail = contents.join("; ");
            return Ok(vec![RegistryError::Damaged { detail }]);
        }
        Ok(damaged)
    }

    /// The same registry, read by connections of its own: what others ask, however much, keeps it from none.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            is_apart: true,
            ..self.clone()
        }
    }

    pub(crate) fn reader(&self) -> &Pool {
        match self.is_apart {
            true => &self.inner.reader_apart,
            false => &self.inner.reader,
        }
    }

    pub(crate) fn writer(&self) -> &Pool {
        &self.inner.writer
    }

    pub(crate) fn act(&self) -> Option<&Act> {
        self.act.as_deref()
    }

    pub(crate) fn with_act(&self, act: Act) -> Self {
        Self {
            act: Some(Arc::new(act)),
            ..self.clone()
        }
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.inner.keys.sealer
    }

    pub(crate) fn record_mac(&self) -> &RecordMac {
        &self.inner.keys.record_mac
    }

    pub(crate) fn fingerprint_keys(&self) -> &FingerprintKeys {
        &self.inner.keys.fingerprints
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.inner.schedule
    }

    /// Begins a transaction that may write; no other one does while it lasts, of this process or another.
    pub(crate) async fn write_whatever(&self) -> Result<Transaction> {
        let mut watched = self.inner.watch.get().and_then(|watch| watch.wanted());
        let transaction = match (&self.inner.writer, &self.inner.writing) {
            (Pool::Sqlite(writer), Writing::Sqlite(guard)) => guard.begin(writer).await?,
            (Pool::Postgres(writer), Writing::Postgres(lock)) => lock.begin(writer).await?.into(),
            // No other pair is made.
            _ => return Err(RegistryError::Locked),
        };
        if let Some(watched) = &mut watched {
            watched.begun();
        }
        Ok(transaction.watched_by(watched))
    }

    /// The same, unless the registry was moved elsewhere. What somebody does is in the journal with it.
    pub(crate) async fn write(&self) -> Result<Transaction> {
        let mut transaction = self.write_whatever().await?;
        self.refuse_moved(&mut transaction).await?;
        self.journal_act(&mut transaction).await?;
        Ok(transaction)
    }

    /// It answers, and was not moved elsewhere.
    ///
    /// # Errors
    /// That it was, or a failure of the database.
    pub async fn is_in_place(&self) -> Result<()> {
        let mut connection = self.reader().acquire().await?;
        self.refuse_moved(&mut connection).await
    }

    pub(crate) async fn refuse_moved(&self, connection: &mut Connection) -> Result<()> {
        self.refuse_moved_but_to(connection, None).await
    }

    /// The same, unless that is where it was to be moved to, and nobody knows whether it came there.
    pub(crate) async fn refuse_moved_but_to(
        &self,
        connection: &mut Connection,
        target: Option<&Location>,
    ) -> Result<()> {
        let (to, has_ended): (Option<String>, i64) = sql::query("SELECT moved_to, move_ended FROM registry")
            .fetch_one(connection)
            .await?;
        let is_open = |to: &str| has_ended == 0 && target.is_some_and(|target| target.to_string() == to);
        match to {
            None => Ok(()),
            Some(to) if is_open(&to) => Ok(()),
            Some(to) => Err(RegistryError::Moved {
                registry: self.location().cloned().unwrap_or_else(|| PathBuf::new().into()),
                to,
            }),
        }
    }
}

/// A registry that is being filled, in a transaction: it is there when that is over, whole, or never.
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

impl From<sqlite::Opened> for Inner {
    fn from(opened: sqlite::Opened) -> Self {
        Self {
            location: None,
            writer: opened.writer,
            reader: opened.reader,
            reader_apart: opened.reader_apart,
            keys: opened.keys,
            writing: Writing::Sqlite(opened.guard),
            watch: OnceLock::new(),
            storage: opened.storage,
            schedule: Schedule::every(Options::default().storage_period),
        }
    }
}

impl From<postgres::Opened> for Inner {
    fn from(opened: postgres::Opened) -> Self {
        Self {
            location: None,
            writer: opened.writer,
            reader: opened.reader,
            reader_apart: opened.reader_apart,
            keys: opened.keys,
            writing: Writing::Postgres(opened.lock),
            watch: OnceLock::new(),
            storage: opened.storage,
            schedule: Schedule::every(Options::default().storage_period),
        }
    }
}

/// Fills an empty schema: registry id, key check.
pub(crate) async fn initialise(connection: &mut Connection, key: &MasterKey) -> Result<Keys> {
    let mut registry_id = [0u8; 16];
    getrandom::fill(&mut registry_id).map_err(RegistryError::Entropy)?;
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

/// What a registry and its copies have, and no other: its id and its key check.
type Origin = (Vec<u8>, Vec<u8>);

async fn origin(connection: &mut Connection) -> Result<Option<Origin>> {
    let found = sql::query("SELECT registry_id, key_check FROM registry").fetch_optional(connection);
    Ok(found.await?)
}

/// Whether what is at `location` is a copy of the registry of this connection, or that itself.
pub(crate) async fn is_copied_to(connection: &mut Connection, location: &Location) -> Result<bool> {
    let mut other = match location {
        Location::Sqlite(path) => sqlite::reading(path).await?,
        Location::Postgres(_) => postgres::reading(location).await?,
    };
    let theirs = origin(&mut other).await;
    other.close().await?;
    Ok(origin(connection).await? == theirs?)
}

/// The registry's keys, if it was made with this one.
pub(crate) async fn check_key(
    connection: &mut Connection,
    registry: &Location,
    key: &MasterKey,
) -> Result<Keys> {
    let found = origin(connection).await.map_err(at(registry))?;
    let (registry_id, key_check) = found.ok_or_else(|| RegistryError::Open {
        registry: registry.clone(),
        source: Box::new(RegistryError::Damaged {
            detail: "its key check is gone".to_owned(),
        }),
    })?;
    let keys = Keys::derive(key, &registry_id);
    match keys.sealer.open(KEY_CHECK_AAD, &key_check) {
        Ok(text) if text.as_slice() == KEY_CHECK_TEXT => Ok(keys),
        _ => Err(RegistryError::WrongMasterKey {
            registry: registry.clone(),
        }),
    }
}

/// Adds where the registry is to an error met while opening it.
pub(crate) fn at<E: Into<RegistryError>>(registry: impl Into<Location>) -> impl FnOnce(E) -> RegistryError {
    let registry = registry.into();
    move |error| RegistryError::Open {
        registry,
        source: Box::new(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::ids::{DeviceId, Suite};
    use linewarden_protocol::keys::RowKey;

    use super::*;
    use crate::sqlite::APPLICATION_ID;
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

    async fn set(registry: &Registry, pragma: &'static str) {
        let _: (i64,) = sql::query(pragma)
            .fetch_one(&registry.inner.writer)
            .await
            .unwrap();
    }

    /// SQLite's own limit of pages stands for a full disk: it fails in the same place with the same code.
    #[tokio::test]
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

        set(&registry, "PRAGMA max_page_count = 1000000").await;
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
            sql::query("ROLLBACK").execute(&mut *transaction).await.unwrap();
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
