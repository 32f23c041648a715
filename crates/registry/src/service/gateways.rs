//! Gateways as people know them: names, which are retired, and how they stood last.

use linewarden_protocol::ids::GatewayId;

use super::{check, damaged, text};
use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::record_mac::RecordMac;
use crate::row::seconds_to_column;
use crate::sql::{self, Connection};
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table gateway_book v1";
const NAME_BYTES_MAX: usize = 255;
/// A time further ahead of now than that is of a clock that was wrong, ms: nothing that is noted of a gateway is so new.
pub const NOTED_AHEAD_MS: u64 = 10_000;

/// A gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayEntry {
    /// Its number.
    pub gateway: GatewayId,
    /// For people.
    pub name: String,
    /// Seconds since 1970-01-01 UTC.
    pub created_at_s: u64,
    /// When it was retired, likewise, and why.
    pub retired: Option<(u64, String)>,
    /// How often it has registered; 0 before the first time.
    pub fence: u64,
    /// When it did last, seconds since 1970-01-01 UTC.
    pub registered_at_s: Option<u64>,
}

/// How a gateway stood when it said so last. Nothing authenticates it: nothing that opens anything may rest on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayState {
    /// Which.
    pub gateway: GatewayId,
    /// When, milliseconds since 1970-01-01 UTC, by the clock of the controller that heard it.
    pub at_ms: u64,
    /// Which controller heard it.
    pub controller: String,
    /// What it said, as JSON.
    pub body: String,
}

/// Number, name, created, retired, why, mac; fence and time of the last registration.
type BookRow = (
    Stored<i64>,
    Stored<Vec<u8>>,
    Stored<i64>,
    Stored<Option<i64>>,
    Stored<Option<Vec<u8>>>,
    Stored<Vec<u8>>,
    Stored<Option<i64>>,
    Stored<Option<i64>>,
);

const BOOK: &str = "SELECT gateway_book.gateway_id, gateway_book.name, gateway_book.created_at_s, gateway_book.retired_at_s, \
     gateway_book.retired_reason, gateway_book.mac, gateway.fence, gateway.registered_at_s \
     FROM gateway_book LEFT JOIN gateway ON gateway.gateway_id = gateway_book.gateway_id \
     WHERE gateway_book.gateway_id >= $1 AND gateway_book.gateway_id <= $2 ORDER BY gateway_book.gateway_id";

/// A row of `gateway_state`: gateway, at, controller, body.
type StateRow = (Stored<i64>, Stored<i64>, Stored<Vec<u8>>, Stored<Vec<u8>>);

fn code(mac: &RecordMac, row: &BookRow) -> crate::record_mac::RowCode {
    mac.row(LABEL)
        .number(row.0.0)
        .bytes(&row.1.0)
        .number(row.2.0)
        .number_or_null(row.3.0)
        .bytes_or_null(row.4.0.as_deref())
}

fn entry(mac: &RecordMac, row: BookRow) -> Result<GatewayEntry> {
    let gateway = GatewayId(u32::try_from(row.0.0).unwrap_or(u32::MAX));
    if !code(mac, &row).is(&row.5.0) {
        return Err(RegistryError::DamagedGateway { gateway });
    }
    let seconds = |value: i64| u64::try_from(value).unwrap_or_default();
    Ok(GatewayEntry {
        gateway,
        name: text(row.1.0),
        created_at_s: seconds(row.2.0),
        retired: row
            .3
            .0
            .map(|at_s| (seconds(at_s), text(row.4.0.unwrap_or_default()))),
        fence: row.6.0.map_or(0, seconds),
        registered_at_s: row.7.0.map(seconds),
    })
}

