//! Rounds: challenges, repeated challenges and outcomes.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use linewarden_dataplane::DataPlaneError;
use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::OpenRound;
use linewarden_protocol::ids::{DeviceId, RoundNumber};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::wire::AttestRequest;
use linewarden_types::Revision;

use super::members::QueuedProver;
use super::open_round::{
    OpenAttestationRound, REPEATS_PERCENT, RepeatedRequest, RequestedProver, UnreachableProvers,
};
use super::schedule::{DueRound, OpenGroup};
use super::{Attestation, UnreachableGroup};
use crate::audit::AuditEvent;
use crate::node::context::{Context, RandomSource};

/// Maximum number of open rounds: data planes support one round with an even number and one with an odd number.
pub(super) const ROUNDS_MAX: usize = 2;
/// Maximum number of challenges in a batch; other work runs between batches.
const REQUESTS_PER_BATCH: usize = 1_024;
/// Delay before sending continues when the kernel's queue is full, ns.
const SEND_RETRY_NS: u64 = 1_000_000;
/// Interval of log messages about devices that cannot be challenged, ns.
const UNREACHABLE_LOG_NS: u64 = 3_600_000_000_000;

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

    /// Opens the round of a group that is due, if the data plane has room.
    pub(super) fn open_round(
        &mut self,
        feed_revision: Revision,
        context: &mut Context,
        random: RandomSource<'_>,
    ) {
        let now_ns = context.now_ns();
        if self.next_open_ns().is_none_or(|opens_ns| opens_ns > now_ns) {
            return;
        }
        let (Some(number), Some(start)) = (self.next_number(), self.provable_period()) else {
            return;
        };
        let (Some(nonce), Some(jitter)) = (random(), random()) else {
            self.draws_failed += 1;
            // The retry needs no jitter: gateways do not share the random source.
            if self.random_retry.fail(now_ns, 0) {
                tracing::warn!(
                    action = "check the random number generator of the kernel (getrandom)",
                    "reading random bytes failed; no attestation round starts until reading succeeds"
                );
            }
            return;
        };
        self.random_retry.succeed();
        let (jitter, open_groups) = (u64::from_ne_bytes(jitter), self.open_groups());
        let Some(due) = self.schedule.take_due(now_ns, jitter, &open_groups) else {
            return;
        };
        let queue = self.members.of_group(due.id, start.period);
        if queue.is_empty() {
            return;
        }
        self.numbers.start = number.0.saturating_add(1);
        let round = Round {
            gateway: context.settings.gateway,
            number,
            nonce,
            start,
        };
        match begin_round(round, due, queue, feed_revision, context) {
            Some(running) => self.open_rounds.push(running),
            None => {
                tracing::error!(round = %number, "starting an attestation round failed; the next round of the group follows after its interval")
            }
        }
    }

    /// Continues each round that is due.
    pub(super) fn continue_rounds(&mut self, context: &mut Context) {
        for running in std::mem::take(&mut self.open_rounds) {
            let open = match running.due_ns <= context.now_ns() {
                true => self.continue_round(running, context),
                false => Some(running),
            };
            self.open_rounds.extend(open);
        }
    }

    /// Sends challenges and reads proofs. Returns the round; `None` if the round has ended, because all provers have
    /// sent a proof, the time has expired, or the proofs cannot be read.
    fn continue_round(
        &mut self,
        mut running: OpenAttestationRound,
        context: &mut Context,
    ) -> Option<OpenAttestationRound> {
        let now_ns = context.now_ns();
        if !running.queue.is_empty() {
            self.send_requests(&mut running, context);
        }
        if running.queue.is_empty() || now_ns >= running.until_ns {
            let result = context
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
                self.log_unreachable(&mut running, context);
                let outcome = running.outcome(context.clock);
                self.members.record_proofs(&outcome.observations);
                self.queue_outcome(outcome, context);
                return None;
            }
            running.schedule_poll(context);
        }
        Some(running)
    }

    /// Challenges the next provers of the queue. Challenges that the kernel does not accept are sent later.
    fn send_requests(&mut self, running: &mut OpenAttestationRound, context: &mut Context) {
        let (clock, now_s) = (context.clock, u32::try_from(context.boot_s()).unwrap_or(u32::MAX));
        let from = running.queue.len().saturating_sub(REQUESTS_PER_BATCH);
        let batch = running.queue.split_off(from);
        let mut requests: Vec<(SocketAddr, AttestRequest)> = Vec::with_capacity(batch.len());
        let mut requested = Vec::with_capacity(batch.len());
        let is_last = running.repeats == REPEATS_PERCENT.len();
        let devices: Vec<DeviceId> = batch.iter().map(|queued| queued.device).collect();
        let sessions = context
            .data_plane
            .session_requests(&devices, &running.round, now_s);
        for (queued, session) in batch.into_iter().zip(sessions) {
            let request = self.members.request(session, queued, &running.round, is_last);
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
        let handled = self.send(&requests, &mut requested, running, context);
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
        context: &mut Context,
    ) -> usize {
        let mut handled = 0;
        let mut failed = HashSet::new();
        while let Some(rest) = requests.get(handled..).filter(|rest| !rest.is_empty()) {
            match context.data_plane.send_attest_requests(rest) {
                Ok(0) => break,
                Ok(sent) => {
                    let accepted = requested.iter_mut().skip(handled).take(sent);
                    accepted.for_each(|target| target.is_sent = true);
                    handled += sent;
                    self.status.requests += sent as u64;
                }
                Err(error) => {
                    tracing::debug!(%error, "sending a challenge failed");
                    // The device has had no session at this gateway, so the gate passes no frames of it, and the
                    // device gains nothing from an excuse.
                    let has_unknown_location = matches!(error, DataPlaneError::DeviceLocationUnknown { .. });
                    running.unreachable.error = Some(error);
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
                running.unreachable.devices.insert(target.prover.device);
            }
            !is_unreachable
        });
        handled - (count_before - requested.len())
    }

    /// Logs devices that could not be challenged: the first time, then hourly. Also logs when all devices of the group
    /// can be challenged again.
    fn log_unreachable(&mut self, running: &mut OpenAttestationRound, context: &mut Context) {
        let group = &running.group.name;
        if running.repeats == 0 {
            // The kernel has accepted no challenge to these devices in the whole round.
            let queue = running.queue.drain(..);
            running
                .unreachable
                .devices
                .extend(queue.map(|queued| queued.device));
        }
        let devices = running.unreachable.devices.len() as u64;
        let logged_ns = self.unreachable.get(group).map(|entry| entry.logged_ns);
        let now_ns = context.now_ns();
        let is_due = logged_ns.is_none_or(|logged_ns| now_ns.saturating_sub(logged_ns) >= UNREACHABLE_LOG_NS);
        if devices == 0 {
            if self.unreachable.remove(group).is_some() {
                tracing::info!(%group, "all devices of the group can be challenged again");
            }
        } else {
            let logged_ns = logged_ns.filter(|_| !is_due).unwrap_or(now_ns);
            self.unreachable
                .insert(group.clone(), UnreachableGroup { logged_ns, devices });
        }
        if devices > 0 && is_due {
            let error = running.unreachable.error.take().map(|error| error.to_string());
            let error = error.unwrap_or_else(|| "send buffer is full".to_owned());
            tracing::warn!(
                %group, count = devices, error,
                action = "check interfaces and routes (`ip link`, `ip route`)",
                "no challenge can be sent to some devices of the group; the round does not count towards their quarantine"
            );
            context.audit.record(AuditEvent::DevicesUnreachable {
                round: running.round.number.0,
                group: group.to_string(),
                devices,
                error,
            });
        }
        self.status.unreachable = self.unreachable.values().map(|group| group.devices).sum();
    }
}

/// Opens a round in the data plane.
fn begin_round(
    round: Round,
    due: DueRound,
    queue: Vec<QueuedProver>,
    feed_revision: Revision,
    context: &mut Context,
) -> Option<OpenAttestationRound> {
    let (clock, response_ms) = (context.clock, due.response_ms);
    let now_ms = clock.monotonic_ns / 1_000_000;
    // Twice the response time, so that late proofs are recognized.
    let until_ms = now_ms.saturating_add(2 * response_ms);
    let open = OpenRound {
        round,
        started: Monotonic(now_ms),
        deadline: Monotonic(until_ms),
    };
    let result = context.data_plane.provers()?.open_round(&open);
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
        feed_revision,
        started: clock,
        response_ms,
        until_ns: until_ms.saturating_mul(1_000_000),
        pending: Vec::with_capacity(queue.len()),
        repeated_requests: HashMap::new(),
        unreachable: UnreachableProvers::default(),
        queue,
        observations: Vec::new(),
        last_proof_ms: 0,
        repeats: 0,
        due_ns: clock.monotonic_ns,
    })
}
