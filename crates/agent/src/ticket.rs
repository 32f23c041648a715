//! One question to the controller at a time, sealed end to end and repeated until it is answered (LAP/1 1.7).
//!
//! A ticket goes to the gateway's desk: inside DATA where the gate is sealed, plainly where it is not. The device does not
//! know which, so it tries both in turn and keeps to the way by which an answer came. The ticket is the same either way.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use linewarden_protocol::device::Device;
use linewarden_protocol::ids::SessionId;
use linewarden_protocol::ticket::{
    self, Direction, Head, Kind, MESSAGE_BYTES_MAX, Opening, Paired, Room, Sealed, State,
};
use linewarden_protocol::wire::DATA_HEADER_BYTES;

use crate::tunnel::Tunnels;

/// First and longest interval between two copies, ms.
const REPEAT_MS: (u64, u64) = (100, 2_000);
/// Copies before it is given up.
const COPIES_MAX: u32 = 12;

/// What became of a question.
#[derive(Debug)]
pub(crate) enum Told {
    /// How the enrolment stands.
    State(State),
    /// A pair, or that there is none; and when it was asked for first, ms.
    Paired(Paired, u64),
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
    socket: Option<(IpAddr, UdpSocket)>,
    /// Whether the next copy goes inside DATA.
    sealed: bool,
    /// Whether answers have come that way, or the other.
    known: bool,
    asked: Option<Asked>,
}

impl TicketLine {
    pub(crate) fn new(desk: SocketAddr) -> Self {
        Self {
            desk,
            socket: None,
            sealed: false,
            known: false,
            asked: None,
        }
    }

    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|(_, socket)| socket.as_fd())
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
        let mut out = vec![0; MESSAGE_BYTES_MAX];
        let length = ticket::seal(session.ticket(), &head, aead_nonce, body, &mut out)
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
        if let Some(told) = self.receive(device, tunnels, own) {
            self.asked = None;
            return Some(told);
        }
        self.send(device, tunnels, own, now_ms)
    }

    fn send(&mut self, device: &Device, tunnels: &mut Tunnels, own: IpAddr, now_ms: u64) -> Option<Told> {
        let (sealed, desk) = (self.sealed, self.desk);
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
        let message = asked.message.clone();
        if !self.known {
            self.sealed = !sealed;
        }
        let sent = self.socket_at(own).and_then(|socket| match sealed {
            false => socket.send_to(&message, desk),
            true => {
                let mut out = vec![0; DATA_HEADER_BYTES + message.len()];
                let length = tunnels
                    .seal(device, own, desk, &message, &mut out)
                    .ok_or(io::ErrorKind::InvalidInput)?;
                let gate = SocketAddr::new(desk.ip(), tunnels.lap_port());
                socket.send_to(out.get(..length).unwrap_or_default(), gate)
            }
        });
        if let Err(error) = sent {
            tracing::debug!(%error, "a ticket was not sent; it is repeated");
        }
        None
    }

    fn receive(&mut self, device: &Device, tunnels: &mut Tunnels, own: IpAddr) -> Option<Told> {
        let mut buffer = [0u8; DATA_HEADER_BYTES + MESSAGE_BYTES_MAX + 1];
        loop {
            let (bound, socket) = self.socket.as_ref()?;
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                // An ICMP error, which anybody may have sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return None,
            };
            if *bound != own || (from.ip(), from.port()) != (self.desk.ip(), self.desk.port()) {
                continue;
            }
            let port = socket.local_addr().ok()?.port();
            let message = buffer.get(..length).unwrap_or_default();
            let was_sealed = !message.starts_with(&ticket::MAGIC.to_be_bytes());
            let message = match was_sealed {
                false => Some(message),
                true => tunnels.open_own(device, own, from, port, message),
            };
            if let Some(told) = message.and_then(|message| self.open(device, message)) {
                (self.sealed, self.known) = (was_sealed, true);
                return Some(told);
            }
        }
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
            Kind::Status | Kind::Rows | Kind::Key => State::parse(body).ok().map(Told::State),
        }
    }

    fn socket_at(&mut self, own: IpAddr) -> io::Result<&UdpSocket> {
        if self.socket.as_ref().is_none_or(|(bound, _)| *bound != own) {
            let socket = UdpSocket::bind((own, 0))?;
            socket.set_nonblocking(true)?;
            self.socket = Some((own, socket));
        }
        let (_, socket) = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(socket)
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
