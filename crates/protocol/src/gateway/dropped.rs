//! Frames other than IP that a gate has dropped, by Ethernet type: a table of fixed size, so that no sender of many types can
//! make it grow, and with places of its own for the types of industrial networks, so that none can push those out.

use alloc::vec::Vec;

use super::control::{LLC, named};

/// Types that have places of their own, with their names.
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
/// Places in all; the rest goes to the first other types that come.
pub const DROPPED_TYPES: usize = 40;

/// How many frames of each Ethernet type a gate has dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DroppedTypes {
    /// Type ([`LLC`] for frames with a length in its place) and frames.
    types: Vec<(u16, u64)>,
    /// Frames of types that found no place.
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
    /// The counts of a data plane: of its places, in their order, those that are taken, and of the rest.
    #[must_use]
    pub fn of(types: Vec<(u16, u64)>, other: u64) -> Self {
        Self { types, other }
    }

    /// Counts a frame by what stands where its Ethernet type does.
    pub(super) fn count(&mut self, ether_type: u16) {
        let ether_type = named(ether_type);
        let is_full = self.types.len() >= DROPPED_TYPES;
        match self.types.iter_mut().find(|(there, _)| *there == ether_type) {
            Some((_, frames)) => *frames += 1,
            None if is_full => self.other += 1,
            None => self.types.push((ether_type, 1)),
        }
    }

    /// Those of which there were any: the type, its name if it has one, and frames.
    pub fn nonzero(&self) -> impl Iterator<Item = (u16, Option<&'static str>, u64)> + '_ {
        let name = |ether_type| {
            let mut known = KNOWN_TYPES.iter();
            known
                .find(|(known, _)| *known == ether_type)
                .map(|(_, name)| *name)
        };
        let counted = self.types.iter().filter(|(_, frames)| *frames > 0);
        counted.map(move |(ether_type, frames)| (*ether_type, name(*ether_type), *frames))
    }

    /// Whether it is the name of an Ethernet type that has one.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        KNOWN_TYPES.iter().any(|(_, known)| *known == name)
    }

    /// Frames of types that found no place.
    #[must_use]
    pub fn other(&self) -> u64 {
        self.other
    }
}
