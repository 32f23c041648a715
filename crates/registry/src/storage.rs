//! Detecting that a registry was restored to an earlier state, so that no row is leased a second time (LAP/1 1.4.6).
//!
//! The registry records the storage from which gateways were served last. A copy that the registry makes is marked as a copy. For
//! SQLite the storage is a random number that lies in the database and beside it ([`file`]). For PostgreSQL the storage is the
//! system identifier, timeline and table. The first registration at a different storage begins a new *incarnation*: all leases end,
//! and earlier fences are refused. The devices state which rows were spent since ([`LeaseRequest::stated`](crate::LeaseRequest)).
//!
//! The first open notes the storage, before the first lease. Not detected: a machine or directory that is restored as a whole.

mod file;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use self::file::{FileStorage, Found, Tag, remove_left_record};
use crate::error::{RegistryError, Result};
use crate::gateway::Fence;
use crate::sql::{self, Connection};
use crate::store::Registry;

/// The server, its timeline and the table: the first stays with the server's files, the second changes when they are recovered
/// or promoted, the third when tables are made anew.
pub(crate) const POSTGRES_STORAGE: &str = "SELECT CAST((SELECT system_identifier FROM pg_control_system()) AS TEXT) || ' ' \
     || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || ' ' || CAST(CAST(to_regclass('registry') AS oid) AS TEXT)";
/// Of a copy, in place of its storage.
const COPY: &str = "copy";
/// Of a database whose storage cannot be determined.
const UNNAMED: &str = "unnamed";
/// What PostgreSQL says where its functions may not be called, or are none.
const NOT_TO_BE_ASKED: [&str; 2] = ["42501", "42883"];
/// Of a registry that vanishes with its process.
pub(crate) const MEMORY: &str = "memory";
/// How many numbers an incarnation leaves out at most: two that begin from the same copy differ, but for one time in so many.
const STEP_MAX: u32 = 1 << 16;
/// Until leases raise the count again where the record could not be written.
const RETRY: Duration = Duration::from_secs(60);
/// Fences of one incarnation, as a shift.
const FENCE_BITS: u32 = 32;
/// Fences fit SQL's numbers.
const INCARNATION_MAX: u32 = i32::MAX.cast_unsigned();

/// Where the storage of now is looked up.
#[derive(Debug)]
pub(crate) enum Storage {
    /// It stays while the registry is open.
    Fixed(String),
    /// The database says it each time: a standby may have taken its place.
    Asked,
    /// Beside the database, each time: another process may have recorded it anew.
    File(FileStorage),
}

/// The storage of now.
enum Now {
    Named(String),
    File(Found),
}

impl Storage {
    /// Of a database; one that may not be asked is taken for the same one always.
    ///
    /// # Errors
    /// Any other failure: which database it is must not depend on one.
    pub(crate) async fn of_database(connection: &mut Connection) -> Result<Self> {
        let said: std::result::Result<(Option<String>,), sqlx::Error> =
            sql::query(POSTGRES_STORAGE).fetch_one(connection).await;
        // NULL where the table is still to be made.
        let Err(error) = said else {
            return Ok(Self::Asked);
        };
        let code = error.as_database_error().and_then(|said| said.code());
        if !code.is_some_and(|code| NOT_TO_BE_ASKED.contains(&&*code)) {
            return Err(error.into());
        }
        log::warn!(
            "the database does not say which it is ({error}): a recovery to an earlier time is not noticed; \
             GRANT EXECUTE ON FUNCTION pg_control_system(), pg_walfile_name(pg_lsn), pg_current_wal_lsn() to the registry's user"
        );
        Ok(Self::Fixed(UNNAMED.to_owned()))
    }

    /// To be called before the record in the database is read: what lies beside the database is then never newer.
    async fn look(&self, connection: &mut Connection) -> Result<Now> {
        match self {
            Self::Fixed(name) => Ok(Now::Named(name.clone())),
            Self::Asked => {
                let (name,): (Option<String>,) = sql::query(POSTGRES_STORAGE).fetch_one(connection).await?;
                Ok(Now::Named(name.unwrap_or_default()))
            }
            Self::File(file) => file.read().map(Now::File),
        }
    }

