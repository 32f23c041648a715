//! Enrollment of a device's attestation key into its TPM, with proof for the controller. Functions take and return messages,
//! without I/O.
//!
//! ```text
//! device                                                    controller
//!   Identity: endorsement key, certificate, attestation key, PCRs  ──►   checks manufacturer and state
//!   ◄──  KeyOffer: credential, key k wrapped with its policy, nonce      draws k, secret, nonce
//!   TPM2_ActivateCredential, TPM2_Import, TPM2_Quote, TPM2_HMAC
//!   OfferResponse: proof of activation, quote, HMAC under k        ──►   EnrolledDevice
//! ```
//!
//! Each part proves one property. The *certificate*: the endorsement key belongs to a TPM. The *activation*: the attestation
//! key is in the same TPM (the TPM decrypts the secret only while the object with that name is loaded, and the name covers
//! fixedTPM and restricted). The *quote*: this TPM has the reported PCRs. The *HMAC*: this TPM has k, and the policy of k is met.
//! The nonce proves that activation, quote and HMAC are fresh.
//!
//! The caller decides whether this device may be enrolled, and under which id. The caller also defines the accepted PCR
//! states, by the policy.

mod messages;

use linewarden_measurement::pcr::PcrValues;
use rand::CryptoRng;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, ZeroizeOnDrop};

use crate::credential::make_credential;
use crate::endorsement::{EkHash, Endorsement, EndorsementError, EndorsementTrust, SENT_CERTIFICATES_MAX};
use crate::import::wrap;
use crate::key::AttestationSecret;
use crate::policy::PcrPolicy;
use crate::protect::ProtectError;
use crate::public::Public;
use crate::quote::{QuoteError, VerifiedQuote, verify_quote};
use crate::template::{AttestationSigner, EndorsementKey, TemplateError};
use crate::wire::ParseError;

pub use messages::{
    EnrollmentId, Identity, KeyOffer, MESSAGE_BYTES_MAX, MessageError, OfferResponse, PcrReport, Version,
    activation_proof, from_json, key_proof_message,
};

/// Time limit for the device's response, seconds. A slow TPM needs several seconds for each key.
pub const RESPONSE_TIMEOUT_S: i64 = 300;

/// Why an enrollment failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnrollError {
    /// A key is not a valid TPM structure.
    #[error("{key}: {error}")]
    InvalidStructure {
        /// The key.
        key: &'static str,
        /// The error of the parser.
        error: ParseError,
    },
    /// A key of the wrong type.
    #[error(transparent)]
    WrongKeyType(#[from] TemplateError),
    /// More certificates than a path can have.
    #[error("too many certificates: {0}, the maximum is {max}", max = SENT_CERTIFICATES_MAX + 1)]
    TooManyCertificates(usize),
    /// The key does not belong to a trusted TPM. The message contains the hash of the key, so that an operator can pin the
    /// key.
    #[error("{error} (SHA-256 of the endorsement key: {key})")]
    UntrustedEndorsement {
        /// The hash of the key.
        key: EkHash,
        /// Why the key is not trusted.
        error: EndorsementError,
    },
    /// The state of the device is not one of those in the policy.
    #[error("enrollment rejected: the device's PCRs match no state of the policy")]
    StateNotAccepted,
    /// Encryption for the key failed.
    #[error(transparent)]
    EncryptionFailed(#[from] ProtectError),
    /// The response belongs to another enrollment.
    #[error("response rejected: it belongs to another enrollment")]
    WrongEnrollment,
    /// A valid response has already ended the enrollment.
    #[error("response rejected: the device is already enrolled")]
    AlreadyFinished,
    /// The response arrived too late, or, by the clock, before the offer. The value is the time since the offer,
    /// seconds.
    #[error("response rejected: it arrived {0} s after the offer; the limit is {RESPONSE_TIMEOUT_S} s")]
    ResponseTooLate(i64),
    /// The credential was not decrypted.
    #[error("credential was not activated: endorsement key and attestation key are not in the same TPM")]
    CredentialNotActivated,
    /// The quote does not verify.
    #[error(transparent)]
    InvalidQuote(#[from] QuoteError),
    /// The HMAC does not verify.
    #[error("key proof does not verify: the TPM does not have the key")]
    InvalidKeyProof,
}

/// The controller's state between offer and response. Secret, because it contains k; wiped on drop.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrollment {
    version: Version,
    enrollment_id: EnrollmentId,
    offered_s: i64,
    secrets: Secrets,
    binding: PendingBinding,
    is_finished: bool,
}

#[derive(Clone, Serialize, Deserialize, ZeroizeOnDrop)]
#[serde(deny_unknown_fields)]
struct Secrets {
    #[serde(with = "crate::encoding::hex_array")]
    credential: [u8; 32],
    key: AttestationSecret,
    #[serde(with = "crate::encoding::hex_array")]
    nonce: [u8; 32],
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

/// A [`Binding`] without the quote.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingBinding {
    endorsement_key: EkHash,
    endorsement: Endorsement,
    #[serde(with = "crate::encoding::base64_bytes")]
    attestation_key: Vec<u8>,
    policy: PcrPolicy,
    pcrs: PcrReport,
}

/// The TPM to which a device's key is bound, and the state of the TPM at the enrollment. Public.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The endorsement key.
    pub endorsement_key: EkHash,
    /// The endorsement of the endorsement key.
    pub endorsement: Endorsement,
    /// The attestation key: TPM2B_PUBLIC.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub attestation_key: Vec<u8>,
    /// The states in which k may be used.
    pub policy: PcrPolicy,
    /// The PCR values at the enrollment.
    pub pcrs: PcrReport,
    /// Clock, start counters and firmware at the enrollment.
    pub quote: VerifiedQuote,
}

