//! RSA with e = 65537 (RFC 8017, 5.1 and 5.2): the public operation, the private one by the Chinese remainder theorem, and products of many factors.
//!
//! All of it one at a time, and eight at a time on the vectors of a [`Backend`](super::Backend). Numbers are big-endian bytes, of exactly the modulus' length
//! where nothing else is said. A *wide* number has up to 16 bytes more, and stands for what it is modulo n: a hash over the whole range of n.
//!
//! Nothing is padded or hashed here. Secret are a private key, and what a private operation has to do with; a signature, the
//! numbers it is compared with, and which factors a product has are not.

mod blinding;
mod eight;
mod private;
mod public;
mod table;

pub use blinding::BLINDING_BYTES;
pub use eight::{check_eight, power_eight, product_eight};
pub use private::RsaPrivate;
pub use public::RsaPublic;
pub use table::{Element, Table};

use super::ModulusError;

/// What a wide number has more than the modulus.
const WIDE_EXTRA_BYTES: usize = 16;

/// How long a modulus is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// 2,048 bits.
    Bits2048,
    /// 3,072 bits.
    Bits3072,
}

impl Size {
    /// Of a modulus of so many bytes; `None` if there is none of that length.
    #[must_use]
    pub fn of_bytes(bytes: usize) -> Option<Self> {
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

    /// Bits of a modulus.
    #[must_use]
    pub const fn bits(self) -> usize {
        8 * self.bytes()
    }

    /// The most bytes of a wide number.
    #[must_use]
    pub fn wide_bytes(self) -> usize {
        self.bytes() + WIDE_EXTRA_BYTES
    }

    /// Limbs of 64 bits.
    fn limbs(self) -> usize {
        self.bytes() / 8
    }

    /// Blocks of words of 52 bits (see the kernels), of a number modulo n; half of them are what one modulo a prime factor has.
    fn blocks(self) -> usize {
        match self {
            Self::Bits2048 => 8,
            Self::Bits3072 => 12,
        }
    }

    /// The bits of the Montgomery radix of eight at a time.
    fn radix_bits(self) -> usize {
        260 * self.blocks()
    }

    /// Rows of eight such words.
    fn rows(self) -> usize {
        match self {
            Self::Bits2048 => 5,
            Self::Bits3072 => 8,
        }
    }
}

/// Why bytes are no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The modulus, or one of the private key's five numbers.
    #[error("a number of the key is not of the length that RSA of 2,048 or 3,072 bits gives it")]
    Length,
    /// The modulus or a prime factor.
    #[error(transparent)]
    Modulus(#[from] ModulusError),
    /// The numbers of the private key do not belong together.
    #[error("the numbers of the private key contradict each other")]
    Inconsistent,
}

/// Why an operation has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Of an input or output.
    #[error("a number is not of the modulus' length")]
    Length,
    /// A number that should be below n.
    #[error("a number is not below the modulus")]
    Range,
    /// Eight keys at a time are of one size.
    #[error("keys, or factors and key, are of different sizes")]
    Mixed,
    /// Checked with e, and wrong; it would betray the key, and is not returned.
    #[error(
        "the private operation failed: its result does not check, so this machine or the key in its memory is broken"
    )]
    Unsound,
}
