//! In-memory port: each end receives what the other end sends. The port is used for tests, benchmarks and
//! packet-outs.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Port, PortError, Readiness, Receive, RxCounters, Transmit, TxCounters, Waker};

/// Frame queue of one direction.
#[derive(Debug)]
struct Queue {
    frames: Mutex<Frames>,
    frame_arrived: Condvar,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Frames {
    queued: VecDeque<Vec<u8>>,
    /// Buffers of received frames for reuse.
    spare: Vec<Vec<u8>>,
    dropped: u64,
}

impl Queue {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            frames: Mutex::new(Frames::default()),
            frame_arrived: Condvar::new(),
            capacity: capacity.max(1),
        })
    }

    /// Locks the queue, even after a panic of another thread: a panic leaves complete frames.
    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Frames {
    /// Appends a frame; false if the queue is full.
    fn push(&mut self, capacity: usize, headers: &[u8], payload: &[u8]) -> bool {
        if self.queued.len() >= capacity {
            self.dropped += 1;
            return false;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(headers);
        frame.extend_from_slice(payload);
        self.queued.push_back(frame);
        true
    }
}

/// Peer of an in-memory port; clones share the peer.
#[derive(Clone, Debug)]
pub struct MemoryPeer {
    to_switch: Arc<Queue>,
    from_switch: Arc<Queue>,
    waker: Waker,
}

impl MemoryPeer {
    /// Sends a frame to the switch. False if the queue is full; the frame is then counted as dropped.
    #[must_use]
    pub fn send(&self, frame: &[u8]) -> bool {
        let mut frames = self.to_switch.lock();
        let is_queued = frames.push(self.to_switch.capacity, frame, &[]);
        // The wake-up happens under the lock; otherwise the sender could wake a receiver that has already emptied the queue.
        if is_queued && frames.queued.len() == 1 {
            self.waker.wake();
        }
        is_queued
    }

    /// Next frame sent by the switch, if any.
    #[must_use]
    pub fn try_receive(&self) -> Option<Vec<u8>> {
        self.from_switch.lock().queued.pop_front()
    }

    /// Passes all frames sent by the switch to `take` and reuses their memory. Returns the number of frames.
    pub fn drain(&self, mut take: impl FnMut(&[u8])) -> usize {
        let mut frames = std::mem::take(&mut self.from_switch.lock().queued);
        for frame in &frames {
            take(frame);
        }
        let count = frames.len();
        self.from_switch.lock().spare.extend(frames.drain(..));
        count
    }

    /// Next frame sent by the switch; waits until the timeout.
    #[must_use]
    pub fn receive(&self, timeout: Duration) -> Option<Vec<u8>> {
        let frames = self.from_switch.lock();
        let result = self
            .from_switch
            .frame_arrived
            .wait_timeout_while(frames, timeout, |frames| frames.queued.is_empty());
        let (mut frames, _) = result.unwrap_or_else(PoisonError::into_inner);
        frames.queued.pop_front()
    }
}

/// Creates a port and its peer. Each direction holds at most `capacity` frames; further frames are counted and dropped.
///
/// # Errors
/// No file descriptor is available.
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
    /// Frames taken from the queue under one lock, which is released during processing.
    burst: VecDeque<Vec<u8>>,
    counters: RxCounters,
}

impl Receive for MemoryReceiver {
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        {
            let mut frames = self.queue.lock();
            let count = limit.min(frames.queued.len());
            if count == 0 {
                return Ok(0);
            }
            self.burst.extend(frames.queued.drain(..count));
            // The waker is cleared under the lock while the queue is empty, so the next frame wakes the receiver.
            if frames.queued.is_empty() {
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
        self.queue.frame_arrived.notify_all();
        Ok(())
    }

    fn counters(&self) -> TxCounters {
        self.counters
    }
}
