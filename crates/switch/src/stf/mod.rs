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

mod command;
mod error;
mod expectations;
mod expected_packet;
mod lines;
pub mod names;
mod numbers;
mod parse;
pub mod replay;
pub mod run;

pub use command::{
    ActionCall, AddEntry, Command, Comparison, CountedUnit, CounterCell, CounterCheck, Key, Target,
};
pub use error::StfError;
pub use expectations::{Expectations, Mismatch};
pub use expected_packet::{Difference, ExpectedPacket};
pub use numbers::{Base, KeyValue, Number, NumberError};

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
