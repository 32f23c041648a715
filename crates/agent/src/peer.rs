//! Datagrams between local programs and a peer device, under a key that the controller gave both (LAP/1 1.7.5).
//!
//! ```text
//!  program ──► listener ──► own address, peer port ══ DATA ══► peer's address, peer port ──► listener ──► program
//! ```
//! The controller is asked for each pair again and again: that renews the key ahead of its end, and shows that the pair has
//! been closed. Whoever asked first sends HELLO, to where the controller or the configuration says that the peer is; the
//! other one answers to where it came from. Messages go plainly or inside DATA, as tickets do.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use linewarden_protocol::device::Device;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::pair::{self, HANDSHAKE_BYTES, OVERHEAD_BYTES, Role, Session, Side};
use linewarden_protocol::ticket::Paired;
use linewarden_protocol::wire::{self, DATA_HEADER_BYTES};
use zeroize::Zeroizing;

use crate::agent::AgentError;
use crate::report::Report;
use crate::tunnel::Tunnels;

/// How often the controller is asked whether a pair still stands, ms: as long a closed pair lives while all are connected.
const ASK_MS: u64 = 10_000;
/// While there is none, ms.
const ASK_SOON_MS: u64 = 1_000;
/// First and longest interval between two HELLOs, ms.
const HELLO_MS: (u64, u64) = (100, 2_000);
/// Between two answers to HELLOs of one peer, ms: one that is repeated by somebody else costs little.
const WELCOME_MS: u64 = 50;
/// Datagrams of one socket before the others have their turn.
const BATCH: usize = 64;
/// The longest payload: with both heads it fits a link of 1,500 bytes, over IPv6 too.
const PAYLOAD_BYTES_MAX: usize = 1_500 - 48 - DATA_HEADER_BYTES - OVERHEAD_BYTES;

/// A device to talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The other device.
    pub device: DeviceId,
    /// Where local programs send, and from where they get its datagrams.
    pub listen: SocketAddr,
    /// Who gets its datagrams; the last one that has sent, if not given.
    pub deliver: Option<SocketAddr>,
    /// Where it is, if it is not at the same gateway.
    pub address: Option<SocketAddr>,
}

/// The key that is good for the moment.
struct Held {
    side: Side,
    until_ms: u64,
    address: Option<SocketAddr>,
}

/// A handshake that is done, or offered.
struct Live {
    id: [u8; 16],
    session: Session,
    until_ms: u64,
    address: SocketAddr,
    /// Inside DATA.
    sealed: bool,
}

/// A HELLO that is out.
struct Hello {
    nonce: [u8; 16],
    due_ms: u64,
    interval_ms: u64,
    sealed: bool,
}

struct State {
    peer: Peer,
    listener: UdpSocket,
    program: Option<SocketAddr>,
    ask_at_ms: u64,
    held: Option<Held>,
    hello: Option<Hello>,
    offered: Option<Live>,
    live: Option<Live>,
    welcome_at_ms: u64,
}

/// All peers of an agent.
#[derive(Default)]
pub(crate) struct Peers {
    states: Vec<State>,
    port: u16,
    /// At the device's address.
    socket: Option<(IpAddr, UdpSocket)>,
}

/// What sending takes beside a peer.
struct Way<'a> {
    device: &'a Device,
    tunnels: &'a mut Tunnels,
    own: IpAddr,
    socket: &'a UdpSocket,
}

impl Peers {
    /// Listens for local programs; peers are talked to at UDP port `port` of the device's address.
    pub(crate) fn open(peers: &[Peer], port: u16) -> Result<Self, AgentError> {
        let open = |peer: &Peer| {
            let listener = UdpSocket::bind(peer.listen).and_then(|socket| {
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            let listener = listener.map_err(|source| AgentError::ListenForPeer {
                listen: peer.listen,
                source,
            })?;
            Ok(State {
                peer: *peer,
                listener,
                program: None,
                ask_at_ms: 0,
                held: None,
                hello: None,
                offered: None,
                live: None,
                welcome_at_ms: 0,
            })
        };
        Ok(Self {
            states: peers.iter().map(open).collect::<Result<_, _>>()?,
            port,
            socket: None,
        })
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.states.iter().map(|state| state.listener.as_fd());
        listeners.chain(self.socket.iter().map(|(_, socket)| socket.as_fd()))
    }

    /// When [`Peers::carry`] or [`Peers::question`] has something to do though nothing has come.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let due = |state: &State| {
            let hello_ms = state.hello.as_ref().map(|hello| hello.due_ms);
            let live_ms = state.live.as_ref().map(|live| live.until_ms);
            let held_ms = state.held.as_ref().map(|held| held.until_ms);
            [hello_ms, live_ms, held_ms, Some(state.ask_at_ms)]
                .into_iter()
                .flatten()
                .min()
        };
        self.states.iter().filter_map(due).min()
    }

