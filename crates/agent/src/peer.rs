//! Datagrams between local programs and a peer device, sealed with a key from the controller (LAP/1 1.7.5).
//!
//! ```text
//!  program ──► listener ──► own address, peer port ══ DATA ══► peer's address, peer port ──► listener ──► program
//! ```
//! The device requests the key of each pair from the controller repeatedly, to renew the key before it expires, and to
//! detect that the pair was deleted. [`Association`] implements the protocol between the two devices.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use linewarden_protocol::backoff::Backoff;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::pair::{self, Association, OVERHEAD_BYTES, Path};
use linewarden_protocol::ticket::PairResponse;
use linewarden_protocol::wire::DATA_HEADER_BYTES;
use linewarden_socket::kernel_drops;
use zeroize::Zeroizing;

use crate::device_socket::{DeviceSocket, SealContext};
use crate::error::AgentError;
use crate::event::{AgentEvent, PeerCounts};
use crate::retry::{self, RetryTimer, milliseconds};

/// Interval between requests for a connected pair, ms: a deleted pair stays usable for at most this time if the
/// controller is reachable.
const PAIR_REQUEST_INTERVAL_MS: u64 = 10_000;
/// First and longest interval between requests for a pair that is not connected (LAP/1 1.7.5): without jitter.
const PAIR_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Longest interval between attempts to open the socket for peers, ms.
const BIND_RETRY_MS: u64 = 1_000;
/// Maximum number of datagrams of one socket before other sockets are served.
const BATCH: usize = 64;
/// Maximum payload: with the headers of DATA and of the pair's message, a datagram fits a link of 1,500 bytes, with
/// IPv6 too.
const PAYLOAD_BYTES_MAX: usize = 1_500 - 48 - DATA_HEADER_BYTES - OVERHEAD_BYTES;

/// Reason for a disconnection if the controller has not reported that the pair was deleted.
const KEY_EXPIRED: &str = "the key of the pair has expired and was not renewed";

/// A peer device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's device ID.
    pub device: DeviceId,
    /// Address to which local programs send, and from which they receive the peer's datagrams.
    pub listen: SocketAddr,
    /// Address of the program that receives the peer's datagrams; default: the program that most recently sent a datagram.
    pub deliver: Option<SocketAddr>,
    /// Address of the peer, if it is not at the same gateway.
    pub address: Option<SocketAddr>,
}

struct PeerState {
    peer: Peer,
    listener: UdpSocket,
    /// Address of the local program that most recently sent a datagram.
    program: Option<SocketAddr>,
    /// Time of the next request for the key of the pair.
    request_at_ms: u64,
    /// Intervals between requests while not connected.
    backoff: Backoff,
    association: Association,
    /// The last reported state: whether the peer is connected.
    reported_open: bool,
    /// Counters, except drops by the kernel.
    counts: PeerCounts,
}

/// All peers of an agent.
pub(crate) struct Peers {
    states: Vec<PeerState>,
    socket: DeviceSocket,
    port: u16,
    /// Attempts to open the socket.
    bind_retry: RetryTimer,
    /// Datagrams without the id of a known pair, including DATA that did not verify.
    dropped_unopened: u64,
}

impl Peers {
    /// No peers.
    pub(crate) fn empty() -> Self {
        Self {
            states: Vec::new(),
            socket: DeviceSocket::new(0),
            port: 0,
            bind_retry: RetryTimer::every(BIND_RETRY_MS),
            dropped_unopened: 0,
        }
    }

    /// Counters of lost datagrams.
    pub(crate) fn counts(&self) -> PeerCounts {
        let mut total = PeerCounts {
            dropped_unopened: self.dropped_unopened,
            kernel_drops: self.socket.kernel_drops(),
            ..PeerCounts::default()
        };
        for PeerState { counts, listener, .. } in &self.states {
            total.dropped_no_session += counts.dropped_no_session;
            total.dropped_too_long += counts.dropped_too_long;
            total.dropped_unsent += counts.dropped_unsent;
            total.dropped_undelivered += counts.dropped_undelivered;
            total.kernel_drops += kernel_drops(listener).unwrap_or_default();
        }
        total
    }

