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
//! devices: it submits the outcomes to the controller, and the node applies the decisions.

mod members;
mod open_round;
mod round;
mod schedule;
mod unattested;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_types::{
    AppraiseRound, ControllerRequest, GetPlan, GroupName, GroupOutage, Kind, LinkError, ListProvers, Plan,
    PlanRequest, Provers, Revision, RoundAppraisal, RoundOutcome,
};

use self::members::Members;
use self::open_round::OpenAttestationRound;
use self::schedule::Schedule;
pub(super) use self::unattested::UnattestedProvers;
use super::channel::Channel;
use super::context::{Context, RandomSource};
use super::retry::RetryTimer;
use super::status::{AttestStatus, Status};
use crate::audit::AuditEvent;
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

/// Attestation of the provers.
pub(super) struct Attestation {
    plan: PlanState,
    members: Members,
    keys_channel: Channel,
    schedule: Schedule,
    /// Unused round numbers that the controller has assigned to this process.
    numbers: Range<u32>,
    /// At most [`ROUNDS_MAX`](round::ROUNDS_MAX); one round number is even and one is odd.
    open_rounds: Vec<OpenAttestationRound>,
    /// Retries after a failed draw of random bytes.
    random_retry: RetryTimer,
    /// Outcomes that the controller has not appraised yet, oldest first, each with the end of its round (boot-time clock, ns).
    outcomes: VecDeque<(u64, RoundOutcome)>,
    unreachable: HashMap<GroupName, UnreachableGroup>,
    appraise_channel: Channel,
    status: AttestStatus,
    draws_failed: u64,
    /// Number of damaged records of provers.
    damaged: u64,
}

/// The attestation plan, and its age.
struct PlanState {
    current: Option<Plan>,
    /// When the current plan was received, monotonic clock.
    received_ns: u64,
    /// When the running period was first seen, monotonic clock.
    running_seen_ns: u64,
    due_ns: u64,
    channel: Channel,
}

impl PlanState {
    /// Returns how long the period has been running, in seconds: by the controller's clock, or by this gateway's clock
    /// if the controller's clock was set back.
    fn period_age_s(&self, clock: Clock) -> u64 {
        let seconds = |since_ns: u64| clock.monotonic_ns.saturating_sub(since_ns) / 1_000_000_000;
        self.current.as_ref().map_or(0, |plan| {
            let plan_s = plan.age_s.saturating_add(seconds(self.received_ns));
            plan_s.max(seconds(self.running_seen_ns))
        })
    }

    /// Replaces the plan by a plan that was received at `now_ns`.
    fn replace(&mut self, plan: Plan, now_ns: u64) {
        self.received_ns = now_ns;
        let previous_period = self.current.as_ref().map(|plan| plan.running.period);
        if previous_period != Some(plan.running.period) {
            self.running_seen_ns = now_ns;
        }
        self.current = Some(plan);
    }
}

impl Default for Attestation {
    fn default() -> Self {
        Self {
            plan: PlanState {
                current: None,
                received_ns: 0,
                running_seen_ns: 0,
                due_ns: 0,
                channel: Channel::new(Kind::GetPlan),
            },
            members: Members::default(),
            keys_channel: Channel::new(Kind::ListProvers),
            schedule: Schedule::default(),
            numbers: 0..0,
            open_rounds: Vec::new(),
            random_retry: RetryTimer::default(),
            outcomes: VecDeque::new(),
            unreachable: HashMap::new(),
            appraise_channel: Channel::new(Kind::AppraiseRound),
            status: AttestStatus::default(),
            draws_failed: 0,
            damaged: 0,
        }
    }
}

impl Attestation {
    /// Returns the period of the next round: the running period, if its keys are loaded.
    fn provable_period(&self) -> Option<PeriodStart> {
        let plan = self.plan.current.as_ref()?;
        self.members.has_keys(&plan.running, plan).then_some(plan.running)
    }

