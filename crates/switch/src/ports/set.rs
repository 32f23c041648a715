//! All ports of one worker.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{PORT_IDS, Port, PortCounters, PortError, PortId, Readiness, Receive, Transmit, sys};

/// Most frames that one port hands over before it is the next port's turn.
pub const BURST_FRAMES: usize = 64;
/// Rounds without a frame before the worker sleeps: some 10 µs, about what falling asleep and being woken costs.
const SPIN_ROUNDS: u32 = 256;
/// How often ports that are silent are asked whether they still are there: an XDP socket whose interface was removed does
/// not tell by itself.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Why ports could not be added or served.
#[derive(Debug, thiserror::Error)]
pub enum PortSetError {
    /// The number is taken.
    #[error("port {0} exists already: remove it first, or use another number")]
    Taken(PortId),
    /// A port does not work any more. It has been removed; the others go on.
    #[error("port {port} is lost: {source}")]
    Lost {
        /// Which.
        port: PortId,
        /// Why.
        source: PortError,
    },
    /// The kernel did not let the worker wait.
    #[error("cannot wait for packets: {0}")]
    Wait(#[source] io::Error),
}

/// Ends the sleep of a [`PortSet`]'s worker, from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<File>);

impl Waker {
    pub(super) fn new() -> Result<Self, PortError> {
        Ok(Self(Arc::new(sys::event().map_err(PortError::Event)?.into())))
    }

    /// The sleep that runs, or else the next one, ends at once.
    pub fn wake(&self) {
        // Refused only when the counter is full, and then the worker is awake anyway.
        let _ = (&*self.0).write(&1u64.to_ne_bytes());
    }

    /// Undoes all calls of [`Self::wake`] so far.
    pub(super) fn clear(&self) {
        // Refused when nobody has called.
        let _ = (&*self.0).read(&mut [0; 8]);
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }
}

/// The sending halves of all ports.
#[derive(Debug)]
pub struct Senders {
    slots: Box<[Option<Box<dyn Transmit>>]>,
    /// Ports to which something was sent since their last flush.
    unflushed: Vec<PortId>,
    failed: Vec<(PortId, PortError)>,
    no_port: u64,
}

impl Senders {
    fn new() -> Self {
        Self {
            slots: std::iter::repeat_with(|| None).take(PORT_IDS).collect(),
            unflushed: Vec::new(),
            failed: Vec::new(),
            no_port: 0,
        }
    }

    /// Sends a frame, given in two parts that are joined; it leaves at the end of the round at the latest. What becomes
    /// of it is in the port's counters. A port that does not exist swallows frames, as in simple_switch.
    pub fn send(&mut self, port: PortId, headers: &[u8], payload: &[u8]) {
        let Some(sender) = self.slots.get_mut(port.index()).and_then(Option::as_mut) else {
            self.no_port += 1;
            return;
        };
        if self.unflushed.last() != Some(&port) && !self.unflushed.contains(&port) {
            self.unflushed.push(port);
        }
        if let Err(error) = sender.send(headers, payload) {
            self.failed.push((port, error));
        }
    }

    /// Has everything leave. The end of each round does so by itself.
    pub fn flush(&mut self) {
        for port in self.unflushed.drain(..) {
            if let Some(sender) = self.slots.get_mut(port.index()).and_then(Option::as_mut)
                && let Err(error) = sender.flush()
            {
                self.failed.push((port, error));
            }
        }
    }

    /// Frames that were sent to ports which do not exist.
    #[must_use]
    pub const fn sent_to_no_port(&self) -> u64 {
        self.no_port
    }
}

/// The ports of one worker, by number. Ports can be added and removed between rounds.
#[derive(Debug)]
pub struct PortSet {
    receivers: Vec<(PortId, Box<dyn Receive>)>,
    senders: Senders,
    waker: Waker,
    /// Whose turn it is first in the next round.
    first: usize,
    spin_rounds: u32,
    poll: Vec<libc::pollfd>,
}

impl PortSet {
    /// No ports yet.
    ///
    /// # Errors
    /// When the system has no file descriptor left.
    pub fn new() -> Result<Self, PortError> {
        Ok(Self {
            receivers: Vec::new(),
            senders: Senders::new(),
            waker: Waker::new()?,
            first: 0,
            spin_rounds: SPIN_ROUNDS,
            poll: Vec::new(),
        })
    }

    /// Sets how many rounds without a frame go by before the worker sleeps; 0 on a machine whose CPUs have something
    /// better to do.
    #[must_use]
    pub fn with_spin_rounds(mut self, rounds: u32) -> Self {
        self.spin_rounds = rounds;
        self
    }

    /// What ends the worker's sleep.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Adds a port.
    ///
    /// # Errors
    /// When the number is taken.
    pub fn add(&mut self, id: PortId, port: Port) -> Result<(), PortSetError> {
        let slot = self.senders.slots.get_mut(id.index());
        match slot {
            Some(slot @ None) => *slot = Some(port.sender),
            _ => return Err(PortSetError::Taken(id)),
        }
        self.receivers.push((id, port.receiver));
        Ok(())
    }

