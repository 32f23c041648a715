//! The desk: where devices' tickets are taken and handed on to the controller (LAP/1 1.7).
//!
//! A ticket comes to an address of the gateway's, at the desk's port: inside DATA where the gate is sealed, plainly where
//! it is not. The gateway can neither read nor make one. What it can do is spare the controller: a ticket is handed on
//! only if this data plane holds the very session that it names, at the address that it came from, and if it was made with
//! that session's key. Nothing else is answered or counted against any device or address, and an answer goes only to who
//! has proved to be the device.
//!
//! The sessions of many tickets are one question to the control thread, and the desk rests after each, so that a flood
//! takes a share of that thread and no more. What waits, waits in the sockets' buffers, and what finds no room there is
//! lost and counted; its device repeats it.

mod limits;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use linewarden_controller::Carrier;
use linewarden_dataplane::{KeyedSession, SessionView};
use linewarden_protocol::ids::{DeviceId, GatewayId, SessionId};
use linewarden_protocol::ticket::{Direction, Head, MESSAGE_BYTES_MAX, Sealed};
use linewarden_socket::kernel_drops;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};

use self::limits::{Admission, Limits, Question};
use crate::feeder::ControllerLink;
use crate::gateway::{GatewayError, PlaneHandle};
use crate::tasks;
use crate::time::Clock;

/// Datagrams of one socket before the others have their turn: those whose sessions are one question.
const BATCH: usize = 64;
/// After a question to the control thread the desk rests for so many times as long as the question took.
const REST: u32 = 3;
/// It rests no longer than this, whatever kept the control thread.
const REST_MAX: Duration = Duration::from_millis(50);
/// Losses in the kernel are logged no more often.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Why there is no desk.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// A socket was refused.
    #[error("the desk cannot take tickets at {at} (`desk_port`): {}", cause(source))]
    Socket {
        /// Where.
        at: SocketAddr,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// No thread, event or runtime.
    #[error("cannot start the desk: {0}")]
    Start(#[from] io::Error),
}

fn cause(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another process, maybe another gateway, has this UDP port; end it, or name another desk_port, or 0 for no desk"
                .to_owned()
        }
        _ => source.to_string(),
    }
}

/// Where tickets will be taken. What comes before there is a [`Desk`] waits.
#[derive(Debug)]
pub struct DeskSockets(Vec<UdpSocket>);

impl DeskSockets {
    /// Takes UDP port `port` of each of the gateway's addresses, also of those that an interface is about to get.
    ///
    /// # Errors
    /// A port that is taken.
    pub fn bind(addresses: &[IpAddr], port: u16) -> Result<Self, DeskError> {
        let open = |ip: &IpAddr| {
            let at = SocketAddr::new(*ip, port);
            socket(at).map_err(|source| DeskError::Socket { at, source })
        };
        addresses.iter().map(open).collect::<Result<_, _>>().map(Self)
    }
}

/// A desk at work; dropping it closes it.
#[derive(Debug)]
pub struct Desk {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<Counts>>,
}

/// What a desk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Answered.
    pub answered: u64,
    /// No ticket, or not made with the key of a session that is here.
    pub strange: u64,
    /// Of a session that is here, but above a limit, or older than one that came before.
    pub limited: u64,
    /// Handed on, and met with silence.
    pub silent: u64,
    /// Not answered because the registry failed.
    pub failed: u64,
    /// Dropped by the kernel before the desk received them, for want of room in the sockets' receive buffers.
    pub kernel_drops: u64,
}

impl Desk {
    /// Takes tickets.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn open(
        DeskSockets(sockets): DeskSockets,
        plane: PlaneHandle,
        controller: impl Into<ControllerLink>,
        gateway: GatewayId,
    ) -> Result<Self, DeskError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let stop = Arc::new(stop);
        // With a worker of its own: the registry's connections go back to their pool by tasks, which must run also
        // while the desk waits for the next ticket, or everybody else waits for it too.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lw-desk-tasks")
            .enable_all()
            .build()?;
        let clerk = Clerk {
            sockets,
            stop: Arc::clone(&stop),
            plane,
            controller: controller.into(),
            gateway,
            limits: Limits::default(),
            counts: Counts::default(),
            warned: 0,
            warned_at: None,
        };
        let thread = std::thread::Builder::new()
            .name("lw-desk".to_owned())
            .spawn(move || {
                let counts = clerk.run(&runtime);
                tasks::end(runtime);
                counts
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Closes it; what it has done.
    #[must_use]
    pub fn close(mut self) -> Counts {
        self.end()
    }

    fn end(&mut self) -> Counts {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let thread = self.thread.take();
        thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.end();
    }
}

fn socket(at: SocketAddr) -> io::Result<UdpSocket> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    match at {
        SocketAddr::V4(_) => set_ip_freebind(&socket, true)?,
        SocketAddr::V6(_) => set_ipv6_freebind(&socket, true)?,
    }
    bind(&socket, &at)?;
    Ok(socket.into())
}

