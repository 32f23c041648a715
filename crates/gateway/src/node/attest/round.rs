//! Rounds: challenges, repeated challenges and outcomes.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use linewarden_controller::attest::{GroupPlan, ProofOutcome, ProverObservation, RoundOutcome};
use linewarden_dataplane::{DataPlaneError, ProverError, ProverSet};
use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::OpenRound;
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::wire::AttestRequest;
use linewarden_registry::Revision;

use super::members::QueuedProver;
use super::schedule::{DueRound, OpenGroup};
use super::{Attestation, UnreachableGroup};
use crate::audit::AuditEvent;
use crate::node::Node;
use crate::time::Clock;

/// Maximum number of open rounds: data planes support one with an even number and one with an odd one.
pub(super) const ROUNDS_MAX: usize = 2;
/// Maximum number of challenges between two checks of other work.
const REQUESTS_PER_BATCH: usize = 1_024;
/// Delay before sending continues when the kernel's queue is full, ns.
const SEND_RETRY_NS: u64 = 1_000_000;
/// Repeated challenges to devices without a proof, in percent of the response time, because datagrams can be lost.
const REPEATS_PERCENT: [u64; 3] = [15, 35, 65];
/// Interval of reading proofs after all challenges were sent, ns.
const POLL_NS: u64 = 20_000_000;
/// Interval of log messages about devices that cannot be challenged, ns.
const UNREACHABLE_LOG_NS: u64 = 3_600_000_000_000;

/// A prover that was challenged.
#[derive(Clone, Copy, Debug)]
struct RequestedProver {
    prover: QueuedProver,
    address: IpAddr,
    /// Whether the device is excused if the challenge cannot be sent.
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
    /// The address of the repeated challenge before that.
    previous_address: Option<IpAddr>,
}