    /// Takes a port out, after what was sent to it has left.
    pub fn remove(&mut self, id: PortId) -> Option<Port> {
        let place = self.receivers.iter().position(|(port, _)| *port == id)?;
        let mut sender = self.senders.slots.get_mut(id.index())?.take()?;
        // A port that fails while it is removed is gone all the same.
        let _ = sender.flush();
        self.senders.unflushed.retain(|port| *port != id);
        let (_, receiver) = self.receivers.remove(place);
        Some(Port { receiver, sender })
    }

    /// The numbers of the ports, in ascending order.
    #[must_use]
    pub fn ids(&self) -> Vec<PortId> {
        let mut ids: Vec<_> = self.receivers.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The sending halves, for packets that no port has brought.
    pub fn senders(&mut self) -> &mut Senders {
        &mut self.senders
    }

    /// A port's counters; `None` when there is no such port.
    pub fn counters(&mut self, id: PortId) -> Option<PortCounters> {
        let (_, receiver) = self.receivers.iter_mut().find(|(port, _)| *port == id)?;
        let sender = self.senders.slots.get(id.index())?.as_ref()?;
        Some(PortCounters {
            rx: receiver.counters(),
            tx: sender.counters(),
        })
    }

    /// No port will ever bring anything again: all were files, and all have been read.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.receivers
            .iter()
            .all(|(_, receiver)| matches!(receiver.readiness(), Readiness::Never))
    }

    /// One round: a burst of each port is handed to `take`, and what that sends leaves at the end. Returns how many
    /// frames came. Never waits.
    ///
    /// # Errors
    /// When a port is lost; it has been removed, and the next call goes on with the others.
    pub fn round(
        &mut self,
        take: &mut impl FnMut(PortId, &[u8], &mut Senders),
    ) -> Result<usize, PortSetError> {
        let ports = self.receivers.len();
        let mut frames = 0;
        let senders = &mut self.senders;
        let (before, from) = self.receivers.split_at_mut(self.first.min(ports));
        for (id, receiver) in from.iter_mut().chain(before) {
            match receiver.receive(BURST_FRAMES, &mut |frame| take(*id, frame, senders)) {
                Ok(taken) => frames += taken,
                Err(error) => senders.failed.push((*id, error)),
            }
        }
        self.first = if self.first + 1 < ports { self.first + 1 } else { 0 };
        senders.flush();
        self.report()?;
        Ok(frames)
    }

    /// Rounds until a frame has come, the last port has [ended](Self::ended), [`Waker::wake`] is called or the time is over
    /// (`None`: for ever). Returns how many frames came in the last round.
    ///
    /// # Errors
    /// As [`Self::round`]; or when the kernel refuses to wait.
    pub fn serve(
        &mut self,
        wait: Option<Duration>,
        mut take: impl FnMut(PortId, &[u8], &mut Senders),
    ) -> Result<usize, PortSetError> {
        let had_ended = self.ended();
        let rounds = if wait == Some(Duration::ZERO) {
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
        self.sleep(wait)?;
        self.round(&mut take)
    }

    /// Sleeps until a port or the waker is ready.
    fn sleep(&mut self, wait: Option<Duration>) -> Result<(), PortSetError> {
        let start = Instant::now();
        let wait = self.prepare_poll(wait);
        loop {
            let left = wait.map(|wait| wait.saturating_sub(start.elapsed()));
            let slice = left.map_or(CHECK_EVERY, |left| left.min(CHECK_EVERY));
            let ready = sys::poll(&mut self.poll, Some(slice)).map_err(PortSetError::Wait)?;
            for ((id, receiver), poll) in self.receivers.iter_mut().zip(self.poll.iter().skip(1)) {
                let silent = ready == 0 && slice == CHECK_EVERY;
                if (silent || poll.revents & libc::POLLERR != 0)
                    && let Err(error) = receiver.check()
                {
                    self.senders.failed.push((*id, error));
                }
            }
            self.report()?;
            if ready > 0 || left.is_some_and(|left| left <= slice) {
                self.waker.clear();
                return Ok(());
            }
        }
    }

    /// Lists what to wait for: the waker, then one entry for each receiver. Returns how long at most.
    fn prepare_poll(&mut self, mut wait: Option<Duration>) -> Option<Duration> {
        self.poll.clear();
        self.poll
            .push(sys::interest(self.waker.file().as_fd(), libc::POLLIN));
        for (_, receiver) in &self.receivers {
            let (fd, at_most) = match receiver.readiness() {
                Readiness::Fd(fd) => (Some(fd), None),
                Readiness::Now => (None, Some(Duration::ZERO)),
                Readiness::At(time) => (None, Some(time.saturating_duration_since(Instant::now()))),
                Readiness::Never => (None, None),
            };
            // The kernel skips negative descriptors.
            let nothing = libc::pollfd {
                fd: -1,
                events: 0,
                revents: 0,
            };
            self.poll
                .push(fd.map_or(nothing, |fd| sys::interest(fd, libc::POLLIN)));
            wait = match (wait, at_most) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        wait
    }

    /// Removes a port that has failed and says so.
    fn report(&mut self) -> Result<(), PortSetError> {
        let Some((port, source)) = self.senders.failed.pop() else {
            return Ok(());
        };
        self.senders.failed.retain(|(other, _)| *other != port);
        self.remove(port);
        Err(PortSetError::Lost { port, source })
    }
}
