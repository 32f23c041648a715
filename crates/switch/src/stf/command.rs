//! Commands of a test.

use super::expected_packet::ExpectedPacket;
use super::numbers::{KeyValue, Number};
use crate::meter::Rate;

/// Key field of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Field name in the test; [`super::names::resolve_key`] resolves it.
    pub name: String,
    /// Value to match.
    pub value: KeyValue,
}

/// Action with its arguments, as named in the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionCall {
    /// Action name in the test; [`super::names::resolve_name`] resolves it.
    pub name: String,
    /// Arguments by parameter name, in the order of the test.
    pub arguments: Vec<(String, Number)>,
}

/// Target of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Action (`add`).
    Action(ActionCall),
    /// Member of the table's action profile (`add_member`).
    Member(u32),
    /// Group of the table's action selector (`add_group`).
    Group(u32),
}

/// Entry to add to a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddEntry {
    /// Table name in the test; [`super::names::resolve_name`] resolves it.
    pub table: String,
    /// Priority in the test: the highest number wins, as in P4Runtime.
    pub priority: Option<u32>,
    /// Key fields in any order; at least one.
    pub keys: Vec<Key>,
    /// Target.
    pub target: Target,
    /// Name of the entry in the test.
    pub entry_name: Option<String>,
}

impl AddEntry {
    /// Priority for BMv2, where the lowest number wins: 10000 minus the priority in the test, as in p4c's runner.
    pub fn bmv2_priority(&self) -> Option<i64> {
        self.priority.map(|priority| 10_000 - i64::from(priority))
    }
}

/// Cell of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CounterCell {
    /// Index of the cell.
    Index(u64),
    /// Direct counter of a named entry (`$NAME`).
    Entry(String),
}

/// Unit of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedUnit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
}

/// Comparison of a count with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

impl Comparison {
    /// Evaluates the comparison.
    pub fn holds(self, counted: u64, expected: u64) -> bool {
        match self {
            Self::Equal => counted == expected,
            Self::NotEqual => counted != expected,
            Self::Less => counted < expected,
            Self::LessOrEqual => counted <= expected,
            Self::Greater => counted > expected,
            Self::GreaterOrEqual => counted >= expected,
        }
    }
}

/// Expected value of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterCheck {
    /// Packets or bytes.
    pub unit: CountedUnit,
    /// Comparison.
    pub comparison: Comparison,
    /// Number to compare with.
    pub expected: u64,
}

