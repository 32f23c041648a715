//! A signed message on the wire.

mod envelope;
mod stamp;

pub(crate) use envelope::MAGIC_AND_VERSION;
pub use envelope::{
    Draft, Envelope, HEADER_BYTES, MASK_NAME_BYTES, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, PayloadKind,
    UnsignedMessage,
};
pub use stamp::{EPOCH_UNIX_MS, InvalidPriority, Priority, STAMP_BITS, Stamp, TimeMs};

use std::fmt;
use std::str::FromStr;

/// Bytes of a key identifier.
pub const KEY_ID_BYTES: usize = 8;

/// Identifier of a signer: the first 8 bytes of a hash of the public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; KEY_ID_BYTES]);

/// Text that is not a key identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid signer id {0:?}; expected 16 hexadecimal digits")]
pub struct InvalidKeyId(String);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl FromStr for KeyId {
    type Err = InvalidKeyId;

    fn from_str(text: &str) -> Result<Self, InvalidKeyId> {
        let mut id = [0; KEY_ID_BYTES];
        match hex::decode_to_slice(text, &mut id) {
            Ok(()) => Ok(Self(id)),
            Err(_) => Err(InvalidKeyId(text.to_owned())),
        }
    }
}
