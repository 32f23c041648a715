//! The loop of one worker: bursts of packets in, through the program, and out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::clock::Clock;
use crate::engine::Sink;
use crate::exec::{Fault, RandomSource};
use crate::ports::{PortId, PortSet, PortSetError, Senders};
use crate::switch::Worker;

/// Rounds without a packet before the worker sleeps.
const SPIN_ROUNDS: u32 = 64;
/// The longest sleep: how late a request to stop is noticed where nobody wakes the worker.
const SLEEP_MAX: Duration = Duration::from_millis(200);

/// What a worker counts besides its ports.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Packets that programs dropped.
    pub dropped: AtomicU64,
    /// Packets that ran in a circle, through a pipeline or back to the parser too often.
    pub circles: AtomicU64,
    /// Packets on which an assertion of the program failed.
    pub assertions: AtomicU64,
    /// Packets for which no queue had room.
    pub queue_full: AtomicU64,
    /// Digests that were told.
    pub digests: AtomicU64,
}

fn count(counter: &AtomicU64) {
    // One worker writes, others only read.
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// A digest as it was told: its number in the JSON, and its fields' values.
pub type Told = (u32, Vec<Vec<u8>>);

struct Out<'a> {
    senders: &'a mut Senders,
    counters: &'a WorkerCounters,
    digests: &'a mut dyn FnMut(Told),
}

impl Sink for Out<'_> {
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]) {
        // Ports have 9 bits in v1model; a program that writes more sends to a port that is not there.
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
            Fault::Fuel | Fault::Passes | Fault::Copies => &self.counters.circles,
            Fault::Assertion => &self.counters.assertions,
            Fault::Queue => &self.counters.queue_full,
        });
    }

    fn dropped(&mut self) {
        count(&self.counters.dropped);
    }
}

struct Random(ChaCha8Rng);

impl RandomSource for Random {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }
}

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port is lost, or waiting failed.
    #[error(transparent)]
    Ports(#[from] PortSetError),
    /// The system gives no random numbers.
    #[error("the system's random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// Serves the ports until `stop` is set, or all of them were files that have been read.
///
/// # Errors
/// When a port is lost.
pub fn serve(
    worker: &mut Worker,
    ports: &mut PortSet,
    counters: &WorkerCounters,
    digests: &mut dyn FnMut(Told),
    clock: Clock,
    stop: &AtomicBool,
) -> Result<(), ServeError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    let mut random = Random(ChaCha8Rng::from_seed(seed));
    let mut idle_rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let frames = worker.batch(clock.now_us(), |taking| {
            ports.round(&mut |port, frame, senders| {
                let mut out = Out {
                    senders,
                    counters,
                    digests,
                };
                taking.packet(u32::from(port.get()), frame, &mut random, &mut out);
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
