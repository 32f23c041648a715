//! Numbers of unlimited width, and what a key's value means for each way to match.

use std::fmt;

use thiserror::Error;

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Base {
    /// `0b`, one bit a digit.
    Binary,
    /// No prefix; says nothing of a width.
    Decimal,
    /// `0x`, four bits a digit.
    Hexadecimal,
}

impl Base {
    /// Bits that a digit stands for; a decimal digit stands for no whole number of them.
    const fn bits_per_digit(self) -> Option<u32> {
        match self {
            Self::Binary => Some(1),
            Self::Decimal => None,
            Self::Hexadecimal => Some(4),
        }
    }

    const fn radix(self) -> u32 {
        match self {
            Self::Binary => 2,
            Self::Decimal => 10,
            Self::Hexadecimal => 16,
        }
    }
}

/// Why a number does not fit what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NumberError {
    /// Too large.
    #[error("{number} does not fit {width_bits} bits; give a smaller one")]
    TooWide {
        /// As written.
        number: String,
        /// Bits that there are.
        width_bits: u32,
    },
    /// `*` where every digit counts.
    #[error("{number} has digits that may be anything; write them all")]
    Wildcards {
        /// As written.
        number: String,
    },
    /// In an LPM key, `*` may only stand at the end.
    #[error("{number} has digits behind a `*`; an LPM key is a prefix: digits, then `*`")]
    NotAPrefix {
        /// As written.
        number: String,
    },
    /// In ternary and LPM keys the digits written say which bits count; decimal ones do not.
    #[error("{number} does not say which of the key's bits count; write it as hexadecimal or binary digits")]
    Decimal {
        /// As written.
        number: String,
    },
    /// A way to match that the key does not have.
    #[error("{value} is {is}, and the key matches {matches}")]
    OtherMatch {
        /// As written.
        value: String,
        /// What was written.
        is: &'static str,
        /// What the key does.
        matches: &'static str,
    },
    /// A prefix is longer than the key.
    #[error("a prefix of {length_bits} bits for a key of {width_bits}; give at most the key's width")]
    PrefixTooLong {
        /// As written, or as the digits make it.
        length_bits: u32,
        /// Bits of the key.
        width_bits: u32,
    },
    /// A range that holds nothing.
    #[error("the range {value} is empty; give the lower end first")]
    EmptyRange {
        /// As written.
        value: String,
    },
}

/// A number as a test writes it. Only the parser makes them: the digits are of the base.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Number {
    base: Base,
    /// Without the prefix; at least one.
    digits: String,
}

impl Number {
    /// `digits` are digits of the base or `*`.
    pub(super) const fn new(base: Base, digits: String) -> Self {
        Self { base, digits }
    }

    /// How it is written.
    pub const fn base(&self) -> Base {
        self.base
    }

    /// Whether some digit may be anything.
    pub fn has_wildcards(&self) -> bool {
        self.digits.contains('*')
    }

    /// The value as big-endian bytes without leading zeros (none for zero); `*` counts as 0.
    pub fn value(&self) -> Vec<u8> {
        self.bytes_of(|digit| digit.to_digit(self.base.radix()).unwrap_or(0))
    }

    /// Ones where digits are written that are not `*`, as [`Number::value`].
    fn written_bits(&self) -> Vec<u8> {
        self.bytes_of(|digit| if digit == '*' { 0 } else { self.base.radix() - 1 })
    }

    fn bytes_of(&self, value: impl Fn(char) -> u32) -> Vec<u8> {
        let mut little_endian = Vec::with_capacity(self.digits.len());
        for digit in self.digits.chars() {
            let mut carry = value(digit);
            for byte in &mut little_endian {
                let sum = u32::from(*byte) * self.base.radix() + carry;
                *byte = (sum & 0xff) as u8;
                carry = sum >> 8;
            }
            if carry != 0 {
                little_endian.push((carry & 0xff) as u8);
            }
        }
        little_endian.reverse();
        little_endian
    }

    /// The value as a machine word; `None` if it is larger or has wildcards.
    pub fn to_u64(&self) -> Option<u64> {
        let bytes = self.to_bytes(64).ok()?;
        Some(
            bytes
                .iter()
                .fold(0, |value, byte| (value << 8) | u64::from(*byte)),
        )
    }

    /// The value as big-endian bytes of a field `width_bits` wide: as many as hold it, padded in front.
    ///
    /// # Errors
    /// [`NumberError::TooWide`], [`NumberError::Wildcards`].
    pub fn to_bytes(&self, width_bits: u32) -> Result<Vec<u8>, NumberError> {
        if self.has_wildcards() {
            return Err(NumberError::Wildcards {
                number: self.to_string(),
            });
        }
        self.fitted(width_bits)
    }

    fn fitted(&self, width_bits: u32) -> Result<Vec<u8>, NumberError> {
        let value = self.value();
        let length = width_bits.div_ceil(8) as usize;
        let leading = value.first().map_or(0, |byte| byte.leading_zeros());
        if (value.len() as u64) * 8 - u64::from(leading) > u64::from(width_bits) {
            return Err(NumberError::TooWide {
                number: self.to_string(),
                width_bits,
            });
        }
        Ok(padded(&value, length))
    }

    fn bits_per_digit(&self) -> Result<u32, NumberError> {
        self.base.bits_per_digit().ok_or_else(|| NumberError::Decimal {
            number: self.to_string(),
        })
    }

