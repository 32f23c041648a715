//! Errors in a P4Info.

use std::fmt;

use prost_reflect::DescriptorError;
use thiserror::Error;

/// Maximum width of a value, bits. P4 has no limit: without a bound a P4Info could request gigabytes.
pub(super) const WIDTH_BITS_MAX: u32 = 1 << 16;

/// Error of reading a P4Info.
#[derive(Debug, Error)]
pub enum P4InfoError {
    /// The data is not in protobuf's binary format.
    #[error("cannot decode P4Info from binary format: {0}")]
    Binary(#[from] prost::DecodeError),
    /// The data is not in protobuf's text format.
    #[error("cannot parse P4Info from text format: {0}")]
    Text(String),
    /// The built-in descriptors, which the text format requires, cannot be read.
    #[error("cannot read the built-in descriptors of P4Runtime: {0}")]
    Descriptors(&'static DescriptorError),
    /// An element contradicts itself or another element.
    #[error("P4Info: {kind} \"{name}\" (id {id}): {problem}")]
    Element {
        /// Kind of the element.
        kind: ElementKind,
        /// Name; empty if the element has none.
        name: String,
        /// Id; zero if the element has none.
        id: u32,
        /// Problem.
        problem: Problem,
    },
}

/// Kind of an element of a P4Info.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variant names are self-explanatory")]
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

/// Problem of an element.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum Problem {
    #[error("preamble is missing")]
    NoPreamble,
    #[error("id 0 is reserved for \"all\"")]
    IdZero,
    #[error("id is in use by another element")]
    DuplicateId,
    #[error("name is missing")]
    NoName,
    #[error("name is in use by another {0}")]
    DuplicateName(ElementKind),
    #[error("alias \"{alias}\" is in use by another {kind}")]
    DuplicateAlias { kind: ElementKind, alias: String },
    #[error("{kind} \"{name}\": id {id} is zero or not unique")]
    PartId {
        kind: &'static str,
        name: String,
        id: u32,
    },
    #[error("{kind} \"{name}\": {problem}")]
    Part {
        kind: &'static str,
        name: String,
        problem: Box<Problem>,
    },
    #[error("width of {0} bits is out of range: expected 1 to {WIDTH_BITS_MAX}")]
    Width(i32),
    #[error("size {0} is negative")]
    Size(i64),
    #[error("match type is missing")]
    NoMatchType,
    #[error("{field} {value} is not defined by P4Runtime 1.5")]
    UnknownEnum { field: &'static str, value: i32 },
    #[error("reference to unknown {kind} {id}")]
    Dangling { kind: ElementKind, id: u32 },
    #[error("references between the element and {kind} {id} are not mutual")]
    OneSided { kind: ElementKind, id: u32 },
    #[error("more than one {0}")]
    DuplicateDirectResource(ElementKind),
    #[error("constant default action {0} is not allowed as a default action")]
    ConstDefault(u32),
    #[error("type is missing")]
    NoType,
    #[error("type \"{0}\" is not in type_info")]
    UnknownType(String),
    #[error("type \"{0}\" contains itself")]
    RecursiveType(String),
    #[error("name of the controller header must be packet_in or packet_out")]
    HeaderName,
}
