//! Attestation rounds: unique numbers and results.

use super::groups::group_name_from_column;
use std::fmt::{Display, Formatter};
use std::ops::Range;
use std::str::FromStr;

use linewarden_protocol::ids::{GatewayId, Period};
use linewarden_types::{EnrollmentTime, GroupName};

use super::appraisals::Appraisal;
use super::{Pages, seconds};
use crate::column::ColumnValue;
use crate::error::{AttestationError, RegistryError, Result};
use crate::gateway::FencingToken;
use crate::record_tag::{RecordAuthenticator, TagBuilder};
use crate::sql::{self, Builder, Connection};
use crate::store::Registry;

const NUMBER_LABEL: &[u8] = b"linewarden registry table round_counter v1";
const LABEL: &[u8] = b"linewarden registry table attest_round v1";
/// Number of rounds that are kept for each gateway. In addition, the newest round of each existing group is kept.
pub const ROUNDS_MAX: u32 = 1_000;

/// The column names of [`RoundColumns`], in the same order, as a literal for `concat!`.
macro_rules! round_columns {
    () => {
        "gateway_id, number, group_name, period, started_at_s, ended_at_s, requested, ok, late, missed, last_proof_ms, tag"
    };
}

/// The result of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRecord {
    /// The gateway.
    pub gateway: GatewayId,
    /// The number of the round at that gateway, from 1.
    pub number: u32,
    /// The group.
    pub group: GroupName,
    /// The key period of the proofs.
    pub period: Period,
    /// Start, seconds since 1970-01-01 UTC.
    pub started_at_s: u64,
    /// End, seconds since 1970-01-01 UTC.
    pub ended_at_s: u64,
    /// Number of provers that were challenged in the round.
    pub requested: u32,
    /// Provers with a valid proof in time.
    pub ok: u32,
    /// Provers with a valid proof after the deadline.
    pub late: u32,
    /// Provers without a valid proof.
    pub missed: u32,
    /// Time from the start to the last proof, ms.
    pub last_proof_ms: u32,
}

/// A position in a list of rounds, at the end of a page. As text: `STARTED-GATEWAY-NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundCursor {
    /// Start of the last round of the page, seconds since 1970-01-01 UTC.
    pub started_at_s: u64,
    /// The gateway of the last round of the page.
    pub gateway: GatewayId,
    /// The number of the last round of the page at the gateway.
    pub number: u32,
}

impl Display for RoundCursor {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.started_at_s, self.gateway.0, self.number)
    }
}

/// A text that is not a position in a list of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid position in a list of rounds: expected three numbers separated by -")]
pub struct InvalidRoundCursor;

impl FromStr for RoundCursor {
    type Err = InvalidRoundCursor;

    fn from_str(text: &str) -> std::result::Result<Self, InvalidRoundCursor> {
        let mut numbers = text.split('-');
        let mut next = || numbers.next().ok_or(InvalidRoundCursor);
        let cursor = Self {
            started_at_s: next()?.parse().map_err(|_| InvalidRoundCursor)?,
            gateway: GatewayId(next()?.parse().map_err(|_| InvalidRoundCursor)?),
            number: next()?.parse().map_err(|_| InvalidRoundCursor)?,
        };
        match next() {
            Ok(_) => Err(InvalidRoundCursor),
            Err(InvalidRoundCursor) => Ok(cursor),
        }
    }
}

/// A page of a list of rounds, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPage {
    /// The rounds.
    pub rounds: Vec<RoundRecord>,
    /// The position to continue after; `None` at the end.
    pub next: Option<RoundCursor>,
}

/// The distance from the highest known number at which a lost counter continues. The distance must exceed all numbers
/// that were reserved without a recorded round; 65,536 numbers are 256 reservations of 256 numbers each.
///
/// A repeated number would affect availability only: the same number with another nonce produces another block of the
/// cipher, and devices ignore numbers that are not higher than the highest number received.
pub const LOST_COUNTER_GAP: u32 = 65_536;

