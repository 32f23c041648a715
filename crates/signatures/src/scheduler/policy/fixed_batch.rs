use super::super::time::Time;
use super::{Policy, PolicyDecision, PolicyInput, wait_for};

/// Batches of one size, started as soon as enough jobs wait.
#[derive(Clone, Copy, Debug)]
pub struct FixedBatch {
    size: usize,
}

impl FixedBatch {
    /// Batches of `size` jobs, at least 1.
    pub fn new(size: usize) -> Self {
        Self { size: size.max(1) }
    }
}

impl Policy for FixedBatch {
    fn name(&self) -> &'static str {
        "fixed batch"
    }

    fn choose(&mut self, input: &PolicyInput) -> PolicyDecision {
        let size = self.size.min(input.batch_max);
        if input.waiting >= size {
            PolicyDecision::Take(size)
        } else {
            wait_for(size, input, Time::NEVER)
        }
    }
}
