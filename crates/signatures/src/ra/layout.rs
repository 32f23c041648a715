//! What a message is made of: which values each of its components can take.
//!
//! The first [`STAMP_DIGITS`] components of each message are the digits of its [`Stamp`]: time and priority are signed whatever the
//! payload is. Then comes the payload, component by component: a byte, or one of some sub-messages that are known before. A layout of `a`
//! components is one of `a - 4` for the payload.

use serde::{Deserialize, Serialize};

use crate::bsm;
use crate::message::{PAYLOAD_BYTES_MAX, PayloadKind, STAMP_BITS, Stamp};
use crate::refusal::Refusal;

/// Components that a stamp is cut into.
pub const STAMP_DIGITS: usize = 4;
/// Bits of such a digit: 4 of them hold a stamp, and a table of 2,048 values each costs two seconds of one core.
const DIGIT_BITS: u32 = STAMP_BITS.div_ceil(STAMP_DIGITS as u32);
const DIGIT_VALUES: usize = 1 << DIGIT_BITS;
/// The most components, the stamp's among them.
pub const COMPONENTS_MAX: usize = 64;
/// The most values of all components together: 32 MiB of a table over 2,048 bits.
pub const ROWS_MAX: usize = 1 << 17;
/// The longest sub-message; the thesis has 512 bytes for all.
pub const SUBMESSAGE_BYTES_MAX: usize = 512;

/// The values that one component of a payload can take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Domain {
    /// Any byte.
    Byte,
    /// One of these texts, in this order: a payload has its number, in one byte, or in two from 257 texts on.
    Submessages(Vec<String>),
}

/// Why a layout cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// It has none, or too many.
    #[error("components: {0} of them; 1 to {max} can be", max = COMPONENTS_MAX - STAMP_DIGITS)]
    Components(usize),
    /// A component has nothing to choose from, or two bytes do not number it.
    #[error("components[{component}]: {count} sub-messages; 2 to 65,536 can be")]
    Submessages {
        /// Which, from 0.
        component: usize,
        /// How many it has.
        count: usize,
    },
    /// A sub-message is too long.
    #[error("components[{component}][{value}]: longer than {SUBMESSAGE_BYTES_MAX} bytes")]
    Long {
        /// Which component, from 0.
        component: usize,
        /// Which of its values, from 0.
        value: usize,
    },
    /// Two are the same, and a message would have two forms.
    #[error("components[{component}]: {text:?} is there twice")]
    Twice {
        /// Which component, from 0.
        component: usize,
        /// What is there twice.
        text: String,
    },
    /// The table would be too large.
    #[error(
        "the table would have {0} rows, more than {ROWS_MAX}: use fewer or shorter lists of sub-messages"
    )]
    Rows(usize),
    /// A basic safety message is made of 37 bytes.
    #[error("kind: a basic safety message has 37 components of a byte each")]
    NotABsm,
    /// Bytes alone need no kind of their own, and sub-messages do.
    #[error(
        "kind: {0} does not fit the components: \"submessages\" is for layouts with sub-messages, \"opaque\" for bytes alone"
    )]
    Kind(&'static str),
}

/// What a message is made of. Part of the public key, and bound to it by the pad.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    kind: PayloadKind,
    components: Vec<Domain>,
    /// The table's first row of each component, the stamp's first, and how many rows there are.
    offsets: Vec<usize>,
}

/// A message as its components' numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digits {
    digits: [u16; COMPONENTS_MAX],
    count: usize,
}

impl Digits {
    /// The number of each component's value.
    #[must_use]
    pub fn as_slice(&self) -> &[u16] {
        self.digits.get(..self.count).unwrap_or_default()
    }

    fn push(&mut self, digit: u16) {
        if let Some(place) = self.digits.get_mut(self.count) {
            *place = digit;
            self.count += 1;
        }
    }
}

/// What one component of a payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
pub enum Part<'a> {
    /// Of [`Domain::Byte`].
    Byte(u8),
    /// Of [`Domain::Submessages`].
    Text(&'a str),
}