/// Round numbers that are reserved for one gateway.
#[derive(Debug)]
pub struct ReservedRounds {
    /// The numbers.
    pub numbers: Range<u32>,
    /// The error to report if the counter was damaged or missing; `None` for an authentic counter.
    pub damage: Option<RegistryError>,
}

/// The next round number of a gateway.
enum NextRound {
    /// The counter is authentic.
    Known(u32),
    /// The counter is lost. `highest` is the number of the newest recorded round; 0 without rounds.
    Lost { highest: u32 },
}

impl Registry {
    /// Reserves the next round numbers of this gateway, from 1 and not below `floor`. The reservation is durable: no
    /// number is reserved twice, even after a crash. Near the end of the range, fewer than `count` numbers may be
    /// reserved, but at least 1.
    ///
    /// A floor that increases with time prevents the reuse of numbers after a restore of an older registry. A counter
    /// that is missing or does not authenticate continues [`LOST_COUNTER_GAP`] numbers above the floor and all known
    /// rounds; [`ReservedRounds::damage`] reports the damage.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`], and [`AttestationError::RoundNumbersExhausted`].
    pub async fn reserve_rounds(
        &self,
        fencing_token: &FencingToken,
        count: u32,
        floor: u32,
    ) -> Result<ReservedRounds> {
        let gateway = fencing_token.gateway();
        let mut transaction = self.write().await?;
        self.check_fencing_token(&mut transaction, fencing_token).await?;
        let (next, damage) = match self.next_round_number(&mut transaction, gateway).await? {
            NextRound::Known(next) => (next.max(floor), None),
            NextRound::Lost { highest } => (
                highest.max(floor).saturating_add(LOST_COUNTER_GAP),
                Some(RegistryError::Attestation(
                    AttestationError::DamagedRoundCounter { gateway },
                )),
            ),
        };
        let end = next.saturating_add(count.max(1));
        if end == next {
            return Err(RegistryError::Attestation(
                AttestationError::RoundNumbersExhausted { gateway },
            ));
        }
        sql::query(
            "INSERT INTO round_counter (gateway_id, next_number, tag) VALUES ($1, $2, $3) \
             ON CONFLICT (gateway_id) DO UPDATE SET next_number = excluded.next_number, tag = excluded.tag",
        )
        .bind(i64::from(gateway.0))
        .bind(i64::from(end))
        .bind(number_tag(self.authenticator(), i64::from(gateway.0), i64::from(end)).finish())
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(ReservedRounds {
            numbers: next..end,
            damage,
        })
    }

    /// Stores the result of a round and the changed appraisals in one transaction, durable before the function
    /// returns. A repeated result is overwritten. Each appraisal names the enrollment that was attested; appraisals
    /// of devices that are no longer provers, or were enrolled again since, are ignored.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`]; also [`AttestationError::InvalidRound`] if the round or an appraisal is of
    /// another gateway, or the number was not reserved while the counter is authentic. Nothing is stored then.
    pub async fn record_round(
        &self,
        fencing_token: &FencingToken,
        round: &RoundRecord,
        appraisals: &[(Appraisal, EnrollmentTime)],
    ) -> Result<()> {
        let gateway = fencing_token.gateway();
        let invalid = |problem: String| {
            RegistryError::Attestation(AttestationError::InvalidRound {
                gateway,
                number: round.number,
                problem,
            })
        };
        if round.gateway != gateway {
            return Err(invalid(format!("the round names gateway {}", round.gateway)));
        }
        for at_s in [round.started_at_s, round.ended_at_s] {
            seconds(at_s).map_err(invalid)?;
        }
        let mut appraisal_entries = appraisals.iter();
        if let Some(problem) = appraisal_entries.find_map(|(appraisal, _)| appraisal.problem(gateway)) {
            return Err(invalid(problem));
        }
        let mut transaction = self.write().await?;
        self.check_fencing_token(&mut transaction, fencing_token).await?;
        let is_reserved = match self.next_round_number(&mut transaction, gateway).await? {
            NextRound::Known(next) => round.number < next,
            // The loss of the counter must not cause the loss of results.
            NextRound::Lost { .. } => true,
        };
        if round.number == 0 || !is_reserved {
            return Err(invalid("the number was not reserved".to_owned()));
        }
        self.write_round(&mut transaction, round).await?;
        self.write_appraisals(&mut transaction, appraisals).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// The newest rounds of one gateway or of all gateways, at most `limit`, newest first. Damaged rounds are
    /// skipped; [`Registry::check`] reports them.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn rounds(&self, gateway: Option<GatewayId>, limit: u32) -> Result<Vec<RoundRecord>> {
        self.rounds_of_group(gateway, None, limit).await
    }

