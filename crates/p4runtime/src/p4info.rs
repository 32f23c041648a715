//! P4Info: what of a P4 program a controller can name, as an index that was checked when it was made
//! (specification 6).
//!
//! The names here are those of the BMv2 JSON that `p4c` writes with the same command: `preamble.name` is the
//! JSON's `name` of a table, action, action profile, counter, meter, register, value set, digest, and a match
//! field's `name` that of the key's element; the numbers have nothing to do with the JSON's. Aliases are
//! shorter names for people.

mod elements;
mod error;
mod parts;
mod read;
mod types;

pub use elements::*;
pub use error::{ElementKind, P4InfoError, Problem};
pub use types::{HeaderType, Type};

use std::collections::BTreeMap;

use crate::ids::{ActionId, CounterId, DigestId, MeterId, ProfileId, RegisterId, TableId, ValueSetId};
use crate::proto::config;

/// The elements of one kind, found by number, name or alias.
#[derive(Clone, Debug)]
pub struct Index<I, T> {
    by_id: BTreeMap<I, T>,
    by_name: BTreeMap<String, I>,
    by_alias: BTreeMap<String, I>,
}

impl<I: Copy + Ord, T> Index<I, T> {
    /// The element of this number.
    pub fn get(&self, id: I) -> Option<&T> {
        self.by_id.get(&id)
    }

    /// The element of this name, or else of this alias.
    pub fn named(&self, name: &str) -> Option<&T> {
        let id = self.by_name.get(name).or_else(|| self.by_alias.get(name))?;
        self.by_id.get(id)
    }

    /// All elements, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_id.values()
    }

    /// All names, in order: for messages that list what there is.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}

/// A checked P4Info: every reference in it leads somewhere, every number and name is its element's only.
#[derive(Clone, Debug)]
pub struct P4Info {
    message: config::P4Info,
    tables: Index<TableId, Table>,
    actions: Index<ActionId, Action>,
    profiles: Index<ProfileId, Profile>,
    counters: Index<CounterId, Counter>,
    meters: Index<MeterId, Meter>,
    registers: Index<RegisterId, Register>,
    digests: Index<DigestId, Digest>,
    value_sets: Index<ValueSetId, ValueSet>,
    packet_in: Option<ControllerHeader>,
    packet_out: Option<ControllerHeader>,
}

impl P4Info {
    /// The message this is an index of, unchanged.
    pub fn message(&self) -> &config::P4Info {
        &self.message
    }

    /// Tables, with their direct counters and meters.
    pub fn tables(&self) -> &Index<TableId, Table> {
        &self.tables
    }

    /// Actions.
    pub fn actions(&self) -> &Index<ActionId, Action> {
        &self.actions
    }

    /// Action profiles and selectors.
    pub fn profiles(&self) -> &Index<ProfileId, Profile> {
        &self.profiles
    }

    /// Indirect counters.
    pub fn counters(&self) -> &Index<CounterId, Counter> {
        &self.counters
    }

    /// Indirect meters.
    pub fn meters(&self) -> &Index<MeterId, Meter> {
        &self.meters
    }

    /// Registers.
    pub fn registers(&self) -> &Index<RegisterId, Register> {
        &self.registers
    }

    /// Digests.
    pub fn digests(&self) -> &Index<DigestId, Digest> {
        &self.digests
    }

    /// Parser value sets.
    pub fn value_sets(&self) -> &Index<ValueSetId, ValueSet> {
        &self.value_sets
    }

    /// The header of packets to the controller, if the program declares one.
    pub fn packet_in(&self) -> Option<&ControllerHeader> {
        self.packet_in.as_ref()
    }

    /// The header of packets from the controller, if the program declares one.
    pub fn packet_out(&self) -> Option<&ControllerHeader> {
        self.packet_out.as_ref()
    }
}