impl Layout {
    /// A layout of these components.
    ///
    /// # Errors
    /// Too many or no components or values, values that are too long or not different, a kind that does not fit.
    pub fn new(kind: PayloadKind, components: Vec<Domain>) -> Result<Self, LayoutError> {
        if components.is_empty() || components.len() > COMPONENTS_MAX - STAMP_DIGITS {
            return Err(LayoutError::Components(components.len()));
        }
        for (component, domain) in components.iter().enumerate() {
            check(component, domain)?;
        }
        let bytes_alone = components.iter().all(|domain| *domain == Domain::Byte);
        match kind {
            PayloadKind::Bsm if !bytes_alone || components.len() != bsm::MESSAGE_BYTES => {
                return Err(LayoutError::NotABsm);
            }
            PayloadKind::Opaque if !bytes_alone => return Err(LayoutError::Kind("opaque")),
            PayloadKind::Submessages if bytes_alone => return Err(LayoutError::Kind("submessages")),
            _ => {}
        }
        let mut offsets = vec![0];
        let mut rows = 0;
        for values in
            std::iter::repeat_n(DIGIT_VALUES, STAMP_DIGITS).chain(components.iter().map(Domain::len))
        {
            rows += values;
            offsets.push(rows);
        }
        if rows > ROWS_MAX {
            return Err(LayoutError::Rows(rows));
        }
        Ok(Self {
            kind,
            components,
            offsets,
        })
    }

    /// `count` bytes of opaque payload.
    ///
    /// # Errors
    /// None, or more than 60.
    pub fn bytes(count: usize) -> Result<Self, LayoutError> {
        // A file of a key says how many; no more memory is taken than they may be.
        if count > COMPONENTS_MAX {
            return Err(LayoutError::Components(count));
        }
        Self::new(PayloadKind::Opaque, vec![Domain::Byte; count])
    }

    /// A basic safety message of SAE J2735, part I.
    ///
    /// # Errors
    /// Never; it is built as others are.
    pub fn bsm() -> Result<Self, LayoutError> {
        Self::new(PayloadKind::Bsm, vec![Domain::Byte; bsm::MESSAGE_BYTES])
    }

    /// What the payload is.
    #[must_use]
    pub fn kind(&self) -> PayloadKind {
        self.kind
    }

    /// What the payload is made of.
    #[must_use]
    pub fn payload_components(&self) -> &[Domain] {
        &self.components
    }

    /// a: all components, the stamp's among them.
    #[must_use]
    pub fn components(&self) -> usize {
        STAMP_DIGITS + self.components.len()
    }

