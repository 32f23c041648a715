//! Conversion between P4Runtime values and numbers of the switch.

use linewarden_p4runtime::bytes::Bits;
use linewarden_p4runtime::data::Data;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::p4info::Type;
use num_bigint::BigUint;
use num_traits::{ToPrimitive as _, Zero as _};

/// Converts bits to a number.
pub(super) fn number(bits: &Bits) -> BigUint {
    BigUint::from_bytes_be(bits.as_bytes())
}

/// Converts the low `width` bits of a number to P4Runtime bits.
pub(super) fn bits(width: u32, number: &BigUint) -> Bits {
    let low = number & ((BigUint::from(1u8) << width) - 1u8);
    Bits::parse(width, &low.to_bytes_be()).unwrap_or_else(|_| Bits::zero(width))
}

/// Concatenates numbers without padding in the fewest bytes; the first number is in the highest bits.
pub(super) fn join<'a>(parts: impl IntoIterator<Item = (u32, &'a BigUint)>) -> Vec<u8> {
    let (mut number, mut bits) = (BigUint::zero(), 0u32);
    for (width, part) in parts {
        number = (number << width) | part;
        bits += width;
    }
    padded(&number, bits.div_ceil(8) as usize)
}

/// Inverse of [`join`]: splits bytes into numbers of these widths.
pub(super) fn split(bytes: &[u8], widths: &[u32]) -> Vec<BigUint> {
    let mut remaining = BigUint::from_bytes_be(bytes);
    let mut parts: Vec<BigUint> = widths
        .iter()
        .rev()
        .map(|width| {
            let part = &remaining & ((BigUint::from(1u8) << *width) - 1u8);
            remaining >>= *width;
            part
        })
        .collect();
    parts.reverse();
    parts
}

/// Encodes the low bytes of a number, big-endian and padded to this length.
fn padded(number: &BigUint, length: usize) -> Vec<u8> {
    let digits = number.to_bytes_be();
    let digits = digits
        .get(digits.len().saturating_sub(length)..)
        .unwrap_or_default();
    let mut bytes = vec![0; length - digits.len()];
    bytes.extend_from_slice(digits);
    bytes
}

/// Layout of a P4Info type as a sequence of numbers.
#[derive(Clone, Debug)]
pub(super) struct ValueLayout {
    value_type: std::sync::Arc<Type>,
    widths: Vec<u32>,
}

/// Width of each number in a value of the type; `None` where the P4Info has no width.
fn leaf_widths(value_type: &Type, widths: &mut Vec<Option<u32>>) -> Result<(), EntityError> {
    match value_type {
        Type::Bits(width) | Type::Signed(width) | Type::SerializableEnum(width) => widths.push(Some(*width)),
        Type::Bool => widths.push(Some(1)),
        Type::Enum(_) | Type::Error(_) => widths.push(None),
        Type::Tuple(types) => types
            .iter()
            .try_for_each(|value_type| leaf_widths(value_type, widths))?,
        Type::Struct(members) => members
            .iter()
            .try_for_each(|(_, value_type)| leaf_widths(value_type, widths))?,
        Type::Varbit(_)
        | Type::Header(_)
        | Type::Union(_)
        | Type::Stack(..)
        | Type::UnionStack(..)
        | Type::Text => {
            return Err(EntityError::unimplemented(
                "unsupported type: supported are numbers, bool, enum, error, and tuples and structs of these",
            ));
        }
    }
    Ok(())
}

impl ValueLayout {
    /// Layout of a value that is one number of `bits` bits in the program.
    pub(super) fn for_width(value_type: &std::sync::Arc<Type>, bits: u32) -> Result<Self, EntityError> {
        let mut leaves = Vec::new();
        leaf_widths(value_type, &mut leaves)?;
        let known_bits: u32 = leaves.iter().flatten().sum();
        let widths: Vec<u32> = match leaves.iter().filter(|width| width.is_none()).count() {
            0 if known_bits == bits => leaves.into_iter().flatten().collect(),
            1 if known_bits < bits => leaves
                .into_iter()
                .map(|width| width.unwrap_or(bits - known_bits))
                .collect(),
            _ => {
                return Err(EntityError::invalid(format!(
                    "type has {known_bits} bits, in the program {bits}"
                )));
            }
        };
        Ok(Self {
            value_type: value_type.clone(),
            widths,
        })
    }

