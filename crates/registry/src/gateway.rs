//! Registrations of gateways and their fencing tokens.

use linewarden_protocol::ids::{DeviceId, GatewayId};

use crate::column::ColumnValue;
use crate::conversion::seconds_to_column;
use crate::error::{RegistryError, Result};
use crate::record_tag::{RecordAuthenticator, halves};
use crate::sql::{self, Connection};
use crate::storage::fencing_token_base;
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table gateway v1";

/// A fencing token: the number of a gateway's registration. Requests with an older token are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencingToken {
    gateway: GatewayId,
    number: u64,
}

impl FencingToken {
    /// The token that a gateway presents; each request checks whether it is the newest.
    #[must_use]
    pub fn presented(gateway: GatewayId, number: u64) -> Self {
        Self { gateway, number }
    }

    /// The gateway.
    #[must_use]
    pub fn gateway(&self) -> GatewayId {
        self.gateway
    }

    /// The number of the registration.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Registry {
    /// Registers a gateway and returns its fencing token; called at each start of a gateway. Requests with an earlier
    /// token of that gateway are refused from then on. Leases remain, with one exception: if the registry is a copy or
    /// was restored to an earlier state, the first registration afterwards ends the leases of all gateways.
    ///
    /// # Errors
    /// A revoked gateway, a damaged record, or a failure of the database.
    pub async fn register_gateway(&self, gateway: GatewayId, now_s: u64) -> Result<FencingToken> {
        let mut transaction = self.write().await?;
        self.refuse_revoked(&mut transaction, gateway).await?;
        let fencing_token = self.register_gateway_in(&mut transaction, gateway, now_s).await?;
        let advance = self.advance_storage(&mut transaction).await?;
        transaction.commit().await?;
        self.complete_advance(advance);
        Ok(fencing_token)
    }

    /// Issues a new fencing token that replaces this token: requests with the old token are refused from then on.
    /// Leases remain.
    ///
    /// # Errors
    /// [`RegistryError::StaleFencingToken`], a damaged record, or a failure of the database. Nothing is changed then.
    pub async fn issue_fencing_token(
        &self,
        fencing_token: &FencingToken,
        now_s: u64,
    ) -> Result<FencingToken> {
        let mut transaction = self.write().await?;
        self.check_fencing_token(&mut transaction, fencing_token).await?;
        let new_token = self
            .register_gateway_in(&mut transaction, fencing_token.gateway, now_s)
            .await?;
        let advance = self.advance_storage(&mut transaction).await?;
        transaction.commit().await?;
        self.complete_advance(advance);
        Ok(new_token)
    }

    pub(crate) async fn register_gateway_in(
        &self,
        connection: &mut Connection,
        gateway: GatewayId,
        now_s: u64,
    ) -> Result<FencingToken> {
        // The tag must cover the time as stored in the column.
        let at_s = seconds_to_column(now_s);
        let incarnation = self.ensure_incarnation(connection).await?;
        let previous = self.newest_fencing_token(connection, gateway).await?;
        let previous = match previous {
            Some(previous) => previous,
            // The record may have been deleted, which must not restart the counter. Leases store fencing tokens,
            // too; the query reads all leases of the gateway.
            None => {
                let (highest,): (Option<i64>,) =
                    sql::query("SELECT MAX(fencing_token) FROM lease WHERE gateway_id = $1")
                        .bind(i64::from(gateway.0))
                        .fetch_one(&mut *connection)
                        .await?;
                highest.unwrap_or_default().cast_unsigned()
            }
        };
        let number = previous.max(fencing_token_base(incarnation)).saturating_add(1);
        sql::query(
            "INSERT INTO gateway (gateway_id, fencing_token, registered_at_s, tag) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (gateway_id) DO UPDATE SET fencing_token = excluded.fencing_token, \
             registered_at_s = excluded.registered_at_s, tag = excluded.tag",
        )
        .bind(i64::from(gateway.0))
        .bind(i64::try_from(number).unwrap_or(i64::MAX))
        .bind(at_s)
        .bind(tag(self.authenticator(), gateway, number, at_s.cast_unsigned()).to_vec())
        .execute(connection)
        .await?;
        Ok(FencingToken { gateway, number })
    }

