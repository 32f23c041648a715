//! What may be wrong with a P4Info.

use std::fmt;

use prost_reflect::DescriptorError;
use thiserror::Error;

use super::types::WIDTH_BITS_MAX;

/// Why this is no P4Info.
#[derive(Debug, Error)]
pub enum P4InfoError {
    /// Not a message in protobuf's binary format.
    #[error("not a P4Info in protobuf's binary format: {0}")]
    Binary(#[from] prost::DecodeError),
    /// Not a message in protobuf's text format.
    #[error("not a P4Info in protobuf's text format: {0}")]
    Text(String),
    /// The descriptors of this crate cannot be read, so that text format cannot be either.
    #[error("the built-in descriptors of P4Runtime cannot be read: {0}")]
    Descriptors(&'static DescriptorError),
    /// An element contradicts itself or another.
    #[error("P4Info: {kind} \"{name}\" (id {id}): {problem}")]
    Element {
        /// What it is.
        kind: ElementKind,
        /// Its name; empty where it has none.
        name: String,
        /// Its number.
        id: u32,
        /// What is wrong.
        problem: Problem,
    },
}

/// The kinds of elements of a P4Info.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is what its name says")]
pub enum ElementKind {
    Table,
    Action,
    ActionProfile,
    Counter,
    DirectCounter,
    Meter,
    DirectMeter,
    Register,
    Digest,
    ValueSet,
    ControllerHeader,
}

impl fmt::Display for ElementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Table => "table",
            Self::Action => "action",
            Self::ActionProfile => "action profile",
            Self::Counter => "counter",
            Self::DirectCounter => "direct counter",
            Self::Meter => "meter",
            Self::DirectMeter => "direct meter",
            Self::Register => "register",
            Self::Digest => "digest",
            Self::ValueSet => "value set",
            Self::ControllerHeader => "controller header",
        })
    }
}

/// What is wrong with an element.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Problem {
    #[error("it has no preamble")]
    NoPreamble,
    #[error("id 0 is reserved for \"all\"")]
    IdZero,
    #[error("another element has the same id")]
    IdTwice,
    #[error("it has no name")]
    NoName,
    #[error("another {0} has the same name")]
    NameTwice(ElementKind),
    #[error("another {kind} has the same alias \"{alias}\"")]
    AliasTwice { kind: ElementKind, alias: String },
    #[error("{what} \"{name}\": id {id} is zero or another's")]
    PartId {
        what: &'static str,
        name: String,
        id: u32,
    },
    #[error("{what} \"{name}\": {problem}")]
    Part {
        what: &'static str,
        name: String,
        problem: Box<Problem>,
    },
    #[error("a width of {0} bits; 1 to {WIDTH_BITS_MAX} are taken")]
    Width(i32),
    #[error("a size of {0}")]
    Size(i64),
    #[error("it has no match type")]
    NoMatchType,
    #[error("{field} {value} is not one that P4Runtime 1.5 has")]
    UnknownEnum { field: &'static str, value: i32 },
    #[error("it refers to {kind} {id}, which is not there")]
    Dangling { kind: ElementKind, id: u32 },
    #[error("it and {kind} {id} do not name each other")]
    OneSided { kind: ElementKind, id: u32 },
    #[error("it has two of the kind {0}")]
    TwoDirect(ElementKind),
    #[error("the constant default action {0} is not one that it may have as a default")]
    ConstDefault(u32),
    #[error("no type is given")]
    NoType,
    #[error("the type \"{0}\" is not in type_info")]
    UnknownType(String),
    #[error("the type \"{0}\" contains itself")]
    TypeInItself(String),
    #[error("the name is neither packet_in nor packet_out")]
    HeaderName,
}
