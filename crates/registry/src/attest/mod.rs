//! Attestation: provers, reference values and results (LAP/1 3.2, 3.3).
//!
//! A *prover* is a device with an attestation key. A prover belongs to a *group*, which has a schedule and a reference
//! value. A *period* is common to all gateways and has a number and a salt. The salt is created ahead of time and is
//! secret until the period starts. The numbers of a gateway's *rounds* are reserved ahead of time, so that no number is
//! used twice.
//! *Appraisals* record the attestation states of provers; *evidence* is a document that explains a device's
//! measurement.
//!
//! Keys, salts and evidence are sealed; all other columns are authenticated, each table under its own label. Provers
//! and groups share one counter of revisions; a gateway requests the changes after the last revision that it has
//! received.

mod appraisals;
mod enrollment;
mod evidence;
mod groups;
mod periods;
mod provers;
mod rounds;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use self::appraisals::{Appraisal, AppraisalPage, AttestationState, MISSED_ROUNDS_MAX};
pub use self::enrollment::{BINDING_BYTES_MAX, NewProver, OVERLAY_BYTES_MAX};
pub use self::evidence::EVIDENCE_BYTES_MAX;
pub use self::groups::{Group, GroupList, NewGroup, RollOut};
pub use self::periods::{PERIODS_MAX, PeriodRecord};
use self::provers::deleted_provers;
pub use self::provers::{Protection, ProverIdPage, ProverLocation, ProverPage, ProverRecord};
pub use self::rounds::{
    InvalidRoundCursor, LOST_COUNTER_GAP, ROUNDS_MAX, ReservedRounds, RoundCursor, RoundPage, RoundRecord,
};
use crate::error::{RegistryError, Result};
use crate::gateway::FencingToken;
use crate::sql::{self, Connection, FromRow, Row};
use crate::store::Registry;

/// Records per page.
const PAGE_RECORDS: i64 = 5_000;

/// Reads all records of a table, page by page, in the order of their positions. The order does not depend on column
/// values, so no damaged record is missed.
struct Pages {
    /// The position at which the next page starts; `None` at the end.
    next: Option<i64>,
}

impl Pages {
    fn new() -> Self {
        Self { next: Some(i64::MIN) }
    }

    /// The next records; `None` at the end. The query starts at position $1, returns at most $2 records in the order of
    /// `rowid`, and returns `rowid` as `position`.
    async fn next<R>(&mut self, connection: &mut Connection, query: &'static str) -> Result<Option<Vec<R>>>
    where
        R: FromRow,
    {
        let Some(start) = self.next else {
            return Ok(None);
        };
        let records: Vec<PositionedRecord<R>> = sql::query(query)
            .bind(start)
            .bind(PAGE_RECORDS)
            .fetch_all(connection)
            .await?;
        self.next = records.last().and_then(|last| last.position.checked_add(1));
        Ok(Some(
            records.into_iter().map(|positioned| positioned.record).collect(),
        ))
    }
}

/// A record and its position in its table.
struct PositionedRecord<R> {
    position: i64,
    record: R,
}

impl<R: FromRow> FromRow for PositionedRecord<R> {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        Ok(Self {
            position: row.last()?,
            record: R::from_row(row)?,
        })
    }
}

impl Registry {
    /// The revision of the newest change to any prover or group.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn attest_revision(&self) -> Result<u64> {
        let (revision,): (i64,) = sql::query("SELECT attest_revision FROM registry")
            .fetch_one(self.reader())
            .await?;
        Ok(u64::try_from(revision).unwrap_or_default())
    }

    /// Raises the revision counter to at least the highest revision of all authentic provers and groups. Without this
    /// repair, gateways would not receive later changes after the counter was set back. Returns the newest revision. Reads
    /// all provers and groups.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`].
    pub async fn repair_attest_revision(&self, fencing_token: &FencingToken) -> Result<u64> {
        let mut transaction = self.write().await?;
        self.check_fencing_token(&mut transaction, fencing_token).await?;
        let groups = self.groups_in(&mut transaction).await?;
        let newest_of_groups = groups.iter().flatten().map(|group| group.revision).max();
        let newest_of_provers = self.newest_prover_revision(&mut transaction).await?;
        let newest = newest_of_groups.unwrap_or_default().max(newest_of_provers);
        let (revision,): (i64,) = sql::query(
            "UPDATE registry SET attest_revision = CASE WHEN attest_revision < $1 THEN $1 ELSE attest_revision END RETURNING attest_revision",
        )
        .bind(newest.cast_signed())
        .fetch_one(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(u64::try_from(revision).unwrap_or_default())
    }

    /// Errors of all records that do not authenticate or do not open, for [`Registry::check`].
    pub(crate) async fn damaged_attestation(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<RegistryError>> {
        let mut damaged = self.damaged_groups(connection).await?;
        damaged.extend(self.damaged_provers(connection).await?);
        damaged.extend(deleted_provers(connection).await?);
        damaged.extend(self.damaged_periods(connection).await?);
        damaged.extend(self.damaged_rounds(connection).await?);
        damaged.extend(self.damaged_appraisals(connection).await?);
        damaged.extend(self.damaged_evidence(connection).await?);
        Ok(damaged)
    }
}

/// Takes the next revision of provers and groups in the caller's transaction.
async fn next_attest_revision(connection: &mut Connection) -> Result<i64> {
    let (revision,): (i64,) =
        sql::query("UPDATE registry SET attest_revision = attest_revision + 1 RETURNING attest_revision")
            .fetch_one(connection)
            .await?;
    Ok(revision)
}

fn address_to_column(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address_from_column(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|octets| Ipv4Addr::from(octets).into());
    let v6 = <[u8; 16]>::try_from(bytes).map(|octets| Ipv6Addr::from(octets).into());
    v4.or(v6).ok()
}

/// Converts a time to its column value; the error names the problem.
fn seconds(at_s: u64) -> std::result::Result<i64, String> {
    i64::try_from(at_s).map_err(|_| "not a valid time in seconds since 1970".to_owned())
}
