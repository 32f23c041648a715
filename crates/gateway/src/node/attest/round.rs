//! Rounds: challenges, repeated challenges and outcomes.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use linewarden_dataplane::{DataPlaneError, ProverError, ProverSet};
use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::OpenRound;
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::wire::AttestRequest;
use linewarden_types::{GroupPlan, ProofOutcome, ProverObservation, Revision, RoundOutcome};

use super::members::QueuedProver;
use super::schedule::{DueRound, OpenGroup};
use super::{Attestation, UnreachableGroup};
use crate::audit::AuditEvent;
use crate::node::Node;
use crate::time::Clock;

/// Maximum number of open rounds: data planes support one round with an even number and one with an odd number.
pub(super) const ROUNDS_MAX: usize = 2;
/// Maximum number of challenges in a batch; other work runs between batches.
const REQUESTS_PER_BATCH: usize = 1_024;
/// Delay before sending continues when the kernel's queue is full, ns.
const SEND_RETRY_NS: u64 = 1_000_000;
/// Times of the repeated challenges to devices without a proof, in percent of the response time. Challenges are
/// repeated because datagrams can be lost.
const REPEATS_PERCENT: [u64; 3] = [15, 35, 65];
/// Minimum interval between two reads of the proofs, after all challenges were sent, ns.
const POLL_NS: u64 = 20_000_000;
/// Interval of log messages about devices that cannot be challenged, ns.
const UNREACHABLE_LOG_NS: u64 = 3_600_000_000_000;

/// A prover that was challenged.
#[derive(Clone, Copy, Debug)]
struct RequestedProver {
    prover: QueuedProver,
    address: IpAddr,
    /// Whether the device does not count as missed if the challenge cannot be sent.
    is_excused: bool,
    /// Whether the kernel has accepted the challenge.
    is_sent: bool,
}

/// The last repeated challenge to a prover.
#[derive(Clone, Copy, Debug)]
struct RepeatedRequest {
    address: IpAddr,
    /// Time since the start of the round.
    at_ms: u32,
    /// The address of the previous repeated challenge.
    previous_address: Option<IpAddr>,
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

/// An open round.
#[derive(Debug)]
pub(super) struct OpenAttestationRound {
    round: Round,
    group: GroupPlan,
    open_group: OpenGroup,
    feed_revision: Revision,
    started: Clock,
    /// Response time of the group; later proofs count as late.
    response_ms: u64,
    /// End of the round, monotonic clock.
    until_ns: u64,
    /// Provers that are still to be challenged in this pass. The first pass contains all provers, later passes the
    /// provers without a proof.
    queue: Vec<QueuedProver>,
    /// Challenged provers without a proof so far.
    pending: Vec<RequestedProver>,
    /// Repeated challenges.
    repeated_requests: HashMap<DeviceId, RepeatedRequest>,
    /// Devices that could not be challenged.
    unreachable: HashSet<DeviceId>,
    send_error: Option<DataPlaneError>,
    observations: Vec<ProverObservation>,
    /// The longest response time so far.
    last_proof_ms: u32,
    /// Number of passes after the first pass.
    repeats: usize,
    /// When the round must continue, monotonic clock.
    due_ns: u64,
}

impl OpenAttestationRound {
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    pub(super) fn period(&self) -> Period {
        self.round.start.period
    }

    /// Moves provers with a proof to the outcomes.
    fn collect_proofs(&mut self, provers: &dyn ProverSet) -> Result<(), ProverError> {
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

    fn outcome(mut self, clock: Clock) -> RoundOutcome {
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
            ended_ns: clock.boot_ns,
            last_proof_ms: self.last_proof_ms,
            observations: self.observations,
        }
    }
}

impl Attestation {
    /// Returns the number of the next round, if another round may be open. Numbers with the parity of an open round are
    /// skipped.
    fn next_number(&self) -> Option<RoundNumber> {
        let is_free = |number: &u32| {
            let mut open = self.open_rounds.iter();
            open.all(|open| (open.round.number.0 ^ number) & 1 == 1)
        };
        let number = self.numbers.clone().take(ROUNDS_MAX).find(is_free);
        number
            .filter(|_| self.open_rounds.len() < ROUNDS_MAX)
            .map(RoundNumber)
    }

