//! Rounds: their numbers, of which none is used twice, and how they went.

use std::fmt::{Display, Formatter};
use std::ops::Range;
use std::str::FromStr;

use linewarden_protocol::ids::{GatewayId, Period};

use super::appraisals::Appraisal;
use super::enrolment::EnrolledAt;
use super::groups::GroupName;
use super::{Pages, seconds};
use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::gateway::Fence;
use crate::record_mac::{RecordMac, RowCode};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

const NUMBER_LABEL: &[u8] = b"linewarden registry table round_number v1";
const LABEL: &[u8] = b"linewarden registry table attest_round v1";
/// Rounds that are kept of each gateway, the newest; beside them the newest of each group that there is, however long ago it was.
pub const ROUNDS_KEPT: u32 = 1_000;

/// The columns of [`RoundRow`], in its order, as a literal for `concat!`.
macro_rules! round_columns {
    () => {
        "gateway_id, number, group_name, period, started_at_s, ended_at_s, asked, ok, late, silent, last_verdict_ms, mac"
    };
}

/// How a round went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRecord {
    /// Who asked.
    pub gateway: GatewayId,
    /// Its number at that gateway, from 1.
    pub number: u32,
    /// Whose provers were asked.
    pub group: GroupName,
    /// The period that was to be proven.
    pub period: Period,
    /// When it began, seconds since 1970-01-01 UTC.
    pub started_at_s: u64,
    /// When its last verdict was there.
    pub ended_at_s: u64,
    /// Provers that were asked.
    pub asked: u32,
    /// Of them, those that proved in time.
    pub ok: u32,
    /// Those that proved later.
    pub late: u32,
    /// Those that proved nothing.
    pub silent: u32,
    /// From the beginning to the last proof, ms.
    pub last_verdict_ms: u32,
}

/// Where in a list of rounds a part ended. As text, for who asks for the next one: `STARTED-GATEWAY-NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundPlace {
    /// When its last round began, seconds since 1970-01-01 UTC.
    pub started_at_s: u64,
    /// Who asked in it.
    pub gateway: GatewayId,
    /// Its number at that gateway.
    pub number: u32,
}

impl Display for RoundPlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.started_at_s, self.gateway.0, self.number)
    }
}

/// No place in a list of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a place in a list of rounds is three numbers with - between them")]
pub struct NoRoundPlace;

impl FromStr for RoundPlace {
    type Err = NoRoundPlace;

    fn from_str(text: &str) -> std::result::Result<Self, NoRoundPlace> {
        let mut numbers = text.split('-');
        let mut next = || numbers.next().ok_or(NoRoundPlace);
        let place = Self {
            started_at_s: next()?.parse().map_err(|_| NoRoundPlace)?,
            gateway: GatewayId(next()?.parse().map_err(|_| NoRoundPlace)?),
            number: next()?.parse().map_err(|_| NoRoundPlace)?,
        };
        match next() {
            Ok(_) => Err(NoRoundPlace),
            Err(NoRoundPlace) => Ok(place),
        }
    }
}

/// A part of a list of rounds, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPage {
    /// What is in it.
    pub rounds: Vec<RoundRecord>,
    /// Where it goes on; `None` at its end.
    pub next: Option<RoundPlace>,
}

/// How far behind all that is known a lost count goes on. What was reserved and is not on record must lie below: 256 times 256
/// numbers, as many as a gateway reserves at a time, times as many starts without a single round that was recorded.
///
/// Nothing but answers hangs on it: the same number under another nonce makes another block of the cipher, and devices, which
/// remember the highest number that they have seen, would not answer.
pub const LOST_NUMBERS: u32 = 65_536;

/// Numbers that one gateway alone may open rounds with.
#[derive(Debug)]
pub struct ReservedRounds {
    /// The numbers.
    pub numbers: Range<u32>,
    /// The count before was damaged or gone: what to tell the operator.
    pub damage: Option<RegistryError>,
}

/// Which number comes next.
enum Next {
    /// This one.
    Known(u32),
    /// Nobody knows. The newest round that is on record had this one; 0 if none is.
    Lost { highest: u32 },
}

