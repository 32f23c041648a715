//! Attestation of the gateway's provers (LAP/1 3.2): keys before their period starts, scheduled rounds, and outcomes.
//!
//! ```text
//!  Plan ──► keys of the running and of the next period ──► data plane
//!    │                                                        ▲ │
//!    └──► groups: which is due? ─► round opens, challenges ───┘ │ proofs
//!                                        │ timeout              ▼
//!                                        └──────────────► RoundOutcome ──► decision of the controller
//! ```
//!
//! At most two rounds are open, of different groups, because data planes support two. The gateway does not decide about
//! devices: it submits the outcomes to the controller, and reads quarantines from the change feed.

mod members;
mod round;
mod schedule;
mod unattested;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_types::{
    GroupName, GroupOutage, LinkError, Plan, PlanRequest, Provers, QuarantinedDevice, RoundAppraisal,
    RoundOutcome,
};

use self::members::Members;
use self::round::OpenAttestationRound;
use self::schedule::Schedule;
pub(super) use self::unattested::UnattestedProvers;
use super::Node;
use super::channel::Channel;
use super::retry::RetryTimer;
use crate::audit::AuditEvent;
use crate::requests::ControllerRequest;
use crate::time::Clock;

/// Interval of plan requests, ns: the maximum delay of a round that is requested by command.
const PLAN_NS: u64 = 500_000_000;
/// Maximum number of outcomes that wait for the controller.
const OUTCOMES_MAX: usize = 16;
/// More round numbers are requested when fewer than this are left.
const NUMBERS_LOW: usize = 64;

/// A group with devices that could not be challenged in its last round.
#[derive(Debug)]
struct UnreachableGroup {
    devices: u64,
    /// Time of the last log message, monotonic clock.
    logged_ns: u64,
}

/// State of attestation; empty if the data plane does not attest.
#[derive(Default)]
pub(super) struct Attestation {
    plan: Option<Plan>,
    /// When the current plan was received, monotonic clock.
    plan_at_ns: u64,
    /// When the running period was first seen, monotonic clock.
    running_seen_ns: u64,
    plan_due_ns: u64,
    plan_channel: Channel,
    members: Members,
    keys_channel: Channel,
    schedule: Schedule,
    /// Unused round numbers that the controller has assigned to this process.
    numbers: Range<u32>,
    /// At most [`ROUNDS_MAX`](round::ROUNDS_MAX); one round number is even and one is odd.
    open_rounds: Vec<OpenAttestationRound>,
    /// Retries after a failed draw of random bytes.
    random_retry: RetryTimer,
    /// Outcomes that the controller has not appraised yet, oldest first.
    outcomes: VecDeque<RoundOutcome>,
    unreachable: HashMap<GroupName, UnreachableGroup>,
    appraise_channel: Channel,
}

impl Attestation {
    /// Returns how long the period has been running, in seconds: by the controller's clock, or by this gateway's clock
    /// if the controller's clock was set back.
    fn period_age_s(&self, clock: Clock) -> u64 {
        let seconds = |since_ns: u64| clock.monotonic_ns.saturating_sub(since_ns) / 1_000_000_000;
        self.plan.as_ref().map_or(0, |plan| {
            let plan_s = plan.age_s.saturating_add(seconds(self.plan_at_ns));
            plan_s.max(seconds(self.running_seen_ns))
        })
    }

    /// Returns the period of the next round: the running period, if its keys are loaded.
    fn provable_period(&self) -> Option<PeriodStart> {
        let plan = self.plan.as_ref()?;
        self.members.has_keys(&plan.running, plan).then_some(plan.running)
    }

    /// Invalidates requests in flight after a restore of the registry.
    pub(super) fn invalidate(&mut self) {
        for channel in [
            &mut self.plan_channel,
            &mut self.keys_channel,
            &mut self.appraise_channel,
        ] {
            channel.invalidate();
        }
    }

    /// Whether outcomes wait for a decision of the controller.
    pub(super) fn awaits_decisions(&self) -> bool {
        !self.outcomes.is_empty()
    }