impl Registry {
    /// Enters a gateway in the book, or gives one that is there another name.
    ///
    /// # Errors
    /// A name that must not be stored, a gateway that is retired, a damaged record, or a failure of the database.
    pub async fn enter_gateway(&self, gateway: GatewayId, name: &str, now_s: u64) -> Result<()> {
        check("name", name, NAME_BYTES_MAX)?;
        let mut transaction = self.write().await?;
        let known = self.book_in(&mut transaction, gateway).await?;
        if known.as_ref().is_some_and(|known| known.retired.is_some()) {
            return Err(RegistryError::RetiredGateway { gateway });
        }
        let created_at_s = known.map_or(now_s, |known| known.created_at_s);
        self.write_book(&mut transaction, gateway, name, created_at_s, None)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Retires a gateway for good: whoever is registered under its number gets nothing from now on, and nobody registers under it again.
    ///
    /// # Errors
    /// A reason that must not be stored, a damaged record, or a failure of the database.
    pub async fn retire_gateway(&self, gateway: GatewayId, reason: &str, now_s: u64) -> Result<()> {
        check("reason", reason, super::TEXT_BYTES_MAX)?;
        let mut transaction = self.write().await?;
        let known = self.book_in(&mut transaction, gateway).await?;
        if known.as_ref().is_some_and(|known| known.retired.is_some()) {
            return Ok(());
        }
        let (name, created_at_s) =
            known.map_or((String::new(), now_s), |known| (known.name, known.created_at_s));
        let retired = Some((now_s, reason));
        self.write_book(&mut transaction, gateway, &name, created_at_s, retired)
            .await?;
        self.register_gateway_in(&mut transaction, gateway, now_s).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Refuses a gateway that is retired.
    pub(crate) async fn refuse_retired(&self, connection: &mut Connection, gateway: GatewayId) -> Result<()> {
        let known = self.book_in(connection, gateway).await?;
        match known.is_some_and(|known| known.retired.is_some()) {
            true => Err(RegistryError::RetiredGateway { gateway }),
            false => Ok(()),
        }
    }

    async fn book_in(&self, connection: &mut Connection, gateway: GatewayId) -> Result<Option<GatewayEntry>> {
        let id = i64::from(gateway.0);
        let row: Option<BookRow> = sql::query(BOOK)
            .bind(id)
            .bind(id)
            .fetch_optional(connection)
            .await?;
        row.map(|row| entry(self.record_mac(), row)).transpose()
    }

    async fn write_book(
        &self,
        connection: &mut Connection,
        gateway: GatewayId,
        name: &str,
        created_at_s: u64,
        retired: Option<(u64, &str)>,
    ) -> Result<()> {
        let row: BookRow = (
            Stored(i64::from(gateway.0)),
            Stored(name.as_bytes().to_vec()),
            Stored(seconds_to_column(created_at_s)),
            Stored(retired.map(|(at_s, _)| seconds_to_column(at_s))),
            Stored(retired.map(|(_, reason)| reason.as_bytes().to_vec())),
            Stored(Vec::new()),
            Stored(None),
            Stored(None),
        );
        let code = code(self.record_mac(), &row).finish();
        sql::query(
            "INSERT INTO gateway_book (gateway_id, name, created_at_s, retired_at_s, retired_reason, mac) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (gateway_id) DO UPDATE SET name = excluded.name, \
             retired_at_s = excluded.retired_at_s, retired_reason = excluded.retired_reason, mac = excluded.mac",
        )
        .bind(row.0.0)
        .bind(name)
        .bind(row.2.0)
        .bind(row.3.0)
        .bind(retired.map(|(_, reason)| reason))
        .bind(code)
        .execute(connection)
        .await?;
        Ok(())
    }

    /// All gateways in the book, by number; each, or what is wrong with the record.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn gateways(&self) -> Result<Vec<Result<GatewayEntry>>> {
        let rows: Vec<BookRow> = sql::query(BOOK)
            .bind(0_i64)
            .bind(i64::from(u32::MAX))
            .fetch_all(self.reader())
            .await?;
        Ok(rows
            .into_iter()
            .map(|row| entry(self.record_mac(), row))
            .collect())
    }

    /// Notes how a gateway stands, for other controllers and people, unless something newer is noted. What is [noted ahead of
    /// now](NOTED_AHEAD_MS) is no newer. It waits for nobody who writes.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn tell_gateway_state(&self, state: &GatewayState, now_ms: u64) -> Result<()> {
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
        .bind(column(now_ms.saturating_add(NOTED_AHEAD_MS)))
        .execute(&mut connection)
        .await?;
        Ok(())
    }

    /// How all gateways stood when they said so last.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn gateway_states(&self) -> Result<Vec<GatewayState>> {
        let rows: Vec<StateRow> =
            sql::query("SELECT gateway_id, at_ms, controller, body FROM gateway_state ORDER BY gateway_id")
                .fetch_all(self.reader())
                .await?;
        Ok(rows.into_iter().filter_map(state).collect())
    }

    /// How one stood.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn gateway_state(&self, gateway: GatewayId) -> Result<Option<GatewayState>> {
        let row: Option<StateRow> =
            sql::query("SELECT gateway_id, at_ms, controller, body FROM gateway_state WHERE gateway_id = $1")
                .bind(i64::from(gateway.0))
                .fetch_optional(self.reader())
                .await?;
        Ok(row.and_then(state))
    }
}

fn state((gateway, at_ms, controller, body): StateRow) -> Option<GatewayState> {
    Some(GatewayState {
        gateway: GatewayId(u32::try_from(gateway.0).ok()?),
        at_ms: u64::try_from(at_ms.0).ok()?,
        controller: text(controller.0),
        body: text(body.0),
    })
}

/// Entries that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged_book(
    registry: &Registry,
    connection: &mut Connection,
) -> Result<Vec<RegistryError>> {
    let rows: Vec<BookRow> = sql::query(BOOK)
        .bind(0_i64)
        .bind(i64::from(u32::MAX))
        .fetch_all(connection)
        .await?;
    let found = rows
        .into_iter()
        .filter_map(|row| entry(registry.record_mac(), row).err());
    let named = |error: RegistryError| match error {
        RegistryError::DamagedGateway { gateway } => damaged(format!("the entry of gateway {gateway}")),
        other => other,
    };
    Ok(found.map(named).collect())
}
