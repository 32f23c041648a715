//! Tickets: requests that devices send to the controller end to end, relayed by a gateway (LAP/1 1.7).

use crate::denial::refusal_reason;
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::ticket::{
    self, Direction, EnrollmentState, MESSAGE_BYTES_MAX, NewRow, Outcome, PairResponse, PlaintextBuffer,
    SealedTicket, TicketHeader, TicketRequest, TicketRoot,
};
use linewarden_registry::{
    ActiveDevice, Credentials, Enrollment, PoolRow, RegistryError, Renewal, RenewalResult,
};

use zeroize::Zeroizing;

use crate::link::Controller;

/// Values that the caller supplies for a ticket that a gateway has relayed.
pub struct RelayContext<'a> {
    /// 24 random bytes.
    pub aead_nonce: [u8; 24],
    /// The current time, seconds since 1970-01-01 UTC.
    pub now_s: u64,
    /// Returns the address of a device's session at this gateway, if the device has one.
    pub locate: &'a (dyn Fn(DeviceId) -> Option<[u8; 16]> + Sync),
}

impl Controller {
    /// Handles a device's ticket that `gateway` relayed. Returns the sealed response, or `None` if the ticket gets no
    /// response. Changes are durable before the function returns.
    ///
    /// A gateway can neither read nor create a ticket, and the effect of a ticket does not depend on the gateway. The
    /// caller verifies the gateway's registration ([`Link::verify_registration`](crate::Link::verify_registration)).
    ///
    /// # Errors
    /// A failure of the registry; the device retries.
    pub async fn handle_ticket(
        &self,
        gateway: GatewayId,
        message: &[u8],
        relay: &RelayContext<'_>,
    ) -> Result<Option<Vec<u8>>, RegistryError> {
        let Ok(sealed) = SealedTicket::parse(message) else {
            return Ok(None);
        };
        let header = *sealed.header();
        if header.direction != Direction::Up || header.session.gateway != gateway {
            return Ok(None);
        }
        let Some(root) = self.ticket_root(&header).await? else {
            return Ok(None);
        };
        let mut plaintext = PlaintextBuffer::default();
        let parsed = sealed
            .open(&root, &mut plaintext)
            .and_then(|body| TicketRequest::parse(header.kind, body));
        let Ok(request) = parsed else {
            return Ok(None);
        };
        let body = match request {
            TicketRequest::Pair { peer } => self.pair_response(&header, peer, relay).await,
            TicketRequest::Evidence(chunk) => self
                .receive_evidence(header.session.device, &chunk, relay.now_s)
                .await
                .map(|ack| Zeroizing::new(ack.to_wire().to_vec())),
            request => self
                .apply_request(&header, request)
                .await
                .map(|state| Zeroizing::new(state.to_wire().to_vec())),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => return device_error_as_none(error),
        };
        let mut out = [0u8; MESSAGE_BYTES_MAX];
        let length = ticket::seal_response(&root, &header, relay.aead_nonce, &body, &mut out);
        // Responses are shorter than the buffer.
        Ok(length
            .ok()
            .and_then(|length| out.get(..length))
            .map(<[u8]>::to_vec))
    }

    /// Returns the root key of the session that the header names, if the session's row is leased to the session's
    /// gateway.
    async fn ticket_root(&self, header: &TicketHeader) -> Result<Option<TicketRoot>, RegistryError> {
        let session = &header.session;
        let device = match self.registry().load(session.device).await {
            Ok(device) => device,
            Err(error) => return device_error_as_none(error),
        };
        if device.info.suite != session.suite {
            return Ok(None);
        }
        let leases = match self.registry().leases_of(session.device).await {
            Ok(leases) => leases,
            Err(error) => return device_error_as_none(error),
        };
        let lease = leases
            .iter()
            .find(|lease| lease.gateway == session.gateway && lease.epoch == device.info.epoch);
        // Rows from the end of the lease on are not leased to the gateway; in key mode the index is only a counter.
        let is_leased =
            lease.is_some_and(|lease| device.info.mode == Mode::Key || session.idx.0 < lease.rows.end);
        let row_key = row_key(&device, header).filter(|_| is_leased);
        Ok(row_key.map(|key| TicketRoot::derive(key, session)))
    }

    /// Returns the key of a pair, or a response without a key.
    async fn pair_response(
        &self,
        header: &TicketHeader,
        peer: DeviceId,
        relay: &RelayContext<'_>,
    ) -> Result<Zeroizing<Vec<u8>>, RegistryError> {
        let pair_key = self
            .registry()
            .pair_key(header.session.device, peer, relay.now_s)
            .await?;
        let response = match pair_key {
            None => PairResponse {
                peer,
                pair: None,
                lifetime_s: 0,
                addr: [0; 16],
            },
            Some(key) => PairResponse {
                peer,
                pair: Some((key.pairing, key.role)),
                lifetime_s: key.lifetime_s,
                addr: (relay.locate)(peer).unwrap_or_default(),
            },
        };
        Ok(Zeroizing::new(Zeroizing::new(response.to_wire()).to_vec()))
    }

    async fn apply_request(
        &self,
        header: &TicketHeader,
        request: TicketRequest<'_>,
    ) -> Result<EnrollmentState, RegistryError> {
        let device = header.session.device;
        let renewal = match request {
            // The caller has handled `Pair` and `Evidence`.
            TicketRequest::Status | TicketRequest::Pair { .. } | TicketRequest::Evidence(_) => {
                let enrollment = self.registry().enrollment(device).await?;
                return Ok(enrollment_state(Outcome::Done, &enrollment));
            }
            TicketRequest::Rows { epoch, first, rows } => Renewal::Rows {
                epoch,
                first: first.0,
                rows: rows.iter().map(pool_row).collect(),
            },
            TicketRequest::Key { epoch, key } => Renewal::Key { epoch, key },
        };
        let (result, enrollment) = self.registry().renew(device, header.number, renewal).await?;
        let outcome = match result {
            RenewalResult::Stored => Outcome::Done,
            RenewalResult::StaleTicket => Outcome::StaleNumber,
            RenewalResult::WrongPosition => Outcome::OutOfSequence,
            RenewalResult::Rejected => Outcome::Refused,
        };
        Ok(enrollment_state(outcome, &enrollment))
    }
}

fn row_key<'a>(device: &'a ActiveDevice, header: &TicketHeader) -> Option<&'a RowKey> {
    match &device.credentials {
        Credentials::Key(key) => Some(key),
        pool @ Credentials::Pool { .. } => pool.row(header.session.idx).map(|row| &row.row_key),
    }
}

fn pool_row(bytes: &[u8; ticket::ROW_BYTES]) -> PoolRow {
    let NewRow { challenge, row_key } = NewRow::from_wire(bytes);
    PoolRow { challenge, row_key }
}

fn enrollment_state(
    outcome: Outcome,
    Enrollment {
        info,
        ticket_number: number,
    }: &Enrollment,
) -> EnrollmentState {
    EnrollmentState {
        outcome,
        mode: info.mode,
        epoch: info.epoch,
        rows_end: linewarden_protocol::ids::RowIndex(match info.mode {
            Mode::Pool => info.indices().end,
            Mode::Key => 0,
        }),
        rows_left: info.rows_left().unwrap_or_default(),
        number: *number,
    }
}

/// Returns `Ok(None)`, so no response is sent, for an error that concerns one device. Any other error fails the request.
fn device_error_as_none<T>(error: RegistryError) -> Result<Option<T>, RegistryError> {
    refusal_reason(error).map(|_| None)
}
