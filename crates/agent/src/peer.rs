//! Datagrams between local programs and a peer device, under a key that the controller gave both (LAP/1 1.7.5).
//!
//! ```text
//!  program ──► listener ──► own address, peer port ══ DATA ══► peer's address, peer port ──► listener ──► program
//! ```
//! The controller is asked for each pair again and again: that renews the key ahead of its end, and shows that the pair has
//! been closed. What is said between the two, and when, is the [`Association`]'s.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::pair::{self, Association, OVERHEAD_BYTES, Path};
use linewarden_protocol::ticket::Paired;
use linewarden_protocol::wire::DATA_HEADER_BYTES;
use linewarden_socket::kernel_drops;
use zeroize::Zeroizing;

use crate::agent::AgentError;
use crate::report::{PeerCounts, Report};
use crate::way::{OwnSocket, Seal};

/// How often the controller is asked whether a pair still stands, ms: as long a closed pair lives while all are connected.
const ASK_MS: u64 = 10_000;
/// While there is a pair and no session, ms: first, and longest; each time twice as long.
const ASK_APART_MS: (u64, u64) = (1_000, 5_000);
/// Between two attempts to open the socket for peers, ms.
const BIND_AGAIN_MS: u64 = 1_000;
/// Datagrams of one socket before the others have their turn.
const BATCH: usize = 64;
/// The longest payload: with both heads it fits a link of 1,500 bytes, over IPv6 too.
const PAYLOAD_BYTES_MAX: usize = 1_500 - 48 - DATA_HEADER_BYTES - OVERHEAD_BYTES;

/// Why a peer is closed, unless the controller said so.
const KEY_IS_OVER: &str = "its key is over and was not renewed";

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

struct State {
    peer: Peer,
    listener: UdpSocket,
    program: Option<SocketAddr>,
    ask_at_ms: u64,
    /// How long until it is asked again while there is no session.
    apart_pause_ms: u64,
    association: Association,
    /// Whether the last that was told is that it is open.
    told_open: bool,
    /// Without those of the kernel.
    counts: PeerCounts,
}

/// All peers of an agent.
pub(crate) struct Peers {
    states: Vec<State>,
    socket: OwnSocket,
    port: u16,
    /// While there is no socket.
    bind_at_ms: Option<u64>,
    /// Of no pair.
    dropped_unopened: u64,
}

impl Peers {
    /// Nobody.
    pub(crate) fn none() -> Self {
        Self {
            states: Vec::new(),
            socket: OwnSocket::new(0),
            port: 0,
            bind_at_ms: None,
            dropped_unopened: 0,
        }
    }

    /// What was lost.
    pub(crate) fn counts(&self) -> PeerCounts {
        let mut all = PeerCounts {
            dropped_unopened: self.dropped_unopened,
            kernel_drops: self.socket.kernel_drops(),
            ..PeerCounts::default()
        };
        for State { counts, listener, .. } in &self.states {
            all.dropped_no_session += counts.dropped_no_session;
            all.dropped_too_long += counts.dropped_too_long;
            all.dropped_unsent += counts.dropped_unsent;
            all.dropped_undelivered += counts.dropped_undelivered;
            all.kernel_drops += kernel_drops(listener).unwrap_or_default();
        }
        all
    }

