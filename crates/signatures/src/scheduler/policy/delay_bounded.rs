use super::super::time::Span;
use super::{Policy, PolicyDecision, PolicyInput, wait_for};

/// A preferred batch size, and a maximum delay after which a smaller batch starts: the dynamic batching of
/// inference servers (NVIDIA Triton: `preferred_batch_size`, `max_queue_delay_microseconds`).
#[derive(Clone, Copy, Debug)]
pub struct DelayBounded {
    preferred: usize,
    delay_max: Span,
}

impl DelayBounded {
    /// Batches of `preferred` jobs, at least 1; smaller batches when a job has waited for `delay_max`.
    pub fn new(preferred: usize, delay_max: Span) -> Self {
        Self {
            preferred: preferred.max(1),
            delay_max,
        }
    }
}

impl Policy for DelayBounded {
    fn name(&self) -> &'static str {
        "delay bounded"
    }

    fn choose(&mut self, input: &PolicyInput) -> PolicyDecision {
        let preferred = self.preferred.min(input.batch_max);
        let until = input.oldest + self.delay_max;
        if input.waiting >= preferred || until <= input.now {
            PolicyDecision::Take(preferred)
        } else {
            wait_for(preferred, input, until)
        }
    }
}
