//! Packet tests in p4c's STF format.
//!
//! A test is a text of one command per line: entries for tables, packets for ports, and the packets that are
//! expected on ports. [`Test::parse`] turns it into [`Statement`]s that know their lines but nothing of the
//! program; whoever runs them finds tables, keys and actions with [`names`] and turns key values into bytes of
//! the key's width with [`KeyValue`]. [`Expectations`] judges what came out of the ports.
//!
//! # Grammar
//! `#` starts a comment, keywords may be written in capitals, and a name may stand in double quotes. A number is
//! decimal, hexadecimal (`0x`) or binary (`0b`), of up to 4,096 digits; in keys, hexadecimal and binary digits may be
//! `*`: any digit. A name is made of letters, digits, `_` and `$`, with dots and indices (`hdr.stack[0].f`).
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
//! A VALUE is a number, or `NUMBER/LENGTH`: a prefix. Beyond p4c's grammar, `NUMBER&&&MASK` and `LOW->HIGH`, as
//! BMv2's CLI writes them.
//!
//! Of our own, for what p4c's tests cannot say; each is a new keyword:
//!
//! ```text
//! expect_digest DIGEST NUMBER..         the next digest of that name holds these values, in its fields' order
//! no_digest                             no digest but those that were expected until here
//! vset_add SET VALUE                    adds a member to a parser value set (`NUMBER`, `&&&`, `->`)
//! member_add PROFILE MEMBER ACTION(..)  adds a member to an action profile
//! group_add PROFILE GROUP               adds an empty group to an action selector
//! group_add_member PROFILE GROUP MEMBER puts a member into a group
//! add_member TABLE [PRIORITY] KEY:VALUE.. MEMBER [= ENTRY]   an entry that names a member
//! add_group TABLE [PRIORITY] KEY:VALUE.. GROUP [= ENTRY]     an entry that names a group
//! timeout ENTRY MICROSECONDS            gives an entry, named where it was added, an idle timeout
//! expect_idle ENTRY                     the entry was idle for as long as its timeout
//! expect_used ENTRY                     it was not
//! entry_rates ENTRY RATE:BURST..        sets the rates of an entry's direct meter
//! expect_register NAME INDEX VALUE      a cell holds this value
//! advance_us MICROSECONDS               moves the switch's clock on
//! ```
//!
//! # What p4c's runner makes of it
//! `bmv2stf.py` is the norm for verdicts, also where it does less than its grammar:
//!
//! * a test that says `add t 5 ..` gives BMv2 the priority 10000 - 5, of which the lower wins: in a test the
//!   **higher** number wins ([`AddEntry::bmv2_priority`]). It is used only for tables with a ternary key, which
//!   must have one; elsewhere it is ignored;
//! * in a ternary key only digits that are **written** are compared: `0x25` of a 16-bit key leaves the upper
//!   eight bits free. A decimal number is refused there;
//! * in an LPM key without `/`, the digits written that are not `*` are the prefix, whatever the key's width;
//! * keys that a test leaves out match anything if they are ternary or LPM, and are zero if they are exact;
//! * `check_counter`, `mc_node_update`, `remove all` and `wait` are parsed and do nothing, and what the `_read`
//!   and `_get` commands print is not looked at;
//! * `no_packet` makes it fail; here it means that no port, named or not, gives a packet;
//! * a `packet` of an odd number of digits is left out with a message; here it is an error of the test.
//!
//! How it judges packets is told at [`Expectations`].

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

/// Why a test cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}:{column}: {found} where {expected} was expected")]
pub struct StfError {
    /// The file, as the caller names it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What stands there.
    pub found: String,
    /// What should.
    pub expected: String,
}

/// A packet test.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Test {
    /// Its commands, in order.
    pub statements: Vec<Statement>,
}

/// A command and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// Line, from 1.
    pub line: u32,
    /// What to do.
    pub command: Command,
}

/// A key of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The field, as the test names it; [`names::resolve_key`] finds it.
    pub name: String,
    /// What it must be.
    pub value: KeyValue,
}

