//! Records at which gateway a device opened its newest session, so that its older sessions at other gateways end (LAP/1
//! 1.4.11).
//!
//! The table has a record for each device that was leased to more than one gateway. Reports of sessions may arrive late
//! and in any order. They are ordered by the start times of the sessions on one clock: with SQLite the boot-time clock of
//! the controller's machine, which cannot be set; with PostgreSQL the clock of the database server. A session that
//! started before the current boot is not compared with a record of an earlier boot: nothing is recorded, and no session
//! ends early.

use std::collections::{HashMap, HashSet};

use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_types::{BootId, BootTimestamp, Revision};

use crate::column::ColumnValue;
use crate::conversion::{id_from_column, id_to_column};
use crate::enroll::{IDS_PER_QUERY, PushIds as _};
use crate::error::Result;
use crate::feed;
use crate::gateway::FencingToken;
use crate::lease::damage;
use crate::record_tag::{RecordAuthenticator, halves};
use crate::sql::{self, Builder, Connection, Pool};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table newest_session v1";

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
    /// No newer session is known: this session is recorded, and older sessions at other gateways end.
    Newest,
    /// A newer session started at another gateway: this session ends.
    Older {
        /// The gateway of the newer session.
        gateway: GatewayId,
        /// Start of the newer session.
        started: BootTimestamp,
    },
    /// The session started before the boot of the controller's machine and cannot be compared. Nothing is recorded.
    Unknown,
}

/// The newest session of a device, which the change feed reports to all other gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestSession {
    /// The device.
    pub device: DeviceId,
    /// The gateway of the newest session.
    pub gateway: GatewayId,
    /// Start of the newest session.
    pub started: BootTimestamp,
}

