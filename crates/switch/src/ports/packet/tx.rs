//! The sending half of a packet socket.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use super::super::{PortError, Transmit, TxCounters, sys};
use super::tx_ring::{Pushed, TxRing};

/// How long a full queue is waited for in one flush: some 10,000 frames of Gigabit Ethernet, longer than any queue that
/// drains at all needs.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// Pause between two tries when the driver's queue is full, of which the kernel tells no end.
const PAUSE: Duration = Duration::from_micros(50);
/// An Ethernet header.
const FRAME_BYTES_MIN: usize = 14;

/// Frames that leave together, at the latest.
const BATCH_FRAMES: usize = 64;

/// Sends past the queueing discipline or through it, in batches.
#[derive(Debug)]
pub(super) struct PacketSender {
    fd: OwnedFd,
    interface: String,
    ring: TxRing,
    counters: TxCounters,
    /// The last wait was in vain: nothing is waited for until a frame gets through again, or one dead link would slow
    /// down all ports.
    stuck: bool,
}

impl PacketSender {
    /// Sends through the ring of a bound socket.
    pub(super) fn new(fd: OwnedFd, interface: String, ring: TxRing) -> Self {
        Self {
            fd,
            interface,
            ring,
            counters: TxCounters::default(),
            stuck: false,
        }
    }

    /// Waits a little for room. False when it has been waited for long enough.
    fn wait(&mut self, since: &mut Option<Instant>, error: &io::Error) -> Result<bool, PortError> {
        self.counters.waited += 1;
        let since = since.get_or_insert_with(Instant::now);
        self.stuck |= since.elapsed() >= WAIT_MAX;
        if self.stuck {
            return Ok(false);
        }
        // A socket whose send buffer is full says when there is room; a full driver queue must be asked again.
        let waited = if error.raw_os_error() == Some(libc::EAGAIN) {
            sys::poll(
                &mut [sys::interest(self.fd.as_fd(), libc::POLLOUT)],
                Some(WAIT_MAX),
            )
        } else {
            sys::poll(&mut [], Some(PAUSE))
        };
        waited.map(|_| true).map_err(|source| self.kernel("poll", source))
    }

    fn kernel(&self, step: &'static str, source: io::Error) -> PortError {
        PortError::Kernel {
            interface: self.interface.clone(),
            step,
            source,
        }
    }

    /// Sees what the kernel has taken; true when it was anything.
    fn settle(&mut self) -> bool {
        let (frames, bytes) = self.ring.settle();
        self.counters.frames += frames as u64;
        self.counters.bytes += bytes as u64;
        self.stuck &= frames == 0;
        frames > 0
    }
}

impl Transmit for PacketSender {
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError> {
        if headers.len() + payload.len() < FRAME_BYTES_MIN {
            self.counters.dropped_short += 1;
            return Ok(());
        }
        if self.ring.waiting() >= BATCH_FRAMES {
            self.flush()?;
        }
        let mut waiting_since = None;
        loop {
            match self.ring.push(headers, payload) {
                Pushed::Done => return Ok(()),
                Pushed::TooLong => {
                    self.counters.dropped_long += 1;
                    return Ok(());
                }
                Pushed::Full => {
                    let error = io::Error::from_raw_os_error(libc::EAGAIN);
                    if !self.wait(&mut waiting_since, &error)? {
                        self.counters.dropped_full += 1;
                        return Ok(());
                    }
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        let mut waiting_since = None;
        while self.ring.waiting() > 0 {
            let kicked = sys::kick(&self.fd);
            let progress = self.settle();
            match kicked {
                Ok(()) if progress => {}
                Ok(()) => {
                    let error = io::Error::from_raw_os_error(libc::ENOBUFS);
                    if !self.wait(&mut waiting_since, &error)? {
                        self.counters.dropped_full += self.ring.give_up() as u64;
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ENOBUFS | libc::EAGAIN) => {
                        if !self.wait(&mut waiting_since, &error)? {
                            self.counters.dropped_full += self.ring.give_up() as u64;
                        }
                    }
                    Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                        self.counters.dropped_down += self.ring.give_up() as u64;
                    }
                    _ => {
                        self.ring.give_up();
                        return Err(self.kernel("send", error));
                    }
                },
            }
        }
        Ok(())
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}
