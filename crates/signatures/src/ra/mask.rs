//! Masks: signatures of random numbers, each for one message.

use std::fmt;

use zeroize::Zeroizing;

use crate::message::MASK_NAME_BYTES;

/// An unused mask: `(r, β)`. Signing takes a mask by value, and wipes it.
///
/// A mask cannot be copied. β must stay secret even after use: with β, an attacker can compute the product of the
/// components that the mask covered.
pub struct Mask {
    name: [u8; MASK_NAME_BYTES],
    beta: Zeroizing<Vec<u8>>,
}

impl Mask {
    /// A mask of `r` and `β`. β is big-endian and as long as the modulus. The caller guarantees that no other mask has
    /// the same numbers, and that no message was signed with them.
    #[must_use]
    pub fn from_unused_parts(name: [u8; MASK_NAME_BYTES], beta: Zeroizing<Vec<u8>>) -> Self {
        Self { name, beta }
    }

    /// `r`, which is sent with the message.
    #[must_use]
    pub fn name(&self) -> &[u8; MASK_NAME_BYTES] {
        &self.name
    }

    /// β, big-endian.
    pub(crate) fn beta(&self) -> &[u8] {
        &self.beta
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask(..)")
    }
}