    /// Records that gateways are served from this storage. Whether its name could be recorded.
    async fn begin(&self, connection: &mut Connection) -> Result<bool> {
        let name = match (self.look(connection).await?, self) {
            (Now::Named(name), _) => name,
            (Now::File(_), Self::File(file)) => match file.begin(Tag::draw()?) {
                Ok(tag) => tag.to_string(),
                Err(error) => {
                    log::warn!(
                        "recording the storage of the registry failed: {error}; a file that is put in the registry's place is \
                         detected only if `linewarden registry backup` has made it; make the registry's directory writable"
                    );
                    UNNAMED.to_owned()
                }
            },
            (Now::File(_), _) => UNNAMED.to_owned(),
        };
        note(connection, &name).await?;
        Ok(name != UNNAMED)
    }
}

/// Notes that gateways are served from there.
pub(crate) async fn note(connection: &mut Connection, storage: &str) -> Result<()> {
    sql::query("UPDATE registry SET storage = $1")
        .bind(storage.to_owned())
        .execute(connection)
        .await?;
    Ok(())
}

/// Notes that this is a copy: the first gateway that is served from it begins a new incarnation.
pub(crate) async fn note_copy(connection: &mut Connection) -> Result<()> {
    note(connection, COPY).await
}

/// Leaves the storage to the first open: leases and fences stay.
pub(crate) async fn forget(connection: &mut Connection) -> Result<()> {
    sql::query("UPDATE registry SET storage = NULL")
        .execute(connection)
        .await?;
    Ok(())
}

/// What lies beside the database has to follow once the transaction is committed.
#[derive(Debug)]
#[must_use = "the storage's count must follow"]
pub(crate) enum Advance {
    /// By this count.
    To(Tag),
    /// Nothing has to follow.
    Recorded,
    /// The storage could not be recorded.
    Unrecorded,
}

/// What the note says of the storage of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Gateways were served from it last, as far as it can be said.
    Here,
    /// It is not noted, and nothing says that it is another one than before.
    Unnoted,
    /// The registry is a copy, or was put back to an earlier state.
    Elsewhere,
}

impl Served {
    fn of(noted: Option<&str>, now: &Now) -> Self {
        match (noted, now) {
            (Some(noted), Now::Named(now)) if noted == now => Self::Here,
            (Some(COPY), _) => Self::Elsewhere,
            // A record that this content does not know of: the content is older.
            (None | Some(UNNAMED), Now::File(found)) if found.has_record() => Self::Elsewhere,
            // Nothing was leased yet, or the storage could not be determined until now.
            (None | Some(UNNAMED), _) => Self::Unnoted,
            (Some(noted), Now::File(found)) => match Tag::parse(noted).is_some_and(|tag| found.is_of(tag)) {
                true => Self::Here,
                false => Self::Elsewhere,
            },
            // Another process may ask it, or could before.
            (Some(_), Now::Named(now)) if now == UNNAMED => Self::Here,
            (Some(_), Now::Named(_)) => Self::Elsewhere,
        }
    }
}

/// The last fence of the incarnation before.
pub(crate) fn first_fence(incarnation: u32) -> u64 {
    u64::from(incarnation) << FENCE_BITS
}

/// Whether a fence was given in another incarnation.
fn is_foreign(fence: u64, incarnation: u32) -> bool {
    fence >> FENCE_BITS != u64::from(incarnation)
}

/// When the leases of this process raise the storage's count.
#[derive(Debug)]
pub(crate) struct Schedule {
    period: Duration,
    state: Mutex<ScheduleState>,
}

#[derive(Debug, Default)]
struct ScheduleState {
    /// `None`: at once.
    due: Option<Instant>,
    /// A lease was changed and the count was not raised after it.
    has_leased: bool,
}

