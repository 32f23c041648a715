//! The change feed: what a gateway asks for, again and again, to follow the registry.
//!
//! Every change to a device (enrolment, replacement, revocation) takes the next number of one counter and writes
//! it to the device, in the same transaction. So the feed needs no log that grows: a device shows up once, with
//! its newest change, and asking costs an index look-up when nothing has happened. Marks that move are not changes:
//! they are the gateways' own doing.

use linewarden_protocol::ids::DeviceId;
use sqlx::SqliteConnection;

use crate::device::Revision;
use crate::error::{RegistryError, Result};
use crate::row::{ACTIVE, id_from_column};
use crate::store::Registry;

/// A device that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub device: DeviceId,
    /// Its newest change.
    pub revision: Revision,
    /// Whether it may still authenticate; if not, it was revoked.
    pub active: bool,
    /// How often its credentials have been replaced.
    pub epoch: u32,
}

/// An answer of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// In the order of their revisions.
    pub changes: Vec<Change>,
    /// Ask from here next.
    pub upto: Revision,
    /// Whether there is more to be had at once.
    pub more: bool,
}

impl Registry {
    /// The revision of the newest change.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn revision(&self) -> Result<Revision> {
        let (revision,): (i64,) = sqlx::query_as("SELECT revision FROM registry")
            .fetch_one(self.reader())
            .await?;
        to_revision(revision)
    }

    /// Devices changed after `since`, at most `limit` of them, oldest change first.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn changes_since(&self, since: Revision, limit: u32) -> Result<Changes> {
        let rows: Vec<(i64, i64, i16, i64)> = sqlx::query_as(
            "SELECT device_id, revision, status, epoch FROM device WHERE revision > $1 ORDER BY revision LIMIT $2",
        )
        .bind(i64::try_from(since.0).unwrap_or(i64::MAX))
        .bind(i64::from(limit.max(1)))
        .fetch_all(self.reader())
        .await?;
        let changes = rows
            .into_iter()
            .map(|(device, revision, status, epoch)| {
                Ok(Change {
                    device: id_from_column(device),
                    revision: to_revision(revision)?,
                    active: status == ACTIVE,
                    epoch: u32::try_from(epoch).unwrap_or(u32::MAX),
                })
            })
            .collect::<Result<Vec<Change>>>()?;
        Ok(Changes {
            upto: changes.last().map_or(since, |change| change.revision),
            more: changes.len() >= usize::try_from(limit.max(1)).unwrap_or(usize::MAX),
            changes,
        })
    }
}

/// Takes the next `count` revisions within the caller's transaction; they start one above the value returned.
pub(crate) async fn advance(connection: &mut SqliteConnection, count: usize) -> Result<i64> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let (after,): (i64,) = sqlx::query_as("UPDATE registry SET revision = revision + $1 RETURNING revision")
        .bind(count)
        .fetch_one(connection)
        .await?;
    Ok(after.saturating_sub(count))
}

fn to_revision(column: i64) -> Result<Revision> {
    u64::try_from(column)
        .map(Revision)
        .map_err(|_| RegistryError::Damaged {
            detail: format!("a revision is {column}"),
        })
}
