//! Where devices opened their newest sessions, so that older ones elsewhere end (LAP/1 1.4.11).
//!
//! One row of a device that more than one gateway has had rows of; none of all others. Reports of sessions may come late
//! and in any order, so they are ordered by when the sessions began, on one clock that nobody can set: the boot-time clock
//! of the controller's machine. What began before the machine's present start is not compared with what was noted in
//! an earlier one: then nothing is noted, and nothing ends before its lease.

use std::collections::{HashMap, HashSet};

use linewarden_protocol::ids::{DeviceId, GatewayId};

use crate::column::Stored;
use crate::device::Revision;
use crate::enrol::{IDS_PER_QUERY, PushIds as _};
use crate::error::Result;
use crate::feed;
use crate::gateway::Fence;
use crate::lease::damage;
use crate::record_mac::{RecordMac, halves};
use crate::row::{id_from_column, id_to_column};
use crate::sql::{self, Builder, Connection, Pool};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table roaming v1";

/// Two readings of one clock that reach the registry in the wrong order are not further apart, ns.
const AHEAD_NS: i64 = 1_000_000_000;

/// Which start of the controller's machine: random, and another one each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

/// A moment of the boot-time clock of the controller's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Which start of the machine it counts from.
    pub boot: BootId,
    /// Nanoseconds; negative before that start.
    pub ns: i64,
}

impl Moment {
    /// So long before this one, ns.
    #[must_use]
    pub fn before(self, age_ns: u64) -> Self {
        Self {
            ns: self.ns.saturating_sub_unsigned(age_ns),
            ..self
        }
    }

    /// How long it is past at `now`, ns; `None` if the two cannot be compared: it is of another start of the machine, or it
    /// lies ahead, as when the machine was set back to a snapshot.
    #[must_use]
    pub fn age_ns(self, now: Self) -> Option<u64> {
        let is_ahead = self.ns > now.ns.saturating_add(AHEAD_NS);
        let age_ns = u64::try_from(now.ns.saturating_sub(self.ns)).unwrap_or_default();
        (self.boot == now.boot && !is_ahead).then_some(age_ns)
    }
}

/// A session that a gateway has proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Whose.
    pub device: DeviceId,
    /// When it began.
    pub began: Moment,
}

/// How a session stands to what is known of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No newer one is known: it is noted, and older ones at other gateways end.
    Newest,
    /// A newer one began at another gateway: this one is over.
    Older {
        /// Where.
        at: GatewayId,
        /// When that one began.
        began: Moment,
    },
    /// It began before the controller's machine was started, and cannot be compared. Nothing is noted.
    Unknown,
}

/// Where a device opened its newest session: a word of the feed to all other gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roamed {
    /// Which device.
    pub device: DeviceId,
    /// Where.
    pub gateway: GatewayId,
    /// When that session began.
    pub began: Moment,
}

/// A row of `roaming`: device, gateway, boot, began, revision, mac.
pub(crate) type RoamingRow = (
    Stored<i64>,
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<i64>,
    Stored<i64>,
    Stored<Vec<u8>>,
);

/// Of the clock that all programs on one database server go by, in place of a start of a machine.
const DATABASES_CLOCK: BootId = BootId(*b"database's clock");

