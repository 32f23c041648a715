//! The gateways of the devices' newest sessions, so that older sessions at other gateways end (LAP/1 1.4.11).
//!
//! A device has a row if it was leased to more than one gateway. Reports of sessions may arrive late and in any
//! order. They are ordered by the start times of the sessions, on a clock that cannot be set: the boot-time clock of
//! the controller's machine. A session from before the current boot is not compared with a record of an earlier boot:
//! nothing is recorded, and no session ends early.

use std::collections::{HashMap, HashSet};

use linewarden_protocol::ids::{DeviceId, GatewayId};

use crate::column::ColumnValue;
use crate::device::Revision;
use crate::enroll::{IDS_PER_QUERY, PushIds as _};
use crate::error::Result;
use crate::feed;
use crate::gateway::FencingToken;
use crate::lease::damage;
use crate::record_mac::{RecordMac, halves};
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Builder, Connection, Pool};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table newest_session v1";

/// Maximum difference between two readings of the clock that reach the registry in the wrong order, ns.
const CLOCK_SKEW_MAX_NS: i64 = 1_000_000_000;

/// Identifies a boot of the controller's machine: random and different for each boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

/// A reading of the boot-time clock of the controller's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootTimestamp {
    /// The boot that the time counts from.
    pub boot_id: BootId,
    /// Time, ns; negative before that boot.
    pub ns: i64,
}

impl BootTimestamp {
    /// The time `age_ns` before this one.
    #[must_use]
    pub fn earlier_by(self, age_ns: u64) -> Self {
        Self {
            ns: self.ns.saturating_sub_unsigned(age_ns),
            ..self
        }
    }

    /// The age at `now`, ns; `None` if the two cannot be compared: they are of different boots, or this time is in
    /// the future, for example after a restore of a snapshot of the machine.
    #[must_use]
    pub fn age_ns(self, now: Self) -> Option<u64> {
        let is_ahead = self.ns > now.ns.saturating_add(CLOCK_SKEW_MAX_NS);
        let age_ns = u64::try_from(now.ns.saturating_sub(self.ns)).unwrap_or_default();
        (self.boot_id == now.boot_id && !is_ahead).then_some(age_ns)
    }
}

/// A session that a gateway has proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvenSession {
    /// The device.
    pub device: DeviceId,
    /// Start of the session.
    pub started: BootTimestamp,
}

/// The order of a session relative to the recorded session of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionOrder {
    /// No newer session is known: this one is recorded, and older ones at other gateways end.
    Newest,
    /// A newer session started at another gateway: this one ends.
    Older {
        /// The gateway of the newer session.
        gateway: GatewayId,
        /// Start of the newer session.
        started: BootTimestamp,
    },
    /// The session started before the boot of the controller's machine and cannot be compared. Nothing is recorded.
    Unknown,
}

/// The newest session of a device, reported by the feed to all other gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestSession {
    /// The device.
    pub device: DeviceId,
    /// The gateway of the newer session.
    pub gateway: GatewayId,
    /// Start of that session.
    pub started: BootTimestamp,
}

/// A row of `newest_session`: device, gateway, boot id, start, revision, mac.
pub(crate) type NewestSessionRow = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

/// The boot id for the clock of the database server, which all its clients use.
const DATABASE_CLOCK: BootId = BootId(*b"database's clock");

