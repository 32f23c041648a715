//! Reference interpreter of a [`Program`], used to test the optimized engine.
//!
//! The interpreter follows BMv2's sources and is optimized for readability: a field is an arbitrary-precision integer, a
//! packet is a list of headers with their values, and nothing is precomputed. The only code shared with
//! [`lower`](crate::lower) and [`exec`](crate::exec) is the layout of arguments of table entries
//! ([`layout_args`](crate::executable::layout_args)).
//!
//! # Differences to BMv2
//! BMv2 (1.15) aborts, reads out of bounds or loops forever if a program or packet exceeds the limits of P4. The switch
//! defines the behavior:
//!
//! * a stack index out of range yields an invalid header of zeros that ignores writes; the last element of an empty stack
//!   is such a header;
//! * a division by zero or with a negative operand gives 0, as does a shift by a negative number or a left shift by more
//!   than [`SHIFT_MAX_BITS`];
//! * the index of a register, counter or meter is not truncated to 32 bits. If the cell does not exist, a write has no
//!   effect, the target of a read keeps its value, and an expression reads 0;
//! * an extraction or lookahead (`SetLookahead`) beyond the packet is `PacketTooShort`; in a transition key, bits beyond
//!   the packet are 0. A negative length is also `PacketTooShort`. A length computed from the header's fields has the
//!   same checks;
//! * a truncation in the parser does not affect parsing, and the payload for hashes in the parser is the unparsed part of
//!   the packet, not the whole packet;
//! * a stack push or pop by a negative number has no effect;
//! * a checksum in a signed field is compared by its bits;
//! * a failed assertion drops the packet;
//! * a parser, pipeline or action that exceeds [`STEPS_MAX`] steps drops the packet;
//! * a packet has at most [`PASSES_MAX`] resubmitted and recirculated passes and at most [`COPIES_MAX`] copies; further
//!   passes and copies are dropped;
//! * all fields of a new packet are 0, without data of previous packets. Copies keep the values of invalid
//!   headers;
//! * a signed field holds a number in its range: BMv2 keeps a number of `2^(n-1)..2^n` until the field is extracted
//!   again (p4c casts before a store, so programs cannot observe the difference);
//! * push and pop of a header union stack invalidate the same elements as for a header stack; BMv2 rotates
//!   the elements;
//! * a repeated extraction of a variable-length header requires that the packet has the new length; BMv2 also requires the
//!   old length;
//! * after an empty group of an action selector the pipeline continues as after a miss without an action.
//!
//! # Order of packets
//! The threads of BMv2 may interleave. Here each ingress pass is followed by all resulting egress passes in the order of
//! the requests, then by resubmitted and recirculated packets in order.

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

/// Maximum number of steps of parser (states), pipeline (nodes) and actions (statements) together, separately for ingress
/// and egress.
pub const STEPS_MAX: u32 = 1_000_000;

/// Maximum number of resubmitted and recirculated passes of a received packet.
pub const PASSES_MAX: u32 = 4_096;

/// Maximum number of egress passes of a received packet.
pub const COPIES_MAX: u32 = 65_536;

/// Capacity of the queue of resubmitted and recirculated packets, as in simple_switch.
pub const WAITING_MAX: usize = 1_024;

/// Configuration of simple_switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceConfig {
    /// Drop port (`--drop-port`).
    pub drop_port: u32,
    /// Number of priority queues of a port (`--priority-queues`). Packets whose priority is at least this number are
    /// dropped.
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

/// Reason for a dropped packet or copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// `egress_spec` is the drop port at the end of ingress.
    Ingress,
    /// `egress_spec` is the drop port at the end of egress.
    Egress,
    /// The priority has no queue.
    Priority,
    /// An assertion failed.
    Assertion,
    /// [`STEPS_MAX`] was exceeded.
    StepLimit,
    /// [`PASSES_MAX`] was exceeded.
    PassLimit,
    /// [`COPIES_MAX`] was exceeded.
    CopyLimit,
    /// The queue of [`WAITING_MAX`] packets was full.
    QueueFull,
}

/// Result of processing a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Sent packets: port and bytes, in order.
    pub sent: Vec<(u32, Vec<u8>)>,
    /// Digests: id in the JSON, and each field in whole bytes.
    pub digests: Vec<(u32, Vec<Vec<u8>>)>,
    /// Number of dropped packets by reason.
    pub dropped: BTreeMap<DropReason, u64>,
}

/// Reference switch: program, forwarding state and externs.
#[derive(Clone, Copy)]
pub struct Reference<'a> {
    /// Program.
    pub program: &'a Program,
    /// Forwarding state.
    pub forwarding: &'a Forwarding,
    /// Externs.
    pub externs: &'a Externs,
    /// Calculations, in the order of the program.
    pub calculations: &'a [calculations::Calculation],
    /// Configuration of simple_switch.
    pub config: ReferenceConfig,
}

impl Reference<'_> {
    /// Processes one packet received on `port` at `now_us` microseconds after the start of the switch. `random` returns a
    /// number between two inclusive bounds.
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

/// Environment of packet processing.
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