    /// Whom to ask the controller for.
    pub(crate) fn question(&mut self, now_ms: u64) -> Option<DeviceId> {
        let state = self.states.iter_mut().find(|state| state.ask_at_ms <= now_ms)?;
        let pause_ms = match state.live {
            Some(_) => ASK_MS,
            None => ASK_SOON_MS,
        };
        state.ask_at_ms = now_ms.saturating_add(pause_ms);
        Some(state.peer.device)
    }

    /// Takes the controller's answer to a question that was asked at `asked_ms`.
    pub(crate) fn answer(
        &mut self,
        device: &Device,
        paired: Paired,
        asked_ms: u64,
        sink: &mut dyn FnMut(&Report),
    ) {
        let port = self.port;
        let Some(state) = self
            .states
            .iter_mut()
            .find(|state| state.peer.device == paired.peer)
        else {
            return;
        };
        let Some((pairing, role)) = paired.pair else {
            state.close("the controller has no such pair", sink);
            return;
        };
        let at_gateway = || {
            let v6 = Ipv6Addr::from(paired.addr);
            (!v6.is_unspecified()).then(|| SocketAddr::new(IpAddr::V6(v6).to_canonical(), port))
        };
        let address = state.peer.address.or_else(at_gateway);
        match &mut state.held {
            Some(held) if held.side.pairing.id == pairing.id => held.address = address,
            _ => {
                let lifetime_ms = u64::from(paired.lifetime_s) * 1_000;
                let side = Side {
                    pairing,
                    role,
                    own: device.config().device,
                    peer: paired.peer,
                };
                state.held = Some(Held {
                    side,
                    until_ms: asked_ms.saturating_add(lifetime_ms),
                    address,
                });
                (state.hello, state.offered) = (None, None);
            }
        }
    }

    /// Carries what is there, both ways; `own` is the device's address.
    pub(crate) fn carry(
        &mut self,
        device: &Device,
        tunnels: &mut Tunnels,
        own: Option<IpAddr>,
        now_ms: u64,
        sink: &mut dyn FnMut(&Report),
    ) {
        let Some(own) = own.filter(|_| !self.states.is_empty()) else {
            return;
        };
        for state in &mut self.states {
            state.expire(now_ms, sink);
        }
        if self.socket.as_ref().is_none_or(|(bound, _)| *bound != own) {
            let socket = UdpSocket::bind((own, self.port)).and_then(|socket| {
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            match socket {
                Ok(socket) => self.socket = Some((own, socket)),
                Err(error) => {
                    tracing::debug!(%error, port = self.port, "no socket for peers");
                    self.states.iter_mut().for_each(|state| state.hello = None);
                    return;
                }
            }
        }
        let Some((_, socket)) = &self.socket else {
            return;
        };
        let mut way = Way {
            device,
            tunnels,
            own,
            socket,
        };
        receive(&mut self.states, &mut way, now_ms, sink);
        for state in &mut self.states {
            state.greet(&mut way, now_ms);
            state.upwards(&mut way);
        }
    }
}

impl Way<'_> {
    /// Sends to a peer, plainly or inside DATA.
    fn send(&mut self, to: SocketAddr, sealed: bool, message: &[u8]) -> io::Result<()> {
        if !sealed {
            return self.socket.send_to(message, to).map(drop);
        }
        let mut out = vec![0; DATA_HEADER_BYTES + message.len()];
        let length = self
            .tunnels
            .seal(self.device, self.own, to, message, &mut out)
            .ok_or(io::ErrorKind::NotConnected)?;
        let gate = SocketAddr::new(to.ip(), self.tunnels.lap_port());
        self.socket
            .send_to(out.get(..length).unwrap_or_default(), gate)
            .map(drop)
    }
}

/// Takes what has come from the network.
fn receive(states: &mut [State], way: &mut Way<'_>, now_ms: u64, sink: &mut dyn FnMut(&Report)) {
    let mut buffer = [0u8; 2_048];
    for _ in 0..BATCH {
        let (length, from) = match way.socket.recv_from(&mut buffer) {
            Ok(received) => received,
            // An ICMP error, which anybody may have sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(_) => return,
        };
        let message = buffer.get(..length).unwrap_or_default();
        let sealed = message.starts_with(&wire::MAGIC.to_be_bytes());
        let message = match sealed {
            false => Some(message),
            true => {
                let port = way.socket.local_addr().map_or(0, |local| local.port());
                way.tunnels.open_own(way.device, way.own, from, port, message)
            }
        };
        let Some((message, id)) = message.and_then(|message| Some((message, pair::pair_id(message)?))) else {
            continue;
        };
        if let Some(state) = states.iter_mut().find(|state| state.knows(&id)) {
            state.take(message, from, sealed, way, now_ms, sink);
        }
    }
}

impl State {
    fn knows(&self, id: &[u8; 16]) -> bool {
        let held = self.held.as_ref().map(|held| &held.side.pairing.id);
        let live = self.live.as_ref().map(|live| &live.id);
        held == Some(id) || live == Some(id)
    }