    /// The newest rounds of one gateway or of all gateways, and of one group or of all groups.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn rounds_of_group(
        &self,
        gateway: Option<GatewayId>,
        group: Option<&GroupName>,
        limit: u32,
    ) -> Result<Vec<RoundRecord>> {
        Ok(self.rounds_page(gateway, group, None, limit).await?.rounds)
    }

    /// The rounds after a position in the list. A page may contain fewer than `limit` rounds because of damaged rounds,
    /// and still have a next page.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn rounds_page(
        &self,
        gateway: Option<GatewayId>,
        group: Option<&GroupName>,
        after: Option<RoundCursor>,
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
                    push_after_cursor(&mut query, after);
                }
                "started_at_s DESC, gateway_id, number DESC"
            }
        };
        query
            .push(" ORDER BY ")
            .push(order)
            .push(" LIMIT ")
            .push_bind(i64::from(limit) + 1);
        let mut records: Vec<RoundColumns> = query.build().fetch_all(self.reader()).await?;
        let has_more = records.len() as u64 > u64::from(limit);
        records.truncate(limit as usize);
        let authenticator = self.authenticator();
        let rounds: Vec<_> = records
            .iter()
            .filter_map(|record| round_from_record(authenticator, record).ok())
            .collect();
        // The position of a damaged round is used only if the page has no authentic round.
        let last = rounds.last().map(RoundRecord::cursor);
        let last = last.or_else(|| records.last().map(cursor_from_record));
        Ok(RoundPage {
            rounds,
            next: last.filter(|_| has_more),
        })
    }

    /// The first round number of a gateway that is not reserved.
    async fn next_round_number(&self, connection: &mut Connection, gateway: GatewayId) -> Result<NextRound> {
        let record: Option<RoundCounterColumns> =
            sql::query("SELECT gateway_id, next_number, tag FROM round_counter WHERE gateway_id = $1")
                .bind(i64::from(gateway.0))
                .fetch_optional(&mut *connection)
                .await?;
        let is_missing = record.is_none();
        if let Some(Ok(next)) = record.map(|record| number_from_record(self.authenticator(), &record)) {
            return Ok(NextRound::Known(next));
        }
        let records: Vec<RoundColumns> = sql::query(concat!(
            "SELECT ",
            round_columns!(),
            " FROM attest_round WHERE gateway_id = $1 AND typeof(number) = 'integer' ORDER BY number DESC LIMIT $2"
        ))
        .bind(i64::from(gateway.0))
        .bind(i64::from(ROUNDS_MAX))
        .fetch_all(connection)
        .await?;
        let mut authentic = records
            .iter()
            .filter_map(|record| round_from_record(self.authenticator(), record).ok());
        Ok(match (authentic.next(), is_missing) {
            (Some(newest), _) => NextRound::Lost {
                highest: newest.number,
            },
            (None, false) => NextRound::Lost { highest: 0 },
            // Without a counter and rounds, the gateway has never reserved a number.
            (None, true) => NextRound::Known(1),
        })
    }

    async fn write_round(&self, connection: &mut Connection, round: &RoundRecord) -> Result<()> {
        let record = columns_from_round(round);
        let tag = tag(self.authenticator(), &record).finish();
        sql::query(
            "INSERT INTO attest_round (gateway_id, number, group_name, period, started_at_s, ended_at_s, \
             requested, ok, late, missed, last_proof_ms, tag) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
             ON CONFLICT (gateway_id, number) DO UPDATE SET group_name = excluded.group_name, period = excluded.period, \
             started_at_s = excluded.started_at_s, ended_at_s = excluded.ended_at_s, requested = excluded.requested, ok = excluded.ok, \
             late = excluded.late, missed = excluded.missed, last_proof_ms = excluded.last_proof_ms, tag = excluded.tag",
        )
        .bind(record.0.0)
        .bind(record.1.0)
        .bind(round.group.as_str())
        .bind(record.3.0)
        .bind(record.4.0)
        .bind(record.5.0)
        .bind(record.6.0)
        .bind(record.7.0)
        .bind(record.8.0)
        .bind(record.9.0)
        .bind(record.10.0)
        .bind(tag)
        .execute(&mut *connection)
        .await?;
        sql::query(
            "DELETE FROM attest_round WHERE gateway_id = $1 AND number <= \
             (SELECT number FROM attest_round WHERE gateway_id = $1 ORDER BY number DESC LIMIT 1 OFFSET $2) \
             AND number NOT IN (SELECT MAX(number) FROM attest_round WHERE gateway_id = $1 \
             AND group_name IN (SELECT name FROM attest_group) GROUP BY group_name)",
        )
        .bind(i64::from(round.gateway.0))
        .bind(i64::from(ROUNDS_MAX))
        .execute(connection)
        .await?;
        Ok(())
    }

    pub(super) async fn damaged_rounds(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let authenticator = self.authenticator();
        let counters: Vec<RoundCounterColumns> =
            sql::query("SELECT gateway_id, next_number, tag FROM round_counter")
                .fetch_all(&mut *connection)
                .await?;
        let mut damaged: Vec<RegistryError> = counters
            .iter()
            .filter_map(|record| number_from_record(authenticator, record).err())
            .collect();
        // Gateways with rounds whose counter was deleted or set back.
        let set_back: Vec<(ColumnValue<i64>,)> = sql::query(
            "SELECT DISTINCT attest_round.gateway_id FROM attest_round \
             LEFT JOIN round_counter ON round_counter.gateway_id = attest_round.gateway_id \
             WHERE round_counter.next_number IS NULL OR attest_round.number >= round_counter.next_number \
             AND typeof(attest_round.number) = 'integer'",
        )
        .fetch_all(&mut *connection)
        .await?;
        damaged.extend(set_back.iter().map(|(gateway,)| damaged_round_counter(gateway.0)));
        let mut pages = Pages::new();
        while let Some(records) = pages
            .next::<RoundColumns>(
                connection,
                concat!(
                    "SELECT ",
                    round_columns!(),
                    ", rowid AS position FROM attest_round WHERE rowid >= $1 ORDER BY rowid LIMIT $2"
                ),
            )
            .await?
        {
            damaged.extend(
                records
                    .iter()
                    .filter_map(|record| round_from_record(authenticator, record).err()),
            );
        }
        Ok(damaged)
    }
}

