//! One thread on one socket: receives a batch, verifies it, sends the replies.
//!
//! Two system calls, recvmmsg() and sendmmsg(), serve a batch of 1 to 64 datagrams. recvmmsg() waits only for the
//! first datagram, so no thread polls and no datagram waits for a batch to fill.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;

use linewarden_protocol::frame::ip_from_bytes;
use linewarden_protocol::tag;
use linewarden_protocol::verdict::{Disposition, Verdict};

use super::batch::Batch;
use super::engine::{Engine, ThreadState};
use super::neighbor::Neighbors;
use super::origin::MacSource as _;
use super::socket::Socket;
use crate::miss::{Miss, is_bound};
use crate::timestamps::{Timestamps, now};

/// The home of a message's device is prefetched this many messages ahead. A CPU discards prefetches that exceed its
/// capacity.
const PREFETCH_DISTANCE: usize = 8;

/// The data of one thread.
pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    pub(super) thread: ThreadState,
    pub(super) neighbors: Neighbors,
    pub(super) socket: Arc<Socket>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Worker {
    /// Serves until shutdown.
    ///
    /// # Errors
    /// Receiving failed permanently.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut batch = Batch::new();
        loop {
            let result = batch.receive(self.socket.raw_fd());
            if self.stop.load(Acquire) {
                return Ok(());
            }
            match result {
                Ok(count) => self.handle(&mut batch, count),
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn handle(&mut self, batch: &mut Batch, count: usize) {
        // Read once per batch: the coarse clock has tick resolution, and a batch takes less than a tick.
        let now = now();
        self.thread.proofs.begin();
        if count > 1 {
            let first = batch.payloads(0..count.min(PREFETCH_DISTANCE));
            first.for_each(|payload| self.engine.prefetch(payload));
        }
        for index in 0..count {
            let ahead = (index + PREFETCH_DISTANCE).min(count)..(index + PREFETCH_DISTANCE + 1).min(count);
            batch
                .payloads(ahead)
                .for_each(|payload| self.engine.prefetch(payload));
            let Some(datagram) = batch.datagram(index) else {
                continue;
            };
            let length = datagram.payload.len();
            let verdict = if !datagram.is_unicast {
                self.thread.stats.count(Verdict::PassForeign);
                Some(Verdict::PassForeign)
            } else {
                self.engine.handle_lap(
                    &mut self.thread,
                    now,
                    &datagram.from,
                    &mut self.neighbors,
                    datagram.payload,
                    datagram.length,
                )
            };
            match verdict {
                // A PROOF was queued; `verify_pending` verifies it.
                None => self.thread.proofs.set_last_index(index),
                Some(Verdict::SlowPath) => self.queue_miss(batch, index, now),
                Some(verdict) if verdict.disposition() == Disposition::Reply => {
                    batch.reply(index, length, self.socket.is_wildcard());
                }
                Some(_) => {}
            }
        }
        self.engine.verify_pending(&mut self.thread, now, batch);
        batch.send(self.socket.raw_fd());
    }
}

impl Worker {
    /// Hands a message to user space. The sender's MAC address of a BOUND message is looked up here, because this
    /// thread has the cache.
    #[cold]
    fn queue_miss(&mut self, batch: &mut Batch, index: usize, now: Timestamps) {
        let Some((mut handle, message)) = batch.reply_handle(index, &self.socket) else {
            return;
        };
        let has_bound_flag = is_bound(&message);
        if has_bound_flag {
            let Some(mac) = self.neighbors.sender_mac(&handle.from, now) else {
                // The device will repeat the message; usually, the neighbor has been resolved by then.
                self.engine
                    .regions
                    .expect_response(&self.engine.geometry, &message);
                return;
            };
            handle.mac = mac;
        }
        let [a, b, c, d, e, f, ..] = handle.mac.to_ne_bytes();
        let loc = tag::location(has_bound_flag.then_some([a, b, c, d, e, f]));
        let [high, low] = handle.from.addr.map(u64::to_ne_bytes);
        let mut source = [0u8; 16];
        source[..8].copy_from_slice(&high);
        source[8..].copy_from_slice(&low);
        let source = ip_from_bytes(source);
        self.engine
            .slow_path
            .push(Miss::of_datagram(message, source, loc, handle));
        self.engine.wake();
    }
}

/// Whether the error is temporary or concerns a single datagram.
pub(crate) fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ECONNREFUSED)
    )
}