impl Schedule {
    pub(crate) fn every(period: Duration) -> Self {
        Self {
            period,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ScheduleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the transaction that leases now raises the count.
    fn lease(&self) -> bool {
        let mut state = self.state();
        let is_due = state.due.is_none_or(|due| Instant::now() >= due);
        state.has_leased |= !is_due;
        is_due
    }

    fn raised(&self, is_recorded: bool) {
        let wait = match is_recorded {
            true => self.period,
            false => RETRY.max(self.period),
        };
        *self.state() = ScheduleState {
            due: Instant::now().checked_add(wait),
            has_leased: false,
        };
    }

    fn has_leased(&self) -> bool {
        self.state().has_leased
    }
}

impl Registry {
    /// Notes the storage of a registry that was created or moved here and has none yet. A backup that is made from then on is known as one.
    pub(crate) async fn note_storage(&self) -> Result<()> {
        let mut connection = self.reader().acquire().await?;
        if self.is_noted(&mut connection).await? {
            return Ok(());
        }
        drop(connection);
        let mut transaction = self.write_whatever().await?;
        self.refuse_moved(&mut transaction).await?;
        if !self.is_noted(&mut transaction).await? {
            self.storage().begin(&mut transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Whether there is a note, or the note was lost with a return to an earlier state.
    async fn is_noted(&self, connection: &mut Connection) -> Result<bool> {
        let now = self.storage().look(connection).await?;
        let (noted,): (Option<String>,) = sql::query("SELECT storage FROM registry")
            .fetch_one(connection)
            .await?;
        Ok(noted.is_some() || Served::of(None, &now) == Served::Elsewhere)
    }

    /// [`Registry::advance_storage`], in a transaction that changes leases: at once, and then once in a period. What is leased after a
    /// backup was made thus raises the count above the backup's.
    pub(crate) async fn advance_with_leases(&self, connection: &mut Connection) -> Result<Option<Advance>> {
        match self.schedule().lease() {
            true => self.advance_storage(connection).await.map(Some),
            false => Ok(None),
        }
    }

    /// That transaction is committed.
    pub(crate) fn follow_leases(&self, advance: Option<Advance>) {
        if let Some(advance) = advance {
            self.schedule().raised(self.follow_storage(advance));
        }
    }

    /// Raises the count if leases were changed since: a backup of before is older also if this process ends now.
    pub(crate) async fn advance_at_close(&self) {
        if !self.schedule().has_leased() {
            return;
        }
        let raise = async {
            let mut transaction = self.write_whatever().await?;
            self.refuse_moved(&mut transaction).await?;
            let (served, _) = self.incarnation(&mut transaction).await?;
            if served == Served::Elsewhere {
                return Ok(());
            }
            let advance = self.advance_storage(&mut transaction).await?;
            transaction.commit().await?;
            self.schedule().raised(self.follow_storage(advance));
            Ok(())
        };
        let raised: Result<()> = raise.await;
        if let Err(error) = raised {
            log::warn!(
                "raising the count of the registry's storage failed: {error}; a copy of the last second that was made by other means than \
                 `linewarden registry backup` may not be detected as older"
            );
        }
    }

    /// Whether gateways were served from this storage last, and the incarnation.
    pub(crate) async fn incarnation(&self, connection: &mut Connection) -> Result<(Served, u32)> {
        // Another process may record the storage for the first time between the two reads. The second look then sees both.
        match self.look_once(connection).await? {
            (Served::Elsewhere, _) => self.look_once(connection).await,
            found => Ok(found),
        }
    }

    async fn look_once(&self, connection: &mut Connection) -> Result<(Served, u32)> {
        let now = self.storage().look(connection).await?;
        let (noted, incarnation): (Option<String>, i64) =
            sql::query("SELECT storage, incarnation FROM registry")
                .fetch_one(&mut *connection)
                .await?;
        let incarnation = u32::try_from(incarnation).unwrap_or(INCARNATION_MAX);
        Ok((Served::of(noted.as_deref(), &now), incarnation))
    }

    /// In a transaction that leases or registers: raises the count in the database, so that a copy of before is older than what lies
    /// beside the database afterwards. Where nothing is recorded yet, records the storage.
    pub(crate) async fn advance_storage(&self, connection: &mut Connection) -> Result<Advance> {
        let (noted,): (Option<String>,) = sql::query("SELECT storage FROM registry")
            .fetch_one(&mut *connection)
            .await?;
        let next = match (self.storage(), noted.as_deref()) {
            (storage, None | Some(UNNAMED)) => {
                return Ok(match storage.begin(connection).await? {
                    true => Advance::Recorded,
                    false => Advance::Unrecorded,
                });
            }
            (Storage::File(_), Some(noted)) => Tag::parse(noted).and_then(Tag::next),
            _ => None,
        };
        let Some(tag) = next else {
            return Ok(Advance::Recorded);
        };
        note(connection, &tag.to_string()).await?;
        Ok(Advance::To(tag))
    }

    /// The transaction is committed: what lies beside the database follows. Whether it has, or nothing has to.
    pub(crate) fn follow_storage(&self, advance: Advance) -> bool {
        let (file, tag) = match (advance, self.storage()) {
            (Advance::To(tag), Storage::File(file)) => (file, tag),
            (Advance::Unrecorded, _) => return false,
            _ => return true,
        };
        let written = file.advance(tag);
        if let Err(error) = &written {
            log::warn!(
                "recording the storage of the registry failed: {error}; a copy that was made by other means than \
                 `linewarden registry backup` may not be detected as older"
            );
        }
        written.is_ok()
    }

    /// Refuses a fence of before a return to an earlier state.
    pub(crate) async fn refuse_restored(&self, connection: &mut Connection, fence: &Fence) -> Result<()> {
        let (served, incarnation) = self.incarnation(connection).await?;
        // 0 is none at all.
        match served != Served::Elsewhere && (fence.number() == 0 || !is_foreign(fence.number(), incarnation))
        {
            true => Ok(()),
            false => Err(RegistryError::Restored {
                gateway: fence.gateway(),
            }),
        }
    }

    /// Before a gateway is registered: begins a new incarnation if none was served from this storage. The incarnation of now.
    pub(crate) async fn settle_storage(&self, connection: &mut Connection) -> Result<u32> {
        let (served, incarnation) = self.incarnation(connection).await?;
        match served {
            Served::Here => return Ok(incarnation),
            Served::Unnoted => {
                self.storage().begin(connection).await?;
                return Ok(incarnation);
            }
            Served::Elsewhere => {}
        }
        let mut drawn = [0; 4];
        getrandom::fill(&mut drawn).map_err(RegistryError::Entropy)?;
        let step = 1 + u32::from_be_bytes(drawn) % STEP_MAX;
        let next = incarnation.saturating_add(step).min(INCARNATION_MAX);
        // Sessions end with the leases: a note of where one was would keep the next gateway's from being told.
        for statement in ["DELETE FROM lease", "DELETE FROM spare", "DELETE FROM roaming"] {
            sql::query(statement).execute(&mut *connection).await?;
        }
        sql::query("UPDATE registry SET incarnation = $1")
            .bind(i64::from(next))
            .execute(&mut *connection)
            .await?;
        self.storage().begin(connection).await?;
        log::warn!(
            "this registry is a copy, or was put back to an earlier state: all leases have ended, devices authenticate anew; \
             revocations, quarantines and closed pairs since the copy are to be repeated"
        );
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database that is not to be asked, for a while, ends no leases; a copy always does.
    #[test]
    fn only_a_copy_and_another_name_are_another_storage() {
        for (noted, now, expected) in [
            (Some("a"), "a", Served::Here),
            (Some(UNNAMED), UNNAMED, Served::Here),
            (Some("a"), UNNAMED, Served::Here),
            (None, "a", Served::Unnoted),
            (None, UNNAMED, Served::Unnoted),
            (Some(UNNAMED), "a", Served::Unnoted),
            (Some("a"), "b", Served::Elsewhere),
            (Some(COPY), "a", Served::Elsewhere),
            (Some(COPY), UNNAMED, Served::Elsewhere),
        ] {
            let named = Now::Named(now.to_owned());
            assert_eq!(Served::of(noted, &named), expected, "{noted:?}, {now}");
        }
    }
}
