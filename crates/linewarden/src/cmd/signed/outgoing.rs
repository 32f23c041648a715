//! Sending signed messages, and counting those that the kernel did not accept.

use linewarden_cli::failure::Failure;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use linewarden_signatures::signing::SignedMessageSink;
use linewarden_signatures::udp::UdpSender;
use nix::errno::Errno;

/// Interval at which a missing interface is checked.
const INTERFACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The sender's socket. If the network fails after messages were sent, the messages during the failure are lost, and sending continues. A
/// permanent failure is an error, and so is a failure before the first message was sent.
pub struct OutgoingSocket {
    outbox: RwLock<UdpSender>,
    to: SocketAddr,
    interface: Option<String>,
    hops: u8,
    has_sent: AtomicBool,
    unsent: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A permanent error.
    problem: Option<io::Error>,
    /// The present transient error.
    send_error: Option<Errno>,
    /// The transient error that was reported last.
    reported_error: Option<Errno>,
    /// Time of the last interface check.
    checked_at: Option<Instant>,
}

impl OutgoingSocket {
    /// Opens the socket; for a multicast group with an interface and a hop limit.
    ///
    /// # Errors
    /// The interface or address does not exist, or an option requires a multicast group.
    pub fn open(to: SocketAddr, interface: Option<String>, hops: Option<u8>) -> Result<Self, Failure> {
        if !to.ip().is_multicast() {
            let multicast_options = [("--interface", interface.is_some()), ("--hops", hops.is_some())];
            if let Some((option, _)) = multicast_options.into_iter().find(|(_, is_given)| *is_given) {
                return Err(Failure::input(format!(
                    "{option} conflicts with --to: {} is not a multicast group",
                    to.ip()
                )));
            }
        }
        let hops = hops.unwrap_or(1);
        let index = super::interface(interface.as_deref())?;
        let outbox =
            UdpSender::open(to, index, hops).map_err(|error| Failure::failed(format!("{to}: {error}")))?;
        Ok(Self {
            outbox: RwLock::new(outbox),
            to,
            interface,
            hops,
            has_sent: AtomicBool::new(false),
            unsent: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    /// Number of messages that the kernel did not accept, or that were in one batch with such messages.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Opens the socket again while sending fails. Returns a notice if sending has failed or recovered since the last call.
    ///
    /// # Errors
    /// A permanent failure.
    pub fn check(&self) -> Result<Option<String>, Failure> {
        let mut state = self.state();
        if let Some(problem) = state.problem.take() {
            return Err(Failure::failed(format!("{}: {problem}", self.to)));
        }
        if state.send_error.is_some()
            && state
                .checked_at
                .is_none_or(|checked_at| checked_at.elapsed() >= INTERFACE_CHECK_INTERVAL)
        {
            state.checked_at = Some(Instant::now());
            self.reopen();
        }
        if state.send_error == state.reported_error {
            return Ok(None);
        }
        state.reported_error = state.send_error;
        Ok(Some(match state.send_error {
            Some(errno) => format!(
                "{}: {}; messages are lost until the network recovers",
                self.to,
                errno.desc()
            ),
            None => format!("{}: sending works again", self.to),
        }))
    }

    /// Opens the socket again: a recreated interface has another index.
    fn reopen(&self) {
        let opened = super::interface(self.interface.as_deref())
            .ok()
            .and_then(|index| UdpSender::open(self.to, index, self.hops).ok());
        if let Some(outbox) = opened {
            *self.outbox.write().unwrap_or_else(PoisonError::into_inner) = outbox;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SignedMessageSink for OutgoingSocket {
    fn signed(&self, messages: Vec<Vec<u8>>) {
        let result = self
            .outbox
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .send(&messages);
        let Err(error) = result else {
            if !messages.is_empty() {
                self.has_sent.store(true, Ordering::Relaxed);
                self.state().send_error = None;
            }
            return;
        };
        self.unsent.fetch_add(messages.len() as u64, Ordering::Relaxed);
        match transient_error(&error) {
            Some(errno) if self.has_sent.load(Ordering::Relaxed) => self.state().send_error = Some(errno),
            _ => self.state().problem = Some(error),
        }
    }
}

/// Transient errors: link down, missing route or interface, full queue.
fn transient_error(error: &io::Error) -> Option<Errno> {
    let errno = Errno::from_raw(error.raw_os_error()?);
    let is_transient = matches!(
        errno,
        Errno::ENETUNREACH
            | Errno::EHOSTUNREACH
            | Errno::ENETDOWN
            | Errno::ENODEV
            | Errno::EADDRNOTAVAIL
            | Errno::ENOBUFS
    );
    is_transient.then_some(errno)
}
