//! A key that signs what a data plane says of itself (statements of `linewarden-evidence`).
//!
//! An attestation key would not do: it is restricted, and signs only what its TPM has hashed itself, 1,024 bytes at most.

use linewarden_evidence::keys::{KeyError, PublicKey, Signer};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tss_esapi::constants::tss::TPM2_RH_NULL;
use tss_esapi::constants::tss::TPM2_ST_HASHCHECK;
use tss_esapi::handles::KeyHandle;
use tss_esapi::structures::{Digest, HashcheckTicket, SignatureScheme};
use tss_esapi::traits::Marshall as _;
use tss_esapi::tss2_esys::TPMT_TK_HASHCHECK;

use super::connection::{Tpm, unusable};
use super::error::TpmError;
use super::keys::{Blob, EndorsementKind, for_stack, own_form};
use crate::enrol::Version;
use crate::public::{Attributes, Kind, Public, Scheme, Symmetric, coordinate, sec1};
use crate::signature::Signature;
use linewarden_measurement::HashAlgorithm;

const KEY: &str = "the evidence key";

/// A signing key that the TPM has encrypted for itself: of no use without this very TPM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigningBlob {
    version: Version,
    endorsement: EndorsementKind,
    key: Blob,
}

/// ECDSA on P-256, drawn by its TPM, never to leave it; it signs any digest.
fn template() -> Public {
    Public {
        name_alg: HashAlgorithm::Sha256,
        attributes: Attributes::FIXED_TPM
            .and(Attributes::FIXED_PARENT)
            .and(Attributes::SENSITIVE_DATA_ORIGIN)
            .and(Attributes::USER_WITH_AUTH)
            // As for attestation keys: there is no password to guess.
            .and(Attributes::NO_DA)
            .and(Attributes::SIGN),
        auth_policy: Vec::new(),
        kind: Kind::EccP256 {
            symmetric: Symmetric::Null,
            scheme: Scheme::Ecdsa(HashAlgorithm::Sha256),
            x: vec![0; 32],
            y: vec![0; 32],
        },
    }
}

impl Tpm {
    /// Makes a key that signs evidence, under this endorsement key.
    ///
    /// # Errors
    /// The TPM failed.
    pub fn create_signing_key(&mut self, endorsement: EndorsementKind) -> Result<SigningBlob, TpmError> {
        const CREATE: &str = "TPM2_Create";
        let created = self.with_ek(endorsement, |tpm, parent, _| {
            tpm.with_endorsement(|tpm, session| {
                tpm.run(CREATE, KEY, |context| {
                    let template = for_stack(&template())?;
                    context.execute_with_session(Some(session), |context| {
                        context.create(parent, template, None, None, None, None)
                    })
                })
            })
        })?;
        Ok(SigningBlob {
            version: Version,
            endorsement,
            key: Blob {
                public: own_form(CREATE, KEY, &created.out_public)?.to_sized(),
                private: created.out_private.value().to_vec(),
            },
        })
    }
}

/// The key, loaded in its TPM. It stays loaded until this is dropped.
#[derive(Debug)]
pub struct TpmSigner {
    tpm: Tpm,
    handle: KeyHandle,
    public: PublicKey,
}

impl TpmSigner {
    /// Loads it.
    ///
    /// # Errors
    /// The TPM failed, or the blob is another TPM's.
    pub fn load(mut tpm: Tpm, blob: &SigningBlob) -> Result<Self, TpmError> {
        const LOAD: &str = "TPM2_Load";
        let public = Public::from_sized(&blob.key.public).map_err(|error| unusable(LOAD, KEY, error))?;
        let point = match &public.kind {
            Kind::EccP256 { x, y, .. } => sec1(x, y),
            _ => None,
        };
        let point = point.ok_or_else(|| unusable(LOAD, KEY, "it is no key on P-256"))?;
        let handle = tpm.with_ek(blob.endorsement, |tpm, ek, _| tpm.load(ek, KEY, &blob.key))?;
        Ok(Self {
            tpm,
            handle,
            public: PublicKey::EcdsaP256(point),
        })
    }

    fn sign_digest(&mut self, digest: &[u8; 32]) -> Result<[u8; 64], TpmError> {
        const SIGN: &str = "TPM2_Sign";
        let handle = self.handle;
        let signature = self.tpm.run_plain(SIGN, KEY, |context| {
            // A key that is not restricted signs whatever it is given; the ticket says that.
            let ticket = HashcheckTicket::try_from(TPMT_TK_HASHCHECK {
                tag: TPM2_ST_HASHCHECK,
                hierarchy: TPM2_RH_NULL,
                digest: Default::default(),
            })?;
            context.sign(
                handle,
                Digest::try_from(&digest[..])?,
                SignatureScheme::Null,
                ticket,
            )
        })?;
        let bytes = signature
            .marshall()
            .map_err(|error| TpmError::new(SIGN, KEY, error))?;
        let signature = Signature::from_bytes(&bytes).map_err(|error| unusable(SIGN, KEY, error))?;
        let halves = match &signature {
            Signature::Ecdsa { r, s, .. } => coordinate(r).zip(coordinate(s)),
            _ => None,
        };
        let (r, s) = halves.ok_or_else(|| unusable(SIGN, KEY, "its signature is none on P-256"))?;
        let mut signature = [0; 64];
        let (first, second) = signature.split_at_mut(32);
        first.copy_from_slice(&r);
        second.copy_from_slice(&s);
        Ok(signature)
    }
}

impl Signer for TpmSigner {
    fn public_key(&self) -> PublicKey {
        self.public
    }

    fn sign(&mut self, message: &[u8]) -> Result<[u8; 64], KeyError> {
        let digest = Sha256::digest(message).into();
        self.sign_digest(&digest)
            .map_err(|error| KeyError::Sign(error.to_string()))
    }
}