    /// Layout of a value that is a sequence of numbers of these widths in the program.
    pub(super) fn for_fields(
        value_type: &std::sync::Arc<Type>,
        widths: Vec<u32>,
    ) -> Result<Self, EntityError> {
        let mut leaves = Vec::new();
        leaf_widths(value_type, &mut leaves)?;
        let fits = |(known_width, width): (&Option<u32>, &u32)| {
            known_width.is_none_or(|known_width| known_width == *width)
        };
        if leaves.len() != widths.len() || !leaves.iter().zip(&widths).all(fits) {
            return Err(EntityError::invalid(format!(
                "type does not have fields of {widths:?} bits as in the program"
            )));
        }
        Ok(Self {
            value_type: value_type.clone(),
            widths,
        })
    }

    /// Converts a value to one number.
    pub(super) fn to_number(&self, data: &Data) -> Result<BigUint, EntityError> {
        let mut numbers = Vec::new();
        flatten(&self.value_type, data, &mut numbers)?;
        let parts = self.widths.iter().copied().zip(&numbers);
        Ok(BigUint::from_bytes_be(&join(parts)))
    }

    /// Converts one number to a value.
    pub(super) fn value_of(&self, number: &BigUint) -> Data {
        self.value_of_all(&split(&number.to_bytes_be(), &self.widths))
    }

    /// Converts a sequence of numbers to a value.
    pub(super) fn value_of_all(&self, numbers: &[BigUint]) -> Data {
        let mut widths = self.widths.iter().copied();
        let mut numbers = numbers.iter();
        build(&self.value_type, &mut || {
            (
                widths.next().unwrap_or_default(),
                numbers.next().cloned().unwrap_or_default(),
            )
        })
    }
}

fn flatten(value_type: &Type, data: &Data, numbers: &mut Vec<BigUint>) -> Result<(), EntityError> {
    match (value_type, data) {
        (_, Data::Bits(value) | Data::Signed(value) | Data::EnumValue(value)) => numbers.push(number(value)),
        (_, Data::Bool(value)) => numbers.push(BigUint::from(u8::from(*value))),
        (Type::Enum(names), Data::Enum(name)) | (Type::Error(names), Data::Error(name)) => {
            let index = names
                .iter()
                .position(|candidate| candidate == name)
                .unwrap_or_default();
            numbers.push(BigUint::from(index));
        }
        (Type::Tuple(types), Data::Tuple(members)) => {
            for (value_type, member) in types.iter().zip(members) {
                flatten(value_type, member, numbers)?;
            }
        }
        (Type::Struct(types), Data::Struct(members)) => {
            for ((_, value_type), member) in types.iter().zip(members) {
                flatten(value_type, member, numbers)?;
            }
        }
        _ => return Err(EntityError::invalid("value has the wrong type")),
    }
    Ok(())
}

fn build(value_type: &Type, next: &mut dyn FnMut() -> (u32, BigUint)) -> Data {
    let name = |names: &[String], number: &BigUint| {
        let index = number.to_usize();
        let candidate = index.and_then(|index| names.get(index)).cloned();
        candidate.unwrap_or_else(|| number.to_string())
    };
    match value_type {
        Type::Tuple(types) => Data::Tuple(types.iter().map(|value_type| build(value_type, next)).collect()),
        Type::Struct(types) => Data::Struct(
            types
                .iter()
                .map(|(_, value_type)| build(value_type, next))
                .collect(),
        ),
        leaf => {
            let (width, number) = next();
            match leaf {
                Type::Signed(_) => Data::Signed(bits(width, &number)),
                Type::Bool => Data::Bool(!number.is_zero()),
                Type::Enum(names) => Data::Enum(name(names, &number)),
                Type::Error(names) => Data::Error(name(names, &number)),
                Type::SerializableEnum(_) => Data::EnumValue(bits(width, &number)),
                _ => Data::Bits(bits(width, &number)),
            }
        }
    }
}