    fn close(&mut self, why: &str, sink: &mut dyn FnMut(&Report)) {
        (self.held, self.hello, self.offered) = (None, None, None);
        if self.live.take().is_some() {
            sink(&Report::PeerClosed {
                device: self.peer.device.to_string(),
                why: why.to_owned(),
            });
        }
    }

    fn expire(&mut self, now_ms: u64, sink: &mut dyn FnMut(&Report)) {
        self.held.take_if(|held| held.until_ms <= now_ms);
        if self.held.is_none() {
            (self.hello, self.offered) = (None, None);
        }
        if self.live.as_ref().is_some_and(|live| live.until_ms <= now_ms) {
            self.live = None;
            sink(&Report::PeerClosed {
                device: self.peer.device.to_string(),
                why: "its key is over and was not renewed".to_owned(),
            });
        }
    }

    /// Sends HELLO when it is due.
    fn greet(&mut self, way: &mut Way<'_>, now_ms: u64) {
        let Some(held) = self
            .held
            .as_ref()
            .filter(|held| held.side.role == Role::Initiator)
        else {
            return;
        };
        let is_done = self
            .live
            .as_ref()
            .is_some_and(|live| live.id == held.side.pairing.id);
        let (Some(address), false) = (held.address, is_done) else {
            return;
        };
        if self.hello.is_none() {
            let mut nonce = [0u8; 16];
            if getrandom::fill(&mut nonce).is_err() {
                return;
            }
            self.hello = Some(Hello {
                nonce,
                due_ms: now_ms,
                interval_ms: HELLO_MS.0,
                sealed: false,
            });
        }
        let Some(hello) = self.hello.as_mut().filter(|hello| hello.due_ms <= now_ms) else {
            return;
        };
        hello.due_ms = now_ms.saturating_add(hello.interval_ms);
        hello.interval_ms = (2 * hello.interval_ms).min(HELLO_MS.1);
        let (message, sealed) = (held.side.hello(&hello.nonce), hello.sealed);
        hello.sealed = !sealed;
        if let Err(error) = way.send(address, sealed, &message) {
            tracing::debug!(%error, %address, "a HELLO was not sent; it is repeated");
        }
    }

