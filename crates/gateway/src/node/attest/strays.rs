//! Provers that are at a gateway whose data plane attests nobody: they are served like all devices, and nobody asks them what they
//! run. That must be seen, since to their old gateway they are only out of reach, which quarantines nobody.

use std::collections::HashSet;

use linewarden_controller::attest::ProverIds;
use linewarden_protocol::ids::DeviceId;

use crate::audit::Happening;
use crate::exchange::{Ask, LinkError};
use crate::node::Node;
use crate::node::channel::Channel;
use crate::node::devices::State;
use crate::time::Clock;

/// How often the controller is asked who is a prover, ns.
const ASK_NS: u64 = 5_000_000_000;

/// Who is to be attested, as of a revision; empty where the data plane attests.
#[derive(Debug, Default)]
pub(in crate::node) struct Strays {
    provers: HashSet<DeviceId>,
    upto: u64,
    due_ns: u64,
    channel: Channel,
    /// Those of them that were here.
    told: HashSet<DeviceId>,
}

impl Strays {
    /// An answer that is out is of a registry that is gone.
    pub(in crate::node) fn void(&mut self) {
        self.channel.void();
    }
}

impl Node {
    /// Who is to be attested, where nobody is.
    pub(in crate::node) fn ask_about_strays(&mut self, clock: Clock) -> Option<Ask> {
        let strays = &mut self.strays;
        let is_due = !self.attests && strays.due_ns <= clock.monotonic_ns;
        (is_due && strays.channel.try_ask(clock)).then_some(Ask::ProverIds { since: strays.upto })
    }

    pub(in crate::node) fn take_prover_ids(&mut self, result: Result<ProverIds, LinkError>, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        let Some(found) = self.unwrap_answer(result, now_ns, |node| &mut node.strays.channel) else {
            return;
        };
        let strays = &mut self.strays;
        for device in found.removed {
            strays.provers.remove(&device);
            strays.told.remove(&device);
        }
        strays.provers.extend(found.provers);
        strays.upto = found.upto;
        if found.more {
            strays.due_ns = now_ns;
            return;
        }
        strays.due_ns = now_ns.saturating_add(ASK_NS);
        self.count_strays();
    }

    /// Tells of those that have come since it was done last.
    pub(in crate::node) fn count_strays(&mut self) {
        let Strays { provers, told, .. } = &mut self.strays;
        if provers.is_empty() {
            self.status.attest.not_attested = 0;
            return;
        }
        let is_here = |state| matches!(state, State::Waiting | State::Installed);
        let held = self.devices.iter();
        let here: Vec<DeviceId> = held
            .filter(|(device, held)| is_here(held.state) && provers.contains(device))
            .map(|(device, _)| *device)
            .collect();
        self.status.attest.not_attested = here.len() as u64;
        let new: Vec<DeviceId> = here.into_iter().filter(|device| told.insert(*device)).collect();
        if new.is_empty() {
            return;
        }
        tracing::warn!(
            devices = self.status.attest.not_attested,
            "these are to be attested, and nobody asks them: this gateway has no [attest]; give it one, or keep them away from it"
        );
        for device in new {
            self.trail.note(Happening::NotAttested { device });
        }
    }
}
