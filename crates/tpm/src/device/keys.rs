//! Keys of the device's TPM: creation, loading, use.

use serde::{Deserialize, Serialize};
use tss_esapi::handles::{KeyHandle, ObjectHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{Digest, DigestList, MaxBuffer, Private};
use tss_esapi::traits::{Marshall as _, UnMarshall as _};
use tss_esapi::{Error, structures};

use super::connection::{Tpm, invalid_result};
use super::error::TpmError;
use super::pcrs::selection_list;
use crate::enroll::Version;
use crate::key::{AttestationKey, KeyError, MESSAGE_BYTES_MAX, Protection};
use crate::policy::PcrPolicy;
use crate::public::{Attributes, Kind, Public, Scheme, Symmetric};
use crate::template::{ATTESTATION_ATTRIBUTES, ENDORSEMENT_ATTRIBUTES, ENDORSEMENT_POLICY};
use linewarden_measurement::HashAlgorithm;

pub(super) const EK: &str = "the endorsement key";
pub(super) const AK: &str = "the attestation key";
pub(super) const KEY: &str = "the device's key";

/// The standard endorsement key templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndorsementKind {
    /// RSA 2048, template L-1: every TPM of a PC has a certificate for this key.
    Rsa2048,
    /// ECC P-256, template L-2.
    EccP256,
}

/// The signature scheme of the attestation key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignerKind {
    /// ECDSA on P-256: the fastest.
    #[default]
    EcdsaP256,
    /// RSASSA with 2,048 bits.
    Rsassa2048,
    /// RSAPSS with 2,048 bits.
    Rsapss2048,
}

/// A key encrypted by the TPM for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// TPM2B_PUBLIC.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub public: Vec<u8>,
    /// The content of TPM2B_PRIVATE.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub private: Vec<u8>,
}

/// The imported device key k, with its policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundKey {
    /// The key.
    pub blob: Blob,
    /// The PCR states in which the TPM allows the use of the key.
    pub policy: PcrPolicy,
}

/// The keys that the caller stores in a file. They are useless without this TPM; without them the device must be
/// enrolled again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyBlobs {
    /// The format version.
    pub version: Version,
    /// The type of the endorsement key, which is the parent of the other keys.
    pub endorsement: EndorsementKind,
    /// The attestation key.
    pub attestation_key: Blob,
    /// The device key k; `None` until the device is enrolled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<BoundKey>,
}

impl EndorsementKind {
    fn template(self) -> Public {
        Public {
            name_alg: HashAlgorithm::Sha256,
            attributes: ENDORSEMENT_ATTRIBUTES,
            auth_policy: ENDORSEMENT_POLICY.to_vec(),
            kind: match self {
                Self::Rsa2048 => rsa(Symmetric::AesCfb(128), Scheme::Null),
                Self::EccP256 => ecc(Symmetric::AesCfb(128), Scheme::Null),
            },
        }
    }
}

impl SignerKind {
    fn template(self) -> Public {
        const SHA256: HashAlgorithm = HashAlgorithm::Sha256;
        Public {
            name_alg: SHA256,
            // noDA: the key has no password to guess. Without noDA, the TPM would count each power loss after a use of
            // the key as a wrong password, and would lock out a machine that often loses power.
            attributes: ATTESTATION_ATTRIBUTES
                .union(Attributes::USER_WITH_AUTH)
                .union(Attributes::NO_DA),
            auth_policy: Vec::new(),
            kind: match self {
                Self::EcdsaP256 => ecc(Symmetric::Null, Scheme::Ecdsa(SHA256)),
                Self::Rsassa2048 => rsa(Symmetric::Null, Scheme::Rsassa(SHA256)),
                Self::Rsapss2048 => rsa(Symmetric::Null, Scheme::Rsapss(SHA256)),
            },
        }
    }
}

/// The RSA part of a template, with zeros in place of the key.
fn rsa(symmetric: Symmetric, scheme: Scheme) -> Kind {
    Kind::Rsa {
        symmetric,
        scheme,
        modulus: vec![0; 256],
        is_exponent_explicit: false,
    }
}

fn ecc(symmetric: Symmetric, scheme: Scheme) -> Kind {
    Kind::EccP256 {
        symmetric,
        scheme,
        x: vec![0; 32],
        y: vec![0; 32],
    }
}

/// The public area in the type of the TPM software stack.
pub(super) fn to_tss(public: &Public) -> Result<structures::Public, Error> {
    structures::Public::unmarshall(&public.to_bytes())
}

impl Tpm {
    /// Creates an attestation key as a child of this endorsement key. The device still has to be enrolled.
    ///
    /// # Errors
    /// The TPM failed.
    pub fn create_keys(&mut self, kind: EndorsementKind, signer: SignerKind) -> Result<KeyBlobs, TpmError> {
        let template = signer.template();
        let created = self.with_ek(kind, |tpm, parent, _| {
            tpm.with_endorsement(|tpm, session| {
                tpm.run("TPM2_Create", AK, |context| {
                    let template = to_tss(&template)?;
                    context.execute_with_session(Some(session), |context| {
                        context.create(parent, template, None, None, None, None)
                    })
                })
            })
        })?;
        Ok(KeyBlobs {
            version: Version,
            endorsement: kind,
            attestation_key: Blob {
                public: parse_public("TPM2_Create", AK, &created.out_public)?.to_sized(),
                private: created.out_private.value().to_vec(),
            },
            key: None,
        })
    }