    /// Those of `device`. Listens for local programs; peers are talked to at UDP port `port` of the device's address.
    pub(crate) fn open(device: DeviceId, peers: &[Peer], port: u16) -> Result<Self, AgentError> {
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
                apart_pause_ms: ASK_APART_MS.0,
                association: Association::new(device, peer.device),
                told_open: false,
                counts: PeerCounts::default(),
            })
        };
        Ok(Self {
            states: peers.iter().map(open).collect::<Result<_, _>>()?,
            socket: OwnSocket::new(port),
            port,
            ..Self::none()
        })
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.states.iter().map(|state| state.listener.as_fd());
        listeners.chain(self.socket.descriptor())
    }

    /// When [`Peers::carry`] has something to do though nothing has come.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let due_ms = self
            .states
            .iter()
            .filter_map(|state| state.association.deadline())
            .min()?;
        Some(due_ms.max(self.bind_at_ms.unwrap_or_default()))
    }

    /// When [`Peers::question`] has one.
    pub(crate) fn ask_deadline(&self) -> Option<u64> {
        self.states.iter().map(|state| state.ask_at_ms).min()
    }

    /// Whom to ask the controller for.
    pub(crate) fn question(&mut self, now_ms: u64) -> Option<DeviceId> {
        // Whoever waits longest: peers that are off must not take the turn of those that are there.
        let waiting = self.states.iter_mut().filter(|state| state.ask_at_ms <= now_ms);
        let state = waiting.min_by_key(|state| state.ask_at_ms)?;
        let pause_ms = match state.association.is_open() {
            true => {
                state.apart_pause_ms = ASK_APART_MS.0;
                ASK_MS
            }
            false => {
                let pause_ms = state.apart_pause_ms;
                state.apart_pause_ms = (2 * pause_ms).min(ASK_APART_MS.1);
                pause_ms
            }
        };
        state.ask_at_ms = now_ms.saturating_add(pause_ms);
        Some(state.peer.device)
    }

    /// Takes the controller's answer to a question that was asked at `asked_ms`.
    pub(crate) fn answer(&mut self, paired: Paired, asked_ms: u64, sink: &mut dyn FnMut(&Report)) {
        let port = self.port;
        let Some(state) = self
            .states
            .iter_mut()
            .find(|state| state.peer.device == paired.peer)
        else {
            return;
        };
        let Some((pairing, role)) = paired.pair else {
            state.association.close();
            // Whoever allows it does so for more than a few seconds.
            state.ask_at_ms = asked_ms.saturating_add(ASK_MS);
            state.tell("the controller has no such pair", sink);
            return;
        };
        let at_gateway = || {
            let v6 = Ipv6Addr::from(paired.addr);
            (!v6.is_unspecified()).then(|| SocketAddr::new(IpAddr::V6(v6).to_canonical(), port))
        };
        let address = state.peer.address.or_else(at_gateway);
        let until_ms = asked_ms.saturating_add(u64::from(paired.lifetime_s) * 1_000);
        state.association.hold(pairing, role, until_ms, address);
    }

    /// Carries what is there, both ways.
    pub(crate) fn carry(&mut self, seal: &mut Seal<'_>, now_ms: u64, sink: &mut dyn FnMut(&Report)) {
        if self.states.is_empty() {
            return;
        }
        match self.socket.bind(seal.own) {
            Ok(_) => self.bind_at_ms = None,
            Err(error) => {
                tracing::debug!(%error, port = self.port, "no socket for peers");
                self.bind_at_ms = Some(now_ms.saturating_add(BIND_AGAIN_MS));
            }
        }
        self.receive(seal, now_ms);
        for state in &mut self.states {
            state.send_due(&mut self.socket, seal, now_ms);
            state.upwards(&mut self.socket, seal, now_ms);
            state.association.expire(now_ms);
            state.tell(KEY_IS_OVER, sink);
        }
    }

    /// Takes what has come from the network.
    fn receive(&mut self, seal: &mut Seal<'_>, now_ms: u64) {
        let mut buffer = [0u8; 2_048];
        for _ in 0..BATCH {
            let Some(received) = self.socket.receive(seal, &mut buffer) else {
                return;
            };
            let path = Path {
                address: received.from,
                sealed: received.sealed,
            };
            let mut message = Zeroizing::new(received.message.to_vec());
            let id = pair::pair_id(&message);
            let mut states = self.states.iter_mut();
            let state = id.and_then(|id| states.find(|state| state.association.knows(&id)));
            let Some(state) = state else {
                self.dropped_unopened += 1;
                continue;
            };
            state.take(&mut message, path, now_ms);
            state.send_due(&mut self.socket, seal, now_ms);
        }
    }
}

impl State {
    fn take(&mut self, message: &mut [u8], path: Path, now_ms: u64) {
        let payload = self.association.take(message, path, now_ms, &mut random);
        let program = self.peer.deliver.or(self.program);
        // An empty one says nothing to a program.
        let Some(payload) = payload.filter(|payload| !payload.is_empty()) else {
            return;
        };
        let sent = program.map(|program| self.listener.send_to(payload, program));
        if !matches!(sent, Some(Ok(_))) {
            tracing::debug!(?program, ?sent, "a peer's datagram was not delivered");
            self.counts.dropped_undelivered += 1;
        }
    }

    /// Sends what is due between the two devices themselves.
    fn send_due(&mut self, socket: &mut OwnSocket, seal: &mut Seal<'_>, now_ms: u64) {
        let mut out = [0u8; pair::HANDSHAKE_BYTES];
        while let Some((path, length)) = self.association.poll(now_ms, &mut random, &mut out) {
            self.send(socket, seal, path, out.get(..length).unwrap_or_default());
        }
    }