    /// Values of all components together: rows of a table.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.offsets.last().copied().unwrap_or_default()
    }

    /// Bytes of a payload.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.components.iter().map(Domain::digit_bytes).sum()
    }

    /// The components of a message.
    ///
    /// # Errors
    /// [`Refusal::WrongLayout`]: another kind, another length, or a number that a component does not have.
    pub fn digits(&self, stamp: Stamp, kind: PayloadKind, payload: &[u8]) -> Result<Digits, Refusal> {
        if kind != self.kind || payload.len() != self.payload_bytes() {
            return Err(Refusal::WrongLayout);
        }
        let mut digits = Digits {
            digits: [0; COMPONENTS_MAX],
            count: 0,
        };
        for digit in (0..STAMP_DIGITS as u32).rev() {
            digits.push((stamp.bits() >> (digit * DIGIT_BITS)) as u16 & (DIGIT_VALUES - 1) as u16);
        }
        let mut rest = payload;
        for domain in &self.components {
            let (number, behind) = rest
                .split_at_checked(domain.digit_bytes())
                .ok_or(Refusal::WrongLayout)?;
            let number = number
                .iter()
                .fold(0, |number, byte| number << 8 | u16::from(*byte));
            if usize::from(number) >= domain.len() {
                return Err(Refusal::WrongLayout);
            }
            digits.push(number);
            rest = behind;
        }
        Ok(digits)
    }

    /// How many values each component has, the stamp's first.
    pub fn domains(&self) -> impl Iterator<Item = u32> + '_ {
        let bounds = self.offsets.iter().zip(self.offsets.iter().skip(1));
        // At most `ROWS_MAX`.
        bounds.map(|(from, to)| (to - from) as u32)
    }

    /// Bytes of the longest value that is hashed.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        let texts = self.components.iter().flat_map(|domain| match domain {
            Domain::Byte => &[][..],
            Domain::Submessages(texts) => texts,
        });
        texts
            .map(String::len)
            .max()
            .unwrap_or(0)
            .max(DIGIT_BITS.div_ceil(8) as usize)
    }

    /// The rows of a table that a message's components are, in their order.
    pub fn rows_of<'a>(&'a self, digits: &'a Digits) -> impl Iterator<Item = usize> + 'a {
        self.offsets
            .iter()
            .zip(digits.as_slice())
            .map(|(offset, digit)| offset + usize::from(*digit))
    }

    /// The component j, from 0, and the bytes of its value that a row stands for. `None` beyond the last row.
    #[must_use]
    pub fn row(&self, row: usize) -> Option<(u16, RowValue<'_>)> {
        let component = self
            .offsets
            .partition_point(|offset| *offset <= row)
            .checked_sub(1)?;
        let digit = u16::try_from(row - self.offsets.get(component)?).ok()?;
        let value = match component.checked_sub(STAMP_DIGITS) {
            None => RowValue::Digit(digit.to_be_bytes()),
            Some(index) => match self.components.get(index)? {
                Domain::Byte => RowValue::Byte([u8::try_from(digit).ok()?]),
                Domain::Submessages(texts) => RowValue::Text(texts.get(usize::from(digit))?.as_bytes()),
            },
        };
        Some((u16::try_from(component).ok()?, value))
    }

    /// What a payload stands for: a text where a component has texts, else a byte. `None` for what [`Layout::digits`] refuses.
    #[must_use]
    pub fn parts(&self, payload: &[u8]) -> Option<Vec<Part<'_>>> {
        let mut rest = payload;
        let mut parts = Vec::with_capacity(self.components.len());
        for domain in &self.components {
            let (number, behind) = rest.split_at_checked(domain.digit_bytes())?;
            let number = number
                .iter()
                .fold(0, |number, byte| number << 8 | usize::from(*byte));
            parts.push(match domain {
                Domain::Byte => Part::Byte(u8::try_from(number).ok()?),
                Domain::Submessages(all) => Part::Text(all.get(number)?),
            });
            rest = behind;
        }
        rest.is_empty().then_some(parts)
    }

    /// One encoding of each layout, for the pad: kind, number of components, and each component's values, all with their lengths.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![1, self.kind.number()];
        put_length(&mut bytes, self.components.len());
        for domain in &self.components {
            match domain {
                Domain::Byte => bytes.push(0),
                Domain::Submessages(texts) => {
                    bytes.push(1);
                    put_length(&mut bytes, texts.len());
                    for text in texts {
                        put_length(&mut bytes, text.len());
                        bytes.extend_from_slice(text.as_bytes());
                    }
                }
            }
        }
        bytes
    }
}

// A payload of the longest layout fits a message: 60 components of two bytes.
const _: () = assert!(2 * (COMPONENTS_MAX - STAMP_DIGITS) <= PAYLOAD_BYTES_MAX);
const _: () = assert!(DIGIT_BITS * STAMP_DIGITS as u32 >= STAMP_BITS && DIGIT_BITS <= 16);

/// The bytes of a component's value that are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowValue<'a> {
    /// A digit of a stamp, big-endian.
    Digit([u8; 2]),
    /// A byte of a payload.
    Byte([u8; 1]),
    /// A sub-message.
    Text(&'a [u8]),
}

impl RowValue<'_> {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Digit(bytes) => bytes,
            Self::Byte(bytes) => bytes,
            Self::Text(bytes) => bytes,
        }
    }
}

impl Domain {
    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Byte => 256,
            Self::Submessages(texts) => texts.len(),
        }
    }

    /// Bytes of a value's number in a payload.
    pub(crate) fn digit_bytes(&self) -> usize {
        if self.len() <= 256 { 1 } else { 2 }
    }
}

fn check(component: usize, domain: &Domain) -> Result<(), LayoutError> {
    let Domain::Submessages(texts) = domain else {
        return Ok(());
    };
    let count = texts.len();
    if !(2..=1 << 16).contains(&count) {
        return Err(LayoutError::Submessages { component, count });
    }
    if let Some(value) = texts.iter().position(|text| text.len() > SUBMESSAGE_BYTES_MAX) {
        return Err(LayoutError::Long { component, value });
    }
    let mut sorted: Vec<&String> = texts.iter().collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair.first() == pair.last()) {
        Some([text, _]) => Err(LayoutError::Twice {
            component,
            text: (*text).clone(),
        }),
        _ => Ok(()),
    }
}

/// Lengths are below 2^32: components and values are counted by [`ROWS_MAX`], bytes by [`SUBMESSAGE_BYTES_MAX`].
fn put_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
}
