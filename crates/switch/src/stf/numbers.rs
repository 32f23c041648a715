//! Numbers of unlimited width, and key values for each match kind.

use std::fmt;

use thiserror::Error;

/// Base of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Base {
    /// `0b`, one bit a digit.
    Binary,
    /// No prefix; does not imply a width.
    Decimal,
    /// `0x`, four bits a digit.
    Hexadecimal,
}

impl Base {
    /// Bits per digit; `None` for decimal digits.
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

/// Error of converting a number.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NumberError {
    /// The number is too large.
    #[error("number {number} does not fit in {width_bits} bits")]
    TooWide {
        /// Number in the test.
        number: String,
        /// Available bits.
        width_bits: u32,
    },
    /// Wildcards are not allowed.
    #[error("number {number} has wildcards: give all digits")]
    Wildcards {
        /// Number in the test.
        number: String,
    },
    /// In an LPM key, wildcards are only allowed at the end.
    #[error("LPM key {number} has digits after a wildcard `*`: wildcards are only allowed at the end")]
    NotAPrefix {
        /// Number in the test.
        number: String,
    },
    /// In ternary and LPM keys, the digits determine the mask; decimal digits determine no mask.
    #[error("decimal number {number} does not determine a mask: use hexadecimal or binary digits")]
    Decimal {
        /// Number in the test.
        number: String,
    },
    /// The value does not suit the match kind of the key.
    #[error("wrong key value {value}: expected {expected}, found {actual}")]
    WrongMatchKind {
        /// Key value in the test.
        value: String,
        /// Kind of the value.
        actual: &'static str,
        /// Kind that the key requires.
        expected: &'static str,
    },
    /// The prefix is longer than the key.
    #[error("prefix length of {length_bits} bits exceeds the key width of {width_bits} bits")]
    PrefixTooLong {
        /// Length of the prefix, bits.
        length_bits: u32,
        /// Width of the key, bits.
        width_bits: u32,
    },
    /// The range is empty.
    #[error("range {value} is empty: give the lower bound first")]
    EmptyRange {
        /// Range in the test.
        value: String,
    },
}

/// Number in a test. Only the parser creates numbers, so the digits are valid for the base.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Number {
    base: Base,
    /// Digits without prefix; at least one.
    digits: String,
}

impl Number {
    /// Creates a number; `digits` are digits of the base or `*`.
    pub(super) const fn new(base: Base, digits: String) -> Self {
        Self { base, digits }
    }

    /// Base.
    pub const fn base(&self) -> Base {
        self.base
    }

    /// Whether the number has wildcards.
    pub fn has_wildcards(&self) -> bool {
        self.digits.contains('*')
    }

    /// Value as big-endian bytes without leading zeros (empty for zero); `*` counts as 0.
    pub fn value(&self) -> Vec<u8> {
        self.bytes_of(|digit| digit.to_digit(self.base.radix()).unwrap_or(0))
    }

