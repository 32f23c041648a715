//! Which session owns an address: two tables of hints, by IP address and by (interface, VLANs, MAC).
//!
//! An entry says only that a device has claimed a key once. It is believed when that device's session carries this
//! very key now, so entries of dead sessions are harmless until user space sweeps them.

use alloc::collections::{BTreeMap, BTreeSet};

use super::line::Line;
use crate::frame::{Mac, Meta};
use crate::ids::DeviceId;
use crate::time::BootTime;

/// What a session can own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Key {
    /// An IP address.
    Address([u8; 16]),
    /// A MAC address behind an interface and VLANs; only BOUND sessions own one.
    Mac(u32, [u16; 2], Mac),
}

impl Key {
    pub(super) fn address(meta: &Meta) -> Self {
        Self::Address(meta.src_ip)
    }

    pub(super) fn mac(meta: &Meta) -> Self {
        Self::Mac(meta.ingress, meta.vlans, meta.src_mac)
    }

    /// The keys that a session from there claims, in the order of claiming.
    pub(super) fn of(meta: &Meta, bound: bool) -> impl Iterator<Item = Self> {
        [Some(Self::address(meta)), bound.then(|| Self::mac(meta))]
            .into_iter()
            .flatten()
    }

    /// Whether that line's session carries this key.
    pub(super) fn is_carried_by(self, line: &Line) -> bool {
        Self::of(&line.session.from, line.session.bound).any(|key| key == self)
    }
}

/// Why a claim failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClaimError {
    Owned,
    Full,
}

#[derive(Debug)]
pub(super) struct Bindings {
    entries_max: usize,
    claimants: BTreeMap<Key, BTreeSet<DeviceId>>,
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

    /// Devices that have claimed that key.
    pub(super) fn claimants(&self, key: Key) -> impl Iterator<Item = DeviceId> {
        self.claimants.get(&key).into_iter().flatten().copied()
    }

    /// Whether a session of another device owns that key now.
    pub(super) fn is_owned_by_other(
        &self,
        lines: &BTreeMap<DeviceId, Line>,
        key: Key,
        device: DeviceId,
        now: BootTime,
    ) -> bool {
        self.claimants(key)
            .filter(|claimant| *claimant != device)
            .filter_map(|claimant| lines.get(&claimant))
            .any(|line| line.owns_addresses(now) && key.is_carried_by(line))
    }

    /// Whether the device holds an entry for that key already, or there is room for one.
    pub(super) fn has_room(&self, key: Key, device: DeviceId) -> bool {
        let count = match key {
            Key::Address(_) => self.addresses,
            Key::Mac(..) => self.macs,
        };
        count < self.entries_max || self.claimants(key).any(|claimant| claimant == device)
    }

    /// Gives up a key that the device's session will not carry any more.
    pub(super) fn leave(&mut self, key: Key, device: DeviceId) {
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
            Key::Address(_) => self.addresses -= 1,
            Key::Mac(..) => self.macs -= 1,
        }
    }

    /// Claims a key for a device whose session carries it already.
    pub(super) fn claim(
        &mut self,
        lines: &BTreeMap<DeviceId, Line>,
        key: Key,
        device: DeviceId,
        now: BootTime,
    ) -> Result<(), ClaimError> {
        if self.is_owned_by_other(lines, key, device, now) {
            return Err(ClaimError::Owned);
        }
        if !self.has_room(key, device) {
            return Err(ClaimError::Full);
        }
        if self.claimants.entry(key).or_default().insert(device) {
            match key {
                Key::Address(_) => self.addresses += 1,
                Key::Mac(..) => self.macs += 1,
            }
        }
        Ok(())
    }

    /// Forgets entries whose session was closed or has moved on: user space's work, now and then. Those of a session
    /// whose lease is over stay: what comes from there is told so.
    pub(super) fn sweep(&mut self, lines: &BTreeMap<DeviceId, Line>) {
        self.claimants.retain(|key, devices| {
            devices.retain(|device| {
                let line = lines.get(device);
                line.is_some_and(|line| line.has_session() && key.is_carried_by(line))
            });
            !devices.is_empty()
        });
        let count = |is_address: bool| {
            let keys = self.claimants.iter();
            keys.filter(|(key, _)| matches!(key, Key::Address(_)) == is_address)
                .map(|(_, devices)| devices.len())
                .sum()
        };
        (self.addresses, self.macs) = (count(true), count(false));
    }
}