    /// Opens the peers of `device`: sockets for local programs; datagrams between devices use UDP port `port` of the
    /// device's address.
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
            Ok(PeerState {
                peer: *peer,
                listener,
                program: None,
                request_at_ms: 0,
                backoff: Backoff::new(PAIR_RETRY.0, PAIR_RETRY.1),
                association: Association::new(device, peer.device),
                reported_open: false,
                counts: PeerCounts::default(),
            })
        };
        Ok(Self {
            states: peers.iter().map(open).collect::<Result<_, _>>()?,
            socket: DeviceSocket::new(port),
            port,
            ..Self::empty()
        })
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listeners = self.states.iter().map(|state| state.listener.as_fd());
        listeners.chain(self.socket.descriptor())
    }

    /// When [`Peers::forward`] must be called although no datagram has arrived.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let due_ms = self
            .states
            .iter()
            .filter_map(|state| state.association.deadline())
            .min()?;
        Some(due_ms.max(self.bind_retry.due_ms()))
    }

    /// When [`Peers::next_request`] returns a request.
    pub(crate) fn request_deadline(&self) -> Option<u64> {
        self.states.iter().map(|state| state.request_at_ms).min()
    }

    /// Returns the next peer for which a key request is due, and schedules the following request. `random` selects the delay
    /// of a retry.
    pub(crate) fn next_request(&mut self, now_ms: u64, random: u64) -> Option<DeviceId> {
        // The peer that waited longest is next, so that disconnected peers do not delay other peers.
        let waiting = self
            .states
            .iter_mut()
            .filter(|state| state.request_at_ms <= now_ms);
        let state = waiting.min_by_key(|state| state.request_at_ms)?;
        let pause_ms = match state.association.is_open() {
            true => {
                state.backoff.reset();
                PAIR_REQUEST_INTERVAL_MS
            }
            false => milliseconds(state.backoff.next(random)),
        };
        state.request_at_ms = now_ms.saturating_add(pause_ms);
        Some(state.peer.device)
    }

    /// Handles the controller's response to a request that was sent at `requested_ms`.
    pub(crate) fn handle_response(
        &mut self,
        response: PairResponse,
        requested_ms: u64,
        sink: &mut dyn FnMut(&AgentEvent),
    ) {
        let port = self.port;
        let Some(state) = self
            .states
            .iter_mut()
            .find(|state| state.peer.device == response.peer)
        else {
            return;
        };
        let Some((pairing, role)) = response.pair else {
            state.association.close();
            // The next request can wait, because a pair is rarely created within a few seconds.
            state.request_at_ms = requested_ms.saturating_add(PAIR_REQUEST_INTERVAL_MS);
            state.report_change("the pair does not exist at the controller", sink);
            return;
        };
        let at_gateway = || {
            let v6 = Ipv6Addr::from(response.addr);
            (!v6.is_unspecified()).then(|| SocketAddr::new(IpAddr::V6(v6).to_canonical(), port))
        };
        let address = state.peer.address.or_else(at_gateway);
        let until_ms = requested_ms.saturating_add(u64::from(response.lifetime_s) * 1_000);
        state.association.set_key(pairing, role, until_ms, address);
    }

    /// Forwards datagrams in both directions.
    pub(crate) fn forward(
        &mut self,
        seal: &mut SealContext<'_>,
        now_ms: u64,
        sink: &mut dyn FnMut(&AgentEvent),
    ) {
        if self.states.is_empty() {
            return;
        }
        match self.socket.bind(seal.device_address) {
            Ok(_) => self.bind_retry.succeed(),
            Err(error) => {
                tracing::debug!(%error, port = self.port, "opening the socket for peers failed; retrying later");
                self.bind_retry.fail(now_ms, retry::random());
            }
        }
        self.receive(seal, now_ms);
        for state in &mut self.states {
            state.send_due(&mut self.socket, seal, now_ms);
            state.send_from_programs(&mut self.socket, seal, now_ms);
            state.association.expire(now_ms);
            state.report_change(KEY_EXPIRED, sink);
        }
    }

    /// Handles datagrams from the network.
    fn receive(&mut self, seal: &mut SealContext<'_>, now_ms: u64) {
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
            let state = id.and_then(|id| states.find(|state| state.association.accepts_pair_id(&id)));
            let Some(state) = state else {
                self.dropped_unopened += 1;
                continue;
            };
            state.deliver(&mut message, path, now_ms);
            state.send_due(&mut self.socket, seal, now_ms);
        }
    }
}