    fn open_groups(&self) -> Vec<OpenGroup> {
        self.open_rounds
            .iter()
            .map(|running| running.open_group)
            .collect()
    }

    /// Returns when a round can be opened, monotonic clock. `None` while keys or round numbers are missing, or
    /// [`ROUNDS_MAX`] rounds are open.
    pub(super) fn next_open_ns(&self) -> Option<u64> {
        let due_ns = self.schedule.due_ns(&self.open_groups())?;
        self.next_number().and(self.provable_period())?;
        Some(self.random_retry.due_ns(due_ns))
    }
}

impl Node {
    /// Opens the round of a group that is due, if the data plane has room.
    pub(super) fn open_round(
        &mut self,
        attestation: &mut Attestation,
        clock: Clock,
        random: &mut dyn FnMut() -> Option<[u8; 8]>,
    ) {
        let now_ns = clock.monotonic_ns;
        if attestation
            .next_open_ns()
            .is_none_or(|opens_ns| opens_ns > now_ns)
        {
            return;
        }
        let (Some(number), Some(start)) = (attestation.next_number(), attestation.provable_period()) else {
            return;
        };
        let (Some(nonce), Some(jitter)) = (random(), random()) else {
            self.status.draws_failed += 1;
            // There is no random number for a jitter, which only a shared resource would need.
            if attestation.random_retry.fail(now_ns, 0) {
                tracing::warn!(
                    action = "check the random number generator of the kernel (getrandom)",
                    "reading random bytes failed; no attestation round starts until reading succeeds"
                );
            }
            return;
        };
        attestation.random_retry.succeed();
        let (jitter, open_groups) = (u64::from_ne_bytes(jitter), attestation.open_groups());
        let Some(due) = attestation.schedule.take_due(now_ns, jitter, &open_groups) else {
            return;
        };
        let queue = attestation.members.of_group(due.id, start.period);
        if queue.is_empty() {
            return;
        }
        attestation.numbers.start = number.0.saturating_add(1);
        let round = Round {
            gateway: self.settings.gateway,
            number,
            nonce,
            start,
        };
        match self.begin_round(round, due, queue, clock) {
            Some(running) => attestation.open_rounds.push(running),
            None => {
                tracing::error!(round = %number, "starting an attestation round failed; the next round of the group follows after its interval")
            }
        }
    }

    fn begin_round(
        &mut self,
        round: Round,
        due: DueRound,
        queue: Vec<QueuedProver>,
        clock: Clock,
    ) -> Option<OpenAttestationRound> {
        let response_ms = due.response_ms;
        let now_ms = clock.monotonic_ns / 1_000_000;
        // Twice the response time, so that late proofs are recognized.
        let until_ms = now_ms.saturating_add(2 * response_ms);
        let open = OpenRound {
            round,
            started: Monotonic(now_ms),
            deadline: Monotonic(until_ms),
        };
        let result = self.data_plane.provers()?.open_round(&open);
        if let Err(error) = result {
            tracing::error!(%error, round = %round.number, "data plane rejects an attestation round");
            return None;
        }
        Some(OpenAttestationRound {
            round,
            group: due.group,
            open_group: OpenGroup {
                id: due.id,
                is_long: due.is_long,
            },
            feed_revision: self.feed_revision,
            started: clock,
            response_ms,
            until_ns: until_ms.saturating_mul(1_000_000),
            pending: Vec::with_capacity(queue.len()),
            repeated_requests: HashMap::new(),
            unreachable: HashSet::new(),
            send_error: None,
            queue,
            observations: Vec::new(),
            last_proof_ms: 0,
            repeats: 0,
            due_ns: clock.monotonic_ns,
        })
    }

    /// Continues each round that is due.
    pub(super) fn continue_rounds(&mut self, attestation: &mut Attestation, clock: Clock) {
        for running in std::mem::take(&mut attestation.open_rounds) {
            let open = match running.due_ns <= clock.monotonic_ns {
                true => self.continue_round(attestation, running, clock),
                false => Some(running),
            };
            attestation.open_rounds.extend(open);
        }
    }

