//! Values of P4 types in registers and digests (specification 8.5).

use crate::bytes::Bits;
use crate::error::EntityError;
use crate::p4info::{HeaderType, Type};
use crate::proto::v1;
use v1::p4_data::Data as Wire;

/// Value of a P4 type. The P4Info defines the type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are P4's")]
pub enum Data {
    Bits(Bits),
    /// Two's complement.
    Signed(Bits),
    /// Value of the current width; zero bits are allowed.
    Varbit(Bits),
    Bool(bool),
    Tuple(Vec<Data>),
    Struct(Vec<Data>),
    /// Fields in order; `None` for an invalid header.
    Header(Option<Vec<Data>>),
    /// Index of the valid member and its fields; `None` if no member is valid.
    Union(Option<(usize, Vec<Data>)>),
    Stack(Vec<Option<Vec<Data>>>),
    UnionStack(Vec<Option<(usize, Vec<Data>)>>),
    Enum(String),
    Error(String),
    EnumValue(Bits),
}

type HeaderData = Option<Vec<Data>>;
type UnionData = Option<(usize, Vec<Data>)>;
type UnionMembers = [(String, std::sync::Arc<HeaderType>)];

impl Data {
    /// Decodes a value of type `ty`.
    pub fn decode(ty: &Type, message: &v1::P4Data) -> Result<Self, EntityError> {
        let data = message
            .data
            .as_ref()
            .ok_or_else(|| EntityError::invalid("value is missing"))?;
        match (ty, data) {
            (Type::Bits(width), Wire::Bitstring(string)) => Ok(Self::Bits(Bits::parse(*width, string)?)),
            (Type::Signed(width), Wire::Bitstring(string)) => {
                Ok(Self::Signed(Bits::parse_signed(*width, string)?))
            }
            (Type::Varbit(width_max), Wire::Varbit(varbit)) => {
                Ok(Self::Varbit(decode_varbit(*width_max, varbit)?))
            }
            (Type::Bool, Wire::Bool(value)) => Ok(Self::Bool(*value)),
            (Type::Tuple(types), Wire::Tuple(tuple)) => {
                let types: Vec<&Type> = types.iter().map(|ty| &**ty).collect();
                Ok(Self::Tuple(decode_members(&types, &tuple.members)?))
            }
            (Type::Struct(members), Wire::Struct(structure)) => {
                let types: Vec<&Type> = members.iter().map(|(_, ty)| &**ty).collect();
                Ok(Self::Struct(decode_members(&types, &structure.members)?))
            }
            (Type::Header(header_type), Wire::Header(header)) => {
                Ok(Self::Header(decode_header(header_type, header)?))
            }
            (Type::Union(members), Wire::HeaderUnion(union)) => {
                Ok(Self::Union(decode_union(members, union)?))
            }
            (Type::Stack(header_type, size), Wire::HeaderStack(stack)) => {
                check_count(stack.entries.len(), *size as usize, "headers")?;
                Ok(Self::Stack(
                    stack
                        .entries
                        .iter()
                        .map(|header| decode_header(header_type, header))
                        .collect::<Result<_, _>>()?,
                ))
            }
            (Type::UnionStack(members, size), Wire::HeaderUnionStack(stack)) => {
                check_count(stack.entries.len(), *size as usize, "header unions")?;
                let entries = stack.entries.iter().map(|union| decode_union(members, union));
                Ok(Self::UnionStack(entries.collect::<Result<_, _>>()?))
            }
            (Type::Enum(members), Wire::Enum(name)) => Ok(Self::Enum(require_member_name(members, name)?)),
            (Type::Error(members), Wire::Error(name)) => Ok(Self::Error(require_member_name(members, name)?)),
            (Type::SerializableEnum(width), Wire::EnumValue(string)) => {
                Ok(Self::EnumValue(Bits::parse(*width, string)?))
            }
            (Type::Text, _) => Err(EntityError::unimplemented(
                "translated types of kind sdn_string are not supported",
            )),
            (ty, data) => Err(EntityError::invalid(format!(
                "value has the wrong type: expected {}, found {}",
                type_name(ty),
                wire_name(data)
            ))),
        }
    }

