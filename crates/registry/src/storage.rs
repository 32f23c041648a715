//! Detection of a registry that was restored to an earlier state, so that no row is leased a second time (LAP/1
//! 1.4.6).
//!
//! The registry records its *storage*: the identity of the database from which gateways were served last. For SQLite
//! this identity is a random number, stored in the database and in files beside the database ([`mod@file`]). For
//! PostgreSQL it consists of system identifier, timeline and table. The storage of a copy is recorded as "copy". The
//! first registration of a gateway at a different storage begins a new *incarnation*: all leases end, and earlier
//! fencing tokens are refused. Row statements of devices show which rows were used after the earlier state
//! ([`LeaseRequest::statement`](crate::LeaseRequest)).
//!
//! The storage is recorded when the registry is opened for the first time, before the first lease. A restore of the whole
//! machine or of the whole directory is not detected.

mod file;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use self::file::{FileStorage, StorageFiles, StorageTag, remove_stale_record};
use crate::error::{DatabaseError, FencingError, RegistryError, Result};
use crate::gateway::FencingToken;
use crate::sql::{self, Connection};
use crate::store::Registry;

/// Returns system identifier, timeline and the id of the table `registry`. The system identifier is stored in the
/// server's files, the timeline changes with a recovery or promotion, and the id changes when the table is created
/// again.
pub(crate) const POSTGRES_STORAGE_QUERY: &str = "SELECT CAST((SELECT system_identifier FROM pg_control_system()) AS TEXT) || ' ' \
     || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || ' ' || CAST(CAST(to_regclass('registry') AS oid) AS TEXT)";
/// The recorded storage of a copy.
const COPY: &str = "copy";
/// The recorded storage if the database role may not execute the query.
const UNKNOWN: &str = "unnamed";
/// PostgreSQL's error codes if the functions may not be called, or do not exist.
const NOT_PERMITTED_CODES: [&str; 2] = ["42501", "42883"];
/// The storage of an in-memory registry.
pub(crate) const MEMORY: &str = "memory";
/// Maximum increment of the incarnation: two incarnations that start from the same copy differ with a probability of
/// 1 - 1/65536.
const INCARNATION_STEP_MAX: u32 = 1 << 16;
/// Time after a failure to record the storage until leases raise the counter again.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Number of bits of the fencing tokens of one incarnation.
const FENCING_TOKEN_BITS: u32 = 32;
/// Maximum incarnation: the fencing tokens of this incarnation still fit a BIGINT.
const INCARNATION_MAX: u32 = i32::MAX.cast_unsigned();

/// The source of the current storage.
#[derive(Debug)]
pub(crate) enum Storage {
    /// Constant while the registry is open.
    Fixed(String),
    /// Queried from the database for each comparison: a standby may have been promoted.
    Queried,
    /// Read from the files beside the database for each comparison: another process may have recorded a new storage.
    File(FileStorage),
}

/// The current storage.
enum CurrentStorage {
    Named(String),
    File(StorageFiles),
}

impl Storage {
    /// The storage of a PostgreSQL database. If the query is not permitted, a restore is not detected.
    ///
    /// # Errors
    /// Any other failure. A temporary failure must not look like a different storage.
    pub(crate) async fn of_database(connection: &mut Connection) -> Result<Self> {
        let result: std::result::Result<(Option<String>,), sqlx::Error> =
            sql::query(POSTGRES_STORAGE_QUERY).fetch_one(connection).await;
        // The result is NULL if the table does not exist yet.
        let Err(error) = result else {
            return Ok(Self::Queried);
        };
        let code = error.as_database_error().and_then(|error| error.code());
        if !code.is_some_and(|code| NOT_PERMITTED_CODES.contains(&&*code)) {
            return Err(error.into());
        }
        log::warn!(
            "determining the registry's storage failed: {error}; a recovery to an earlier time is not detected; \
             GRANT EXECUTE ON FUNCTION pg_control_system(), pg_walfile_name(pg_lsn), pg_current_wal_lsn() to the registry's user"
        );
        Ok(Self::Fixed(UNKNOWN.to_owned()))
    }

    /// The current storage. Call this function before you read the record in the database: the files beside the database
    /// are then never newer than that record.
    async fn current(&self, connection: &mut Connection) -> Result<CurrentStorage> {
        match self {
            Self::Fixed(name) => Ok(CurrentStorage::Named(name.clone())),
            Self::Queried => {
                let (name,): (Option<String>,) =
                    sql::query(POSTGRES_STORAGE_QUERY).fetch_one(connection).await?;
                Ok(CurrentStorage::Named(name.unwrap_or_default()))
            }
            Self::File(file) => file.read().map(CurrentStorage::File),
        }
    }

