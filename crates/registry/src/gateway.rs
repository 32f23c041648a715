//! Registrations of gateways and their fencing tokens.

use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_types::ProcessId;

use crate::column::ColumnValue;
use crate::conversion::seconds_to_column;
use crate::error::{FencingError, RegistryError, Result};
use crate::record_tag::{RecordAuthenticator, halves};
use crate::sql::{self, Connection};
use crate::storage::fencing_token_base;
use crate::store::Registry;

const LABEL: &[u8] = b"linewarden registry table gateway v1";

/// Stored if the gateway registered without a process id.
const NO_PROCESS: [u8; 16] = [0; 16];

/// A fencing token: the number of a gateway's registration, as presented with a request. Requests with an older token
/// are refused.
///
/// The token of a request also carries the number of requests that the process had abandoned when it sent the request.
/// The registry records the highest number ([`Registry::record_abandoned_requests`]) and refuses lower numbers, because a
/// controller may still hold an abandoned request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencingToken {
    gateway: GatewayId,
    number: u64,
    abandoned_requests: u64,
}

impl FencingToken {
    /// The token that a gateway presents; each request checks whether it is the newest.
    #[must_use]
    pub fn presented(gateway: GatewayId, number: u64, abandoned_requests: u64) -> Self {
        Self {
            gateway,
            number,
            abandoned_requests,
        }
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

    /// The number of requests that the gateway abandoned before.
    #[must_use]
    pub fn abandoned_requests(&self) -> u64 {
        self.abandoned_requests
    }

    /// The token of the same request under another registration.
    #[must_use]
    pub fn with_number(self, number: u64) -> Self {
        Self { number, ..self }
    }
}

impl Registry {
    /// Registers a new process of a gateway and returns its fencing token. Requests with an earlier token of that gateway
    /// are refused from then on. Leases remain, with one exception: if the registry is a copy or was restored to an
    /// earlier state, the first registration afterwards ends the leases of all gateways.
    ///
    /// # Errors
    /// A revoked gateway, a damaged record, or a failure of the database.
    pub async fn register_gateway(&self, gateway: GatewayId, now_s: u64) -> Result<FencingToken> {
        Ok(self.register(gateway, None, now_s).await?.0)
    }

    /// As [`Registry::register_gateway`], but a process that is registered already keeps its token: a repeated
    /// registration, or one that arrives late, replaces no token. Also returns whether the token is new.
    ///
    /// # Errors
    /// As [`Registry::register_gateway`].
    pub async fn register_process(
        &self,
        gateway: GatewayId,
        process: ProcessId,
        now_s: u64,
    ) -> Result<(FencingToken, bool)> {
        self.register(gateway, Some(process), now_s).await
    }

    async fn register(
        &self,
        gateway: GatewayId,
        process: Option<ProcessId>,
        now_s: u64,
    ) -> Result<(FencingToken, bool)> {
        let mut transaction = self.write().await?;
        self.refuse_revoked(&mut transaction, gateway).await?;
        let first = fencing_token_base(self.ensure_incarnation(&mut transaction).await?).saturating_add(1);
        let previous = self.registration(&mut transaction, gateway).await?;
        let is_registered =
            |registration: &Registration| process.is_some() && registration.process == process;
        if let Some(registration) = previous.filter(is_registered)
            && registration.fencing_token >= first
        {
            // The incarnation may have been recorded.
            transaction.commit().await?;
            return Ok((registration.token(), false));
        }
        let fencing_token = self
            .register_gateway_in(&mut transaction, gateway, process, now_s)
            .await?;
        let advance = self.advance_storage(&mut transaction).await?;
        transaction.commit().await?;
        self.complete_advance(advance);
        Ok((fencing_token, true))
    }

    /// Issues a new fencing token that replaces this token: requests with the old token are refused from then on.
    /// Leases remain.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`]. Nothing is changed then.
    pub async fn issue_fencing_token(
        &self,
        fencing_token: &FencingToken,
        now_s: u64,
    ) -> Result<FencingToken> {
        let mut transaction = self.write().await?;
        let replaced = self.check_fencing_token(&mut transaction, fencing_token).await?;
        let registration = Registration {
            fencing_token: replaced.fencing_token.saturating_add(1),
            at_s: seconds_to_column(now_s).cast_unsigned(),
            abandoned_requests: fencing_token.abandoned_requests,
            ..replaced
        };
        self.write_registration(&mut transaction, &registration).await?;
        let advance = self.advance_storage(&mut transaction).await?;
        transaction.commit().await?;
        self.complete_advance(advance);
        Ok(registration.token())
    }

