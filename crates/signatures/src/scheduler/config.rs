//! Configuration of the scheduler.

use super::masks::MaskLimits;
use super::queue::QueueLimits;
use super::quota::{QuotaLimits, Rate};
use super::time::Span;

/// All limits, times and quotas of a [`Core`](super::Core).
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Limits of the queue.
    pub queue: QueueLimits,
    /// Quotas of immediate messages.
    pub quotas: QuotaLimits,
    /// The scheduler is overloaded when waiting jobs of unknown senders need at least this lane time
    /// ([`Core::is_overloaded`](super::Core::is_overloaded)).
    pub overload_lane_time: Span,
    /// Minimum number of messages that are remembered to recognize copies.
    pub recent_messages_min: usize,
    /// Minimum time for which messages are remembered; the maximum is twice as long.
    pub recent_lifetime_min: Span,
    /// Length of a slice of a CPU lane: the longest time for which an immediate job waits for other jobs.
    pub slice: Span,
    /// Consecutive batches of immediate jobs, after which a CPU lane takes a slice of other jobs, so that no job starves.
    pub immediate_in_a_row: u32,
    /// Maximum time that a job waits for an idle accelerator, whatever the policy decides. If CPU lanes also process
    /// jobs of its class, the maximum is at least twice the accelerator's overhead.
    pub wait_max: Span,
    /// Delay before a lost lane is probed; doubled after each failed probe.
    pub probe_after: Span,
    /// Maximum delay between probes.
    pub probe_after_max: Span,
    /// Refilling of masks; `None` if no job needs masks.
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
                unknown_senders: Rate {
                    burst: 100,
                    interval: Span::from_millis(1),
                },
                invalid_penalty: 4,
                invalid_max: 256,
                sources: 65_536,
                memory: Span::from_millis(60_000),
            },
            overload_lane_time: Span::from_millis(50),
            recent_messages_min: 65_536,
            recent_lifetime_min: Span::from_millis(2_000),
            slice: Span::from_micros(100),
            immediate_in_a_row: 64,
            wait_max: Span::from_millis(2),
            probe_after: Span::from_millis(100),
            probe_after_max: Span::from_millis(10_000),
            masks: None,
        }
    }
}
