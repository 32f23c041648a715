//! P4Info: a checked index of the elements of a P4 program that a controller can refer to
//! (specification 6).
//!
//! A name equals the name in the BMv2 JSON of the same `p4c` run: `preamble.name` is the JSON's `name` of a table, action,
//! action profile, counter, meter, register, value set or digest. The `name` of a match field is the JSON's `name` of the
//! key element. The ids are unrelated to the ids of the JSON. Aliases are short names for people.

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

/// Elements of one kind, indexed by id, name and alias.
#[derive(Clone, Debug)]
pub struct Index<I, T> {
    by_id: BTreeMap<I, T>,
    by_name: BTreeMap<String, I>,
    by_alias: BTreeMap<String, I>,
}

impl<I: Copy + Ord, T> Index<I, T> {
    /// Element with this id.
    pub fn get(&self, id: I) -> Option<&T> {
        self.by_id.get(&id)
    }

    /// Element with this name, or else with this alias.
    pub fn by_name_or_alias(&self, name: &str) -> Option<&T> {
        let id = self.by_name.get(name).or_else(|| self.by_alias.get(name))?;
        self.by_id.get(id)
    }

    /// All elements, ordered by id.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_id.values()
    }

    /// All names, sorted; for error messages.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}

/// Checked P4Info: every reference resolves, every id and name is unique.
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
    /// The indexed message, unchanged.
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

    /// Header of packet-ins, if the program declares one.
    pub fn packet_in(&self) -> Option<&ControllerHeader> {
        self.packet_in.as_ref()
    }

    /// Header of packet-outs, if the program declares one.
    pub fn packet_out(&self) -> Option<&ControllerHeader> {
        self.packet_out.as_ref()
    }
}