impl Registry {
    /// Now, by the clock that sessions at different gateways are compared by: on SQLite the caller's own, as all programs are on one
    /// machine; on PostgreSQL the server's, which is the same for all.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn moment(&self, own: Option<Moment>) -> Result<Option<Moment>> {
        if matches!(self.reader(), Pool::Sqlite(_)) {
            return Ok(own);
        }
        let (now_us,): (i64,) =
            sql::query("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)")
                .fetch_one(self.reader())
                .await?;
        Ok(Some(Moment {
            boot: DATABASES_CLOCK,
            ns: now_us.saturating_mul(1000),
        }))
    }

    /// Which of these devices another gateway than this one has, or had, rows of: elsewhere no session can be.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`](crate::RegistryError::OldFence), or a failure of the database.
    pub async fn leased_elsewhere(&self, fence: &Fence, devices: &[DeviceId]) -> Result<HashSet<DeviceId>> {
        let mut connection = self.reader().acquire().await?;
        self.check_fence(&mut connection, fence).await?;
        let mut found = HashSet::new();
        for batch in devices.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new("SELECT DISTINCT device_id FROM lease WHERE gateway_id <> ");
            query
                .push_bind(i64::from(fence.gateway().0))
                .push(" AND device_id IN ");
            query.push_ids(batch.iter().copied());
            let rows: Vec<(i64,)> = query.build().fetch_all(&mut connection).await?;
            found.extend(rows.into_iter().map(|(device,)| id_from_column(device)));
        }
        Ok(found)
    }

    /// Notes sessions that this gateway has proved, in one transaction, durable before it returns; answers in their order.
    /// What changes nothing costs no write. `now` is of the clock that they began by.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`](crate::RegistryError::OldFence), or a failure of the database; nothing is noted then.
    pub async fn note_sessions(
        &self,
        fence: &Fence,
        sessions: &[Opened],
        now: Moment,
    ) -> Result<Vec<Standing>> {
        {
            // Most repetitions are answered without a word to the one writer, whom the gateways' leases wait for.
            let mut connection = self.reader().acquire().await?;
            self.check_fence(&mut connection, fence).await?;
            let known = self.roaming(&mut connection, sessions).await?;
            let judged: Vec<Judgement> = judge(&known, fence.gateway(), sessions, now);
            if judged.iter().all(|judged| judged.note.is_none()) {
                return Ok(judged.into_iter().map(|judged| judged.standing).collect());
            }
        }
        let mut transaction = self.write().await?;
        self.check_fence(&mut transaction, fence).await?;
        let known = self.roaming(&mut transaction, sessions).await?;
        let judged = judge(&known, fence.gateway(), sessions, now);
        for note in judged.iter().filter_map(|judged| judged.note) {
            self.write_roaming(&mut transaction, note).await?;
        }
        transaction.commit().await?;
        Ok(judged.into_iter().map(|judged| judged.standing).collect())
    }

    /// What is noted of the devices of these sessions. A row that does not authenticate is as good as none, and is
    /// overwritten.
    async fn roaming(
        &self,
        connection: &mut Connection,
        sessions: &[Opened],
    ) -> Result<HashMap<DeviceId, Noted>> {
        let mut found = HashMap::new();
        for batch in sessions.chunks(IDS_PER_QUERY) {
            let mut query = Builder::new(
                "SELECT device_id, gateway_id, boot, began_ns, revision, mac FROM roaming WHERE device_id IN ",
            );
            query.push_ids(batch.iter().map(|session| session.device));
            let rows: Vec<RoamingRow> = query.build().fetch_all(&mut *connection).await?;
            let noted = rows.iter().filter_map(|row| noted(self.record_mac(), row).ok());
            found.extend(noted.map(|noted| (noted.roamed.device, noted)));
        }
        Ok(found)
    }

    async fn write_roaming(&self, connection: &mut Connection, note: Note) -> Result<()> {
        let revision = match note.revision {
            Some(revision) => revision,
            None => {
                let before = feed::advance(connection, 1).await?;
                Revision(before.saturating_add(1).cast_unsigned())
            }
        };
        let noted = Noted {
            roamed: note.roamed,
            revision,
        };
        let Roamed {
            device,
            gateway,
            began,
        } = note.roamed;
        sql::query(
            "INSERT INTO roaming (device_id, gateway_id, boot, began_ns, revision, mac) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (device_id) DO UPDATE SET gateway_id = excluded.gateway_id, boot = excluded.boot, \
             began_ns = excluded.began_ns, revision = excluded.revision, mac = excluded.mac",
        )
        .bind(id_to_column(device))
        .bind(i64::from(gateway.0))
        .bind(began.boot.0.to_vec())
        .bind(began.ns)
        .bind(revision.0.cast_signed())
        .bind(self.record_mac().code_of(LABEL, device, &fields(&noted)).to_vec())
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// A row that authenticates.
#[derive(Clone, Copy)]
pub(crate) struct Noted {
    pub(crate) roamed: Roamed,
    revision: Revision,
}

/// What is to be written.
#[derive(Clone, Copy)]
struct Note {
    roamed: Roamed,
    /// The one that the row has; `None`: the others must hear of it, under a new one.
    revision: Option<Revision>,
}

#[derive(Clone, Copy)]
struct Judgement {
    standing: Standing,
    note: Option<Note>,
}

/// Of several sessions of one device the last one in the list is noted at most: a gateway reports its newest.
fn judge(
    known: &HashMap<DeviceId, Noted>,
    gateway: GatewayId,
    sessions: &[Opened],
    now: Moment,
) -> Vec<Judgement> {
    let one = |session: &Opened| judge_one(known.get(&session.device), gateway, session, now);
    sessions.iter().map(one).collect()
}

fn judge_one(known: Option<&Noted>, gateway: GatewayId, session: &Opened, now: Moment) -> Judgement {
    let roamed = Roamed {
        device: session.device,
        gateway,
        began: session.began,
    };
    let newest = |revision| Judgement {
        standing: Standing::Newest,
        note: Some(Note { roamed, revision }),
    };
    let only = |standing| Judgement { standing, note: None };
    let Some(known) = known else {
        return newest(None);
    };
    let at = known.roamed.gateway;
    let is_newer = match known.roamed.began.age_ns(now) {
        Some(_) => session.began.ns > known.roamed.began.ns,
        // Noted before this start of the machine, or before it was set back.
        None if session.began.ns >= 0 => true,
        None => return only(Standing::Unknown),
    };
    match (is_newer, at == gateway) {
        // Nobody else need hear of it: what they hold is older than the one before, or their report is answered with this one.
        (true, true) => newest(Some(known.revision)),
        (true, false) => newest(None),
        // The same report again, or one before it.
        (false, true) => only(Standing::Newest),
        (false, false) => only(Standing::Older {
            at,
            began: known.roamed.began,
        }),
    }
}

fn fields(noted: &Noted) -> [u32; 9] {
    let Roamed { gateway, began, .. } = &noted.roamed;
    let word = |at: usize| {
        let bytes = began.boot.0.as_chunks::<4>().0.get(at);
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    };
    let ([began_high, began_low], [revision_high, revision_low]) =
        (halves(began.ns.cast_unsigned()), halves(noted.revision.0));
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

/// Turns a stored row into what it says; one that does not authenticate is that device's damage.
pub(crate) fn noted(
    mac: &RecordMac,
    (device, gateway, boot, began, revision, code): &RoamingRow,
) -> Result<Noted> {
    let device = id_from_column(device.0);
    let noted = Noted {
        roamed: Roamed {
            device,
            gateway: GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX)),
            began: Moment {
                boot: BootId(boot.0.as_slice().try_into().unwrap_or_default()),
                ns: began.0,
            },
        },
        revision: Revision(revision.0.cast_unsigned()),
    };
    match mac.verifies_of(LABEL, device, &fields(&noted), &code.0) {
        true => Ok(noted),
        false => Err(damage(device, "record of its newest session")),
    }
}

/// Rows that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged(
    connection: &mut Connection,
    mac: &RecordMac,
) -> Result<Vec<crate::error::RegistryError>> {
    let rows: Vec<RoamingRow> =
        sql::query("SELECT device_id, gateway_id, boot, began_ns, revision, mac FROM roaming")
            .fetch_all(connection)
            .await?;
    Ok(rows.iter().filter_map(|row| noted(mac, row).err()).collect())
}
