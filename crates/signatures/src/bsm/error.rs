use std::ops::RangeInclusive;

use rasn::error::{DecodeError, DecodeErrorKind};
use rasn::types::constraints::Bounded;

use super::frame::{FRAME_BYTES, MESSAGE_BYTES};

/// Why bytes or fields are not a Basic Safety Message with part I alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BsmError {
    /// The message has an unexpected length.
    #[error("{0} bytes, but a BasicSafetyMessage with part I alone has {MESSAGE_BYTES}")]
    MessageLength(usize),
    /// The frame has an unexpected length.
    #[error("{0} bytes, but a MessageFrame around a BasicSafetyMessage with part I alone has {FRAME_BYTES}")]
    FrameLength(usize),
    /// The frame has extension additions.
    #[error("MessageFrame: the extension bit is set: no extensions are known")]
    FrameExtension,
    /// The frame carries another message type.
    #[error("MessageFrame: messageId: {0} is not 20, basicSafetyMessage")]
    MessageId(u16),
    /// The frame states another length for its message.
    #[error("MessageFrame: the message length {0} is not {MESSAGE_BYTES}")]
    ValueLength(u8),
    /// The message has extension additions.
    #[error("BasicSafetyMessage: the extension bit is set: no extensions are known")]
    Extension,
    /// The message has part II.
    #[error("BasicSafetyMessage: the partII bit is set: only part I is supported")]
    PartII,
    /// The message has regional extensions.
    #[error("BasicSafetyMessage: the regional bit is set: only part I is supported")]
    Regional,
    /// A padding bit after the message is set.
    #[error("BasicSafetyMessage: the three padding bits are {0:03b}: they must be 0")]
    Padding(u8),
    /// A number is out of its range.
    #[error("{field}: {value} is not in {}..={}", .range.start(), .range.end())]
    Range {
        /// Path of the field, such as `accelSet.long`.
        field: String,
        /// The value.
        value: i64,
        /// The allowed range.
        range: RangeInclusive<i64>,
    },
    /// A number to which the enumeration assigns no value.
    #[error("{field}: {index} is not a defined value")]
    Enumeration {
        /// Path of the field.
        field: String,
        /// The number.
        index: usize,
    },
    /// Text that is not a temporary ID.
    #[error("id: {0:?} is not 8 hexadecimal digits")]
    Id(String),
    /// Another error of the codec.
    #[error("{0}")]
    Codec(String),
}

impl From<DecodeError> for BsmError {
    /// rasn reports nested errors, each with the names of a type and of a Rust field, such as "BsmCoreData.accel_set"
    /// and "AccelerationSet4Way.long".
    fn from(error: DecodeError) -> Self {
        let mut path = Vec::new();
        let mut root = &error;
        while let DecodeErrorKind::FieldError { name, nested } = &*root.kind {
            path.push(camel_case(name.rsplit('.').next().unwrap_or(name)));
            root = nested;
        }
        let field = path
            .iter()
            .skip_while(|name| *name == "coreData")
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(".");
        match &*root.kind {
            DecodeErrorKind::ValueConstraintNotSatisfied {
                value,
                expected:
                    Bounded::Range {
                        start: Some(start),
                        end: Some(end),
                    },
            } => match (i64::try_from(value), i64::try_from(*start), i64::try_from(*end)) {
                (Ok(value), Ok(start), Ok(end)) => Self::Range {
                    field,
                    value,
                    range: start..=end,
                },
                _ => Self::Codec(error.to_string()),
            },
            DecodeErrorKind::EnumerationIndexNotFound { index, .. } => {
                Self::Enumeration { field, index: *index }
            }
            _ => Self::Codec(error.to_string()),
        }
    }
}

/// The standard's spelling of a field name.
fn camel_case(snake_case: &str) -> String {
    let mut words = snake_case.split('_');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}
