//! Actions: what they are called with, and the statements that they run.

use serde::Serialize;

use super::expr::{Data, HeaderExpr, UnionExpr};
use super::ids::{CalculationId, CounterId, FieldRef, HeaderId, MeterId, RegisterId, StackId, UnionStackId};

/// An action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// Its full name.
    pub name: String,
    /// Its number in the JSON.
    pub json_id: u32,
    /// What a table entry passes to it.
    pub params: Vec<Param>,
    /// What it does, in order; jumps are positions in this list.
    pub body: Vec<Statement>,
}

/// A parameter of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Its width.
    pub bits: u32,
}

/// What a value is stored in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Place {
    /// A field.
    Field(FieldRef),
    /// A field of a header that is computed.
    Access(HeaderExpr, u32),
    /// A cell of a register array.
    Register(RegisterId, Data),
}

/// Which packet a clone is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CloneKind {
    /// The packet as it was received.
    Ingress,
    /// The packet as it is at the end of egress.
    Egress,
}

/// A statement. Names follow the primitives of BMv2 and simple_switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Statement {
    /// Stores a value.
    Assign(Place, Data),
    /// Copies a field of variable length, with its length.
    AssignVl(FieldSource, FieldSource),
    /// Copies a header with its validity.
    AssignHeader(HeaderExpr, HeaderExpr),
    /// Copies a union member by member.
    AssignUnion(UnionExpr, UnionExpr),
    /// Copies a stack element by element.
    AssignStack(StackId, StackId),
    /// Copies a stack of unions element by element.
    AssignUnionStack(UnionStackId, UnionStackId),
    /// Moves a stack's elements back and invalidates the first ones.
    Push(AnyStack, Data),
    /// Moves a stack's elements to the front and invalidates the last ones.
    Pop(AnyStack, Data),
    /// Goes on at another statement.
    Jump(u32),
    /// Goes on at another statement if the value is 0.
    JumpIfZero(Data, u32),
    /// Ends the pipeline after this action.
    Exit,
    /// Drops the packet and counts a failed assertion if the value is 0. (BMv2 aborts the process.)
    Assert(Data),
    /// Writes to the log.
    LogMsg(String, Vec<Data>),
    /// Marks the packet to be dropped, through the fields' customary names.
    Drop,
    /// Marks the packet to be dropped, through the fields of this header.
    MarkToDrop(HeaderId),
    /// Asks for a digest (its number in the JSON).
    Digest(Data),
    /// Makes a header valid, with all fields 0 if it was not.
    AddHeader(HeaderExpr),
    /// Makes a header invalid.
    RemoveHeader(HeaderExpr),
    /// Asks for a clone: session, and field list by its number in the JSON.
    Clone(CloneKind, Data, Data),
    /// Asks to start again with the packet as received; field list as above, 0: do not.
    Resubmit(Data),
    /// Asks to start again with the packet as sent; field list as above, 0: do not.
    Recirculate(Data),
    /// Stores `base + hash % size`.
    Hash {
        /// Where to.
        target: Place,
        /// Added to it.
        base: Data,
        /// The hash.
        calculation: CalculationId,
        /// What the hash is divided by; 0 counts as 1.
        size: Data,
    },
    /// Counts this packet.
    Count(CounterId, Data),
    /// Meters this packet and stores its colour.
    Meter(MeterId, Data, Place),
    /// Stores a register's cell in a field.
    RegisterRead(Place, RegisterId, Data),
    /// Stores a value in a register's cell: index, then value.
    RegisterWrite(RegisterId, Data, Data),
    /// Sends at most so many bytes.
    Truncate(Data),
    /// Stores a random number: from, to (both included).
    Random(Place, Data, Data),
    /// Nothing.
    Noop,
}

/// A field named as the source or target of a copy with its length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldSource {
    /// The header.
    pub header: HeaderExpr,
    /// The field's position in its type.
    pub field: u32,
}

/// A stack of headers or of unions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AnyStack {
    /// Of headers.
    Headers(StackId),
    /// Of unions.
    Unions(UnionStackId),
}