    /// Records that gateways are served from this storage; returns whether its name could be recorded.
    async fn record(&self, connection: &mut Connection) -> Result<bool> {
        let name = match (self.current(connection).await?, self) {
            (CurrentStorage::Named(name), _) => name,
            (CurrentStorage::File(_), Self::File(file)) => match file.begin(StorageTag::random()?) {
                Ok(tag) => tag.to_string(),
                Err(error) => {
                    log::warn!(
                        "recording the storage of the registry failed: {error}; a file that is put in the registry's place is \
                         detected only if it was created with `linewarden registry backup`; make the registry's directory writable"
                    );
                    UNKNOWN.to_owned()
                }
            },
            (CurrentStorage::File(_), _) => UNKNOWN.to_owned(),
        };
        write_storage(connection, &name).await?;
        Ok(name != UNKNOWN)
    }
}

/// Writes the storage into the database.
pub(crate) async fn write_storage(connection: &mut Connection, storage: &str) -> Result<()> {
    sql::query("UPDATE registry SET storage = $1")
        .bind(storage.to_owned())
        .execute(connection)
        .await?;
    Ok(())
}

/// Marks the database as a copy: the first registration at the copy begins a new incarnation.
pub(crate) async fn mark_as_copy(connection: &mut Connection) -> Result<()> {
    write_storage(connection, COPY).await
}

/// Clears the recorded storage, so that the next open records the storage. Leases and fencing tokens remain valid.
pub(crate) async fn clear_storage(connection: &mut Connection) -> Result<()> {
    sql::query("UPDATE registry SET storage = NULL")
        .execute(connection)
        .await?;
    Ok(())
}

/// The update of the files beside the database that must follow the commit.
#[derive(Debug)]
#[must_use = "the storage counter must be updated after the commit"]
pub(crate) enum CounterAdvance {
    /// Raise the counter to the counter of this tag.
    To(StorageTag),
    /// No update is necessary.
    Recorded,
    /// The storage could not be recorded.
    Unrecorded,
}

/// The comparison of the recorded storage with the current storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorageMatch {
    /// Gateways were most recently served from this storage, as far as known.
    Same,
    /// No storage is recorded, and nothing indicates a change.
    Unrecorded,
    /// The registry is a copy, or was restored to an earlier state.
    Different,
}

impl StorageMatch {
    fn of(recorded: Option<&str>, current: &CurrentStorage) -> Self {
        match (recorded, current) {
            (Some(recorded), CurrentStorage::Named(name)) if recorded == name => Self::Same,
            (Some(COPY), _) => Self::Different,
            // Files beside the database have a record, but the database has none: the database is older.
            (None | Some(UNKNOWN), CurrentStorage::File(files)) if files.has_record() => Self::Different,
            // No rows were leased yet, or the storage could not be determined before.
            (None | Some(UNKNOWN), _) => Self::Unrecorded,
            (Some(recorded), CurrentStorage::File(files)) => {
                match StorageTag::parse(recorded).is_some_and(|tag| files.matches(tag)) {
                    true => Self::Same,
                    false => Self::Different,
                }
            }
            // This process may not query the storage; the process that recorded the storage was permitted to.
            (Some(_), CurrentStorage::Named(name)) if name == UNKNOWN => Self::Same,
            (Some(_), CurrentStorage::Named(_)) => Self::Different,
        }
    }
}

/// The number before the first fencing token of the incarnation.
pub(crate) fn fencing_token_base(incarnation: u32) -> u64 {
    u64::from(incarnation) << FENCING_TOKEN_BITS
}

/// Whether a fencing token is of another incarnation.
fn is_other_incarnation(fencing_token: u64, incarnation: u32) -> bool {
    fencing_token >> FENCING_TOKEN_BITS != u64::from(incarnation)
}

/// Determines when a lease of this process raises the counter of the storage.
#[derive(Debug)]
pub(crate) struct CounterSchedule {
    period: Duration,
    state: Mutex<CounterScheduleState>,
}

#[derive(Debug, Default)]
struct CounterScheduleState {
    /// Time of the next increment; `None`: immediately.
    due: Option<Instant>,
    /// Whether a lease has changed since the counter was raised.
    has_unrecorded_lease: bool,
}

