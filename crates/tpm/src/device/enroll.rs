//! The device side of an enrollment.

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use tss_esapi::handles::KeyHandle;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    Data, EncryptedSecret, IdObject, Private, SignatureScheme, SymmetricDefinitionObject,
};
use tss_esapi::traits::Marshall as _;
use zeroize::Zeroizing;

use super::connection::{Tpm, invalid_result};
use super::error::TpmError;
use super::keys::{AK, Blob, BoundKey, EK, KEY, KeyBlobs, to_tss};
use super::pcrs::selection_list;
use crate::attest::Quote;
use crate::enroll::{
    Identity, KeyOffer, OfferResponse, PcrReport, Version, activation_proof, key_proof_message,
};
use crate::import::is_bound_key;
use crate::policy::digest;
use crate::public::Public;
use crate::quote::Nonce;
use crate::wire::ParseError;

/// Maximum number of attempts to read and quote PCRs, if the PCRs change in between.
const QUOTE_ATTEMPTS_MAX: usize = 3;
const QUOTE: &str = "TPM2_Quote";

/// Why an offer is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// The offered key is invalid.
    #[error("invalid key in the offer: {0}")]
    InvalidKey(#[from] ParseError),
    /// The offered key permits another use than HMAC under the policy in the offer.
    #[error("key in the offer rejected: it is not an HMAC key bound to the policy in the offer")]
    WrongKeyUse,
    /// The TPM failed.
    #[error(transparent)]
    Tpm(#[from] TpmError),
}

/// A quote and the quoted values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuoteWithValues {
    /// TPMS_ATTEST.
    pub attest: Vec<u8>,
    /// TPMT_SIGNATURE.
    pub signature: Vec<u8>,
    /// The quoted values.
    pub values: PcrValues,
}

impl Tpm {
    /// The device's first message: the TPM's keys and certificate, and the current values of the PCRs to which the
    /// device key k will be bound.
    ///
    /// # Errors
    /// The TPM failed.
    pub fn identity(
        &mut self,
        blobs: &KeyBlobs,
        bank: HashAlgorithm,
        selection: PcrSelection,
        event_log: Option<Vec<u8>>,
    ) -> Result<Identity, TpmError> {
        let endorsement_key = self.with_ek(blobs.endorsement, |_, _, public| Ok(public.to_sized()))?;
        Ok(Identity {
            version: Version,
            endorsement_key,
            certificates: self.endorsement_certificates(blobs.endorsement)?,
            attestation_key: blobs.attestation_key.public.clone(),
            pcrs: PcrReport(self.pcrs(bank, selection)?),
            event_log,
        })
    }

    /// Accepts the controller's offer: activates the credential, imports the key, and proves both.
    ///
    /// The caller must store the key in a file before sending the response. Before the response is sent, the call may be
    /// repeated with the same offer, for example after the TPM was unavailable.
    ///
    /// # Errors
    /// The offer is invalid, the TPM failed, or the current PCRs do not match the policy of the key.
    pub fn accept(
        &mut self,
        blobs: &KeyBlobs,
        offer: &KeyOffer,
    ) -> Result<(BoundKey, OfferResponse), AcceptError> {
        let public = Public::from_sized(&offer.key)?;
        if !is_bound_key(&public, &offer.policy) {
            return Err(AcceptError::WrongKeyUse);
        }
        let secret = self.with_ek(blobs.endorsement, |tpm, ek, _| {
            let ak = tpm.load(ek, AK, &blobs.attestation_key)?;
            tpm.with_loaded(ak.into(), AK, |tpm, _| tpm.activate(ek, ak, offer))
        })?;
        let (blob, key_proof) = self.with_ek(blobs.endorsement, |tpm, ek, _| {
            let private = tpm.import(ek, &public, offer)?;
            let blob = Blob {
                public: offer.key.clone(),
                private,
            };
            let key = tpm.load(ek, KEY, &blob)?;
            tpm.with_loaded(key.into(), KEY, |tpm, key| {
                let proof = tpm.hmac_with(key, &offer.policy, &key_proof_message(&offer.nonce))?;
                Ok((blob, proof))
            })
        })?;
        let quote = self.quote(blobs, &offer.nonce, offer.policy.bank(), offer.policy.selection())?;
        let response = OfferResponse {
            version: Version,
            enrollment_id: offer.enrollment_id,
            activation: activation_proof(&secret, &offer.nonce),
            quote: quote.attest,
            signature: quote.signature,
            key_proof,
        };
        let policy = offer.policy.clone();
        Ok((BoundKey { blob, policy }, response))
    }

