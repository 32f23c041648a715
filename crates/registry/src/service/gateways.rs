//! Gateway records: name, revocation, and last status report.

use linewarden_protocol::ids::GatewayId;

use super::{check_text, damaged_record, text};
use crate::column::ColumnValue;
use crate::conversion::seconds_to_column;
use crate::error::{FencingError, RegistryError, Result};
use crate::record_tag::RecordAuthenticator;
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table gateway_record v1";
const NAME_BYTES_MAX: usize = 255;
/// Maximum clock skew between controllers, ms: a recorded time further in the future is ignored.
pub const CLOCK_SKEW_MAX_MS: u64 = 10_000;

/// A gateway record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayRecord {
    /// The gateway id.
    pub gateway: GatewayId,
    /// The display name.
    pub name: String,
    /// Time of creation, seconds since 1970-01-01 UTC.
    pub created_at_s: u64,
    /// Time of the revocation, seconds since 1970-01-01 UTC, and the reason.
    pub revoked: Option<(u64, String)>,
    /// The newest fencing token; 0 before the first registration.
    pub fencing_token: u64,
    /// Time of the last registration, seconds since 1970-01-01 UTC.
    pub registered_at_s: Option<u64>,
}

/// The last status report of a gateway. The report is not authenticated, so no access decision may depend on the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayState {
    /// The gateway.
    pub gateway: GatewayId,
    /// Time of arrival, milliseconds since 1970-01-01 UTC, by the clock of the receiving controller.
    pub at_ms: u64,
    /// The receiving controller.
    pub controller: String,
    /// The report, as JSON.
    pub body: String,
}

/// The columns of `gateway_record`: id, name, creation, revocation, reason, tag; and of `gateway`: fencing token and time of
/// the last registration.
type GatewayRecordColumns = (
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<Option<i64>>,
    ColumnValue<Option<Vec<u8>>>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Option<i64>>,
    ColumnValue<Option<i64>>,
);

const SELECT_GATEWAY_RECORDS: &str = "SELECT gateway_record.gateway_id, gateway_record.name, gateway_record.created_at_s, gateway_record.revoked_at_s, \
     gateway_record.revoked_reason, gateway_record.tag, gateway.fencing_token, gateway.registered_at_s \
     FROM gateway_record LEFT JOIN gateway ON gateway.gateway_id = gateway_record.gateway_id \
     WHERE gateway_record.gateway_id >= $1 AND gateway_record.gateway_id <= $2 ORDER BY gateway_record.gateway_id";

/// The columns of `gateway_state`: gateway, at, controller, body.
type GatewayStateColumns = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<Vec<u8>>,
);

fn tag(authenticator: &RecordAuthenticator, record: &GatewayRecordColumns) -> crate::record_tag::TagBuilder {
    authenticator
        .begin(LABEL)
        .number(record.0.0)
        .bytes(&record.1.0)
        .number(record.2.0)
        .number_or_null(record.3.0)
        .bytes_or_null(record.4.0.as_deref())
}

fn gateway_from_record(
    authenticator: &RecordAuthenticator,
    record: GatewayRecordColumns,
) -> Result<GatewayRecord> {
    let gateway = GatewayId(u32::try_from(record.0.0).unwrap_or(u32::MAX));
    if !tag(authenticator, &record).matches(&record.5.0) {
        return Err(RegistryError::Fencing(FencingError::DamagedGateway { gateway }));
    }
    let seconds = |value: i64| u64::try_from(value).unwrap_or_default();
    Ok(GatewayRecord {
        gateway,
        name: text(record.1.0),
        created_at_s: seconds(record.2.0),
        revoked: record
            .3
            .0
            .map(|at_s| (seconds(at_s), text(record.4.0.unwrap_or_default()))),
        fencing_token: record.6.0.map_or(0, seconds),
        registered_at_s: record.7.0.map(seconds),
    })
}