impl CounterSchedule {
    pub(crate) fn every(period: Duration) -> Self {
        Self {
            period,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, CounterScheduleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the current transaction, which changes leases, must raise the counter. If not, the lease is noted as
    /// unrecorded.
    fn is_due_for_lease(&self) -> bool {
        let mut state = self.state();
        let is_due = state.due.is_none_or(|due| Instant::now() >= due);
        state.has_unrecorded_lease |= !is_due;
        is_due
    }

    /// Schedules the next increment after the counter was raised.
    fn record_raised(&self, is_recorded: bool) {
        let delay = match is_recorded {
            true => self.period,
            false => RETRY_INTERVAL.max(self.period),
        };
        *self.state() = CounterScheduleState {
            due: Instant::now().checked_add(delay),
            has_unrecorded_lease: false,
        };
    }

    fn has_unrecorded_lease(&self) -> bool {
        self.state().has_unrecorded_lease
    }
}

impl Registry {
    /// Records the storage if none is recorded, because the registry was just created or moved here. Restores of later
    /// backups are then detected.
    pub(crate) async fn record_storage(&self) -> Result<()> {
        let mut connection = self.reader().acquire().await?;
        if self.is_storage_recorded(&mut connection).await? {
            return Ok(());
        }
        drop(connection);
        let mut transaction = self.write_even_if_moved().await?;
        self.refuse_moved(&mut transaction).await?;
        if !self.is_storage_recorded(&mut transaction).await? {
            self.storage().record(&mut transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Whether a storage is recorded in the database, or was recorded there before a restore.
    async fn is_storage_recorded(&self, connection: &mut Connection) -> Result<bool> {
        let current = self.storage().current(connection).await?;
        let (recorded,): (Option<String>,) = sql::query("SELECT storage FROM registry")
            .fetch_one(connection)
            .await?;
        Ok(recorded.is_some() || StorageMatch::of(None, &current) == StorageMatch::Different)
    }

    /// Calls [`Registry::advance_storage`] in a transaction that changes leases, at most once per
    /// [`Options::storage_period`](crate::Options). So leases after a backup raise the counter above the backup's counter.
    pub(crate) async fn advance_for_lease(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<CounterAdvance>> {
        match self.schedule().is_due_for_lease() {
            true => self.advance_storage(connection).await.map(Some),
            false => Ok(None),
        }
    }

    /// Completes [`Registry::advance_for_lease`] after the commit of its transaction.
    pub(crate) fn complete_lease_advance(&self, advance: Option<CounterAdvance>) {
        if let Some(advance) = advance {
            self.schedule().record_raised(self.complete_advance(advance));
        }
    }

    /// Raises the counter if leases have changed since the last increment. Earlier backups are then older, even if no
    /// lease follows.
    pub(crate) async fn advance_at_close(&self) {
        if !self.schedule().has_unrecorded_lease() {
            return;
        }
        let advance_storage = async {
            let mut transaction = self.write_even_if_moved().await?;
            self.refuse_moved(&mut transaction).await?;
            let (storage_match, _) = self.incarnation(&mut transaction).await?;
            if storage_match == StorageMatch::Different {
                return Ok(());
            }
            let advance = self.advance_storage(&mut transaction).await?;
            transaction.commit().await?;
            self.schedule().record_raised(self.complete_advance(advance));
            Ok(())
        };
        let result: Result<()> = advance_storage.await;
        if let Err(error) = result {
            log::warn!(
                "raising the counter of the registry's storage failed: {error}; a copy that was created within the last second, by other means than \
                 `linewarden registry backup`, may not be detected as older"
            );
        }
    }

    /// The comparison of the storage, and the incarnation.
    pub(crate) async fn incarnation(&self, connection: &mut Connection) -> Result<(StorageMatch, u32)> {
        // Another process may record the storage for the first time between the reads of files and database. A second
        // read then finds both records.
        match self.read_incarnation(connection).await? {
            (StorageMatch::Different, _) => self.read_incarnation(connection).await,
            incarnation => Ok(incarnation),
        }
    }

    async fn read_incarnation(&self, connection: &mut Connection) -> Result<(StorageMatch, u32)> {
        let current = self.storage().current(connection).await?;
        let (recorded, incarnation): (Option<String>, i64) =
            sql::query("SELECT storage, incarnation FROM registry")
                .fetch_one(&mut *connection)
                .await?;
        let incarnation = u32::try_from(incarnation).unwrap_or(INCARNATION_MAX);
        Ok((StorageMatch::of(recorded.as_deref(), &current), incarnation))
    }

    /// Raises the counter in the database, so that an earlier copy of the database is older than the files beside the database.
    /// Called in a transaction with leases or a registration. Records the storage if none is recorded yet.
    pub(crate) async fn advance_storage(&self, connection: &mut Connection) -> Result<CounterAdvance> {
        let (recorded,): (Option<String>,) = sql::query("SELECT storage FROM registry")
            .fetch_one(&mut *connection)
            .await?;
        let next = match (self.storage(), recorded.as_deref()) {
            (storage, None | Some(UNKNOWN)) => {
                return Ok(match storage.record(connection).await? {
                    true => CounterAdvance::Recorded,
                    false => CounterAdvance::Unrecorded,
                });
            }
            (Storage::File(_), Some(recorded)) => StorageTag::parse(recorded).and_then(StorageTag::next),
            _ => None,
        };
        let Some(tag) = next else {
            return Ok(CounterAdvance::Recorded);
        };
        write_storage(connection, &tag.to_string()).await?;
        Ok(CounterAdvance::To(tag))
    }

    /// Updates the files beside the database after the commit. Returns whether the files are up to date.
    pub(crate) fn complete_advance(&self, advance: CounterAdvance) -> bool {
        let (file, tag) = match (advance, self.storage()) {
            (CounterAdvance::To(tag), Storage::File(file)) => (file, tag),
            (CounterAdvance::Unrecorded, _) => return false,
            _ => return true,
        };
        let written = file.advance(tag);
        if let Err(error) = &written {
            log::warn!(
                "recording the storage of the registry failed: {error}; a copy that was created by other means than \
                 `linewarden registry backup` may not be detected as older"
            );
        }
        written.is_ok()
    }

    /// Refuses a fencing token from before a restore.
    pub(crate) async fn refuse_restored(
        &self,
        connection: &mut Connection,
        fencing_token: &FencingToken,
    ) -> Result<()> {
        let (storage_match, incarnation) = self.incarnation(connection).await?;
        // Token 0 means no registration.
        match storage_match != StorageMatch::Different
            && (fencing_token.number() == 0 || !is_other_incarnation(fencing_token.number(), incarnation))
        {
            true => Ok(()),
            false => Err(RegistryError::Fencing(FencingError::RegistryRestored {
                gateway: fencing_token.gateway(),
            })),
        }
    }

    /// Begins a new incarnation if the current storage differs from the recorded storage; called before each
    /// registration. Returns the current incarnation.
    pub(crate) async fn ensure_incarnation(&self, connection: &mut Connection) -> Result<u32> {
        let (storage_match, incarnation) = self.incarnation(connection).await?;
        match storage_match {
            StorageMatch::Same => return Ok(incarnation),
            StorageMatch::Unrecorded => {
                self.storage().record(connection).await?;
                return Ok(incarnation);
            }
            StorageMatch::Different => {}
        }
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(DatabaseError::NoRandomBytes)?;
        let step = 1 + u32::from_be_bytes(random) % INCARNATION_STEP_MAX;
        let next = incarnation.saturating_add(step).min(INCARNATION_MAX);
        // Sessions end with the leases. A recorded newest session of a later time would suppress reports of new
        // sessions.
        for statement in [
            "DELETE FROM lease",
            "DELETE FROM unleased_range",
            "DELETE FROM newest_session",
        ] {
            sql::query(statement).execute(&mut *connection).await?;
        }
        sql::query("UPDATE registry SET incarnation = $1")
            .bind(i64::from(next))
            .execute(&mut *connection)
            .await?;
        self.storage().record(connection).await?;
        log::warn!(
            "the registry is a copy, or was restored to an earlier state: all leases have ended, and devices must authenticate again; \
             repeat revocations, quarantines and removed pairs since the copy"
        );
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leases do not end when the database temporarily does not permit the query. In a copy, leases always end.
    #[test]
    fn only_a_copy_or_another_name_is_a_different_storage() {
        for (recorded, name, expected) in [
            (Some("a"), "a", StorageMatch::Same),
            (Some(UNKNOWN), UNKNOWN, StorageMatch::Same),
            (Some("a"), UNKNOWN, StorageMatch::Same),
            (None, "a", StorageMatch::Unrecorded),
            (None, UNKNOWN, StorageMatch::Unrecorded),
            (Some(UNKNOWN), "a", StorageMatch::Unrecorded),
            (Some("a"), "b", StorageMatch::Different),
            (Some(COPY), "a", StorageMatch::Different),
            (Some(COPY), UNKNOWN, StorageMatch::Different),
        ] {
            let current = CurrentStorage::Named(name.to_owned());
            assert_eq!(
                StorageMatch::of(recorded, &current),
                expected,
                "{recorded:?}, {name}"
            );
        }
    }
}
