//! RSA with e = 65537 (RFC 8017, 5.1 and 5.2): the public operation, the private operation by the Chinese remainder theorem, and products
//! of many factors.
//!
//! Operations exist for single numbers, and for eight at a time with the vectors of a [`Backend`](super::Backend). Numbers are big-endian
//! bytes with exactly the length of the modulus, unless stated otherwise. A *wide* number has up to 16 bytes more than
//! n, and represents its residue modulo n. Hashes are wide so that their residues are almost uniformly distributed
//! below n.
//!
//! This module neither pads nor hashes. The secrets are private keys, the intermediate values of private operations,
//! and the factors with which a signer creates signatures. Signatures, the numbers with which signatures are compared,
//! and the indices of a product's factors are public.

mod batch;
mod blinding;
mod private;
mod public;
mod table;

pub use batch::{check_batch, power_batch, product_batch};
pub use blinding::BLINDING_BYTES;
pub use private::RsaPrivate;
pub use public::RsaPublic;
pub use table::{Element, Table};

use super::ModulusError;

/// Bytes by which a wide number may exceed the modulus.
const WIDE_EXTRA_BYTES: usize = 16;

/// Size of a modulus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// 2,048 bits.
    Bits2048,
    /// 3,072 bits.
    Bits3072,
}

impl Size {
    /// The size of a modulus with this many bytes; `None` for unsupported lengths.
    #[must_use]
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        [Self::Bits2048, Self::Bits3072]
            .into_iter()
            .find(|size| size.bytes() == bytes)
    }

    /// Bytes of a number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bits2048 => 256,
            Self::Bits3072 => 384,
        }
    }

    /// Bits of the modulus.
    #[must_use]
    pub const fn bits(self) -> usize {
        8 * self.bytes()
    }

    /// Maximum bytes of a wide number.
    #[must_use]
    pub fn wide_bytes(self) -> usize {
        self.bytes() + WIDE_EXTRA_BYTES
    }

    /// Number of 64-bit limbs of a number modulo n.
    fn limbs(self) -> usize {
        self.bytes() / 8
    }

    /// Number of blocks of five 52-bit words (see `simd::kernel`) of a number modulo n; a number modulo a prime factor
    /// has half as many blocks.
    fn blocks(self) -> usize {
        match self {
            Self::Bits2048 => 8,
            Self::Bits3072 => 12,
        }
    }

    /// Bits of the Montgomery radix with which batches of eight are computed.
    fn radix_bits(self) -> usize {
        260 * self.blocks()
    }

    /// Number of rows of eight 52-bit words of a number modulo n.
    fn rows(self) -> usize {
        match self {
            Self::Bits2048 => 5,
            Self::Bits3072 => 8,
        }
    }
}

/// Why bytes are not a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Wrong length of the modulus, or of a number of the private key.
    #[error("invalid RSA key: the length of a number does not match 2,048 or 3,072 bits")]
    Length,
    /// The modulus or a prime factor is invalid.
    #[error(transparent)]
    Modulus(#[from] ModulusError),
    /// The numbers of the private key are inconsistent.
    #[error("invalid RSA key: the numbers of the private key are inconsistent")]
    Inconsistent,
}

/// Why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RsaError {
    /// Wrong length of an input or output.
    #[error("RSA operation failed: the length of a number differs from that of the modulus")]
    Length,
    /// A number is not below n.
    #[error("RSA operation failed: a number is not below the modulus")]
    OutOfRange,
    /// Keys or factors of different sizes.
    #[error("RSA operation failed: keys or factors have different sizes")]
    MixedSizes,
    /// The check of the result with e failed; the result would reveal the key, and is not returned.
    #[error(
        "private RSA operation failed: the check of the result failed, so the hardware is faulty or the key in memory is corrupt"
    )]
    CheckFailed,
}
