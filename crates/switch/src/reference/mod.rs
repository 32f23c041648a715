//! A plain interpreter of a [`Program`]: what the fast one is checked against.
//!
//! It is written from BMv2's sources for being read, not for speed: a field is an integer of any size, a packet is a
//! list of headers with their values, and nothing is prepared. It shares no code with [`lower`](crate::lower) and
//! [`exec`](crate::exec) but how the arguments of a table's entries are laid out
//! ([`lay_args`](crate::lower::lay_args)).
//!
//! # Where this differs from BMv2
//! BMv2 (1.15) stops, reads memory that is not its own, or never ends, where a program or packet goes beyond what P4
//! defines. The switch does not:
//!
//! * outside a stack there is an invalid header of zeros, which takes no writes; the last element of an empty stack is
//!   such a header;
//! * a division by zero, or with a negative operand, gives 0, and so does a shift by a negative number or to the left
//!   by more than [`SHIFT_MAX_BITS`];
//! * an index of registers, counters or meters is the number that it is, not its low 32 bits: where there is no such
//!   cell nothing is written, the target keeps its value, and an expression that reads it is 0;
//! * what is extracted or looked at (`SetLookahead`) beyond the packet is `PacketTooShort`; in a transition's key,
//!   bits beyond the packet are 0. A length that is negative is `PacketTooShort`, too, and one that
//!   follows from the header's own fields is checked like others;
//! * a parser that truncates the packet parses on as if it did not, and what it hashes as the payload is what it has
//!   not parsed yet, not the whole packet;
//! * a stack that is moved by a negative number of elements stays as it is;
//! * a checksum that stands in a signed field is compared by its bits;
//! * an assertion that fails drops the packet;
//! * a parser, pipeline or action that does not end within [`STEPS_MAX`] steps drops the packet;
//! * a packet is resubmitted and recirculated at most [`PASSES_MAX`] times and makes at most [`COPIES_MAX`] copies;
//!   what is beyond is dropped;
//! * all fields are 0 when a packet arrives: nothing is left of another packet. Copies keep the values of invalid
//!   headers;
//! * a signed field holds a number of its range: BMv2 keeps a number of `2^(n-1)..2^n` as it is until the field is
//!   extracted again (p4c casts before it stores, so that no program sees it);
//! * pushing and popping a stack of unions invalidates the elements that a stack of headers would; BMv2 lets them go
//!   round;
//! * extracting a header of variable length again needs its new length only, not the old one besides;
//! * after an empty group of a table's action selector the pipeline goes on as after a miss without an action.
//!
//! # What BMv2 leaves open
//! Its threads may interleave. Here one pass through ingress is followed by all passes through egress that it leads
//! to, in the order in which they were asked for, and then come resubmitted and recirculated packets, in their order.

mod checksum;
mod eval;
mod number;
mod parse;
mod pipeline;
mod state;
mod statement;
mod traffic;

use std::collections::BTreeMap;

use crate::calculations;
use crate::externs::Externs;
use crate::forwarding::Forwarding;
use crate::program::Program;

pub use self::eval::SHIFT_MAX_BITS;

/// Most steps of a parser (states), of a pipeline (nodes) and of an action (statements) together, until the packet
/// leaves ingress or egress.
pub const STEPS_MAX: u32 = 1_000_000;

/// Most times that a packet that was received is resubmitted and recirculated.
pub const PASSES_MAX: u32 = 4_096;

/// Most passes through egress that a packet that was received leads to.
pub const COPIES_MAX: u32 = 65_536;

/// Most packets that wait to be parsed again: simple_switch's queue of them.
pub const WAITING_MAX: usize = 1_024;

/// How simple_switch is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceConfig {
    /// The port that stands for dropping (`--drop-port`).
    pub drop_port: u32,
    /// Number of queues of a port: packets of this priority or more are dropped (`--priority-queues`).
    pub priority_queues: u32,
}

impl Default for ReferenceConfig {
    fn default() -> Self {
        Self {
            drop_port: 511,
            priority_queues: 1,
        }
    }
}

/// Why a packet, or a copy of it, was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// `egress_spec` was the drop port at the end of ingress.
    Ingress,
    /// The same at the end of egress.
    Egress,
    /// Its priority has no queue.
    Priority,
    /// An assertion failed.
    Assertion,
    /// Something did not end within [`STEPS_MAX`].
    Steps,
    /// It was to be resubmitted or recirculated more than [`PASSES_MAX`] times.
    Passes,
    /// It was to make more than [`COPIES_MAX`] copies.
    Copies,
    /// More than [`WAITING_MAX`] packets were to wait.
    Waiting,
}

/// What became of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets sent: port and bytes, in order.
    pub sent: Vec<(u32, Vec<u8>)>,
    /// Digests: number in the JSON, and each field in whole bytes.
    pub digests: Vec<(u32, Vec<Vec<u8>>)>,
    /// How many packets were not sent, and why.
    pub dropped: BTreeMap<DropReason, u64>,
}

/// A switch: a program, what it was told, and what its packets change.
#[derive(Clone, Copy)]
pub struct Reference<'a> {
    /// The program.
    pub program: &'a Program,
    /// Tables, groups, sessions and value sets.
    pub forwarding: &'a Forwarding,
    /// Registers, counters and meters.
    pub externs: &'a Externs,
    /// The program's calculations, in its order.
    pub calculations: &'a [calculations::Calculation],
    /// How simple_switch is set up.
    pub config: ReferenceConfig,
}

impl Reference<'_> {
    /// Processes one packet that was received by `port` at `now_us` microseconds after the switch started. `random`
    /// gives a number between two, both included.
    pub fn process(
        &self,
        now_us: u64,
        port: u32,
        frame: &[u8],
        random: &mut dyn FnMut(u64, u64) -> u64,
    ) -> Outcome {
        let mut interpreter = Interpreter {
            program: self.program,
            forwarding: self.forwarding,
            externs: self.externs,
            calculations: self.calculations,
            config: self.config,
            now_us,
            random,
            outcome: Outcome::default(),
        };
        interpreter.receive(port, frame);
        interpreter.outcome
    }
}

/// Everything that a packet meets.
struct Interpreter<'a> {
    program: &'a Program,
    forwarding: &'a Forwarding,
    externs: &'a Externs,
    calculations: &'a [calculations::Calculation],
    config: ReferenceConfig,
    now_us: u64,
    random: &'a mut dyn FnMut(u64, u64) -> u64,
    outcome: Outcome,
}
