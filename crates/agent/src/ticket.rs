//! Tickets: one request to the controller at a time, sealed end to end and repeated until the response arrives (LAP/1 1.7).
//!
//! Copies of a ticket are sent to the gateway's ticket port, alternately plain and inside DATA, until the first
//! response arrives. From then on, tickets are sent in the form of that response. The ticket itself is the same in both
//! forms.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use linewarden_protocol::backoff::Backoff;
use linewarden_protocol::device::Device;
use linewarden_protocol::ids::SessionId;
use linewarden_protocol::ticket::{
    self, ChunkAck, Direction, EnrollmentState, Kind, MESSAGE_BYTES_MAX, PairResponse, PlaintextBuffer,
    RelayAuth, SealedTicket, TicketHeader, TicketSession,
};
use linewarden_protocol::wire::DATA_HEADER_BYTES;

use crate::device_socket::{DeviceSocket, SealContext};
use crate::retry::{self, milliseconds};
use crate::tunnel::Tunnels;

/// First and longest interval between two copies, less the jitter.
const REPEAT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Copies before the request fails: 10.6 s on average, and 7.1 s at least.
const COPIES_MAX: u32 = 14;
/// Maximum number of datagrams before other sockets are served.
const BATCH: usize = 64;

/// Result of a request.
#[derive(Debug)]
pub(crate) enum TicketResult {
    /// State of the enrollment.
    State(EnrollmentState),
    /// The controller's response about a pair, and the time of the request, ms.
    Pair(PairResponse, u64),
    /// Result of a piece of evidence.
    Evidence(ChunkAck),
    /// No response to a request of this kind: the session has ended, or no message gets through.
    NoResponse(Kind),
}

/// A pending request.
struct PendingTicket {
    kind: Kind,
    submitted_ms: u64,
    session: SessionId,
    nonce: [u8; 16],
    message: Vec<u8>,
    /// Number of copies sent.
    copies: u32,
    /// Time of the next copy.
    due_ms: u64,
    /// Intervals between the copies.
    backoff: Backoff,
    /// Interval between the last two copies.
    interval_ms: u64,
}

/// The client of the gateway's ticket relay.
pub(crate) struct TicketClient {
    relay: SocketAddr,
    socket: DeviceSocket,
    /// Whether the next copy is sent inside DATA.
    sealed: bool,
    /// Whether a response has arrived, so that `sealed` no longer alternates.
    is_route_known: bool,
    pending: Option<PendingTicket>,
    /// Serial number of the last request.
    serial: u64,
}

impl TicketClient {
    pub(crate) fn new(relay: SocketAddr) -> Self {
        Self {
            relay,
            socket: DeviceSocket::new(0),
            sealed: false,
            is_route_known: false,
            pending: None,
            serial: 0,
        }
    }

    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    /// Responses that the kernel has dropped.
    pub(crate) fn kernel_drops(&self) -> u64 {
        self.socket.kernel_drops()
    }

