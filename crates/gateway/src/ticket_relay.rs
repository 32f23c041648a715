//! The ticket relay: receives tickets of devices and relays them to the controller (LAP/1 1.7).
//!
//! A ticket arrives at an address of the gateway, at the ticket port: inside DATA if the gate is sealed, in plain UDP
//! otherwise. The gateway can neither read nor create a ticket. It protects the controller: it relays a ticket only if
//! this data plane has the session that the ticket names, if the ticket comes from the session's address, and if the
//! ticket was made with the session's key. Other tickets get no response and count against no device or address.
//! A response goes only to a device that has proved its identity.
//!
//! One request to the control thread reads the sessions of a batch of tickets. The relay pauses after each request, so
//! a flood takes a bounded share of that thread. Further tickets wait in the receive buffers. The kernel counts and
//! drops tickets that do not fit; their devices retry.

mod rate_limiter;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linewarden_dataplane::{KeyedSession, SessionView};
use linewarden_protocol::ids::{DeviceId, GatewayId, SessionId};
use linewarden_protocol::ticket::{Direction, MESSAGE_BYTES_MAX, SealedTicket, TicketHeader};
use linewarden_socket::kernel_drops;
use linewarden_types::{ControllerLink, LinkError, RelayTicket, TicketResponse};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};

use self::rate_limiter::{RateLimiter, TicketDecision, TicketId};
use crate::gateway::{DataPlaneHandle, GatewayError};
use crate::node::TicketCounts;
use crate::tasks;
use crate::time::Clock;

/// Maximum number of datagrams that are received from one socket before the next socket; their sessions are read with
/// one request.
const BATCH_MAX: usize = 64;
/// After a request to the control thread, the relay pauses for the duration of the request times this factor.
const PAUSE_FACTOR: u32 = 3;
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Minimum interval between two log messages about kernel drops.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// The reason why the relay cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TicketRelayError {
    /// Opening a socket failed.
    #[error("ticket relay cannot use {address} (`ticket_port`): {}", bind_failure(source))]
    Socket {
        /// The address.
        address: SocketAddr,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// Starting a thread, event or runtime failed.
    #[error("starting the ticket relay failed: {0}")]
    Start(#[from] io::Error),
}

fn bind_failure(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another process, possibly another gateway, uses this UDP port; stop that process, or set another ticket_port, or 0 to disable the relay"
                .to_owned()
        }
        _ => source.to_string(),
    }
}

/// The bound sockets. Tickets wait in the sockets' buffers until a [`TicketRelay`] is opened.
#[derive(Debug)]
pub struct TicketSockets(Vec<UdpSocket>);

impl TicketSockets {
    /// Binds UDP port `port` of each of the gateway's addresses, even of addresses that an interface does not have
    /// yet.
    ///
    /// # Errors
    /// The port is in use.
    pub fn bind(addresses: &[IpAddr], port: u16) -> Result<Self, TicketRelayError> {
        let open = |ip: &IpAddr| {
            let address = SocketAddr::new(*ip, port);
            socket(address).map_err(|source| TicketRelayError::Socket { address, source })
        };
        addresses.iter().map(open).collect::<Result<_, _>>().map(Self)
    }
}

/// A running relay. Dropping the value closes the relay.
#[derive(Debug)]
pub struct TicketRelay {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<TicketCounts>>,
}