impl PeerState {
    fn deliver(&mut self, message: &mut [u8], path: Path, now_ms: u64) {
        let payload = self.association.receive(message, path, now_ms, &mut random);
        let program = self.peer.deliver.or(self.program);
        // An empty payload is meaningless for a program.
        let Some(payload) = payload.filter(|payload| !payload.is_empty()) else {
            return;
        };
        let result = program.map(|program| self.listener.send_to(payload, program));
        if !matches!(result, Some(Ok(_))) {
            let error = result.and_then(Result::err);
            tracing::debug!(address = ?program, ?error, "datagram of a peer not delivered");
            self.counts.dropped_undelivered += 1;
        }
    }

    /// Sends due messages of the protocol between the two devices.
    fn send_due(&mut self, socket: &mut DeviceSocket, seal: &mut SealContext<'_>, now_ms: u64) {
        let mut out = [0u8; pair::HANDSHAKE_BYTES];
        while let Some((path, length)) = self.association.poll(now_ms, &mut random, &mut out) {
            self.send(socket, seal, path, out.get(..length).unwrap_or_default());
        }
    }

    /// Sends datagrams of local programs. Without a session between the devices, datagrams are dropped, as on a link
    /// that is down.
    fn send_from_programs(&mut self, socket: &mut DeviceSocket, seal: &mut SealContext<'_>, now_ms: u64) {
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
                // Logged at powers of two: a program that sends long datagrams does so repeatedly.
                if self.counts.dropped_too_long == 0 || self.counts.dropped_too_long.is_power_of_two() {
                    tracing::warn!(peer_device_id = %self.peer.device, "datagram longer than {PAYLOAD_BYTES_MAX} B dropped");
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

    fn send(&mut self, socket: &mut DeviceSocket, seal: &mut SealContext<'_>, path: Path, message: &[u8]) {
        if let Err(error) = socket.send(seal, path.address, path.sealed, message) {
            tracing::debug!(%error, peer_device_id = %self.peer.device, "sending a message to a peer failed");
            self.counts.dropped_unsent += 1;
        }
    }

    /// Reports a change between connected and disconnected.
    fn report_change(&mut self, reason: &str, sink: &mut dyn FnMut(&AgentEvent)) {
        let is_open = self.association.is_open();
        if std::mem::replace(&mut self.reported_open, is_open) == is_open {
            return;
        }
        let device = self.peer.device.to_string();
        sink(&match is_open {
            true => AgentEvent::PeerConnected { peer: device },
            false => AgentEvent::PeerDisconnected {
                peer: device,
                reason: reason.to_owned(),
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

    fn response_with(pair: Option<(Pairing, Role)>) -> PairResponse {
        PairResponse {
            peer: PEER,
            lifetime_s: u32::from(pair.is_some()) * 300,
            pair,
            addr: [0; 16],
        }
    }

    /// Times of the requests within 30 s, if every response is `pair_response` and every random number is `random`.
    fn request_times_ms(pair_response: &PairResponse, random: u64) -> Vec<u64> {
        let mut peers = peers([PEER]);
        let mut request_times_ms = Vec::new();
        for now_ms in 0..30_000 {
            if peers.next_request(now_ms, random) == Some(PEER) {
                request_times_ms.push(now_ms);
                peers.handle_response(pair_response.clone(), now_ms, &mut |_| panic!("unexpected event"));
                assert_eq!(peers.request_deadline(), Some(peers.states[0].request_at_ms));
            }
        }
        request_times_ms
    }

    #[test]
    fn a_missing_pair_is_requested_every_ten_seconds() {
        assert_eq!(request_times_ms(&response_with(None), 0), [0, 10_000, 20_000]);
        let pairing = Pairing {
            id: [1; 16],
            key: [2; 32],
        };
        let response = response_with(Some((pairing, Role::Responder)));
        // More often while there is a key but no connection.
        let earliest_ms = request_times_ms(&response, 0);
        assert_eq!(earliest_ms[..6], [0, 500, 1_500, 3_500, 6_000, 8_500]);
        let latest_ms = request_times_ms(&response, u64::MAX);
        assert_eq!(latest_ms[..6], [0, 999, 2_998, 6_997, 11_996, 16_995]);
    }

    #[test]
    fn disconnected_peers_do_not_delay_requests_for_others() {
        let mut peers = peers((1..=20).map(DeviceId));
        // A gateway relays at most ten tickets a second.
        let requested_at: Vec<u64> = (0..20)
            .filter_map(|turn| Some(peers.next_request(100 * turn, 0)?.0))
            .collect();
        assert_eq!(requested_at, (1..=20).collect::<Vec<_>>());
    }
}