    /// Encodes the value as its canonical message. The name of a union member comes from the type.
    pub fn encode(&self, ty: &Type) -> v1::P4Data {
        let data = match self {
            Self::Bits(bits) => Wire::Bitstring(bits.canonical().to_vec()),
            Self::Signed(bits) => Wire::Bitstring(bits.canonical_signed()),
            Self::Varbit(bits) => Wire::Varbit(v1::P4Varbit {
                bitstring: bits.as_bytes().to_vec(),
                bitwidth: i32::try_from(bits.width()).unwrap_or(i32::MAX),
            }),
            Self::Bool(value) => Wire::Bool(*value),
            Self::Tuple(members) => {
                let types: Vec<&Type> = match ty {
                    Type::Tuple(types) => types.iter().map(|ty| &**ty).collect(),
                    _ => Vec::new(),
                };
                Wire::Tuple(encode_members(members, &types))
            }
            Self::Struct(members) => {
                let types: Vec<&Type> = match ty {
                    Type::Struct(types) => types.iter().map(|(_, ty)| &**ty).collect(),
                    _ => Vec::new(),
                };
                Wire::Struct(encode_members(members, &types))
            }
            Self::Header(header) => Wire::Header(encode_header(header.as_deref())),
            Self::Union(union) => Wire::HeaderUnion(encode_union(union.as_ref(), ty)),
            Self::Stack(headers) => Wire::HeaderStack(v1::P4HeaderStack {
                entries: headers
                    .iter()
                    .map(|header| encode_header(header.as_deref()))
                    .collect(),
            }),
            Self::UnionStack(unions) => Wire::HeaderUnionStack(v1::P4HeaderUnionStack {
                entries: unions
                    .iter()
                    .map(|union| encode_union(union.as_ref(), ty))
                    .collect(),
            }),
            Self::Enum(name) => Wire::Enum(name.clone()),
            Self::Error(name) => Wire::Error(name.clone()),
            Self::EnumValue(bits) => Wire::EnumValue(bits.canonical().to_vec()),
        };
        v1::P4Data { data: Some(data) }
    }
}

fn decode_members(types: &[&Type], members: &[v1::P4Data]) -> Result<Vec<Data>, EntityError> {
    check_count(members.len(), types.len(), "members")?;
    let pairs = types.iter().zip(members).enumerate();
    let decoded = pairs.map(|(index, (ty, member))| {
        Data::decode(ty, member).map_err(|error| error.at(format!("member {index}")))
    });
    decoded.collect()
}

fn decode_header(header_type: &HeaderType, header: &v1::P4Header) -> Result<HeaderData, EntityError> {
    if !header.is_valid {
        check_count(header.bitstrings.len(), 0, "fields of an invalid header")?;
        return Ok(None);
    }
    check_count(header.bitstrings.len(), header_type.fields.len(), "fields")?;
    let fields = header_type
        .fields
        .iter()
        .zip(&header.bitstrings)
        .map(|((name, ty), string)| {
            let field = match ty {
                Type::Signed(width) => Bits::parse_signed(*width, string).map(Data::Signed),
                // P4Runtime encodes no width for a varbit in a header: the number of bytes determines the width.
                Type::Varbit(width_max) => decode_header_varbit(*width_max, string).map(Data::Varbit),
                Type::Bits(width) => Bits::parse(*width, string).map(Data::Bits),
                _ => return Err(EntityError::invalid("header field is not a number").at(name)),
            };
            field.map_err(|error| EntityError::from(error).at(name))
        });
    fields.collect::<Result<_, _>>().map(Some)
}

fn decode_union(members: &UnionMembers, union: &v1::P4HeaderUnion) -> Result<UnionData, EntityError> {
    if union.valid_header_name.is_empty() {
        return match union.valid_header {
            None => Ok(None),
            Some(_) => Err(EntityError::invalid(
                "valid header of the header union has no name",
            )),
        };
    }
    let index = members
        .iter()
        .position(|(name, _)| *name == union.valid_header_name);
    let (index, header_type) = index
        .and_then(|index| members.get(index).map(|(_, header_type)| (index, header_type)))
        .ok_or_else(|| {
            EntityError::invalid(format!(
                "header union has no member \"{}\"",
                union.valid_header_name
            ))
        })?;
    let header = union
        .valid_header
        .as_ref()
        .map(|header| decode_header(header_type, header))
        .transpose()?
        .flatten();
    let fields =
        header.ok_or_else(|| EntityError::invalid("selected header of the header union is invalid"))?;
    Ok(Some((index, fields)))
}