impl RepeatedRequest {
    /// Returns the address of a proof with this response time: a proof that arrived before the last challenge belongs
    /// to an earlier one. `first` is the address of the first challenge. Response times have the resolution of a
    /// clock tick and a part of the round.
    fn proof_address(&self, elapsed_ms: u32, first: Option<IpAddr>, timeout_ms: u64) -> IpAddr {
        let coarse_ms = 10 + timeout_ms / 2_048;
        let earlier = self.previous_address.or(first);
        match u64::from(elapsed_ms) + coarse_ms < u64::from(self.at_ms) {
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
    busy: OpenGroup,
    feed_revision: Revision,
    started: Clock,
    answer_ms: u64,
    until_ns: u64,
    /// Provers that are still to be challenged in this pass.
    queue: Vec<QueuedProver>,
    /// Challenged provers without a proof so far.
    pending: Vec<RequestedProver>,
    /// Repeated challenges.
    repeated_to: HashMap<DeviceId, RepeatedRequest>,
    /// Devices that could not be challenged, and the last error.
    unreachable: HashSet<DeviceId>,
    send_error: Option<DataPlaneError>,
    verdicts: Vec<ProverObservation>,
    last_verdict_ms: u32,
    repeats: usize,
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
        let (number, timeout_ms) = (self.round.number, self.answer_ms);
        let missed: Vec<DeviceId> = self.pending.iter().map(|target| target.prover.device).collect();
        let mut proved = provers.verdicts_of(&missed, number)?.into_iter();
        let (verdicts, last) = (&mut self.verdicts, &mut self.last_verdict_ms);
        let repeated_to = &self.repeated_to;
        self.pending.retain(|target| {
            let Some(proved) = proved.next().flatten() else {
                return true;
            };
            // An address to which a challenge was sent is reachable. A prover without a challenge got the nonce from
            // others: its proof must not count for an address to which nothing can be sent.
            let first = Some(target.address).filter(|_| target.is_sent);
            let repeated = repeated_to.get(&target.prover.device);
            let again = repeated.map(|repeated| repeated.proof_address(proved.elapsed_ms, first, timeout_ms));
            let Some(address) = again.or(first) else {
                return true;
            };
            *last = (*last).max(proved.elapsed_ms);
            let seen = match u64::from(proved.elapsed_ms) > timeout_ms {
                true => ProofOutcome::Late(proved.configuration),
                false => ProofOutcome::Ok(proved.configuration),
            };
            verdicts.push(ProverObservation {
                device: target.prover.device,
                enrolled_at: target.prover.enrolled_at,
                outcome: seen,
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
        self.verdicts.extend(missed);
        let age_ns = clock.boot_ns.saturating_sub(self.started.boot_ns);
        RoundOutcome {
            number: self.round.number,
            group: self.group.name,
            period: self.round.start.period,
            feed_revision: self.feed_revision,
            duration_ms: age_ns / 1_000_000,
            ended_ns: clock.boot_ns,
            last_verdict_ms: self.last_verdict_ms,
            observations: self.verdicts,
        }
    }
}

impl Attestation {
    /// Returns the number of the next round. Numbers with the parity of an open round are skipped.
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

    fn busy(&self) -> Vec<OpenGroup> {
        self.open_rounds.iter().map(|running| running.busy).collect()
    }

    /// Returns when a round can be opened, monotonic clock. `None` without keys or numbers, until a response brings
    /// them.
    pub(super) fn next_open_ns(&self) -> Option<u64> {
        let due_ns = self.schedule.due_ns(&self.busy())?;
        self.next_number().and(self.provable_period())?;
        Some(self.random_backoff.due_ns(due_ns))
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
            if attestation.random_backoff.fail(now_ns) {
                tracing::warn!(
                    action = "check the random number generator of the kernel (getrandom)",
                    "reading random bytes failed; no attestation round starts until reading succeeds"
                );
            }
            return;
        };
        attestation.random_backoff.succeed();
        let (jitter, busy) = (u64::from_ne_bytes(jitter), attestation.busy());
        let Some(due) = attestation.schedule.take_due(now_ns, jitter, &busy) else {
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
        let timeout_ms = due.response_ms;
        let now_ms = clock.monotonic_ns / 1_000_000;
        // Twice the response time, so that late proofs are recognized.
        let until_ms = now_ms.saturating_add(2 * timeout_ms);
        let open = OpenRound {
            round,
            started: Monotonic(now_ms),
            deadline: Monotonic(until_ms),
        };
        let opened = self.data_plane.provers()?.open_round(&open);
        if let Err(error) = opened {
            tracing::error!(%error, round = %round.number, "data plane rejects an attestation round");
            return None;
        }
        Some(OpenAttestationRound {
            round,
            group: due.group,
            busy: OpenGroup {
                id: due.id,
                is_long: due.is_long,
            },
            feed_revision: self.feed_revision,
            started: clock,
            answer_ms: timeout_ms,
            until_ns: until_ms.saturating_mul(1_000_000),
            pending: Vec::with_capacity(queue.len()),
            repeated_to: HashMap::new(),
            unreachable: HashSet::new(),
            send_error: None,
            queue,
            verdicts: Vec::new(),
            last_verdict_ms: 0,
            repeats: 0,
            due_ns: clock.monotonic_ns,
        })
    }

    /// Continues each round that is due.
    pub(super) fn follow_rounds(&mut self, attestation: &mut Attestation, clock: Clock) {
        for running in std::mem::take(&mut attestation.open_rounds) {
            let open = match running.due_ns <= clock.monotonic_ns {
                true => self.follow_round(attestation, running, clock),
                false => Some(running),
            };
            attestation.open_rounds.extend(open);
        }
    }

    /// Sends challenges, reads proofs, and ends the round when all provers have sent a proof or the time has expired.
    fn follow_round(
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
                tracing::error!(%error, round = %running.round.number, "reading proofs failed; the round is canceled and counts for no quarantine");
                return None;
            }
            let is_done = running.queue.is_empty() && running.pending.is_empty();
            if is_done || now_ns >= running.until_ns {
                self.log_unreachable(attestation, &mut running, clock);
                let outcome = running.outcome(clock);
                attestation.members.record_proofs(&outcome.observations);
                self.keep_outcome(attestation, outcome);
                return None;
            }
            self.schedule_poll(&mut running, clock);
        }
        Some(running)
    }

    fn schedule_poll(&mut self, running: &mut OpenAttestationRound, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        let since_ns = now_ns.saturating_sub(running.started.monotonic_ns);
        let repeat = REPEATS_PERCENT.get(running.repeats);
        let repeat_ns = repeat.map(|percent| running.answer_ms * percent * 10_000);
        if repeat_ns.is_some_and(|repeat_ns| since_ns >= repeat_ns) {
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
        let queued = running.queue.split_off(from);
        let mut requests: Vec<(SocketAddr, AttestRequest)> = Vec::with_capacity(queued.len());
        let mut requested = Vec::with_capacity(queued.len());
        let is_last = running.repeats == REPEATS_PERCENT.len();
        let devices: Vec<DeviceId> = queued.iter().map(|queued| queued.device).collect();
        let sessions = self.data_plane.session_requests(&devices, &running.round, now_s);
        for (queued, session) in queued.into_iter().zip(sessions) {
            let request = attestation
                .members
                .request(session, queued, &running.round, is_last);
            if let Some(request_route) = request {
                requests.push((request_route.to, request_route.request));
                requested.push(RequestedProver {
                    prover: queued,
                    address: request_route.to.ip(),
                    is_excused: request_route.is_excused,
                    is_sent: false,
                });
            }
        }
        let done = self.send(&requests, &mut requested, running);
        let is_first_pass = running.repeats == 0;
        let unsent = requested.split_off(done.min(requested.len()));
        if is_first_pass {
            running.pending.append(&mut requested);
        } else {
            let at_ms = clock.monotonic_ns.saturating_sub(running.started.monotonic_ns) / 1_000_000;
            for target in requested.iter().filter(|target| target.is_sent) {
                let before = running.repeated_to.get(&target.prover.device);
                let repeated = RepeatedRequest {
                    address: target.address,
                    at_ms: u32::try_from(at_ms).unwrap_or(u32::MAX),
                    previous_address: before.map(|before| before.address),
                };
                running.repeated_to.insert(target.prover.device, repeated);
            }
        }
        let now_ns = clock.monotonic_ns;
        running.due_ns = now_ns;
        if !unsent.is_empty() {
            running.queue.extend(unsent.iter().map(|target| target.prover));
            running.due_ns = now_ns.saturating_add(SEND_RETRY_NS);
        }
    }

    /// Sends until the kernel accepts no more; returns how many of `requested` are done. In the first pass, excused
    /// devices to which nothing can be sent are removed, so they do not count as missed. Later passes contain only
    /// devices that were challenged before.
    fn send(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
        requested: &mut Vec<RequestedProver>,
        running: &mut OpenAttestationRound,
    ) -> usize {
        let mut done = 0;
        let mut refused = HashSet::new();
        while let Some(rest) = requests.get(done..).filter(|rest| !rest.is_empty()) {
            match self.data_plane.send_attest_requests(rest) {
                Ok(0) => break,
                Ok(sent) => {
                    let taken = requested.iter_mut().skip(done).take(sent);
                    taken.for_each(|target| target.is_sent = true);
                    done += sent;
                    self.status.attest.requests += sent as u64;
                }
                Err(error) => {
                    tracing::debug!(%error, "sending a challenge failed");
                    // The device has had no session here, so no gate passes its frames: it gains nothing by being
                    // excused.
                    let is_unplaced = matches!(error, DataPlaneError::DeviceLocationUnknown { .. });
                    running.send_error = Some(error);
                    if let Some(target) = requested.get_mut(done) {
                        target.is_excused |= is_unplaced;
                        refused.insert(target.prover.device);
                    }
                    done += 1;
                }
            }
        }
        if running.repeats > 0 {
            return done;
        }
        let before = requested.len();
        requested.retain(|target| {
            let is_unreached = target.is_excused && refused.contains(&target.prover.device);
            if is_unreached {
                running.unreachable.insert(target.prover.device);
            }
            !is_unreached
        });
        done - (before - requested.len())
    }

    /// Logs devices that could not be challenged: at the start, hourly while it lasts, and at the end.
    fn log_unreachable(
        &mut self,
        attestation: &mut Attestation,
        running: &mut OpenAttestationRound,
        clock: Clock,
    ) {
        let group = &running.group.name;
        if running.repeats == 0 {
            // The kernel had no room for these in the whole round.
            let queue = running.queue.drain(..);
            running.unreachable.extend(queue.map(|queued| queued.device));
        }
        let devices = running.unreachable.len() as u64;
        let logged_ns = attestation
            .unreachable
            .get(group)
            .map(|unreached| unreached.logged_ns);
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
                "no challenge can be sent to some devices of the group; the round counts for no quarantine of these devices"
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
