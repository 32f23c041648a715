//! A signed message on the wire.

mod envelope;
mod stamp;

pub(crate) use envelope::MAGIC_AND_VERSION;
pub use envelope::{
    Draft, Envelope, HEADER_BYTES, MASK_NAME_BYTES, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, PayloadKind,
    Unsigned,
};
pub use stamp::{EPOCH_UNIX_MS, NoSuchPriority, Priority, STAMP_BITS, Stamp, TimeMs};

use std::fmt;
use std::str::FromStr;

/// Bytes of a signer's name.
pub const KEY_ID_BYTES: usize = 8;

/// A signer's name: the first 8 bytes of a hash of the public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; KEY_ID_BYTES]);

/// Not the name of a signer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no signer's id: 16 hexadecimal digits are")]
pub struct NotAKeyId(String);

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
    type Err = NotAKeyId;

    fn from_str(text: &str) -> Result<Self, NotAKeyId> {
        let mut id = [0; KEY_ID_BYTES];
        match hex::decode_to_slice(text, &mut id) {
            Ok(()) => Ok(Self(id)),
            Err(_) => Err(NotAKeyId(text.to_owned())),
        }
    }
}