    pub(crate) async fn register_gateway_in(
        &self,
        connection: &mut Connection,
        gateway: GatewayId,
        process: Option<ProcessId>,
        now_s: u64,
    ) -> Result<FencingToken> {
        let incarnation = self.ensure_incarnation(connection).await?;
        let previous = match self.registration(connection, gateway).await? {
            Some(previous) => previous.fencing_token,
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
        let registration = Registration {
            gateway,
            fencing_token: previous.max(fencing_token_base(incarnation)).saturating_add(1),
            // The tag must cover the time as stored in the column.
            at_s: seconds_to_column(now_s).cast_unsigned(),
            process,
            abandoned_requests: 0,
        };
        self.write_registration(connection, &registration).await?;
        Ok(registration.token())
    }

    async fn write_registration(
        &self,
        connection: &mut Connection,
        registration: &Registration,
    ) -> Result<()> {
        sql::query(
            "INSERT INTO gateway (gateway_id, fencing_token, registered_at_s, process_id, abandoned_requests, tag) \
             VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (gateway_id) DO UPDATE SET fencing_token = excluded.fencing_token, \
             registered_at_s = excluded.registered_at_s, process_id = excluded.process_id, \
             abandoned_requests = excluded.abandoned_requests, tag = excluded.tag",
        )
        .bind(i64::from(registration.gateway.0))
        .bind(i64::try_from(registration.fencing_token).unwrap_or(i64::MAX))
        .bind(registration.at_s.cast_signed())
        .bind(registration.process_bytes().to_vec())
        .bind(registration.abandoned_requests.cast_signed())
        .bind(registration.tag(self.authenticator()).to_vec())
        .execute(connection)
        .await?;
        Ok(())
    }

    /// Refuses a token that is not the newest, and a request with a lower number of abandoned requests than recorded.
    ///
    /// # Errors
    /// [`FencingError::StaleFencingToken`], [`FencingError::OutdatedRequest`], a damaged record, or a failure of the
    /// database.
    pub async fn verify_fencing_token(&self, fencing_token: &FencingToken) -> Result<()> {
        let mut connection = self.reader().acquire().await?;
        self.check_fencing_token(&mut connection, fencing_token).await?;
        Ok(())
    }

    /// As [`Registry::verify_fencing_token`]; returns the registration.
    pub(crate) async fn check_fencing_token(
        &self,
        connection: &mut Connection,
        fencing_token: &FencingToken,
    ) -> Result<Registration> {
        self.refuse_moved(connection).await?;
        self.refuse_restored(connection, fencing_token).await?;
        let newest = self.registration(connection, fencing_token.gateway).await?;
        let Some(registration) =
            newest.filter(|registration| registration.fencing_token == fencing_token.number)
        else {
            return Err(RegistryError::Fencing(FencingError::StaleFencingToken {
                gateway: fencing_token.gateway,
                presented: fencing_token.number,
                newest: newest.map_or(0, |registration| registration.fencing_token),
            }));
        };
        if fencing_token.abandoned_requests < registration.abandoned_requests {
            return Err(RegistryError::Fencing(FencingError::OutdatedRequest {
                gateway: fencing_token.gateway,
            }));
        }
        Ok(registration)
    }

    /// Records how many requests the gateway abandoned before it sent the request of this token. Requests with a lower
    /// number are refused from then on. Writes nothing if the number is recorded already.
    ///
    /// # Errors
    /// As [`Registry::verify_fencing_token`].
    pub async fn record_abandoned_requests(&self, fencing_token: &FencingToken) -> Result<()> {
        let is_recorded =
            |registration: Registration| registration.abandoned_requests == fencing_token.abandoned_requests;
        {
            let mut connection = self.reader().acquire().await?;
            if is_recorded(self.check_fencing_token(&mut connection, fencing_token).await?) {
                return Ok(());
            }
        }
        let mut transaction = self.write().await?;
        let registration = self.check_fencing_token(&mut transaction, fencing_token).await?;
        if !is_recorded(registration) {
            let registration = Registration {
                abandoned_requests: fencing_token.abandoned_requests,
                ..registration
            };
            self.write_registration(&mut transaction, &registration).await?;
            transaction.commit().await?;
        }
        Ok(())
    }

    async fn registration(
        &self,
        connection: &mut Connection,
        gateway: GatewayId,
    ) -> Result<Option<Registration>> {
        let record: Option<GatewayColumns> = sql::query(
            "SELECT gateway_id, fencing_token, registered_at_s, process_id, abandoned_requests, tag FROM gateway WHERE gateway_id = $1",
        )
        .bind(i64::from(gateway.0))
        .fetch_optional(connection)
        .await?;
        record
            .map(|record| Registration::from_record(self.authenticator(), &record))
            .transpose()
    }
}

/// The registration of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    gateway: GatewayId,
    fencing_token: u64,
    /// Time of the registration, seconds since 1970-01-01 UTC.
    at_s: u64,
    /// The registered process; `None` if the gateway registered without a process id.
    process: Option<ProcessId>,
    /// The highest number of abandoned requests that a request has carried.
    abandoned_requests: u64,
}

/// The columns of `gateway`: id, fencing token, registered_at_s, process_id, abandoned_requests, tag.
type GatewayColumns = (
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
    ColumnValue<i64>,
    ColumnValue<Vec<u8>>,
);

impl Registration {
    fn token(&self) -> FencingToken {
        FencingToken::presented(self.gateway, self.fencing_token, self.abandoned_requests)
    }