/// An enrolled device: its key and its TPM.
#[derive(Clone, Debug)]
pub struct EnrolledDevice {
    /// The device key k.
    pub key: AttestationSecret,
    /// The TPM of the key.
    pub binding: Binding,
}

/// Responds to an [`Identity`]: checks the keys and the certificate, generates k, and wraps k for this TPM.
///
/// `policy` defines the states in which k may be used; the device's current state must be one of them. `now_s` is
/// Unix time in seconds.
///
/// # Errors
/// Invalid keys or keys of the wrong type, an untrusted TPM, a state that the policy does not accept.
pub fn offer<R: CryptoRng + ?Sized>(
    identity: &Identity,
    trust: &EndorsementTrust,
    policy: PcrPolicy,
    now_s: i64,
    rng: &mut R,
) -> Result<(KeyOffer, Enrollment), EnrollError> {
    let endorsement_key =
        EndorsementKey::new(parse_public("the endorsement key", &identity.endorsement_key)?)?;
    let signer = AttestationSigner::new(parse_public("the attestation key", &identity.attestation_key)?)?;
    if identity.certificates.len() > SENT_CERTIFICATES_MAX + 1 {
        return Err(EnrollError::TooManyCertificates(identity.certificates.len()));
    }
    let endorsement = trust
        .check(&endorsement_key, &identity.certificates, now_s)
        .map_err(|error| EnrollError::UntrustedEndorsement {
            key: EkHash::of_key(&endorsement_key),
            error,
        })?;
    if !policy.accepts(&identity.pcrs.0) {
        return Err(EnrollError::StateNotAccepted);
    }
    let secrets = Secrets::random(rng);
    let mut enrollment_id = EnrollmentId([0; 16]);
    rng.fill_bytes(&mut enrollment_id.0);
    let name = signer.public().name();
    let credential = make_credential(&endorsement_key, &name, &secrets.credential, rng)?;
    let wrapped = wrap(&endorsement_key, &secrets.key, &policy, rng)?;
    let offer = KeyOffer {
        version: Version,
        enrollment_id,
        credential: credential.id_object,
        credential_seed: credential.encrypted_secret,
        key: wrapped.public.to_sized(),
        key_duplicate: wrapped.duplicate,
        key_seed: wrapped.encrypted_seed,
        policy: policy.clone(),
        nonce: secrets.nonce,
    };
    let enrollment = Enrollment {
        version: Version,
        enrollment_id,
        offered_s: now_s,
        secrets,
        binding: PendingBinding {
            endorsement_key: EkHash::of_key(&endorsement_key),
            endorsement,
            attestation_key: identity.attestation_key.clone(),
            policy,
            pcrs: identity.pcrs.clone(),
        },
        is_finished: false,
    };
    Ok((offer, enrollment))
}

impl Secrets {
    fn random<R: CryptoRng + ?Sized>(rng: &mut R) -> Self {
        let mut random_bytes = || {
            let mut bytes = [0; 32];
            rng.fill_bytes(&mut bytes);
            bytes
        };
        let mut key = random_bytes();
        let secrets = Self {
            credential: random_bytes(),
            key: AttestationSecret::new(key),
            nonce: random_bytes(),
        };
        key.zeroize();
        secrets
    }
}

impl Enrollment {
    /// The id of the enrollment.
    pub const fn enrollment_id(&self) -> EnrollmentId {
        self.enrollment_id
    }

    /// Checks the response. After a valid response, any further response is refused, even an identical one. An invalid
    /// response does not end the enrollment, so that an attacker cannot prevent the enrollment of a device.
    ///
    /// # Errors
    /// The response belongs to another enrollment, follows a valid response or is too late, or one of its proofs is wrong.
    pub fn finish(&mut self, response: &OfferResponse, now_s: i64) -> Result<EnrolledDevice, EnrollError> {
        if response.enrollment_id != self.enrollment_id {
            return Err(EnrollError::WrongEnrollment);
        }
        if self.is_finished {
            return Err(EnrollError::AlreadyFinished);
        }
        match now_s.saturating_sub(self.offered_s) {
            0..=RESPONSE_TIMEOUT_S => {}
            age_s => return Err(EnrollError::ResponseTooLate(age_s)),
        }
        let Secrets {
            credential,
            key,
            nonce,
        } = &self.secrets;
        if !bool::from(activation_proof(credential, nonce).ct_eq(&response.activation)) {
            return Err(EnrollError::CredentialNotActivated);
        }
        let signer = AttestationSigner::new(parse_public(
            "the attestation key",
            &self.binding.attestation_key,
        )?)?;
        let values: &PcrValues = &self.binding.pcrs.0;
        let selected = (values.bank(), values.selection());
        let quote = verify_quote(
            &signer,
            &response.quote,
            &response.signature,
            nonce,
            selected,
            values,
        )?;
        if !bool::from(key.hmac(&key_proof_message(nonce)).ct_eq(&response.key_proof)) {
            return Err(EnrollError::InvalidKeyProof);
        }
        self.is_finished = true;
        let pending = self.binding.clone();
        Ok(EnrolledDevice {
            key: key.clone(),
            binding: Binding {
                endorsement_key: pending.endorsement_key,
                endorsement: pending.endorsement,
                attestation_key: pending.attestation_key,
                policy: pending.policy,
                pcrs: pending.pcrs,
                quote,
            },
        })
    }
}

fn parse_public(key: &'static str, bytes: &[u8]) -> Result<Public, EnrollError> {
    Public::from_sized(bytes).map_err(|error| EnrollError::InvalidStructure { key, error })
}
