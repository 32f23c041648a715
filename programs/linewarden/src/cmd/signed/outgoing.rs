//! Sends signed messages, and counts the messages that the kernel did not accept.

use linewarden_cli::failure::Failure;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use linewarden_signatures::signing::SignedMessageSink;
use linewarden_signatures::udp::UdpSender;
use nix::errno::Errno;

/// Minimum interval between two attempts to open the socket again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// The sender's socket.
///
/// If the network fails after messages were sent, the messages during the failure are lost, and sending continues. A
/// permanent failure is an error. Any failure before the first message was sent is an error, too.
pub struct OutgoingSocket {
    socket: RwLock<UdpSender>,
    to: SocketAddr,
    interface: Option<String>,
    /// Hop limit of multicast datagrams.
    hops: u8,
    /// Whether the kernel has accepted a message.
    has_sent: AtomicBool,
    unsent: AtomicU64,
    errors: Mutex<SendErrors>,
}

#[derive(Default)]
struct SendErrors {
    /// A permanent error, or an error before the first message was sent.
    permanent_error: Option<io::Error>,
    /// The present transient error; `None` if sending works.
    transient_error: Option<Errno>,
    /// The latest reported value of `transient_error`.
    reported_error: Option<Errno>,
    /// Time of the latest attempt to open the socket again.
    reopened_at: Option<Instant>,
}

impl OutgoingSocket {
    /// Opens the socket. For a multicast group, sets the interface and the hop limit.
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
        let index = super::interface_index(interface.as_deref())?;
        let socket =
            UdpSender::open(to, index, hops).map_err(|error| Failure::failed(format!("{to}: {error}")))?;
        Ok(Self {
            socket: RwLock::new(socket),
            to,
            interface,
            hops,
            has_sent: AtomicBool::new(false),
            unsent: AtomicU64::new(0),
            errors: Mutex::default(),
        })
    }

    /// Number of messages in the batches that the kernel did not accept completely.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    /// If sending fails, opens the socket again, at most once per [`REOPEN_INTERVAL`]. Returns a notice if sending has
    /// failed or recovered since the previous call.
    ///
    /// # Errors
    /// A permanent failure, or a failure before the first message was sent.
    pub fn check(&self) -> Result<Option<String>, Failure> {
        let mut errors = self.errors();
        if let Some(error) = errors.permanent_error.take() {
            return Err(Failure::failed(format!("{}: {error}", self.to)));
        }
        if errors.transient_error.is_some()
            && errors
                .reopened_at
                .is_none_or(|reopened_at| reopened_at.elapsed() >= REOPEN_INTERVAL)
        {
            errors.reopened_at = Some(Instant::now());
            self.reopen();
        }
        if errors.transient_error == errors.reported_error {
            return Ok(None);
        }
        errors.reported_error = errors.transient_error;
        Ok(Some(match errors.transient_error {
            Some(errno) => format!(
                "{}: {}; messages are lost until the network recovers",
                self.to,
                errno.desc()
            ),
            None => format!("{}: sending works again", self.to),
        }))
    }

    /// Opens the socket again, because a recreated interface has another index.
    fn reopen(&self) {
        let opened = super::interface_index(self.interface.as_deref())
            .ok()
            .and_then(|index| UdpSender::open(self.to, index, self.hops).ok());
        if let Some(socket) = opened {
            *self.socket.write().unwrap_or_else(PoisonError::into_inner) = socket;
        }
    }

    fn errors(&self) -> MutexGuard<'_, SendErrors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SignedMessageSink for OutgoingSocket {
    fn signed(&self, messages: Vec<Vec<u8>>) {
        let result = self
            .socket
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .send(&messages);
        let Err(error) = result else {
            if !messages.is_empty() {
                self.has_sent.store(true, Ordering::Relaxed);
                self.errors().transient_error = None;
            }
            return;
        };
        self.unsent.fetch_add(messages.len() as u64, Ordering::Relaxed);
        match to_transient_errno(&error) {
            Some(errno) if self.has_sent.load(Ordering::Relaxed) => {
                self.errors().transient_error = Some(errno);
            }
            _ => self.errors().permanent_error = Some(error),
        }
    }
}

/// Returns the number of a transient error: link down, missing route or interface, full queue.
fn to_transient_errno(error: &io::Error) -> Option<Errno> {
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