    /// Sends challenges and reads proofs. Returns the round; `None` if the round has ended, because all provers have
    /// sent a proof, the time has expired, or the proofs cannot be read.
    fn continue_round(
        &mut self,
        attestation: &mut Attestation,
        mut running: OpenAttestationRound,
        clock: Clock,
    ) -> Option<OpenAttestationRound> {
        let now_ns = clock.monotonic_ns;
        if !running.queue.is_empty() {
            self.send_requests(attestation, &mut running, clock);
        }
        if running.queue.is_empty() || now_ns >= running.until_ns {
            let result = self
                .data_plane
                .provers()
                .map(|provers| running.collect_proofs(provers));
            if let Some(Err(error)) = result {
                // A prover must not count as missed because reading the proofs failed.
                tracing::error!(%error, round = %running.round.number, "reading proofs failed; the round is canceled and does not count towards quarantine");
                return None;
            }
            let is_done = running.queue.is_empty() && running.pending.is_empty();
            if is_done || now_ns >= running.until_ns {
                self.log_unreachable(attestation, &mut running, clock);
                let outcome = running.outcome(clock);
                attestation.members.record_proofs(&outcome.observations);
                self.queue_outcome(attestation, outcome);
                return None;
            }
            self.schedule_poll(&mut running, clock);
        }
        Some(running)
    }

    /// Starts the next pass if it is due, and schedules the next read of the proofs.
    fn schedule_poll(&mut self, running: &mut OpenAttestationRound, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        let elapsed_ns = now_ns.saturating_sub(running.started.monotonic_ns);
        let repeat = REPEATS_PERCENT.get(running.repeats);
        let repeat_ns = repeat.map(|percent| running.response_ms * percent * 10_000);
        if repeat_ns.is_some_and(|repeat_ns| elapsed_ns >= repeat_ns) {
            running.repeats += 1;
            running.queue = running.pending.iter().map(|target| target.prover).collect();
        }
        let provers = self.data_plane.provers();
        let spacing_ns = provers.map_or(0, |provers| provers.poll_spacing_ns());
        let poll_ns = POLL_NS.max(spacing_ns * running.pending.len() as u64);
        running.due_ns = match running.queue.is_empty() {
            true => now_ns.saturating_add(poll_ns).min(running.until_ns),
            false => now_ns,
        };
    }

    /// Challenges the next provers of the queue. Challenges that the kernel does not accept are sent later.
    fn send_requests(
        &mut self,
        attestation: &mut Attestation,
        running: &mut OpenAttestationRound,
        clock: Clock,
    ) {
        let now_s = u32::try_from(clock.boot_ns / 1_000_000_000).unwrap_or(u32::MAX);
        let from = running.queue.len().saturating_sub(REQUESTS_PER_BATCH);
        let batch = running.queue.split_off(from);
        let mut requests: Vec<(SocketAddr, AttestRequest)> = Vec::with_capacity(batch.len());
        let mut requested = Vec::with_capacity(batch.len());
        let is_last = running.repeats == REPEATS_PERCENT.len();
        let devices: Vec<DeviceId> = batch.iter().map(|queued| queued.device).collect();
        let sessions = self.data_plane.session_requests(&devices, &running.round, now_s);
        for (queued, session) in batch.into_iter().zip(sessions) {
            let request = attestation
                .members
                .request(session, queued, &running.round, is_last);
            if let Some(prover_request) = request {
                requests.push((prover_request.to, prover_request.request));
                requested.push(RequestedProver {
                    prover: queued,
                    address: prover_request.to.ip(),
                    is_excused: prover_request.is_excused,
                    is_sent: false,
                });
            }
        }
        let handled = self.send(&requests, &mut requested, running);
        let is_first_pass = running.repeats == 0;
        let unsent = requested.split_off(handled.min(requested.len()));
        if is_first_pass {
            running.pending.append(&mut requested);
        } else {
            let at_ms = clock.monotonic_ns.saturating_sub(running.started.monotonic_ns) / 1_000_000;
            for target in requested.iter().filter(|target| target.is_sent) {
                let previous = running.repeated_requests.get(&target.prover.device);
                let repeated = RepeatedRequest {
                    address: target.address,
                    at_ms: u32::try_from(at_ms).unwrap_or(u32::MAX),
                    previous_address: previous.map(|previous| previous.address),
                };
                running.repeated_requests.insert(target.prover.device, repeated);
            }
        }
        let now_ns = clock.monotonic_ns;
        running.due_ns = now_ns;
        if !unsent.is_empty() {
            running.queue.extend(unsent.iter().map(|target| target.prover));
            running.due_ns = now_ns.saturating_add(SEND_RETRY_NS);
        }
    }

