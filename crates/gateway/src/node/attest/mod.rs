//! Attestation of the gateway's provers (LAP/1 3.2): keys ahead of their period, rounds on schedule, what they have shown.
//!
//! ```text
//!  Plan ──► keys of the running and of the next period ──► data plane
//!    │                                                        ▲ │
//!    └──► groups: who is due? ──► round opens, requests ──────┘ │ who is ok
//!                                        │ answer time over     ▼
//!                                        └──────────────► RoundOutcome ──► controller decides
//! ```
//!
//! Two rounds may be open at a time, each of one group, as data planes know two. Nothing here decides about a device: what a round has
//! shown goes to the controller, and a quarantine comes back by the feed of changes.

mod members;
mod round;
mod schedule;
mod strays;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use linewarden_controller::attest::{
    Appraised, Plan, PlanWish, Provers, Quarantined, RoundOutcome, Unanswered,
};
use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_registry::GroupName;

use self::members::Members;
use self::round::Running;
use self::schedule::Schedule;
pub(super) use self::strays::Strays;
use super::Node;
use super::backoff::Backoff;
use super::channel::Channel;
use crate::audit::Happening;
use crate::exchange::{Ask, LinkError};
use crate::time::Clock;

/// How often the plan is asked for, ns: a round that is ordered by command waits so long at most.
const PLAN_NS: u64 = 500_000_000;
/// Rounds that wait for a controller that is away; of more the oldest is forgotten.
const OUTCOMES_MAX: usize = 16;
/// More numbers are asked for when fewer than this are left.
const NUMBERS_LOW: usize = 64;

/// Devices of a group that could not be asked in its last round.
#[derive(Debug)]
struct Unreached {
    devices: u64,
    /// When it was told last, monotonic clock.
    told_ns: u64,
}

/// What the node knows of attestation. It stays empty where the data plane attests nobody.
#[derive(Default)]
pub(super) struct Attestation {
    plan: Option<Plan>,
    /// When the plan was asked for that is here, monotonic clock.
    plan_at_ns: u64,
    /// When the period that runs was first seen, monotonic clock.
    running_seen_ns: u64,
    plan_due_ns: u64,
    plan_channel: Channel,
    members: Members,
    keys_channel: Channel,
    schedule: Schedule,
    /// Numbers that this process may use.
    numbers: Range<u32>,
    /// At most [`ROUNDS_MAX`](round::ROUNDS_MAX), with numbers of which one is even and one odd.
    running: Vec<Running>,
    /// Of random bytes for rounds.
    draws: Backoff,
    outcomes: VecDeque<RoundOutcome>,
    unreached: HashMap<GroupName, Unreached>,
    appraise_channel: Channel,
}

impl Attestation {
    /// How long the running period has been running, in seconds: by the controller's clock, and, should somebody set that back, for
    /// as long as it was seen here.
    fn period_age_s(&self, clock: Clock) -> u64 {
        let seconds = |since_ns: u64| clock.monotonic_ns.saturating_sub(since_ns) / 1_000_000_000;
        self.plan.as_ref().map_or(0, |plan| {
            let told_s = plan.age_s.saturating_add(seconds(self.plan_at_ns));
            told_s.max(seconds(self.running_seen_ns))
        })
    }

    /// The period of the next round: the one that runs, once its keys are here.
    fn provable(&self) -> Option<PeriodStart> {
        let plan = self.plan.as_ref()?;
        self.members.has_keys(&plan.running, plan).then_some(plan.running)
    }

    /// Answers that are out are of a registry that is gone.
    pub(super) fn void(&mut self) {
        for channel in [
            &mut self.plan_channel,
            &mut self.keys_channel,
            &mut self.appraise_channel,
        ] {
            channel.void();
        }
    }

    /// Whether the controller may have decided something that it has not told yet.
    pub(super) fn awaits_decisions(&self) -> bool {
        !self.outcomes.is_empty()
    }

    fn wish(&self, clock: Clock, period_s: u32) -> PlanWish {
        let is_over = self.period_age_s(clock) >= u64::from(period_s);
        let begin = self
            .plan
            .as_ref()
            .filter(|plan| is_over && self.members.has_keys(&plan.next, plan))
            .map(|plan| plan.next.period);
        PlanWish {
            begin,
            period_s,
            numbers: self.numbers.len() < NUMBERS_LOW,
        }
    }
}

impl Node {
    /// Follows, ends and opens rounds.
    pub(super) fn attest(&mut self, clock: Clock, random: &mut dyn FnMut() -> Option<[u8; 8]>) {
        if self.stopping || self.status.replaced {
            return;
        }
        let mut attestation = std::mem::take(&mut self.attestation);
        self.follow_rounds(&mut attestation, clock);
        self.open_round(&mut attestation, clock, random);
        self.attestation = attestation;
    }

    /// When [`Node::attest`] has something to do, monotonic clock.
    pub(super) fn attest_due_ns(&self) -> Option<u64> {
        let attestation = &self.attestation;
        if !self.attests || self.stopping || self.status.replaced {
            return None;
        }
        let running = attestation.running.iter().map(Running::due_ns).min();
        let opens = attestation.opens_ns();
        let channel = &attestation.plan_channel;
        let may_ask = self.is_following() && !channel.out;
        let plan = may_ask.then(|| channel.backoff.due_ns(attestation.plan_due_ns));
        [running, opens, plan].into_iter().flatten().min()
    }