impl Registry {
    /// Reserves the next numbers for rounds of this gateway, from 1 and not below `floor`, durably: no number comes twice,
    /// whatever becomes of the process. Near the end there may be fewer than `count`, which is at least 1.
    ///
    /// A floor that grows with time keeps numbers from coming again where an older copy of the registry was put back. A count
    /// that does not authenticate, or that is gone, is begun anew, [`LOST_NUMBERS`] behind the floor and all rounds that are
    /// known of, and [`ReservedRounds::damage`] says so.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`], [`RegistryError::NoRoundsLeft`], or a failure of the database.
    pub async fn reserve_rounds(&self, fence: &Fence, count: u32, floor: u32) -> Result<ReservedRounds> {
        let gateway = fence.gateway();
        let mut transaction = self.write().await?;
        self.check_fence(&mut transaction, fence).await?;
        let (next, damage) = match self.next_round(&mut transaction, gateway).await? {
            Next::Known(next) => (next.max(floor), None),
            Next::Lost { highest } => (
                highest.max(floor).saturating_add(LOST_NUMBERS),
                Some(RegistryError::DamagedRoundCount { gateway }),
            ),
        };
        let end = next.saturating_add(count.max(1));
        if end == next {
            return Err(RegistryError::NoRoundsLeft { gateway });
        }
        sql::query(
            "INSERT INTO round_number (gateway_id, next, mac) VALUES ($1, $2, $3) \
             ON CONFLICT (gateway_id) DO UPDATE SET next = excluded.next, mac = excluded.mac",
        )
        .bind(i64::from(gateway.0))
        .bind(i64::from(end))
        .bind(number_code(self.record_mac(), i64::from(gateway.0), i64::from(end)).finish())
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(ReservedRounds {
            numbers: next..end,
            damage,
        })
    }

    /// Stores how a round went, with the appraisals that it has changed, in one transaction, durable before it returns. Told
    /// again, it is overwritten. Each appraisal comes with the enrolment that was asked; those of devices that are no provers any
    /// more, or were enrolled anew since, are passed over.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`]; [`RegistryError::InvalidRound`] if round or appraisals are another gateway's, or the
    /// number was not reserved, as far as the count is sound; or a failure of the database. Nothing is stored then.
    pub async fn record_round(
        &self,
        fence: &Fence,
        round: &RoundRecord,
        appraisals: &[(Appraisal, EnrolledAt)],
    ) -> Result<()> {
        let gateway = fence.gateway();
        let invalid = |problem: String| RegistryError::InvalidRound {
            gateway,
            number: round.number,
            problem,
        };
        if round.gateway != gateway {
            return Err(invalid(format!("it is said to be gateway {}'s", round.gateway)));
        }
        for at_s in [round.started_at_s, round.ended_at_s] {
            seconds(at_s).map_err(invalid)?;
        }
        let mut told = appraisals.iter();
        if let Some(problem) = told.find_map(|(appraisal, _)| appraisal.problem(gateway)) {
            return Err(invalid(problem));
        }
        let mut transaction = self.write().await?;
        self.check_fence(&mut transaction, fence).await?;
        let is_reserved = match self.next_round(&mut transaction, gateway).await? {
            Next::Known(next) => round.number < next,
            // What a gateway has found must not be lost with it.
            Next::Lost { .. } => true,
        };
        if round.number == 0 || !is_reserved {
            return Err(invalid("this number was never reserved".to_owned()));
        }
        self.write_round(&mut transaction, round).await?;
        self.write_appraisals(&mut transaction, appraisals).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// The newest rounds of a gateway, or of all, at most `limit`, newest first. Damaged ones are left out;
    /// [`Registry::check`] names them.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn rounds(&self, gateway: Option<GatewayId>, limit: u32) -> Result<Vec<RoundRecord>> {
        self.rounds_of(gateway, None, limit).await
    }