    /// Mask of the digits that are not `*`, in the form of [`Number::value`].
    fn digit_mask(&self) -> Vec<u8> {
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

    /// Value as a `u64`; `None` if too large or with wildcards.
    pub fn to_u64(&self) -> Option<u64> {
        let bytes = self.to_bytes(64).ok()?;
        Some(
            bytes
                .iter()
                .fold(0, |value, byte| (value << 8) | u64::from(*byte)),
        )
    }

    /// Value as big-endian bytes of a field of `width_bits` bits, padded in front.
    ///
    /// # Errors
    /// [`NumberError::TooWide`], [`NumberError::Wildcards`].
    pub fn to_bytes(&self, width_bits: u32) -> Result<Vec<u8>, NumberError> {
        if self.has_wildcards() {
            return Err(NumberError::Wildcards {
                number: self.to_string(),
            });
        }
        self.fit(width_bits)
    }

    fn fit(&self, width_bits: u32) -> Result<Vec<u8>, NumberError> {
        let value = self.value();
        let length = width_bits.div_ceil(8) as usize;
        let leading_zeros = value.first().map_or(0, |byte| byte.leading_zeros());
        if (value.len() as u64) * 8 - u64::from(leading_zeros) > u64::from(width_bits) {
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

    /// Number of bits before the wildcards, which must be at the end.
    fn prefix_bits(&self) -> Result<u32, NumberError> {
        let prefix = self.digits.trim_end_matches('*');
        if prefix.contains('*') {
            return Err(NumberError::NotAPrefix {
                number: self.to_string(),
            });
        }
        let digits = u32::try_from(prefix.len()).unwrap_or(u32::MAX);
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

/// Last `length` bytes of a number, padded in front.
fn padded(value: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length.saturating_sub(value.len())];
    bytes.extend(value.iter().skip(value.len().saturating_sub(length)));
    bytes
}

/// Key value in a test.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyValue {
    /// `NUMBER`, optionally with wildcards; the meaning depends on the key.
    Number(Number),
    /// `NUMBER/LENGTH`.
    Prefix {
        /// Number.
        value: Number,
        /// Length of the prefix, bits.
        length_bits: u32,
    },
    /// `NUMBER&&&MASK`.
    Mask {
        /// Number.
        value: Number,
        /// Mask.
        mask: Number,
    },
    /// `LOW->HIGH`, both inclusive.
    Range {
        /// Lower bound.
        low: Number,
        /// Upper bound.
        high: Number,
    },
}

impl KeyValue {
    /// Bytes of an exact key (or a validity, one bit wide).
    ///
    /// # Errors
    /// [`NumberError`]
    pub fn exact(&self, width_bits: u32) -> Result<Vec<u8>, NumberError> {
        match self {
            Self::Number(value) => value.to_bytes(width_bits),
            _ => Err(self.wrong_match_kind("one value")),
        }
    }

    /// Bytes and prefix length of an LPM key. Bits after the prefix are zero.
    ///
    /// # Errors
    /// [`NumberError`]
    pub fn lpm(&self, width_bits: u32) -> Result<(Vec<u8>, u32), NumberError> {
        let (value, length_bits) = match self {
            Self::Number(value) => (value, value.prefix_bits()?),
            Self::Prefix { value, length_bits } => (value, *length_bits),
            _ => return Err(self.wrong_match_kind("a prefix")),
        };
        if length_bits > width_bits {
            return Err(NumberError::PrefixTooLong {
                length_bits,
                width_bits,
            });
        }
        let bytes = value.fit(width_bits)?;
        Ok((and(&bytes, &prefix_mask(width_bits, length_bits)), length_bits))
    }

    /// Bytes and mask of a ternary (or optional) key. Bits outside the mask are zero.
    ///
    /// # Errors
    /// [`NumberError`]
    pub fn ternary(&self, width_bits: u32) -> Result<(Vec<u8>, Vec<u8>), NumberError> {
        let full_mask = prefix_mask(width_bits, width_bits);
        let (value, mask) = match self {
            Self::Number(value) => {
                value.bits_per_digit()?;
                (
                    value,
                    and(&padded(&value.digit_mask(), full_mask.len()), &full_mask),
                )
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
            Self::Range { .. } => return Err(self.wrong_match_kind("a value under a mask")),
        };
        Ok((and(&value.fit(width_bits)?, &mask), mask))
    }

    /// Inclusive bounds of a range key. A single number is a range with equal bounds.
    ///
    /// # Errors
    /// [`NumberError`]
    pub fn range(&self, width_bits: u32) -> Result<(Vec<u8>, Vec<u8>), NumberError> {
        let (low, high) = match self {
            Self::Number(value) => (value, value),
            Self::Range { low, high } => (low, high),
            _ => return Err(self.wrong_match_kind("a range")),
        };
        let (low, high) = (low.to_bytes(width_bits)?, high.to_bytes(width_bits)?);
        if low > high {
            return Err(NumberError::EmptyRange {
                value: self.to_string(),
            });
        }
        Ok((low, high))
    }

    fn wrong_match_kind(&self, matches: &'static str) -> NumberError {
        let actual = match self {
            Self::Number(_) => "a number",
            Self::Prefix { .. } => "a prefix",
            Self::Mask { .. } => "a value under a mask",
            Self::Range { .. } => "a range",
        };
        NumberError::WrongMatchKind {
            value: self.to_string(),
            actual,
            expected: matches,
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

/// Mask of a prefix of `length_bits` bits in a big-endian number of `width_bits` bits.
fn prefix_mask(width_bits: u32, length_bits: u32) -> Vec<u8> {
    let bytes = width_bits.div_ceil(8);
    let unused = bytes * 8 - width_bits;
    (0..bytes)
        .map(|byte| {
            (0..8).fold(0, |bits, bit| {
                let position = byte * 8 + bit;
                (bits << 1) | u8::from(position >= unused && position < unused + length_bits)
            })
        })
        .collect()
}