    /// Quotes these PCRs and returns the quote with the quoted values. If a PCR changes between reading and quoting, the
    /// function reads and quotes again, up to three times in total.
    ///
    /// # Errors
    /// The TPM failed, or the PCRs keep changing.
    pub fn quote(
        &mut self,
        blobs: &KeyBlobs,
        nonce: &Nonce,
        bank: HashAlgorithm,
        selection: PcrSelection,
    ) -> Result<QuoteWithValues, TpmError> {
        self.with_ak(blobs, |tpm, ak| {
            for _ in 0..QUOTE_ATTEMPTS_MAX {
                let values = tpm.pcrs(bank, selection)?;
                let (attest, signature) = tpm.quote_once(ak, nonce, bank, selection)?;
                let quote = Quote::from_bytes(&attest).map_err(|error| invalid_result(QUOTE, AK, error))?;
                if quote.pcr_digest == digest(&values) {
                    return Ok(QuoteWithValues {
                        attest,
                        signature,
                        values,
                    });
                }
            }
            Err(invalid_result(QUOTE, AK, "the PCRs keep changing"))
        })
    }

    fn quote_once(
        &mut self,
        ak: KeyHandle,
        nonce: &Nonce,
        bank: HashAlgorithm,
        selection: PcrSelection,
    ) -> Result<(Vec<u8>, Vec<u8>), TpmError> {
        let (attest, signature) = self.run_with_empty_password(QUOTE, AK, |context| {
            context.quote(
                ak,
                Data::try_from(&nonce[..])?,
                SignatureScheme::Null,
                selection_list(bank, selection)?,
            )
        })?;
        let bytes = attest
            .marshall()
            .and_then(|attest| Ok((attest, signature.marshall()?)));
        bytes.map_err(|error| TpmError::new(QUOTE, AK, error))
    }

    fn activate(
        &mut self,
        ek: KeyHandle,
        ak: KeyHandle,
        offer: &KeyOffer,
    ) -> Result<Zeroizing<[u8; 32]>, TpmError> {
        const ACTIVATE: &str = "TPM2_ActivateCredential";
        let invalid = |error: tss_esapi::Error| invalid_result(ACTIVATE, EK, error);
        let credential = IdObject::try_from(&offer.credential[..]).map_err(invalid)?;
        let seed = EncryptedSecret::try_from(&offer.credential_seed[..]).map_err(invalid)?;
        let secret = self.with_endorsement(|tpm, session| {
            tpm.run(ACTIVATE, EK, |context| {
                let sessions = (Some(AuthSession::Password), Some(session), None);
                context.execute_with_sessions(sessions, |context| {
                    context.activate_credential(ak, ek, credential.clone(), seed.clone())
                })
            })
        })?;
        let secret = <[u8; 32]>::try_from(secret.value());
        secret
            .map(Zeroizing::new)
            .map_err(|_| invalid_result(ACTIVATE, EK, "the credential is not 32 bytes long"))
    }

    fn import(&mut self, ek: KeyHandle, public: &Public, offer: &KeyOffer) -> Result<Vec<u8>, TpmError> {
        const IMPORT: &str = "TPM2_Import";
        let invalid = |error: tss_esapi::Error| invalid_result(IMPORT, KEY, error);
        let duplicate = Private::try_from(&offer.key_duplicate[..]).map_err(invalid)?;
        let seed = EncryptedSecret::try_from(&offer.key_seed[..]).map_err(invalid)?;
        let private = self.with_endorsement(|tpm, session| {
            tpm.run(IMPORT, KEY, |context| {
                let public = to_tss(public)?;
                context.execute_with_session(Some(session), |context| {
                    let no_inner_wrapping = SymmetricDefinitionObject::Null;
                    context.import(
                        ek.into(),
                        None,
                        public,
                        duplicate.clone(),
                        seed.clone(),
                        no_inner_wrapping,
                    )
                })
            })
        })?;
        Ok(private.value().to_vec())
    }
}
