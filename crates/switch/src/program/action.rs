//! Actions: parameters and statements.

use serde::Serialize;

use super::expr::{Data, HeaderExpr, UnionExpr};
use super::ids::{CalculationId, CounterId, FieldRef, HeaderId, MeterId, RegisterId, StackId, UnionStackId};

/// Action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// Full name.
    pub name: String,
    /// Id in the JSON.
    pub json_id: u32,
    /// Parameters, set by the table entry.
    pub params: Vec<Param>,
    /// Statements in order; jump targets are positions in this list.
    pub body: Vec<Statement>,
}

/// Parameter of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Param {
    /// Name.
    pub name: String,
    /// Width, bits.
    pub bits: u32,
}

/// Target of an assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum LValue {
    /// Field.
    Field(FieldRef),
    /// Field (by index) of the header that an expression yields.
    Access(HeaderExpr, u32),
    /// Cell of a register array.
    Register(RegisterId, Data),
}

/// Source of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CloneKind {
    /// Packet as received.
    Ingress,
    /// Packet at the end of egress.
    Egress,
}

/// Statement. Names follow the primitives of BMv2 and simple_switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Statement {
    /// Stores a value.
    Assign(LValue, Data),
    /// Copies a variable-length field with its length.
    AssignVl(FieldSource, FieldSource),
    /// Copies a header including its validity.
    AssignHeader(HeaderExpr, HeaderExpr),
    /// Copies a union member by member.
    AssignUnion(UnionExpr, UnionExpr),
    /// Copies a stack element by element.
    AssignStack(StackId, StackId),
    /// Copies a header union stack element by element.
    AssignUnionStack(UnionStackId, UnionStackId),
    /// Shifts stack elements to the back and invalidates the first elements.
    Push(AnyStack, Data),
    /// Shifts stack elements to the front and invalidates the last elements.
    Pop(AnyStack, Data),
    /// Jumps to a statement.
    Jump(u32),
    /// Jumps to a statement if the value is 0.
    JumpIfZero(Data, u32),
    /// Ends the pipeline after this action.
    Exit,
    /// Assertion: drops the packet and counts the failure if the value is 0. (BMv2 aborts the process.)
    Assert(Data),
    /// Writes a log message.
    LogMsg(String, Vec<Data>),
    /// Marks the packet as dropped in the standard metadata.
    Drop,
    /// Marks the packet as dropped through the fields of this header.
    MarkToDrop(HeaderId),
    /// Requests a digest (id in the JSON).
    Digest(Data),
    /// Makes a header valid; sets all fields to 0 if the header was invalid.
    AddHeader(HeaderExpr),
    /// Makes a header invalid.
    RemoveHeader(HeaderExpr),
    /// Requests a clone: session, and field list by its id in the JSON.
    Clone(CloneKind, Data, Data),
    /// Requests a resubmission: field list by its id in the JSON, 0 for no field list.
    Resubmit(Data),
    /// Requests a recirculation: field list by its id in the JSON, 0 for no field list.
    Recirculate(Data),
    /// Stores `base + hash % size`.
    Hash {
        /// Target.
        target: LValue,
        /// Base.
        base: Data,
        /// Hash calculation.
        calculation: CalculationId,
        /// Modulus; 0 counts as 1.
        size: Data,
    },
    /// Counts the packet.
    Count(CounterId, Data),
    /// Meters the packet and stores its color.
    Meter(MeterId, Data, LValue),
    /// Reads a register cell into a field.
    RegisterRead(LValue, RegisterId, Data),
    /// Writes a register cell: index, then value.
    RegisterWrite(RegisterId, Data, Data),
    /// Truncates the packet to this length, bytes.
    Truncate(Data),
    /// Stores a random number between two inclusive bounds.
    Random(LValue, Data, Data),
    /// Does nothing.
    Noop,
}

/// Source or target field of a variable-length copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldSource {
    /// Header.
    pub header: HeaderExpr,
    /// Index of the field in the header type.
    pub field: u32,
}

/// Header stack or header union stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AnyStack {
    /// Header stack.
    Headers(StackId),
    /// Header union stack.
    Unions(UnionStackId),
}
