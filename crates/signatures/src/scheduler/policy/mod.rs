//! When an accelerator takes how many of the waiting jobs.
//!
//! Processors need no policy: an idle one takes a slice of what is next. So no policy leaves work undone
//! while a processor is idle, and they differ only in what they leave to the processors. Whatever a policy
//! says, the core ends a wait of [`Config::wait_max`](super::Config::wait_max).

mod adaptive;
mod delay_bounded;
mod fixed_batch;
mod fixed_tau;

pub use adaptive::{Adaptive, split};
pub use delay_bounded::DelayBounded;
pub use fixed_batch::FixedBatch;
pub use fixed_tau::FixedTau;

use super::class::Class;
use super::model::Line;
use super::time::Time;

/// What a policy is asked about: an idle accelerator, and the jobs of one class that wait.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Now.
    pub now: Time,
    /// The class.
    pub class: Class,
    /// Jobs of the class that wait; neither immediate ones nor those that only a processor may do. It may be
    /// 0: the core wants to know how many must come before it asks again.
    pub waiting: usize,
    /// When the job arrived that waits longest; now, if none does.
    pub oldest: Time,
    /// The earliest deadline among the jobs that are next on their levels.
    pub deadline: Time,
    /// What the accelerator takes for the class, as it is now believed.
    pub line: Line,
    /// Jobs of one batch at most.
    pub batch_max: usize,
    /// Jobs of the class that all processors do per second, in their slices; 0 if there is none.
    pub cpu_rate: f64,
    /// The part of it that is left when they do all that comes, immediate jobs and other classes too.
    pub cpu_spare: f64,
    /// Jobs of the class that come per second.
    pub arrivals: f64,
}

/// What a policy says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Start a batch of so many; at least 1. More than there are, or than the lane does at once, is as many
    /// as can be.
    Take(usize),
    /// Not now. Ask again when so many more have come, at this time at the latest, and whenever something
    /// else is decided.
    Wait {
        /// At the latest; [`Time::NEVER`] leaves it to the core's own limit.
        until: Time,
        /// More jobs of the class; at least 1.
        more: usize,
    },
}

/// A policy for accelerators.
pub trait Policy: Send {
    /// As reports name it.
    fn name(&self) -> &'static str;

    /// What to do.
    fn choose(&mut self, view: &View) -> Choice;
}

/// Wait for `wanted` jobs.
fn wait_for(wanted: usize, view: &View, until: Time) -> Choice {
    Choice::Wait {
        until,
        more: wanted.saturating_sub(view.waiting).max(1),
    }
}