    /// Bits in front of the wildcards, which must stand at the end.
    fn prefix_bits(&self) -> Result<u32, NumberError> {
        let written = self.digits.trim_end_matches('*');
        if written.contains('*') {
            return Err(NumberError::NotAPrefix {
                number: self.to_string(),
            });
        }
        let digits = u32::try_from(written.len()).unwrap_or(u32::MAX);
        Ok(digits.saturating_mul(self.bits_per_digit()?))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.base {
            Base::Binary => "0b",
            Base::Decimal => "",
            Base::Hexadecimal => "0x",
        };
        write!(f, "{prefix}{}", self.digits)
    }
}

/// The last `length` bytes of a number, padded in front.
fn padded(value: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length.saturating_sub(value.len())];
    bytes.extend(value.iter().skip(value.len().saturating_sub(length)));
    bytes
}

/// What a key must be, as a test writes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyValue {
    /// `NUMBER`, perhaps with wildcards: what it means depends on the key.
    Number(Number),
    /// `NUMBER/LENGTH`.
    Prefix {
        /// The number.
        value: Number,
        /// How many of the key's upper bits count.
        length_bits: u32,
    },
    /// `NUMBER&&&MASK`.
    Mask {
        /// The number.
        value: Number,
        /// Ones where it counts.
        mask: Number,
    },
    /// `LOW->HIGH`, both of them in it.
    Range {
        /// Lower end.
        low: Number,
        /// Upper end.
        high: Number,
    },
}

impl KeyValue {
    /// The bytes of an exact key (or a validity, one bit wide).
    ///
    /// # Errors
    /// [`NumberError`]
    pub fn exact(&self, width_bits: u32) -> Result<Vec<u8>, NumberError> {
        match self {
            Self::Number(value) => value.to_bytes(width_bits),
            _ => Err(self.other_match("one value")),
        }
    }

    /// The bytes and the prefix length of an LPM key. Bits behind the prefix are zero.
    ///
    /// # Errors
    /// [`NumberError`]
    pub fn lpm(&self, width_bits: u32) -> Result<(Vec<u8>, u32), NumberError> {
        let (value, length_bits) = match self {
            Self::Number(value) => (value, value.prefix_bits()?),
            Self::Prefix { value, length_bits } => (value, *length_bits),
            _ => return Err(self.other_match("a prefix")),
        };
        if length_bits > width_bits {
            return Err(NumberError::PrefixTooLong {
                length_bits,
                width_bits,
            });
        }
        let bytes = value.fitted(width_bits)?;
        Ok((and(&bytes, &prefix_mask(width_bits, length_bits)), length_bits))
    }

    /// The bytes and the mask of a ternary (or optional) key. Bits outside the mask are zero.
    ///
    /// # Errors
    /// [`NumberError`]
    pub fn ternary(&self, width_bits: u32) -> Result<(Vec<u8>, Vec<u8>), NumberError> {
        let all = prefix_mask(width_bits, width_bits);
        let (value, mask) = match self {
            Self::Number(value) => {
                value.bits_per_digit()?;
                (value, and(&padded(&value.written_bits(), all.len()), &all))
            }
            Self::Mask { value, mask } => (value, mask.to_bytes(width_bits)?),
            Self::Prefix { value, length_bits } if *length_bits <= width_bits => {
                (value, prefix_mask(width_bits, *length_bits))
            }
            Self::Prefix { length_bits, .. } => {
                return Err(NumberError::PrefixTooLong {
                    length_bits: *length_bits,
                    width_bits,
                });
            }
            Self::Range { .. } => return Err(self.other_match("a value under a mask")),
        };
        Ok((and(&value.fitted(width_bits)?, &mask), mask))
    }

    /// The lower and the upper end of a range key, both in the range. One number is a range of its own.
    ///
    /// # Errors
    /// [`NumberError`]
    pub fn range(&self, width_bits: u32) -> Result<(Vec<u8>, Vec<u8>), NumberError> {
        let (low, high) = match self {
            Self::Number(value) => (value, value),
            Self::Range { low, high } => (low, high),
            _ => return Err(self.other_match("a range")),
        };
        let (low, high) = (low.to_bytes(width_bits)?, high.to_bytes(width_bits)?);
        if low > high {
            return Err(NumberError::EmptyRange {
                value: self.to_string(),
            });
        }
        Ok((low, high))
    }

    fn other_match(&self, matches: &'static str) -> NumberError {
        let is = match self {
            Self::Number(_) => "a number",
            Self::Prefix { .. } => "a prefix",
            Self::Mask { .. } => "a value under a mask",
            Self::Range { .. } => "a range",
        };
        NumberError::OtherMatch {
            value: self.to_string(),
            is,
            matches,
        }
    }
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => write!(f, "{value}"),
            Self::Prefix { value, length_bits } => write!(f, "{value}/{length_bits}"),
            Self::Mask { value, mask } => write!(f, "{value}&&&{mask}"),
            Self::Range { low, high } => write!(f, "{low}->{high}"),
        }
    }
}

fn and(left: &[u8], right: &[u8]) -> Vec<u8> {
    left.iter().zip(right).map(|(left, right)| left & right).collect()
}

/// Ones in the upper `length_bits` of the low `width_bits` of a big-endian number.
fn prefix_mask(width_bits: u32, length_bits: u32) -> Vec<u8> {
    let bytes = width_bits.div_ceil(8);
    let unused = bytes * 8 - width_bits;
    (0..bytes)
        .map(|byte| {
            (0..8).fold(0, |bits, place| {
                let position = byte * 8 + place;
                (bits << 1) | u8::from(position >= unused && position < unused + length_bits)
            })
        })
        .collect()
}
