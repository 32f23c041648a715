//! The change feed, which gateways poll to follow the registry.
//!
//! Every change to a device (enrollment, replacement, revocation, start and end of a quarantine) takes the next value
//! of one counter, the *revision*, and writes the revision to the device's record in the same transaction. So the feed
//! needs no growing log: a device appears once with its newest change, and once more with its newest session if the
//! device has roamed. If nothing has changed, a query costs one index look-up. Changes of marks are not reported,
//! because the gateways move the marks themselves.

use crate::column::ColumnValue;
use crate::conversion::{DEVICE_COLUMNS, DeviceColumns, device_columns, device_info, id_from_column};
use crate::error::{DatabaseError, RegistryError, Result};
use crate::roaming::{self, NewestSession, NewestSessionColumns};
use crate::sql::{self, Connection, FromRow, Row};
use crate::store::Registry;
use crate::walk::revision;
use linewarden_types::{Change, Revision};

/// A page of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The changed devices, in the order of their revisions.
    pub changes: Vec<Change>,
    /// Newest sessions of devices that moved to another gateway, in the order of their revisions.
    pub newest_sessions: Vec<NewestSession>,
    /// Errors of devices whose records do not authenticate; the feed reports these devices as inactive.
    pub damaged: Vec<String>,
    /// The revision to continue after; only authentic records advance this revision.
    pub up_to_revision: Revision,
    /// Whether the next page is already available.
    pub has_more: bool,
}

/// The revision of the newest change, within the caller's transaction.
pub(crate) async fn revision_in(connection: &mut Connection) -> Result<Revision> {
    let (revision,): (i64,) = sql::query("SELECT revision FROM registry")
        .fetch_one(connection)
        .await?;
    revision_from_column(revision)
}

