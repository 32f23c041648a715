//! Signed messages on their way out, and what the kernel did not take of them.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use linewarden_signatures::signing::Dispatch;
use linewarden_signatures::udp::Outbox;
use nix::errno::Errno;

use crate::failure::Failure;

/// Between two looks whether an interface that was away is there again.
const LOOK: Duration = Duration::from_secs(1);

/// A socket. When a network that has taken messages does not take them for a while, those of that while are lost, as datagrams are, and
/// it goes on with the next; what never worked, and what does not pass by itself, is an error.
pub struct Outgoing {
    outbox: RwLock<Outbox>,
    to: SocketAddr,
    interface: Option<String>,
    hops: u8,
    has_sent: AtomicBool,
    unsent: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why it ends.
    problem: Option<io::Error>,
    /// Why messages do not leave at present.
    away: Option<Errno>,
    /// What of that was said last.
    said: Option<Errno>,
    /// When the interface was looked for last.
    looked: Option<Instant>,
}

impl Outgoing {
    /// Opens the socket; to a multicast group by this interface, over so many routers.
    ///
    /// # Errors
    /// No such interface, no such address, or an interface or routers for what is no group.
    pub fn open(to: SocketAddr, interface: Option<String>, hops: Option<u8>) -> Result<Self, Failure> {
        if !to.ip().is_multicast() {
            let given = [("--interface", interface.is_some()), ("--hops", hops.is_some())];
            if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
                return Err(Failure::input(format!(
                    "{option}: {} is no multicast group, for which alone it means something",
                    to.ip()
                )));
            }
        }
        let hops = hops.unwrap_or(1);
        let index = super::interface(interface.as_deref())?;
        let outbox =
            Outbox::open(to, index, hops).map_err(|error| Failure::failed(format!("{to}: {error}")))?;
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

    /// Messages that the kernel did not take, or that were in one batch with such.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Looks for an interface that is away, and says what has changed since it was called last.
    ///
    /// # Errors
    /// Messages do not leave, and will not.
    pub fn look(&self) -> Result<Option<String>, Failure> {
        let mut state = self.state();
        if let Some(problem) = state.problem.take() {
            return Err(Failure::failed(format!("{}: {problem}", self.to)));
        }
        if state.away.is_some() && state.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            state.looked = Some(Instant::now());
            self.open_again();
        }
        if state.away == state.said {
            return Ok(None);
        }
        state.said = state.away;
        Ok(Some(match state.away {
            Some(why) => format!("{}: {}; what is sent now is lost", self.to, why.desc()),
            None => format!("{}: messages leave again", self.to),
        }))
    }

    /// An interface that comes again has another number.
    fn open_again(&self) {
        let opened = super::interface(self.interface.as_deref())
            .ok()
            .and_then(|index| Outbox::open(self.to, index, self.hops).ok());
        if let Some(outbox) = opened {
            *self.outbox.write().unwrap_or_else(PoisonError::into_inner) = outbox;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dispatch for Outgoing {
    fn signed(&self, messages: Vec<Vec<u8>>) {
        let sent = self
            .outbox
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .send(&messages);
        let Err(error) = sent else {
            if !messages.is_empty() {
                self.has_sent.store(true, Ordering::Relaxed);
                self.state().away = None;
            }
            return;
        };
        self.unsent.fetch_add(messages.len() as u64, Ordering::Relaxed);
        match passing(&error) {
            Some(why) if self.has_sent.load(Ordering::Relaxed) => self.state().away = Some(why),
            _ => self.state().problem = Some(error),
        }
    }
}

/// A link that is down, a route or an interface that is not there, a queue that is full.
fn passing(error: &io::Error) -> Option<Errno> {
    let why = Errno::from_raw(error.raw_os_error()?);
    let passes = matches!(
        why,
        Errno::ENETUNREACH
            | Errno::EHOSTUNREACH
            | Errno::ENETDOWN
            | Errno::ENODEV
            | Errno::EADDRNOTAVAIL
            | Errno::ENOBUFS
    );
    passes.then_some(why)
}