    /// The same of one group, or of all.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn rounds_of(
        &self,
        gateway: Option<GatewayId>,
        group: Option<&GroupName>,
        limit: u32,
    ) -> Result<Vec<RoundRecord>> {
        Ok(self.rounds_page(gateway, group, None, limit).await?.rounds)
    }

    /// The same behind a place in the list. Of damaged ones a part may have fewer than `limit`, and another one after it all the same.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn rounds_page(
        &self,
        gateway: Option<GatewayId>,
        group: Option<&GroupName>,
        after: Option<RoundPlace>,
        limit: u32,
    ) -> Result<RoundPage> {
        let mut query = Builder::new(concat!(
            "SELECT ",
            round_columns!(),
            " FROM attest_round WHERE 1 = 1"
        ));
        if let Some(group) = group {
            query.push(" AND group_name = ").push_bind(group.as_str());
        }
        let order = match gateway {
            Some(gateway) => {
                query.push(" AND gateway_id = ").push_bind(i64::from(gateway.0));
                if let Some(after) = after {
                    query.push(" AND number < ").push_bind(i64::from(after.number));
                }
                "number DESC"
            }
            None => {
                if let Some(after) = after {
                    push_behind(&mut query, after);
                }
                "started_at_s DESC, gateway_id, number DESC"
            }
        };
        query
            .push(" ORDER BY ")
            .push(order)
            .push(" LIMIT ")
            .push_bind(i64::from(limit) + 1);
        let mut rows: Vec<RoundRow> = query.build().fetch_all(self.reader()).await?;
        let is_more = rows.len() as u64 > u64::from(limit);
        rows.truncate(limit as usize);
        let mac = self.record_mac();
        let rounds: Vec<_> = rows
            .iter()
            .filter_map(|row| round_from_row(mac, row).ok())
            .collect();
        // What a damaged one says of its place is believed only where there is no other.
        let last = rounds.last().map(RoundRecord::place);
        let last = last.or_else(|| rows.last().map(place_of));
        Ok(RoundPage {
            rounds,
            next: last.filter(|_| is_more),
        })
    }

    /// The first number that was never reserved.
    async fn next_round(&self, connection: &mut Connection, gateway: GatewayId) -> Result<Next> {
        let row: Option<NumberRow> =
            sql::query("SELECT gateway_id, next, mac FROM round_number WHERE gateway_id = $1")
                .bind(i64::from(gateway.0))
                .fetch_optional(&mut *connection)
                .await?;
        let is_missing = row.is_none();
        if let Some(Ok(next)) = row.map(|row| number_from_row(self.record_mac(), &row)) {
            return Ok(Next::Known(next));
        }
        let rounds: Vec<RoundRow> = sql::query(concat!(
            "SELECT ",
            round_columns!(),
            " FROM attest_round WHERE gateway_id = $1 AND typeof(number) = 'integer' ORDER BY number DESC LIMIT $2"
        ))
        .bind(i64::from(gateway.0))
        .bind(i64::from(ROUNDS_KEPT))
        .fetch_all(connection)
        .await?;
        let mut sound = rounds
            .iter()
            .filter_map(|row| round_from_row(self.record_mac(), row).ok());
        Ok(match (sound.next(), is_missing) {
            (Some(newest), _) => Next::Lost {
                highest: newest.number,
            },
            (None, false) => Next::Lost { highest: 0 },
            // A gateway that has had none yet.
            (None, true) => Next::Known(1),
        })
    }

    async fn write_round(&self, connection: &mut Connection, round: &RoundRecord) -> Result<()> {
        let row = row_of(round);
        let code = code(self.record_mac(), &row).finish();
        sql::query(
            "INSERT INTO attest_round (gateway_id, number, group_name, period, started_at_s, ended_at_s, \
             asked, ok, late, silent, last_verdict_ms, mac) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
             ON CONFLICT (gateway_id, number) DO UPDATE SET group_name = excluded.group_name, period = excluded.period, \
             started_at_s = excluded.started_at_s, ended_at_s = excluded.ended_at_s, asked = excluded.asked, ok = excluded.ok, \
             late = excluded.late, silent = excluded.silent, last_verdict_ms = excluded.last_verdict_ms, mac = excluded.mac",
        )
        .bind(row.0.0)
        .bind(row.1.0)
        .bind(round.group.as_str())
        .bind(row.3.0)
        .bind(row.4.0)
        .bind(row.5.0)
        .bind(row.6.0)
        .bind(row.7.0)
        .bind(row.8.0)
        .bind(row.9.0)
        .bind(row.10.0)
        .bind(code)
        .execute(&mut *connection)
        .await?;
        sql::query(
            "DELETE FROM attest_round WHERE gateway_id = $1 AND number <= \
             (SELECT number FROM attest_round WHERE gateway_id = $1 ORDER BY number DESC LIMIT 1 OFFSET $2) \
             AND number NOT IN (SELECT MAX(number) FROM attest_round WHERE gateway_id = $1 \
             AND group_name IN (SELECT name FROM attest_group) GROUP BY group_name)",
        )
        .bind(i64::from(round.gateway.0))
        .bind(i64::from(ROUNDS_KEPT))
        .execute(connection)
        .await?;
        Ok(())
    }

    pub(super) async fn damaged_rounds(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let mac = self.record_mac();
        let numbers: Vec<NumberRow> = sql::query("SELECT gateway_id, next, mac FROM round_number")
            .fetch_all(&mut *connection)
            .await?;
        let mut found: Vec<RegistryError> = numbers
            .iter()
            .filter_map(|row| number_from_row(mac, row).err())
            .collect();
        // A count that was deleted, or put back to an older state.
        let behind: Vec<(Stored<i64>,)> = sql::query(
            "SELECT DISTINCT attest_round.gateway_id FROM attest_round \
             LEFT JOIN round_number ON round_number.gateway_id = attest_round.gateway_id \
             WHERE round_number.next IS NULL OR attest_round.number >= round_number.next \
             AND typeof(attest_round.number) = 'integer'",
        )
        .fetch_all(&mut *connection)
        .await?;
        found.extend(behind.iter().map(|(gateway,)| damaged_count(gateway.0)));
        let mut pages = Pages::new();
        while let Some(rows) = pages
            .next::<RoundRow>(
                connection,
                concat!(
                    "SELECT ",
                    round_columns!(),
                    ", rowid AS place FROM attest_round WHERE rowid >= $1 ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            found.extend(rows.iter().filter_map(|row| round_from_row(mac, row).err()));
        }
        Ok(found)
    }
}

