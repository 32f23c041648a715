//! Private keys: generation, storage format and signing.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair};
use linewarden_arithmetic::rsa::{BLINDING_BYTES, RsaError, RsaPrivate};
use zeroize::Zeroizing;

use super::public::{Material, PublicKey, PublicKeyError};
use super::text::LayoutDocument;
use crate::message::Draft;
use crate::ra::{Layout, PAD_BYTES, RaPrivate, RaPublic};
use crate::scheme::Scheme;

/// Why a private key cannot be made, read or used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateKeyError {
    /// The cryptographic library failed.
    #[error("cryptographic library failed to make a key or a signature")]
    LibraryFailed,
    /// The bytes are not a private key.
    #[error("invalid private key: {0}")]
    Malformed(&'static str),
    /// The public key is invalid.
    #[error(transparent)]
    Public(#[from] PublicKeyError),
    /// The check of a result failed.
    #[error(transparent)]
    Rsa(#[from] RsaError),
    /// The system returned no random bytes.
    #[error("getting random bytes failed: {0}")]
    Entropy(getrandom::Error),
}

enum Secret {
    Ra(Box<RaPrivate>),
    Pss(RsaKeyPair),
    EcdsaP256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// A signer's private key.
pub struct PrivateKey {
    public: Arc<PublicKey>,
    secret: Secret,
    /// PKCS #8 (RFC 5958).
    document: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({}, {})", self.public.scheme(), self.public.id())
    }
}

impl PrivateKey {
    /// Makes a key. RA requires a layout; the other schemes have none.
    ///
    /// # Errors
    /// No random bytes, a failure of the library, or a missing or superfluous layout.
    pub fn generate(scheme: Scheme, layout: Option<Layout>) -> Result<Self, PrivateKeyError> {
        let library_failed = |_| PrivateKeyError::LibraryFailed;
        let document = match scheme {
            Scheme::RaRsa2048 | Scheme::RsaPss2048 => rsa_document(KeySize::Rsa2048)?,
            Scheme::RaRsa3072 | Scheme::RsaPss3072 => rsa_document(KeySize::Rsa3072)?,
            Scheme::EcdsaP256 => {
                let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
                let document =
                    EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).map_err(library_failed)?;
                Zeroizing::new(document.as_ref().to_vec())
            }
            Scheme::Ed25519 => {
                let document =
                    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(library_failed)?;
                Zeroizing::new(document.as_ref().to_vec())
            }
        };
        let ra_parts = match layout {
            Some(layout) => {
                let mut random = [0; PAD_BYTES];
                getrandom::fill(&mut random).map_err(PrivateKeyError::Entropy)?;
                Some((layout, random))
            }
            None => None,
        };
        Self::from_document(scheme, document, ra_parts)
    }

    fn from_document(
        scheme: Scheme,
        document: Zeroizing<Vec<u8>>,
        ra_parts: Option<(Layout, [u8; PAD_BYTES])>,
    ) -> Result<Self, PrivateKeyError> {
        let rejected = |_| PrivateKeyError::Malformed("not a key of its scheme");
        let (public, secret) = match (scheme, ra_parts) {
            (Scheme::RaRsa2048 | Scheme::RaRsa3072, Some((layout, random))) => {
                let rsa = rsa_private(&document)?;
                if rsa.public().size().bytes() != scheme.signature_bytes() {
                    return Err(PrivateKeyError::Malformed("a modulus of another size"));
                }
                let public = PublicKey::rapid(RaPublic::new(rsa.public().clone(), layout, random));
                let Material::Ra(ra) = public.material() else {
                    return Err(PrivateKeyError::Malformed("not a key of its scheme"));
                };
                let secret = RaPrivate::new(Arc::clone(ra), rsa)
                    .ok_or(PrivateKeyError::Malformed("not a key of its scheme"))?;
                (public, Secret::Ra(Box::new(secret)))
            }
            (Scheme::RsaPss2048 | Scheme::RsaPss3072, None) => {
                let pair = RsaKeyPair::from_pkcs8(&document).map_err(rejected)?;
                let public = PublicKey::plain(scheme, rsa_private(&document)?.public().as_bytes())?;
                (public, Secret::Pss(pair))
            }
            (Scheme::EcdsaP256, None) => {
                let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
                let pair = EcdsaKeyPair::from_pkcs8(algorithm, &document).map_err(rejected)?;
                (
                    PublicKey::plain(scheme, pair.public_key().as_ref())?,
                    Secret::EcdsaP256(pair),
                )
            }
            (Scheme::Ed25519, None) => {
                let pair = Ed25519KeyPair::from_pkcs8(&document).map_err(rejected)?;
                (
                    PublicKey::plain(scheme, pair.public_key().as_ref())?,
                    Secret::Ed25519(pair),
                )
            }
            _ => return Err(PublicKeyError::Layout(scheme).into()),
        };
        Ok(Self {
            public: Arc::new(public),
            secret,
            document,
        })
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &Arc<PublicKey> {
        &self.public
    }

    /// The private key of RA, which makes masks and tables; `None` for a plain scheme.
    #[must_use]
    pub fn ra(&self) -> Option<&RaPrivate> {
        match &self.secret {
            Secret::Ra(ra) => Some(ra),
            _ => None,
        }
    }

    /// Encodes the key in the format of sealed files: version 1, scheme, length of the PKCS #8 document in four bytes,
    /// the document; then, for RA, 32 random bytes and the layout as JSON.
    ///
    /// # Errors
    /// None is known.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, serde_json::Error> {
        let ra_parts = match self.public.ra() {
            Some(ra) => [
                ra.random().as_slice(),
                &serde_json::to_vec(&LayoutDocument::from(ra.layout()))?,
            ]
            .concat(),
            None => Vec::new(),
        };
        let mut bytes = Zeroizing::new(Vec::with_capacity(6 + self.document.len() + ra_parts.len()));
        bytes.extend_from_slice(&[VERSION, self.public.scheme().number()]);
        // The document of a key of 3,072 bits has 1.8 kB.
        bytes.extend_from_slice(&(self.document.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&self.document);
        bytes.extend_from_slice(&ra_parts);
        Ok(bytes)
    }

    /// Reads the format that [`PrivateKey::to_bytes`] writes.
    ///
    /// # Errors
    /// Another format, or an invalid key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PrivateKeyError> {
        let malformed = PrivateKeyError::Malformed;
        let ([version, scheme], rest) = bytes.split_first_chunk::<2>().ok_or(malformed("empty"))?;
        if *version != VERSION {
            return Err(malformed("unsupported version of this format"));
        }
        let scheme = Scheme::from_number(*scheme).ok_or(malformed("unknown scheme"))?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(malformed("truncated"))?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let (document, rest) = rest.split_at_checked(length).ok_or(malformed("truncated"))?;
        let ra_parts = match rest.split_first_chunk::<PAD_BYTES>() {
            None if rest.is_empty() => None,
            None => return Err(malformed("truncated")),
            Some((random, layout)) => {
                let layout: LayoutDocument =
                    serde_json::from_slice(layout).map_err(|_| malformed("invalid layout"))?;
                let layout = layout.try_into().map_err(|_| malformed("invalid layout"))?;
                Some((layout, *random))
            }
        };
        Self::from_document(scheme, Zeroizing::new(document.to_vec()), ra_parts)
    }

    /// Signs with a plain scheme; `None` for RA, which signs with a table and masks.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn sign_plain(&self, draft: Draft) -> Result<Option<Vec<u8>>, PrivateKeyError> {
        let library_failed = |_| PrivateKeyError::LibraryFailed;
        let message = draft.to_sign();
        let random = SystemRandom::new();
        let signature = match &self.secret {
            Secret::Ra(_) => return Ok(None),
            Secret::Pss(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&signature::RSA_PSS_SHA256, &random, &message, &mut signature)
                    .map_err(library_failed)?;
                signature
            }
            Secret::EcdsaP256(pair) => {
                let signature = pair.sign(&random, &message).map_err(library_failed)?;
                crate::range::lower_half(signature.as_ref()).ok_or(PrivateKeyError::LibraryFailed)?
            }
            Secret::Ed25519(pair) => pair.sign(&message).as_ref().to_vec(),
        };
        Ok(Some(draft.with_signature(&signature)))
    }
}

