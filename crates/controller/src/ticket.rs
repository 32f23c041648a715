//! What devices ask of the controller end to end, past the gateway that carries it (LAP/1 1.7).

use linewarden_protocol::ids::{GatewayId, Mode};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::ticket::{
    self, Ask, Direction, Head, MESSAGE_BYTES_MAX, NewRow, Outcome, Room, Sealed, State, TicketRoot,
};
use linewarden_registry::{
    ActiveDevice, Credentials, Enrolment, PoolRow, RegistryError, Renewal, RenewalResult,
};

use crate::link::Controller;
use crate::message::Refusal;

impl Controller {
    /// Answers a device's ticket that came by way of `gateway`; `None` for one that is to be met with silence. What it
    /// asks for is durable before the answer is here.
    ///
    /// `aead_nonce` is 24 random bytes. The gateway needs no fence: it can neither read nor make tickets, and what they
    /// do does not depend on who carries them.
    ///
    /// # Errors
    /// A failure of the registry; the device asks again.
    pub async fn ticket(
        &self,
        gateway: GatewayId,
        message: &[u8],
        aead_nonce: [u8; 24],
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
        let state = match self.serve(&head, ask).await {
            Ok(state) => state,
            Err(error) => return refused(error),
        };
        let mut out = [0u8; MESSAGE_BYTES_MAX];
        let length = ticket::seal(&root, &head.answer(), aead_nonce, &state.to_wire(), &mut out);
        // A state always fits.
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

    async fn serve(&self, head: &Head, ask: Ask<'_>) -> Result<State, RegistryError> {
        let device = head.opening.device;
        let renewal = match ask {
            Ask::Status => {
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