    /// Refuses a fencing token that is not the newest.
    ///
    /// # Errors
    /// [`RegistryError::StaleFencingToken`], a damaged record, or a failure of the database.
    pub async fn verify_fencing_token(&self, fencing_token: &FencingToken) -> Result<()> {
        let mut connection = self.reader().acquire().await?;
        self.check_fencing_token(&mut connection, fencing_token).await
    }

    pub(crate) async fn check_fencing_token(
        &self,
        connection: &mut Connection,
        fencing_token: &FencingToken,
    ) -> Result<()> {
        self.refuse_moved(connection).await?;
        self.refuse_restored(connection, fencing_token).await?;
        let newest = self
            .newest_fencing_token(connection, fencing_token.gateway)
            .await?
            .unwrap_or_default();
        if newest != fencing_token.number {
            return Err(RegistryError::StaleFencingToken {
                gateway: fencing_token.gateway,
                presented: fencing_token.number,
                newest,
            });
        }
        Ok(())
    }

    async fn newest_fencing_token(
        &self,
        connection: &mut Connection,
        gateway: GatewayId,
    ) -> Result<Option<u64>> {
        let record: Option<GatewayColumns> = sql::query(
            "SELECT gateway_id, fencing_token, registered_at_s, tag FROM gateway WHERE gateway_id = $1",
        )
        .bind(i64::from(gateway.0))
        .fetch_optional(connection)
        .await?;
        record
            .map(|record| number_from_record(self.authenticator(), &record))
            .transpose()
    }
}

/// The columns of `gateway`: id, fencing token, registered_at_s, tag.
type GatewayColumns = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

fn number_from_record(
    authenticator: &RecordAuthenticator,
    (gateway, number, at_s, tag): &GatewayColumns,
) -> Result<u64> {
    let gateway = GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX));
    let (number, at_s) = (number.0.cast_unsigned(), at_s.0.cast_unsigned());
    match authenticator.verifies_fields(LABEL, DeviceId(0), &fields(gateway, number, at_s), &tag.0) {
        true => Ok(number),
        false => Err(RegistryError::DamagedGateway { gateway }),
    }
}

/// Errors for [`Registry::check`]: of gateways whose record does not authenticate, or that have leases of a later
/// registration than the recorded registration. In the second case, the fencing token of the gateway was set back, and
/// a replaced process could be served.
pub(crate) async fn damaged(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
) -> Result<Vec<RegistryError>> {
    let records: Vec<GatewayColumns> =
        sql::query("SELECT gateway_id, fencing_token, registered_at_s, tag FROM gateway")
            .fetch_all(&mut *connection)
            .await?;
    let mut damaged: Vec<RegistryError> = records
        .iter()
        .filter_map(|record| number_from_record(authenticator, record).err())
        .collect();
    let set_back: Vec<(ColumnValue<i64>,)> = sql::query(
        "SELECT DISTINCT lease.gateway_id FROM lease LEFT JOIN gateway ON gateway.gateway_id = lease.gateway_id \
         WHERE gateway.fencing_token IS NULL OR lease.fencing_token > gateway.fencing_token AND typeof(lease.fencing_token) = 'integer'",
    )
    .fetch_all(connection)
    .await?;
    damaged.extend(set_back.iter().map(|(gateway,)| RegistryError::DamagedGateway {
        gateway: GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX)),
    }));
    Ok(damaged)
}

fn tag(authenticator: &RecordAuthenticator, gateway: GatewayId, number: u64, at_s: u64) -> [u8; 16] {
    authenticator.tag_of_fields(LABEL, DeviceId(0), &fields(gateway, number, at_s))
}

fn fields(gateway: GatewayId, number: u64, at_s: u64) -> [u32; 5] {
    let ([token_high, token_low], [at_high, at_low]) = (halves(number), halves(at_s));
    [gateway.0, token_high, token_low, at_high, at_low]
}
