//! Ports of one worker.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{PORT_IDS, Port, PortCounters, PortError, PortId, Readiness, Receive, Transmit, sys};

/// Maximum number of frames of one port before the next port is served.
pub const BURST_FRAMES: usize = 64;
/// Number of rounds without a frame before the worker sleeps. With two ports these rounds take 5 µs, about the cost of
/// sleeping and waking up.
const SPIN_ROUNDS: u32 = 256;
/// Interval of the check that idle ports still exist: an XDP socket does not report the removal of its
/// interface.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Error of adding or serving ports.
#[derive(Debug, thiserror::Error)]
pub enum PortSetError {
    /// The port number is in use.
    #[error("port number {0} is in use: remove the port first, or use another number")]
    PortInUse(PortId),
    /// A port failed and was removed; the other ports continue.
    #[error("port {port} failed: {source}")]
    PortFailed {
        /// Port.
        port: PortId,
        /// Cause.
        source: PortError,
    },
    /// Waiting for packets failed.
    #[error("cannot wait for packets: {0}")]
    PollFailed(#[source] io::Error),
}

/// Wakes the worker of a [`PortSet`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<File>);

impl Waker {
    pub(super) fn new() -> Result<Self, PortError> {
        Ok(Self(Arc::new(sys::event().map_err(PortError::Event)?.into())))
    }

    /// Ends the current or next sleep immediately.
    pub fn wake(&self) {
        // The write fails only if the counter is at its maximum, and then the worker is awake.
        let _ = (&*self.0).write(&1u64.to_ne_bytes());
    }

    /// Clears all previous calls of [`Self::wake`].
    pub(super) fn clear(&self) {
        // The read fails if there was no call.
        let _ = (&*self.0).read(&mut [0; 8]);
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }
}

/// Sending halves of all ports.
#[derive(Debug)]
pub struct Senders {
    /// Senders by port number.
    by_port: Box<[Option<Box<dyn Transmit>>]>,
    /// Ports with frames since their last flush.
    unflushed: Vec<PortId>,
    failures: Vec<(PortId, PortError)>,
    unknown_port_frames: u64,
}

impl Senders {
    fn new() -> Self {
        Self {
            by_port: std::iter::repeat_with(|| None).take(PORT_IDS).collect(),
            unflushed: Vec::new(),
            failures: Vec::new(),
            unknown_port_frames: 0,
        }
    }

    /// Sends a frame, given in two parts, no later than the end of the round. The port's counters show the result.
    /// Frames to a port that does not exist are dropped, as in simple_switch.
    pub fn send(&mut self, port: PortId, headers: &[u8], payload: &[u8]) {
        let Some(sender) = self.by_port.get_mut(port.index()).and_then(Option::as_mut) else {
            self.unknown_port_frames += 1;
            return;
        };
        if self.unflushed.last() != Some(&port) && !self.unflushed.contains(&port) {
            self.unflushed.push(port);
        }
        if let Err(error) = sender.send(headers, payload) {
            self.failures.push((port, error));
        }
    }

    /// Flushes all ports. The end of each round also flushes.
    pub fn flush(&mut self) {
        for port in self.unflushed.drain(..) {
            if let Some(sender) = self.by_port.get_mut(port.index()).and_then(Option::as_mut)
                && let Err(error) = sender.flush()
            {
                self.failures.push((port, error));
            }
        }
    }

    /// Number of frames sent to ports that do not exist.
    #[must_use]
    pub const fn sent_to_unknown_port(&self) -> u64 {
        self.unknown_port_frames
    }
}

/// Ports of one worker, by number. Ports can be added and removed between rounds.
#[derive(Debug)]
pub struct PortSet {
    receivers: Vec<(PortId, Box<dyn Receive>)>,
    senders: Senders,
    waker: Waker,
    /// Index of the first receiver of the next round.
    next_receiver: usize,
    spin_rounds: u32,
    poll: Vec<libc::pollfd>,
}

impl PortSet {
    /// Creates a set without ports.
    ///
    /// # Errors
    /// No file descriptor is available.
    pub fn new() -> Result<Self, PortError> {
        Ok(Self {
            receivers: Vec::new(),
            senders: Senders::new(),
            waker: Waker::new()?,
            next_receiver: 0,
            spin_rounds: SPIN_ROUNDS,
            poll: Vec::new(),
        })
    }

    /// Sets the number of rounds without a frame before the worker sleeps; use 0 on machines that need the CPU for other
    /// work.
    #[must_use]
    pub fn with_spin_rounds(mut self, rounds: u32) -> Self {
        self.spin_rounds = rounds;
        self
    }

    /// Waker of the worker.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Adds a port.
    ///
    /// # Errors
    /// The port number is in use.
    pub fn add(&mut self, id: PortId, port: Port) -> Result<(), PortSetError> {
        let entry = self.senders.by_port.get_mut(id.index());
        match entry {
            Some(entry @ None) => *entry = Some(port.sender),
            _ => return Err(PortSetError::PortInUse(id)),
        }
        self.receivers.push((id, port.receiver));
        Ok(())
    }

    /// Flushes and removes a port.
    pub fn remove(&mut self, id: PortId) -> Option<Port> {
        let index = self.receivers.iter().position(|(port, _)| *port == id)?;
        let mut sender = self.senders.by_port.get_mut(id.index())?.take()?;
        // An error of the flush is ignored: the port is removed anyway.
        let _ = sender.flush();
        self.senders.unflushed.retain(|port| *port != id);
        let (_, receiver) = self.receivers.remove(index);
        Some(Port { receiver, sender })
    }

