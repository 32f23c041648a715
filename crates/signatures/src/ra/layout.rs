//! Layouts: the components of a message, and the possible values of each.
//!
//! The first [`STAMP_DIGITS`] components of each message are the digits of its [`Stamp`]: every signature covers time
//! and priority. The payload follows, component by component: a byte, or one of several predefined sub-messages. In a
//! layout of `a` components, `a - 4` are for the payload.

use serde::{Deserialize, Serialize};

use crate::bsm;
use crate::message::{PAYLOAD_BYTES_MAX, PayloadKind, STAMP_BITS, Stamp};
use crate::refusal::Refusal;

/// Number of components of a stamp.
pub const STAMP_DIGITS: usize = 4;
/// Bits of a digit of a stamp. Four digits hold a stamp. Making a table with 2,048 values for each digit takes two
/// seconds of one CPU.
const DIGIT_BITS: u32 = STAMP_BITS.div_ceil(STAMP_DIGITS as u32);
const DIGIT_VALUES: usize = 1 << DIGIT_BITS;
/// Maximum number of components, including those of the stamp.
pub const COMPONENTS_MAX: usize = 64;
/// Maximum number of values of all components: 32 MiB of a table over 2,048 bits.
pub const ROWS_MAX: usize = 1 << 17;
/// Maximum length of a sub-message; all sub-messages of the thesis that [`scheduler`](crate::scheduler) names have 512 bytes.
pub const SUBMESSAGE_BYTES_MAX: usize = 512;

/// The values of one component of a payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Domain {
    /// Any byte.
    Byte,
    /// One of these texts; a payload contains the index of the text, in one byte, or in two bytes for more than 256
    /// texts.
    Submessages(Vec<String>),
}

/// Why a layout is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No components, or too many.
    #[error("components: {0} given; expected 1 to {max}", max = COMPONENTS_MAX - STAMP_DIGITS)]
    ComponentCount(usize),
    /// A component has fewer than two values, or more values than two bytes can number.
    #[error("components[{component}]: {count} sub-messages given; expected 2 to 65,536")]
    SubmessageCount {
        /// Index of the component, from 0.
        component: usize,
        /// Number of sub-messages.
        count: usize,
    },
    /// A sub-message is too long.
    #[error("components[{component}][{value}]: sub-message is longer than {SUBMESSAGE_BYTES_MAX} bytes")]
    SubmessageTooLong {
        /// Index of the component, from 0.
        component: usize,
        /// Index of the value, from 0.
        value: usize,
    },
    /// Two sub-messages are equal, which would give a message two encodings.
    #[error("components[{component}]: duplicate sub-message {text:?}")]
    DuplicateSubmessage {
        /// Index of the component, from 0.
        component: usize,
        /// The duplicate text.
        text: String,
    },
    /// The table would be too large.
    #[error(
        "components: the table would have {0} rows, more than {ROWS_MAX}; use fewer or shorter lists of sub-messages"
    )]
    TooManyRows(usize),
    /// A basic safety message has 37 byte components.
    #[error("kind: a basic safety message must have 37 byte components")]
    InvalidBsm,
    /// The kind "opaque" is for byte components only, "submessages" for layouts with sub-messages.
    #[error(
        "kind: {0} does not match the components; use \"submessages\" for layouts with sub-messages, \"opaque\" for bytes only"
    )]
    KindMismatch(&'static str),
}

/// The components of a message. Part of the public key, bound to the key by the pad.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    kind: PayloadKind,
    components: Vec<Domain>,
    /// First table row of each component, beginning with the components of the stamp. The last entry is the total
    /// number of rows.
    offsets: Vec<usize>,
}

/// For each component of a message, the number of its value.
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
        if let Some(slot) = self.digits.get_mut(self.count) {
            *slot = digit;
            self.count += 1;
        }
    }
}

/// Content of one component of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
pub enum Part<'a> {
    /// A byte, for [`Domain::Byte`].
    Byte(u8),
    /// A text, for [`Domain::Submessages`].
    Text(&'a str),
}

impl Layout {
    /// A layout of these components.
    ///
    /// # Errors
    /// Too many or no components or values, values that are too long or equal, or a kind that does not match.
    pub fn new(kind: PayloadKind, components: Vec<Domain>) -> Result<Self, LayoutError> {
        if components.is_empty() || components.len() > COMPONENTS_MAX - STAMP_DIGITS {
            return Err(LayoutError::ComponentCount(components.len()));
        }
        for (component, domain) in components.iter().enumerate() {
            check(component, domain)?;
        }
        let has_only_bytes = components.iter().all(|domain| *domain == Domain::Byte);
        match kind {
            PayloadKind::Bsm if !has_only_bytes || components.len() != bsm::MESSAGE_BYTES => {
                return Err(LayoutError::InvalidBsm);
            }
            PayloadKind::Opaque if !has_only_bytes => return Err(LayoutError::KindMismatch("opaque")),
            PayloadKind::Submessages if has_only_bytes => {
                return Err(LayoutError::KindMismatch("submessages"));
            }
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
            return Err(LayoutError::TooManyRows(rows));
        }
        Ok(Self {
            kind,
            components,
            offsets,
        })
    }

