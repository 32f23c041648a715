//! Parsers: states, what they extract and set, and where they go on.

use serde::Serialize;

use super::action::Statement;
use super::expr::{Bool, Data};
use super::ids::{FieldRef, HeaderId, StackId, StateId, UnionStackId, ValueSetId};

/// A parser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parser {
    /// Where it begins; none: it extracts nothing.
    pub init: Option<StateId>,
    /// Its states.
    pub states: Vec<State>,
}

/// A state of a parser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// Its name.
    pub name: String,
    /// What it does, in order.
    pub ops: Vec<ParserOp>,
    /// What its transitions look at: each part padded to whole bytes at its front, one after the other.
    pub key: Vec<KeyPart>,
    /// Where it goes on, the first that matches.
    pub transitions: Vec<Transition>,
    /// Where it goes on if none matches.
    pub default: Option<StateId>,
}

/// Which header is extracted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Extract {
    /// A header by name.
    Header(HeaderId),
    /// The next element of a stack.
    Stack(StackId),
    /// A member of the next element of a stack of unions.
    UnionStack(UnionStackId, u32),
}

/// An operation of a parser state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ParserOp {
    /// Takes a header from the packet; with the number of bits of its field of variable length, if it has one.
    Extract(Extract, Option<Data>),
    /// Stores a value.
    Set(FieldRef, Data),
    /// Copies a field of variable length.
    SetVl(FieldRef, FieldRef),
    /// Stores bits that lie ahead: offset and width, in bits.
    SetLookahead(FieldRef, u32, u32),
    /// Ends with an error unless the condition holds.
    Verify(Bool, Data),
    /// Skips so many bytes.
    Shift(u32),
    /// Skips so many bits, which must be whole bytes.
    Advance(Data),
    /// A statement.
    Statement(Statement),
}

/// A part of what transitions look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum KeyPart {
    /// A field.
    Field(FieldRef),
    /// A field of a stack's last element.
    StackLast(StackId, u32),
    /// A field of a member of the last element of a stack of unions.
    UnionStackLast(UnionStackId, u32, u32),
    /// Bits that lie ahead: offset and width, in bits.
    Lookahead(u32, u32),
}

/// A transition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transition {
    /// When it is taken.
    pub matches: Match,
    /// Where to; none: the parser ends.
    pub next: Option<StateId>,
}

/// When a transition is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Match {
    /// The key's bits under the mask are these (already masked).
    Value {
        /// The value.
        value: Vec<u8>,
        /// The mask; none: all bits.
        mask: Option<Vec<u8>>,
    },
    /// The key, under the mask, is in a value set.
    ValueSet(ValueSetId, Option<Vec<u8>>),
}

/// A value set: filled at run time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueSet {
    /// Its name.
    pub name: String,
    /// Width of its members, all parts without padding.
    pub bits: u32,
    /// Most members; none where the program does not say.
    pub size: Option<u32>,
}
