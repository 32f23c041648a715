//! Sizes of a message and its frame.

/// Bytes of a `BasicSafetyMessage` with part I alone.
pub const MESSAGE_BYTES: usize = 37;

/// Bytes of a `MessageFrame` with a `BasicSafetyMessage` of part I alone.
pub const FRAME_BYTES: usize = FRAME_HEADER.len() + MESSAGE_BYTES;

/// Extension bit 0, messageId 20 in 15 bits, length of the message.
pub(super) const FRAME_HEADER: [u8; 3] = [0, 20, MESSAGE_BYTES as u8];