impl RoundRecord {
    fn place(&self) -> RoundPlace {
        RoundPlace {
            started_at_s: self.started_at_s,
            gateway: self.gateway,
            number: self.number,
        }
    }
}

/// Where a row stands, whatever is wrong with it.
fn place_of((gateway, number, _, _, started, ..): &RoundRow) -> RoundPlace {
    let column = |value: &Stored<i64>| u32::try_from(value.0).unwrap_or_default();
    RoundPlace {
        started_at_s: u64::try_from(started.0).unwrap_or_default(),
        gateway: GatewayId(column(gateway)),
        number: column(number),
    }
}

/// Behind that place in the order of beginnings, newest first, of gateways, and of numbers, newest first.
fn push_behind(query: &mut Builder, after: RoundPlace) {
    let started_at_s = i64::try_from(after.started_at_s).unwrap_or(i64::MAX);
    query
        .push(" AND (started_at_s < ")
        .push_bind(started_at_s)
        .push(" OR (started_at_s = ")
        .push_bind(started_at_s)
        .push(" AND (gateway_id > ")
        .push_bind(i64::from(after.gateway.0))
        .push(" OR (gateway_id = ")
        .push_bind(i64::from(after.gateway.0))
        .push(" AND number < ")
        .push_bind(i64::from(after.number))
        .push("))))");
}

/// A row of `round_number`: gateway, next, mac.
type NumberRow = (Stored<i64>, Stored<i64>, Stored<Vec<u8>>);

/// A row of `attest_round`.
type RoundRow = (
    Stored<i64>,
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<i64>,
    Stored<Vec<u8>>,
);

fn damaged_count(column: i64) -> RegistryError {
    RegistryError::DamagedRoundCount {
        gateway: GatewayId(u32::try_from(column).unwrap_or(u32::MAX)),
    }
}

fn number_code(mac: &RecordMac, gateway: i64, next: i64) -> RowCode {
    mac.row(NUMBER_LABEL).number(gateway).number(next)
}

fn number_from_row(mac: &RecordMac, (gateway, next, code): &NumberRow) -> Result<u32> {
    let is_sound = number_code(mac, gateway.0, next.0).is(&code.0);
    let next = u32::try_from(next.0).ok().filter(|_| is_sound);
    next.ok_or_else(|| damaged_count(gateway.0))
}

/// Without its code.
fn row_of(round: &RoundRecord) -> RoundRow {
    let number = |value: u32| Stored(i64::from(value));
    (
        number(round.gateway.0),
        number(round.number),
        Stored(round.group.as_str().as_bytes().to_vec()),
        Stored(round.period.0.cast_signed()),
        Stored(round.started_at_s.cast_signed()),
        Stored(round.ended_at_s.cast_signed()),
        number(round.asked),
        number(round.ok),
        number(round.late),
        number(round.silent),
        number(round.last_verdict_ms),
        Stored(Vec::new()),
    )
}

fn code(mac: &RecordMac, row: &RoundRow) -> RowCode {
    let (gateway, number, group, period, started, ended, asked, ok, late, silent, last, _) = row;
    [
        gateway, number, period, started, ended, asked, ok, late, silent, last,
    ]
    .into_iter()
    .fold(mac.row(LABEL).bytes(&group.0), |code, number| {
        code.number(number.0)
    })
}

fn round_from_row(mac: &RecordMac, row: &RoundRow) -> Result<RoundRecord> {
    let column = |value: &Stored<i64>| u32::try_from(value.0).unwrap_or(u32::MAX);
    let damaged = || RegistryError::DamagedRound {
        gateway: GatewayId(column(&row.0)),
        number: column(&row.1),
    };
    if !code(mac, row).is(&row.11.0) {
        return Err(damaged());
    }
    decoded(row).ok_or_else(damaged)
}

/// Of a row that authenticates; `None` if another program's.
fn decoded(row: &RoundRow) -> Option<RoundRecord> {
    let (gateway, number, group, period, started, ended, asked, ok, late, silent, last, _) = row;
    let column = |value: &Stored<i64>| u32::try_from(value.0).ok();
    Some(RoundRecord {
        gateway: GatewayId(column(gateway)?),
        number: column(number)?,
        group: GroupName::from_column(&group.0)?,
        period: Period(period.0.cast_unsigned()),
        started_at_s: u64::try_from(started.0).ok()?,
        ended_at_s: u64::try_from(ended.0).ok()?,
        asked: column(asked)?,
        ok: column(ok)?,
        late: column(late)?,
        silent: column(silent)?,
        last_verdict_ms: column(last)?,
    })
}
