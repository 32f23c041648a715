//! Keys that sign statements and reference value files.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey,
};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

const PRIVATE_LABEL: &str = "PRIVATE KEY";
const PUBLIC_LABEL: &str = "PUBLIC KEY";
/// Prefix of the key in a SubjectPublicKeyInfo (RFC 8410, RFC 5480).
const ED25519_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Bytes of a signature of either scheme.
const SIGNATURE_BYTES: usize = 64;

/// Why a key is invalid, or why signing failed.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is not a key.
    #[error("invalid {expected} in PEM: {reason}")]
    InvalidKey {
        /// The expected type of key.
        expected: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The TPM or the library that has the key did not sign, or no key could be generated.
    #[error("signing failed: {0}")]
    SigningFailed(String),
}

/// A public key, with its scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// Ed25519 (RFC 8032).
    Ed25519([u8; 32]),
    /// ECDSA on P-256 with SHA-256, the uncompressed point: a key of a TPM.
    EcdsaP256([u8; 65]),
}

/// A signer: a key from a file, or a key in a TPM.
pub trait Signer {
    /// The public key that verifies the signatures.
    fn public_key(&self) -> PublicKey;

    /// Signs a message. Returns 64 bytes: Ed25519's signature, or ECDSA's r and s.
    ///
    /// # Errors
    /// [`KeyError::SigningFailed`].
    fn sign(&mut self, message: &[u8]) -> Result<[u8; SIGNATURE_BYTES], KeyError>;
}

impl PublicKey {
    /// Parses PEM (SubjectPublicKeyInfo).
    ///
    /// # Errors
    /// Invalid PEM, or an unsupported scheme.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let refuse = |reason: String| KeyError::InvalidKey {
            expected: "public key",
            reason,
        };
        let parsed = pem::parse(text).map_err(|error| refuse(error.to_string()))?;
        if parsed.tag() != PUBLIC_LABEL {
            return Err(refuse(format!("it is a {}", parsed.tag().escape_debug())));
        }
        let contents = parsed.contents();
        let ed25519 = contents
            .strip_prefix(&ED25519_PREFIX)
            .and_then(|key| key.try_into().ok());
        let p256 = contents
            .strip_prefix(&P256_PREFIX)
            .and_then(|key| key.try_into().ok());
        ed25519
            .map(Self::Ed25519)
            .or(p256.map(Self::EcdsaP256))
            .ok_or_else(|| refuse("it is neither Ed25519 nor ECDSA on P-256".to_owned()))
    }

    /// The key as PEM (SubjectPublicKeyInfo).
    #[must_use]
    pub fn to_pem(&self) -> String {
        let der = match self {
            Self::Ed25519(key) => [&ED25519_PREFIX[..], key].concat(),
            Self::EcdsaP256(key) => [&P256_PREFIX[..], key].concat(),
        };
        pem::encode(&pem::Pem::new(PUBLIC_LABEL, der))
    }

    /// The key's bytes: 32 of Ed25519, 65 of the point on P-256.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        match self {
            Self::Ed25519(key) => key,
            Self::EcdsaP256(key) => key,
        }
    }

    /// SHA-256 of the key bytes; identifies the key.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(self.bytes()).into()
    }

    /// Whether this is a valid signature of the message by this key.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
            Self::EcdsaP256(key) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(message, signature)
            }
        }
        .is_ok()
    }
}

/// An Ed25519 key from a file.
pub struct Ed25519Signer {
    key_pair: Ed25519KeyPair,
    public: [u8; 32],
}

impl Ed25519Signer {
    /// Generates a key, as PEM (PKCS #8).
    ///
    /// # Errors
    /// The operating system has no random bytes.
    pub fn generate_pem() -> Result<Zeroizing<String>, KeyError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|error| KeyError::SigningFailed(error.to_string()))?;
        let pem = pem::Pem::new(PRIVATE_LABEL, document.as_ref());
        Ok(Zeroizing::new(pem::encode(&pem)))
    }

    /// Parses a key.
    ///
    /// # Errors
    /// Invalid PEM.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let refuse = |reason: String| KeyError::InvalidKey {
            expected: "Ed25519 private key (PKCS #8)",
            reason,
        };
        let parsed = pem::parse(text).map_err(|error| refuse(error.to_string()))?;
        if parsed.tag() != PRIVATE_LABEL {
            return Err(refuse(format!("it is a {}", parsed.tag().escape_debug())));
        }
        let pkcs8 = Zeroizing::new(parsed.into_contents());
        let key_pair =
            Ed25519KeyPair::from_pkcs8_maybe_unchecked(&pkcs8).map_err(|error| refuse(error.to_string()))?;
        let public = key_pair.public_key().as_ref().try_into();
        let public = public.map_err(|_| refuse("its public key is not 32 bytes long".to_owned()))?;
        Ok(Self { key_pair, public })
    }
}

impl Signer for Ed25519Signer {
    fn public_key(&self) -> PublicKey {
        PublicKey::Ed25519(self.public)
    }

    fn sign(&mut self, message: &[u8]) -> Result<[u8; SIGNATURE_BYTES], KeyError> {
        let signature = self.key_pair.sign(message);
        signature
            .as_ref()
            .try_into()
            .map_err(|_| KeyError::SigningFailed("the signature is not 64 bytes long".to_owned()))
    }
}

impl std::fmt::Debug for Ed25519Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ed25519Signer({:02x?})", self.public)
    }
}