impl TicketRelay {
    /// Starts the relay.
    ///
    /// # Errors
    /// The operating system provides no thread.
    pub fn open(
        TicketSockets(sockets): TicketSockets,
        data_plane: DataPlaneHandle,
        controller: Arc<dyn ControllerLink>,
        gateway: GatewayId,
    ) -> Result<Self, TicketRelayError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let stop = Arc::new(stop);
        // The worker thread runs the tasks of the link, or of a controller in this process: its database driver returns
        // connections in tasks, also while the relay waits for the next ticket.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lw-tickets-task")
            .enable_all()
            .build()?;
        let worker = RelayWorker {
            sockets,
            stop: Arc::clone(&stop),
            data_plane,
            controller,
            gateway,
            rate_limiter: RateLimiter::default(),
            counts: TicketCounts::default(),
            drops_logged: 0,
            drops_logged_at: None,
        };
        let thread = std::thread::Builder::new()
            .name("lw-tickets".to_owned())
            .spawn(move || {
                let counts = worker.run(&runtime);
                tasks::end(runtime);
                counts
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Closes the relay, and returns its counts.
    #[must_use]
    pub fn close(mut self) -> TicketCounts {
        self.stop_thread()
    }

    fn stop_thread(&mut self) -> TicketCounts {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let thread = self.thread.take();
        thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for TicketRelay {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    match address {
        SocketAddr::V4(_) => set_ip_freebind(&socket, true)?,
        SocketAddr::V6(_) => set_ipv6_freebind(&socket, true)?,
    }
    bind(&socket, &address)?;
    Ok(socket.into())
}

struct RelayWorker {
    sockets: Vec<UdpSocket>,
    stop: Arc<OwnedFd>,
    data_plane: DataPlaneHandle,
    controller: Arc<dyn ControllerLink>,
    gateway: GatewayId,
    rate_limiter: RateLimiter,
    counts: TicketCounts,
    /// Number of kernel drops until the last log message about kernel drops.
    drops_logged: u64,
    /// Time of the last log message about kernel drops.
    drops_logged_at: Option<Instant>,
}

/// A datagram with the format of a ticket, and its sender.
struct ReceivedTicket {
    message: Vec<u8>,
    from: SocketAddr,
    device: DeviceId,
}

impl RelayWorker {
    fn run(mut self, runtime: &tokio::runtime::Runtime) -> TicketCounts {
        let sockets = std::mem::take(&mut self.sockets);
        while self.run_once(&sockets, runtime) {
            self.publish_counts(&sockets);
        }
        self.publish_counts(&sockets);
        self.counts
    }

    /// Waits for tickets and serves each socket once. Returns `false` when the relay is closed or the control thread
    /// has ended.
    fn run_once(&mut self, sockets: &[UdpSocket], runtime: &tokio::runtime::Runtime) -> bool {
        let mut polled = vec![PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        polled.extend(
            sockets
                .iter()
                .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)),
        );
        // After an interrupt or an error, all sockets are checked.
        let _ = poll(&mut polled, None);
        sockets
            .iter()
            .all(|socket| !self.is_stopped(Duration::ZERO) && self.serve_socket(socket, runtime).is_ok())
    }

    /// Publishes the counts. Drops during a pause are counted after the pause: the full buffer contains a ticket, which
    /// wakes the relay.
    fn publish_counts(&mut self, sockets: &[UdpSocket]) {
        let drops = sockets
            .iter()
            .map(|socket| kernel_drops(socket).unwrap_or_default());
        let drops = drops.sum();
        let is_due = self
            .drops_logged_at
            .is_none_or(|at| at.elapsed() >= WARN_INTERVAL);
        if drops > self.drops_logged && is_due {
            tracing::warn!(
                count = drops - self.drops_logged,
                action = "if the count rises, look for a flood at ticket_port, or raise the sysctl net.core.rmem_max",
                "kernel dropped tickets before the gateway received them: receive buffer full"
            );
            self.drops_logged = drops;
            self.drops_logged_at = Some(Instant::now());
        }
        self.counts.kernel_drops = drops;
        self.data_plane.publish_ticket_counts(self.counts);
    }

    /// Returns whether the relay is being closed; waits for `wait_max` at most.
    fn is_stopped(&self, wait_max: Duration) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait_max.subsec_nanos()),
        };
        let _ = poll(&mut polled, Some(&timeout));
        !polled[0].revents().is_empty()
    }

