//! How a device's attestation key gets into its TPM, and how the controller knows that it did. No I/O: messages go in and out.
//!
//! ```text
//! device                                                    controller
//!   Identity: endorsement key, certificate, attestation key, PCRs  ──►   who made the TPM? which state?
//!   ◄──  Offer: credential, key k wrapped with its policy, nonce         draws k, secret, nonce
//!   TPM2_ActivateCredential, TPM2_Import, TPM2_Quote, TPM2_HMAC
//!   Answer: proof of activation, quote, HMAC under k               ──►   Enrolled
//! ```
//!
//! What each part shows: the *certificate*, that the endorsement key is a TPM's; the *activation*, that the attestation key lies in
//! that same TPM (it gives the secret out only while an object of that name is loaded, and the name covers fixedTPM and
//! restricted); the *quote*, that this TPM holds the PCRs that the device told; the *HMAC*, that k arrived there and that its policy is
//! met. The nonce makes all of them new.
//!
//! Not decided here: whether this device may be enrolled, under which id, and whether the PCRs are good ones. The caller says
//! by the policy which states it takes.

mod messages;

use linewarden_measurement::pcr::PcrValues;
use rand::CryptoRng;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, ZeroizeOnDrop};

use crate::credential::make_credential;
use crate::endorsement::{EkHash, Endorsement, EndorsementError, SENT_MAX, Trust};
use crate::import::wrap;
use crate::key::AttestationSecret;
use crate::policy::PcrPolicy;
use crate::protect::ProtectError;
use crate::public::Public;
use crate::quote::{QuoteError, QuoteVerified, verify_quote};
use crate::template::{AttestationSigner, EndorsementKey, TemplateError};
use crate::wire::ParseError;

pub use messages::{
    Answer, Conversation, Identity, MESSAGE_BYTES_MAX, MessageError, Offer, PcrReport, Version,
    activation_proof, from_json, key_proof_message,
};

/// How long the device has for its answer, in seconds: a slow TPM takes some of them for each key.
pub const ANSWER_SECONDS_MAX: i64 = 300;

/// Why a conversation does not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnrolError {
    /// A structure that is none.
    #[error("{key}: {error}")]
    Form {
        /// Of which key.
        key: &'static str,
        /// What is wrong.
        error: ParseError,
    },
    /// A key of the wrong kind.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// More certificates than any path has.
    #[error("{0} certificates; a device sends at most {max}", max = SENT_MAX + 1)]
    Certificates(usize),
    /// Not a TPM's. The key is named, for an operator may know it and pin it.
    #[error("{error} (SHA-256 of the endorsement key: {key})")]
    Endorsement {
        /// Which key.
        key: EkHash,
        /// Why nobody vouches for it.
        error: EndorsementError,
    },
    /// The device's state is none of those that the key would be bound to.
    #[error("the device's PCRs are in no state that the policy takes")]
    State,
    /// Nothing could be encrypted for the key.
    #[error(transparent)]
    Protect(#[from] ProtectError),
    /// An answer of another conversation.
    #[error("the answer belongs to another conversation")]
    Conversation,
    /// A second answer.
    #[error("this conversation has had its answer: the device is enrolled")]
    Finished,
    /// An answer that comes late.
    #[error("the answer came {0} s after the offer; it has {ANSWER_SECONDS_MAX} s")]
    Late(i64),
    /// The credential was not opened.
    #[error("the credential was not opened: endorsement key and attestation key are not in one TPM")]
    Activation,
    /// The quote shows nothing.
    #[error(transparent)]
    Quote(#[from] QuoteError),
    /// The HMAC is not k's.
    #[error("the HMAC is not that of the key: it did not arrive in the TPM")]
    KeyProof,
}

/// What the controller remembers between offer and answer. Secret: it holds k. Wiped when dropped.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    version: Version,
    conversation: Conversation,
    offered_s: i64,
    secrets: Secrets,
    binding: Pending,
    finished: bool,
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

/// All of a [`Binding`] but what the quote tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    endorsement_key: EkHash,
    endorsement: Endorsement,
    #[serde(with = "crate::encoding::base64_bytes")]
    attestation_key: Vec<u8>,
    policy: PcrPolicy,
    pcrs: PcrReport,
}

/// To which TPM a device's key is bound, and how that TPM was when it was. Public.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The endorsement key.
    pub endorsement_key: EkHash,
    /// What shows that it is a TPM's.
    pub endorsement: Endorsement,
    /// The attestation key: TPM2B_PUBLIC.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub attestation_key: Vec<u8>,
    /// The states in which k may be used.
    pub policy: PcrPolicy,
    /// The state at enrolment.
    pub pcrs: PcrReport,
    /// Clock, counts of starts and firmware at enrolment.
    pub quote: QuoteVerified,
}