    /// What to ask the controller about attestation.
    pub(super) fn ask_to_attest(&mut self, clock: Clock) -> Vec<Ask> {
        let period_s = self.settings.attest_period_s;
        let attestation = &mut self.attestation;
        let mut asks = Vec::new();
        if !self.attests {
            return asks;
        }
        if attestation.plan_due_ns <= clock.monotonic_ns && attestation.plan_channel.try_ask(clock) {
            asks.push(Ask::Plan(attestation.wish(clock, period_s)));
        }
        if let Some(outcome) = attestation.outcomes.front()
            && attestation.appraise_channel.try_ask(clock)
        {
            asks.push(Ask::Appraise(Box::new(outcome.clone())));
        }
        let Some(plan) = &attestation.plan else {
            return asks;
        };
        // Its keys would take the place of those that are being proven.
        let busy: Vec<Period> = attestation.running.iter().map(Running::period).collect();
        // What is wanted is noted: it is not the answer that may be on its way.
        if attestation.keys_channel.is_free(clock.monotonic_ns)
            && let Some((start, since)) = attestation.members.wanted(plan, &busy)
            && attestation.keys_channel.try_ask(clock)
        {
            asks.push(Ask::Provers { start, since });
        }
        asks
    }

    pub(super) fn take_plan(&mut self, result: Result<Option<Plan>, LinkError>, clock: Clock) {
        let plan = self.unwrap_answer(result, clock.monotonic_ns, |node| {
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
        attestation.schedule.follow(&plan.groups, clock.monotonic_ns);
        let is_there = |name: &GroupName| plan.groups.iter().any(|group| group.name == *name);
        attestation.unreached.retain(|name, _| is_there(name));
        attestation.plan_at_ns = clock.monotonic_ns;
        let before = attestation.plan.as_ref().map(|plan| plan.running.period);
        if before != Some(plan.running.period) {
            attestation.running_seen_ns = clock.monotonic_ns;
        }
        self.status.attest.period = plan.running.period.0;
        self.status.attest.groups = plan.groups.len() as u64;
        attestation.plan = Some(plan);
    }

    pub(super) fn take_provers(&mut self, result: Result<Provers, LinkError>, clock: Clock) {
        let Some(provers) = self.unwrap_answer(result, clock.monotonic_ns, |node| {
            &mut node.attestation.keys_channel
        }) else {
            return;
        };
        let attestation = &mut self.attestation;
        for damaged in &provers.damaged {
            tracing::error!(record = damaged, "a prover is left out");
        }
        self.status.damaged += provers.damaged.len() as u64;
        let Some(held) = self.plane.provers() else {
            return;
        };
        let refused = attestation.members.take(provers, held, &attestation.schedule);
        self.status.attest.provers = attestation.members.len() as u64;
        self.status.attest.provers_refused = refused;
    }

    pub(super) fn take_appraised(&mut self, result: Result<Appraised, LinkError>, clock: Clock) {
        let Some(appraised) = self.unwrap_answer(result, clock.monotonic_ns, |node| {
            &mut node.attestation.appraise_channel
        }) else {
            return;
        };
        let outcome = self.attestation.outcomes.pop_front();
        self.status.attest.rounds += 1;
        if let (Some(unanswered), Some(outcome)) = (appraised.unanswered, outcome) {
            self.tell_unanswered(&unanswered, &outcome);
        }
        for Quarantined {
            device,
            reason,
            revision,
        } in appraised.quarantined
        {
            self.status.attest.quarantined += 1;
            tracing::warn!(%device, reason, "quarantined");
            self.trail.note(Happening::Quarantined { device, reason });
            // The feed tells all gateways. This one knows already, whatever becomes of the registry's file; but not better than
            // the feed, if that has told since that the device was let in.
            if self.barred.is_over(device, revision) {
                continue;
            }
            // One that was let in, of which the feed has yet to tell, may have come again by the slow path.
            let is_news = self.barred.quarantine(device, revision);
            if is_news || self.devices.contains_key(&device) {
                self.revoke(device, clock.monotonic_ns);
            }
        }
        for (device, revision) in appraised.readmitted {
            self.status.attest.readmitted += 1;
            tracing::info!(%device, "readmitted");
            self.trail.note(Happening::Readmitted { device });
            self.barred.is_told(device, revision);
        }
        self.record_let_in(None);
        for token in appraised.results {
            self.trail.note(Happening::AttestationResult { token });
        }
    }

    /// That a whole group was silent at once says more of the way there than of its devices.
    fn tell_unanswered(&mut self, unanswered: &Unanswered, outcome: &RoundOutcome) {
        let Unanswered { asked, spared, of } = *unanswered;
        if spared == 1 {
            tracing::warn!(
                group = %outcome.group, asked, of,
                "nobody answers, which counts for no quarantine in so many rounds: is there a way to the devices and back, and is the reference value right?"
            );
        }
        self.trail.note(Happening::Unanswered {
            round: outcome.number.0,
            group: outcome.group.to_string(),
            asked,
            spared,
            of,
        });
    }

    /// A device's newest session is at another gateway: that one asks it.
    pub(super) fn attest_elsewhere(&mut self, device: DeviceId) {
        self.attestation.members.leave(device);
    }

    pub(super) fn keep_outcome(&mut self, attestation: &mut Attestation, outcome: RoundOutcome) {
        self.status.attest.round = outcome.number.0;
        self.trail.note(Happening::round(&outcome));
        // The one in front may be with the controller now.
        if attestation.outcomes.len() >= OUTCOMES_MAX {
            attestation.outcomes.remove(1);
            self.status.attest.rounds_lost += 1;
        }
        attestation.outcomes.push_back(outcome);
    }
}
