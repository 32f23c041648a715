//! One thread on one socket: receive a batch, judge it, send the replies.
//!
//! Three system calls serve up to 64 datagrams at saturation, two serve one when there is just one: recvmmsg() waits
//! for the first datagram only, so nothing is polled and nothing waits for a batch to fill.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;

use linewarden_protocol::verdict::{Disposition, Verdict};

use super::batch::Batch;
use super::engine::{Engine, Moment, ThreadState};
use super::neighbour::Neighbours;
use super::socket::Socket;

/// Which protocol a socket's port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Lap,
    Classic,
}

/// What a thread works with.
pub(super) struct Worker {
    pub(super) engine: Arc<Engine>,
    pub(super) thread: ThreadState,
    pub(super) neighbours: Neighbours,
    pub(super) socket: Arc<Socket>,
    pub(super) service: Service,
    pub(super) stop: Arc<AtomicBool>,
}

impl Worker {
    /// Serves until it is told to stop.
    ///
    /// # Errors
    /// The kernel's, when receiving failed for a reason that does not pass.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut batch = Batch::new();
        loop {
            let received = batch.receive(self.socket.raw_fd());
            if self.stop.load(Acquire) {
                return Ok(());
            }
            match received {
                Ok(count) => self.handle(&mut batch, count),
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn handle(&mut self, batch: &mut Batch, count: usize) {
        // Once a batch: the coarse clock is a tick off anyway, and a batch takes less than that.
        let now = now();
        // Two to five hundredths of the thread's time at a million devices; the rest is the kernel's (`host_cost`).
        if self.service == Service::Lap && count > 1 {
            let touched = batch.payloads(count).map(|payload| self.engine.touch(payload));
            std::hint::black_box(touched.fold(0, std::ops::BitXor::bitxor));
        }
        for index in 0..count {
            let Some(datagram) = batch.datagram(index) else {
                continue;
            };
            let length = datagram.payload.len();
            let verdict = if !datagram.is_unicast {
                self.thread.stats.count(Verdict::PassForeign);
                Verdict::PassForeign
            } else if self.service == Service::Lap {
                self.engine.lap(
                    &mut self.thread,
                    now,
                    &datagram.from,
                    &mut self.neighbours,
                    datagram.payload,
                    datagram.length,
                )
            } else {
                self.engine.process_classic(&mut self.thread, datagram.payload)
            };
            if verdict.disposition() == Disposition::Reply {
                batch.reply(index, length, self.socket.is_wildcard());
            }
        }
        batch.send(self.socket.raw_fd());
    }
}

/// Errors of one moment or of one datagram.
fn passes(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ECONNREFUSED)
    )
}

/// The moment by the clocks of this machine.
pub(super) fn now() -> Moment {
    let monotonic = clock(libc::CLOCK_MONOTONIC_COARSE);
    let boot = clock(libc::CLOCK_BOOTTIME);
    let positive = |value: i64| u64::try_from(value).unwrap_or_default();
    Moment {
        monotonic_ns: positive(monotonic.tv_sec) * 1_000_000_000 + positive(monotonic.tv_nsec),
        boot_s: u32::try_from(boot.tv_sec).unwrap_or(u32::MAX),
    }
}

fn clock(id: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec; both clocks exist on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time
}
