//! Which session owns an address: two tables of hints, by IP address and by (interface, VLANs, MAC).
//!
//! A *key* is an address of one of these two kinds. An entry only states that a device claimed a key at some time. The
//! entry counts only while the session of the device holds the key, so entries of ended sessions are harmless until
//! user space sweeps them.

use alloc::collections::{BTreeMap, BTreeSet};

use super::line::Line;
use crate::frame::{Mac, Meta};
use crate::ids::DeviceId;
use crate::time::BootTime;

/// An address that a session can own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum BindingKey {
    /// An IP address.
    Address([u8; 16]),
    /// A MAC address behind an interface and VLANs. Only BOUND sessions own a MAC address.
    Mac(u32, [u16; 2], Mac),
}

impl BindingKey {
    pub(super) fn address(meta: &Meta) -> Self {
        Self::Address(meta.src_ip)
    }

    pub(super) fn mac(meta: &Meta) -> Self {
        Self::Mac(meta.ingress, meta.vlans, meta.src_mac)
    }

    /// The keys that a session from this origin claims, in the order of the claims.
    pub(super) fn claimed_by(meta: &Meta, bound: bool) -> impl Iterator<Item = Self> {
        [Some(Self::address(meta)), bound.then(|| Self::mac(meta))]
            .into_iter()
            .flatten()
    }

    /// Whether the session of this line holds this key.
    pub(super) fn is_held_by(self, line: &Line) -> bool {
        Self::claimed_by(&line.session.origin, line.session.bound).any(|key| key == self)
    }
}

/// Why a claim failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClaimError {
    OwnedByOtherDevice,
    TableFull,
}

#[derive(Debug)]
pub(super) struct Bindings {
    entries_max: usize,
    claimants: BTreeMap<BindingKey, BTreeSet<DeviceId>>,
    addresses: usize,
    macs: usize,
}

impl Bindings {
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            entries_max,
            claimants: BTreeMap::new(),
            addresses: 0,
            macs: 0,
        }
    }

    /// Devices that have claimed this key.
    pub(super) fn claimants(&self, key: BindingKey) -> impl Iterator<Item = DeviceId> {
        self.claimants.get(&key).into_iter().flatten().copied()
    }

    /// Whether a session of another device owns this key now.
    pub(super) fn is_owned_by_other(
        &self,
        lines: &BTreeMap<DeviceId, Line>,
        key: BindingKey,
        device: DeviceId,
        now: BootTime,
    ) -> bool {
        self.claimants(key)
            .filter(|claimant| *claimant != device)
            .filter_map(|claimant| lines.get(&claimant))
            .any(|line| line.owns_addresses(now) && key.is_held_by(line))
    }

    /// Whether the device has an entry for this key, or there is room for an entry.
    pub(super) fn has_room(&self, key: BindingKey, device: DeviceId) -> bool {
        let count = match key {
            BindingKey::Address(_) => self.addresses,
            BindingKey::Mac(..) => self.macs,
        };
        count < self.entries_max || self.claimants(key).any(|claimant| claimant == device)
    }

    /// Releases a key that the session of the device no longer holds.
    pub(super) fn release(&mut self, key: BindingKey, device: DeviceId) {
        let Some(devices) = self.claimants.get_mut(&key) else {
            return;
        };
        if !devices.remove(&device) {
            return;
        }
        if devices.is_empty() {
            self.claimants.remove(&key);
        }
        match key {
            BindingKey::Address(_) => self.addresses -= 1,
            BindingKey::Mac(..) => self.macs -= 1,
        }
    }

    /// Claims a key for a device whose session already holds it.
    pub(super) fn claim(
        &mut self,
        lines: &BTreeMap<DeviceId, Line>,
        key: BindingKey,
        device: DeviceId,
        now: BootTime,
    ) -> Result<(), ClaimError> {
        if self.is_owned_by_other(lines, key, device, now) {
            return Err(ClaimError::OwnedByOtherDevice);
        }
        if !self.has_room(key, device) {
            return Err(ClaimError::TableFull);
        }
        if self.claimants.entry(key).or_default().insert(device) {
            match key {
                BindingKey::Address(_) => self.addresses += 1,
                BindingKey::Mac(..) => self.macs += 1,
            }
        }
        Ok(())
    }

    /// Removes entries whose session was closed or has another address now; user space calls this periodically.
    /// Entries of expired sessions stay, so that their packets get the verdict for expired sessions.
    pub(super) fn sweep(&mut self, lines: &BTreeMap<DeviceId, Line>) {
        self.claimants.retain(|key, devices| {
            devices.retain(|device| {
                let line = lines.get(device);
                line.is_some_and(|line| line.has_session() && key.is_held_by(line))
            });
            !devices.is_empty()
        });
        let count = |is_address: bool| {
            let keys = self.claimants.iter();
            keys.filter(|(key, _)| matches!(key, BindingKey::Address(_)) == is_address)
                .map(|(_, devices)| devices.len())
                .sum()
        };
        (self.addresses, self.macs) = (count(true), count(false));
    }
}
