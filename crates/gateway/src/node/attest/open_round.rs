//! An open round: the challenged provers, and their proofs.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use linewarden_dataplane::{DataPlaneError, ProverError, ProverSet};
use linewarden_protocol::attest::Round;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_types::{GroupPlan, ProofOutcome, ProverObservation, Revision, RoundOutcome};

use super::members::QueuedProver;
use super::schedule::OpenGroup;
use crate::node::context::Context;
use crate::time::Clock;

/// Times of the repeated challenges to devices without a proof, in percent of the response time. Challenges are
/// repeated because datagrams can be lost.
pub(super) const REPEATS_PERCENT: [u64; 3] = [15, 35, 65];
/// Minimum interval between two reads of the proofs, after all challenges were sent, ns.
const POLL_NS: u64 = 20_000_000;

/// A prover that was challenged.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedProver {
    pub(super) prover: QueuedProver,
    pub(super) address: IpAddr,
    /// Whether the device does not count as missed if the challenge cannot be sent.
    pub(super) is_excused: bool,
    /// Whether the kernel has accepted the challenge.
    pub(super) is_sent: bool,
}

/// The last repeated challenge to a prover.
#[derive(Clone, Copy, Debug)]
pub(super) struct RepeatedRequest {
    pub(super) address: IpAddr,
    /// Time since the start of the round.
    pub(super) at_ms: u32,
    /// The address of the previous repeated challenge.
    pub(super) previous_address: Option<IpAddr>,
}

impl RepeatedRequest {
    /// Returns the address for which a proof with this response time counts: a proof that arrived before the last
    /// challenge belongs to an earlier challenge. `first` is the address of the first challenge. The resolution of
    /// response times is a clock tick (at most 10 ms) plus a fraction of the round.
    fn proof_address(&self, elapsed_ms: u32, first: Option<IpAddr>, response_ms: u64) -> IpAddr {
        let resolution_ms = 10 + response_ms / 2_048;
        let earlier = self.previous_address.or(first);
        match u64::from(elapsed_ms) + resolution_ms < u64::from(self.at_ms) {
            true => earlier.unwrap_or(self.address),
            false => self.address,
        }
    }
}

/// The provers that could not be challenged.
#[derive(Debug, Default)]
pub(super) struct UnreachableProvers {
    pub(super) devices: HashSet<DeviceId>,
    /// The last error of sending.
    pub(super) error: Option<DataPlaneError>,
}

/// An open round.
#[derive(Debug)]
pub(super) struct OpenAttestationRound {
    pub(super) round: Round,
    pub(super) group: GroupPlan,
    pub(super) open_group: OpenGroup,
    pub(super) feed_revision: Revision,
    pub(super) started: Clock,
    /// Response time of the group; later proofs count as late.
    pub(super) response_ms: u64,
    /// End of the round, monotonic clock.
    pub(super) until_ns: u64,
    /// Provers that are still to be challenged in this pass. The first pass contains all provers, later passes the
    /// provers without a proof.
    pub(super) queue: Vec<QueuedProver>,
    /// Challenged provers without a proof so far.
    pub(super) pending: Vec<RequestedProver>,
    /// Repeated challenges.
    pub(super) repeated_requests: HashMap<DeviceId, RepeatedRequest>,
    pub(super) unreachable: UnreachableProvers,
    pub(super) observations: Vec<ProverObservation>,
    /// The longest response time so far.
    pub(super) last_proof_ms: u32,
    /// Number of passes after the first pass.
    pub(super) repeats: usize,
    /// When the round must continue, monotonic clock.
    pub(super) due_ns: u64,
}

impl OpenAttestationRound {
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    pub(super) fn period(&self) -> Period {
        self.round.start.period
    }

    /// Moves provers with a proof to the outcomes.
    pub(super) fn collect_proofs(&mut self, provers: &dyn ProverSet) -> Result<(), ProverError> {
        let (number, response_ms) = (self.round.number, self.response_ms);
        let devices: Vec<DeviceId> = self.pending.iter().map(|target| target.prover.device).collect();
        let mut proofs = provers.round_results_of(&devices, number)?.into_iter();
        let (observations, last_ms) = (&mut self.observations, &mut self.last_proof_ms);
        let repeated_requests = &self.repeated_requests;
        self.pending.retain(|target| {
            let Some(proof) = proofs.next().flatten() else {
                return true;
            };
            // An address to which a challenge was sent is reachable. A prover to which no challenge was sent has the
            // nonce from another prover: its proof must not count for an address to which nothing can be sent.
            let first = Some(target.address).filter(|_| target.is_sent);
            let repeated = repeated_requests.get(&target.prover.device);
            let repeated_address =
                repeated.map(|repeated| repeated.proof_address(proof.elapsed_ms, first, response_ms));
            let Some(address) = repeated_address.or(first) else {
                return true;
            };
            *last_ms = (*last_ms).max(proof.elapsed_ms);
            let outcome = match u64::from(proof.elapsed_ms) > response_ms {
                true => ProofOutcome::Late(proof.configuration),
                false => ProofOutcome::Ok(proof.configuration),
            };
            observations.push(ProverObservation {
                device: target.prover.device,
                enrolled_at: target.prover.enrolled_at,
                outcome,
                address,
            });
            false
        });
        Ok(())
    }

    /// Starts the next pass if it is due, and schedules the next read of the proofs.
    pub(super) fn schedule_poll(&mut self, context: &mut Context) {
        let now_ns = context.now_ns();
        let elapsed_ns = now_ns.saturating_sub(self.started.monotonic_ns);
        let repeat = REPEATS_PERCENT.get(self.repeats);
        let repeat_ns = repeat.map(|percent| self.response_ms * percent * 10_000);
        if repeat_ns.is_some_and(|repeat_ns| elapsed_ns >= repeat_ns) {
            self.repeats += 1;
            self.queue = self.pending.iter().map(|target| target.prover).collect();
        }
        let provers = context.data_plane.provers();
        let spacing_ns = provers.map_or(0, |provers| provers.poll_spacing_ns());
        let poll_ns = POLL_NS.max(spacing_ns * self.pending.len() as u64);
        self.due_ns = match self.queue.is_empty() {
            true => now_ns.saturating_add(poll_ns).min(self.until_ns),
            false => now_ns,
        };
    }

    pub(super) fn outcome(mut self, clock: Clock) -> RoundOutcome {
        let missed = self.pending.iter().map(|target| ProverObservation {
            device: target.prover.device,
            enrolled_at: target.prover.enrolled_at,
            outcome: ProofOutcome::Missed,
            address: target.address,
        });
        self.observations.extend(missed);
        let age_ns = clock.boot_ns.saturating_sub(self.started.boot_ns);
        RoundOutcome {
            number: self.round.number,
            group: self.group.name,
            period: self.round.start.period,
            feed_revision: self.feed_revision,
            duration_ms: age_ns / 1_000_000,
            last_proof_ms: self.last_proof_ms,
            observations: self.observations,
        }
    }
}
