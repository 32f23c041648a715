//! Plans that list the bytes and bits of keys, hashes and checksums.

use serde::Serialize;

/// Step of a key plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum KeyStep {
    /// Whole bytes.
    Copy {
        /// Offset of the header's validity: fields of an invalid header count as zero. `None` for metadata and for a validity.
        valid: Option<u32>,
        /// Source offset.
        at: u32,
        /// Length.
        bytes: u32,
    },
    /// Bits, padded in front to whole bytes.
    Bits {
        /// Offset of the header's validity; `None` for metadata.
        valid: Option<u32>,
        /// First bit, counted from the most significant bit of the arena's first byte.
        bit: u32,
        /// Length.
        bits: u32,
    },
}

impl KeyStep {
    /// Length in the key, bytes.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        match self {
            Self::Copy { bytes, .. } => *bytes,
            Self::Bits { bits, .. } => bits.div_ceil(8),
        }
    }
}

/// Plan of a table key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeyPlan {
    /// Steps.
    pub steps: Vec<KeyStep>,
    /// Mask to apply to the key, if any.
    pub mask: Option<Vec<u8>>,
    /// Length of the key, bytes.
    pub bytes: usize,
}

/// Input step of a calculation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum InputStep {
    /// Bits of a header; skipped if the header is invalid.
    Bits {
        /// Offset of the header's validity; `None` for metadata.
        valid: Option<u32>,
        /// First bit.
        bit: u32,
        /// Length.
        bits: u32,
    },
    /// Variable-length field of a header; skipped if the header is invalid.
    Variable {
        /// Offset of the header's validity.
        valid: u32,
        /// Offset of the length.
        length: u32,
        /// Offset of the bytes.
        bytes: u32,
    },
    /// Constant: bytes and width in bits; the calculation uses the last bits of the bytes.
    Constant(Vec<u8>, u32),
    /// Whole header; skipped if invalid.
    Header(crate::program::ids::HeaderId),
    /// Payload.
    Payload,
}

/// Range of whole 16-bit words of a header; skipped if the header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WordRange {
    /// Offset of the header's validity; `None` for metadata.
    pub valid: Option<u32>,
    /// First byte.
    pub start: u32,
    /// End (exclusive).
    pub end: u32,
}
