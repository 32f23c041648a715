//! Counters of dropped non-IP frames by Ethernet type. The table has a fixed size, so that a sender of many types
//! cannot make it grow, and reserved slots for the types of industrial networks.

use alloc::vec::Vec;

use super::control::{LLC, protocol_type};

/// Types with reserved slots, and their names.
pub const KNOWN_TYPES: [(u16, &str); 24] = [
    (LLC, "llc"),
    (0x0806, "arp"),
    (0x8035, "rarp"),
    (0x8100, "vlan"),
    (0x88a8, "service_vlan"),
    (0x9100, "vlan_9100"),
    (0x8892, "profinet"),
    (0x88b8, "goose"),
    (0x88b9, "gse_management"),
    (0x88ba, "sampled_values"),
    (0x88a4, "ethercat"),
    (0x88ab, "powerlink"),
    (0x88cd, "sercos"),
    (0x890f, "cc_link_ie"),
    (0x88e3, "mrp"),
    (0x88fb, "prp"),
    (0x892f, "hsr"),
    (0x88f7, "ptp"),
    (0x88cc, "lldp"),
    (0x888e, "eapol"),
    (0x8809, "slow_protocols"),
    (0x88e5, "macsec"),
    (0x8847, "mpls"),
    (0x8863, "pppoe_discovery"),
];
/// Number of counters; counters without a reservation are for the first other types that the gate drops.
pub const DROPPED_TYPES: usize = 40;

/// How many frames of each Ethernet type a gate has dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DroppedTypes {
    /// Type ([`LLC`] for frames with a length in place of the type) and number of frames.
    types: Vec<(u16, u64)>,
    /// Frames of types without a slot.
    other: u64,
}

impl Default for DroppedTypes {
    fn default() -> Self {
        Self {
            types: KNOWN_TYPES
                .iter()
                .map(|(ether_type, _)| (*ether_type, 0))
                .collect(),
            other: 0,
        }
    }
}

impl DroppedTypes {
    /// The counters of a data plane: its used slots in their order, and the frames without a slot.
    #[must_use]
    pub fn from_counts(types: Vec<(u16, u64)>, other: u64) -> Self {
        Self { types, other }
    }

    /// Counts a frame by its Ethernet type or [`LLC`].
    pub(super) fn count(&mut self, ether_type: u16) {
        let ether_type = protocol_type(ether_type);
        let is_full = self.types.len() >= DROPPED_TYPES;
        match self
            .types
            .iter_mut()
            .find(|(counted_type, _)| *counted_type == ether_type)
        {
            Some((_, frames)) => *frames += 1,
            None if is_full => self.other += 1,
            None => self.types.push((ether_type, 1)),
        }
    }

    /// All nonzero counters: the type, its name if it has one, and the frames.
    pub fn nonzero(&self) -> impl Iterator<Item = (u16, Option<&'static str>, u64)> + '_ {
        let name = |ether_type| {
            let mut known = KNOWN_TYPES.iter();
            known
                .find(|(known, _)| *known == ether_type)
                .map(|(_, name)| *name)
        };
        let nonzero = self.types.iter().filter(|(_, frames)| *frames > 0);
        nonzero.map(move |(ether_type, frames)| (*ether_type, name(*ether_type), *frames))
    }

    /// Whether this is the name of a type with a reserved slot.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        KNOWN_TYPES.iter().any(|(_, known)| *known == name)
    }

    /// Frames of types without a slot.
    #[must_use]
    pub fn other(&self) -> u64 {
        self.other
    }
}
