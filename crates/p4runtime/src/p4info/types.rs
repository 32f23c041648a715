//! Types of register cells and digests with all names resolved (specification 8.5).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::{Problem, WIDTH_BITS_MAX};
use crate::proto::config;
use config::p4_bitstring_like_type_spec::TypeSpec as BitsSpec;
use config::p4_data_type_spec::TypeSpec;
use config::p4_new_type_spec::Representation;
use config::p4_new_type_translation::SdnType;

/// P4 type whose values P4Runtime can carry.
#[derive(Debug, PartialEq, Eq)]
pub enum Type {
    /// `bit<W>`.
    Bits(u32),
    /// `int<W>`.
    Signed(u32),
    /// `varbit<W>`, W is the maximum width.
    Varbit(u32),
    /// `bool`.
    Bool,
    /// Tuple.
    Tuple(Vec<Arc<Type>>),
    /// Struct: members in order.
    Struct(Vec<(String, Arc<Type>)>),
    /// Header.
    Header(Arc<HeaderType>),
    /// Header union: members in order.
    Union(Arc<Vec<(String, Arc<HeaderType>)>>),
    /// Header stack with its size.
    Stack(Arc<HeaderType>, u32),
    /// Header union stack with its size.
    UnionStack(Arc<Vec<(String, Arc<HeaderType>)>>, u32),
    /// An `enum` without numbers: names of the members.
    Enum(Vec<String>),
    /// `error`: names of the members.
    Error(Vec<String>),
    /// An `enum` over `bit<W>`; every value of W bits is valid.
    SerializableEnum(u32),
    /// Type that the controller encodes as a name (`sdn_string`).
    Text,
}

/// Fields of a header in order.
#[derive(Debug, PartialEq, Eq)]
pub struct HeaderType {
    /// Names and types; only `Bits`, `Signed` and `Varbit` occur.
    pub fields: Vec<(String, Type)>,
}

type UnionType = Arc<Vec<(String, Arc<HeaderType>)>>;

/// Resolves type specifications. Each struct is resolved once, so repeated nesting costs no extra time.
pub(super) struct Types<'a> {
    info: &'a config::P4TypeInfo,
    /// Resolved structs by name; `None` while a struct is being resolved.
    structs: BTreeMap<&'a str, Option<Arc<Type>>>,
}

impl<'a> Types<'a> {
    pub(super) fn new(info: &'a config::P4TypeInfo) -> Self {
        Self {
            info,
            structs: BTreeMap::new(),
        }
    }

    pub(super) fn resolve(&mut self, spec: Option<&'a config::P4DataTypeSpec>) -> Result<Arc<Type>, Problem> {
        let spec = spec
            .and_then(|spec| spec.type_spec.as_ref())
            .ok_or(Problem::NoType)?;
        let size = |size: i32| u32::try_from(size).map_err(|_| Problem::Size(size.into()));
        Ok(Arc::new(match spec {
            TypeSpec::Bitstring(bits) => bits_type(bits)?,
            TypeSpec::Bool(_) => Type::Bool,
            TypeSpec::Tuple(tuple) => Type::Tuple(
                tuple
                    .members
                    .iter()
                    .map(|member| self.resolve(Some(member)))
                    .collect::<Result<_, _>>()?,
            ),
            TypeSpec::Struct(named) => return self.structure(&named.name),
            TypeSpec::Header(named) => Type::Header(self.header(&named.name)?),
            TypeSpec::HeaderUnion(named) => Type::Union(self.union(&named.name)?),
            TypeSpec::HeaderStack(stack) => {
                Type::Stack(self.header(type_name(stack.header.as_ref())?)?, size(stack.size)?)
            }
            TypeSpec::HeaderUnionStack(stack) => Type::UnionStack(
                self.union(type_name(stack.header_union.as_ref())?)?,
                size(stack.size)?,
            ),
            TypeSpec::Enum(named) => {
                let spec = self
                    .info
                    .enums
                    .get(&named.name)
                    .ok_or_else(|| unknown_type(&named.name))?;
                Type::Enum(spec.members.iter().map(|member| member.name.clone()).collect())
            }
            TypeSpec::Error(_) => Type::Error(
                self.info
                    .error
                    .as_ref()
                    .map(|error| error.members.clone())
                    .unwrap_or_default(),
            ),
            TypeSpec::SerializableEnum(named) => {
                let spec = self
                    .info
                    .serializable_enums
                    .get(&named.name)
                    .ok_or_else(|| unknown_type(&named.name))?;
                Type::SerializableEnum(width(
                    spec.underlying_type.as_ref().map_or(0, |bits| bits.bitwidth),
                )?)
            }
            TypeSpec::NewType(named) => return self.new_type(&named.name),
        }))
    }