const VERSION: u8 = 1;

fn rsa_document(size: KeySize) -> Result<Zeroizing<Vec<u8>>, PrivateKeyError> {
    let library_failed = |_| PrivateKeyError::LibraryFailed;
    let pair = aws_lc_rs::rsa::KeyPair::generate(size).map_err(library_failed)?;
    Ok(Zeroizing::new(
        pair.as_der().map_err(library_failed)?.as_ref().to_vec(),
    ))
}

/// Reads an RSA key from a PKCS #8 document (RFC 5958) that contains an `RSAPrivateKey` (RFC 8017, A.1.2).
fn rsa_private(document: &[u8]) -> Result<RsaPrivate, PrivateKeyError> {
    let malformed = |_| PrivateKeyError::Malformed("not an RSA key in PKCS #8");
    let info = pkcs8::PrivateKeyInfoRef::try_from(document).map_err(malformed)?;
    let key = pkcs1::RsaPrivateKeyRef::try_from(info.private_key.as_bytes())
        .map_err(|_| PrivateKeyError::Malformed("not an RSA key in PKCS #8"))?;
    if key.public_exponent.as_bytes() != [1, 0, 1] {
        return Err(PrivateKeyError::Malformed("public exponent is not 65537"));
    }
    let numbers = [
        key.prime1,
        key.prime2,
        key.exponent1,
        key.exponent2,
        key.coefficient,
    ];
    let [p, q, dp, dq, qinv] = numbers.each_ref().map(|number| number.as_bytes());
    let mut random = Zeroizing::new([0; BLINDING_BYTES]);
    getrandom::fill(&mut random[..]).map_err(PrivateKeyError::Entropy)?;
    RsaPrivate::new(p, q, dp, dq, qinv, &random).map_err(|error| PublicKeyError::from(error).into())
}
