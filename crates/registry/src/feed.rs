//! The change feed: what a gateway asks for, again and again, to follow the registry.
//!
//! Every change to a device (enrolment, replacement, revocation, quarantine and its end) takes the next number of one counter and writes
//! it to the device, in the same transaction. So the feed needs no log that grows: a device shows up once with
//! its newest change, and once more with where it is if it has roamed; asking costs an index look-up when nothing has happened. Marks that move are not changes:
//! they are the gateways' own doing.

use linewarden_protocol::ids::DeviceId;

use crate::column::Stored;
use crate::device::Revision;
use crate::error::{RegistryError, Result};
use crate::roaming::{self, Roamed, RoamingRow};
use crate::row::{DEVICE_COLUMNS, DeviceRow, device_columns, device_info, id_from_column};
use crate::sql::{self, Connection, FromRow, Row};
use crate::store::Registry;
use crate::walk::revision;

/// A device that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub device: DeviceId,
    /// Its newest change.
    pub revision: Revision,
    /// Whether it may authenticate; if not, it was revoked, is in quarantine and may come back, or has a record that does
    /// not authenticate.
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
    /// Devices whose records do not authenticate, in words: they are told as inactive.
    pub damaged: Vec<String>,
    /// Ask from here next: no record that does not authenticate lifts it.
    pub upto: Revision,
    /// Whether there is more to be had at once.
    pub more: bool,
}

/// The revision of the newest change, within the caller's transaction.
pub(crate) async fn revision_in(connection: &mut Connection) -> Result<Revision> {
    let (revision,): (i64,) = sql::query("SELECT revision FROM registry")
        .fetch_one(connection)
        .await?;
    to_revision(revision)
}

impl Registry {
    /// The revision of the newest change.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn revision(&self) -> Result<Revision> {
        revision_in(&mut self.reader().acquire().await?).await
    }

    /// Devices changed after `since`, and those that have roamed, at most `limit` of them and more only where most do not
    /// authenticate, oldest change first.
    ///
    /// A record that does not authenticate is told as inactive, whatever it says: nobody without the key lets a device in
    /// that was shut out. Of where a device has roamed to only what authenticates is told.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn changes_since(&self, since: Revision, limit: u32) -> Result<Changes> {
        let mut page_rows = limit.max(1);
        loop {
            if let Some(changes) = self.changes_page(since, page_rows).await? {
                return Ok(changes);
            }
            page_rows = page_rows.saturating_mul(2);
        }
    }

    /// `None` if not one record of a full page authenticates: how far the next one would have to begin, nobody knows.
    async fn changes_page(&self, since: Revision, limit: u32) -> Result<Option<Changes>> {
        // One question, so that all is of one moment: between two a change could take a number that the answer passes by.
        let rows: Vec<FeedRow> = sql::query(concat!(
            "WITH changed AS (SELECT 0 AS kind, rowid AS place, NULL AS device_id, revision, NULL AS gateway_id, \
             NULL AS boot, NULL AS began_ns, NULL AS mac FROM device \
             WHERE revision > $1 AND revision <= 9223372036854775807 \
             UNION ALL SELECT 1, NULL, device_id, revision, gateway_id, boot, began_ns, mac FROM roaming \
             WHERE revision > $1 AND revision <= 9223372036854775807 ORDER BY revision LIMIT $2) SELECT ",
            device_columns!(),
            ", changed.kind, changed.revision, changed.device_id, changed.gateway_id, changed.boot, changed.began_ns, \
             changed.mac, (SELECT revision FROM registry) AS newest \
             FROM changed LEFT JOIN device ON device.rowid = changed.place ORDER BY changed.revision"
        ))
        .bind(i64::try_from(since.0).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(self.reader())
        .await?;
        let (count, newest) = (rows.len(), rows.first().and_then(|row| row.newest));
        let mut changes = Changes {
            changes: Vec::new(),
            roamed: Vec::new(),
            damaged: Vec::new(),
            upto: since,
            more: false,
        };
        for row in rows {
            // A revision that is no number sorts among the others; the check names its record.
            let Some(change_at) = revision(&row.revision) else {
                continue;
            };
            if row.kind == OF_A_DEVICE {
                self.tell(row.device, change_at, &mut changes);
                continue;
            }
            // Nobody without the key ends sessions.
            if let Ok(noted) = roaming::noted(self.record_mac(), &row.roaming) {
                changes.roamed.push(noted.roamed);
                changes.upto = changes.upto.max(change_at);
            }
        }
        let Some(newest) = newest else {
            return Ok(Some(changes));
        };
        let extent = Extent::of(count, limit, (since.0, changes.upto.0), newest.0);
        Ok(extent.map(|Extent { upto, more }| Changes {
            upto: Revision(upto),
            more,
            ..changes
        }))
    }

    fn tell(&self, row: DeviceRow, revision: Revision, changes: &mut Changes) {
        let device = id_from_column(row.id.0);
        let change = match device_info(self.record_mac(), row) {
            Ok(info) => {
                changes.upto = changes.upto.max(revision);
                Change {
                    device,
                    revision,
                    active: info.may_authenticate(),
                    epoch: info.epoch,
                }
            }
            Err(error) => {
                changes.damaged.push(error.to_string());
                Change {
                    device,
                    revision,
                    active: false,
                    epoch: u32::MAX,
                }
            }
        };
        changes.changes.push(change);
    }
}

