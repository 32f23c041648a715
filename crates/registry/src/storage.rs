//! Knowing a registry that was put back to an earlier state, so that no row is leased a second time (LAP/1 1.4.6).
//!
//! The registry notes from which storage gateways were served last. A copy notes that it is one, whoever puts it in place and however.
//! A file that was copied by other means is another inode; a database that was recovered to an earlier time, or that a standby has
//! replaced, is on another timeline; one that was loaded from a dump has other tables. The first gateway that registers
//! there begins a new *incarnation*: all leases end, and fences of before are refused. What was spent since is told by the devices
//! themselves ([`LeaseRequest::stated`](crate::LeaseRequest)).
//!
//! Not seen: a return to a state of before such notes, whose own is still missing; another content written into the same inode by other means than [`Registry::copy_to`](crate::Registry::copy_to), and a
//! whole machine that is set back.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::UNIX_EPOCH;

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
/// Of a database that does not say which it is.
const UNNAMED: &str = "unnamed";
/// What PostgreSQL says where its functions may not be called, or are none.
const NOT_TO_BE_ASKED: [&str; 2] = ["42501", "42883"];
/// Of a registry that vanishes with its process.
pub(crate) const MEMORY: &str = "memory";
/// How many numbers an incarnation leaves out at most: two that begin from the same copy differ, but for one time in so many.
const STEP_MAX: u32 = 1 << 16;
/// Fences of one incarnation, as a shift.
const FENCE_BITS: u32 = 32;
/// Fences fit SQL's numbers.
const INCARNATION_MAX: u32 = i32::MAX.cast_unsigned();

/// How the storage of now is named.
#[derive(Debug)]
pub(crate) enum Storage {
    /// It stays while the registry is open.
    Fixed(String),
    /// The database says it each time: a standby may have taken its place.
    Asked,
}

impl Storage {
    /// The inode of a file.
    pub(crate) fn of_file(path: &Path) -> Result<Self> {
        let examined = path.metadata();
        let metadata = examined.map_err(RegistryError::io(format!("examine {}", path.display())))?;
        // A number of an inode is given again; where the file system knows when it was made, that is not.
        let made = metadata.created().ok();
        let made_ns = made.and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        let made_ns = made_ns.map_or(0, |made| made.as_nanos());
        Ok(Self::Fixed(format!("inode {} {made_ns}", metadata.ino())))
    }

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
        Ok(Self::unnamed())
    }

    /// Of a database that does not say which it is.
    pub(crate) fn unnamed() -> Self {
        Self::Fixed(UNNAMED.to_owned())
    }

    pub(crate) async fn name(&self, connection: &mut Connection) -> Result<String> {
        match self {
            Self::Fixed(name) => Ok(name.clone()),
            Self::Asked => {
                let (name,): (Option<String>,) = sql::query(POSTGRES_STORAGE).fetch_one(connection).await?;
                Ok(name.unwrap_or_default())
            }
        }
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

/// Notes that this is a copy: whoever is served from it first begins a new incarnation.
pub(crate) async fn note_copy(connection: &mut Connection) -> Result<()> {
    note(connection, COPY).await
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
    fn of(noted: Option<&str>, now: &str) -> Self {
        match noted {
            Some(noted) if noted == now => Self::Here,
            Some(COPY) => Self::Elsewhere,
            // The schema of before had no notes; or the database has not said which it is until now.
            None | Some(UNNAMED) => Self::Unnoted,
            // Another process may ask it, or could before.
            Some(_) if now == UNNAMED => Self::Here,
            Some(_) => Self::Elsewhere,
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

impl Registry {
    /// Whether gateways were served from this storage last, and the incarnation.
    pub(crate) async fn incarnation(&self, connection: &mut Connection) -> Result<(Served, u32)> {
        let (noted, incarnation): (Option<String>, i64) =
            sql::query("SELECT storage, incarnation FROM registry")
                .fetch_one(&mut *connection)
                .await?;
        let storage = self.storage().name(connection).await?;
        let incarnation = u32::try_from(incarnation).unwrap_or(INCARNATION_MAX);
        Ok((Served::of(noted.as_deref(), &storage), incarnation))
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
                self.note_storage(connection).await?;
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
        self.note_storage(connection).await?;
        log::warn!(
            "this registry is a copy, or was put back to an earlier state: all leases have ended, devices authenticate anew; \
             revocations, quarantines and closed pairs since the copy are to be repeated"
        );
        Ok(next)
    }

    async fn note_storage(&self, connection: &mut Connection) -> Result<()> {
        let storage = self.storage().name(connection).await?;
        note(connection, &storage).await
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
            assert_eq!(Served::of(noted, now), expected, "{noted:?}, {now}");
        }
    }
}
