//! Program as data: the resolved and checked content of p4c's JSON, before lowering.
//!
//! Names are replaced by ids ([`ids`]), expressions are typed ([`expr`]), and all references are valid. Both execution
//! methods start from this form: the reference interpreter (`reference`) and the executable form
//! ([`lower`](crate::lower)).

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

/// Field of a header type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Name.
    pub name: String,
    /// Width, bits; for a variable-length field, the maximum width.
    pub bits: u32,
    /// Whether values are signed.
    pub signed: bool,
    /// Whether values saturate instead of wrapping.
    pub saturating: bool,
    /// Whether the field has variable length, which is set at extraction.
    pub variable: bool,
}

/// Header type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeaderType {
    /// Name.
    pub name: String,
    /// Fields.
    pub fields: Vec<Field>,
    /// Width of the variable-length field in bits, computed from fields of the same header ([`Data::Param`] is the index
    /// of a field); `None` if the extract operation contains the length.
    pub variable_bits: Option<Data>,
    /// Maximum length of the header, bytes; 0 if the program sets no maximum.
    pub max_bytes: u32,
}

impl HeaderType {
    /// Index of the variable-length field.
    #[must_use]
    pub fn variable(&self) -> Option<usize> {
        self.fields.iter().position(|field| field.variable)
    }

    /// Index of the field with this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<u32> {
        if name == VALID_FIELD {
            return u32::try_from(self.fields.len()).ok();
        }
        self.fields
            .iter()
            .position(|field| field.name == name)
            .and_then(|index| u32::try_from(index).ok())
    }

    /// Total width of the fixed-width fields, bits.
    #[must_use]
    pub fn fixed_bits(&self) -> u32 {
        self.fields
            .iter()
            .filter(|field| !field.variable)
            .map(|field| field.bits)
            .sum()
    }
}

/// Name of the hidden validity field of every header.
pub const VALID_FIELD: &str = "$valid$";

/// Header instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Header {
    /// Name.
    pub name: String,
    /// Type.
    pub header_type: TypeId,
    /// Whether the instance is metadata: always valid, and zero for a new packet.
    pub metadata: bool,
}

/// Header stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stack {
    /// Name.
    pub name: String,
    /// Type of the elements.
    pub header_type: TypeId,
    /// Elements.
    pub headers: Vec<HeaderId>,
}

/// Header union: at most one member is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Union {
    /// Name.
    pub name: String,
    /// Names of the members.
    pub members: Vec<String>,
    /// Members.
    pub headers: Vec<HeaderId>,
}

/// Header union stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnionStack {
    /// Name.
    pub name: String,
    /// Elements.
    pub unions: Vec<UnionId>,
}

/// Input of a calculation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Input {
    /// Field; skipped if its header is invalid.
    Field(FieldRef),
    /// Constant: bytes and width in bits; the calculation uses the last bits of the bytes.
    Constant(Vec<u8>, u32),
    /// Whole header; skipped if invalid.
    Header(HeaderId),
    /// Payload: all bytes after the extracted headers.
    Payload,
}

/// Hash or checksum over a list of inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Calculation {
    /// Name.
    pub name: String,
    /// Algorithm.
    pub algorithm: String,
    /// Inputs, concatenated bit by bit.
    pub inputs: Vec<Input>,
}

/// Computation of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ChecksumKind {
    /// IPv4 header checksum over the whole header of the target.
    Ipv4,
    /// Calculation.
    Calculation(CalculationId),
}

/// Checksum that is verified after parsing, updated before deparsing, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checksum {
    /// Name.
    pub name: String,
    /// Field of the checksum.
    pub target: FieldRef,
    /// Computation.
    pub kind: ChecksumKind,
    /// Condition; `None` for always.
    pub condition: Option<Bool>,
    /// Whether the parser verifies the checksum.
    pub verify: bool,
    /// Whether the deparser updates the checksum.
    pub update: bool,
}

/// Register array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegisterArray {
    /// Name.
    pub name: String,
    /// Number of cells.
    pub size: u32,
    /// Width of a cell, bits.
    pub bits: u32,
}

/// Counter array; each cell counts packets and bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CounterArray {
    /// Name.
    pub name: String,
    /// Number of cells.
    pub size: u32,
    /// Name of the table, for a direct counter.
    pub direct: Option<String>,
}