/// How far a page of records reaches that are told by their revisions.
pub(crate) struct Extent {
    pub(crate) upto: u64,
    pub(crate) more: bool,
}

impl Extent {
    /// Of a page of `count` records above `since` whose highest revision that authenticates is `highest`, `since` if none does;
    /// `newest` is what the registry counts as the newest, at the moment of the page. `None` if the page is full and nothing in it
    /// says where the next one begins.
    ///
    /// A record that does not authenticate may be said to be of any revision: taken at its word, it would keep everything up to that
    /// one from being heard. The count is not authenticated, but what comes later takes a higher number than it has, whatever that is.
    pub(crate) fn of(count: usize, limit: u32, (since, highest): (u64, u64), newest: u64) -> Option<Self> {
        let is_full = count >= usize::try_from(limit).unwrap_or(usize::MAX);
        if is_full && highest == since && since < newest {
            return None;
        }
        let upto = if is_full { highest.min(newest) } else { newest };
        Some(Self {
            upto,
            more: is_full && upto > since,
        })
    }
}

/// The kind of a row about a device; one about where it has roamed to has 1.
const OF_A_DEVICE: i64 = 0;

/// A row of either kind; the columns of the other one are NULL.
struct FeedRow {
    device: DeviceRow,
    kind: i64,
    revision: Stored<i64>,
    roaming: RoamingRow,
    /// What the registry counts as the newest revision.
    newest: Option<Revision>,
}

impl FromRow for FeedRow {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        const FIRST: usize = DEVICE_COLUMNS;
        let revision: Stored<i64> = row.get(FIRST + 1)?;
        Ok(Self {
            device: DeviceRow::from_row(row)?,
            kind: row.get(FIRST)?,
            roaming: (
                row.get(FIRST + 2)?,
                row.get(FIRST + 3)?,
                row.get(FIRST + 4)?,
                row.get(FIRST + 5)?,
                revision.clone(),
                row.get(FIRST + 6)?,
            ),
            newest: self::revision(&row.get(FIRST + 7)?),
            revision,
        })
    }
}

/// Takes the next `count` revisions within the caller's transaction; they start one above the value returned.
pub(crate) async fn advance(connection: &mut Connection, count: usize) -> Result<i64> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let (after,): (i64,) = sql::query("UPDATE registry SET revision = revision + $1 RETURNING revision")
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
