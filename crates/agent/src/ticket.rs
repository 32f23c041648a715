//! One question to the controller at a time, sealed end to end and repeated until it is answered (LAP/1 1.7).
//!
//! A ticket goes to the gateway's desk, plainly and inside DATA in turn, and then by the way by which an answer came. It is
//! the same either way.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use linewarden_protocol::device::Device;
use linewarden_protocol::ids::SessionId;
use linewarden_protocol::ticket::{
    self, Carriage, Direction, Head, Kind, MESSAGE_BYTES_MAX, Opening, Paired, Room, Sealed, State, Taken,
};
use linewarden_protocol::wire::DATA_HEADER_BYTES;

use crate::tunnel::Tunnels;
use crate::way::{OwnSocket, Seal};

/// First and longest interval between two copies, ms.
const REPEAT_MS: (u64, u64) = (100, 2_000);
/// Copies before it is given up.
const COPIES_MAX: u32 = 12;
/// Datagrams before the others have their turn.
const BATCH: usize = 64;

/// What became of a question.
#[derive(Debug)]
pub(crate) enum Told {
    /// How the enrolment stands.
    State(State),
    /// A pair, or that there is none; and when it was asked for first, ms.
    Paired(Paired, u64),
    /// What became of a piece of evidence.
    Taken(Taken),
    /// No answer to a question of that kind: the session has ended meanwhile, or nothing gets through.
    Nothing(Kind),
}

/// What is under way.
struct Asked {
    kind: Kind,
    asked_ms: u64,
    session: SessionId,
    nonce: [u8; 16],
    message: Vec<u8>,
    copies: u32,
    due_ms: u64,
    interval_ms: u64,
}

/// The way to the controller.
pub(crate) struct TicketLine {
    desk: SocketAddr,
    socket: OwnSocket,
    /// Whether the next copy goes inside DATA.
    sealed: bool,
    /// Whether answers have come that way, or the other.
    known: bool,
    asked: Option<Asked>,
    /// Of the last question.
    serial: u64,
}

impl TicketLine {
    pub(crate) fn new(desk: SocketAddr) -> Self {
        Self {
            desk,
            socket: OwnSocket::new(0),
            sealed: false,
            known: false,
            asked: None,
            serial: 0,
        }
    }

    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    /// Answers that the kernel has dropped.
    pub(crate) fn kernel_drops(&self) -> u64 {
        self.socket.kernel_drops()
    }

    /// When [`TicketLine::poll`] has something to do though nothing has come.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.asked.as_ref().map(|asked| asked.due_ms)
    }

    pub(crate) fn is_free(&self) -> bool {
        self.asked.is_none()
    }

    /// Asks, in the device's session.
    ///
    /// # Errors
    /// No session, no random bytes, or a body that does not fit.
    pub(crate) fn ask(
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
        let head = Head {
            kind,
            direction: Direction::Up,
            opening: opening(device, session),
            number,
            nonce,
        };
        self.serial += 1;
        let carriage = Carriage {
            key: session.key(),
            serial: self.serial,
        };
        let mut out = vec![0; MESSAGE_BYTES_MAX];
        let length = ticket::seal_question(session.ticket(), &head, &carriage, aead_nonce, body, &mut out)
            .map_err(|error| error.to_string())?;
        out.truncate(length);
        self.asked = Some(Asked {
            kind,
            asked_ms: now_ms,
            session: session.id,
            nonce,
            message: out,
            copies: 0,
            due_ms: now_ms,
            interval_ms: REPEAT_MS.0,
        });
        Ok(())
    }

    /// Sends what is due and takes what has come; what became of the question, once.
    pub(crate) fn poll(
        &mut self,
        device: &Device,
        tunnels: &mut Tunnels,
        own: Option<IpAddr>,
        now_ms: u64,
    ) -> Option<Told> {
        let asked = self.asked.as_ref()?;
        let lives = device
            .session()
            .is_some_and(|session| session.id == asked.session);
        let (Some(own), true) = (own, lives) else {
            let kind = asked.kind;
            self.asked = None;
            return Some(Told::Nothing(kind));
        };
        let mut seal = Seal { device, tunnels, own };
        if let Some(told) = self.receive(&mut seal) {
            self.asked = None;
            return Some(told);
        }
        self.send(&mut seal, now_ms)
    }

    fn send(&mut self, seal: &mut Seal<'_>, now_ms: u64) -> Option<Told> {
        let sealed = self.sealed;
        let asked = self.asked.as_mut().filter(|asked| asked.due_ms <= now_ms)?;
        if asked.copies >= COPIES_MAX {
            let kind = asked.kind;
            self.asked = None;
            return Some(Told::Nothing(kind));
        }
        asked.copies += 1;
        asked.due_ms = now_ms.saturating_add(asked.interval_ms);
        // A pair of copies, one each way, before the interval grows.
        if asked.copies.is_multiple_of(2) {
            asked.interval_ms = (2 * asked.interval_ms).min(REPEAT_MS.1);
        }
        if !self.known {
            self.sealed = !sealed;
        }
        match self.socket.send(seal, self.desk, sealed, &asked.message) {
            Ok(()) => tracing::debug!(kind = ?asked.kind, desk = %self.desk, sealed, "sent a ticket"),
            Err(error) => {
                tracing::debug!(kind = ?asked.kind, %error, "a ticket was not sent; it is repeated")
            }
        }
        None
    }

    fn receive(&mut self, seal: &mut Seal<'_>) -> Option<Told> {
        let mut buffer = [0u8; DATA_HEADER_BYTES + MESSAGE_BYTES_MAX + 1];
        for _ in 0..BATCH {
            let received = self.socket.receive(seal, &mut buffer)?;
            if (received.from.ip(), received.from.port()) != (self.desk.ip(), self.desk.port()) {
                tracing::debug!(from = %received.from, "dropped a ticket: it is not from the desk");
                continue;
            }
            if let Some(told) = self.open(seal.device, received.message) {
                tracing::debug!(sealed = received.sealed, "received the answer to a ticket");
                (self.sealed, self.known) = (received.sealed, true);
                return Some(told);
            }
            tracing::debug!(from = %received.from, "dropped a ticket: it does not answer what was asked");
        }
        None
    }

    /// The answer, if it is one to what was asked.
    fn open(&self, device: &Device, message: &[u8]) -> Option<Told> {
        let (asked, session) = (self.asked.as_ref()?, device.session()?);
        let sealed = Sealed::parse(message).ok()?;
        let head = sealed.head();
        let is_answer = head.direction == Direction::Down
            && head.nonce == asked.nonce
            && head.opening == opening(device, session);
        let mut room = Room::default();
        let body = sealed
            .open(session.ticket(), &mut room)
            .ok()
            .filter(|_| is_answer)?;
        match asked.kind {
            Kind::Pair => {
                let paired = Paired::parse(body).ok()?;
                Some(Told::Paired(paired, asked.asked_ms))
            }
            Kind::Evidence => Taken::parse(body).ok().map(Told::Taken),
            Kind::Status | Kind::Rows | Kind::Key => State::parse(body).ok().map(Told::State),
        }
    }
}

fn opening(device: &Device, session: &linewarden_protocol::device::Session) -> Opening {
    Opening {
        suite: device.config().suite,
        device: device.config().device,
        gateway: session.gateway,
        idx: session.idx,
        response_tag: *session.response_tag(),
    }
}