/// An action and its arguments, as the test names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionCall {
    /// The action; [`names::resolve_name`] finds it among the table's.
    pub name: String,
    /// Parameters by name, in the order written, each with its value.
    pub arguments: Vec<(String, Number)>,
}

/// What an entry does with a packet that it matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Runs an action of its own (`add`).
    Action(ActionCall),
    /// Runs the action of a member of the table's action profile (`add_member`).
    Member(u32),
    /// Chooses among a group of members (`add_group`).
    Group(u32),
}

/// An entry for a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddEntry {
    /// The table, as the test names it; [`names::resolve_name`] finds it.
    pub table: String,
    /// The priority as the test writes it: the highest wins. P4Runtime's priorities have the same sense.
    pub priority: Option<u32>,
    /// Keys that the test gives, in any order; at least one.
    pub keys: Vec<Key>,
    /// What the entry does.
    pub target: Target,
    /// The entry's name within the test.
    pub entry: Option<String>,
}

impl AddEntry {
    /// The priority that p4c's runner gives BMv2, where the lowest wins: 10000 less what the test says.
    pub fn bmv2_priority(&self) -> Option<i64> {
        self.priority.map(|priority| 10_000 - i64::from(priority))
    }
}

/// Which cell of a counter is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CounterCell {
    /// By index.
    Index(u64),
    /// The direct counter of an entry, by the name that the test gave it (written `$NAME`).
    Entry(String),
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedUnit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
}

/// How a count is compared with a number.
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
    /// Whether `counted` stands so to `wanted`.
    pub fn holds(self, counted: u64, wanted: u64) -> bool {
        match self {
            Self::Equal => counted == wanted,
            Self::NotEqual => counted != wanted,
            Self::Less => counted < wanted,
            Self::LessOrEqual => counted <= wanted,
            Self::Greater => counted > wanted,
            Self::GreaterOrEqual => counted >= wanted,
        }
    }
}

/// What a counter must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterCheck {
    /// Packets or bytes.
    pub unit: CountedUnit,
    /// How to compare.
    pub comparison: Comparison,
    /// With what.
    pub wanted: u64,
}