    /// When [`TicketClient::poll`] must be called although no datagram has arrived.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.pending.as_ref().map(|pending| pending.due_ms)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_none()
    }

    /// Starts a request in the device's session.
    ///
    /// # Errors
    /// No session, no random bytes, or the body is too long.
    pub(crate) fn submit(
        &mut self,
        device: &Device,
        kind: Kind,
        number: u64,
        body: &[u8],
        now_ms: u64,
    ) -> Result<(), String> {
        let session = device.session().ok_or("there is no session")?;
        let mut random = [0u8; 40];
        getrandom::fill(&mut random).map_err(|error| error.to_string())?;
        let (mut nonce, mut aead_nonce) = ([0; 16], [0; 24]);
        let (front, back) = random.split_at(16);
        nonce.copy_from_slice(front);
        aead_nonce.copy_from_slice(back);
        let head = TicketHeader {
            kind,
            direction: Direction::Up,
            session: ticket_session(device, session),
            number,
            nonce,
        };
        self.serial += 1;
        let relay_auth = RelayAuth {
            key: session.key(),
            serial: self.serial,
        };
        let mut out = vec![0; MESSAGE_BYTES_MAX];
        let length = ticket::seal_request(
            session.ticket_root(),
            &head,
            &relay_auth,
            aead_nonce,
            body,
            &mut out,
        )
        .map_err(|error| error.to_string())?;
        out.truncate(length);
        self.pending = Some(PendingTicket {
            kind,
            submitted_ms: now_ms,
            session: session.id,
            nonce,
            message: out,
            copies: 0,
            due_ms: now_ms,
            backoff: Backoff::new(REPEAT.0, REPEAT.1),
            interval_ms: 0,
        });
        Ok(())
    }

    /// Sends a due copy and handles responses. Returns the result of the request, exactly one time.
    pub(crate) fn poll(
        &mut self,
        device: &Device,
        tunnels: &mut Tunnels,
        device_address: Option<IpAddr>,
        now_ms: u64,
    ) -> Option<TicketResult> {
        let pending = self.pending.as_ref()?;
        let is_same_session = device
            .session()
            .is_some_and(|session| session.id == pending.session);
        let (Some(device_address), true) = (device_address, is_same_session) else {
            let kind = pending.kind;
            self.pending = None;
            return Some(TicketResult::NoResponse(kind));
        };
        let mut seal = SealContext {
            device,
            tunnels,
            device_address,
        };
        if let Some(result) = self.receive(&mut seal) {
            self.pending = None;
            return Some(result);
        }
        self.send(&mut seal, now_ms)
    }

    fn send(&mut self, seal: &mut SealContext<'_>, now_ms: u64) -> Option<TicketResult> {
        let sealed = self.sealed;
        let pending = self.pending.as_mut().filter(|pending| pending.due_ms <= now_ms)?;
        if pending.copies >= COPIES_MAX {
            let kind = pending.kind;
            self.pending = None;
            return Some(TicketResult::NoResponse(kind));
        }
        // One copy in each form before the interval grows.
        if pending.copies.is_multiple_of(2) {
            pending.interval_ms = milliseconds(pending.backoff.next(retry::random()));
        }
        pending.copies += 1;
        pending.due_ms = now_ms.saturating_add(pending.interval_ms);
        if !self.is_route_known {
            self.sealed = !sealed;
        }
        match self.socket.send(seal, self.relay, sealed, &pending.message) {
            Ok(()) => tracing::debug!(kind = ?pending.kind, peer = %self.relay, sealed, "ticket sent"),
            Err(error) => {
                tracing::debug!(kind = ?pending.kind, %error, "sending a ticket failed; it is repeated")
            }
        }
        None
    }

    fn receive(&mut self, seal: &mut SealContext<'_>) -> Option<TicketResult> {
        let mut buffer = [0u8; DATA_HEADER_BYTES + MESSAGE_BYTES_MAX + 1];
        for _ in 0..BATCH {
            let received = self.socket.receive(seal, &mut buffer)?;
            if (received.from.ip(), received.from.port()) != (self.relay.ip(), self.relay.port()) {
                tracing::debug!(peer = %received.from, "ticket dropped: not from the gateway's ticket port");
                continue;
            }
            if let Some(result) = self.open_response(seal.device, received.message) {
                tracing::debug!(sealed = received.sealed, "ticket response received");
                (self.sealed, self.is_route_known) = (received.sealed, true);
                return Some(result);
            }
            tracing::debug!(peer = %received.from, "ticket dropped: not a response to the pending request");
        }
        None
    }

    /// Opens a response to the pending request.
    fn open_response(&self, device: &Device, message: &[u8]) -> Option<TicketResult> {
        let (pending, session) = (self.pending.as_ref()?, device.session()?);
        let sealed = SealedTicket::parse(message).ok()?;
        let head = sealed.header();
        let is_response = head.direction == Direction::Down
            && head.nonce == pending.nonce
            && head.session == ticket_session(device, session);
        let mut buffer = PlaintextBuffer::default();
        let body = sealed
            .open(session.ticket_root(), &mut buffer)
            .ok()
            .filter(|_| is_response)?;
        match pending.kind {
            Kind::Pair => {
                let paired = PairResponse::parse(body).ok()?;
                Some(TicketResult::Pair(paired, pending.submitted_ms))
            }
            Kind::Evidence => ChunkAck::parse(body).ok().map(TicketResult::Evidence),
            Kind::Status | Kind::Rows | Kind::Key => {
                EnrollmentState::parse(body).ok().map(TicketResult::State)
            }
        }
    }
}

fn ticket_session(device: &Device, session: &linewarden_protocol::device::Session) -> TicketSession {
    TicketSession {
        suite: device.config().suite,
        device: device.config().device,
        gateway: session.gateway,
        idx: session.idx,
        response_tag: *session.response_tag(),
    }
}
