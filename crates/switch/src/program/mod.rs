//! A program as data: what the JSON of p4c says, resolved and checked, before anything is lowered for speed.
//!
//! Names have become numbers ([`ids`]), expressions are typed ([`expr`]), and everything that refers to something
//! refers to something that is there. Both ways to run a program start here: the plain interpreter
//! (`reference`) and the executable form ([`lower`](crate::lower)).

pub mod action;
pub mod expr;
pub mod ids;
pub mod parser;
pub mod pipeline;

use std::collections::{BTreeMap, BTreeSet};

use num_bigint::BigUint;

use serde::Serialize;

use self::action::Action;
use self::expr::{Bool, Data};
use self::ids::{CalculationId, FieldRef, HeaderId, StackId, TypeId, UnionId};
use self::parser::{Parser, ValueSet};
use self::pipeline::{Pipeline, Profile, Table};

/// A field of a header type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its width in bits; for a field of variable length the greatest.
    pub bits: u32,
    /// Whether its values are signed.
    pub signed: bool,
    /// Whether a value out of range becomes the nearest one in range instead of wrapping around.
    pub saturating: bool,
    /// Whether its length is set when it is extracted.
    pub variable: bool,
}

/// A header type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeaderType {
    /// Its name.
    pub name: String,
    /// Its fields.
    pub fields: Vec<Field>,
    /// Bits of its field of variable length, computed from fields of the same header ([`Data::Param`] stands for a
    /// field by its position); none where extracting says it.
    pub variable_bits: Option<Data>,
    /// Greatest length of the whole header in bytes; 0: no limit but the field's.
    pub max_bytes: u32,
}

impl HeaderType {
    /// Its field of variable length.
    #[must_use]
    pub fn variable(&self) -> Option<usize> {
        self.fields.iter().position(|field| field.variable)
    }

    /// The position of the field with that name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<u32> {
        if name == VALID_FIELD {
            return u32::try_from(self.fields.len()).ok();
        }
        self.fields
            .iter()
            .position(|field| field.name == name)
            .and_then(|at| u32::try_from(at).ok())
    }

    /// Bits of all fields of fixed width.
    #[must_use]
    pub fn fixed_bits(&self) -> u32 {
        self.fields
            .iter()
            .filter(|field| !field.variable)
            .map(|field| field.bits)
            .sum()
    }
}

/// The name of the field that every header has: whether it is valid.
pub const VALID_FIELD: &str = "$valid$";

/// A header instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its type.
    pub header_type: TypeId,
    /// Whether it is metadata: always valid, zero when a packet arrives, never sent.
    pub metadata: bool,
}

/// A stack of headers of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stack {
    /// Its name.
    pub name: String,
    /// The elements' type.
    pub header_type: TypeId,
    /// Its elements.
    pub headers: Vec<HeaderId>,
}

/// A union: at most one of its headers is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Union {
    /// Its name.
    pub name: String,
    /// Its members' names.
    pub members: Vec<String>,
    /// Its members.
    pub headers: Vec<HeaderId>,
}

/// A stack of unions of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnionStack {
    /// Its name.
    pub name: String,
    /// Its elements.
    pub unions: Vec<UnionId>,
}

/// What a calculation is made over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Input {
    /// A field; nothing if its header is invalid.
    Field(FieldRef),
    /// So many bits of a constant, the last ones of these bytes.
    Constant(Vec<u8>, u32),
    /// A whole header; nothing if it is invalid.
    Header(HeaderId),
    /// Everything behind the headers that were extracted.
    Payload,
}

/// A calculation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Calculation {
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: String,
    /// Its inputs, joined bit by bit.
    pub inputs: Vec<Input>,
}

/// What a checksum is computed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ChecksumKind {
    /// The IPv4 header checksum over the whole header of the target.
    Ipv4,
    /// A calculation.
    Calculation(CalculationId),
}

/// A checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checksum {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub target: FieldRef,
    /// How it is computed.
    pub kind: ChecksumKind,
    /// Only where this holds.
    pub condition: Option<Bool>,
    /// Verified by the parser.
    pub verify: bool,
    /// Updated by the deparser.
    pub update: bool,
}

/// An array of registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegisterArray {
    /// Its name.
    pub name: String,
    /// Number of cells.
    pub size: u32,
    /// Width of a cell.
    pub bits: u32,
}

/// An array of counters, each of packets and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CounterArray {
    /// Its name.
    pub name: String,
    /// Number of counters.
    pub size: u32,
    /// The table whose entries it counts, if it is direct.
    pub direct: Option<String>,
}

