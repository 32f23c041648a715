//! Provers at a gateway whose data plane does not attest: they are served like other devices, but not challenged. The
//! gateway logs these provers, because no other gateway does. The previous gateway of such a prover finds the prover
//! unreachable, which causes no quarantine.

use std::collections::HashSet;

use linewarden_protocol::ids::DeviceId;
use linewarden_types::{ControllerRequest, Kind, LinkError, ListProverIds, ProverIds};

use crate::audit::AuditEvent;
use crate::node::channel::Channel;
use crate::node::context::Context;
use crate::node::devices::DeviceCache;

/// Interval of requests for prover ids, ns.
const POLL_NS: u64 = 5_000_000_000;

/// The ids of provers at a revision.
#[derive(Debug)]
pub(in crate::node) struct UnattestedProvers {
    provers: HashSet<DeviceId>,
    /// The revision up to which `provers` is complete.
    upto: u64,
    due_ns: u64,
    channel: Channel,
    /// Number of provers at this gateway.
    present_count: u64,
    /// Provers that were logged.
    logged: HashSet<DeviceId>,
}

impl Default for UnattestedProvers {
    fn default() -> Self {
        Self {
            provers: HashSet::new(),
            upto: 0,
            due_ns: 0,
            channel: Channel::new(Kind::ListProverIds),
            present_count: 0,
            logged: HashSet::new(),
        }
    }
}

impl UnattestedProvers {
    /// Invalidates a request in flight after a restore of the registry.
    pub(in crate::node) fn invalidate(&mut self) {
        self.channel.invalidate();
    }

    /// Number of provers at this gateway.
    pub(in crate::node) fn present_count(&self) -> u64 {
        self.present_count
    }

    /// Requests the ids of provers, if they are due.
    pub(in crate::node) fn request(&mut self, context: &Context) -> Option<ControllerRequest> {
        let is_due = self.due_ns <= context.now_ns();
        (is_due && self.channel.try_send(context.clock)).then(|| ListProverIds { since: self.upto }.into())
    }

    pub(in crate::node) fn accept(
        &mut self,
        result: Result<ProverIds, LinkError>,
        devices: &DeviceCache,
        context: &mut Context,
    ) {
        let Some(prover_ids) = context.receive(&mut self.channel, result) else {
            return;
        };
        for device in prover_ids.removed {
            self.provers.remove(&device);
            self.logged.remove(&device);
        }
        self.provers.extend(prover_ids.provers);
        self.upto = prover_ids.up_to_revision;
        if prover_ids.has_more {
            self.due_ns = context.now_ns();
            return;
        }
        self.due_ns = context.now_ns().saturating_add(POLL_NS);
        self.update(devices, context);
    }

    /// Counts the provers at this gateway, and logs new provers.
    pub(in crate::node) fn update(&mut self, devices: &DeviceCache, context: &mut Context) {
        if self.provers.is_empty() {
            self.present_count = 0;
            return;
        }
        let present = devices.present_of(&self.provers);
        self.present_count = present.len() as u64;
        let logged = &mut self.logged;
        let new: Vec<DeviceId> = present
            .into_iter()
            .filter(|device| logged.insert(*device))
            .collect();
        if new.is_empty() {
            return;
        }
        tracing::warn!(
            count = self.present_count,
            action = "add [attest] to the configuration, or move the devices to a gateway with [attest]",
            "some devices must be attested, but this gateway has no [attest]"
        );
        for device in new {
            context.audit.record(AuditEvent::NotAttested { device });
        }
    }
}