    fn structure(&mut self, name: &'a str) -> Result<Arc<Type>, Problem> {
        match self.structs.get(name) {
            Some(Some(cached)) => return Ok(cached.clone()),
            Some(None) => return Err(Problem::RecursiveType(name.to_owned())),
            None => {}
        }
        let spec = self.info.structs.get(name).ok_or_else(|| unknown_type(name))?;
        self.structs.insert(name, None);
        let members = spec
            .members
            .iter()
            .map(|member| Ok((member.name.clone(), self.resolve(member.type_spec.as_ref())?)))
            .collect::<Result<_, _>>()?;
        let resolved = Arc::new(Type::Struct(members));
        self.structs.insert(name, Some(resolved.clone()));
        Ok(resolved)
    }

    fn new_type(&mut self, name: &'a str) -> Result<Arc<Type>, Problem> {
        let spec = self.info.new_types.get(name).ok_or_else(|| unknown_type(name))?;
        match spec.representation.as_ref().ok_or(Problem::NoType)? {
            // The compiler resolves chains of new types: the original type is a built-in type.
            Representation::OriginalType(original) => match original.type_spec {
                Some(TypeSpec::NewType(_)) => Err(Problem::RecursiveType(name.to_owned())),
                _ => self.resolve(Some(original)),
            },
            Representation::TranslatedType(translation) => Ok(Arc::new(match translation.sdn_type {
                Some(SdnType::SdnBitwidth(bits)) => Type::Bits(width(bits)?),
                Some(SdnType::SdnString(_)) => Type::Text,
                None => return Err(Problem::NoType),
            })),
        }
    }

    fn header(&self, name: &str) -> Result<Arc<HeaderType>, Problem> {
        let spec = self.info.headers.get(name).ok_or_else(|| unknown_type(name))?;
        let fields = spec
            .members
            .iter()
            .map(|member| {
                Ok((
                    member.name.clone(),
                    bits_type(member.type_spec.as_ref().ok_or(Problem::NoType)?)?,
                ))
            })
            .collect::<Result<_, Problem>>()?;
        Ok(Arc::new(HeaderType { fields }))
    }

    fn union(&self, name: &str) -> Result<UnionType, Problem> {
        let spec = self
            .info
            .header_unions
            .get(name)
            .ok_or_else(|| unknown_type(name))?;
        let members = spec
            .members
            .iter()
            .map(|member| {
                Ok((
                    member.name.clone(),
                    self.header(type_name(member.header.as_ref())?)?,
                ))
            })
            .collect::<Result<_, Problem>>()?;
        Ok(Arc::new(members))
    }
}

/// Checks the width of a value.
pub(super) fn width(bits: i32) -> Result<u32, Problem> {
    u32::try_from(bits)
        .ok()
        .filter(|bits| (1..=WIDTH_BITS_MAX).contains(bits))
        .ok_or(Problem::Width(bits))
}

fn bits_type(spec: &config::P4BitstringLikeTypeSpec) -> Result<Type, Problem> {
    match spec.type_spec.as_ref().ok_or(Problem::NoType)? {
        BitsSpec::Bit(bit) => Ok(Type::Bits(width(bit.bitwidth)?)),
        BitsSpec::Int(int) => Ok(Type::Signed(width(int.bitwidth)?)),
        BitsSpec::Varbit(varbit) => Ok(Type::Varbit(width(varbit.max_bitwidth)?)),
    }
}

fn type_name(named: Option<&config::P4NamedType>) -> Result<&str, Problem> {
    named.map(|named| named.name.as_str()).ok_or(Problem::NoType)
}

fn unknown_type(name: &str) -> Problem {
    Problem::UnknownType(name.to_owned())
}
