//! Attestation: which devices prove what they run, what they are to run, and how they stand (LAP/1 3.2, 3.3).
//!
//! A *prover* is a device with an attestation key; it belongs to a *group*, which says how often its provers are asked and
//! what they are to run. *Periods* are common to all gateways: a number and a salt, drawn ahead and kept secret until the
//! period begins. The numbers of a gateway's *rounds* are reserved ahead, so that none is used twice. *Appraisals* say how
//! provers stand, *evidence* is what a device has sent to explain itself.
//!
//! Keys, salts and evidence are sealed; everything else is authenticated, each table under its own label. Provers and
//! groups share one counter of revisions: who has seen up to one asks for what is newer.

mod appraisals;
mod enrolment;
mod evidence;
mod groups;
mod periods;
mod provers;
mod rounds;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use self::appraisals::{Appraisal, AppraisalPage, SILENCES_MAX, State};
pub use self::enrolment::{BINDING_BYTES_MAX, EnrolledAt, NewProver, OVERLAY_BYTES_MAX};
pub use self::evidence::EVIDENCE_BYTES_MAX;
pub use self::groups::{Group, GroupList, GroupName, GroupNameError, GroupPolicy, NewGroup, Reopen, RollOut};
pub use self::periods::{PERIODS_KEPT, PeriodRecord};
use self::provers::missing_provers;
pub use self::provers::{Home, Protection, ProverIdPage, ProverPage, ProverRecord};
pub use self::rounds::{
    LOST_NUMBERS, NoRoundPlace, ROUNDS_KEPT, ReservedRounds, RoundPage, RoundPlace, RoundRecord,
};
use crate::error::{RegistryError, Result};
use crate::gateway::Fence;
use crate::sql::{self, Connection, FromRow, Row};
use crate::store::Registry;

/// Rows of a page.
const PAGE_ROWS: i64 = 5_000;

/// All rows of a table, page by page, in the order in which they lie in it: whatever stands in their columns, none is missed.
struct Pages {
    /// From which place on; `None` at the end.
    next: Option<i64>,
}

impl Pages {
    fn new() -> Self {
        Self { next: Some(i64::MIN) }
    }

    /// The next rows; `None` at the end. The query begins at the place $1, has $2 rows at most in the order of `rowid`, and calls
    /// that `place`.
    async fn next<R>(&mut self, connection: &mut Connection, query: &'static str) -> Result<Option<Vec<R>>>
    where
        R: FromRow,
    {
        let Some(from) = self.next else {
            return Ok(None);
        };
        let rows: Vec<Placed<R>> = sql::query(query)
            .bind(from)
            .bind(PAGE_ROWS)
            .fetch_all(connection)
            .await?;
        self.next = rows.last().and_then(|last| last.place.checked_add(1));
        Ok(Some(rows.into_iter().map(|placed| placed.row).collect()))
    }
}

/// A row and its place in its table.
struct Placed<R> {
    place: i64,
    row: R,
}

impl<R: FromRow> FromRow for Placed<R> {
    fn from_row(row: &Row<'_>) -> sqlx::Result<Self> {
        Ok(Self {
            place: row.last()?,
            row: R::from_row(row)?,
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

    /// Lifts the count of changes to where provers and groups are that authenticate, if somebody has put it back: what comes then is
    /// new again to who follows. Returns the newest revision. It looks at all of them.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`], or a failure of the database.
    pub async fn mend_attest_revision(&self, fence: &Fence) -> Result<u64> {
        let mut transaction = self.write().await?;
        self.check_fence(&mut transaction, fence).await?;
        let groups = self.groups_in(&mut transaction).await?;
        let of_groups = groups.iter().flatten().map(|group| group.revision).max();
        let of_provers = self.newest_of_provers(&mut transaction).await?;
        let newest = of_groups.unwrap_or_default().max(of_provers);
        let (revision,): (i64,) = sql::query(
            "UPDATE registry SET attest_revision = CASE WHEN attest_revision < $1 THEN $1 ELSE attest_revision END RETURNING attest_revision",
        )
        .bind(newest.cast_signed())
        .fetch_one(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(u64::try_from(revision).unwrap_or_default())
    }

    /// What does not authenticate or open, for [`Registry::check`].
    pub(crate) async fn damaged_attestation(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<RegistryError>> {
        let mut found = self.damaged_groups(connection).await?;
        found.extend(self.damaged_provers(connection).await?);
        found.extend(missing_provers(connection).await?);
        found.extend(self.damaged_periods(connection).await?);
        found.extend(self.damaged_rounds(connection).await?);
        found.extend(self.damaged_appraisals(connection).await?);
        found.extend(self.damaged_evidence(connection).await?);
        Ok(found)
    }
}

/// Takes the next revision of provers and groups within the caller's transaction.
async fn advance(connection: &mut Connection) -> Result<i64> {
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

/// A time, or why it is none.
fn seconds(at_s: u64) -> std::result::Result<i64, String> {
    i64::try_from(at_s).map_err(|_| "not a time in seconds since 1970".to_owned())
}
