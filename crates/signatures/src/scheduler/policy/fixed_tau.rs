use super::super::class::PerClass;
use super::super::time::Time;
use super::{Policy, PolicyDecision, PolicyInput, wait_for};

/// The policy of the thesis "Hardware accelerated authentication", section 3.4.3: when more than tau jobs
/// wait, the idle accelerator takes them all. Tau is fixed per machine.
#[derive(Clone, Debug)]
pub struct FixedTau {
    tau: PerClass<usize>,
}

impl FixedTau {
    /// A tau for each class; see [`crossover`](super::super::model::crossover).
    pub const fn new(tau: PerClass<usize>) -> Self {
        Self { tau }
    }
}

impl Policy for FixedTau {
    fn name(&self) -> &'static str {
        "fixed tau"
    }

    fn choose(&mut self, input: &PolicyInput) -> PolicyDecision {
        let tau = *self.tau.of(input.class);
        if input.waiting > tau {
            PolicyDecision::Take(input.waiting)
        } else {
            wait_for(tau.saturating_add(1), input, Time::NEVER)
        }
    }
}
