//! What came of a run.

use std::collections::HashMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use linewarden_protocol::device::{Failure, Ignored};

/// How one device fared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Its turn has not come.
    Waiting,
    /// A handshake is under way, or the device rests after one that failed.
    UnderWay,
    /// Its one handshake failed ([`Fleet::authenticate_once`](super::Fleet::authenticate_once)).
    GaveUp,
    /// It has a session.
    Authenticated,
}

/// A fleet's run. Durations are nanoseconds, kept to three significant digits, up to 100 s.
#[derive(Clone, Debug)]
pub struct Report {
    /// Devices that got a session.
    pub authenticated: u64,
    /// Devices that did not by the end of the run.
    pub unfinished: u64,
    /// From the first REQUEST sent to the ACK verified: all that the device waited, its own PUF and this fleet's queue
    /// included.
    pub latency_ns: Histogram<u64>,
    /// Thereof on the network and in the gateway: first REQUEST sent to CHALLENGE received, plus first RESPONSE sent
    /// to ACK received, by the kernel's stamps. Repetitions after a loss are included.
    pub network_ns: Histogram<u64>,
    /// Thereof reading the PUF, correcting errors and deriving the key.
    pub puf_ns: Histogram<u64>,
    /// How long the run took.
    pub elapsed: Duration,
    /// Messages sent, repetitions included.
    pub sent: u64,
    /// Repetitions among them.
    pub repeated: u64,
    /// Frames that the interface did not take.
    pub not_taken: u64,
    /// Frames lost because a receive ring was full.
    pub ring_drops: u64,
    /// PUF readings.
    pub puf_readings: u64,
    /// Those of them that failed.
    pub puf_failures: u64,
    /// Handshakes that ended without a session, by reason.
    pub failures: HashMap<Failure, u64>,
    /// Messages that changed nothing, by reason.
    pub ignored: HashMap<Ignored, u64>,
    /// ATTEST_REQUESTs that came to devices which prove what they run.
    pub asked: u64,
    /// Those of them that got no PROOF.
    pub unanswered: u64,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            authenticated: 0,
            unfinished: 0,
            latency_ns: histogram(),
            network_ns: histogram(),
            puf_ns: histogram(),
            elapsed: Duration::ZERO,
            sent: 0,
            repeated: 0,
            not_taken: 0,
            ring_drops: 0,
            puf_readings: 0,
            puf_failures: 0,
            failures: HashMap::new(),
            ignored: HashMap::new(),
            asked: 0,
            unanswered: 0,
        }
    }
}

impl Report {
    /// Complete authentications per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.authenticated as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Two workers' reports on one run.
    pub(super) fn join(mut self, other: Self) -> Self {
        self.authenticated += other.authenticated;
        self.unfinished += other.unfinished;
        add(&mut self.latency_ns, &other.latency_ns);
        add(&mut self.network_ns, &other.network_ns);
        add(&mut self.puf_ns, &other.puf_ns);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.sent += other.sent;
        self.repeated += other.repeated;
        self.not_taken += other.not_taken;
        self.ring_drops += other.ring_drops;
        self.asked += other.asked;
        self.unanswered += other.unanswered;
        self.puf_readings += other.puf_readings;
        self.puf_failures += other.puf_failures;
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        for (ignored, count) in other.ignored {
            *self.ignored.entry(ignored).or_default() += count;
        }
        self
    }
}

/// From 1 ns to 100 s with three significant digits; about 240 KiB.
pub(super) fn histogram() -> Histogram<u64> {
    const LONGEST_NS: u64 = 100_000_000_000;
    match Histogram::new_with_bounds(1, LONGEST_NS, 3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("the bounds are constants and valid"),
    }
}

/// Adds `from`, which has the same bounds, so that nothing can be out of range.
pub(super) fn add(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    let added = to.add(from);
    debug_assert!(added.is_ok());
}
