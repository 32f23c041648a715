//! Public keys, and verification one message at a time.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::signature::{self, ParsedPublicKey};
use linewarden_arithmetic::rsa::{KeyError, RsaPublic, Size};
use linewarden_arithmetic::{Backend, edwards, p256};
use sha2::{Digest as _, Sha256};

use super::ahead::{Ahead, Room};
use crate::message::{KEY_ID_BYTES, KeyId};
use crate::ra::RaPublic;
use crate::scheme::Scheme;

/// Why bytes are no public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// Not a modulus that is used.
    #[error(transparent)]
    Rsa(#[from] KeyError),
    /// Another length.
    #[error("{found} bytes; a public key of {scheme} has {wanted}")]
    Length {
        /// Of which scheme.
        scheme: Scheme,
        /// How many there are.
        found: usize,
        /// How many there should be.
        wanted: usize,
    },
    /// The library does not take it.
    #[error("not a key of {0}")]
    Library(Scheme),
    /// No point of the curve.
    #[error(transparent)]
    P256(#[from] p256::PointError),
    /// No point of the curve, not in its one encoding, or one with which anything verifies.
    #[error(transparent)]
    Ed25519(#[from] edwards::KeyError),
    /// A key for RA has a layout, another has none.
    #[error("the scheme is {0}, and {what}", what = if .0.is_rapid() { "a layout is missing" } else { "a layout is for RA only" })]
    Layout(Scheme),
}

/// What a scheme verifies with.
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

/// A point of P-256.
pub struct P256Key {
    point: p256::PublicPoint,
    ahead: Ahead<p256::KnownPoint>,
}

impl P256Key {
    /// As it is written: uncompressed (SEC 1, 2.3.3).
    #[must_use]
    pub fn to_sec1(&self) -> Vec<u8> {
        [&[4], self.point.as_bytes().as_slice()].concat()
    }

    /// As lanes compute with it.
    #[must_use]
    pub fn point(&self) -> &p256::PublicPoint {
        &self.point
    }

    /// What is computed ahead.
    #[must_use]
    pub fn ahead(&self) -> &Ahead<p256::KnownPoint> {
        &self.ahead
    }
}

/// A point of edwards25519.
pub struct Ed25519Key {
    key: edwards::PublicKey,
    ahead: Ahead<edwards::KnownKey>,
}

impl Ed25519Key {
    /// As lanes compute with it.
    #[must_use]
    pub fn key(&self) -> &edwards::PublicKey {
        &self.key
    }

    /// What is computed ahead.
    #[must_use]
    pub fn ahead(&self) -> &Ahead<edwards::KnownKey> {
        &self.ahead
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
    /// A key for RA.
    #[must_use]
    pub fn rapid(ra: RaPublic) -> Self {
        let scheme = match ra.rsa().size() {
            Size::Bits2048 => Scheme::RaRsa2048,
            Size::Bits3072 => Scheme::RaRsa3072,
        };
        // The pad is a hash of all that the key is.
        let id = key_id(scheme, ra.pad());
        Self {
            scheme,
            id,
            material: Material::Ra(Arc::new(ra)),
        }
    }

    /// A key of a plain scheme: a modulus, big-endian, or a point.
    ///
    /// # Errors
    /// Not a key of this scheme.
    pub fn plain(scheme: Scheme, bytes: &[u8]) -> Result<Self, PublicKeyError> {
        let length = |wanted| PublicKeyError::Length {
            scheme,
            found: bytes.len(),
            wanted,
        };
        let library = PublicKeyError::Library(scheme);
        let material = match scheme {
            Scheme::RaRsa2048 | Scheme::RaRsa3072 => return Err(PublicKeyError::Layout(scheme)),
            Scheme::RsaPss2048 | Scheme::RsaPss3072 => {
                let wanted = scheme.signature_bytes();
                if bytes.len() != wanted {
                    return Err(length(wanted));
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
                    ahead: Ahead::default(),
                };
                Material::EcdsaP256(Box::new(key), parsed)
            }
            Scheme::Ed25519 => {
                let bytes = <[u8; 32]>::try_from(bytes).map_err(|_| length(32))?;
                let parsed = ParsedPublicKey::new(&signature::ED25519, bytes).map_err(|_| library)?;
                let key = Ed25519Key {
                    key: edwards::PublicKey::from_bytes(&bytes)?,
                    ahead: Ahead::default(),
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

    /// The signer's name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// What the scheme verifies with.
    #[must_use]
    pub fn material(&self) -> &Material {
        &self.material
    }

    /// Whether multiples of its point were computed ahead: never, if it is none.
    #[must_use]
    pub fn has_table(&self) -> bool {
        match &self.material {
            Material::EcdsaP256(key, _) => key.ahead.get().is_some(),
            Material::Ed25519(key, _) => key.ahead.get().is_some(),
            Material::Ra(_) | Material::Pss(..) => false,
        }
    }

    /// Notes that a processor has found a message to hold.
    pub(crate) fn has_held(&self) {
        match &self.material {
            Material::EcdsaP256(key, _) => key.ahead.has_held(),
            Material::Ed25519(key, _) => key.ahead.has_held(),
            Material::Ra(_) | Material::Pss(..) => {}
        }
    }

    /// Whether enough have held that a table is worth its while.
    pub(crate) fn is_due_for_table(&self) -> bool {
        match &self.material {
            Material::EcdsaP256(key, _) => key.ahead.is_due(),
            Material::Ed25519(key, _) => key.ahead.is_due(),
            Material::Ra(_) | Material::Pss(..) => false,
        }
    }

    /// Computes multiples of its point, and says so: unless they are there, another thread does, or there is no room.
    pub(crate) fn make_table(&self, backend: Backend) -> bool {
        match &self.material {
            Material::EcdsaP256(key, _) => {
                let make = || p256::KnownPoint::new(backend, &key.point);
                key.ahead.make(p256::KnownPoint::BYTES, make)
            }
            Material::Ed25519(key, _) => {
                let make = || edwards::KnownKey::new(backend, &key.key);
                key.ahead.make(edwards::KnownKey::BYTES, make)
            }
            Material::Ra(_) | Material::Pss(..) => false,
        }
    }

    /// Bytes of the table that is made ahead of this key's point, if it is one.
    pub(crate) fn table_bytes(&self) -> Option<usize> {
        match &self.material {
            Material::EcdsaP256(..) => Some(p256::KnownPoint::BYTES),
            Material::Ed25519(..) => Some(edwards::KnownKey::BYTES),
            Material::Ra(_) | Material::Pss(..) => None,
        }
    }

    /// Takes the room for that table from here.
    pub(crate) fn draw_from(&self, room: &Arc<Room>) {
        match &self.material {
            Material::EcdsaP256(key, _) => key.ahead.draw_from(room),
            Material::Ed25519(key, _) => key.ahead.draw_from(room),
            Material::Ra(_) | Material::Pss(..) => {}
        }
    }

    /// What the scheme verifies with, if it is RA.
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

/// `RSAPublicKey` (RFC 8017, A.1.1) of a modulus whose topmost bit is set, and 65537.
fn pkcs1(modulus: &[u8]) -> Vec<u8> {
    const EXPONENT: [u8; 5] = [0x02, 0x03, 0x01, 0x00, 0x01];
    // A zero keeps the number positive; keys have 256 or 384 bytes, so that lengths take two.
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