fn decode_varbit(width_max: u32, message: &v1::P4Varbit) -> Result<Bits, EntityError> {
    let width = u32::try_from(message.bitwidth)
        .ok()
        .filter(|width| *width <= width_max)
        .ok_or_else(|| {
            EntityError::out_of_range(format!(
                "width of {} bits is out of range: the maximum is {width_max}",
                message.bitwidth
            ))
        })?;
    if width == 0 {
        return Ok(Bits::zero(0));
    }
    Ok(Bits::parse(width, &message.bitstring)?)
}

fn decode_header_varbit(width_max: u32, string: &[u8]) -> Result<Bits, crate::bytes::BytesError> {
    if string.is_empty() {
        return Ok(Bits::zero(0));
    }
    let width = u32::try_from(string.len()).unwrap_or(u32::MAX).saturating_mul(8);
    if width > width_max.next_multiple_of(8) {
        let needed_bits = string.len() * 8;
        return Err(crate::bytes::BytesError::TooWide {
            needed_bits,
            width_bits: width_max,
        });
    }
    Bits::parse(width.min(width_max), string)
}

fn require_member_name(members: &[String], name: &str) -> Result<String, EntityError> {
    let known_name = members.iter().find(|member| *member == name);
    known_name.cloned().ok_or_else(|| {
        EntityError::invalid(format!(
            "unknown member \"{name}\": expected one of {}",
            members.join(", ")
        ))
    })
}

fn check_count(found: usize, expected: usize, items: &str) -> Result<(), EntityError> {
    if found == expected {
        Ok(())
    } else {
        Err(EntityError::invalid(format!(
            "wrong number of {items}: expected {expected}, found {found}"
        )))
    }
}

fn encode_members(members: &[Data], types: &[&Type]) -> v1::P4StructLike {
    let type_at = |index: usize| types.get(index).copied().unwrap_or(&Type::Bool);
    v1::P4StructLike {
        members: members
            .iter()
            .enumerate()
            .map(|(index, member)| member.encode(type_at(index)))
            .collect(),
    }
}

fn encode_header(fields: Option<&[Data]>) -> v1::P4Header {
    let bitstrings = fields.unwrap_or_default().iter().map(|field| match field {
        Data::Signed(bits) => bits.canonical_signed(),
        Data::Varbit(bits) => bits.as_bytes().to_vec(),
        Data::Bits(bits) | Data::EnumValue(bits) => bits.canonical().to_vec(),
        _ => vec![0],
    });
    v1::P4Header {
        is_valid: fields.is_some(),
        bitstrings: bitstrings.collect(),
    }
}

fn encode_union(union: Option<&(usize, Vec<Data>)>, ty: &Type) -> v1::P4HeaderUnion {
    let Some((index, fields)) = union else {
        return v1::P4HeaderUnion::default();
    };
    let name = match ty {
        Type::Union(members) | Type::UnionStack(members, _) => {
            members.get(*index).map(|(name, _)| name.clone())
        }
        _ => None,
    };
    v1::P4HeaderUnion {
        valid_header_name: name.unwrap_or_default(),
        valid_header: Some(encode_header(Some(fields))),
    }
}

fn type_name(ty: &Type) -> String {
    match ty {
        Type::Bits(width) => format!("bit<{width}>"),
        Type::Signed(width) => format!("int<{width}>"),
        Type::Varbit(width_max) => format!("varbit<{width_max}>"),
        Type::Bool => "bool".into(),
        Type::Tuple(_) => "a tuple".into(),
        Type::Struct(_) => "a struct".into(),
        Type::Header(_) => "a header".into(),
        Type::Union(_) => "a header union".into(),
        Type::Stack(..) => "a header stack".into(),
        Type::UnionStack(..) => "a stack of header unions".into(),
        Type::Enum(_) => "an enum".into(),
        Type::Error(_) => "error".into(),
        Type::SerializableEnum(width) => format!("an enum over bit<{width}>"),
        Type::Text => "a translated name".into(),
    }
}

fn wire_name(data: &Wire) -> &'static str {
    match data {
        Wire::Bitstring(_) => "a bit string",
        Wire::Varbit(_) => "a varbit",
        Wire::Bool(_) => "a bool",
        Wire::Tuple(_) => "a tuple",
        Wire::Struct(_) => "a struct",
        Wire::Header(_) => "a header",
        Wire::HeaderUnion(_) => "a header union",
        Wire::HeaderStack(_) => "a header stack",
        Wire::HeaderUnionStack(_) => "a stack of header unions",
        Wire::Enum(_) => "an enum's member",
        Wire::Error(_) => "an error",
        Wire::EnumValue(_) => "an enum's number",
    }
}
