//! Signature schemes: number, name and sizes.

use std::fmt;
use std::str::FromStr;

/// A signature scheme; the discriminant is its number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Scheme {
    /// Rapid Authentication over RSA with 2,048 bits.
    RaRsa2048 = 1,
    /// Rapid Authentication over RSA with 3,072 bits.
    RaRsa3072 = 2,
    /// RSASSA-PSS with SHA-256 (RFC 8017, 8.1), 2,048 bits.
    RsaPss2048 = 3,
    /// RSASSA-PSS with SHA-256, 3,072 bits.
    RsaPss3072 = 4,
    /// ECDSA over P-256 with SHA-256 (FIPS 186-5), `s` in its lower half.
    EcdsaP256 = 5,
    /// Ed25519 (RFC 8032).
    Ed25519 = 6,
}

/// No scheme has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown signature scheme {0:?}; expected ra-rsa2048, ra-rsa3072, rsa-pss2048, rsa-pss3072, ecdsa-p256 or ed25519"
)]
pub struct UnknownScheme(String);

impl Scheme {
    /// All schemes, by number.
    pub const ALL: [Self; 6] = [
        Self::RaRsa2048,
        Self::RaRsa3072,
        Self::RsaPss2048,
        Self::RsaPss3072,
        Self::EcdsaP256,
        Self::Ed25519,
    ];

    /// The scheme with this number on the wire.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.number() == number)
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The name in files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RaRsa2048 => "ra-rsa2048",
            Self::RaRsa3072 => "ra-rsa3072",
            Self::RsaPss2048 => "rsa-pss2048",
            Self::RsaPss3072 => "rsa-pss3072",
            Self::EcdsaP256 => "ecdsa-p256",
            Self::Ed25519 => "ed25519",
        }
    }

    /// Whether the scheme is Rapid Authentication, which signs with a table and masks.
    #[must_use]
    pub const fn is_rapid(self) -> bool {
        matches!(self, Self::RaRsa2048 | Self::RaRsa3072)
    }

    /// Bytes of a signature, without the mask name.
    #[must_use]
    pub const fn signature_bytes(self) -> usize {
        match self.modulus_bytes() {
            Some(bytes) => bytes,
            None => 64,
        }
    }

    /// Bytes of the RSA modulus, if there is one.
    #[must_use]
    pub const fn modulus_bytes(self) -> Option<usize> {
        match self {
            Self::RaRsa2048 | Self::RsaPss2048 => Some(256),
            Self::RaRsa3072 | Self::RsaPss3072 => Some(384),
            Self::EcdsaP256 | Self::Ed25519 => None,
        }
    }

    /// Security strength in bits (NIST SP 800-57 part 1, table 2).
    #[must_use]
    pub const fn security_bits(self) -> u32 {
        match self {
            Self::RaRsa2048 | Self::RsaPss2048 => 112,
            _ => 128,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Self, UnknownScheme> {
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.name() == name)
            .ok_or_else(|| UnknownScheme(name.to_owned()))
    }
}
