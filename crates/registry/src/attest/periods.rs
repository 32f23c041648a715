//! Periods: numbered key periods common to all gateways, each with a salt that is secret until the period starts.

use std::fmt;

use linewarden_protocol::ids::Period;

use super::seconds;
use crate::column::ColumnValue;
use crate::error::{AttestationError, DatabaseError, RegistryError, Result};
use crate::record_tag::{RecordAuthenticator, TagBuilder};
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table period v1";
/// Number of periods that are kept: more than a year of periods of an hour each.
pub const PERIODS_MAX: u32 = 10_000;

/// The column names of [`PeriodColumns`], in the same order, as a literal for `concat!`.
macro_rules! period_columns {
    () => {
        "number, sealed, created_at_s, started_at_s, tag"
    };
}

/// A period.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeriodRecord {
    /// The number of the period, from 1.
    pub number: Period,
    /// Random; secret until the period begins.
    pub salt: [u8; 8],
    /// Time of creation, seconds since 1970-01-01 UTC.
    pub created_at_s: u64,
    /// Time at which the first gateway started the period.
    pub started_at_s: Option<u64>,
}

impl fmt::Debug for PeriodRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeriodRecord")
            .field("number", &self.number)
            .field("created_at_s", &self.created_at_s)
            .field("started_at_s", &self.started_at_s)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// The newest period; `None` if no period was created yet.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn newest_period(&self) -> Result<Option<PeriodRecord>> {
        self.newest_matching_period(false).await
    }

    /// The newest period that has started, which all gateways use; `None` if no period has started yet.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn newest_started_period(&self) -> Result<Option<PeriodRecord>> {
        self.newest_matching_period(true).await
    }

    /// A period; `None` if it was never created or was deleted.
    ///
    /// # Errors
    /// [`AttestationError::DamagedPeriod`], or a failure of the database.
    pub async fn period(&self, number: Period) -> Result<Option<PeriodRecord>> {
        let mut connection = self.reader().acquire().await?;
        self.period_in(&mut connection, number).await
    }

    /// The first existing period after `after`, or a new period with this salt if there is none. A new period is durable
    /// before the function returns.
    ///
    /// # Errors
    /// [`DatabaseError::Damaged`] if the numbers are used up, or a failure of the database.
    pub async fn create_period(
        &self,
        after: Option<Period>,
        salt: [u8; 8],
        now_s: u64,
    ) -> Result<PeriodRecord> {
        let created_at_s =
            seconds(now_s).map_err(|detail| RegistryError::Database(DatabaseError::Damaged { detail }))?;
        let after = i64::try_from(after.map_or(0, |after| after.0)).unwrap_or(i64::MAX);
        let mut transaction = self.write().await?;
        let later: Vec<PeriodColumns> = sql::query(concat!(
            "SELECT ",
            period_columns!(),
            " FROM period WHERE number > $1 AND number <= 9223372036854775807 ORDER BY number"
        ))
        .bind(after)
        .fetch_all(&mut *transaction)
        .await?;
        // A damaged period cannot be started: the first authentic period is used.
        if let Some(period) = later
            .iter()
            .find_map(|record| self.period_from_record(record).ok())
        {
            // Gateways call this function twice a second: the rollback completes before the next writer starts.
            transaction.rollback().await?;
            return Ok(period);
        }
        let highest = later.last().map_or(after, |record| record.0.0.max(after));
        let number = highest.checked_add(1).ok_or_else(|| {
            RegistryError::Database(DatabaseError::Damaged {
                detail: "no period number is left".to_owned(),
            })
        })?;
        let period = PeriodRecord {
            number: Period(number.cast_unsigned()),
            salt,
            created_at_s: created_at_s.cast_unsigned(),
            started_at_s: None,
        };
        let sealed = self.sealer().seal(&aad(period.number), salt.len(), |out| {
            out.extend_from_slice(&salt)
        })?;
        self.write_period(&mut transaction, &period, sealed).await?;
        sql::query("DELETE FROM period WHERE number <= $1")
            .bind(number.saturating_sub(i64::from(PERIODS_MAX)))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(period)
    }

    /// Records the start of a period. A period that has already started is not changed.
    ///
    /// # Errors
    /// [`AttestationError::UnknownPeriod`], [`AttestationError::DamagedPeriod`], or a failure of the database.
    pub async fn start_period(&self, number: Period, now_s: u64) -> Result<PeriodRecord> {
        let started_at_s =
            seconds(now_s).map_err(|detail| RegistryError::Database(DatabaseError::Damaged { detail }))?;
        let mut transaction = self.write().await?;
        let record = stored_period(&mut transaction, number).await?;
        let record = record.ok_or(RegistryError::Attestation(AttestationError::UnknownPeriod {
            period: number,
        }))?;
        let mut period = self.period_from_record(&record)?;
        if period.started_at_s.is_none() {
            period.started_at_s = Some(started_at_s.cast_unsigned());
            self.write_period(&mut transaction, &period, record.1.0).await?;
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        Ok(period)
    }

    /// The newest authentic period; if `is_started` is true, only periods that have started are considered.
    async fn newest_matching_period(&self, is_started: bool) -> Result<Option<PeriodRecord>> {
        let mut connection = self.reader().acquire().await?;
        let mut upper_bound = i64::MAX;
        // The loop skips damaged periods.
        loop {
            let record: Option<PeriodColumns> = sql::query(concat!(
                "SELECT ",
                period_columns!(),
                " FROM period WHERE number < $1 AND typeof(number) = 'integer' AND (started_at_s IS NOT NULL OR NOT $2) \
                 ORDER BY number DESC LIMIT 1"
            ))
            .bind(upper_bound)
            .bind(is_started)
            .fetch_optional(&mut connection)
            .await?;
            let Some(record) = record else {
                return Ok(None);
            };
            if let Ok(period) = self.period_from_record(&record) {
                return Ok(Some(period));
            }
            upper_bound = record.0.0;
        }
    }

    async fn period_in(&self, connection: &mut Connection, number: Period) -> Result<Option<PeriodRecord>> {
        let record = stored_period(connection, number).await?;
        record.map(|record| self.period_from_record(&record)).transpose()
    }

    pub(super) async fn damaged_periods(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let records: Vec<PeriodColumns> = sql::query(concat!("SELECT ", period_columns!(), " FROM period"))
            .fetch_all(connection)
            .await?;
        Ok(records
            .iter()
            .filter_map(|record| self.period_from_record(record).err())
            .collect())
    }

    async fn write_period(
        &self,
        connection: &mut Connection,
        period: &PeriodRecord,
        sealed: Vec<u8>,
    ) -> Result<()> {
        let record = (
            ColumnValue(period.number.0.cast_signed()),
            ColumnValue(sealed),
            ColumnValue(period.created_at_s.cast_signed()),
            ColumnValue(period.started_at_s.map(u64::cast_signed)),
            ColumnValue(Vec::new()),
        );
        let tag = tag(self.authenticator(), &record).finish();
        sql::query(
            "INSERT INTO period (number, sealed, created_at_s, started_at_s, tag) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (number) DO UPDATE SET started_at_s = excluded.started_at_s, tag = excluded.tag",
        )
        .bind(record.0.0)
        .bind(record.1.0)
        .bind(record.2.0)
        .bind(record.3.0)
        .bind(tag)
        .execute(connection)
        .await?;
        Ok(())
    }

    fn period_from_record(&self, record: &PeriodColumns) -> Result<PeriodRecord> {
        let period = Period(record.0.0.cast_unsigned());
        let decoded = || {
            if !tag(self.authenticator(), record).matches(&record.4.0) {
                return None;
            }
            let plain = self.sealer().open(&aad(period), &record.1.0).ok()?;
            Some(PeriodRecord {
                number: period,
                salt: plain.as_slice().try_into().ok()?,
                created_at_s: u64::try_from(record.2.0).ok()?,
                started_at_s: record.3.0.map(u64::try_from).transpose().ok()?,
            })
        };
        decoded().ok_or(RegistryError::Attestation(AttestationError::DamagedPeriod {
            period,
        }))
    }
}

/// The columns of `period`.
type PeriodColumns = (
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<Option<i64>>,
    ColumnValue<Vec<u8>>,
);

async fn stored_period(connection: &mut Connection, number: Period) -> Result<Option<PeriodColumns>> {
    Ok(sql::query(concat!(
        "SELECT ",
        period_columns!(),
        " FROM period WHERE number = $1"
    ))
    .bind(number.0.cast_signed())
    .fetch_optional(connection)
    .await?)
}

fn aad(period: Period) -> Vec<u8> {
    [LABEL, &period.0.to_be_bytes()].concat()
}

fn tag(
    authenticator: &RecordAuthenticator,
    (number, sealed, created_at_s, started_at_s, _): &PeriodColumns,
) -> TagBuilder {
    authenticator
        .begin(LABEL)
        .number(number.0)
        .bytes(&sealed.0)
        .number(created_at_s.0)
        .number_or_null(started_at_s.0)
}