    /// Takes what local programs have sent. While there is no session it is dropped, as on any link that is down.
    fn upwards(&mut self, socket: &mut OwnSocket, seal: &mut Seal<'_>, now_ms: u64) {
        let mut buffer = [0u8; PAYLOAD_BYTES_MAX + 1];
        let mut out = [0u8; PAYLOAD_BYTES_MAX + OVERHEAD_BYTES];
        for _ in 0..BATCH {
            let (length, program) = match self.listener.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            self.program = Some(program);
            if length > PAYLOAD_BYTES_MAX {
                // Once for a run of them: a program that sends too much does so again and again.
                if self.counts.dropped_too_long == 0 || self.counts.dropped_too_long.is_power_of_two() {
                    tracing::warn!(peer = %self.peer.device, "a datagram of more than {PAYLOAD_BYTES_MAX} B was dropped");
                }
                self.counts.dropped_too_long += 1;
                continue;
            }
            let Some(payload) = buffer.get(..length).filter(|payload| !payload.is_empty()) else {
                continue;
            };
            match self.association.seal(payload, now_ms, &mut out) {
                Some((path, length)) => {
                    self.send(socket, seal, path, out.get(..length).unwrap_or_default());
                }
                None => self.counts.dropped_no_session += 1,
            }
        }
    }

    fn send(&mut self, socket: &mut OwnSocket, seal: &mut Seal<'_>, path: Path, message: &[u8]) {
        if let Err(error) = socket.send(seal, path.address, path.sealed, message) {
            tracing::debug!(%error, peer = %self.peer.device, "a message was not sent");
            self.counts.dropped_unsent += 1;
        }
    }

    /// Tells that it is open, or closed and why, when that has changed.
    fn tell(&mut self, why: &str, sink: &mut dyn FnMut(&Report)) {
        let is_open = self.association.is_open();
        if std::mem::replace(&mut self.told_open, is_open) == is_open {
            return;
        }
        let device = self.peer.device.to_string();
        sink(&match is_open {
            true => Report::PeerOpen { device },
            false => Report::PeerClosed {
                device,
                why: why.to_owned(),
            },
        });
    }
}

fn random() -> Option<[u8; 16]> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).ok().map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::pair::{Pairing, Role};

    use super::*;

    const PEER: DeviceId = DeviceId(0xd2);

    fn peers(devices: impl IntoIterator<Item = DeviceId>) -> Peers {
        let peer = |device| Peer {
            device,
            listen: "127.0.0.1:0".parse().unwrap(),
            deliver: None,
            address: None,
        };
        let peers: Vec<Peer> = devices.into_iter().map(peer).collect();
        Peers::open(DeviceId(0xd1), &peers, 0).unwrap()
    }

    fn paired(pair: Option<(Pairing, Role)>) -> Paired {
        Paired {
            peer: PEER,
            lifetime_s: u32::from(pair.is_some()) * 300,
            pair,
            addr: [0; 16],
        }
    }

    /// When it is asked for the pair within 30 s, if each question is answered so.
    fn asked_at_ms(answer: &Paired) -> Vec<u64> {
        let mut peers = peers([PEER]);
        let mut asked = Vec::new();
        for now_ms in 0..30_000 {
            if peers.question(now_ms) == Some(PEER) {
                asked.push(now_ms);
                peers.answer(answer.clone(), now_ms, &mut |_| panic!("nothing to tell"));
                assert_eq!(peers.ask_deadline(), Some(peers.states[0].ask_at_ms));
            }
        }
        asked
    }

    #[test]
    fn a_pair_that_is_not_allowed_is_asked_for_every_ten_seconds_only() {
        assert_eq!(asked_at_ms(&paired(None)), [0, 10_000, 20_000]);
        let pairing = Pairing {
            id: [1; 16],
            key: [2; 32],
        };
        let apart = asked_at_ms(&paired(Some((pairing, Role::Responder))));
        assert_eq!(
            apart,
            [0, 1_000, 3_000, 7_000, 12_000, 17_000, 22_000, 27_000],
            "more often while there is a key and no session"
        );
    }

    #[test]
    fn peers_that_are_off_do_not_take_the_turn_of_others() {
        let mut peers = peers((1..=20).map(DeviceId));
        // Ten questions a second are all that a desk hands on.
        let asked: Vec<u64> = (0..20)
            .filter_map(|turn| Some(peers.question(100 * turn)?.0))
            .collect();
        assert_eq!(asked, (1..=20).collect::<Vec<_>>());
    }
}