    fn from_record(
        authenticator: &RecordAuthenticator,
        (gateway, number, at_s, process, abandoned_requests, tag): &GatewayColumns,
    ) -> Result<Self> {
        let gateway = GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX));
        let damaged = || RegistryError::Fencing(FencingError::DamagedGateway { gateway });
        let process: [u8; 16] = process.0.as_slice().try_into().map_err(|_| damaged())?;
        let registration = Self {
            gateway,
            fencing_token: number.0.cast_unsigned(),
            at_s: at_s.0.cast_unsigned(),
            process: (process != NO_PROCESS).then_some(ProcessId(process)),
            abandoned_requests: abandoned_requests.0.cast_unsigned(),
        };
        match authenticator.verifies_fields(LABEL, DeviceId(0), &registration.fields(), &tag.0) {
            true => Ok(registration),
            false => Err(damaged()),
        }
    }

    fn process_bytes(&self) -> [u8; 16] {
        self.process.map_or(NO_PROCESS, |ProcessId(id)| id)
    }

    fn tag(&self, authenticator: &RecordAuthenticator) -> [u8; 16] {
        authenticator.tag_of_fields(LABEL, DeviceId(0), &self.fields())
    }

    fn fields(&self) -> Vec<u32> {
        let mut fields = vec![self.gateway.0];
        for number in [self.fencing_token, self.at_s, self.abandoned_requests] {
            fields.extend(halves(number));
        }
        let process = self.process_bytes();
        let (words, _) = process.as_chunks::<4>();
        fields.extend(words.iter().map(|word| u32::from_be_bytes(*word)));
        fields
    }
}

/// Errors for [`Registry::check`]: of gateways whose record does not authenticate, or that have leases of a later
/// registration than the recorded registration. In the second case, the fencing token of the gateway was set back, and
/// a replaced process could be served.
pub(crate) async fn damaged(
    connection: &mut Connection,
    authenticator: &RecordAuthenticator,
) -> Result<Vec<RegistryError>> {
    let records: Vec<GatewayColumns> = sql::query(
        "SELECT gateway_id, fencing_token, registered_at_s, process_id, abandoned_requests, tag FROM gateway",
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut damaged: Vec<RegistryError> = records
        .iter()
        .filter_map(|record| Registration::from_record(authenticator, record).err())
        .collect();
    let set_back: Vec<(ColumnValue<i64>,)> = sql::query(
        "SELECT DISTINCT lease.gateway_id FROM lease LEFT JOIN gateway ON gateway.gateway_id = lease.gateway_id \
         WHERE gateway.fencing_token IS NULL OR lease.fencing_token > gateway.fencing_token AND typeof(lease.fencing_token) = 'integer'",
    )
    .fetch_all(connection)
    .await?;
    damaged.extend(set_back.iter().map(|(gateway,)| {
        RegistryError::Fencing(FencingError::DamagedGateway {
            gateway: GatewayId(u32::try_from(gateway.0).unwrap_or(u32::MAX)),
        })
    }));
    Ok(damaged)
}