    fn serve_socket(
        &mut self,
        socket: &UdpSocket,
        runtime: &tokio::runtime::Runtime,
    ) -> Result<(), GatewayError> {
        let tickets = self.receive(socket);
        if tickets.is_empty() {
            return Ok(());
        }
        let devices: Vec<DeviceId> = tickets.iter().map(|ticket| ticket.device).collect();
        let started = Instant::now();
        let sessions = self
            .data_plane
            .with_data_plane(move |data_plane| data_plane.keyed_sessions(&devices))?;
        let mut new_serials = Vec::new();
        let mut decisions = Vec::with_capacity(tickets.len());
        for (ticket, session) in tickets.iter().zip(sessions) {
            let decision = self.check_ticket(ticket, session.as_ref(), &mut new_serials);
            decisions.push((ticket, decision));
        }
        if !new_serials.is_empty() {
            // The serial numbers are recorded before the controller receives the tickets, so that a process that takes
            // over the sessions rejects older tickets.
            self.data_plane
                .with_data_plane(move |data_plane| data_plane.record_ticket_serials(&new_serials))?;
        }
        let pause = started.elapsed().saturating_mul(PAUSE_FACTOR).min(PAUSE_MAX);
        for (ticket, decision) in decisions {
            let response = match decision {
                // The response to a copy in the same batch may have been received meanwhile.
                TicketDecision::Relay(ticket_id) => {
                    match self.rate_limiter.cached_response(ticket.device, ticket_id) {
                        Some(response) => Some(response),
                        None => self.relay(ticket, ticket_id, runtime),
                    }
                }
                TicketDecision::Cached(response) => Some(response),
                TicketDecision::Refused => None,
            };
            let Some(response) = response else {
                continue;
            };
            // If the response is lost, the device retries.
            match socket.send_to(&response, ticket.from) {
                Ok(_) => self.counts.answered += 1,
                Err(error) => {
                    tracing::debug!(%error, peer = %ticket.from, "sending a ticket response failed")
                }
            }
        }
        self.is_stopped(pause);
        Ok(())
    }

    /// Receives datagrams with the format of a ticket for this gateway, and counts all other datagrams.
    fn receive(&mut self, socket: &UdpSocket) -> Vec<ReceivedTicket> {
        // One byte more than the longest ticket, so a longer datagram is not truncated to a valid length.
        let mut buffer = [0u8; MESSAGE_BYTES_MAX + 1];
        let mut tickets = Vec::new();
        for _ in 0..BATCH_MAX {
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                // An ICMP error, which any host may have sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => break,
            };
            let message = buffer.get(..length).unwrap_or_default();
            let head = SealedTicket::parse(message).ok().map(|sealed| *sealed.header());
            let is_ours = |head: &TicketHeader| head.session.gateway == self.gateway;
            match head.filter(is_ours) {
                Some(head) => tickets.push(ReceivedTicket {
                    message: message.to_vec(),
                    from,
                    device: head.session.device,
                }),
                None => self.counts.unknown += 1,
            }
        }
        tickets
    }

    /// Checks that a ticket comes from the holder of the session that the ticket names, and applies the rate limits.
    /// Only tickets that pass this check count against the limits. Serial numbers that are new in their sessions are
    /// added to `new_serials`.
    fn check_ticket(
        &mut self,
        ticket: &ReceivedTicket,
        session: Option<&KeyedSession>,
        new_serials: &mut Vec<(DeviceId, SessionId, u64)>,
    ) -> TicketDecision {
        let clock = Clock::now();
        let now_s = clock.boot_ns / 1_000_000_000;
        let session_and_serials = SealedTicket::parse(&ticket.message).ok().and_then(|sealed| {
            let session = session
                .filter(|active| matches_session(sealed.header(), &active.view, ticket.from, now_s))?;
            let serial = sealed.verified_serial(&session.key)?;
            Some((session.view.id, session.ticket_serial, serial))
        });
        let Some((session, recorded_serial, serial)) = session_and_serials else {
            self.counts.unknown += 1;
            return TicketDecision::Refused;
        };
        let decision = self.rate_limiter.admit(
            ticket.device,
            (session, recorded_serial),
            serial,
            clock.monotonic_ns,
        );
        if serial > recorded_serial && decision != TicketDecision::Refused {
            new_serials.push((ticket.device, session, serial));
        }
        self.counts.rate_limited += u64::from(decision == TicketDecision::Refused);
        decision
    }

    fn relay(
        &mut self,
        ticket: &ReceivedTicket,
        ticket_id: TicketId,
        runtime: &tokio::runtime::Runtime,
    ) -> Option<Vec<u8>> {
        let message = &ticket.message;
        let data_plane = self.data_plane.clone();
        let locate = move |device| {
            let active = data_plane.with_data_plane(move |data_plane| data_plane.session(device));
            active.ok().flatten().map(|active| active.addr)
        };
        let response = runtime.block_on(relay_ticket(&*self.controller, message, &locate));
        match response {
            Ok(Some(response)) => {
                self.rate_limiter
                    .cache_response(ticket.device, ticket_id, &response);
                Some(response)
            }
            Ok(None) => {
                self.counts.rejected += 1;
                None
            }
            Err(error) => {
                tracing::warn!(device_id = %ticket.device, %error, "relaying a ticket failed; the device retries the ticket");
                self.counts.failed += 1;
                None
            }
        }
    }
}

