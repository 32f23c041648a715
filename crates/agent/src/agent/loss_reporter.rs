//! Reports datagrams that the agent or the kernel dropped.

use std::collections::BTreeMap;

use crate::event::{AgentEvent, EventSink, LOSS_COUNTERS};

/// Interval between readings of the counters, ms.
const READ_INTERVAL_MS: u64 = 10_000;
/// Interval between reports, ms.
const REPORT_INTERVAL_MS: u64 = 60_000;

/// The counters at the last reading, and the time of the next reading.
#[derive(Debug, Default)]
pub(super) struct LossReporter {
    losses: [u64; LOSS_COUNTERS.len()],
    next_reading_ms: u64,
    /// Kernel drops of closed sockets to the gateway.
    pub(super) closed_link_drops: u64,
}

impl LossReporter {
    /// Whether the counters must be read.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.next_reading_ms
    }

    /// Reports the counters if one has increased since the last reading.
    pub(super) fn report(&mut self, losses: [u64; LOSS_COUNTERS.len()], now_ms: u64, sink: EventSink<'_>) {
        let has_changed = losses != self.losses;
        self.next_reading_ms = now_ms.saturating_add(if has_changed {
            REPORT_INTERVAL_MS
        } else {
            READ_INTERVAL_MS
        });
        self.losses = losses;
        if has_changed {
            let datagrams: BTreeMap<_, _> = LOSS_COUNTERS.into_iter().zip(losses).collect();
            sink(&AgentEvent::DatagramsLost { datagrams });
        }
    }
}