/// One line of a test.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// `add`, `add_member`, `add_group`.
    Add(AddEntry),
    /// `setdefault`: the table's default action.
    SetDefault {
        /// The table, as written.
        table: String,
        /// Its new default.
        action: ActionCall,
    },
    /// `remove all`: the entries of all tables.
    RemoveAll,
    /// `packet`: comes in at a port.
    Packet {
        /// The port.
        port: u32,
        /// The whole frame.
        bytes: Vec<u8>,
    },
    /// `expect`: must come out of a port.
    Expect {
        /// The port.
        port: u32,
        /// What it looks like; any packet will do if nothing stands there.
        packet: Option<ExpectedPacket>,
    },
    /// `no_packet`: nothing comes out that is not expected, from any port.
    NoPacket,
    /// `wait`: until what was sent is through.
    Wait,
    /// `check_counter`.
    CheckCounter {
        /// The counter, as written.
        counter: String,
        /// Which cell.
        cell: CounterCell,
        /// What it must show; without it, only that it is there.
        check: Option<CounterCheck>,
    },
    /// `mirroring_add`: a clone session to a port.
    MirroringAdd {
        /// The session.
        session: u32,
        /// Where its clones go.
        port: u32,
    },
    /// `mirroring_add_mc`: a clone session to a multicast group.
    MirroringAddGroup {
        /// The session.
        session: u32,
        /// Where its clones go.
        group: u32,
    },
    /// `mirroring_delete`.
    MirroringDelete {
        /// The session.
        session: u32,
    },
    /// `mirroring_get`: prints a session.
    MirroringGet {
        /// The session.
        session: u32,
    },
    /// `mc_mgrp_create`: a multicast group.
    GroupCreate {
        /// The group.
        group: u32,
    },
    /// `mc_node_create`: a node; nodes are numbered from 0 in the order of their creation.
    NodeCreate {
        /// Replication id that its copies carry (`egress_rid`).
        rid: u32,
        /// Ports that get a copy.
        ports: Vec<u32>,
    },
    /// `mc_node_update`: other ports for a node.
    NodeUpdate {
        /// The node's number.
        node: u32,
        /// Ports that get a copy.
        ports: Vec<u32>,
    },
    /// `mc_node_associate`: puts a node into a group.
    NodeAssociate {
        /// The group. BMv2 takes its handle, which is its number.
        group: u32,
        /// The node's number.
        node: u32,
    },
    /// `counter_read`: prints a cell.
    CounterRead {
        /// The counter, as written.
        counter: String,
        /// The cell.
        index: u64,
    },
    /// `counter_write`.
    CounterWrite {
        /// The counter, as written.
        counter: String,
        /// The cell.
        index: u64,
        /// Packets to show from now on.
        packets: u64,
        /// Bytes to show from now on.
        bytes: u64,
    },
    /// `register_read`: prints a cell.
    RegisterRead {
        /// The register array, as written.
        register: String,
        /// The cell.
        index: u64,
    },
    /// `register_write`.
    RegisterWrite {
        /// The register array, as written.
        register: String,
        /// The cell.
        index: u64,
        /// What to put there.
        value: Number,
    },
    /// `register_reset`: all cells to zero.
    RegisterReset {
        /// The register array, as written.
        register: String,
    },
    /// `meter_get_rates`: prints a cell's rates.
    MeterGetRates {
        /// The meter array, as written.
        meter: String,
        /// The cell, or for a direct meter the entry's handle.
        index: u64,
    },
    /// `meter_set_rates`.
    MeterSetRates {
        /// The meter array, as written.
        meter: String,
        /// The cell, or for a direct meter the entry's handle.
        index: u64,
        /// Rates, the lowest first.
        rates: Vec<Rate>,
    },
    /// `meter_array_set_rates`: the same rates for all cells.
    MeterArraySetRates {
        /// The meter array, as written.
        meter: String,
        /// Rates, the lowest first.
        rates: Vec<Rate>,
    },
    /// `expect_digest`.
    ExpectDigest {
        /// The digest, as written.
        digest: String,
        /// Its fields' values.
        values: Vec<Number>,
    },
    /// `no_digest`: none was told that no line before expected.
    NoDigest,
    /// `vset_add`.
    ValueSetAdd {
        /// The value set, as written.
        value_set: String,
        /// The new member.
        value: KeyValue,
    },
    /// `member_add`.
    MemberAdd {
        /// The action profile, as written.
        profile: String,
        /// The member's number.
        member: u32,
        /// What it runs.
        action: ActionCall,
    },
    /// `group_add`.
    GroupAdd {
        /// The action profile, as written.
        profile: String,
        /// The group's number.
        group: u32,
    },
    /// `group_add_member`.
    GroupAddMember {
        /// The action profile, as written.
        profile: String,
        /// The group's number.
        group: u32,
        /// The member's number.
        member: u32,
    },
    /// `timeout`: of an entry that was named.
    IdleTimeout {
        /// The entry's name.
        entry: String,
        /// After how long without a hit it is reported, microseconds.
        timeout_us: u64,
    },
    /// `expect_idle`.
    ExpectIdle {
        /// The entry's name.
        entry: String,
    },
    /// `expect_used`.
    ExpectUsed {
        /// The entry's name.
        entry: String,
    },
    /// `entry_rates`: of an entry that was named.
    EntryRates {
        /// The entry's name.
        entry: String,
        /// Rates, the lowest first.
        rates: Vec<Rate>,
    },
    /// `expect_register`.
    ExpectRegister {
        /// The register array, as written.
        register: String,
        /// The cell.
        index: u64,
        /// What it must hold.
        value: Number,
    },
    /// `advance_us`.
    AdvanceClock {
        /// By how much, microseconds.
        by_us: u64,
    },
}

impl Test {
    /// Reads a test. `file` is named in errors.
    ///
    /// # Errors
    /// [`StfError`] of the first line that is no command.
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
