//! A port in memory: what one end sends, the other receives. For tests, benchmarks and packets that a controller sends.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Port, PortError, Readiness, Receive, RxCounters, Transmit, TxCounters, Waker};

/// Frames on their way in one direction.
#[derive(Debug)]
struct Queue {
    frames: Mutex<Frames>,
    arrived: Condvar,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Frames {
    waiting: VecDeque<Vec<u8>>,
    /// Buffers of frames that were received, to be filled again.
    spare: Vec<Vec<u8>>,
    dropped: u64,
}

impl Queue {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            frames: Mutex::new(Frames::default()),
            arrived: Condvar::new(),
            capacity: capacity.max(1),
        })
    }

    /// A thread that panicked under the lock has left whole frames.
    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Frames {
    /// Appends a frame; false when there is no room.
    fn push(&mut self, capacity: usize, headers: &[u8], payload: &[u8]) -> bool {
        if self.waiting.len() >= capacity {
            self.dropped += 1;
            return false;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(headers);
        frame.extend_from_slice(payload);
        self.waiting.push_back(frame);
        true
    }
}

/// The other end of a port in memory; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryPeer {
    to_switch: Arc<Queue>,
    from_switch: Arc<Queue>,
    waker: Waker,
}

impl MemoryPeer {
    /// Gives the switch a frame. False when its queue is full; the frame is counted as dropped there.
    #[must_use]
    pub fn send(&self, frame: &[u8]) -> bool {
        let mut frames = self.to_switch.lock();
        let taken = frames.push(self.to_switch.capacity, frame, &[]);
        // Under the lock, so that a receiver that has emptied the queue meanwhile cannot be woken for nothing for ever.
        if taken && frames.waiting.len() == 1 {
            self.waker.wake();
        }
        taken
    }

    /// The next frame that the switch has sent, if there is one.
    #[must_use]
    pub fn try_receive(&self) -> Option<Vec<u8>> {
        self.from_switch.lock().waiting.pop_front()
    }

    /// Hands all frames that the switch has sent to `take` and keeps their memory for the next. Returns how many.
    pub fn drain(&self, mut take: impl FnMut(&[u8])) -> usize {
        let mut frames = std::mem::take(&mut self.from_switch.lock().waiting);
        for frame in &frames {
            take(frame);
        }
        let count = frames.len();
        self.from_switch.lock().spare.extend(frames.drain(..));
        count
    }

    /// The next frame that the switch has sent; waits for it as long as told.
    #[must_use]
    pub fn receive(&self, wait: Duration) -> Option<Vec<u8>> {
        let frames = self.from_switch.lock();
        let waited = self
            .from_switch
            .arrived
            .wait_timeout_while(frames, wait, |frames| frames.waiting.is_empty());
        let (mut frames, _) = waited.unwrap_or_else(PoisonError::into_inner);
        frames.waiting.pop_front()
    }
}

/// A port and its other end. Each direction holds at most `capacity` frames; what comes on top is counted and lost.
///
/// # Errors
/// When the system has no file descriptor left.
pub fn memory_port(capacity: usize) -> Result<(Port, MemoryPeer), PortError> {
    let peer = MemoryPeer {
        to_switch: Queue::new(capacity),
        from_switch: Queue::new(capacity),
        waker: Waker::new()?,
    };
    let receiver = MemoryReceiver {
        queue: peer.to_switch.clone(),
        waker: peer.waker.clone(),
        burst: VecDeque::new(),
        counters: RxCounters::default(),
    };
    let sender = MemorySender {
        queue: peer.from_switch.clone(),
        counters: TxCounters::default(),
    };
    let port = Port {
        receiver: Box::new(receiver),
        sender: Box::new(sender),
    };
    Ok((port, peer))
}

#[derive(Debug)]
struct MemoryReceiver {
    queue: Arc<Queue>,
    waker: Waker,
    /// Frames taken out of the queue under one lock, which is not held while they are processed.
    burst: VecDeque<Vec<u8>>,
    counters: RxCounters,
}

impl Receive for MemoryReceiver {
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        {
            let mut frames = self.queue.lock();
            let count = limit.min(frames.waiting.len());
            if count == 0 {
                return Ok(0);
            }
            self.burst.extend(frames.waiting.drain(..count));
            // Cleared under the lock: a frame that comes later wakes again, for the queue is empty.
            if frames.waiting.is_empty() {
                self.waker.clear();
            }
        }
        for frame in &self.burst {
            self.counters.frames += 1;
            self.counters.bytes += frame.len() as u64;
            take(frame);
        }
        let count = self.burst.len();
        self.queue.lock().spare.extend(self.burst.drain(..));
        Ok(count)
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::Fd(self.waker.file().as_fd())
    }

    fn counters(&mut self) -> RxCounters {
        self.counters.dropped_full = self.queue.lock().dropped;
        self.counters
    }
}

#[derive(Debug)]
struct MemorySender {
    queue: Arc<Queue>,
    counters: TxCounters,
}

impl Transmit for MemorySender {
    fn send(&mut self, headers: &[u8], payload: &[u8]) -> Result<(), PortError> {
        if self.queue.lock().push(self.queue.capacity, headers, payload) {
            self.counters.frames += 1;
            self.counters.bytes += (headers.len() + payload.len()) as u64;
        } else {
            self.counters.dropped_full += 1;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.queue.arrived.notify_all();
        Ok(())
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}
