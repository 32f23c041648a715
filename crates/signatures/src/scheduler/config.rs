//! The scheduler's bounds.

use super::masks::MaskLimits;
use super::queue::QueueLimits;
use super::quota::{QuotaLimits, Rate};
use super::time::Span;

/// All bounds, times and quotas of a core.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Of the queue.
    pub queue: QueueLimits,
    /// Of immediate messages.
    pub quotas: QuotaLimits,
    /// When waiting jobs of strangers take so much lane time, the core counts as crowded ([`Core::is_crowded`](super::Core::is_crowded)).
    pub crowded: Span,
    /// Messages that are remembered at least, to recognise copies.
    pub recent: usize,
    /// How long they are, at least; at most twice as long.
    pub recent_memory: Span,
    /// What a processor works in one go: the longest that an immediate job waits for what is not.
    pub slice: Span,
    /// Batches of immediate jobs in a row, after which a processor takes a slice of others: nothing starves.
    pub immediate_in_a_row: u32,
    /// A job for an accelerator waits so long at most while the accelerator is idle, whatever the policy
    /// says.
    pub wait_max: Span,
    /// A lost lane is tried again after this; after each failure, after twice as long.
    pub probe_after: Span,
    /// But after this at the latest.
    pub probe_after_max: Span,
    /// Refilling of masks, if anything needs masks.
    pub masks: Option<MaskLimits>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queue: QueueLimits {
                capacity: 65_536,
                share_max: 16_384,
                age_step: Span::from_millis(10),
                attempts_max: 3,
            },
            quotas: QuotaLimits {
                token: Span::from_micros(250),
                source: Rate {
                    burst: 10,
                    interval: Span::from_millis(100),
                },
                strangers: Rate {
                    burst: 100,
                    interval: Span::from_millis(1),
                },
                wrong: 4,
                wrong_max: 256,
                sources: 65_536,
                memory: Span::from_millis(60_000),
            },
            crowded: Span::from_millis(50),
            recent: 65_536,
            recent_memory: Span::from_millis(2_000),
            slice: Span::from_micros(100),
            immediate_in_a_row: 64,
            wait_max: Span::from_millis(2),
            probe_after: Span::from_millis(100),
            probe_after_max: Span::from_millis(10_000),
            masks: None,
        }
    }
}