/// Unit of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MeterUnit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
}

/// Meter array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeterArray {
    /// Name.
    pub name: String,
    /// Unit.
    pub unit: MeterUnit,
    /// Number of rates: 2 for three-color meters.
    pub rates: u32,
    /// Number of cells.
    pub size: u32,
    /// Target field of the color, for direct meters.
    pub direct: Option<FieldRef>,
}

/// Digest: values sent to the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Digest {
    /// Name.
    pub name: String,
    /// Id in the JSON.
    pub json_id: u32,
    /// Fields.
    pub fields: Vec<FieldRef>,
}

/// Field list: fields that a copy of a packet keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldList {
    /// Id in the JSON.
    pub json_id: u32,
    /// Fields.
    pub fields: Vec<FieldRef>,
}

/// Deparser: emits the valid headers of a list, in order.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Deparser {
    /// Statements that run before the emission.
    pub statements: Vec<action::Statement>,
    /// Headers.
    pub order: Vec<HeaderId>,
}

/// Checked P4 program.
// There are more than 15 fields because there is one for each kind of element that a program defines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Header types.
    pub types: Vec<HeaderType>,
    /// Header instances.
    pub headers: Vec<Header>,
    /// Header stacks.
    pub stacks: Vec<Stack>,
    /// Header unions.
    pub unions: Vec<Union>,
    /// Header union stacks.
    pub union_stacks: Vec<UnionStack>,
    /// Aliases of fields.
    pub aliases: BTreeMap<String, FieldRef>,
    /// Error codes by name.
    pub errors: BTreeMap<String, u32>,
    /// Enums by name; each entry has a name and a value.
    pub enums: BTreeMap<String, Vec<(String, u32)>>,
    /// Value sets.
    pub value_sets: Vec<ValueSet>,
    /// Parser.
    pub parser: Parser,
    /// Deparser.
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
    /// Ingress pipeline.
    pub ingress: Pipeline,
    /// Egress pipeline.
    pub egress: Pipeline,
    /// Checksums.
    pub checksums: Vec<Checksum>,
    /// Digests.
    pub digests: Vec<Digest>,
    /// Field lists.
    pub field_lists: Vec<FieldList>,
    /// Fields that the program reads or writes, directly or through their whole header (`mark_to_drop` references only
    /// `egress_spec`). The program cannot observe other fields. `lower` also counts fields that the switch reads through
    /// an alias.
    #[serde(skip)]
    pub referenced_fields: BTreeSet<FieldRef>,
}

impl Program {
    /// Type of a header.
    #[must_use]
    pub fn type_of(&self, header: HeaderId) -> Option<&HeaderType> {
        let header = self.headers.get(header.index())?;
        self.types.get(header.header_type.index())
    }

    /// Field; `None` for the hidden field.
    #[must_use]
    pub fn field(&self, field: FieldRef) -> Option<&Field> {
        self.type_of(field.header)?.fields.get(field.field as usize)
    }

    /// Width of a field, bits; 1 for the hidden field.
    #[must_use]
    pub fn bits(&self, field: FieldRef) -> u32 {
        self.field(field).map_or(1, |field| field.bits)
    }

    /// Finds a field by `header.field` or an alias.
    #[must_use]
    pub fn field_named(&self, header: &str, field: &str) -> Option<FieldRef> {
        if let Some(alias) = self.aliases.get(&format!("{header}.{field}")) {
            return Some(*alias);
        }
        let index = self
            .headers
            .iter()
            .position(|candidate| candidate.name == header)?;
        let header = HeaderId(u32::try_from(index).ok()?);
        let field = self.type_of(header)?.field(field)?;
        Some(FieldRef { header, field })
    }

    /// Stack that a header is an element of.
    #[must_use]
    pub fn stack_of(&self, header: HeaderId) -> Option<StackId> {
        let index = self
            .stacks
            .iter()
            .position(|stack| stack.headers.contains(&header))?;
        Some(StackId(u32::try_from(index).ok()?))
    }
}

/// Converts big-endian bytes to a number.
#[must_use]
pub fn number(bytes: &[u8]) -> BigUint {
    BigUint::from_bytes_be(bytes)
}