/// Command of a test.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `add`, `add_member`, `add_group`.
    Add(AddEntry),
    /// `setdefault`: sets the default action of a table.
    SetDefault {
        /// Table name in the test.
        table: String,
        /// New default action.
        action: ActionCall,
    },
    /// `remove all`: removes the entries of all tables.
    RemoveAll,
    /// `packet`: sends a packet to a port of the switch.
    Packet {
        /// Port.
        port: u32,
        /// Complete frame.
        bytes: Vec<u8>,
    },
    /// `expect`: expects a packet from a port.
    Expect {
        /// Port.
        port: u32,
        /// Expected packet; `None` for any packet.
        packet: Option<ExpectedPacket>,
    },
    /// `no_packet`: ports that do not occur in the test must also send nothing.
    NoPacket,
    /// `wait`: waits until all packets have been processed.
    Wait,
    /// `check_counter`.
    CheckCounter {
        /// Counter name in the test.
        counter: String,
        /// Cell.
        cell: CounterCell,
        /// Expected value; `None` only checks that the cell exists.
        check: Option<CounterCheck>,
    },
    /// `mirroring_add`: adds a clone session with a port.
    MirroringAdd {
        /// Session.
        session: u32,
        /// Destination of clones.
        port: u32,
    },
    /// `mirroring_add_mc`: adds a clone session with a multicast group.
    MirroringAddGroup {
        /// Session.
        session: u32,
        /// Destination of clones.
        group: u32,
    },
    /// `mirroring_delete`.
    MirroringDelete {
        /// Session.
        session: u32,
    },
    /// `mirroring_get`: prints a session.
    MirroringGet {
        /// Session.
        session: u32,
    },
    /// `mc_mgrp_create`: creates a multicast group.
    GroupCreate {
        /// Group.
        group: u32,
    },
    /// `mc_node_create`: creates a node; nodes are numbered from 0 in the order of creation.
    NodeCreate {
        /// Replication id of the replicas (`egress_rid`).
        rid: u32,
        /// Ports of the replicas.
        ports: Vec<u32>,
    },
    /// `mc_node_update`: sets the ports of a node.
    NodeUpdate {
        /// Number of the node.
        node: u32,
        /// Ports of the replicas.
        ports: Vec<u32>,
    },
    /// `mc_node_associate`: adds a node to a group.
    NodeAssociate {
        /// Group. BMv2 uses the handle, which equals the number.
        group: u32,
        /// Number of the node.
        node: u32,
    },
    /// `counter_read`: prints a cell.
    CounterRead {
        /// Counter name in the test.
        counter: String,
        /// Index of the cell.
        index: u64,
    },
    /// `counter_write`.
    CounterWrite {
        /// Counter name in the test.
        counter: String,
        /// Index of the cell.
        index: u64,
        /// New packet count.
        packets: u64,
        /// New byte count.
        bytes: u64,
    },
    /// `register_read`: prints a cell.
    RegisterRead {
        /// Register array name in the test.
        register: String,
        /// Index of the cell.
        index: u64,
    },
    /// `register_write`.
    RegisterWrite {
        /// Register array name in the test.
        register: String,
        /// Index of the cell.
        index: u64,
        /// New value.
        value: Number,
    },
    /// `register_reset`: sets all cells to zero.
    RegisterReset {
        /// Register array name in the test.
        register: String,
    },
    /// `meter_get_rates`: prints the rates of a cell.
    MeterGetRates {
        /// Meter array name in the test.
        meter: String,
        /// Index of the cell, or for a direct meter the handle of the entry.
        index: u64,
    },
    /// `meter_set_rates`.
    MeterSetRates {
        /// Meter array name in the test.
        meter: String,
        /// Index of the cell, or for a direct meter the handle of the entry.
        index: u64,
        /// Rates, lowest first.
        rates: Vec<Rate>,
    },
    /// `meter_array_set_rates`: sets the rates of all cells.
    MeterArraySetRates {
        /// Meter array name in the test.
        meter: String,
        /// Rates, lowest first.
        rates: Vec<Rate>,
    },
    /// `expect_digest`.
    ExpectDigest {
        /// Digest name in the test.
        digest: String,
        /// Values of the fields.
        values: Vec<Number>,
    },
    /// `no_digest`: expects that each emitted digest has matched an earlier `expect_digest`.
    NoDigest,
    /// `vset_add`.
    ValueSetAdd {
        /// Value set name in the test.
        value_set: String,
        /// New member.
        value: KeyValue,
    },
    /// `member_add`.
    MemberAdd {
        /// Action profile name in the test.
        profile: String,
        /// Number of the member.
        member: u32,
        /// Action.
        action: ActionCall,
    },
    /// `group_add`.
    GroupAdd {
        /// Action profile name in the test.
        profile: String,
        /// Number of the group.
        group: u32,
    },
    /// `group_add_member`.
    GroupAddMember {
        /// Action profile name in the test.
        profile: String,
        /// Number of the group.
        group: u32,
        /// Number of the member.
        member: u32,
    },
    /// `timeout`: sets the idle timeout of a named entry.
    IdleTimeout {
        /// Name of the entry.
        entry: String,
        /// Idle timeout, µs.
        timeout_us: u64,
    },
    /// `expect_idle`.
    ExpectIdle {
        /// Name of the entry.
        entry: String,
    },
    /// `expect_used`.
    ExpectUsed {
        /// Name of the entry.
        entry: String,
    },
    /// `entry_rates`: sets the rates of a named entry's direct meter.
    EntryRates {
        /// Name of the entry.
        entry: String,
        /// Rates, lowest first.
        rates: Vec<Rate>,
    },
    /// `expect_register`.
    ExpectRegister {
        /// Register array name in the test.
        register: String,
        /// Index of the cell.
        index: u64,
        /// Expected value.
        value: Number,
    },
    /// `advance_us`.
    AdvanceClock {
        /// Increment, µs.
        by_us: u64,
    },
}