impl Registry {
    /// Creates a gateway record, or changes the name of an existing record.
    ///
    /// # Errors
    /// An invalid name, a revoked gateway, a damaged record, or a failure of the database.
    pub async fn set_gateway(&self, gateway: GatewayId, name: &str, now_s: u64) -> Result<()> {
        check_text("name", name, NAME_BYTES_MAX)?;
        let mut transaction = self.write().await?;
        let known = self.gateway_record_in(&mut transaction, gateway).await?;
        if known.as_ref().is_some_and(|known| known.revoked.is_some()) {
            return Err(RegistryError::Fencing(FencingError::GatewayRevoked { gateway }));
        }
        let created_at_s = known.map_or(now_s, |known| known.created_at_s);
        self.write_gateway_record(&mut transaction, gateway, name, created_at_s, None)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Revokes a gateway permanently: its requests are refused from then on, and its id cannot register again.
    ///
    /// # Errors
    /// An invalid reason, a damaged record, or a failure of the database.
    pub async fn revoke_gateway(&self, gateway: GatewayId, reason: &str, now_s: u64) -> Result<()> {
        check_text("reason", reason, super::TEXT_BYTES_MAX)?;
        let mut transaction = self.write().await?;
        let known = self.gateway_record_in(&mut transaction, gateway).await?;
        if known.as_ref().is_some_and(|known| known.revoked.is_some()) {
            return Ok(());
        }
        let (name, created_at_s) =
            known.map_or((String::new(), now_s), |known| (known.name, known.created_at_s));
        let revoked = Some((now_s, reason));
        self.write_gateway_record(&mut transaction, gateway, &name, created_at_s, revoked)
            .await?;
        self.register_gateway_in(&mut transaction, gateway, None, now_s)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Refuses a revoked gateway.
    pub(crate) async fn refuse_revoked(&self, connection: &mut Connection, gateway: GatewayId) -> Result<()> {
        let known = self.gateway_record_in(connection, gateway).await?;
        match known.is_some_and(|known| known.revoked.is_some()) {
            true => Err(RegistryError::Fencing(FencingError::GatewayRevoked { gateway })),
            false => Ok(()),
        }
    }

    async fn gateway_record_in(
        &self,
        connection: &mut Connection,
        gateway: GatewayId,
    ) -> Result<Option<GatewayRecord>> {
        let id = i64::from(gateway.0);
        let record: Option<GatewayRecordColumns> = sql::query(SELECT_GATEWAY_RECORDS)
            .bind(id)
            .bind(id)
            .fetch_optional(connection)
            .await?;
        record
            .map(|record| gateway_from_record(self.authenticator(), record))
            .transpose()
    }

    async fn write_gateway_record(
        &self,
        connection: &mut Connection,
        gateway: GatewayId,
        name: &str,
        created_at_s: u64,
        revoked: Option<(u64, &str)>,
    ) -> Result<()> {
        let record: GatewayRecordColumns = (
            ColumnValue(i64::from(gateway.0)),
            ColumnValue(name.as_bytes().to_vec()),
            ColumnValue(seconds_to_column(created_at_s)),
            ColumnValue(revoked.map(|(at_s, _)| seconds_to_column(at_s))),
            ColumnValue(revoked.map(|(_, reason)| reason.as_bytes().to_vec())),
            ColumnValue(Vec::new()),
            ColumnValue(None),
            ColumnValue(None),
        );
        let tag = tag(self.authenticator(), &record).finish();
        sql::query(
            "INSERT INTO gateway_record (gateway_id, name, created_at_s, revoked_at_s, revoked_reason, tag) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (gateway_id) DO UPDATE SET name = excluded.name, \
             revoked_at_s = excluded.revoked_at_s, revoked_reason = excluded.revoked_reason, tag = excluded.tag",
        )
        .bind(record.0.0)
        .bind(name)
        .bind(record.2.0)
        .bind(record.3.0)
        .bind(revoked.map(|(_, reason)| reason))
        .bind(tag)
        .execute(connection)
        .await?;
        Ok(())
    }

    /// All gateway records, by id; an error for each damaged record.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn gateways(&self) -> Result<Vec<Result<GatewayRecord>>> {
        let records: Vec<GatewayRecordColumns> = sql::query(SELECT_GATEWAY_RECORDS)
            .bind(0_i64)
            .bind(i64::from(u32::MAX))
            .fetch_all(self.reader())
            .await?;
        Ok(records
            .into_iter()
            .map(|record| gateway_from_record(self.authenticator(), record))
            .collect())
    }

    /// Stores a status report for other controllers and for display, unless a newer report is stored. A stored report
    /// whose time is more than [the maximum clock skew](CLOCK_SKEW_MAX_MS) in the future does not count as newer. The
    /// function does not wait for the write lock.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn record_gateway_state(&self, state: &GatewayState, now_ms: u64) -> Result<()> {
        let column = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let mut connection = self.writer().acquire().await?;
        sql::query(
            "INSERT INTO gateway_state (gateway_id, at_ms, controller, body) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (gateway_id) DO UPDATE SET at_ms = excluded.at_ms, controller = excluded.controller, body = excluded.body \
             WHERE excluded.at_ms >= gateway_state.at_ms OR gateway_state.at_ms > $5",
        )
        .bind(i64::from(state.gateway.0))
        .bind(column(state.at_ms))
        .bind(&state.controller)
        .bind(&state.body)
        .bind(column(now_ms.saturating_add(CLOCK_SKEW_MAX_MS)))
        .execute(&mut connection)
        .await?;
        Ok(())
    }

    /// The last status reports of all gateways.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn gateway_states(&self) -> Result<Vec<GatewayState>> {
        let records: Vec<GatewayStateColumns> =
            sql::query("SELECT gateway_id, at_ms, controller, body FROM gateway_state ORDER BY gateway_id")
                .fetch_all(self.reader())
                .await?;
        Ok(records.into_iter().filter_map(state_from_record).collect())
    }

    /// The last status report of a gateway.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn gateway_state(&self, gateway: GatewayId) -> Result<Option<GatewayState>> {
        let record: Option<GatewayStateColumns> =
            sql::query("SELECT gateway_id, at_ms, controller, body FROM gateway_state WHERE gateway_id = $1")
                .bind(i64::from(gateway.0))
                .fetch_optional(self.reader())
                .await?;
        Ok(record.and_then(state_from_record))
    }
}

fn state_from_record((gateway, at_ms, controller, body): GatewayStateColumns) -> Option<GatewayState> {
    Some(GatewayState {
        gateway: GatewayId(u32::try_from(gateway.0).ok()?),
        at_ms: u64::try_from(at_ms.0).ok()?,
        controller: text(controller.0),
        body: text(body.0),
    })
}

/// Errors of gateway records that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged_gateway_records(
    registry: &Registry,
    connection: &mut Connection,
) -> Result<Vec<RegistryError>> {
    let records: Vec<GatewayRecordColumns> = sql::query(SELECT_GATEWAY_RECORDS)
        .bind(0_i64)
        .bind(i64::from(u32::MAX))
        .fetch_all(connection)
        .await?;
    let damaged = records
        .into_iter()
        .filter_map(|record| gateway_from_record(registry.authenticator(), record).err());
    let named = |error: RegistryError| match error {
        RegistryError::Fencing(FencingError::DamagedGateway { gateway }) => {
            damaged_record(format!("the record of gateway {gateway}"))
        }
        error => error,
    };
    Ok(damaged.map(named).collect())
}