impl Registry {
    /// The current time of the clock by which sessions at different gateways are compared. With SQLite, the caller's
    /// own clock, since all programs run on one machine; with PostgreSQL, the server's clock.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn session_clock(&self, own: Option<BootTimestamp>) -> Result<Option<BootTimestamp>> {
        if matches!(self.reader(), Pool::Sqlite(_)) {
            return Ok(own);
        }
        let (now_us,): (i64,) =
            sql::query("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)")
                .fetch_one(self.reader())
                .await?;
        Ok(Some(BootTimestamp {
            boot_id: DATABASE_CLOCK,
            ns: now_us.saturating_mul(1000),
        }))
    }

    /// Those of these devices that are or were leased to another gateway. Other devices cannot have a session
    /// elsewhere.
    ///
    /// # Errors
    /// [`RegistryError::StaleFencingToken`](crate::RegistryError::StaleFencingToken), or a failure of the database.
    pub async fn leased_elsewhere(
        &self,
        fencing_token: &FencingToken,
        devices: &[DeviceId],
    ) -> Result<HashSet<DeviceId>> {
        let mut connection = self.reader().acquire().await?;
        self.check_fencing_token(&mut connection, fencing_token).await?;
        let mut found = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new("SELECT DISTINCT device_id FROM lease WHERE gateway_id <> ");
            query
                .push_bind(i64::from(fencing_token.gateway().0))
                .push(" AND device_id IN ");
            query.push_ids(batch.iter().copied());
            let rows: Vec<(i64,)> = query.build().fetch_all(&mut connection).await?;
            found.extend(rows.into_iter().map(|(device,)| id_from_column(device)));
        }
        Ok(found)
    }

    /// Records sessions that this gateway has proven, in one transaction, durable before the function returns.
    /// Results are in the order of the sessions. Without changes nothing is written. `now` is a time of the same
    /// clock.
    ///
    /// # Errors
    /// [`RegistryError::StaleFencingToken`](crate::RegistryError::StaleFencingToken), or a failure of the database. Nothing is recorded
    /// then.
    pub async fn record_sessions(
        &self,
        fencing_token: &FencingToken,
        sessions: &[ProvenSession],
        now: BootTimestamp,
    ) -> Result<Vec<SessionOrder>> {
        {
            // Most repeated reports are served without the write lock, which leases of gateways wait for.
            let mut connection = self.reader().acquire().await?;
            self.check_fencing_token(&mut connection, fencing_token).await?;
            let known = self.newest_sessions(&mut connection, sessions).await?;
            let decisions: Vec<SessionDecision> = decide_all(&known, fencing_token.gateway(), sessions, now);
            if decisions.iter().all(|decision| decision.write.is_none()) {
                return Ok(decisions.into_iter().map(|decision| decision.order).collect());
            }
        }
        let mut transaction = self.write().await?;
        self.check_fencing_token(&mut transaction, fencing_token).await?;
        let known = self.newest_sessions(&mut transaction, sessions).await?;
        let decisions = decide_all(&known, fencing_token.gateway(), sessions, now);
        for note in decisions.iter().filter_map(|decision| decision.write) {
            self.write_newest_session(&mut transaction, note).await?;
        }
        transaction.commit().await?;
        Ok(decisions.into_iter().map(|decision| decision.order).collect())
    }

    /// The recorded sessions of these devices. A row that does not authenticate is ignored and overwritten.
    async fn newest_sessions(
        &self,
        connection: &mut Connection,
        sessions: &[ProvenSession],
    ) -> Result<HashMap<DeviceId, StoredSession>> {
        let mut found = HashMap::new();
        for batch in sessions.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new(
                "SELECT device_id, gateway_id, boot_id, started_ns, revision, mac FROM newest_session WHERE device_id IN ",
            );
            query.push_ids(batch.iter().map(|session| session.device));
            let rows: Vec<NewestSessionRow> = query.build().fetch_all(&mut *connection).await?;
            let stored = rows
                .iter()
                .filter_map(|row| session_from_row(self.record_mac(), row).ok());
            found.extend(stored.map(|stored| (stored.session.device, stored)));
        }
        Ok(found)
    }

    async fn write_newest_session(&self, connection: &mut Connection, note: SessionWrite) -> Result<()> {
        let revision = match note.revision {
            Some(revision) => revision,
            None => {
                let before = feed::reserve_revisions(connection, 1).await?;
                Revision(before.saturating_add(1).cast_unsigned())
            }
        };
        let stored = StoredSession {
            session: note.session,
            revision,
        };
        let NewestSession {
            device,
            gateway,
            started: began,
        } = note.session;
        sql::query(
            "INSERT INTO newest_session (device_id, gateway_id, boot_id, started_ns, revision, mac) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (device_id) DO UPDATE SET gateway_id = excluded.gateway_id, boot_id = excluded.boot_id, \
             started_ns = excluded.started_ns, revision = excluded.revision, mac = excluded.mac",
        )
        .bind(id_to_column(device))
        .bind(i64::from(gateway.0))
        .bind(began.boot_id.0.to_vec())
        .bind(began.ns)
        .bind(revision.0.cast_signed())
        .bind(self.record_mac().code_of(LABEL, device, &fields(&stored)).to_vec())
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// A row that authenticates.
#[derive(Clone, Copy)]
pub(crate) struct StoredSession {
    pub(crate) session: NewestSession,
    revision: Revision,
}

/// A row to write.
#[derive(Clone, Copy)]
struct SessionWrite {
    session: NewestSession,
    /// The revision of the existing row; `None`: a new revision, so that other gateways learn of the change.
    revision: Option<Revision>,
}

#[derive(Clone, Copy)]
struct SessionDecision {
    order: SessionOrder,
    write: Option<SessionWrite>,
}

/// Of several sessions of one device at most the last one in the list is recorded: a gateway reports only its newest
/// session.
fn decide_all(
    known: &HashMap<DeviceId, StoredSession>,
    gateway: GatewayId,
    sessions: &[ProvenSession],
    now: BootTimestamp,
) -> Vec<SessionDecision> {
    let one = |session: &ProvenSession| decide(known.get(&session.device), gateway, session, now);
    sessions.iter().map(one).collect()
}

fn decide(
    known: Option<&StoredSession>,
    gateway: GatewayId,
    session: &ProvenSession,
    now: BootTimestamp,
) -> SessionDecision {
    let newest_session = NewestSession {
        device: session.device,
        gateway,
        started: session.started,
    };
    let newest = |revision| SessionDecision {
        order: SessionOrder::Newest,
        write: Some(SessionWrite {
            session: newest_session,
            revision,
        }),
    };
    let only = |order| SessionDecision { order, write: None };
    let Some(known) = known else {
        return newest(None);
    };
    let at = known.session.gateway;
    let is_newer = match known.session.started.age_ns(now) {
        Some(_) => session.started.ns > known.session.started.ns,
        // Recorded before this boot, or before the machine was set back.
        None if session.started.ns >= 0 => true,
        None => return only(SessionOrder::Unknown),
    };
    match (is_newer, at == gateway) {
        // Other gateways need no report: their sessions are older than the recorded one, or their next report gets
        // this session as the response.
        (true, true) => newest(Some(known.revision)),
        (true, false) => newest(None),
        // A repeated or an earlier report.
        (false, true) => only(SessionOrder::Newest),
        (false, false) => only(SessionOrder::Older {
            gateway: at,
            started: known.session.started,
        }),
    }
}

fn fields(stored: &StoredSession) -> [u32; 9] {
    let NewestSession {
        gateway,
        started: began,
        ..
    } = &stored.session;
    let word = |at: usize| {
        let bytes = began.boot_id.0.as_chunks::<4>().0.get(at);
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    };
    let ([began_high, began_low], [revision_high, revision_low]) =
        (halves(began.ns.cast_unsigned()), halves(stored.revision.0));
    [
        gateway.0,
        word(0),
        word(1),
        word(2),
        word(3),
        began_high,
        began_low,
        revision_high,
        revision_low,
    ]
}

/// Decodes a stored row; a row that does not authenticate is damage of that device.
pub(crate) fn session_from_row(
    mac: &RecordMac,
    (device, gateway, boot, began, revision, code): &NewestSessionRow,
) -> Result<StoredSession> {
    let device = id_from_column(device.0);
    let stored = StoredSession {
        session: NewestSession {
            device,
            gateway: GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX)),
            started: BootTimestamp {
                boot_id: BootId(boot.0.as_slice().try_into().unwrap_or_default()),
                ns: began.0,
            },
        },
        revision: Revision(revision.0.cast_unsigned()),
    };
    match mac.verifies_of(LABEL, device, &fields(&stored), &code.0) {
        true => Ok(stored),
        false => Err(damage(device, "record of its newest session")),
    }
}

/// Rows that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(
    connection: &mut Connection,
    mac: &RecordMac,
) -> Result<Vec<crate::error::RegistryError>> {
    let rows: Vec<NewestSessionRow> =
        sql::query("SELECT device_id, gateway_id, boot_id, started_ns, revision, mac FROM newest_session")
            .fetch_all(connection)
            .await?;
    Ok(rows
        .iter()
        .filter_map(|row| session_from_row(mac, row).err())
        .collect())
}
