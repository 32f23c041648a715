//! Packet tests in p4c's STF format.
//!
//! A test has one command per line: table entries, packets for ports, and expected packets. [`Test::parse`] parses the
//! text to [`Statement`]s with line numbers, independent of the program. A runner resolves tables, keys and actions with
//! [`names`] and converts key values to bytes with [`KeyValue`]. [`Expectations`] compares the sent packets with the
//! expected packets.
//!
//! # Grammar
//! `#` starts a comment, keywords are case-insensitive, and names may be quoted with double quotes. A number is decimal,
//! hexadecimal (`0x`) or binary (`0b`) with up to 4,096 digits; in keys, a hexadecimal or binary digit may be the wildcard
//! `*`. A name consists of letters, digits, `_` and `$`, with dots and indices (`hdr.stack[0].f`).
//!
//! ```text
//! add TABLE [PRIORITY] KEY:VALUE.. ACTION(NAME:NUMBER, ..) [= ENTRY]
//! setdefault TABLE ACTION(NAME:NUMBER, ..)
//! remove all
//! packet PORT HEX..                     expect PORT [(HEX|*).. [$]]
//! no_packet                             wait
//! check_counter COUNTER(INDEX|$ENTRY) [packets|bytes ==|!=|<|<=|>|>= NUMBER]
//! counter_read NAME INDEX               counter_write NAME INDEX PACKETS BYTES
//! register_read NAME INDEX              register_write NAME INDEX VALUE
//! register_reset NAME                   meter_get_rates NAME INDEX
//! meter_set_rates NAME INDEX RATE:BURST..
//! meter_array_set_rates NAME RATE:BURST..
//! mirroring_add SESSION PORT            mirroring_add_mc SESSION GROUP
//! mirroring_delete SESSION              mirroring_get SESSION
//! mc_mgrp_create GROUP                  mc_node_create RID PORT..
//! mc_node_update NODE PORT..            mc_node_associate GROUP NODE
//! ```
//!
//! A VALUE is a number or a prefix `NUMBER/LENGTH`. In addition to p4c's grammar, `NUMBER&&&MASK` and `LOW->HIGH` are
//! supported as in BMv2's CLI.
//!
//! Extensions for features that p4c's tests do not support, each with a new keyword:
//!
//! ```text
//! expect_digest DIGEST NUMBER..         expects an emitted digest of this name with these values, in field order
//! no_digest                             expects that each emitted digest has matched an earlier `expect_digest`
//! vset_add SET VALUE                    adds a member to a parser value set (the runner supports only `NUMBER`)
//! member_add PROFILE MEMBER ACTION(..)  adds a member to an action profile
//! group_add PROFILE GROUP               adds an empty group to an action selector
//! group_add_member PROFILE GROUP MEMBER adds a member to a group
//! add_member TABLE [PRIORITY] KEY:VALUE.. MEMBER [= ENTRY]   adds an entry with a member
//! add_group TABLE [PRIORITY] KEY:VALUE.. GROUP [= ENTRY]     adds an entry with a group
//! timeout ENTRY MICROSECONDS            sets the idle timeout of a named entry
//! expect_idle ENTRY                     expects that the idle timeout of the entry has expired
//! expect_used ENTRY                     expects that the idle timeout has not expired
//! entry_rates ENTRY RATE:BURST..        sets the rates of the entry's direct meter
//! expect_register NAME INDEX VALUE      expects that a cell has this value
//! advance_us MICROSECONDS               advances the clock of the switch
//! ```
//!
//! # Semantics
//! The semantics are those of p4c's runner `bmv2stf.py`, including its limitations:
//!
//! * `add t 5 ..` sets the BMv2 priority 10000 - 5, for which the lower number wins. So in a test the **higher** number
//!   wins ([`AddEntry::bmv2_priority`]). An entry of a table with a ternary or range key needs a priority (without one,
//!   [`run::run`] sets the BMv2 priority 0); other tables ignore the priority;
//! * in a ternary key only the digits **present** in the test are compared: `0x25` in a 16-bit key does not compare the
//!   upper eight bits. A decimal number is an error in a ternary key;
//! * in an LPM key without `/`, the digits before the wildcards `*` are the prefix, regardless of the key's width;
//! * an omitted key matches any value if it is ternary, range or LPM, and is zero if it is exact;
//! * `check_counter`, `mc_node_update` and `remove all` have no effect in `bmv2stf.py`; here they are executed. `wait`
//!   has no effect, and the output of the `_read` and `_get` commands is ignored;
//! * `no_packet` is an error in `bmv2stf.py`; here it means that ports that do not occur in the test must also send nothing;
//! * a `packet` with an odd number of digits is skipped by `bmv2stf.py` with a message; here it is an error of the test.
//!
//! [`Expectations`] documents the comparison of packets.

mod expectations;
mod lines;
pub mod names;
mod numbers;
mod parse;
pub mod replay;
pub mod run;

use thiserror::Error;

pub use expectations::{Difference, Expectations, ExpectedPacket, Mismatch};
pub use numbers::{Base, KeyValue, Number, NumberError};

use crate::meter::Rate;

/// Error of parsing a test.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}:{column}: expected {expected}, found {found}")]
pub struct StfError {
    /// File name from the caller.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Found text.
    pub found: String,
    /// Expected element.
    pub expected: String,
}

/// Packet test.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Test {
    /// Commands in order.
    pub statements: Vec<Statement>,
}

/// Command with its line.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// Line, from 1.
    pub line: u32,
    /// Command.
    pub command: Command,
}

/// Key field of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Field name in the test; [`names::resolve_key`] resolves it.
    pub name: String,
    /// Value to match.
    pub value: KeyValue,
}

/// Action with its arguments, as named in the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionCall {
    /// Action name in the test; [`names::resolve_name`] resolves it.
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
    /// Table name in the test; [`names::resolve_name`] resolves it.
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

impl Test {
    /// Parses a test. Errors contain the name `file`.
    ///
    /// # Errors
    /// [`StfError`] for the first invalid line.
    pub fn parse(file: &str, text: &str) -> Result<Self, StfError> {
        let mut statements = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let mut cursor = lines::Cursor::new(file, line, text);
            if let Some(command) = parse::command(&mut cursor)? {
                statements.push(Statement { line, command });
            }
        }
        Ok(Self { statements })
    }
}