    /// Creates the endorsement key, runs `operation` with the key, and flushes the key.
    pub(super) fn with_ek<T>(
        &mut self,
        kind: EndorsementKind,
        operation: impl FnOnce(&mut Self, KeyHandle, Public) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        const CREATE: &str = "TPM2_CreatePrimary";
        let template = kind.template();
        let created = self.run_with_empty_password(CREATE, EK, |context| {
            context.create_primary(Hierarchy::Endorsement, to_tss(&template)?, None, None, None, None)
        })?;
        let handle = created.key_handle;
        self.with_loaded(handle.into(), EK, |tpm, _| {
            let public = parse_public(CREATE, EK, &created.out_public)?;
            operation(tpm, handle, public)
        })
    }

    /// Loads a child of the endorsement key.
    pub(super) fn load(
        &mut self,
        parent: KeyHandle,
        object: &'static str,
        blob: &Blob,
    ) -> Result<KeyHandle, TpmError> {
        const LOAD: &str = "TPM2_Load";
        let public = Public::from_sized(&blob.public).map_err(|error| invalid_result(LOAD, object, error))?;
        let private =
            Private::try_from(&blob.private[..]).map_err(|error| invalid_result(LOAD, object, error))?;
        self.with_endorsement(|tpm, session| {
            tpm.run(LOAD, object, |context| {
                let public = to_tss(&public)?;
                context.execute_with_session(Some(session), |context| {
                    context.load(parent, private.clone(), public)
                })
            })
        })
    }

    /// Creates the endorsement key, loads the attestation key as its child, runs `operation` with the attestation key, and
    /// flushes both keys.
    pub(super) fn with_ak<T>(
        &mut self,
        blobs: &KeyBlobs,
        operation: impl FnOnce(&mut Self, KeyHandle) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let ak = self.with_ek(blobs.endorsement, |tpm, ek, _| {
            tpm.load(ek, AK, &blobs.attestation_key)
        })?;
        self.with_loaded(ak.into(), AK, |tpm, _| operation(tpm, ak))
    }

    /// Computes an HMAC with a loaded key, in a new session: the TPM checks the policy for each HMAC.
    pub(super) fn hmac_with(
        &mut self,
        key: ObjectHandle,
        policy: &PcrPolicy,
        message: &[u8],
    ) -> Result<[u8; 32], TpmError> {
        const HMAC: &str = "TPM2_HMAC";
        let message = MaxBuffer::try_from(message).map_err(|error| invalid_result(HMAC, KEY, error))?;
        let selection = selection_list(policy.bank(), policy.selection())
            .map_err(|error| invalid_result("TPM2_PolicyPCR", KEY, error))?;
        let branches =
            digest_list(&policy.branches()).map_err(|error| invalid_result("TPM2_PolicyOR", KEY, error))?;
        let digest = self.with_policy(|tpm, session| {
            tpm.run("TPM2_PolicyPCR", "a policy session", |context| {
                // Without a digest argument, the TPM extends the session with the current PCRs. TPM2_PolicyOR or TPM2_HMAC
                // then compares the session with the policy.
                context.execute_without_session(|context| {
                    context.policy_pcr(session, Digest::default(), selection.clone())
                })
            })?;
            if branches.len() > 1 {
                tpm.run("TPM2_PolicyOR", "a policy session", |context| {
                    context.execute_without_session(|context| context.policy_or(session, branches.clone()))
                })
                .map_err(TpmError::detect_pcr_mismatch)?;
            }
            tpm.run(HMAC, KEY, |context| {
                context.execute_with_session(Some(AuthSession::PolicySession(session)), |context| {
                    context.hmac(key, message.clone(), HashingAlgorithm::Sha256)
                })
            })
            .map_err(TpmError::detect_pcr_mismatch)
        })?;
        <[u8; 32]>::try_from(digest.value())
            .map_err(|_| invalid_result(HMAC, KEY, "the result is not 32 bytes long"))
    }
}

fn digest_list(digests: &[[u8; 32]]) -> Result<DigestList, Error> {
    let mut list = DigestList::new();
    for digest in digests {
        list.add(Digest::try_from(&digest[..])?)?;
    }
    Ok(list)
}

/// Parses a public area of the TPM software stack by the rules of this crate, which the controller also uses.
pub(super) fn parse_public(
    command: &'static str,
    object: &'static str,
    public: &structures::Public,
) -> Result<Public, TpmError> {
    let bytes = public
        .marshall()
        .map_err(|error| TpmError::new(command, object, error))?;
    Public::from_bytes(&bytes).map_err(|error| invalid_result(command, object, error))
}

/// The device key k, loaded in its TPM until this value is dropped.
#[derive(Debug)]
pub struct TpmKey {
    tpm: Tpm,
    handle: ObjectHandle,
    policy: PcrPolicy,
}

impl TpmKey {
    /// Loads k.
    ///
    /// # Errors
    /// The TPM failed, or the blobs belong to another TPM.
    pub fn load(mut tpm: Tpm, endorsement: EndorsementKind, key: &BoundKey) -> Result<Self, TpmError> {
        let handle = tpm.with_ek(endorsement, |tpm, ek, _| tpm.load(ek, KEY, &key.blob))?;
        Ok(Self {
            tpm,
            handle: handle.into(),
            policy: key.policy.clone(),
        })
    }

    /// The TPM, for quotes and PCRs.
    pub const fn tpm(&mut self) -> &mut Tpm {
        &mut self.tpm
    }
}

impl AttestationKey for TpmKey {
    fn hmac(&mut self, message: &[u8]) -> Result<[u8; 32], KeyError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(KeyError::TooLong(message.len()));
        }
        Ok(self.tpm.hmac_with(self.handle, &self.policy, message)?)
    }

    fn protection(&self) -> Protection {
        Protection::Tpm
    }
}
