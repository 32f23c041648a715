use super::super::time::Time;
use super::{Choice, Policy, View, wait_for};

/// Batches of one size, as soon as there are so many jobs.
#[derive(Clone, Copy, Debug)]
pub struct FixedBatch {
    size: usize,
}

impl FixedBatch {
    /// With batches of `size` jobs, at least 1.
    pub fn new(size: usize) -> Self {
        Self { size: size.max(1) }
    }
}

impl Policy for FixedBatch {
    fn name(&self) -> &'static str {
        "fixed batch"
    }

    fn choose(&mut self, view: &View) -> Choice {
        let size = self.size.min(view.batch_max);
        if view.waiting >= size {
            Choice::Take(size)
        } else {
            wait_for(size, view, Time::NEVER)
        }
    }
}
