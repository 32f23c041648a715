//! Provers at a gateway whose data plane does not attest: they are served like other devices, but not challenged. The
//! gateway logs these provers, because no other gateway does. The previous gateway of such a prover finds the prover
//! unreachable, which causes no quarantine.

use std::collections::HashSet;

use linewarden_protocol::ids::DeviceId;
use linewarden_types::{LinkError, ProverIds};

use crate::audit::AuditEvent;
use crate::node::Node;
use crate::node::channel::Channel;
use crate::node::devices::State;
use crate::requests::ControllerRequest;
use crate::time::Clock;

/// Interval of requests for prover ids, ns.
const POLL_NS: u64 = 5_000_000_000;

/// The ids of provers at a revision; empty if the data plane attests.
#[derive(Debug, Default)]
pub(in crate::node) struct UnattestedProvers {
    provers: HashSet<DeviceId>,
    /// The revision up to which `provers` is complete.
    upto: u64,
    due_ns: u64,
    channel: Channel,
    /// Provers that were logged.
    logged: HashSet<DeviceId>,
}

impl UnattestedProvers {
    /// Invalidates a request in flight after a restore of the registry.
    pub(in crate::node) fn invalidate(&mut self) {
        self.channel.invalidate();
    }
}

impl Node {
    /// Requests the ids of provers, if the data plane does not attest.
    pub(in crate::node) fn prover_ids_request(&mut self, clock: Clock) -> Option<ControllerRequest> {
        let unattested = &mut self.unattested;
        let is_due = !self.can_attest && unattested.due_ns <= clock.monotonic_ns;
        (is_due && unattested.channel.try_send(clock)).then_some(ControllerRequest::ListProverIds {
            since: unattested.upto,
        })
    }

    pub(in crate::node) fn handle_prover_ids(&mut self, result: Result<ProverIds, LinkError>, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        let prover_ids = self.unwrap_response("list prover IDs", result, now_ns, |node| {
            &mut node.unattested.channel
        });
        let Some(prover_ids) = prover_ids else {
            return;
        };
        let unattested = &mut self.unattested;
        for device in prover_ids.removed {
            unattested.provers.remove(&device);
            unattested.logged.remove(&device);
        }
        unattested.provers.extend(prover_ids.provers);
        unattested.upto = prover_ids.up_to_revision;
        if prover_ids.has_more {
            unattested.due_ns = now_ns;
            return;
        }
        unattested.due_ns = now_ns.saturating_add(POLL_NS);
        self.update_not_attested();
    }

    /// Counts the provers at this gateway, and logs new provers.
    pub(in crate::node) fn update_not_attested(&mut self) {
        let UnattestedProvers { provers, logged, .. } = &mut self.unattested;
        if provers.is_empty() {
            self.status.attest.not_attested = 0;
            return;
        }
        let is_present = |state| matches!(state, State::Waiting | State::Installed);
        let devices = self.devices.iter();
        let present: Vec<DeviceId> = devices
            .filter(|(device, entry)| is_present(entry.state) && provers.contains(device))
            .map(|(device, _)| *device)
            .collect();
        self.status.attest.not_attested = present.len() as u64;
        let new: Vec<DeviceId> = present
            .into_iter()
            .filter(|device| logged.insert(*device))
            .collect();
        if new.is_empty() {
            return;
        }
        tracing::warn!(
            count = self.status.attest.not_attested,
            action = "add [attest] to the configuration, or move the devices to a gateway with [attest]",
            "some devices must be attested, but this gateway has no [attest]"
        );
        for device in new {
            self.audit.record(AuditEvent::NotAttested { device });
        }
    }
}