/// An enrolled device: its key, and where it lies.
#[derive(Clone, Debug)]
pub struct Enrolled {
    /// k.
    pub key: AttestationSecret,
    /// Where it lies.
    pub binding: Binding,
}

/// Answers an [`Identity`]: checks the keys and the certificate, draws k and wraps it for that TPM.
///
/// `policy` says in which states k may be used; the device's present one must be among them. `now_s` is Unix time in seconds.
///
/// # Errors
/// Keys that are none or of the wrong kind, a TPM that nobody vouches for, a state that is not taken.
pub fn offer<R: CryptoRng + ?Sized>(
    identity: &Identity,
    trust: &Trust,
    policy: PcrPolicy,
    now_s: i64,
    rng: &mut R,
) -> Result<(Offer, Enrolment), EnrolError> {
    let endorsement_key = EndorsementKey::new(read("the endorsement key", &identity.endorsement_key)?)?;
    let signer = AttestationSigner::new(read("the attestation key", &identity.attestation_key)?)?;
    if identity.certificates.len() > SENT_MAX + 1 {
        return Err(EnrolError::Certificates(identity.certificates.len()));
    }
    let endorsement = trust
        .check(&endorsement_key, &identity.certificates, now_s)
        .map_err(|error| EnrolError::Endorsement {
            key: EkHash::of(&endorsement_key),
            error,
        })?;
    if !policy.accepts(&identity.pcrs.0) {
        return Err(EnrolError::State);
    }
    let secrets = Secrets::drawn(rng);
    let mut conversation = Conversation([0; 16]);
    rng.fill_bytes(&mut conversation.0);
    let name = signer.public().name();
    let credential = make_credential(&endorsement_key, &name, &secrets.credential, rng)?;
    let wrapped = wrap(&endorsement_key, &secrets.key, &policy, rng)?;
    let offer = Offer {
        version: Version,
        conversation,
        credential: credential.id_object,
        credential_seed: credential.encrypted_secret,
        key: wrapped.public.to_sized(),
        key_duplicate: wrapped.duplicate,
        key_seed: wrapped.encrypted_seed,
        policy: policy.clone(),
        nonce: secrets.nonce,
    };
    let enrolment = Enrolment {
        version: Version,
        conversation,
        offered_s: now_s,
        secrets,
        binding: Pending {
            endorsement_key: EkHash::of(&endorsement_key),
            endorsement,
            attestation_key: identity.attestation_key.clone(),
            policy,
            pcrs: identity.pcrs.clone(),
        },
        finished: false,
    };
    Ok((offer, enrolment))
}

impl Secrets {
    fn drawn<R: CryptoRng + ?Sized>(rng: &mut R) -> Self {
        let mut draw = || {
            let mut bytes = [0; 32];
            rng.fill_bytes(&mut bytes);
            bytes
        };
        let mut key = draw();
        let secrets = Self {
            credential: draw(),
            key: AttestationSecret::new(key),
            nonce: draw(),
        };
        key.zeroize();
        secrets
    }
}

impl Enrolment {
    /// Which conversation.
    pub const fn conversation(&self) -> Conversation {
        self.conversation
    }

    /// Checks the answer. Once: a second answer is refused, the same one too; a wrong one changes nothing, so that nobody can end a
    /// conversation of others.
    ///
    /// # Errors
    /// Each way in which the TPM has not proved what it should.
    pub fn finish(&mut self, answer: &Answer, now_s: i64) -> Result<Enrolled, EnrolError> {
        if answer.conversation != self.conversation {
            return Err(EnrolError::Conversation);
        }
        if self.finished {
            return Err(EnrolError::Finished);
        }
        match now_s.saturating_sub(self.offered_s) {
            0..=ANSWER_SECONDS_MAX => {}
            late => return Err(EnrolError::Late(late)),
        }
        let Secrets {
            credential,
            key,
            nonce,
        } = &self.secrets;
        if !bool::from(activation_proof(credential, nonce).ct_eq(&answer.activation)) {
            return Err(EnrolError::Activation);
        }
        let signer = AttestationSigner::new(read("the attestation key", &self.binding.attestation_key)?)?;
        let values: &PcrValues = &self.binding.pcrs.0;
        let selected = (values.bank(), values.selection());
        let quote = verify_quote(&signer, &answer.quote, &answer.signature, nonce, selected, values)?;
        if !bool::from(key.hmac(&key_proof_message(nonce)).ct_eq(&answer.key_proof)) {
            return Err(EnrolError::KeyProof);
        }
        self.finished = true;
        let pending = self.binding.clone();
        Ok(Enrolled {
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

fn read(key: &'static str, bytes: &[u8]) -> Result<Public, EnrolError> {
    Public::from_sized(bytes).map_err(|error| EnrolError::Form { key, error })
}
