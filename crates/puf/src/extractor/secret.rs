//! The secret `R`.

use std::fmt;

use zeroize::Zeroizing;

use crate::bits::Bits;

/// The secret that PUF and helper data give: the input key material `R` of LAP/1 1.1.
///
/// `B k` bits packed from the least significant bit of each byte, unused bits of the last byte zero. Erased
/// on drop, compared in constant time, hidden in `Debug`.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    pub(super) fn from_bits(bits: &Bits) -> Self {
        Self(Zeroizing::new(bits.to_bytes()))
    }

    /// The bytes, for use as input of a key derivation function only.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        let difference = self
            .0
            .iter()
            .zip(other.0.iter())
            .fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == other.0.len() && std::hint::black_box(difference) == 0
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}