    fn plan_request(&self, clock: Clock, period_s: u32) -> PlanRequest {
        let has_expired = self.period_age_s(clock) >= u64::from(period_s);
        let next_period = self
            .plan
            .as_ref()
            .filter(|plan| has_expired && self.members.has_keys(&plan.next, plan))
            .map(|plan| plan.next.period);
        PlanRequest {
            start_period: next_period,
            period_s,
            needs_round_numbers: self.numbers.len() < NUMBERS_LOW,
        }
    }
}

impl Node {
    /// Continues, ends and opens rounds.
    pub(super) fn attest(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) {
        if self.stopping || self.status.replaced {
            return;
        }
        let mut attestation = std::mem::take(&mut self.attestation);
        self.continue_rounds(&mut attestation, clock);
        self.open_round(&mut attestation, clock, random);
        self.attestation = attestation;
    }

    /// Returns when [`Node::attest`] is due, monotonic clock.
    pub(super) fn attest_due_ns(&self) -> Option<u64> {
        let attestation = &self.attestation;
        if !self.can_attest || self.stopping || self.status.replaced {
            return None;
        }
        let poll_ns = attestation
            .open_rounds
            .iter()
            .map(OpenAttestationRound::due_ns)
            .min();
        let open_ns = attestation.next_open_ns();
        let channel = &attestation.plan_channel;
        let may_request = self.has_read_feed() && !channel.in_flight;
        let plan_ns = may_request.then(|| channel.retry.due_ns(attestation.plan_due_ns));
        [poll_ns, open_ns, plan_ns].into_iter().flatten().min()
    }

    /// Returns requests to the controller about attestation.
    pub(super) fn attestation_requests(&mut self, clock: Clock) -> Vec<ControllerRequest> {
        let period_s = self.settings.attest_period_s;
        let attestation = &mut self.attestation;
        let mut requests = Vec::new();
        if !self.can_attest {
            return requests;
        }
        if attestation.plan_due_ns <= clock.monotonic_ns && attestation.plan_channel.try_send(clock) {
            requests.push(ControllerRequest::GetPlan(
                attestation.plan_request(clock, period_s),
            ));
        }
        if let Some(outcome) = attestation.outcomes.front()
            && attestation.appraise_channel.try_send(clock)
        {
            requests.push(ControllerRequest::AppraiseRound(Box::new(outcome.clone())));
        }
        let Some(plan) = &attestation.plan else {
            return requests;
        };
        // The keys of these periods must not be replaced.
        let periods_in_use: Vec<Period> = attestation
            .open_rounds
            .iter()
            .map(OpenAttestationRound::period)
            .collect();
        // `keys_to_request` records the request, so the channel is checked first.
        if attestation.keys_channel.is_free(clock.monotonic_ns)
            && let Some((start, since)) = attestation.members.keys_to_request(plan, &periods_in_use)
            && attestation.keys_channel.try_send(clock)
        {
            requests.push(ControllerRequest::ListProvers { start, since });
        }
        requests
    }

    pub(super) fn handle_plan(&mut self, result: Result<Option<Plan>, LinkError>, clock: Clock) {
        let plan = self.unwrap_response("get plan", result, clock.monotonic_ns, |node| {
            &mut node.attestation.plan_channel
        });
        let attestation = &mut self.attestation;
        attestation.plan_due_ns = clock.monotonic_ns.saturating_add(PLAN_NS);
        let Some(Some(plan)) = plan else {
            return;
        };
        if !plan.rounds.is_empty() {
            attestation.numbers = plan.rounds.clone();
        }
        attestation.schedule.update(&plan.groups, clock.monotonic_ns);
        let exists = |name: &GroupName| plan.groups.iter().any(|group| group.name == *name);
        attestation.unreachable.retain(|name, _| exists(name));
        attestation.plan_at_ns = clock.monotonic_ns;
        let previous_period = attestation.plan.as_ref().map(|plan| plan.running.period);
        if previous_period != Some(plan.running.period) {
            attestation.running_seen_ns = clock.monotonic_ns;
        }
        self.status.attest.period = plan.running.period.0;
        self.status.attest.groups = plan.groups.len() as u64;
        attestation.plan = Some(plan);
    }

