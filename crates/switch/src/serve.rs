//! Main loop of a worker: receives bursts of packets, runs the program and sends the results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::clock::Clock;
use crate::engine::Sink;
use crate::exec::{Fault, RandomSource};
use crate::ports::{PortId, PortSet, PortSetError, Senders};
use crate::switch::Worker;

/// Number of idle rounds, which receive no packet, before the worker sleeps.
const SPIN_ROUNDS: u32 = 64;
/// Maximum sleep: a worker that is not woken notices a stop request after at most this time.
const SLEEP_MAX: Duration = Duration::from_millis(200);

/// Counters of a worker in addition to its port counters.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Packets dropped by programs.
    pub dropped: AtomicU64,
    /// Packets that exceeded the step, pass or copy limit.
    pub limit_exceeded: AtomicU64,
    /// Packets with a failed assertion.
    pub assertions: AtomicU64,
    /// Packets dropped because a queue was full or no queue had their priority.
    pub queue_full: AtomicU64,
    /// Emitted digests.
    pub digests: AtomicU64,
}

fn count(counter: &AtomicU64) {
    // Only one worker writes; other threads read.
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Digest message: id in the JSON, and field values.
pub type DigestMessage = (u32, Vec<Vec<u8>>);

struct WorkerSink<'a> {
    senders: &'a mut Senders,
    counters: &'a WorkerCounters,
    digests: &'a mut dyn FnMut(DigestMessage),
}

impl Sink for WorkerSink<'_> {
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]) {
        // v1model ports have 9 bits: a larger value is a port that does not exist.
        let port = u16::try_from(port).ok().and_then(PortId::new);
        if let Some(port) = port {
            self.senders.send(port, headers, payload);
        }
    }

    fn digest(&mut self, number: u32, values: Vec<Vec<u8>>) {
        count(&self.counters.digests);
        (self.digests)((number, values));
    }

    fn fault(&mut self, fault: Fault) {
        count(match fault {
            Fault::FuelExhausted | Fault::PassLimit | Fault::CopyLimit => &self.counters.limit_exceeded,
            Fault::Assertion => &self.counters.assertions,
            Fault::QueueFull => &self.counters.queue_full,
        });
    }

    fn dropped(&mut self) {
        count(&self.counters.dropped);
    }
}

struct WorkerRandom(ChaCha8Rng);

impl RandomSource for WorkerRandom {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }
}

/// Error that ended a worker.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port failed, or waiting failed.
    #[error(transparent)]
    Ports(#[from] PortSetError),
    /// The system provides no random numbers.
    #[error("cannot read random numbers from the system: {0}")]
    Random(#[from] getrandom::Error),
}

/// Serves the ports until `stop` is set, or, if all ports are files, until all files have been read.
///
/// # Errors
/// A port failed, waiting failed, or the system provides no random numbers.
pub fn serve(
    worker: &mut Worker,
    ports: &mut PortSet,
    counters: &WorkerCounters,
    digests: &mut dyn FnMut(DigestMessage),
    clock: Clock,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    let mut random = WorkerRandom(ChaCha8Rng::from_seed(seed));
    let mut idle_rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let frames = worker.batch(clock.now_us(), |batch| {
            ports.round(&mut |port, frame, senders| {
                let mut out = WorkerSink {
                    senders,
                    counters,
                    digests,
                };
                batch.packet(u32::from(port.get()), frame, &mut random, &mut out);
            })
        })?;
        if frames > 0 {
            idle_rounds = 0;
            continue;
        }
        if ports.ended() {
            return Ok(());
        }
        idle_rounds += 1;
        if idle_rounds > SPIN_ROUNDS {
            ports.sleep(Some(SLEEP_MAX))?;
        }
    }
    Ok(())
}
