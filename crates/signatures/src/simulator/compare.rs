//! Policies side by side: the same traffic, and how much of it each can bear.

use super::lanes::SimLane;
use super::report::Report;
use super::run::{Plan, SimError};
use super::trace::Record;
use crate::scheduler::model::{Line, crossover};
use crate::scheduler::policy::{Adaptive, DelayBounded, FixedBatch, FixedTau, Policy};
use crate::scheduler::{LaneKind, PerClass, Span};

/// The policies that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// The thesis' tau, calibrated for the lanes.
    FixedTau,
    /// Batches of 64.
    FixedBatch,
    /// Up to 4,096 jobs, or 1 ms.
    DelayBounded,
    /// The adaptive one.
    Adaptive,
}

impl Contender {
    /// All of them.
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

    /// The policy for these lanes.
    pub fn policy(self, lanes: &[SimLane]) -> Box<dyn Policy> {
        match self {
            Self::FixedTau => Box::new(FixedTau::new(calibrated_tau(lanes))),
            Self::FixedBatch => Box::new(FixedBatch::new(64)),
            Self::DelayBounded => Box::new(DelayBounded::new(4_096, Span::from_millis(1))),
            Self::Adaptive => Box::new(Adaptive::default()),
        }
    }
}

/// The thesis' tau for each class: from it on the accelerator is sooner done than all processors together; if
/// it never is, than one of them; if it never is either, what it does in ten times its overhead.
pub fn calibrated_tau(lanes: &[SimLane]) -> PerClass<usize> {
    PerClass::from_fn(|class| {
        let of_kind = |kind| {
            let lanes = lanes.iter().filter(move |lane| lane.spec.kind == kind);
            lanes.filter_map(move |lane| *lane.truth.of(class))
        };
        let Some(accelerator) = of_kind(LaneKind::Accelerator).next() else {
            return usize::MAX;
        };
        let rates: Vec<f64> = of_kind(LaneKind::Cpu).map(Line::rate).collect();
        let one = rates.iter().copied().fold(0.0, f64::max);
        let tau = crossover(rates.iter().sum(), accelerator).or_else(|| crossover(one, accelerator));
        tau.unwrap_or(10.0 * accelerator.overhead_s / accelerator.per_job_s) as usize
    })
}

/// One trace under every policy.
///
/// # Errors
/// See [`SimError`].
pub fn compare(plan: &Plan, trace: &[Record]) -> Result<Vec<Report>, SimError> {
    Contender::ALL
        .iter()
        .map(|contender| plan.run(trace, contender.policy(&plan.lanes)))
        .collect()
}

/// Traffic that grows with a factor, and what must hold.
pub struct Demand<'a> {
    /// The trace for a factor.
    pub trace: &'a dyn Fn(f64) -> Vec<Record>,
    /// The 99th percentile of all but immediate messages is at most this.
    pub p99_max: Span,
    /// The largest factor that is tried.
    pub factor_max: f64,
}

/// How much of the demand a policy bears: the largest factor at which nothing is shed and the 99th percentile
/// keeps its bound, to one part in 128 of the largest factor. Factors in between are taken to be borne if a
/// larger one is.
///
/// # Errors
/// See [`SimError`].
pub fn capacity(plan: &Plan, demand: &Demand<'_>, contender: Contender) -> Result<f64, SimError> {
    let (mut borne, mut not) = (0.0, demand.factor_max);
    for _ in 0..7 {
        let factor = (borne + not) / 2.0;
        let report = plan.run(&(demand.trace)(factor), contender.policy(&plan.lanes))?;
        let p99 = report.valid.quantile_of_others(0.99).unwrap_or(Span::MAX);
        if report.counters.shed.total() == 0 && p99 <= demand.p99_max {
            borne = factor;
        } else {
            not = factor;
        }
    }
    Ok(borne)
}