struct Clerk {
    sockets: Vec<UdpSocket>,
    stop: Arc<OwnedFd>,
    plane: PlaneHandle,
    controller: ControllerLink,
    gateway: GatewayId,
    limits: Limits,
    counts: Counts,
    /// How many losses were logged, and when.
    warned: u64,
    warned_at: Option<Instant>,
}

/// A datagram of a ticket's form, and where it came from.
struct Taken {
    message: Vec<u8>,
    from: SocketAddr,
    device: DeviceId,
}

impl Clerk {
    fn run(mut self, runtime: &tokio::runtime::Runtime) -> Counts {
        let sockets = std::mem::take(&mut self.sockets);
        while self.turn(&sockets, runtime) {
            self.note(&sockets);
        }
        self.note(&sockets);
        self.counts
    }

    /// Waits for tickets and serves each socket once. False: by itself, or the control thread is gone, and with it the gateway.
    fn turn(&mut self, sockets: &[UdpSocket], runtime: &tokio::runtime::Runtime) -> bool {
        let mut polled = vec![PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        polled.extend(
            sockets
                .iter()
                .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)),
        );
        // Interrupted or failed: everything is looked at anyway.
        let _ = poll(&mut polled, None);
        sockets
            .iter()
            .all(|socket| !self.is_stopped(Duration::ZERO) && self.serve(socket, runtime).is_ok())
    }

    /// Publishes the counts. What finds no room while the desk rests is counted once it looks again: then something is there to wake it.
    fn note(&mut self, sockets: &[UdpSocket]) {
        let drops = sockets
            .iter()
            .map(|socket| kernel_drops(socket).unwrap_or_default());
        let drops = drops.sum();
        let is_due = self.warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY);
        if drops > self.warned && is_due {
            tracing::warn!(
                dropped = drops - self.warned,
                "kernel dropped tickets before the gateway received them: receive buffer full"
            );
            self.warned = drops;
            self.warned_at = Some(Instant::now());
        }
        self.counts.kernel_drops = drops;
        self.plane.note_tickets(self.counts);
    }

    /// Whether the desk is to be closed, as soon as that is known and after so long at the latest.
    fn is_stopped(&self, within: Duration) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(within.subsec_nanos()),
        };
        let _ = poll(&mut polled, Some(&timeout));
        !polled[0].revents().is_empty()
    }

    fn serve(&mut self, socket: &UdpSocket, runtime: &tokio::runtime::Runtime) -> Result<(), GatewayError> {
        let taken = self.take(socket);
        if taken.is_empty() {
            return Ok(());
        }
        let devices: Vec<DeviceId> = taken.iter().map(|taken| taken.device).collect();
        let asked = Instant::now();
        let sessions = self
            .plane
            .with_plane(move |plane| plane.keyed_sessions(&devices))?;
        let mut newest = Vec::new();
        let mut admitted = Vec::with_capacity(taken.len());
        for (taken, session) in taken.iter().zip(sessions) {
            admitted.push((taken, self.admit(taken, session.as_ref(), &mut newest)));
        }
        if !newest.is_empty() {
            // Before the controller sees them: a process that takes the sessions over then refuses what the controller has seen.
            self.plane.with_plane(move |plane| plane.note_tickets(&newest))?;
        }
        let rest = asked.elapsed().saturating_mul(REST).min(REST_MAX);
        for (taken, admission) in admitted {
            let answer = match admission {
                // A copy in the same batch may have been answered meanwhile.
                Admission::HandOn(question) => match self.limits.answer(taken.device, question) {
                    Some(answer) => Some(answer),
                    None => self.hand_on(taken, question, runtime),
                },
                Admission::Answered(answer) => Some(answer),
                Admission::Refused => None,
            };
            let Some(answer) = answer else {
                continue;
            };
            // One that is lost is asked for again.
            match socket.send_to(&answer, taken.from) {
                Ok(_) => self.counts.answered += 1,
                Err(error) => tracing::debug!(%error, from = %taken.from, "an answer could not be sent"),
            }
        }
        self.is_stopped(rest);
        Ok(())
    }

    /// What has come and has a ticket's form.
    fn take(&mut self, socket: &UdpSocket) -> Vec<Taken> {
        // One byte more than any ticket has, so that a longer one is not mistaken for one of the right length.
        let mut buffer = [0u8; MESSAGE_BYTES_MAX + 1];
        let mut all = Vec::new();
        for _ in 0..BATCH {
            let (length, from) = match socket.recv_from(&mut buffer) {
                Ok(received) => received,
                // An ICMP error, which anybody may have sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => break,
            };
            let message = buffer.get(..length).unwrap_or_default();
            let head = Sealed::parse(message).ok().map(|sealed| *sealed.head());
            let is_ours = |head: &Head| head.opening.gateway == self.gateway;
            match head.filter(is_ours) {
                Some(head) => all.push(Taken {
                    message: message.to_vec(),
                    from,
                    device: head.opening.device,
                }),
                None => self.counts.strange += 1,
            }
        }
        all
    }

    /// Whether a ticket comes from the holder of the session that it names, and is within the limits. Only what does counts
    /// against them. Serial numbers that are new in their sessions are added to `newest`.
    fn admit(
        &mut self,
        taken: &Taken,
        session: Option<&KeyedSession>,
        newest: &mut Vec<(DeviceId, SessionId, u64)>,
    ) -> Admission {
        let clock = Clock::now();
        let now_s = clock.boot_ns / 1_000_000_000;
        let serial = Sealed::parse(&taken.message).ok().and_then(|sealed| {
            let session = session.filter(|held| fits(sealed.head(), &held.view, taken.from, now_s))?;
            let serial = sealed.proven_serial(&session.key)?;
            Some((session.view.id, session.ticket_serial, serial))
        });
        let Some((session, noted, serial)) = serial else {
            self.counts.strange += 1;
            return Admission::Refused;
        };
        let admission = self
            .limits
            .admit(taken.device, (session, noted), serial, clock.monotonic_ns);
        if serial > noted && admission != Admission::Refused {
            newest.push((taken.device, session, serial));
        }
        self.counts.limited += u64::from(admission == Admission::Refused);
        admission
    }

    fn hand_on(
        &mut self,
        taken: &Taken,
        question: Question,
        runtime: &tokio::runtime::Runtime,
    ) -> Option<Vec<u8>> {
        let message = &taken.message;
        let mut nonce = [0u8; 24];
        if let Err(error) = getrandom::fill(&mut nonce) {
            tracing::error!(%error, "the operating system gives no random bytes");
            self.counts.failed += 1;
            return None;
        }
        let plane = self.plane.clone();
        let locate = move |device| {
            let held = plane.with_plane(move |plane| plane.session(device));
            held.ok().flatten().map(|held| held.addr)
        };
        let carrier = Carrier {
            aead_nonce: nonce,
            now_s: now_s(),
            locate: &locate,
        };
        let answer = runtime.block_on(async {
            match &self.controller {
                ControllerLink::InProcess(controller) => {
                    let answer = controller.ticket(self.gateway, message, &carrier).await;
                    answer.map_err(|error| error.to_string())
                }
                ControllerLink::Remote(client, _) => {
                    let answer = client.ticket(message, &locate).await;
                    answer.map_err(|error| error.to_string())
                }
            }
        });
        match answer {
            Ok(Some(answer)) => {
                self.limits.keep_answer(taken.device, question, &answer);
                Some(answer)
            }
            Ok(None) => {
                self.counts.silent += 1;
                None
            }
            Err(error) => {
                tracing::warn!(%error, "a ticket was not answered; its device asks again");
                self.counts.failed += 1;
                None
            }
        }
    }
}