    pub(super) fn handle_provers(&mut self, result: Result<Provers, LinkError>, clock: Clock) {
        let Some(provers) = self.unwrap_response("list provers", result, clock.monotonic_ns, |node| {
            &mut node.attestation.keys_channel
        }) else {
            return;
        };
        let attestation = &mut self.attestation;
        for damaged in &provers.damaged {
            tracing::error!(
                error = damaged,
                action =
                    "run `linewarden registry check`; enroll the device for attestation again with --replace",
                "damaged attestation record skipped; the device is not attested"
            );
        }
        self.status.damaged += provers.damaged.len() as u64;
        let Some(prover_set) = self.data_plane.provers() else {
            return;
        };
        let refused = attestation
            .members
            .accept(provers, prover_set, &attestation.schedule);
        self.status.attest.provers = attestation.members.len() as u64;
        self.status.attest.provers_refused = refused;
    }

    pub(super) fn handle_appraisal(&mut self, result: Result<RoundAppraisal, LinkError>, clock: Clock) {
        let Some(appraisal) = self.unwrap_response("appraise round", result, clock.monotonic_ns, |node| {
            &mut node.attestation.appraise_channel
        }) else {
            return;
        };
        let outcome = self.attestation.outcomes.pop_front();
        self.status.attest.rounds += 1;
        if let (Some(outage), Some(outcome)) = (appraisal.outage, outcome) {
            self.log_outage(&outage, &outcome);
        }
        for QuarantinedDevice {
            device,
            reason,
            revision,
        } in appraisal.quarantined
        {
            self.status.attest.quarantined += 1;
            tracing::warn!(
                device_id = %device,
                reason,
                action = "run `linewarden attest explain DEVICE`",
                "device quarantined"
            );
            self.audit.record(AuditEvent::Quarantined { device, reason });
            // The feed reports the quarantine to all gateways. This gateway applies the quarantine at once, because the
            // registry may fail before. A later release that the feed has already reported takes precedence.
            if self.blocked.is_released_after(device, revision) {
                continue;
            }
            // The slow path may have admitted the device after a release that the feed has not reported yet.
            let is_new = self.blocked.quarantine(device, revision);
            if is_new || self.devices.contains_key(&device) {
                self.revoke(device, clock.monotonic_ns);
            }
        }
        for (device, revision) in appraisal.remediated {
            self.status.attest.remediated += 1;
            tracing::info!(device_id = %device, "device released after a valid proof");
            self.audit.record(AuditEvent::Remediated { device });
            self.blocked.confirm_release(device, revision);
        }
        self.record_released(None);
        for token in appraisal.attestation_results {
            self.audit.record(AuditEvent::AttestationResult { token });
        }
    }

    /// Logs an outage: the missing proofs of a whole group point to the network rather than to its devices.
    fn log_outage(&mut self, outage: &GroupOutage, outcome: &RoundOutcome) {
        let GroupOutage {
            requested,
            excused,
            excused_max,
        } = *outage;
        if excused == 1 {
            tracing::warn!(
                group = %outcome.group, count = requested, rounds = excused_max,
                action = "check the network and the reference value of the group",
                "no proof received from any device of the group; up to `rounds` such rounds cause no quarantine"
            );
        }
        self.audit.record(AuditEvent::GroupOutage {
            round: outcome.number.0,
            group: outcome.group.to_string(),
            requested,
            excused,
            excused_max,
        });
    }

    /// Stops challenges to a device whose newest session is at another gateway: that gateway challenges the device.
    pub(super) fn stop_attesting(&mut self, device: DeviceId) {
        self.attestation.members.forget_address(device);
    }

    /// Queues an outcome for the controller.
    pub(super) fn queue_outcome(&mut self, attestation: &mut Attestation, outcome: RoundOutcome) {
        self.status.attest.round = outcome.number.0;
        self.audit.record(AuditEvent::from_round(&outcome));
        // The first outcome may be in flight, so the second outcome is dropped.
        if attestation.outcomes.len() >= OUTCOMES_MAX {
            attestation.outcomes.remove(1);
            self.status.attest.rounds_lost += 1;
        }
        attestation.outcomes.push_back(outcome);
    }
}
