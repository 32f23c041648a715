//! A program in executable form: one linear list of operations, with all locations and plans. The digest of this form is
//! part of the evidence.

pub(crate) mod number;
pub mod op;
pub mod plan;

use serde::Serialize;

use self::op::Op;
use self::op::Pc;
use self::plan::{InputStep, KeyPlan, WordRange};
use crate::layout::{FieldLayout, Layout};
use crate::program::Program;
use crate::program::action::Statement;
use crate::program::expr::{Bool, Data};
use crate::program::ids::RegisterId;
use crate::program::parser::{KeyPart, Match, ParserOp};

/// Program in executable form.
// There are more than 15 fields because each is a section of the program; nothing changes them after the lowering.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Executable {
    /// Program.
    pub program: Program,
    /// Layout of the headers.
    pub layout: Layout,
    /// Locations of the standard metadata.
    pub standard_metadata: StandardMetadata,
    /// Operations.
    pub code: Vec<Op>,
    /// Constants, expressions and other data that operations refer to by index (not match-action tables).
    pub side_tables: SideTables,
    /// Select expressions of the parser.
    pub parser_selects: Vec<ParserSelect>,
    /// Start of the parser.
    pub parser: Pc,
    /// Start of the checksum verification.
    pub verify: Pc,
    /// Start of the checksum update.
    pub update: Pc,
    /// Start of ingress.
    pub ingress: Pc,
    /// Start of egress.
    pub egress: Pc,
    /// Start of the deparser's statements.
    pub deparser: Pc,
    /// Actions.
    pub actions: Vec<ActionCode>,
    /// Successors of each table.
    pub table_successors: Vec<TableSuccessors>,
    /// Key plan of each table.
    pub keys: Vec<KeyPlan>,
    /// Input steps of each calculation.
    pub inputs: Vec<Vec<InputStep>>,
    /// Word ranges of each calculation that is an Internet checksum over whole words.
    pub sums: Vec<Option<Vec<WordRange>>>,
    /// Length expression of each header's variable-length field, if the header type defines one.
    pub lengths: Vec<Option<Data>>,
}

/// Select expression of a parser state. The expressions of its key stay trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParserSelect {
    /// Parts of the key.
    pub key: Vec<KeyPart>,
    /// Matches with the next operation.
    pub cases: Vec<(Match, Pc)>,
    /// Next operation if no match applies.
    pub default: Pc,
}

/// Constants, expressions and other data that operations refer to by index (not match-action tables).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SideTables {
    /// Constants of up to 128 bits.
    pub wide: Vec<u128>,
    /// Constants as bytes.
    pub bytes: Vec<Vec<u8>>,
    /// Pairs of value and mask.
    pub pairs: Vec<(u64, u64)>,
    /// Expressions that are evaluated as trees.
    pub expressions: Vec<Data>,
    /// Conditions that are evaluated as trees.
    pub conditions: Vec<Bool>,
    /// Statements that are evaluated as trees.
    pub statements: Vec<Statement>,
    /// Operations of parsers that are evaluated as trees.
    pub parser_ops: Vec<ParserOp>,
    /// Sets of register arrays that actions lock, each in order.
    pub locks: Vec<Vec<RegisterId>>,
}

/// Successors of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableSuccessors {
    /// Next operation after a hit, indexed by action id.
    pub hit: Vec<Pc>,
    /// Next operation after a miss, indexed by action id.
    pub miss: Vec<Pc>,
    /// Next operation after a lookup without an action: a miss without a default action, or an empty group.
    pub no_action: Pc,
}

/// Action in executable form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionCode {
    /// First operation.
    pub start: Pc,
    /// Offset and length of each argument in the argument bytes.
    pub args: Vec<(u32, u32)>,
    /// Length of all arguments, bytes.
    pub arg_bytes: u32,
}

/// Returns offset and length of each argument of an action, and the length of all arguments. Arguments of up to 64 bits have
/// 8 bytes, wider arguments the required number of bytes.
pub fn layout_args(widths: impl Iterator<Item = u32>) -> (Vec<(u32, u32)>, u32) {
    let mut offset = 0u32;
    let args = widths
        .map(|bits| {
            let bytes = if bits <= 64 { 8 } else { bits.div_ceil(8) };
            let location = (offset, bytes);
            offset += bytes;
            location
        })
        .collect();
    (args, offset)
}

/// Locations of the standard metadata. A field that the program does not have or does not reference is `None` and is not
/// set: most programs use few of these fields, and setting all fields would be a tenth of the cost of a packet.
// There are more than 15 fields because v1model defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StandardMetadata {
    /// Egress port requested by ingress.
    pub egress_spec: FieldLayout,
    /// Ingress port.
    pub ingress_port: Option<FieldLayout>,
    /// Egress port.
    pub egress_port: Option<FieldLayout>,
    /// Instance type.
    pub instance_type: Option<FieldLayout>,
    /// Packet length, bytes.
    pub packet_length: Option<FieldLayout>,
    /// Parser error.
    pub parser_error: Option<FieldLayout>,
    /// Whether a checksum verification failed.
    pub checksum_error: Option<FieldLayout>,
    /// Multicast group.
    pub mcast_grp: Option<FieldLayout>,
    /// Replica id of a multicast packet.
    pub egress_rid: Option<FieldLayout>,
    /// Time of arrival, µs.
    pub ingress_global_timestamp: Option<FieldLayout>,
    /// Start time of egress, µs.
    pub egress_global_timestamp: Option<FieldLayout>,
    /// Time of enqueueing, µs.
    pub enq_timestamp: Option<FieldLayout>,
    /// Queue depth at enqueueing, packets.
    pub enq_qdepth: Option<FieldLayout>,
    /// Time in the queue, µs.
    pub deq_timedelta: Option<FieldLayout>,
    /// Queue depth at dequeueing, packets.
    pub deq_qdepth: Option<FieldLayout>,
    /// Queue id.
    pub qid: Option<FieldLayout>,
    /// Priority: selects the queue.
    pub priority: Option<FieldLayout>,
}
