//! The change feed: what a gateway asks for, again and again, to follow the registry.
//!
//! Every change to a device (enrolment, replacement, revocation, quarantine and its end) takes the next number of one counter and writes
//! it to the device, in the same transaction. So the feed needs no log that grows: a device shows up once with
//! its newest change, and once more with where it is if it has roamed; asking costs an index look-up when nothing has happened. Marks that move are not changes:
//! they are the gateways' own doing.

use linewarden_protocol::ids::DeviceId;
use sqlx::SqliteConnection;

use crate::column::Stored;
use crate::device::Revision;
use crate::error::{RegistryError, Result};
use crate::roaming::{self, Roamed};
use crate::row::{ACTIVE, id_from_column};
use crate::store::Registry;
use crate::walk::revision;

/// A device that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub device: DeviceId,
    /// Its newest change.
    pub revision: Revision,
    /// Whether it may authenticate; if not, it was revoked, or is in quarantine and may come back.
    pub active: bool,
    /// How often its credentials have been replaced.
    pub epoch: u32,
}

/// An answer of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// In the order of their revisions.
    pub changes: Vec<Change>,
    /// Devices that have opened a session at another gateway than before, in the order of their revisions.
    pub roamed: Vec<Roamed>,
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

    /// Devices changed after `since`, and those that have roamed, at most `limit` of them, oldest change first.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn changes_since(&self, since: Revision, limit: u32) -> Result<Changes> {
        let limit = limit.max(1);
        // One question, so that all is of one moment: between two a change could take a number that the answer passes by.
        let rows: Vec<FeedRow> = sqlx::query_as(
            "SELECT 0, device_id, revision, CASE WHEN quarantined_at_s IS NULL THEN status END, epoch, \
             NULL, NULL, NULL, NULL FROM device \
             WHERE revision > $1 AND revision <= 9223372036854775807 \
             UNION ALL SELECT 1, device_id, revision, NULL, NULL, gateway_id, boot, began_ns, mac FROM roaming \
             WHERE revision > $1 AND revision <= 9223372036854775807 ORDER BY revision LIMIT $2",
        )
        .bind(i64::try_from(since.0).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(self.reader())
        .await?;
        let upto = rows
            .iter()
            .rev()
            .find_map(|row| revision(&row.2))
            .unwrap_or(since);
        let mut changes = Changes {
            changes: Vec::new(),
            roamed: Vec::new(),
            more: upto > since && rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX),
            upto,
        };
        for (kind, device, at, status, epoch, gateway, boot, began, code) in rows {
            // A revision that is no number sorts among the others; the check names its record.
            let Some(change_at) = revision(&at) else {
                continue;
            };
            if kind == OF_A_DEVICE {
                changes.changes.push(Change {
                    device: id_from_column(device.0),
                    revision: change_at,
                    active: status.0 == Some(ACTIVE),
                    epoch: u32::try_from(epoch.0.unwrap_or(i64::MAX)).unwrap_or(u32::MAX),
                });
                continue;
            }
            let [gateway, began] = [gateway, began].map(|number| Stored(number.0.unwrap_or(i64::MIN)));
            let [boot, code] = [boot, code].map(|bytes| Stored(bytes.0.unwrap_or_default()));
            // Nobody without the key ends sessions.
            let noted = roaming::noted(self.record_mac(), &(device, gateway, boot, began, at, code));
            changes.roamed.extend(noted.map(|noted| noted.roamed));
        }
        Ok(changes)
    }
}

/// The first column of a row of the one kind; the other has 1.
const OF_A_DEVICE: i64 = 0;

/// Kind; device, revision, status and epoch of a change; or device, revision, gateway, boot, began and mac of one that has
/// roamed.
type FeedRow = (
    i64,
    Stored<i64>,
    Stored<i64>,
    Stored<Option<i16>>,
    Stored<Option<i64>>,
    Stored<Option<i64>>,
    Stored<Option<Vec<u8>>>,
    Stored<Option<i64>>,
    Stored<Option<Vec<u8>>>,
);

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
