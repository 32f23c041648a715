//! Policies decide when an accelerator starts a batch, and how many jobs the batch has.
//!
//! CPU lanes need no policy: an idle CPU lane takes a slice of the next jobs. Therefore no policy leaves work undone
//! while a CPU lane is idle, and policies differ only in the jobs that they leave to the CPU lanes. The scheduler
//! limits each wait that a policy decides to [`Config::wait_max`](super::Config::wait_max). If CPU lanes also process
//! jobs of the class, the limit is at least twice the accelerator's overhead.

mod adaptive;
mod delay_bounded;
mod fixed_batch;
mod fixed_tau;

pub use adaptive::{Adaptive, split};
pub use delay_bounded::DelayBounded;
pub use fixed_batch::FixedBatch;
pub use fixed_tau::FixedTau;

use super::class::Class;
use super::model::CostModel;
use super::time::Time;

/// Input of a policy: an idle accelerator, and the waiting jobs of one class.
#[derive(Clone, Copy, Debug)]
pub struct PolicyInput {
    /// The current time.
    pub now: Time,
    /// The class.
    pub class: Class,
    /// Waiting jobs of the class, except immediate jobs and jobs for CPU lanes only. May be 0: the scheduler then
    /// requests the number of arrivals after which the next query follows.
    pub waiting: usize,
    /// Arrival of the job that waits longest; now, if no job waits.
    pub oldest: Time,
    /// The earliest deadline among the next jobs of all levels.
    pub deadline: Time,
    /// The estimated cost of the class on the accelerator.
    pub cost: CostModel,
    /// Maximum jobs in a batch.
    pub batch_max: usize,
    /// Jobs of the class that all CPU lanes do per second, in their slices; 0 without CPU lanes.
    pub cpu_rate: f64,
    /// The part of `cpu_rate` that remains when the CPU lanes process all arriving jobs, including immediate jobs
    /// and other classes.
    pub cpu_spare: f64,
    /// Arriving jobs of the class per second.
    pub arrivals: f64,
}

/// Decision of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyDecision {
    /// Start a batch of this many jobs, at least 1. A number above the waiting jobs or the lane's limit means as
    /// many jobs as possible.
    Take(usize),
    /// Wait. The scheduler queries the policy again after this number of arrivals, at the given time at the latest, and
    /// whenever the scheduler makes another decision.
    Wait {
        /// Latest time; with [`Time::NEVER`] only the scheduler's limit applies.
        until: Time,
        /// Number of further jobs of the class; at least 1.
        additional_jobs: usize,
    },
}

/// A policy for accelerators.
pub trait Policy: Send {
    /// Name in reports.
    fn name(&self) -> &'static str;

    /// Decides about the waiting jobs.
    fn choose(&mut self, input: &PolicyInput) -> PolicyDecision;
}

/// Waits for this number of jobs.
fn wait_for(jobs: usize, input: &PolicyInput, until: Time) -> PolicyDecision {
    PolicyDecision::Wait {
        until,
        additional_jobs: jobs.saturating_sub(input.waiting).max(1),
    }
}
