//! Public keys, and verification of one message at a time.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::signature::{self, ParsedPublicKey};
use linewarden_arithmetic::rsa::{KeyError, RsaPublic, Size};
use linewarden_arithmetic::{Backend, edwards, p256};
use sha2::{Digest as _, Sha256};

use super::precomputed::{MemoryBudget, Precomputed};
use crate::message::{KEY_ID_BYTES, KeyId};
use crate::ra::RaPublic;
use crate::scheme::Scheme;

/// Why bytes are not a valid public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// The modulus is invalid.
    #[error(transparent)]
    Rsa(#[from] KeyError),
    /// Unexpected length.
    #[error("public key of {scheme} has {found} bytes, expected {expected}")]
    Length {
        /// The scheme.
        scheme: Scheme,
        /// Actual length, bytes.
        found: usize,
        /// Expected length, bytes.
        expected: usize,
    },
    /// The cryptographic library rejected the key.
    #[error("not a public key of {0}")]
    Library(Scheme),
    /// Not a point of the curve.
    #[error(transparent)]
    P256(#[from] p256::PointError),
    /// Not a point of the curve, not canonically encoded, or of small order, so that one signature is valid for many
    /// messages.
    #[error(transparent)]
    Ed25519(#[from] edwards::KeyError),
    /// The layout of a key of RA is missing, or a key of another scheme has a layout.
    #[error("public key of {0}: {what}", what = if .0.is_rapid() { "a layout is missing" } else { "a layout is only for RA" })]
    Layout(Scheme),
}

/// The verification key of a scheme.
pub enum Material {
    /// RA.
    Ra(Arc<RaPublic>),
    /// RSA-PSS.
    Pss(Box<RsaPublic>, ParsedPublicKey),
    /// ECDSA.
    EcdsaP256(Box<P256Key>, ParsedPublicKey),
    /// Ed25519.
    Ed25519(Box<Ed25519Key>, ParsedPublicKey),
}

/// A public key on P-256.
pub struct P256Key {
    point: p256::PublicPoint,
    precomputed: Precomputed<p256::PrecomputedPoint>,
}

impl P256Key {
    /// Uncompressed encoding (SEC 1, 2.3.3).
    #[must_use]
    pub fn to_sec1(&self) -> Vec<u8> {
        [&[4], self.point.as_bytes().as_slice()].concat()
    }

    /// The point as lanes use it.
    #[must_use]
    pub fn point(&self) -> &p256::PublicPoint {
        &self.point
    }

    /// The precomputed multiples.
    #[must_use]
    pub fn precomputed(&self) -> &Precomputed<p256::PrecomputedPoint> {
        &self.precomputed
    }
}

/// A public key on edwards25519.
pub struct Ed25519Key {
    key: edwards::PublicKey,
    precomputed: Precomputed<edwards::PrecomputedKey>,
}

impl Ed25519Key {
    /// The key as lanes use it.
    #[must_use]
    pub fn key(&self) -> &edwards::PublicKey {
        &self.key
    }

    /// The precomputed multiples.
    #[must_use]
    pub fn precomputed(&self) -> &Precomputed<edwards::PrecomputedKey> {
        &self.precomputed
    }
}

/// A signer's public key.
pub struct PublicKey {
    scheme: Scheme,
    id: KeyId,
    material: Material,
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({}, {})", self.scheme, self.id)
    }
}

impl PublicKey {
    /// A key of RA.
    #[must_use]
    pub fn rapid(ra: RaPublic) -> Self {
        let scheme = match ra.rsa().size() {
            Size::Bits2048 => Scheme::RaRsa2048,
            Size::Bits3072 => Scheme::RaRsa3072,
        };
        // The pad is a hash of the whole key.
        let id = key_id(scheme, ra.pad());
        Self {
            scheme,
            id,
            material: Material::Ra(Arc::new(ra)),
        }
    }

    /// A key of a plain scheme: a big-endian modulus, or an encoded point.
    ///
    /// # Errors
    /// Bytes that are not a key of this scheme.
    pub fn plain(scheme: Scheme, bytes: &[u8]) -> Result<Self, PublicKeyError> {
        let length = |expected| PublicKeyError::Length {
            scheme,
            found: bytes.len(),
            expected,
        };
        let library = PublicKeyError::Library(scheme);
        let material = match scheme {
            Scheme::RaRsa2048 | Scheme::RaRsa3072 => return Err(PublicKeyError::Layout(scheme)),
            Scheme::RsaPss2048 | Scheme::RsaPss3072 => {
                let expected = scheme.signature_bytes();
                if bytes.len() != expected {
                    return Err(length(expected));
                }
                let rsa = RsaPublic::new(bytes)?;
                let algorithm = &signature::RSA_PSS_2048_8192_SHA256;
                let parsed = ParsedPublicKey::new(algorithm, pkcs1(bytes)).map_err(|_| library)?;
                Material::Pss(Box::new(rsa), parsed)
            }
            Scheme::EcdsaP256 => {
                let bytes = <[u8; 65]>::try_from(bytes).map_err(|_| length(65))?;
                let parsed =
                    ParsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, bytes).map_err(|_| library)?;
                let key = P256Key {
                    point: p256::PublicPoint::from_sec1(&bytes)?,
                    precomputed: Precomputed::default(),
                };
                Material::EcdsaP256(Box::new(key), parsed)
            }
            Scheme::Ed25519 => {
                let bytes = <[u8; 32]>::try_from(bytes).map_err(|_| length(32))?;
                let parsed = ParsedPublicKey::new(&signature::ED25519, bytes).map_err(|_| library)?;
                let key = Ed25519Key {
                    key: edwards::PublicKey::from_bytes(&bytes)?,
                    precomputed: Precomputed::default(),
                };
                Material::Ed25519(Box::new(key), parsed)
            }
        };
        Ok(Self {
            scheme,
            id: key_id(scheme, bytes),
            material,
        })
    }

    /// The scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The identifier of the signer.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The verification key.
    #[must_use]
    pub fn material(&self) -> &Material {
        &self.material
    }

    /// Whether multiples of the point were precomputed; always false for RSA.
    #[must_use]
    pub fn has_table(&self) -> bool {
        match &self.material {
            Material::EcdsaP256(key, _) => key.precomputed.get().is_some(),
            Material::Ed25519(key, _) => key.precomputed.get().is_some(),
            Material::Ra(_) | Material::Pss(..) => false,
        }
    }

    /// Records that a CPU lane found a message of this signer valid.
    pub(crate) fn record_valid(&self) {
        match &self.material {
            Material::EcdsaP256(key, _) => key.precomputed.record_valid(),
            Material::Ed25519(key, _) => key.precomputed.record_valid(),
            Material::Ra(_) | Material::Pss(..) => {}
        }
    }

    /// Whether enough valid messages have arrived to justify a table, and no thread has started to make the table.
    pub(crate) fn is_due_for_table(&self) -> bool {
        match &self.material {
            Material::EcdsaP256(key, _) => key.precomputed.is_due(),
            Material::Ed25519(key, _) => key.precomputed.is_due(),
            Material::Ra(_) | Material::Pss(..) => false,
        }
    }

    /// Precomputes multiples of the point. Returns false if the table exists, if another thread makes the table, or
    /// if the memory budget is used up.
    pub(crate) fn make_table(&self, backend: Backend) -> bool {
        match &self.material {
            Material::EcdsaP256(key, _) => {
                let make = || p256::PrecomputedPoint::new(backend, &key.point);
                key.precomputed.make(p256::PrecomputedPoint::BYTES, make)
            }
            Material::Ed25519(key, _) => {
                let make = || edwards::PrecomputedKey::new(backend, &key.key);
                key.precomputed.make(edwards::PrecomputedKey::BYTES, make)
            }
            Material::Ra(_) | Material::Pss(..) => false,
        }
    }

    /// Bytes of the precomputed table of this key; `None` for RSA.
    pub(crate) fn table_bytes(&self) -> Option<usize> {
        match &self.material {
            Material::EcdsaP256(..) => Some(p256::PrecomputedPoint::BYTES),
            Material::Ed25519(..) => Some(edwards::PrecomputedKey::BYTES),
            Material::Ra(_) | Material::Pss(..) => None,
        }
    }

    /// Charges the table to this memory budget.
    pub(crate) fn set_table_budget(&self, budget: &Arc<MemoryBudget>) {
        match &self.material {
            Material::EcdsaP256(key, _) => key.precomputed.set_budget(budget),
            Material::Ed25519(key, _) => key.precomputed.set_budget(budget),
            Material::Ra(_) | Material::Pss(..) => {}
        }
    }

    /// The key of RA; `None` for other schemes.
    #[must_use]
    pub fn ra(&self) -> Option<&RaPublic> {
        match &self.material {
            Material::Ra(ra) => Some(ra),
            _ => None,
        }
    }
}

fn key_id(scheme: Scheme, bytes: &[u8]) -> KeyId {
    let hash: [u8; 32] = Sha256::new()
        .chain_update(b"linewarden signer 1\0")
        .chain_update([scheme.number()])
        .chain_update(bytes)
        .finalize()
        .into();
    let mut id = [0; KEY_ID_BYTES];
    for (id, byte) in id.iter_mut().zip(hash) {
        *id = byte;
    }
    KeyId(id)
}

/// `RSAPublicKey` (RFC 8017, A.1.1) of a modulus whose topmost bit is set, and the exponent 65537.
fn pkcs1(modulus: &[u8]) -> Vec<u8> {
    const EXPONENT: [u8; 5] = [0x02, 0x03, 0x01, 0x00, 0x01];
    // A leading zero keeps the number positive; keys have 256 or 384 bytes, so that lengths take two bytes.
    let integer = modulus.len() + 1;
    let sequence = 4 + integer + EXPONENT.len();
    let [integer, sequence] = [integer, sequence].map(|length| (length as u16).to_be_bytes());
    [
        &[0x30, 0x82],
        sequence.as_slice(),
        &[0x02, 0x82],
        &integer,
        &[0],
        modulus,
        &EXPONENT,
    ]
    .concat()
}