/// The columns of `newest_session`: device, gateway, boot id, start, revision, tag.
pub(crate) type NewestSessionColumns = (
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
    /// The current time of the clock that orders sessions at different gateways. With SQLite this is `local_clock`, the
    /// boot-time clock of the caller's machine, because all programs run on one machine; with PostgreSQL the server's clock.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn session_clock(&self, local_clock: Option<BootTimestamp>) -> Result<Option<BootTimestamp>> {
        if matches!(self.reader(), Pool::Sqlite(_)) {
            return Ok(local_clock);
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

    /// Returns the devices among `devices` that are or were leased to another gateway. Only these devices can have a session
    /// at another gateway.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`].
    pub async fn leased_elsewhere(
        &self,
        fencing_token: &FencingToken,
        devices: &[DeviceId],
    ) -> Result<HashSet<DeviceId>> {
        let mut connection = self.reader().acquire().await?;
        self.check_fencing_token(&mut connection, fencing_token).await?;
        let mut elsewhere = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new("SELECT DISTINCT device_id FROM lease WHERE gateway_id <> ");
            query
                .push_bind(i64::from(fencing_token.gateway().0))
                .push(" AND device_id IN ");
            query.push_ids(batch.iter().copied());
            let records: Vec<(i64,)> = query.build().fetch_all(&mut connection).await?;
            elsewhere.extend(records.into_iter().map(|(device,)| id_from_column(device)));
        }
        Ok(elsewhere)
    }

    /// Records sessions that this gateway has proven, in one transaction, durable before the function returns.
    /// Results are in the order of the sessions. Without changes nothing is written. `now` is the current time of
    /// [`Registry::session_clock`].
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`].
    /// Nothing is recorded then.
    pub async fn record_sessions(
        &self,
        fencing_token: &FencingToken,
        sessions: &[ProvenSession],
        now: BootTimestamp,
    ) -> Result<Vec<SessionOrder>> {
        {
            // Most repeated reports need no write lock, for which lease requests of gateways would have to wait.
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
        for session_write in decisions.iter().filter_map(|decision| decision.write) {
            self.write_newest_session(&mut transaction, session_write).await?;
        }
        transaction.commit().await?;
        Ok(decisions.into_iter().map(|decision| decision.order).collect())
    }

    /// The recorded sessions of the devices of `sessions`. A record that does not authenticate is skipped; the caller
    /// overwrites the record.
    async fn newest_sessions(
        &self,
        connection: &mut Connection,
        sessions: &[ProvenSession],
    ) -> Result<HashMap<DeviceId, StoredSession>> {
        let mut newest_sessions = HashMap::new();
        for batch in sessions.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new(
                "SELECT device_id, gateway_id, boot_id, started_ns, revision, tag FROM newest_session WHERE device_id IN ",
            );
            query.push_ids(batch.iter().map(|session| session.device));
            let records: Vec<NewestSessionColumns> = query.build().fetch_all(&mut *connection).await?;
            let stored = records
                .iter()
                .filter_map(|record| session_from_record(self.authenticator(), record).ok());
            newest_sessions.extend(stored.map(|stored| (stored.session.device, stored)));
        }
        Ok(newest_sessions)
    }

    async fn write_newest_session(
        &self,
        connection: &mut Connection,
        session_write: SessionWrite,
    ) -> Result<()> {
        let revision = match session_write.revision {
            Some(revision) => revision,
            None => {
                let before = feed::reserve_revisions(connection, 1).await?;
                Revision(before.saturating_add(1).cast_unsigned())
            }
        };
        let stored = StoredSession {
            session: session_write.session,
            revision,
        };
        let NewestSession {
            device,
            gateway,
            started,
        } = session_write.session;
        sql::query(
            "INSERT INTO newest_session (device_id, gateway_id, boot_id, started_ns, revision, tag) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (device_id) DO UPDATE SET gateway_id = excluded.gateway_id, boot_id = excluded.boot_id, \
             started_ns = excluded.started_ns, revision = excluded.revision, tag = excluded.tag",
        )
        .bind(id_to_column(device))
        .bind(i64::from(gateway.0))
        .bind(started.boot_id.0.to_vec())
        .bind(started.ns)
        .bind(revision.0.cast_signed())
        .bind(self.authenticator().tag_of_fields(LABEL, device, &fields(&stored)).to_vec())
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// A recorded session, authenticated.
#[derive(Clone, Copy)]
pub(crate) struct StoredSession {
    pub(crate) session: NewestSession,
    revision: Revision,
}

/// A record to write.
#[derive(Clone, Copy)]
struct SessionWrite {
    session: NewestSession,
    /// The revision of the existing record; `None`: a new revision, so that other gateways learn of the change.
    revision: Option<Revision>,
}

/// The order of a session and the record to write, if any.
#[derive(Clone, Copy)]
struct SessionDecision {
    order: SessionOrder,
    write: Option<SessionWrite>,
}

/// A decision for each session. If the list has several sessions of one device, at most the last of these sessions is
/// recorded; a gateway reports only the newest session of a device.
fn decide_all(
    known: &HashMap<DeviceId, StoredSession>,
    gateway: GatewayId,
    sessions: &[ProvenSession],
    now: BootTimestamp,
) -> Vec<SessionDecision> {
    let decision = |session: &ProvenSession| decide(known.get(&session.device), gateway, session, now);
    sessions.iter().map(decision).collect()
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
    let record = |revision| SessionDecision {
        order: SessionOrder::Newest,
        write: Some(SessionWrite {
            session: newest_session,
            revision,
        }),
    };
    let keep = |order| SessionDecision { order, write: None };
    let Some(known) = known else {
        return record(None);
    };
    let known_gateway = known.session.gateway;
    let is_newer = match known.session.started.age_ns(now) {
        Some(_) => session.started.ns > known.session.started.ns,
        // The record is from before this boot, or from before the machine was restored to a snapshot.
        None if session.started.ns >= 0 => true,
        None => return keep(SessionOrder::Unknown),
    };
    match (is_newer, known_gateway == gateway) {
        // The feed need not report the change to other gateways. Sessions at other gateways that are older than the recorded
        // session have ended. Any other session there ends with the response to that gateway's next report.
        (true, true) => record(Some(known.revision)),
        (true, false) => record(None),
        // The report is repeated, or late.
        (false, true) => keep(SessionOrder::Newest),
        (false, false) => keep(SessionOrder::Older {
            gateway: known_gateway,
            started: known.session.started,
        }),
    }
}

fn fields(stored: &StoredSession) -> [u32; 9] {
    let NewestSession { gateway, started, .. } = &stored.session;
    let word = |index: usize| {
        let bytes = started.boot_id.0.as_chunks::<4>().0.get(index);
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    };
    let ([started_high, started_low], [revision_high, revision_low]) =
        (halves(started.ns.cast_unsigned()), halves(stored.revision.0));
    [
        gateway.0,
        word(0),
        word(1),
        word(2),
        word(3),
        started_high,
        started_low,
        revision_high,
        revision_low,
    ]
}

/// Decodes and authenticates a record; an error names the device.
pub(crate) fn session_from_record(
    authenticator: &RecordAuthenticator,
    (device, gateway, boot_id, started_ns, revision, tag): &NewestSessionColumns,
) -> Result<StoredSession> {
    let device = id_from_column(device.0);
    let stored = StoredSession {
        session: NewestSession {
            device,
            gateway: GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX)),
            started: BootTimestamp {
                boot_id: BootId(boot_id.0.as_slice().try_into().unwrap_or_default()),
                ns: started_ns.0,
            },
        },
        revision: Revision(revision.0.cast_unsigned()),
    };
    match authenticator.verifies_fields(LABEL, device, &fields(&stored), &tag.0) {
        true => Ok(stored),
        false => Err(damage(device, "record of its newest session")),
    }
}

/// Errors of records that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
) -> Result<Vec<crate::error::RegistryError>> {
    let records: Vec<NewestSessionColumns> =
        sql::query("SELECT device_id, gateway_id, boot_id, started_ns, revision, tag FROM newest_session")
            .fetch_all(connection)
            .await?;
    Ok(records
        .iter()
        .filter_map(|record| session_from_record(authenticator, record).err())
        .collect())
}
