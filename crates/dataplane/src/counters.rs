//! Counters by verdict.

use linewarden_protocol::verdict::{VERDICT_SLOTS, Verdict};

/// How many packets got each verdict, and further counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// By verdict number.
    pub by_verdict: [u64; VERDICT_SLOTS],
    /// Events that were lost because the queue was full.
    pub events_lost: u64,
    /// Packets that the kernel dropped before the data plane received them, because the sockets' receive buffers were
    /// full. `host` only.
    pub kernel_drops: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            by_verdict: [0; VERDICT_SLOTS],
            events_lost: 0,
            kernel_drops: 0,
        }
    }
}

impl Counters {
    /// The count of one verdict.
    #[must_use]
    pub fn get(&self, verdict: Verdict) -> u64 {
        self.by_verdict
            .get(usize::from(verdict.number()))
            .copied()
            .unwrap_or_default()
    }

    /// Adds `count` packets with a verdict.
    pub fn add(&mut self, verdict: Verdict, count: u64) {
        if let Some(counter) = self.by_verdict.get_mut(usize::from(verdict.number())) {
            *counter += count;
        }
    }

    /// Adds the counts of another set.
    pub fn merge(&mut self, other: &Self) {
        self.by_verdict
            .iter_mut()
            .zip(other.by_verdict)
            .for_each(|(sum, count)| *sum += count);
        self.events_lost += other.events_lost;
        self.kernel_drops += other.kernel_drops;
    }

    /// The counts since the earlier snapshot `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut out = self.clone();
        out.by_verdict
            .iter_mut()
            .zip(before.by_verdict)
            .for_each(|(count, earlier)| *count = count.saturating_sub(earlier));
        out.events_lost = self.events_lost.saturating_sub(before.events_lost);
        out.kernel_drops = self.kernel_drops.saturating_sub(before.kernel_drops);
        out
    }

    /// The verdicts with a nonzero count.
    pub fn nonzero(&self) -> impl Iterator<Item = (Verdict, u64)> + '_ {
        Verdict::ALL
            .iter()
            .map(|verdict| (*verdict, self.get(*verdict)))
            .filter(|(_, count)| *count > 0)
    }
}
