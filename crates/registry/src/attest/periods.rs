//! Periods: one number for all gateways, each with a salt that nobody knows before it begins.

use std::fmt;

use linewarden_protocol::ids::Period;

use super::seconds;
use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::record_mac::{RecordMac, RowCode};
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table period v1";
/// Periods that are kept, the newest: more than a year of an hour each.
pub const PERIODS_KEPT: u32 = 10_000;

/// The columns of [`PeriodRow`], in its order, as a literal for `concat!`.
macro_rules! period_columns {
    () => {
        "number, sealed, drawn_at_s, begun_at_s, mac"
    };
}

/// A period.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeriodRecord {
    /// Its number, from 1.
    pub number: Period,
    /// Random; secret until the period begins.
    pub salt: [u8; 8],
    /// When it was drawn, seconds since 1970-01-01 UTC.
    pub drawn_at_s: u64,
    /// When the first gateway began it.
    pub begun_at_s: Option<u64>,
}

impl fmt::Debug for PeriodRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeriodRecord")
            .field("number", &self.number)
            .field("drawn_at_s", &self.drawn_at_s)
            .field("begun_at_s", &self.begun_at_s)
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// The newest period that was drawn; `None` before the first.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn newest_period(&self) -> Result<Option<PeriodRecord>> {
        self.newest(false).await
    }

    /// The newest period that has begun, which all gateways follow; `None` before the first.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn newest_begun_period(&self) -> Result<Option<PeriodRecord>> {
        self.newest(true).await
    }

    /// A period; `None` if it was never drawn, or is long over.
    ///
    /// # Errors
    /// [`RegistryError::DamagedPeriod`], or a failure of the database.
    pub async fn period(&self, number: Period) -> Result<Option<PeriodRecord>> {
        let mut connection = self.reader().acquire().await?;
        self.period_in(&mut connection, number).await
    }

    /// The period after `after`: the lowest above it if there is one already, else a new one with this salt. It is durable
    /// before it is here.
    ///
    /// # Errors
    /// [`RegistryError::Damaged`] if the numbers are used up, or a failure of the database.
    pub async fn draw_period(
        &self,
        after: Option<Period>,
        salt: [u8; 8],
        now_s: u64,
    ) -> Result<PeriodRecord> {
        let drawn_at_s = seconds(now_s).map_err(|detail| RegistryError::Damaged { detail })?;
        let after = i64::try_from(after.map_or(0, |after| after.0)).unwrap_or(i64::MAX);
        let mut transaction = self.write().await?;
        let above: Vec<PeriodRow> = sql::query(concat!(
            "SELECT ",
            period_columns!(),
            " FROM period WHERE number > $1 AND number <= 9223372036854775807 ORDER BY number"
        ))
        .bind(after)
        .fetch_all(&mut *transaction)
        .await?;
        // One that is damaged cannot be begun: the next takes its place.
        if let Some(period) = above.iter().find_map(|row| self.period_from_row(row).ok()) {
            // Gateways ask for it twice a second: the next to write shall not wait until it has been dropped in the background.
            transaction.rollback().await?;
            return Ok(period);
        }
        let highest = above.last().map_or(after, |row| row.0.0.max(after));
        let number = highest.checked_add(1).ok_or_else(|| RegistryError::Damaged {
            detail: "no number is left for a period".to_owned(),
        })?;
        let period = PeriodRecord {
            number: Period(number.cast_unsigned()),
            salt,
            drawn_at_s: drawn_at_s.cast_unsigned(),
            begun_at_s: None,
        };
        let sealed = self.sealer().seal(&aad(period.number), salt.len(), |out| {
            out.extend_from_slice(&salt)
        })?;
        self.write_period(&mut transaction, &period, sealed).await?;
        sql::query("DELETE FROM period WHERE number <= $1")
            .bind(number.saturating_sub(i64::from(PERIODS_KEPT)))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(period)
    }

    /// Takes note that a period has begun. One that has begun already stays as it is.
    ///
    /// # Errors
    /// [`RegistryError::UnknownPeriod`], [`RegistryError::DamagedPeriod`], or a failure of the database.
    pub async fn begin_period(&self, number: Period, now_s: u64) -> Result<PeriodRecord> {
        let begun_at_s = seconds(now_s).map_err(|detail| RegistryError::Damaged { detail })?;
        let mut transaction = self.write().await?;
        let row = period_row(&mut transaction, number).await?;
        let row = row.ok_or(RegistryError::UnknownPeriod { period: number })?;
        let mut period = self.period_from_row(&row)?;
        if period.begun_at_s.is_none() {
            period.begun_at_s = Some(begun_at_s.cast_unsigned());
            self.write_period(&mut transaction, &period, row.1.0).await?;
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        Ok(period)
    }

    async fn newest(&self, begun: bool) -> Result<Option<PeriodRecord>> {
        let mut connection = self.reader().acquire().await?;
        let mut below = i64::MAX;
        // Damaged ones are passed by.
        loop {
            let row: Option<PeriodRow> = sql::query(concat!(
                "SELECT ",
                period_columns!(),
                " FROM period WHERE number < $1 AND typeof(number) = 'integer' AND (begun_at_s IS NOT NULL OR NOT $2) \
                 ORDER BY number DESC LIMIT 1"
            ))
            .bind(below)
            .bind(begun)
            .fetch_optional(&mut connection)
            .await?;
            let Some(row) = row else {
                return Ok(None);
            };
            if let Ok(period) = self.period_from_row(&row) {
                return Ok(Some(period));
            }
            below = row.0.0;
        }
    }

    async fn period_in(&self, connection: &mut Connection, number: Period) -> Result<Option<PeriodRecord>> {
        let row = period_row(connection, number).await?;
        row.map(|row| self.period_from_row(&row)).transpose()
    }

    pub(super) async fn damaged_periods(&self, connection: &mut Connection) -> Result<Vec<RegistryError>> {
        let rows: Vec<PeriodRow> = sql::query(concat!("SELECT ", period_columns!(), " FROM period"))
            .fetch_all(connection)
            .await?;
        Ok(rows
            .iter()
            .filter_map(|row| self.period_from_row(row).err())
            .collect())
    }

    async fn write_period(
        &self,
        connection: &mut Connection,
        period: &PeriodRecord,
        sealed: Vec<u8>,
    ) -> Result<()> {
        let row = (
            Stored(period.number.0.cast_signed()),
            Stored(sealed),
            Stored(period.drawn_at_s.cast_signed()),
            Stored(period.begun_at_s.map(u64::cast_signed)),
            Stored(Vec::new()),
        );
        let code = code(self.record_mac(), &row).finish();
        sql::query(
            "INSERT INTO period (number, sealed, drawn_at_s, begun_at_s, mac) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (number) DO UPDATE SET begun_at_s = excluded.begun_at_s, mac = excluded.mac",
        )
        .bind(row.0.0)
        .bind(row.1.0)
        .bind(row.2.0)
        .bind(row.3.0)
        .bind(code)
        .execute(connection)
        .await?;
        Ok(())
    }

    fn period_from_row(&self, row: &PeriodRow) -> Result<PeriodRecord> {
        let period = Period(row.0.0.cast_unsigned());
        let decoded = || {
            if !code(self.record_mac(), row).is(&row.4.0) {
                return None;
            }
            let plain = self.sealer().open(&aad(period), &row.1.0).ok()?;
            Some(PeriodRecord {
                number: period,
                salt: plain.as_slice().try_into().ok()?,
                drawn_at_s: u64::try_from(row.2.0).ok()?,
                begun_at_s: row.3.0.map(u64::try_from).transpose().ok()?,
            })
        };
        decoded().ok_or(RegistryError::DamagedPeriod { period })
    }
}

/// A row of `period`.
type PeriodRow = (
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<i64>,
    Stored<Option<i64>>,
    Stored<Vec<u8>>,
);

async fn period_row(connection: &mut Connection, number: Period) -> Result<Option<PeriodRow>> {
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

fn code(mac: &RecordMac, (number, sealed, drawn, begun, _): &PeriodRow) -> RowCode {
    mac.row(LABEL)
        .number(number.0)
        .bytes(&sealed.0)
        .number(drawn.0)
        .number_or_null(begun.0)
}
