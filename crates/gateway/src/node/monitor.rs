//! The monitor of the data plane: its events, counters and failures.

use std::collections::BTreeMap;

use linewarden_dataplane::{Counters, Event, EventKind};
use linewarden_protocol::ids::{Mode, SessionId};

use super::context::Context;
use super::status::{PacketEvidenceStatus, Status};
use crate::audit::{AuditEvent, Binding, session_name};

/// Target of log messages about wrong tags, for log filters.
pub const WRONG_TAGS: &str = "linewarden_gateway::wrong_tags";

/// The latest state of the data plane.
#[derive(Debug, Default)]
pub(super) struct DataPlaneMonitor {
    /// Events that the data plane has lost, at the last check.
    events_lost: u64,
    /// Packets that the kernel has dropped, at the last check.
    kernel_drops: u64,
    /// Whether reading events fails.
    events_failing: bool,
    sessions_opened: u64,
    wrong_tags: u64,
    wrong_proofs: u64,
    failure: Option<String>,
    packet_evidence: Option<PacketEvidenceStatus>,
    dropped_types: BTreeMap<String, u64>,
}

impl DataPlaneMonitor {
    /// Reads the events of the data plane.
    pub(super) fn read_events(&mut self, context: &mut Context) -> Vec<Event> {
        let mut events = Vec::new();
        let result = context.data_plane.drain_events(&mut |event| events.push(event));
        if let Err(error) = &result
            && !self.events_failing
        {
            tracing::error!(
                %error,
                action = "restart the gateway if the error persists",
                "reading events of the data plane failed; retrying; new rows are not requested until reading succeeds"
            );
        }
        self.events_failing = result.is_err();
        events
    }

    /// Counts and logs an event.
    pub(super) fn record(&mut self, event: &Event, context: &mut Context) {
        match event.kind {
            EventKind::Session(_) => {
                self.sessions_opened += 1;
                tracing::debug!(device_id = %event.device, row = %event.idx, peer = %event.source, "session opened");
            }
            EventKind::RowsLow | EventKind::RowsExhausted => {}
            EventKind::WrongTag => {
                self.wrong_tags += 1;
                context.audit.record(AuditEvent::WrongTag {
                    device: event.device,
                    row: event.idx,
                    address: event.source,
                    ingress: event.ingress,
                });
                tracing::warn!(
                    target: WRONG_TAGS,
                    device_id = %event.device,
                    row = %event.idx,
                    peer = %event.source,
                    action = "if the device is healthy, look for a forger at the address; otherwise check the PUF and the helper data of the device",
                    "message of a device has a wrong tag; the message was dropped"
                );
            }
            EventKind::WrongProof(round) => {
                self.wrong_proofs += 1;
                context.audit.record(AuditEvent::WrongProof {
                    device: event.device,
                    round: round.0,
                    address: event.source,
                    ingress: event.ingress,
                });
                tracing::debug!(device_id = %event.device, %round, peer = %event.source, "proof of a device has a wrong tag; the proof does not count");
            }
        }
    }

    /// Reads counters and failures. Returns whether the data plane has lost events, so that all devices must be checked.
    pub(super) fn check(&mut self, context: &mut Context) -> bool {
        self.failure = context.data_plane.failure();
        self.read_stamp_counts(context);
        self.read_dropped_types(context);
        match context.data_plane.counters() {
            Ok(counters) => {
                context.audit.record_counters(&counters, false);
                self.log_kernel_drops(counters.kernel_drops);
                self.log_lost_events(&counters)
            }
            Err(error) => {
                tracing::warn!(%error, "reading the counters of the data plane failed; retrying at the next housekeeping");
                false
            }
        }
    }

    fn log_lost_events(&mut self, counters: &Counters) -> bool {
        let lost = counters.events_lost.saturating_sub(self.events_lost);
        if lost > 0 {
            tracing::warn!(count = lost, "data plane lost events; checking all devices");
            self.events_lost = counters.events_lost;
        }
        lost > 0
    }

    /// Logs packets that the kernel has dropped since the previous call.
    fn log_kernel_drops(&mut self, kernel_drops: u64) {
        if kernel_drops > self.kernel_drops {
            tracing::warn!(
                count = kernel_drops - self.kernel_drops,
                action = "raise the sysctl net.core.rmem_max, or grant CAP_NET_ADMIN",
                "kernel dropped packets before the data plane received them: receive buffer full"
            );
            self.kernel_drops = kernel_drops;
        }
    }

    fn read_stamp_counts(&mut self, context: &Context) {
        match context.data_plane.stamp_counts() {
            Ok(counts) => {
                self.packet_evidence = counts.map(|counts| PacketEvidenceStatus {
                    stamped: counts.stamped,
                    not_ipv6: counts.not_ipv6,
                    stale: counts.stale,
                    unsuitable: counts.unfit,
                });
            }
            Err(error) => {
                tracing::warn!(%error, "reading the counters of packet evidence failed; retrying at the next housekeeping")
            }
        }
    }

    fn read_dropped_types(&mut self, context: &Context) {
        match context.data_plane.dropped_types() {
            Ok(None) => {}
            Ok(Some(dropped)) => {
                let by_name = dropped.nonzero().map(|(ether_type, name, frames)| {
                    let name = name.map_or_else(|| format!("{ether_type:#06x}"), str::to_owned);
                    (name, frames)
                });
                let unnamed = Some(("other".to_owned(), dropped.other())).filter(|(_, frames)| *frames > 0);
                self.dropped_types = by_name.chain(unnamed).collect();
            }
            Err(error) => {
                tracing::warn!(%error, "reading the gate's counters of dropped types failed; retrying at the next housekeeping")
            }
        }
    }

    pub(super) fn report(&self, status: &mut Status) {
        status.events_failing = self.events_failing;
        status.sessions_opened = self.sessions_opened;
        status.wrong_tags = self.wrong_tags;
        status.wrong_proofs = self.wrong_proofs;
        status.data_plane_failure.clone_from(&self.failure);
        status.packet_evidence.clone_from(&self.packet_evidence);
        status.dropped_types.clone_from(&self.dropped_types);
    }
}

/// Writes the audit record of a session of a device in this mode. The binding is read from the data plane, unless the session
/// has changed.
pub(super) fn audit_session(event: &Event, session: SessionId, mode: Mode, context: &mut Context) {
    if !context.audit.is_on() {
        return;
    }
    let view = context
        .data_plane
        .session(event.device)
        .filter(|view| view.id == session);
    let binding = view.map(|view| Binding {
        port: view.port,
        vlans: view.vlans.into_iter().flatten().collect(),
        mac: view.is_bound.then(|| {
            let [a, b, c, d, e, f] = view.mac;
            format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
        }),
    });
    context.audit.record(AuditEvent::Session {
        device: event.device,
        mode,
        row: event.idx,
        session: session_name(session),
        address: event.source,
        ingress: event.ingress,
        binding,
    });
}
