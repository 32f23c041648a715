//! Counters of datagrams that the agent or the kernel dropped, and when they are reported.

use std::collections::BTreeMap;

use linewarden_socket::kernel_drops;

use super::{Agent, Sink};
use crate::report::{LOSSES, Report};
use crate::time::boot_ms;

/// Between two readings of the counters, ms.
const LOOK_MS: u64 = 10_000;
/// Between two reports, ms.
const TELL_MS: u64 = 60_000;

/// What was reported last, and when the counters are read again.
#[derive(Debug, Default)]
pub(super) struct Reported {
    losses: [u64; LOSSES.len()],
    look_at_ms: u64,
    /// What the kernel had dropped of sockets to the gateway that are closed.
    pub(super) lap_before: u64,
}

impl Agent {
    /// Reports losses if there are more of them: now and then, and at the end.
    pub(super) fn tell_losses(&mut self, is_end: bool, sink: Sink<'_>) {
        let now_ms = boot_ms();
        if now_ms < self.losses.look_at_ms && !is_end {
            return;
        }
        let losses = self.losses();
        let is_news = losses != self.losses.losses;
        self.losses.look_at_ms = now_ms.saturating_add(if is_news { TELL_MS } else { LOOK_MS });
        self.losses.losses = losses;
        if is_news {
            let datagrams: BTreeMap<_, _> = LOSSES.into_iter().zip(losses).collect();
            sink(&Report::DatagramsLost { datagrams });
        }
    }

    /// In the order of [`LOSSES`].
    fn losses(&self) -> [u64; LOSSES.len()] {
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
            self.lap_drops(),
            self.tickets.kernel_drops(),
            attestation.map_or(0, |attestation| attestation.kernel_drops()),
        ]
    }

    /// What the kernel has dropped on its way from the gateway.
    pub(super) fn lap_drops(&self) -> u64 {
        let link = self.link.as_ref();
        let drops = link.and_then(|link| kernel_drops(&link.socket).ok());
        self.losses.lap_before + drops.unwrap_or_default()
    }
}
