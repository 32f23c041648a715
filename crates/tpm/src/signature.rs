//! Signatures of TPM keys (TPMT_SIGNATURE), and their verification.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use linewarden_measurement::HashAlgorithm;

use crate::public::{ALG_ECDSA, ALG_RSAPSS, ALG_RSASSA, Kind, Public, Scheme, coordinate, hash, sec1};
use crate::wire::{ParseError, Reader, Writer};

/// Maximum length of an RSA signature, bytes: for keys of 4,096 bits.
const RSA_BYTES_MAX: usize = 512;

/// A signature, not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// RSASSA-PKCS1-v1_5.
    Rsassa {
        /// Hash of the message.
        hash: HashAlgorithm,
        /// The signature, as long as the modulus.
        bytes: Vec<u8>,
    },
    /// RSASSA-PSS.
    Rsapss {
        /// Hash of the message and of MGF1.
        hash: HashAlgorithm,
        /// The signature, as long as the modulus.
        bytes: Vec<u8>,
    },
    /// ECDSA on P-256.
    Ecdsa {
        /// Hash of the message.
        hash: HashAlgorithm,
        /// The number r; some TPMs omit leading zeros.
        r: Vec<u8>,
        /// The number s, as `r`.
        s: Vec<u8>,
    },
}

/// Why a signature does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The scheme of the signature differs from the scheme of the key, or is not supported.
    #[error(
        "unsupported signature scheme: it differs from that of the key, or is not RSASSA, RSAPSS or ECDSA P-256 with SHA-256"
    )]
    WrongScheme,
    /// The signature is not a signature of this key over these bytes.
    #[error("signature does not verify with this key")]
    Mismatch,
}

impl Signature {
    /// Parses TPMT_SIGNATURE.
    ///
    /// # Errors
    /// The bytes are not exactly one signature of a supported scheme.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new("TPMT_SIGNATURE", bytes);
        let algorithm = reader.u16("sigAlg")?;
        if !matches!(algorithm, ALG_RSASSA | ALG_RSAPSS | ALG_ECDSA) {
            return Err(reader.refuse("sigAlg", 2, algorithm));
        }
        let hash = hash(&mut reader, "hash")?;
        let signature = match algorithm {
            ALG_ECDSA => Self::Ecdsa {
                hash,
                r: reader.sized_buffer("signatureR", 32)?.to_vec(),
                s: reader.sized_buffer("signatureS", 32)?.to_vec(),
            },
            _ => {
                let bytes = reader.sized_buffer("sig", RSA_BYTES_MAX)?.to_vec();
                match algorithm {
                    ALG_RSASSA => Self::Rsassa { hash, bytes },
                    _ => Self::Rsapss { hash, bytes },
                }
            }
        };
        reader.finish()?;
        Ok(signature)
    }

    /// Encodes the signature as TPMT_SIGNATURE. A parsed signature yields exactly the parsed bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Rsassa { hash, bytes } => Writer::new()
                .u16(ALG_RSASSA)
                .u16(hash.tcg_id())
                .sized_buffer(bytes),
            Self::Rsapss { hash, bytes } => Writer::new()
                .u16(ALG_RSAPSS)
                .u16(hash.tcg_id())
                .sized_buffer(bytes),
            Self::Ecdsa { hash, r, s } => Writer::new()
                .u16(ALG_ECDSA)
                .u16(hash.tcg_id())
                .sized_buffer(r)
                .sized_buffer(s),
        }
        .into_bytes()
    }

    /// Verifies the signature over `message` with a key of the same scheme.
    ///
    /// A PSS signature must have a salt as long as the hash, as FIPS 186-4 requires.
    ///
    /// # Errors
    /// The schemes of signature and key differ, or the signature is wrong.
    pub fn verify(&self, key: &Public, message: &[u8]) -> Result<(), SignatureError> {
        const SHA256: HashAlgorithm = HashAlgorithm::Sha256;
        match (self, &key.kind) {
            (Self::Rsassa { hash: SHA256, bytes }, Kind::Rsa { scheme, modulus, .. })
                if *scheme == Scheme::Rsassa(SHA256) =>
            {
                rsa(modulus)
                    .verify(&RSA_PKCS1_2048_8192_SHA256, message, bytes)
                    .map_err(|_| SignatureError::Mismatch)
            }
            (Self::Rsapss { hash: SHA256, bytes }, Kind::Rsa { scheme, modulus, .. })
                if *scheme == Scheme::Rsapss(SHA256) =>
            {
                rsa(modulus)
                    .verify(&RSA_PSS_2048_8192_SHA256, message, bytes)
                    .map_err(|_| SignatureError::Mismatch)
            }
            (Self::Ecdsa { hash: SHA256, r, s }, Kind::EccP256 { scheme, x, y, .. })
                if *scheme == Scheme::Ecdsa(SHA256) =>
            {
                ecdsa(x, y, r, s, message).ok_or(SignatureError::Mismatch)
            }
            _ => Err(SignatureError::WrongScheme),
        }
    }
}

/// The public key in the type of the cryptographic library; its exponent is 65,537.
pub(crate) const fn rsa(modulus: &[u8]) -> RsaPublicKeyComponents<&[u8]> {
    RsaPublicKeyComponents {
        n: modulus,
        e: &[1, 0, 1],
    }
}

fn ecdsa(x: &[u8], y: &[u8], r: &[u8], s: &[u8], message: &[u8]) -> Option<()> {
    let signature = [coordinate(r)?, coordinate(s)?].concat();
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, sec1(x, y)?)
        .verify(message, &signature)
        .ok()
}