/// Relays a ticket to the controller; `None` if the controller sends no response. `locate` returns the address of a device's
/// session at this gateway, which the controller may request once.
async fn relay_ticket(
    controller: &dyn ControllerLink,
    message: &[u8],
    locate: &dyn Fn(DeviceId) -> Option<[u8; 16]>,
) -> Result<Option<Vec<u8>>, LinkError> {
    let mut location = None;
    for _ in 0..2 {
        let ticket = RelayTicket {
            message: message.to_vec(),
            location,
        };
        match controller.call(ticket).await? {
            TicketResponse::None => return Ok(None),
            TicketResponse::Sealed(response) => return Ok(Some(response)),
            TicketResponse::Locate(device) => location = Some((device, locate(device))),
        }
    }
    Err(LinkError::failed(
        "controller",
        "second location request for one ticket".to_owned(),
    ))
}

fn matches_session(header: &TicketHeader, active: &SessionView, from: SocketAddr, now_s: u64) -> bool {
    let ip = match from.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    header.direction == Direction::Up
        && header.session.session_id() == Some(active.id)
        && active.addr == ip
        && u64::from(active.session_until_s) > now_s
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
    use linewarden_protocol::ticket::{Kind, TicketSession};

    use super::*;

    #[test]
    fn a_ticket_is_relayed_only_for_a_session_of_this_gateway_and_from_its_address() {
        let from: SocketAddr = "192.0.2.7:999".parse().unwrap();
        let head = TicketHeader {
            kind: Kind::Status,
            direction: Direction::Up,
            session: TicketSession {
                suite: Suite::SipHash128,
                device: DeviceId(1),
                gateway: GatewayId(1),
                idx: RowIndex(0),
                response_tag: [3; 16],
            },
            number: 0,
            nonce: [0; 16],
        };
        let active = SessionView {
            id: head.session.session_id().unwrap(),
            addr: Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped().octets(),
            session_until_s: 100,
            proven_before_ns: 0,
            port: 40_000,
            mac: [0; 6],
            is_bound: false,
            vlans: [None; 2],
        };
        assert!(matches_session(&head, &active, from, 99));
        assert!(
            !matches_session(&head, &active, from, 100),
            "the session has expired"
        );
        assert!(!matches_session(
            &head,
            &active,
            "192.0.2.8:999".parse().unwrap(),
            99
        ));
        assert!(!matches_session(&head.response_header(), &active, from, 99));
        let mut other = head;
        other.session.response_tag = [4; 16];
        assert!(!matches_session(&other, &active, from, 99));
    }
}
