//! Reports datagrams that the agent or the kernel dropped.

use std::collections::BTreeMap;

use linewarden_socket::kernel_drops;

use super::{Agent, EventSink};
use crate::event::{AgentEvent, LOSS_COUNTERS};
use crate::time::boot_ms;

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

impl Agent {
    /// Reports an increase of losses, at most once a minute, and at the end.
    pub(super) fn report_losses(&mut self, is_end: bool, sink: EventSink<'_>) {
        let now_ms = boot_ms();
        if now_ms < self.loss_reporter.next_reading_ms && !is_end {
            return;
        }
        let losses = self.losses();
        let has_changed = losses != self.loss_reporter.losses;
        self.loss_reporter.next_reading_ms = now_ms.saturating_add(if has_changed {
            REPORT_INTERVAL_MS
        } else {
            READ_INTERVAL_MS
        });
        self.loss_reporter.losses = losses;
        if has_changed {
            let datagrams: BTreeMap<_, _> = LOSS_COUNTERS.into_iter().zip(losses).collect();
            sink(&AgentEvent::DatagramsLost { datagrams });
        }
    }

    /// The counters, in the order of [`LOSS_COUNTERS`].
    fn losses(&self) -> [u64; LOSS_COUNTERS.len()] {
        let tunnels = self.tunnels.counts();
        let peers = self.peers.counts();
        let attestation = self.attestation.as_ref();
        [
            tunnels.dropped_no_session,
            tunnels.dropped_too_long,
            tunnels.dropped_unsent,
            tunnels.dropped_unopened,
            tunnels.kernel_drops,
            peers.dropped_no_session,
            peers.dropped_too_long,
            peers.dropped_unsent,
            peers.dropped_undelivered,
            peers.dropped_unopened,
            peers.kernel_drops,
            self.link_drops(),
            self.tickets.kernel_drops(),
            attestation.map_or(0, |attestation| attestation.kernel_drops()),
        ]
    }

    /// Messages of the gateway that the kernel has dropped.
    pub(super) fn link_drops(&self) -> u64 {
        let link = self.link.as_ref();
        let drops = link.and_then(|link| kernel_drops(&link.socket).ok());
        self.loss_reporter.closed_link_drops + drops.unwrap_or_default()
    }
}
