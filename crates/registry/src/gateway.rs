//! Gateways and their fences.

use linewarden_protocol::ids::{DeviceId, GatewayId};

use crate::column::Stored;
use crate::error::{RegistryError, Result};
use crate::record_mac::{RecordMac, halves};
use crate::row::seconds_to_column;
use crate::sql::{self, Connection};
use crate::storage::first_fence;
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table gateway v1";

/// A fencing token: the number of a gateway's registration. Only the newest is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    gateway: GatewayId,
    number: u64,
}

impl Fence {
    /// The one that a gateway shows; whether it is the newest is found with each question.
    #[must_use]
    pub fn shown(gateway: GatewayId, number: u64) -> Self {
        Self { gateway, number }
    }

    /// The gateway.
    #[must_use]
    pub fn gateway(&self) -> GatewayId {
        self.gateway
    }

    /// How often the gateway has registered.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Registry {
    /// Registers a gateway, at each of its starts. From now on, whoever registered under that id before gets nothing; the
    /// leases stay, unless the registry is a copy, or was put back to an earlier state, and this is the first registration since: then
    /// those of all gateways end.
    ///
    /// # Errors
    /// A gateway that is retired, a damaged record, or a failure of the database.
    pub async fn register_gateway(&self, gateway: GatewayId, now_s: u64) -> Result<Fence> {
        let mut transaction = self.write().await?;
        self.refuse_retired(&mut transaction, gateway).await?;
        let fence = self.register_gateway_in(&mut transaction, gateway, now_s).await?;
        let advance = self.advance_storage(&mut transaction).await?;
        transaction.commit().await?;
        self.follow_storage(advance);
        Ok(fence)
    }

    /// Registers a gateway anew in the place of whoever shows this fence: what was asked under it comes to nothing from now on. The leases
    /// stay.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`], then nothing is changed; a damaged record, or a failure of the database.
    pub async fn raise_fence(&self, fence: &Fence, now_s: u64) -> Result<Fence> {
        let mut transaction = self.write().await?;
        self.check_fence(&mut transaction, fence).await?;
        let raised = self
            .register_gateway_in(&mut transaction, fence.gateway, now_s)
            .await?;
        let advance = self.advance_storage(&mut transaction).await?;
        transaction.commit().await?;
        self.follow_storage(advance);
        Ok(raised)
    }

    pub(crate) async fn register_gateway_in(
        &self,
        connection: &mut Connection,
        gateway: GatewayId,
        now_s: u64,
    ) -> Result<Fence> {
        // The code covers the time as it will be read again.
        let at_s = seconds_to_column(now_s);
        let incarnation = self.settle_storage(connection).await?;
        let before = self.fence_number(connection, gateway).await?;
        let before = match before {
            Some(before) => before,
            // A row that somebody has deleted must not begin the count again. This looks at all of the gateway's leases.
            None => {
                let (leased,): (Option<i64>,) =
                    sql::query("SELECT MAX(fence) FROM lease WHERE gateway_id = $1")
                        .bind(i64::from(gateway.0))
                        .fetch_one(&mut *connection)
                        .await?;
                leased.unwrap_or_default().cast_unsigned()
            }
        };
        let number = before.max(first_fence(incarnation)).saturating_add(1);
        sql::query(
            "INSERT INTO gateway (gateway_id, fence, registered_at_s, mac) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (gateway_id) DO UPDATE SET fence = excluded.fence, \
             registered_at_s = excluded.registered_at_s, mac = excluded.mac",
        )
        .bind(i64::from(gateway.0))
        .bind(i64::try_from(number).unwrap_or(i64::MAX))
        .bind(at_s)
        .bind(code(self.record_mac(), gateway, number, at_s.cast_unsigned()).to_vec())
        .execute(connection)
        .await?;
        Ok(Fence { gateway, number })
    }

    /// Refuses a gateway that has been replaced.
    ///
    /// # Errors
    /// [`RegistryError::OldFence`], a damaged record, or a failure of the database.
    pub async fn verify_fence(&self, fence: &Fence) -> Result<()> {
        let mut connection = self.reader().acquire().await?;
        self.check_fence(&mut connection, fence).await
    }

    pub(crate) async fn check_fence(&self, connection: &mut Connection, fence: &Fence) -> Result<()> {
        self.refuse_moved(connection).await?;
        self.refuse_restored(connection, fence).await?;
        let newest = self
            .fence_number(connection, fence.gateway)
            .await?
            .unwrap_or_default();
        if newest != fence.number {
            return Err(RegistryError::OldFence {
                gateway: fence.gateway,
                shown: fence.number,
                newest,
            });
        }
        Ok(())
    }

    async fn fence_number(&self, connection: &mut Connection, gateway: GatewayId) -> Result<Option<u64>> {
        let row: Option<GatewayRow> =
            sql::query("SELECT gateway_id, fence, registered_at_s, mac FROM gateway WHERE gateway_id = $1")
                .bind(i64::from(gateway.0))
                .fetch_optional(connection)
                .await?;
        row.map(|row| number_from_row(self.record_mac(), &row))
            .transpose()
    }
}

/// A row of `gateway`: id, fence, registered_at_s, mac.
type GatewayRow = (Stored<i64>, Stored<i64>, Stored<i64>, Stored<Vec<u8>>);

fn number_from_row(mac: &RecordMac, (gateway, number, at_s, code): &GatewayRow) -> Result<u64> {
    let gateway = GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX));
    let (number, at_s) = (number.0.cast_unsigned(), at_s.0.cast_unsigned());
    match mac.verifies_of(LABEL, DeviceId(0), &fields(gateway, number, at_s), &code.0) {
        true => Ok(number),
        false => Err(RegistryError::DamagedGateway { gateway }),
    }
}

/// Gateways whose records do not authenticate, or that hold leases of a later registration than the newest one known,
/// for [`Registry::check`]: an old process could be served.
pub(crate) async fn damaged(connection: &mut Connection, mac: &RecordMac) -> Result<Vec<RegistryError>> {
    let rows: Vec<GatewayRow> = sql::query("SELECT gateway_id, fence, registered_at_s, mac FROM gateway")
        .fetch_all(&mut *connection)
        .await?;
    let mut damaged: Vec<RegistryError> = rows
        .iter()
        .filter_map(|row| number_from_row(mac, row).err())
        .collect();
    let behind: Vec<(Stored<i64>,)> = sql::query(
        "SELECT DISTINCT lease.gateway_id FROM lease LEFT JOIN gateway ON gateway.gateway_id = lease.gateway_id \
         WHERE gateway.fence IS NULL OR lease.fence > gateway.fence AND typeof(lease.fence) = 'integer'",
    )
    .fetch_all(connection)
    .await?;
    damaged.extend(behind.iter().map(|(gateway,)| RegistryError::DamagedGateway {
        gateway: GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX)),
    }));
    Ok(damaged)
}

fn code(mac: &RecordMac, gateway: GatewayId, number: u64, at_s: u64) -> [u8; 16] {
    mac.code_of(LABEL, DeviceId(0), &fields(gateway, number, at_s))
}

fn fields(gateway: GatewayId, number: u64, at_s: u64) -> [u32; 5] {
    let ([fence_high, fence_low], [at_high, at_low]) = (halves(number), halves(at_s));
    [gateway.0, fence_high, fence_low, at_high, at_low]
}
