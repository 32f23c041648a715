//! Key fields of tables and value sets.

use std::fmt;

use super::bits::Bits;
use super::wire::{DecodeError, DecodeProblem, Reader, Writer};

/// One key field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyField {
    /// The name of the field.
    pub name: String,
    /// The match of the field.
    pub matches: Match,
}

/// The match of a key field and its kind, in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Match(Kind);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Exact(Bits),
    Lpm { value: Bits, prefix_bits: u32 },
    Ternary { value: Bits, mask: Bits },
    Range { low: Bits, high: Bits },
    Optional(Option<Bits>),
}

/// Why a match is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// Values of different widths.
    #[error(
        "invalid match: widths {0} and {1} bits differ; value and mask, or both ends of the range, need the same width"
    )]
    WidthMismatch(u32, u32),
    /// The prefix is longer than the field.
    #[error("invalid match: a prefix of {prefix_bits} bits in a field of {width} bits")]
    PrefixTooLong {
        /// Length of the prefix, bits.
        prefix_bits: u32,
        /// Width of the field, bits.
        width: u32,
    },
    /// The start of the range is above its end.
    #[error("invalid match: the start of the range is above its end")]
    EmptyRange,
}

impl Match {
    /// Exactly this value.
    #[must_use]
    pub const fn exact(value: Bits) -> Self {
        Self(Kind::Exact(value))
    }

    /// The values that equal `value` in the first `prefix_bits` bits; the other bits are ignored.
    ///
    /// # Errors
    /// A prefix longer than the field.
    pub fn lpm(value: Bits, prefix_bits: u32) -> Result<Self, MatchError> {
        let width = value.width();
        if prefix_bits > width {
            return Err(MatchError::PrefixTooLong { prefix_bits, width });
        }
        let value = value.and(&Bits::prefix(width, prefix_bits));
        Ok(Self(Kind::Lpm { value, prefix_bits }))
    }

    /// The values that equal `value` in the bits of `mask`; the other bits are ignored.
    ///
    /// # Errors
    /// Different widths.
    pub fn ternary(value: Bits, mask: Bits) -> Result<Self, MatchError> {
        if value.width() != mask.width() {
            return Err(MatchError::WidthMismatch(value.width(), mask.width()));
        }
        let value = value.and(&mask);
        Ok(Self(Kind::Ternary { value, mask }))
    }

    /// The values from `low` to `high`, both inclusive.
    ///
    /// # Errors
    /// Different widths, or an empty range.
    pub fn range(low: Bits, high: Bits) -> Result<Self, MatchError> {
        if low.width() != high.width() {
            return Err(MatchError::WidthMismatch(low.width(), high.width()));
        }
        match low > high {
            true => Err(MatchError::EmptyRange),
            false => Ok(Self(Kind::Range { low, high })),
        }
    }

    /// Exactly this value; any value if `None`.
    #[must_use]
    pub const fn optional(value: Option<Bits>) -> Self {
        Self(Kind::Optional(value))
    }

    fn write(&self, out: &mut Writer) {
        match &self.0 {
            Kind::Exact(value) => value.write(out.u8(1)),
            Kind::Lpm { value, prefix_bits } => {
                value.write(out.u8(2));
                out.u32(*prefix_bits);
            }
            Kind::Ternary { value, mask } => {
                value.write(out.u8(3));
                mask.write(out);
            }
            Kind::Range { low, high } => {
                low.write(out.u8(4));
                high.write(out);
            }
            Kind::Optional(None) => {
                out.u8(5).u8(0);
            }
            Kind::Optional(Some(value)) => value.write(out.u8(5).u8(1)),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const FIELD: &str = "match";
        let kind = reader.u8(FIELD)?;
        if kind == 5 {
            let value = match reader.flag(FIELD)? {
                true => Some(Bits::read(reader, FIELD)?),
                false => None,
            };
            return Ok(Self::optional(value));
        }
        let first = Bits::read(reader, FIELD)?;
        let encoded_value = first.clone();
        let parsed = match kind {
            1 => return Ok(Self::exact(first)),
            2 => Self::lpm(first, reader.u32(FIELD)?),
            3 => Self::ternary(first, Bits::read(reader, FIELD)?),
            4 => Self::range(first, Bits::read(reader, FIELD)?),
            _ => return Err(reader.refuse(FIELD, DecodeProblem::InvalidValue)),
        }
        .map_err(|_| reader.refuse(FIELD, DecodeProblem::InvalidValue))?;
        match &parsed.0 {
            Kind::Lpm { value, .. } | Kind::Ternary { value, .. } if *value != encoded_value => {
                Err(reader.refuse(FIELD, DecodeProblem::NotCanonical))
            }
            _ => Ok(parsed),
        }
    }
}

pub(super) fn write_key(key: &[KeyField], out: &mut Writer) {
    out.count(key.len());
    for field in key {
        field.matches.write(out.text(&field.name));
    }
}

pub(super) fn read_key(reader: &mut Reader<'_>) -> Result<Vec<KeyField>, DecodeError> {
    reader.list("key fields", |reader| {
        Ok(KeyField {
            name: reader.text("key field")?,
            matches: Match::read(reader)?,
        })
    })
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Exact(value) | Kind::Optional(Some(value)) => write!(f, "{value}"),
            Kind::Lpm { value, prefix_bits } => write!(f, "{value}/{prefix_bits}"),
            Kind::Ternary { value, mask } => write!(f, "{value} &&& {mask}"),
            Kind::Range { low, high } => write!(f, "{low}..{high}"),
            Kind::Optional(None) => f.write_str("*"),
        }
    }
}