    /// Takes a message of this pair.
    fn take(
        &mut self,
        message: &[u8],
        from: SocketAddr,
        sealed: bool,
        way: &mut Way<'_>,
        now_ms: u64,
        sink: &mut dyn FnMut(&Report),
    ) {
        if message.len() == HANDSHAKE_BYTES && self.shake_hands(message, from, sealed, way, now_ms, sink) {
            return;
        }
        let mut room = Zeroizing::new(message.to_vec());
        if let Some(live) = &mut self.live
            && let Ok(payload) = live.session.open(&mut room)
        {
            // The peer may have moved: who seals under the key is it.
            (live.address, live.sealed) = (from, sealed);
            deliver(&self.listener, self.peer.deliver.or(self.program), payload);
            return;
        }
        let mut room = Zeroizing::new(message.to_vec());
        if let Some(mut offered) = self.offered.take() {
            match offered.session.open(&mut room) {
                Ok(payload) => {
                    deliver(&self.listener, self.peer.deliver.or(self.program), payload);
                    self.open(offered, sink);
                }
                Err(_) => self.offered = Some(offered),
            }
        }
    }

    /// Answers a HELLO, or takes the answer to one; whether it was such a message of the peer's.
    fn shake_hands(
        &mut self,
        message: &[u8],
        from: SocketAddr,
        sealed: bool,
        way: &mut Way<'_>,
        now_ms: u64,
        sink: &mut dyn FnMut(&Report),
    ) -> bool {
        let Some(held) = &self.held else {
            return false;
        };
        let live = |session| Live {
            id: held.side.pairing.id,
            session,
            until_ms: held.until_ms,
            address: from,
            sealed,
        };
        match held.side.role {
            Role::Responder if pair::is_hello(message) => {
                let mut nonce = [0u8; 16];
                if now_ms < self.welcome_at_ms || getrandom::fill(&mut nonce).is_err() {
                    return true;
                }
                let Ok((welcome, session)) = held.side.welcome(message, &nonce) else {
                    return true;
                };
                self.offered = Some(live(session));
                self.welcome_at_ms = now_ms.saturating_add(WELCOME_MS);
                if let Err(error) = way.send(from, sealed, &welcome) {
                    tracing::debug!(%error, %from, "a WELCOME was not sent; HELLO is repeated");
                }
                true
            }
            Role::Initiator => {
                let Some(Ok(session)) = self
                    .hello
                    .as_ref()
                    .map(|hello| held.side.welcomed(&hello.nonce, message))
                else {
                    return false;
                };
                let live = live(session);
                self.hello = None;
                self.open(live, sink);
                // With it the responder knows that the initiator lives.
                self.send(way, b"");
                true
            }
            Role::Responder => false,
        }
    }

    fn open(&mut self, live: Live, sink: &mut dyn FnMut(&Report)) {
        if self.live.replace(live).is_none() {
            sink(&Report::PeerOpen {
                device: self.peer.device.to_string(),
            });
        }
    }

    /// Takes what local programs have sent.
    fn upwards(&mut self, way: &mut Way<'_>) {
        let mut buffer = [0u8; PAYLOAD_BYTES_MAX + 1];
        for _ in 0..BATCH {
            let (length, program) = match self.listener.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            self.program = Some(program);
            if length > PAYLOAD_BYTES_MAX {
                tracing::warn!(peer = %self.peer.device, "a datagram of more than {PAYLOAD_BYTES_MAX} B was dropped");
                continue;
            }
            // An empty one says nothing to a program.
            if length > 0 {
                self.send(way, buffer.get(..length).unwrap_or_default());
            }
        }
    }

    /// While there is no session it is dropped, as on any link that is down.
    fn send(&mut self, way: &mut Way<'_>, payload: &[u8]) {
        let Some(live) = &mut self.live else {
            return;
        };
        let mut out = [0u8; PAYLOAD_BYTES_MAX + OVERHEAD_BYTES];
        let sent = match live.session.seal(payload, &mut out) {
            Ok(length) => way.send(live.address, live.sealed, out.get(..length).unwrap_or_default()),
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, peer = %self.peer.device, "a datagram was not sent");
        }
    }
}

fn deliver(listener: &UdpSocket, program: Option<SocketAddr>, payload: &[u8]) {
    if let Some(program) = program.filter(|_| !payload.is_empty())
        && let Err(error) = listener.send_to(payload, program)
    {
        tracing::debug!(%error, %program, "a peer's datagram was not delivered");
    }
}
