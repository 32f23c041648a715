//! Parser: states, operations and transitions.

use serde::Serialize;

use super::action::Statement;
use super::expr::{Bool, Data};
use super::ids::{FieldRef, HeaderId, StackId, StateId, UnionStackId, ValueSetId};

/// Parser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parser {
    /// Start state; `None` if the parser extracts nothing.
    pub init: Option<StateId>,
    /// States.
    pub states: Vec<State>,
}

/// Parser state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// Name.
    pub name: String,
    /// Operations in order.
    pub ops: Vec<ParserOp>,
    /// Parts of the transition key. Each part is padded in front to whole bytes; then the parts are concatenated.
    pub key: Vec<KeyPart>,
    /// Transitions; the first match wins.
    pub transitions: Vec<Transition>,
    /// Next state if no transition matches; `None` ends the parser.
    pub default: Option<StateId>,
}

/// Header to extract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Extract {
    /// Header instance.
    Header(HeaderId),
    /// Next element of a stack.
    Stack(StackId),
    /// Member of the next element of a header union stack.
    UnionStack(UnionStackId, u32),
}

/// Operation of a parser state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ParserOp {
    /// Extracts a header, with the width in bits of its variable-length field, if any.
    Extract(Extract, Option<Data>),
    /// Stores a value.
    Set(FieldRef, Data),
    /// Copies a variable-length field.
    SetVl(FieldRef, FieldRef),
    /// Stores lookahead bits: offset and width, bits.
    SetLookahead(FieldRef, u32, u32),
    /// Ends the parser with this error code if the condition is false.
    Verify(Bool, Data),
    /// Skips bytes.
    Shift(u32),
    /// Skips a number of bits, which must be a multiple of 8.
    Advance(Data),
    /// Executes a statement.
    Statement(Statement),
}

/// Part of a transition key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum KeyPart {
    /// Field.
    Field(FieldRef),
    /// Field of a stack's last element.
    StackLast(StackId, u32),
    /// In the last element of a header union stack: index of the member, then index of its field.
    UnionStackLast(UnionStackId, u32, u32),
    /// Lookahead bits: offset and width, bits.
    Lookahead(u32, u32),
}

/// Transition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transition {
    /// Condition.
    pub matches: Match,
    /// Next state; `None` ends the parser.
    pub next: Option<StateId>,
}

/// Match of a transition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Match {
    /// The masked key equals the value, which is already masked.
    Value {
        /// Value.
        value: Vec<u8>,
        /// Mask; `None` for all bits.
        mask: Option<Vec<u8>>,
    },
    /// The masked key is in a value set.
    ValueSet(ValueSetId, Option<Vec<u8>>),
}

/// Parser value set, filled at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueSet {
    /// Name.
    pub name: String,
    /// Width of a member without padding, bits.
    pub bits: u32,
    /// Capacity in members; `None` if the program sets no limit.
    pub size: Option<u32>,
}
