//! Data that only one TPM can decrypt: a seed for its endorsement key, and the protection derived from it (TPM 2.0
//! Library, Part 1, "Protected Storage", "Credential Protection", and "Secret Sharing" in the annexes on RSA and
//! ECC).
//!
//! Credentials and keys for import use this protection. The label of the seed differs, so that a TPM cannot accept a
//! credential as a key, or a key as a credential.

use aws_lc_rs::agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree};
use aws_lc_rs::cipher::{AES_128, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rsa::{OAEP_SHA256_MGF1SHA256, OaepPublicEncryptingKey, PublicEncryptingKey};
use rand::CryptoRng;
use zeroize::Zeroizing;

use crate::kdf::{hmac, kdfa, kdfe};
use crate::public::{Kind, Name, coordinate, sec1};
use crate::signature::rsa;
use crate::template::EndorsementKey;
use crate::wire::Writer;

/// The purpose of a seed; part of its encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A credential.
    Identity,
    /// A key for import.
    Duplicate,
}

impl Purpose {
    const fn label(self) -> &'static str {
        match self {
            Self::Identity => "IDENTITY",
            Self::Duplicate => "DUPLICATE",
        }
    }

    /// The label for OAEP, with the terminating zero byte.
    const fn oaep_label(self) -> &'static [u8] {
        match self {
            Self::Identity => b"IDENTITY\0",
            Self::Duplicate => b"DUPLICATE\0",
        }
    }
}

/// Why the encryption for an endorsement key failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtectError {
    /// The public part is not a point of its curve, or not a valid RSA modulus.
    #[error("invalid endorsement key: its public part is not a point of P-256 or not an RSA modulus")]
    InvalidPublicKey,
    /// The cryptographic library failed.
    #[error("the cryptographic library failed")]
    CryptoFailed,
}

/// A seed, and its encryption for the TPM with the endorsement key: the content of TPM2B_ENCRYPTED_SECRET.
pub(crate) struct Seed {
    seed: Zeroizing<[u8; 32]>,
    /// The encrypted seed.
    pub encrypted: Vec<u8>,
}

impl Seed {
    /// Generates a seed. The random values are from `rng`, except OAEP's padding, which the cryptographic library
    /// generates.
    pub fn new<R: CryptoRng + ?Sized>(
        for_key: &EndorsementKey,
        purpose: Purpose,
        rng: &mut R,
    ) -> Result<Self, ProtectError> {
        match &for_key.public().kind {
            Kind::Rsa { modulus, .. } => Self::by_rsa(modulus, purpose, rng),
            Kind::EccP256 { x, y, .. } => Self::by_ecdh(x, y, purpose, rng),
            Kind::KeyedHash { .. } => Err(ProtectError::InvalidPublicKey),
        }
    }

    fn by_rsa<R: CryptoRng + ?Sized>(
        modulus: &[u8],
        purpose: Purpose,
        rng: &mut R,
    ) -> Result<Self, ProtectError> {
        let mut seed = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *seed);
        let key: PublicEncryptingKey = rsa(modulus)
            .try_into()
            .map_err(|_| ProtectError::InvalidPublicKey)?;
        let key = OaepPublicEncryptingKey::new(key).map_err(|_| ProtectError::InvalidPublicKey)?;
        let mut encrypted = vec![0; key.ciphertext_size()];
        let length = key
            .encrypt(
                &OAEP_SHA256_MGF1SHA256,
                &*seed,
                &mut encrypted,
                Some(purpose.oaep_label()),
            )
            .map_err(|_| ProtectError::CryptoFailed)?
            .len();
        encrypted.truncate(length);
        Ok(Self { seed, encrypted })
    }

    fn by_ecdh<R: CryptoRng + ?Sized>(
        x: &[u8],
        y: &[u8],
        purpose: Purpose,
        rng: &mut R,
    ) -> Result<Self, ProtectError> {
        let ephemeral = ephemeral_key(rng);
        let public = ephemeral
            .compute_public_key()
            .map_err(|_| ProtectError::CryptoFailed)?;
        let (own_x, own_y) = public
            .as_ref()
            .get(1..)
            .and_then(|point| point.split_at_checked(32))
            .ok_or(ProtectError::CryptoFailed)?;
        let peer = sec1(x, y).ok_or(ProtectError::InvalidPublicKey)?;
        let peer_x = coordinate(x).ok_or(ProtectError::InvalidPublicKey)?;
        let seed = agree(
            &ephemeral,
            UnparsedPublicKey::new(&ECDH_P256, peer),
            ProtectError::InvalidPublicKey,
            |shared_x| Ok(kdfe(shared_x, purpose.label(), own_x, &peer_x)),
        )?;
        let encrypted = Writer::new().sized_buffer(own_x).sized_buffer(own_y).into_bytes();
        Ok(Self { seed, encrypted })
    }

    /// Encrypts `plain` and binds it to `name`. Returns the content of TPM2B_ID_OBJECT, or of TPM2B_PRIVATE for import.
    pub fn protect(&self, name: &Name, plain: &[u8]) -> Result<Vec<u8>, ProtectError> {
        let key = kdfa::<16>(&self.seed, "STORAGE", name.as_bytes(), &[]);
        let mut encrypted = plain.to_vec();
        encrypt_cfb(&key, &mut encrypted)?;
        let integrity_key = kdfa::<32>(&self.seed, "INTEGRITY", &[], &[]);
        let integrity = hmac(&integrity_key, &[&encrypted, name.as_bytes()]);
        Ok(Writer::new()
            .sized_buffer(&integrity)
            .bytes(&encrypted)
            .into_bytes())
    }
}

/// Generates a key for one exchange. About one random number in 2^32 is not a valid key; the function then draws another
/// number.
fn ephemeral_key<R: CryptoRng + ?Sized>(rng: &mut R) -> PrivateKey {
    let mut number = Zeroizing::new([0; 32]);
    loop {
        rng.fill_bytes(&mut *number);
        if let Ok(key) = PrivateKey::from_private_key(&ECDH_P256, &*number) {
            return key;
        }
    }
}

/// Encrypts with AES-128 in CFB mode and a zero IV, which is secure because each key encrypts only once.
fn encrypt_cfb(key: &[u8; 16], in_out: &mut [u8]) -> Result<(), ProtectError> {
    let key = UnboundCipherKey::new(&AES_128, key).map_err(|_| ProtectError::CryptoFailed)?;
    let zero_iv = EncryptionContext::Iv128(FixedLength::from([0; 16]));
    EncryptingKey::cfb128(key)
        .and_then(|key| key.less_safe_encrypt(in_out, zero_iv))
        .map(drop)
        .map_err(|_| ProtectError::CryptoFailed)
}
