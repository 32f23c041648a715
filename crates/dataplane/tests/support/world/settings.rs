//! Settings that change while packets flow, on the oracle and all data planes alike, and what lease a repeated ACK names
//! after such a change (LAP/1 1.4.4).

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Release};

use linewarden_dataplane::{DataPlane as _, Live, Store};
use linewarden_protocol::gateway::{self, LineView};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::sources::{DeviceSources, OwnAddress, Prefix};
use linewarden_protocol::verdict::Verdict;

use super::{INGRESS, World};
use crate::support::reply;
use crate::support::shape::{device_prefixes, own_address};

/// The settings in force and the leases before, in the time of oracle and `host`.
pub struct Settings {
    pub live: Live,
    shortest_s: u32,
    /// The second in which the lease was last changed.
    changed_s: Option<u32>,
}

impl Settings {
    pub fn new(live: Live) -> Self {
        Self {
            shortest_s: live.lease_s,
            changed_s: None,
            live,
        }
    }

    fn change(&mut self, live: &Live, boot_s: u32) {
        if live.lease_s != self.live.lease_s {
            self.shortest_s = self.shortest_s.min(live.lease_s);
            self.changed_s = Some(boot_s);
        }
        self.live = live.clone();
    }

    /// What is told of its lease to a session that ends at `until_s`: the data planes do not keep it.
    fn lease_again(&self, until_s: u32) -> u32 {
        match self.changed_s {
            Some(at_s) if until_s - self.live.lease_s.min(until_s) <= at_s => self.shortest_s,
            _ => self.live.lease_s,
        }
    }
}

impl World {
    pub fn live(&self) -> Live {
        self.settings.live.clone()
    }

    /// Puts other settings into force.
    pub fn reconfigure(&mut self, live: &Live) {
        let boot_s = self.boot_s();
        self.oracle.reconfigure(gateway::Live {
            sources: Some(live.sources.clone()),
            lease_s: live.lease_s,
            nak_per_s: live.nak_per_s,
            miss_per_s: live.miss_per_s,
        });
        let shifts = self.shifts_s();
        self.each_plane(|plane, at| plane.reconfigure(live, boot_s - shifts[at]).unwrap());
        self.settings.change(live, boot_s);
    }

    /// From now on devices are in these prefixes.
    pub fn move_devices(&mut self, prefixes: &[&str]) {
        let prefixes: Vec<Prefix> = prefixes.iter().map(|text| text.parse().unwrap()).collect();
        self.set_sources(&prefixes, &[own_address()]);
    }

    /// From now on the gateway's machine has these addresses beside its own.
    pub fn move_gateway(&mut self, addresses: &[IpAddr]) {
        let further = addresses.iter().copied().map(OwnAddress::alone);
        let own: Vec<_> = [own_address()].into_iter().chain(further).collect();
        self.set_sources(&device_prefixes(), &own);
    }

    /// From now on devices are in these prefixes, and the gateway's machine has these addresses.
    pub fn set_sources(&mut self, prefixes: &[Prefix], own: &[OwnAddress]) {
        let mut live = self.live();
        live.sources = DeviceSources::new(prefixes, &self.shape.config().local, own);
        self.reconfigure(&live);
        self.each_plane(|plane, _| drop(plane.set_sources(&live.sources)));
    }

    /// Settings that forward to the devices' side are refused as a whole.
    pub fn refuse(&mut self, live: &Live) {
        let mut live = live.clone();
        live.forward_to.push(INGRESS);
        let side = self.xdp.as_mut().unwrap();
        side.xdp.reconfigure(&live, 0).unwrap_err();
    }

    /// Those that the world began with; no other lease was ever in force.
    pub(super) fn forget_settings(&mut self) {
        let live = self.shape.config().live();
        self.reconfigure(&live);
        self.settings = Settings::new(live);
        let lease_s = self.settings.live.lease_s;
        self.each_region(|regions, _| {
            let cells = &regions.control[0].live;
            cells.lease_least_s.store(lease_s, Release);
            cells.lease_from_s.store(0, Release);
        });
    }

    /// Of the boot-time clock, as oracle and `host` read it.
    pub(super) fn boot_s(&self) -> u32 {
        u32::try_from(self.now().boot_ms / 1000).unwrap()
    }

    /// By how much that is ahead of what each data plane's memory counts in.
    pub(super) fn shifts_s(&self) -> [u32; 3] {
        let shift_s = u32::try_from(self.shift_ms / 1000).unwrap();
        [0, shift_s, shift_s]
    }

    /// What each data plane must reply where the oracle replies `out`: the lease in a repeated ACK may be a shorter one.
    pub(super) fn replies(
        &self,
        line: Option<&LineView>,
        verdict: Verdict,
        out: &[u8],
        id: Option<DeviceId>,
    ) -> [Vec<u8>; 2] {
        let (Verdict::ReplyAckAgain, Some(line), Some(id)) = (verdict, line, id) else {
            return [out.to_vec(), out.to_vec()];
        };
        let mut replies = [out.to_vec(), out.to_vec()];
        let shifts = self.shifts_s();
        for (store, at) in self.stores() {
            let until_s = Self::lease_until_s(store, id).saturating_add(shifts[at]);
            let lease_s = self.settings.lease_again(until_s);
            let granted_s = line.session.lease_s;
            assert!(
                lease_s <= granted_s,
                "{lease_s} s told of a lease of {granted_s} s"
            );
            let is_unchanged = self
                .settings
                .changed_s
                .is_none_or(|at_s| line.lease_until_s - granted_s > at_s + 1);
            assert!(
                lease_s == granted_s || !is_unchanged,
                "{lease_s} s of {granted_s} s, unchanged"
            );
            replies[at] = reply::with_lease(out, &line.session.session_key, lease_s);
        }
        replies
    }

    fn lease_until_s(store: &Store, id: DeviceId) -> u32 {
        store.line(id).unwrap().0.lease_until_s.load(Acquire)
    }
}