/// What a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MeterUnit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
}

/// An array of meters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeterArray {
    /// Its name.
    pub name: String,
    /// What they count.
    pub unit: MeterUnit,
    /// Number of rates: 2 for meters of three colours.
    pub rates: u32,
    /// Number of meters.
    pub size: u32,
    /// Where the colour goes, if the meters belong to a table's entries.
    pub direct: Option<FieldRef>,
}

/// A digest: values that are told to the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Digest {
    /// Its name.
    pub name: String,
    /// Its number in the JSON.
    pub json_id: u32,
    /// Its values.
    pub fields: Vec<FieldRef>,
}

/// Fields that a copy of a packet keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldList {
    /// Its number in the JSON.
    pub json_id: u32,
    /// The fields.
    pub fields: Vec<FieldRef>,
}

/// The deparser: which headers are sent, in order, where they are valid.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Deparser {
    /// Statements run before.
    pub statements: Vec<action::Statement>,
    /// The headers.
    pub order: Vec<HeaderId>,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Header types.
    pub types: Vec<HeaderType>,
    /// Header instances.
    pub headers: Vec<Header>,
    /// Stacks.
    pub stacks: Vec<Stack>,
    /// Unions.
    pub unions: Vec<Union>,
    /// Stacks of unions.
    pub union_stacks: Vec<UnionStack>,
    /// Other names of fields.
    pub aliases: BTreeMap<String, FieldRef>,
    /// Errors by name.
    pub errors: BTreeMap<String, u32>,
    /// Enumerations: (name, entry) and value.
    pub enums: BTreeMap<String, Vec<(String, u32)>>,
    /// Value sets.
    pub value_sets: Vec<ValueSet>,
    /// The parser.
    pub parser: Parser,
    /// The deparser.
    pub deparser: Deparser,
    /// Calculations.
    pub calculations: Vec<Calculation>,
    /// Counters.
    pub counters: Vec<CounterArray>,
    /// Meters.
    pub meters: Vec<MeterArray>,
    /// Registers.
    pub registers: Vec<RegisterArray>,
    /// Actions.
    pub actions: Vec<Action>,
    /// Action profiles.
    pub profiles: Vec<Profile>,
    /// Tables.
    pub tables: Vec<Table>,
    /// The ingress pipeline.
    pub ingress: Pipeline,
    /// The egress pipeline.
    pub egress: Pipeline,
    /// Checksums.
    pub checksums: Vec<Checksum>,
    /// Digests.
    pub digests: Vec<Digest>,
    /// Field lists.
    pub field_lists: Vec<FieldList>,
    /// Fields that any of this reads or writes, by themselves or with their whole header (of which `mark_to_drop` takes the
    /// `egress_spec` alone). What the program does not mention, it cannot tell from any other value; what the switch itself reads
    /// by another name, `lower` adds.
    #[serde(skip)]
    pub mentioned: BTreeSet<FieldRef>,
}

impl Program {
    /// The type of a header.
    #[must_use]
    pub fn type_of(&self, header: HeaderId) -> Option<&HeaderType> {
        let header = self.headers.get(header.index())?;
        self.types.get(header.header_type.index())
    }

    /// A field, if it is not the hidden one.
    #[must_use]
    pub fn field(&self, field: FieldRef) -> Option<&Field> {
        self.type_of(field.header)?.fields.get(field.field as usize)
    }

    /// Width of a field in bits: 1 for the hidden one.
    #[must_use]
    pub fn bits(&self, field: FieldRef) -> u32 {
        self.field(field).map_or(1, |field| field.bits)
    }

    /// A field by `header.field` or one of its other names.
    #[must_use]
    pub fn field_named(&self, header: &str, field: &str) -> Option<FieldRef> {
        if let Some(found) = self.aliases.get(&format!("{header}.{field}")) {
            return Some(*found);
        }
        let at = self.headers.iter().position(|known| known.name == header)?;
        let header = HeaderId(u32::try_from(at).ok()?);
        let field = self.type_of(header)?.field(field)?;
        Some(FieldRef { header, field })
    }

    /// The stack that a header is an element of.
    #[must_use]
    pub fn stack_of(&self, header: HeaderId) -> Option<StackId> {
        let at = self
            .stacks
            .iter()
            .position(|stack| stack.headers.contains(&header))?;
        Some(StackId(u32::try_from(at).ok()?))
    }
}

/// The value of bytes, most significant first.
#[must_use]
pub fn number(bytes: &[u8]) -> BigUint {
    BigUint::from_bytes_be(bytes)
}