fn now_s() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_secs())
}

fn fits(head: &Head, held: &SessionView, from: SocketAddr, now_s: u64) -> bool {
    let ip = match from.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    head.direction == Direction::Up
        && head.opening.session() == Some(held.id)
        && held.addr == ip
        && u64::from(held.lease_until_s) > now_s
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
    use linewarden_protocol::ticket::{Kind, Opening};

    use super::*;

    #[test]
    fn only_the_session_that_is_here_from_where_it_is_bound_is_handed_on() {
        let from: SocketAddr = "192.0.2.7:999".parse().unwrap();
        let head = Head {
            kind: Kind::Status,
            direction: Direction::Up,
            opening: Opening {
                suite: Suite::SipHash128,
                device: DeviceId(1),
                gateway: GatewayId(1),
                idx: RowIndex(0),
                response_tag: [3; 16],
            },
            number: 0,
            nonce: [0; 16],
        };
        let held = SessionView {
            id: head.opening.session().unwrap(),
            addr: Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped().octets(),
            lease_until_s: 100,
            proven_before_ns: 0,
            port: 40_000,
            mac: [0; 6],
            is_bound: false,
            vlans: [None; 2],
        };
        assert!(fits(&head, &held, from, 99));
        assert!(!fits(&head, &held, from, 100), "its lease is over");
        assert!(!fits(&head, &held, "192.0.2.8:999".parse().unwrap(), 99));
        assert!(!fits(&head.answer(), &held, from, 99));
        let mut other = head;
        other.opening.response_tag = [4; 16];
        assert!(!fits(&other, &held, from, 99));
    }
}
