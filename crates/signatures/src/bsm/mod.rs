//! SAE J2735 Basic Safety Message with part I alone: the message that a vehicle broadcasts ten times a second.
//!
//! With the unaligned packed encoding rules (UPER, ITU-T X.691), `BSMcoreData` has 290 bits and no preamble.
//! `BasicSafetyMessage` begins with an extension bit, a bit for partII and a bit for regional, all 0 here, and ends
//! with 3 padding bits, also 0: [37 bytes](MESSAGE_BYTES) in total. `MessageFrame` begins with an extension bit,
//! messageId 20 in 15 bits, and the message's length in one byte: [40 bytes](FRAME_BYTES) in total. The decoder refuses
//! a message with part II or extensions instead of truncating the message, since a signature covers the whole message.
//!
//! Each message has exactly one encoding: [`CoreData::encode`] returns the bytes from which a message was decoded.
//!
//! ```
//! use linewarden_signatures::bsm::{CoreData, TransmissionState};
//!
//! let frame = hex::decode("001425004000009670D465F99BB7113E3626083F7FFFFFFFF0F312C0FDFA1FA1007FFF8000962580")?;
//! let core_data = CoreData::decode_frame(&frame)?;
//! assert_eq!(core_data.fields().transmission, TransmissionState::Unavailable);
//! let json = serde_json::to_string(&core_data)?;
//! assert_eq!(serde_json::from_str::<CoreData>(&json)?.encode_frame(), *frame);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod fields;
mod frame;
#[cfg(test)]
mod tests;

use rasn::{AsnType, Decode, Decoder as _, Encode};
use serde::{Deserialize, Serialize};

pub use error::BsmError;
pub use fields::{
    AccelerationSet4Way, AuxiliaryBrakeStatus, BrakeAppliedStatus, BrakeBoostApplied, BrakeSystemStatus,
    BsmCoreData, ControlStatus, PositionalAccuracy, TemporaryId, TransmissionState, VehicleSize,
};
use frame::FRAME_HEADER;
pub use frame::{FRAME_BYTES, MESSAGE_BYTES};

/// Fields within their ranges, with their encoding. The JSON is the same as for [`BsmCoreData`].
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(try_from = "BsmCoreData", into = "BsmCoreData")]
pub struct CoreData {
    fields: BsmCoreData,
    message: [u8; MESSAGE_BYTES],
}

/// `part_ii` and `regional` are never present: [`CoreData::decode`] refuses a message in which one of their bits is
/// set.
#[derive(AsnType, Decode, Encode)]
#[rasn(automatic_tags)]
#[non_exhaustive]
struct BasicSafetyMessage {
    core_data: BsmCoreData,
    part_ii: Option<()>,
    regional: Option<()>,
}

impl CoreData {
    /// Checks the ranges of the fields, and encodes the fields.
    ///
    /// # Errors
    /// The first number that is out of its range.
    pub fn new(fields: BsmCoreData) -> Result<Self, BsmError> {
        fields.check()?;
        let bytes = rasn::uper::encode(&BasicSafetyMessage {
            core_data: fields,
            part_ii: None,
            regional: None,
        })
        .map_err(|error| BsmError::Codec(error.to_string()))?;
        let message = bytes
            .try_into()
            .map_err(|bytes: Vec<u8>| BsmError::MessageLength(bytes.len()))?;
        Ok(Self { fields, message })
    }

    /// Decodes a `BasicSafetyMessage`.
    ///
    /// # Errors
    /// A length other than 37 bytes; a set bit of extension, partII, regional or padding; a field out of its range.
    pub fn decode(message: &[u8]) -> Result<Self, BsmError> {
        let message: [u8; MESSAGE_BYTES] = message
            .try_into()
            .map_err(|_| BsmError::MessageLength(message.len()))?;
        let [first, .., last] = message;
        match (first & 0b1110_0000, last & 0b111) {
            (0, 0) => {}
            (0, padding) => return Err(BsmError::Padding(padding)),
            (0b1000_0000.., _) => return Err(BsmError::Extension),
            (0b0100_0000.., _) => return Err(BsmError::PartII),
            _ => return Err(BsmError::Regional),
        }
        let decoded: BasicSafetyMessage = rasn::uper::decode(&message)?;
        Ok(Self {
            fields: decoded.core_data,
            message,
        })
    }

    /// Decodes a `MessageFrame`.
    ///
    /// # Errors
    /// A length other than 40 bytes, another message type, and every error of [`CoreData::decode`].
    pub fn decode_frame(frame: &[u8]) -> Result<Self, BsmError> {
        let frame: [u8; FRAME_BYTES] = frame.try_into().map_err(|_| BsmError::FrameLength(frame.len()))?;
        let [id_high, id_low, length, message @ ..] = frame;
        match (u16::from_be_bytes([id_high, id_low]), length) {
            (0x8000.., _) => Err(BsmError::FrameExtension),
            (20, length) if usize::from(length) == MESSAGE_BYTES => Self::decode(&message),
            (20, length) => Err(BsmError::ValueLength(length)),
            (id, _) => Err(BsmError::MessageId(id)),
        }
    }

    /// The fields.
    pub fn fields(&self) -> &BsmCoreData {
        &self.fields
    }

    /// The encoded `BasicSafetyMessage`, which a signature covers.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        self.message
    }

    /// The encoded `MessageFrame`.
    pub fn encode_frame(&self) -> [u8; FRAME_BYTES] {
        let mut frame = [0; FRAME_BYTES];
        let bytes = FRAME_HEADER.into_iter().chain(self.message);
        frame
            .iter_mut()
            .zip(bytes)
            .for_each(|(target, byte)| *target = byte);
        frame
    }
}

impl TryFrom<BsmCoreData> for CoreData {
    type Error = BsmError;

    fn try_from(fields: BsmCoreData) -> Result<Self, BsmError> {
        Self::new(fields)
    }
}

impl From<CoreData> for BsmCoreData {
    fn from(core_data: CoreData) -> Self {
        core_data.fields
    }
}
