//! Counts datagrams that the agent or the kernel dropped.

use linewarden_socket::kernel_drops;

use super::Agent;
use crate::event::{EventSink, LOSS_COUNTERS};
use crate::time::boot_ms;

impl Agent {
    /// Reports an increase of losses, at most once a minute, and at the end.
    pub(super) fn report_losses(&mut self, is_end: bool, sink: EventSink<'_>) {
        let now_ms = boot_ms();
        if self.loss_reporter.is_due(now_ms) || is_end {
            let losses = self.losses();
            self.loss_reporter.report(losses, now_ms, sink);
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