impl RoundRecord {
    fn cursor(&self) -> RoundCursor {
        RoundCursor {
            started_at_s: self.started_at_s,
            gateway: self.gateway,
            number: self.number,
        }
    }
}

/// The position of a round in the list, even if its record is damaged.
fn cursor_from_record((gateway, number, _, _, started, ..): &RoundColumns) -> RoundCursor {
    let column = |value: &ColumnValue<i64>| u32::try_from(value.0).unwrap_or_default();
    RoundCursor {
        started_at_s: u64::try_from(started.0).unwrap_or_default(),
        gateway: GatewayId(column(gateway)),
        number: column(number),
    }
}

/// Appends the condition for rounds after a position. The order is: start times, newest first; then gateways,
/// lowest first; then numbers, highest first.
fn push_after_cursor(query: &mut Builder, after: RoundCursor) {
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

/// The columns of `round_counter`: gateway, next number, tag.
type RoundCounterColumns = (ColumnValue<i64>, ColumnValue<i64>, ColumnValue<Vec<u8>>);

/// The columns of `attest_round`.
type RoundColumns = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

fn damaged_round_counter(column: i64) -> RegistryError {
    RegistryError::Attestation(AttestationError::DamagedRoundCounter {
        gateway: GatewayId(u32::try_from(column).unwrap_or(u32::MAX)),
    })
}

fn number_tag(authenticator: &RecordAuthenticator, gateway: i64, next: i64) -> TagBuilder {
    authenticator.begin(NUMBER_LABEL).number(gateway).number(next)
}

fn number_from_record(
    authenticator: &RecordAuthenticator,
    (gateway, next, tag): &RoundCounterColumns,
) -> Result<u32> {
    let is_authentic = number_tag(authenticator, gateway.0, next.0).matches(&tag.0);
    let next = u32::try_from(next.0).ok().filter(|_| is_authentic);
    next.ok_or_else(|| damaged_round_counter(gateway.0))
}

/// The columns of a round, with an empty tag.
fn columns_from_round(round: &RoundRecord) -> RoundColumns {
    let number = |value: u32| ColumnValue(i64::from(value));
    (
        number(round.gateway.0),
        number(round.number),
        ColumnValue(round.group.as_str().as_bytes().to_vec()),
        ColumnValue(round.period.0.cast_signed()),
        ColumnValue(round.started_at_s.cast_signed()),
        ColumnValue(round.ended_at_s.cast_signed()),
        number(round.requested),
        number(round.ok),
        number(round.late),
        number(round.missed),
        number(round.last_proof_ms),
        ColumnValue(Vec::new()),
    )
}

fn tag(authenticator: &RecordAuthenticator, record: &RoundColumns) -> TagBuilder {
    let (gateway, number, group, period, started, ended, requested, ok, late, missed, last, _) = record;
    [
        gateway, number, period, started, ended, requested, ok, late, missed, last,
    ]
    .into_iter()
    .fold(authenticator.begin(LABEL).bytes(&group.0), |tag, number| {
        tag.number(number.0)
    })
}

fn round_from_record(authenticator: &RecordAuthenticator, record: &RoundColumns) -> Result<RoundRecord> {
    let column = |value: &ColumnValue<i64>| u32::try_from(value.0).unwrap_or(u32::MAX);
    let damaged = || {
        RegistryError::Attestation(AttestationError::DamagedRound {
            gateway: GatewayId(column(&record.0)),
            number: column(&record.1),
        })
    };
    if !tag(authenticator, record).matches(&record.11.0) {
        return Err(damaged());
    }
    round_from_columns(record).ok_or_else(damaged)
}

/// Decodes a record that authenticates; `None` for unknown values.
fn round_from_columns(record: &RoundColumns) -> Option<RoundRecord> {
    let (gateway, number, group, period, started, ended, requested, ok, late, missed, last, _) = record;
    let column = |value: &ColumnValue<i64>| u32::try_from(value.0).ok();
    Some(RoundRecord {
        gateway: GatewayId(column(gateway)?),
        number: column(number)?,
        group: group_name_from_column(&group.0)?,
        period: Period(period.0.cast_unsigned()),
        started_at_s: u64::try_from(started.0).ok()?,
        ended_at_s: u64::try_from(ended.0).ok()?,
        requested: column(requested)?,
        ok: column(ok)?,
        late: column(late)?,
        missed: column(missed)?,
        last_proof_ms: column(last)?,
    })
}