    /// Sends challenges until the kernel accepts no more. In the first pass, excused devices to which nothing can be
    /// sent are removed from `requested`, so they do not count as missed. Later passes contain only devices that were
    /// challenged before. Returns how many devices at the start of `requested` need no further attempt.
    fn send(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
        requested: &mut Vec<RequestedProver>,
        running: &mut OpenAttestationRound,
    ) -> usize {
        let mut handled = 0;
        let mut failed = HashSet::new();
        while let Some(rest) = requests.get(handled..).filter(|rest| !rest.is_empty()) {
            match self.data_plane.send_attest_requests(rest) {
                Ok(0) => break,
                Ok(sent) => {
                    let accepted = requested.iter_mut().skip(handled).take(sent);
                    accepted.for_each(|target| target.is_sent = true);
                    handled += sent;
                    self.status.attest.requests += sent as u64;
                }
                Err(error) => {
                    tracing::debug!(%error, "sending a challenge failed");
                    // The device has had no session at this gateway, so the gate passes no frames of it, and the
                    // device gains nothing from an excuse.
                    let has_unknown_location = matches!(error, DataPlaneError::DeviceLocationUnknown { .. });
                    running.send_error = Some(error);
                    if let Some(target) = requested.get_mut(handled) {
                        target.is_excused |= has_unknown_location;
                        failed.insert(target.prover.device);
                    }
                    handled += 1;
                }
            }
        }
        if running.repeats > 0 {
            return handled;
        }
        let count_before = requested.len();
        requested.retain(|target| {
            let is_unreachable = target.is_excused && failed.contains(&target.prover.device);
            if is_unreachable {
                running.unreachable.insert(target.prover.device);
            }
            !is_unreachable
        });
        handled - (count_before - requested.len())
    }

    /// Logs devices that could not be challenged: the first time, then hourly. Also logs when all devices of the group
    /// can be challenged again.
    fn log_unreachable(
        &mut self,
        attestation: &mut Attestation,
        running: &mut OpenAttestationRound,
        clock: Clock,
    ) {
        let group = &running.group.name;
        if running.repeats == 0 {
            // The kernel has accepted no challenge to these devices in the whole round.
            let queue = running.queue.drain(..);
            running.unreachable.extend(queue.map(|queued| queued.device));
        }
        let devices = running.unreachable.len() as u64;
        let logged_ns = attestation.unreachable.get(group).map(|entry| entry.logged_ns);
        let now_ns = clock.monotonic_ns;
        let is_due = logged_ns.is_none_or(|logged_ns| now_ns.saturating_sub(logged_ns) >= UNREACHABLE_LOG_NS);
        if devices == 0 {
            if attestation.unreachable.remove(group).is_some() {
                tracing::info!(%group, "all devices of the group can be challenged again");
            }
        } else {
            let logged_ns = logged_ns.filter(|_| !is_due).unwrap_or(now_ns);
            attestation
                .unreachable
                .insert(group.clone(), UnreachableGroup { logged_ns, devices });
        }
        if devices > 0 && is_due {
            let error = running.send_error.take().map(|error| error.to_string());
            let error = error.unwrap_or_else(|| "send buffer is full".to_owned());
            tracing::warn!(
                %group, count = devices, error,
                action = "check interfaces and routes (`ip link`, `ip route`)",
                "no challenge can be sent to some devices of the group; the round does not count towards their quarantine"
            );
            self.audit.record(AuditEvent::DevicesUnreachable {
                round: running.round.number.0,
                group: group.to_string(),
                devices,
                error,
            });
        }
        self.status.attest.unreachable = attestation.unreachable.values().map(|group| group.devices).sum();
    }
}