    /// Invalidates requests in flight after a restore of the registry.
    pub(super) fn invalidate(&mut self) {
        for channel in [
            &mut self.plan.channel,
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
        let has_expired = self.plan.period_age_s(clock) >= u64::from(period_s);
        let plan = self.plan.current.as_ref();
        let next_period = plan
            .filter(|plan| has_expired && self.members.has_keys(&plan.next, plan))
            .map(|plan| plan.next.period);
        PlanRequest {
            start_period: next_period,
            period_s,
            needs_round_numbers: self.numbers.len() < NUMBERS_LOW,
        }
    }

    /// Continues, ends and opens rounds. The change feed is applied up to `feed_revision`.
    pub(super) fn advance(
        &mut self,
        feed_revision: Revision,
        context: &mut Context,
        random: RandomSource<'_>,
    ) {
        self.continue_rounds(context);
        self.open_round(feed_revision, context, random);
    }

    /// Returns when [`Attestation::advance`] or a request is due, monotonic clock. Requests are sent only if `may_request`.
    pub(super) fn due_ns(&self, may_request: bool) -> Option<u64> {
        let rounds = self.open_rounds.iter();
        let poll_ns = rounds.map(OpenAttestationRound::due_ns).min();
        let open_ns = self.next_open_ns();
        let plan_ns = (may_request && !self.plan.channel.in_flight)
            .then(|| self.plan.channel.retry.due_ns(self.plan.due_ns));
        [poll_ns, open_ns, plan_ns].into_iter().flatten().min()
    }

    /// Returns requests to the controller.
    pub(super) fn requests(&mut self, context: &Context) -> Vec<ControllerRequest> {
        let (clock, period_s) = (context.clock, context.settings.attest_period_s);
        let mut requests = Vec::new();
        if self.plan.due_ns <= clock.monotonic_ns && self.plan.channel.try_send(clock) {
            requests.push(GetPlan(self.plan_request(clock, period_s)).into());
        }
        if let Some((ended_ns, outcome)) = self.outcomes.front()
            && self.appraise_channel.try_send(clock)
        {
            let appraise = AppraiseRound {
                round: Box::new(outcome.clone()),
                age_ns: clock.boot_ns.saturating_sub(*ended_ns),
                at_ns: clock.boot_ns,
            };
            requests.push(appraise.into());
        }
        let Some(plan) = &self.plan.current else {
            return requests;
        };
        // The keys of these periods must not be replaced.
        let rounds = self.open_rounds.iter();
        let periods_in_use: Vec<Period> = rounds.map(OpenAttestationRound::period).collect();
        // `keys_to_request` records the request, so the channel is checked first.
        if self.keys_channel.is_free(clock.monotonic_ns)
            && let Some((start, since)) = self.members.keys_to_request(plan, &periods_in_use)
            && self.keys_channel.try_send(clock)
        {
            requests.push(ListProvers { start, since }.into());
        }
        requests
    }

    /// Handles the response to a plan request.
    pub(super) fn accept_plan(&mut self, result: Result<Option<Plan>, LinkError>, context: &mut Context) {
        let plan = context.receive(&mut self.plan.channel, result);
        let now_ns = context.now_ns();
        self.plan.due_ns = now_ns.saturating_add(PLAN_NS);
        let Some(Some(plan)) = plan else {
            return;
        };
        if !plan.rounds.is_empty() {
            self.numbers = plan.rounds.clone();
        }
        self.schedule.update(&plan.groups, now_ns);
        let exists = |name: &GroupName| plan.groups.iter().any(|group| group.name == *name);
        self.unreachable.retain(|name, _| exists(name));
        self.status.period = plan.running.period.0;
        self.status.groups = plan.groups.len() as u64;
        self.plan.replace(plan, now_ns);
    }

    /// Handles a part of the provers and their keys.
    pub(super) fn accept_provers(&mut self, result: Result<Provers, LinkError>, context: &mut Context) {
        let Some(provers) = context.receive(&mut self.keys_channel, result) else {
            return;
        };
        for damaged in &provers.damaged {
            tracing::error!(
                error = damaged,
                action =
                    "run `linewarden registry check`; enroll the device for attestation again with --replace",
                "damaged attestation record skipped; the device is not attested"
            );
        }
        self.damaged += provers.damaged.len() as u64;
        let Some(prover_set) = context.data_plane.provers() else {
            return;
        };
        let refused = self.members.accept(provers, prover_set, &self.schedule);
        self.status.provers = self.members.len() as u64;
        self.status.provers_refused = refused;
    }

    /// Handles the appraisal of the first outcome; returns the decisions about devices.
    pub(super) fn accept_appraisal(
        &mut self,
        result: Result<RoundAppraisal, LinkError>,
        context: &mut Context,
    ) -> Option<RoundAppraisal> {
        let appraisal = context.receive(&mut self.appraise_channel, result)?;
        let outcome = self.outcomes.pop_front();
        self.status.rounds += 1;
        self.status.quarantined += appraisal.quarantined.len() as u64;
        self.status.remediated += appraisal.remediated.len() as u64;
        if let (Some(outage), Some((_, outcome))) = (&appraisal.outage, outcome) {
            log_outage(outage, &outcome, context);
        }
        Some(appraisal)
    }

    /// Stops challenges to a device whose newest session is at another gateway: that gateway challenges the device.
    pub(super) fn stop(&mut self, device: DeviceId) {
        self.members.forget_address(device);
    }

    /// Queues an outcome for the controller.
    fn queue_outcome(&mut self, outcome: RoundOutcome, context: &mut Context) {
        self.status.round = outcome.number.0;
        context.audit.record(AuditEvent::from_round(&outcome));
        // The first outcome may be in flight, so the second outcome is dropped.
        if self.outcomes.len() >= OUTCOMES_MAX {
            self.outcomes.remove(1);
            self.status.rounds_lost += 1;
        }
        self.outcomes.push_back((context.clock.boot_ns, outcome));
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.attest = self.status.clone();
        status.draws_failed += self.draws_failed;
        status.damaged += self.damaged;
    }
}

/// Logs an outage: the missing proofs of a whole group point to the network rather than to its devices.
fn log_outage(outage: &GroupOutage, outcome: &RoundOutcome, context: &mut Context) {
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
    context.audit.record(AuditEvent::GroupOutage {
        round: outcome.number.0,
        group: outcome.group.to_string(),
        requested,
        excused,
        excused_max,
    });
}
