//! What devices ask of the controller end to end, past the gateway that carries it (LAP/1 1.7).

use linewarden_protocol::ids::{DeviceId, GatewayId, Mode};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::ticket::{
    self, Ask, Direction, Head, MESSAGE_BYTES_MAX, NewRow, Outcome, Paired, Room, Sealed, State, TicketRoot,
};
use linewarden_registry::{
    ActiveDevice, Credentials, Enrolment, PoolRow, RegistryError, Renewal, RenewalResult,
};

use zeroize::Zeroizing;

use crate::link::Controller;
use crate::message::Refusal;

/// Who carries a ticket to the controller, and when.
pub struct Carrier<'a> {
    /// 24 random bytes.
    pub aead_nonce: [u8; 24],
    /// Seconds since 1970-01-01 UTC.
    pub now_s: u64,
    /// Where a device's session at this gateway is, if it has one.
    pub locate: &'a (dyn Fn(DeviceId) -> Option<[u8; 16]> + Sync),
}

impl Controller {
    /// Answers a device's ticket that came by way of `gateway`; `None` for one that is to be met with silence. What it
    /// asks for is durable before the answer is here.
    ///
    /// `carrier` is what the gateway knows that the controller does not. What tickets do does not depend on who carries
    /// them, and a gateway can neither read nor make one; whether it still is a gateway is for the caller to ask ([`Link::check`](crate::Link::check)).
    ///
    /// # Errors
    /// A failure of the registry; the device asks again.
    pub async fn ticket(
        &self,
        gateway: GatewayId,
        message: &[u8],
        carrier: &Carrier<'_>,
    ) -> Result<Option<Vec<u8>>, RegistryError> {
        let Ok(sealed) = Sealed::parse(message) else {
            return Ok(None);
        };
        let head = *sealed.head();
        if head.direction != Direction::Up || head.opening.gateway != gateway {
            return Ok(None);
        }
        let Some(root) = self.ticket_root(&head).await? else {
            return Ok(None);
        };
        let mut room = Room::default();
        let asked = sealed
            .open(&root, &mut room)
            .and_then(|body| Ask::parse(head.kind, body));
        let Ok(ask) = asked else {
            return Ok(None);
        };
        let body = match ask {
            Ask::Pair { peer } => self.pair(&head, peer, carrier).await,
            Ask::Evidence(piece) => self
                .take_evidence(head.opening.device, &piece, carrier.now_s)
                .await
                .map(|taken| Zeroizing::new(taken.to_wire().to_vec())),
            ask => self
                .serve(&head, ask)
                .await
                .map(|state| Zeroizing::new(state.to_wire().to_vec())),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => return refused(error),
        };
        let mut out = [0u8; MESSAGE_BYTES_MAX];
        let length = ticket::seal_answer(&root, &head, carrier.aead_nonce, &body, &mut out);
        // Answers are short.
        Ok(length
            .ok()
            .and_then(|length| out.get(..length))
            .map(<[u8]>::to_vec))
    }

    /// The root of the session that the head names, if this gateway may hold it.
    async fn ticket_root(&self, head: &Head) -> Result<Option<TicketRoot>, RegistryError> {
        let opening = &head.opening;
        let device = match self.registry().load(opening.device).await {
            Ok(device) => device,
            Err(error) => return refused(error),
        };
        if device.info.suite != opening.suite {
            return Ok(None);
        }
        let leases = match self.registry().leases_of(opening.device).await {
            Ok(leases) => leases,
            Err(error) => return refused(error),
        };
        let lease = leases
            .iter()
            .find(|lease| lease.gateway == opening.gateway && lease.epoch == device.info.epoch);
        // A pool row from the lease's end on was never this gateway's; in key mode idx only counts.
        let may_hold =
            lease.is_some_and(|lease| device.info.mode == Mode::Key || opening.idx.0 < lease.rows.end);
        let row_key = row_key(&device, head).filter(|_| may_hold);
        Ok(row_key.map(|key| TicketRoot::derive(key, opening)))
    }

    /// The key of a pair, or that there is none.
    async fn pair(
        &self,
        head: &Head,
        peer: DeviceId,
        carrier: &Carrier<'_>,
    ) -> Result<Zeroizing<Vec<u8>>, RegistryError> {
        let found = self
            .registry()
            .pair_key(head.opening.device, peer, carrier.now_s)
            .await?;
        let paired = match found {
            None => Paired {
                peer,
                pair: None,
                lifetime_s: 0,
                addr: [0; 16],
            },
            Some(key) => Paired {
                peer,
                pair: Some((key.pairing, key.role)),
                lifetime_s: key.lifetime_s,
                addr: (carrier.locate)(peer).unwrap_or_default(),
            },
        };
        Ok(Zeroizing::new(Zeroizing::new(paired.to_wire()).to_vec()))
    }

    async fn serve(&self, head: &Head, ask: Ask<'_>) -> Result<State, RegistryError> {
        let device = head.opening.device;
        let renewal = match ask {
            // The last two are answered before it comes here.
            Ask::Status | Ask::Pair { .. } | Ask::Evidence(_) => {
                let enrolment = self.registry().enrolment(device).await?;
                return Ok(state(Outcome::Done, &enrolment));
            }
            Ask::Rows { epoch, first, rows } => Renewal::Rows {
                epoch,
                first: first.0,
                rows: rows.iter().map(pool_row).collect(),
            },
            Ask::Key { epoch, key } => Renewal::Key { epoch, key },
        };
        let (result, enrolment) = self.registry().renew(device, head.number, renewal).await?;
        let outcome = match result {
            RenewalResult::Stored => Outcome::Done,
            RenewalResult::OldNumber => Outcome::OldNumber,
            RenewalResult::Misplaced => Outcome::Misplaced,
            RenewalResult::Refused => Outcome::Refused,
        };
        Ok(state(outcome, &enrolment))
    }
}

fn row_key<'a>(device: &'a ActiveDevice, head: &Head) -> Option<&'a RowKey> {
    match &device.credentials {
        Credentials::Key(key) => Some(key),
        pool @ Credentials::Pool { .. } => pool.row(head.opening.idx).map(|row| &row.row_key),
    }
}

fn pool_row(bytes: &[u8; ticket::ROW_BYTES]) -> PoolRow {
    let NewRow { challenge, row_key } = NewRow::from_wire(bytes);
    PoolRow { challenge, row_key }
}

fn state(outcome: Outcome, Enrolment { info, number }: &Enrolment) -> State {
    State {
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

/// What concerns one device only is silence.
fn refused<T>(error: RegistryError) -> Result<Option<T>, RegistryError> {
    Refusal::of(error).map(|_| None)
}