impl Registry {
    /// The revision of the newest change.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn revision(&self) -> Result<Revision> {
        revision_in(&mut self.reader().acquire().await?).await
    }

    /// Devices changed after `since`, and newest sessions of roaming devices, oldest change first. Returns at most
    /// `limit` entries, or more if most records do not authenticate.
    ///
    /// A device whose record does not authenticate is reported as inactive: write access to the database without the
    /// master key must not re-admit a device. Sessions whose records do not authenticate are not reported.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn changes_since(&self, since: Revision, limit: u32) -> Result<Changes> {
        let mut page_records = limit.max(1);
        loop {
            if let Some(changes) = self.changes_page(since, page_records).await? {
                return Ok(changes);
            }
            page_records = page_records.saturating_mul(2);
        }
    }

    /// One page of the feed. `None` if no record of a full page authenticates: the start of the next page is then unknown.
    async fn changes_page(&self, since: Revision, limit: u32) -> Result<Option<Changes>> {
        // One query reads both tables, so that the page is consistent: a change between two queries could take a
        // revision that the page skips.
        let records: Vec<FeedColumns> = sql::query(concat!(
            "WITH changed AS (SELECT 0 AS kind, rowid AS position, NULL AS device_id, revision, NULL AS gateway_id, \
             NULL AS boot_id, NULL AS started_ns, NULL AS tag FROM device \
             WHERE revision > $1 AND revision <= 9223372036854775807 \
             UNION ALL SELECT 1, NULL, device_id, revision, gateway_id, boot_id, started_ns, tag FROM newest_session \
             WHERE revision > $1 AND revision <= 9223372036854775807 ORDER BY revision LIMIT $2) SELECT ",
            device_columns!(),
            ", changed.kind, changed.revision, changed.device_id, changed.gateway_id, changed.boot_id, changed.started_ns, \
             changed.tag, (SELECT revision FROM registry) AS newest \
             FROM changed LEFT JOIN device ON device.rowid = changed.position ORDER BY changed.revision"
        ))
        .bind(i64::try_from(since.0).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(self.reader())
        .await?;
        let (count, newest) = (records.len(), records.first().and_then(|record| record.newest));
        let mut changes = Changes {
            changes: Vec::new(),
            newest_sessions: Vec::new(),
            damaged: Vec::new(),
            up_to_revision: since,
            has_more: false,
        };
        for record in records {
            // A damaged revision, which is not a number, may appear anywhere in the order; [`Registry::check`]
            // reports its record.
            let Some(change_revision) = revision(&record.revision) else {
                continue;
            };
            if record.kind == KIND_DEVICE {
                self.push_change(record.device, change_revision, &mut changes);
                continue;
            }
            // A record that does not authenticate must not end sessions.
            if let Ok(session) = roaming::session_from_record(self.authenticator(), &record.newest_session) {
                changes.newest_sessions.push(session.session);
                changes.up_to_revision = changes.up_to_revision.max(change_revision);
            }
        }
        let Some(newest) = newest else {
            return Ok(Some(changes));
        };
        let extent = PageExtent::of(count, limit, (since.0, changes.up_to_revision.0), newest.0);
        Ok(extent.map(
            |PageExtent {
                 up_to_revision,
                 has_more,
             }| Changes {
                up_to_revision: Revision(up_to_revision),
                has_more,
                ..changes
            },
        ))
    }

    fn push_change(&self, record: DeviceColumns, revision: Revision, changes: &mut Changes) {
        let device = id_from_column(record.id.0);
        let change = match device_info(self.authenticator(), record) {
            Ok(info) => {
                changes.up_to_revision = changes.up_to_revision.max(revision);
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

/// The extent of a page of records in the order of revisions.
pub(crate) struct PageExtent {
    pub(crate) up_to_revision: u64,
    pub(crate) has_more: bool,
}

impl PageExtent {
    /// The extent of a page of `count` records after `since`. `highest` is the highest authentic revision in the page,
    /// or `since` without authentic records; `newest` is the registry's counter at the time of the query. `None` if
    /// the page is full and has no authentic record to continue after.
    ///
    /// A record that does not authenticate may have any revision; a reader that continued after that revision could
    /// miss other changes. The counter is not authenticated, but later changes always take a higher value than the
    /// counter has.
    pub(crate) fn of(count: usize, limit: u32, (since, highest): (u64, u64), newest: u64) -> Option<Self> {
        let is_full = count >= usize::try_from(limit).unwrap_or(usize::MAX);
        if is_full && highest == since && since < newest {
            return None;
        }
        let up_to_revision = if is_full { highest.min(newest) } else { newest };
        Some(Self {
            up_to_revision,
            has_more: is_full && up_to_revision > since,
        })
    }
}

/// The kind of a record about a device; a record about a newest session has kind 1.
const KIND_DEVICE: i64 = 0;

/// The columns of a page: a device or a newest session; the columns of the other kind are NULL.
struct FeedColumns {
    device: DeviceColumns,
    kind: i64,
    revision: ColumnValue<i64>,
    newest_session: NewestSessionColumns,
    /// The registry's newest revision.
    newest: Option<Revision>,
}

impl FromRow for FeedColumns {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        const FIRST: usize = DEVICE_COLUMNS;
        let revision: ColumnValue<i64> = row.get(FIRST + 1)?;
        Ok(Self {
            device: DeviceColumns::from_row(row)?,
            kind: row.get(FIRST)?,
            newest_session: (
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

/// Takes the next `count` revisions in the caller's transaction. Returns the revision before the first of these
/// revisions.
pub(crate) async fn reserve_revisions(connection: &mut Connection, count: usize) -> Result<i64> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let (last,): (i64,) = sql::query("UPDATE registry SET revision = revision + $1 RETURNING revision")
        .bind(count)
        .fetch_one(connection)
        .await?;
    Ok(last.saturating_sub(count))
}

fn revision_from_column(column: i64) -> Result<Revision> {
    u64::try_from(column).map(Revision).map_err(|_| {
        RegistryError::Database(DatabaseError::Damaged {
            detail: format!("invalid revision {column}"),
        })
    })
}
