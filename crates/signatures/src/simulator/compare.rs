//! Comparison of policies: the same traffic, and the capacity with each policy.

use super::lanes::SimLane;
use super::report::Report;
use super::run::{SimError, Simulation};
use super::trace::Record;
use crate::scheduler::model::{CostModel, crossover};
use crate::scheduler::policy::{Adaptive, DelayBounded, FixedBatch, FixedTau, Policy};
use crate::scheduler::{LaneKind, PerClass, Span};

/// The compared policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyKind {
    /// The fixed tau of the thesis that [`FixedTau`] names, calibrated for the lanes.
    FixedTau,
    /// Batches of 64 jobs.
    FixedBatch,
    /// Batches of up to 4,096 jobs; a job waits at most 1 ms for a full batch.
    DelayBounded,
    /// The adaptive policy.
    Adaptive,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 4] = [
        Self::FixedTau,
        Self::FixedBatch,
        Self::DelayBounded,
        Self::Adaptive,
    ];

    /// The policy's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.policy(&[]).name()
    }

    /// The policy, configured for these lanes.
    pub fn policy(self, lanes: &[SimLane]) -> Box<dyn Policy> {
        match self {
            Self::FixedTau => Box::new(FixedTau::new(calibrated_tau(lanes))),
            Self::FixedBatch => Box::new(FixedBatch::new(64)),
            Self::DelayBounded => Box::new(DelayBounded::new(4_096, Span::from_millis(1))),
            Self::Adaptive => Box::new(Adaptive::default()),
        }
    }
}

/// The tau of the thesis that [`FixedTau`] names, for each class: the batch size from which on the accelerator finishes before all CPU
/// lanes together; if there is no such size, before the fastest CPU lane; if there is no such size either, the number
/// of jobs that the accelerator completes in ten times its overhead.
pub fn calibrated_tau(lanes: &[SimLane]) -> PerClass<usize> {
    PerClass::from_fn(|class| {
        let costs_of_kind = |kind| {
            let lanes = lanes.iter().filter(move |lane| lane.spec.kind == kind);
            lanes.filter_map(move |lane| *lane.actual.of(class))
        };
        let Some(accelerator) = costs_of_kind(LaneKind::Accelerator).next() else {
            return usize::MAX;
        };
        let rates: Vec<f64> = costs_of_kind(LaneKind::Cpu).map(CostModel::rate).collect();
        let fastest_rate = rates.iter().copied().fold(0.0, f64::max);
        let tau = crossover(rates.iter().sum(), accelerator).or_else(|| crossover(fastest_rate, accelerator));
        tau.unwrap_or(10.0 * accelerator.overhead_s / accelerator.per_job_s) as usize
    })
}

/// Runs one trace under every policy.
///
/// # Errors
/// See [`SimError`].
pub fn compare(plan: &Simulation, trace: &[Record]) -> Result<Vec<Report>, SimError> {
    PolicyKind::ALL
        .iter()
        .map(|policy_kind| plan.run(trace, policy_kind.policy(&plan.lanes)))
        .collect()
}

/// Traffic that grows with a factor, and the maximum latency.
pub struct ScaledTraffic<'a> {
    /// The trace for a factor.
    pub trace: &'a dyn Fn(f64) -> Vec<Record>,
    /// Maximum of the 99th percentile of latency, over all messages except immediate ones.
    pub p99_max: Span,
    /// The largest factor to try.
    pub factor_max: f64,
}

/// The capacity with a policy: the largest factor at which no job is shed and the 99th percentile is at most `p99_max`.
/// The returned factor is at most `factor_max / 128` too small. Assumes that every factor below a successful factor
/// succeeds too.
///
/// # Errors
/// See [`SimError`].
pub fn capacity(
    plan: &Simulation,
    demand: &ScaledTraffic<'_>,
    policy_kind: PolicyKind,
) -> Result<f64, SimError> {
    let (mut sustained_factor, mut exceeded_factor) = (0.0, demand.factor_max);
    for _ in 0..7 {
        let factor = (sustained_factor + exceeded_factor) / 2.0;
        let report = plan.run(&(demand.trace)(factor), policy_kind.policy(&plan.lanes))?;
        let p99 = report.valid.quantile_of_others(0.99).unwrap_or(Span::MAX);
        if report.counters.shed.total() == 0 && p99 <= demand.p99_max {
            sustained_factor = factor;
        } else {
            exceeded_factor = factor;
        }
    }
    Ok(sustained_factor)
}