    /// A layout of `count` bytes of opaque payload.
    ///
    /// # Errors
    /// No bytes, or more than 60.
    pub fn bytes(count: usize) -> Result<Self, LayoutError> {
        // The count may come from a key file; memory is limited to the maximum.
        if count > COMPONENTS_MAX {
            return Err(LayoutError::ComponentCount(count));
        }
        Self::new(PayloadKind::Opaque, vec![Domain::Byte; count])
    }

    /// A basic safety message of SAE J2735, part I.
    ///
    /// # Errors
    /// None: this layout is valid.
    pub fn bsm() -> Result<Self, LayoutError> {
        Self::new(PayloadKind::Bsm, vec![Domain::Byte; bsm::MESSAGE_BYTES])
    }

    /// Type of the payload.
    #[must_use]
    pub fn kind(&self) -> PayloadKind {
        self.kind
    }

    /// Components of the payload.
    #[must_use]
    pub fn payload_components(&self) -> &[Domain] {
        &self.components
    }

    /// a: the number of all components, including those of the stamp.
    #[must_use]
    pub fn components(&self) -> usize {
        STAMP_DIGITS + self.components.len()
    }

    /// Number of values of all components, which is the number of table rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.offsets.last().copied().unwrap_or_default()
    }

    /// Bytes of a payload.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.components.iter().map(Domain::digit_bytes).sum()
    }

    /// For each component of a message, the number of its value.
    ///
    /// # Errors
    /// [`Refusal::WrongLayout`]: another kind or length, or a number out of a component's range.
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
            let (number, tail) = rest
                .split_at_checked(domain.digit_bytes())
                .ok_or(Refusal::WrongLayout)?;
            let number = number
                .iter()
                .fold(0, |number, byte| number << 8 | u16::from(*byte));
            if usize::from(number) >= domain.len() {
                return Err(Refusal::WrongLayout);
            }
            digits.push(number);
            rest = tail;
        }
        Ok(digits)
    }

    /// Number of values of each component, beginning with the components of the stamp.
    pub fn domains(&self) -> impl Iterator<Item = u32> + '_ {
        let bounds = self.offsets.iter().zip(self.offsets.iter().skip(1));
        // The difference is at most `ROWS_MAX`.
        bounds.map(|(start, end)| (end - start) as u32)
    }

    /// Maximum length of a hashed value.
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

    /// The table rows of a message's components, in order.
    pub fn rows_of<'a>(&'a self, digits: &'a Digits) -> impl Iterator<Item = usize> + 'a {
        self.offsets
            .iter()
            .zip(digits.as_slice())
            .map(|(offset, digit)| offset + usize::from(*digit))
    }

    /// The component j (from 0) and the value v of a table row. `None` beyond the last row.
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

    /// The parts of a payload: a text for a component with texts, otherwise a byte. `None` for a payload that
    /// [`Layout::digits`] refuses.
    #[must_use]
    pub fn parts(&self, payload: &[u8]) -> Option<Vec<Part<'_>>> {
        let mut rest = payload;
        let mut parts = Vec::with_capacity(self.components.len());
        for domain in &self.components {
            let (number, tail) = rest.split_at_checked(domain.digit_bytes())?;
            let number = number
                .iter()
                .fold(0, |number, byte| number << 8 | usize::from(*byte));
            parts.push(match domain {
                Domain::Byte => Part::Byte(u8::try_from(number).ok()?),
                Domain::Submessages(texts) => Part::Text(texts.get(number)?),
            });
            rest = tail;
        }
        rest.is_empty().then_some(parts)
    }

    /// Canonical encoding of the layout for the pad: kind, number of components, and for each component the number of
    /// values and each value with its length.
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

// A payload of the longest layout fits in a message: 60 components of two bytes.
const _: () = assert!(2 * (COMPONENTS_MAX - STAMP_DIGITS) <= PAYLOAD_BYTES_MAX);
const _: () = assert!(DIGIT_BITS * STAMP_DIGITS as u32 >= STAMP_BITS && DIGIT_BITS <= 16);

/// The hashed bytes of a component's value.
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
    /// Number of values.
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
        return Err(LayoutError::SubmessageCount { component, count });
    }
    if let Some(value) = texts.iter().position(|text| text.len() > SUBMESSAGE_BYTES_MAX) {
        return Err(LayoutError::SubmessageTooLong { component, value });
    }
    let mut sorted: Vec<&String> = texts.iter().collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair.first() == pair.last()) {
        Some([text, _]) => Err(LayoutError::DuplicateSubmessage {
            component,
            text: (*text).clone(),
        }),
        _ => Ok(()),
    }
}

/// Lengths are below 2^32: [`ROWS_MAX`] bounds components and values, [`SUBMESSAGE_BYTES_MAX`] bounds bytes.
fn put_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
}