    /// Port numbers in ascending order.
    #[must_use]
    pub fn ids(&self) -> Vec<PortId> {
        let mut ids: Vec<_> = self.receivers.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Sending halves, for packets that were not received from a port.
    pub fn senders(&mut self) -> &mut Senders {
        &mut self.senders
    }

    /// Counters of a port; `None` if the port does not exist.
    pub fn counters(&mut self, id: PortId) -> Option<PortCounters> {
        let (_, receiver) = self.receivers.iter_mut().find(|(port, _)| *port == id)?;
        let sender = self.senders.by_port.get(id.index())?.as_ref()?;
        Some(PortCounters {
            rx: receiver.counters(),
            tx: sender.counters(),
        })
    }

    /// Whether all ports are files and have been read to the end.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.receivers
            .iter()
            .all(|(_, receiver)| matches!(receiver.readiness(), Readiness::Never))
    }

    /// Runs one round: passes a burst of each port to `take` and flushes at the end. Returns the number of frames as
    /// defined by [`Receive::receive`]. The function does not wait for frames; a flush may wait for a full queue.
    ///
    /// # Errors
    /// A port failed. The port was removed, and the next call continues with the other ports.
    pub fn round(
        &mut self,
        take: &mut impl FnMut(PortId, &[u8], &mut Senders),
    ) -> Result<usize, PortSetError> {
        let ports = self.receivers.len();
        let mut frames = 0;
        let senders = &mut self.senders;
        let (front, back) = self.receivers.split_at_mut(self.next_receiver.min(ports));
        for (id, receiver) in back.iter_mut().chain(front) {
            match receiver.receive(BURST_FRAMES, &mut |frame| take(*id, frame, senders)) {
                Ok(count) => frames += count,
                Err(error) => senders.failures.push((*id, error)),
            }
        }
        self.next_receiver = if self.next_receiver + 1 < ports {
            self.next_receiver + 1
        } else {
            0
        };
        senders.flush();
        self.report()?;
        Ok(frames)
    }

    /// Runs rounds until a frame arrives, the last port has [ended](Self::ended), [`Waker::wake`] is called or the timeout
    /// expires (`None`: no timeout). Returns the number of frames of the last round.
    ///
    /// # Errors
    /// A port failed, as in [`Self::round`], or waiting failed.
    pub fn serve(
        &mut self,
        timeout: Option<Duration>,
        mut take: impl FnMut(PortId, &[u8], &mut Senders),
    ) -> Result<usize, PortSetError> {
        let had_ended = self.ended();
        let rounds = if timeout == Some(Duration::ZERO) {
            0
        } else {
            self.spin_rounds
        };
        for _ in 0..=rounds {
            match self.round(&mut take)? {
                0 => std::hint::spin_loop(),
                frames => return Ok(frames),
            }
        }
        if self.ended() && !had_ended {
            return Ok(0);
        }
        self.sleep(timeout)?;
        self.round(&mut take)
    }

    /// Sleeps until a port or the [waker](Self::waker) is ready, or the timeout expires.
    ///
    /// # Errors
    /// A port failed, as in [`Self::round`], or waiting failed.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), PortSetError> {
        let start = Instant::now();
        let timeout = self.prepare_poll(timeout);
        loop {
            let remaining = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            let poll_timeout = remaining.map_or(CHECK_EVERY, |remaining| remaining.min(CHECK_EVERY));
            let ready = sys::poll(&mut self.poll, Some(poll_timeout)).map_err(PortSetError::PollFailed)?;
            for ((id, receiver), poll) in self.receivers.iter_mut().zip(self.poll.iter().skip(1)) {
                let timed_out = ready == 0 && poll_timeout == CHECK_EVERY;
                if (timed_out || poll.revents & libc::POLLERR != 0)
                    && let Err(error) = receiver.check()
                {
                    self.senders.failures.push((*id, error));
                }
            }
            self.report()?;
            if ready > 0 || remaining.is_some_and(|remaining| remaining <= poll_timeout) {
                self.waker.clear();
                return Ok(());
            }
        }
    }

    /// Prepares the poll list: the waker, then one entry for each receiver. Returns the timeout until the first receiver may
    /// have frames, at most `timeout`.
    fn prepare_poll(&mut self, mut timeout: Option<Duration>) -> Option<Duration> {
        self.poll.clear();
        self.poll
            .push(sys::poll_interest(self.waker.file().as_fd(), libc::POLLIN));
        for (_, receiver) in &self.receivers {
            let (fd, receiver_timeout) = match receiver.readiness() {
                Readiness::Fd(fd) => (Some(fd), None),
                Readiness::Now => (None, Some(Duration::ZERO)),
                Readiness::At(time) => (None, Some(time.saturating_duration_since(Instant::now()))),
                Readiness::Never => (None, None),
            };
            // The kernel ignores negative descriptors.
            let ignored = libc::pollfd {
                fd: -1,
                events: 0,
                revents: 0,
            };
            self.poll
                .push(fd.map_or(ignored, |fd| sys::poll_interest(fd, libc::POLLIN)));
            timeout = match (timeout, receiver_timeout) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        timeout
    }

    /// Removes a failed port and returns its error.
    fn report(&mut self) -> Result<(), PortSetError> {
        let Some((port, source)) = self.senders.failures.pop() else {
            return Ok(());
        };
        self.senders
            .failures
            .retain(|(failed_port, _)| *failed_port != port);
        self.remove(port);
        Err(PortSetError::PortFailed { port, source })
    }
}
