//! Masks: signatures of random numbers, each for one message.

use std::fmt;

use zeroize::Zeroizing;

use crate::message::MASK_NAME_BYTES;

/// A mask that no message has been signed with: `(r, β)`. Signing takes it by value, and wipes it.
///
/// It cannot be copied. β stays a secret after use: it uncovers the product of components that it has covered.
pub struct Mask {
    name: [u8; MASK_NAME_BYTES],
    beta: Zeroizing<Vec<u8>>,
}

impl Mask {
    /// Takes over `r` and `β`, the latter big-endian and as long as the modulus. Whoever calls this vouches that no other mask has been
    /// made of the same two, and that no message was signed with them.
    #[must_use]
    pub fn assertion(name: [u8; MASK_NAME_BYTES], beta: Zeroizing<Vec<u8>>) -> Self {
        Self { name, beta }
    }

    /// `r`, which goes out with the message.
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
