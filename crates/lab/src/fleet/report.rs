//! The report on a run.

use std::collections::HashMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use linewarden_protocol::device::{Failure, IgnoredReason};

/// The outcome of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The device has not been started.
    Waiting,
    /// A handshake is in progress, or the device waits for its next attempt.
    InProgress,
    /// The single handshake failed ([`Fleet::authenticate_once`](super::Fleet::authenticate_once)).
    Abandoned,
    /// The device has a session.
    Authenticated,
}

/// The report on a fleet's run. Histograms are in nanoseconds with three significant digits, up to 100 s.
#[derive(Clone, Debug)]
pub struct Report {
    /// Devices that got a session.
    pub authenticated: u64,
    /// Devices without a session at the end of the run.
    pub unfinished: u64,
    /// Time from the first REQUEST to the verified ACK, including the device's PUF and this fleet's queue.
    pub latency_ns: Histogram<u64>,
    /// The part of `latency_ns` on the network and in the gateway: first REQUEST sent to CHALLENGE received, plus first
    /// RESPONSE sent to ACK received. Messages are received at the kernel's timestamps. Retransmissions after a loss
    /// are included.
    pub network_ns: Histogram<u64>,
    /// The part of `latency_ns` for reading the PUF, correcting errors and deriving the key.
    pub puf_ns: Histogram<u64>,
    /// Duration of the run.
    pub elapsed: Duration,
    /// Messages sent, including retransmissions.
    pub sent: u64,
    /// Retransmissions.
    pub retransmitted: u64,
    /// Frames that the interface did not accept.
    pub not_sent: u64,
    /// Frames lost because a receive ring was full.
    pub ring_drops: u64,
    /// PUF readings.
    pub puf_readings: u64,
    /// Failed PUF readings.
    pub puf_failures: u64,
    /// Handshakes that ended without a session, by reason.
    pub failures: HashMap<Failure, u64>,
    /// Ignored messages, by reason.
    pub ignored: HashMap<IgnoredReason, u64>,
    /// ATTEST_REQUESTs received by attested devices.
    pub attest_requests: u64,
    /// ATTEST_REQUESTs without a PROOF.
    pub attest_requests_without_proof: u64,
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
            retransmitted: 0,
            not_sent: 0,
            ring_drops: 0,
            puf_readings: 0,
            puf_failures: 0,
            failures: HashMap::new(),
            ignored: HashMap::new(),
            attest_requests: 0,
            attest_requests_without_proof: 0,
        }
    }
}

impl Report {
    /// Complete authentications per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.authenticated as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Merges two workers' reports on one run.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.authenticated += other.authenticated;
        self.unfinished += other.unfinished;
        add(&mut self.latency_ns, &other.latency_ns);
        add(&mut self.network_ns, &other.network_ns);
        add(&mut self.puf_ns, &other.puf_ns);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.sent += other.sent;
        self.retransmitted += other.retransmitted;
        self.not_sent += other.not_sent;
        self.ring_drops += other.ring_drops;
        self.attest_requests += other.attest_requests;
        self.attest_requests_without_proof += other.attest_requests_without_proof;
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

/// A histogram from 1 ns to 100 s with three significant digits; takes about 240 KiB.
pub(super) fn histogram() -> Histogram<u64> {
    const LONGEST_NS: u64 = 100_000_000_000;
    match Histogram::new_with_bounds(1, LONGEST_NS, 3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("the bounds are constants and valid"),
    }
}

/// Adds `part` to `sum`. Both have the same bounds, so no value is out of range.
pub(super) fn add(sum: &mut Histogram<u64>, part: &Histogram<u64>) {
    let added = sum.add(part);
    debug_assert!(added.is_ok());
}
