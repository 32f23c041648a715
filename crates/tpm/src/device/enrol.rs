//! The device's part of the conversation with a controller.

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use tss_esapi::handles::KeyHandle;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    Data, EncryptedSecret, IdObject, Private, SignatureScheme, SymmetricDefinitionObject,
};
use tss_esapi::traits::Marshall as _;
use zeroize::Zeroizing;

use super::connection::{Tpm, unusable};
use super::error::TpmError;
use super::keys::{AK, Blob, BoundKey, EK, KEY, KeyBlobs, for_stack};
use super::pcrs::selection_list;
use crate::attest::Quote;
use crate::enrol::{Answer, Identity, Offer, PcrReport, Version, activation_proof, key_proof_message};
use crate::import::is_bound_key;
use crate::policy::digest;
use crate::public::Public;
use crate::quote::Nonce;
use crate::wire::ParseError;

/// How often PCRs are read and quoted anew if they change in between.
const QUOTES_MAX: usize = 3;
const QUOTE: &str = "TPM2_Quote";

/// Why an offer is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// The key offered is none.
    #[error("the key that is offered: {0}")]
    Form(#[from] ParseError),
    /// The key offered could be used otherwise than for HMAC under the policy told with it.
    #[error("the key that is offered is not one for HMAC that is bound to the policy told with it")]
    Key,
    /// The TPM failed.
    #[error(transparent)]
    Tpm(#[from] TpmError),
}

/// A quote with the values that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// TPMS_ATTEST.
    pub attest: Vec<u8>,
    /// TPMT_SIGNATURE.
    pub signature: Vec<u8>,
    /// The values that were quoted.
    pub values: PcrValues,
}

impl Tpm {
    /// The device's first message: its TPM's keys and certificate, and the PCRs that its key is to be bound to, as they are.
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

    /// Takes the controller's offer: opens the credential, imports the key, proves both.
    ///
    /// The caller keeps the key in its file before it sends the answer. Until it has sent one, it may begin again with the
    /// same offer, as after the TPM was gone.
    ///
    /// # Errors
    /// The offer is not what it should be, the TPM failed, or the PCRs have changed since the first message.
    pub fn accept(&mut self, blobs: &KeyBlobs, offer: &Offer) -> Result<(BoundKey, Answer), AcceptError> {
        let public = Public::from_sized(&offer.key)?;
        if !is_bound_key(&public, &offer.policy) {
            return Err(AcceptError::Key);
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
        let quoted = self.quote(blobs, &offer.nonce, offer.policy.bank(), offer.policy.selection())?;
        let answer = Answer {
            version: Version,
            conversation: offer.conversation,
            activation: activation_proof(&secret, &offer.nonce),
            quote: quoted.attest,
            signature: quoted.signature,
            key_proof,
        };
        let policy = offer.policy.clone();
        Ok((BoundKey { blob, policy }, answer))
    }

    /// Quotes these PCRs, with the values that were quoted: if one changes between reading and quoting, both are done again.
    ///
    /// # Errors
    /// The TPM failed, or the PCRs change all the time.
    pub fn quote(
        &mut self,
        blobs: &KeyBlobs,
        nonce: &Nonce,
        bank: HashAlgorithm,
        selection: PcrSelection,
    ) -> Result<Quoted, TpmError> {
        self.with_ak(blobs, |tpm, ak| {
            for _ in 0..QUOTES_MAX {
                let values = tpm.pcrs(bank, selection)?;
                let (attest, signature) = tpm.quote_once(ak, nonce, bank, selection)?;
                let quote = Quote::from_bytes(&attest).map_err(|error| unusable(QUOTE, AK, error))?;
                if quote.pcr_digest == digest(&values) {
                    return Ok(Quoted {
                        attest,
                        signature,
                        values,
                    });
                }
            }
            Err(unusable(QUOTE, AK, "the PCRs change all the time"))
        })
    }

    fn quote_once(
        &mut self,
        ak: KeyHandle,
        nonce: &Nonce,
        bank: HashAlgorithm,
        selection: PcrSelection,
    ) -> Result<(Vec<u8>, Vec<u8>), TpmError> {
        let (attest, signature) = self.run_plain(QUOTE, AK, |context| {
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
        offer: &Offer,
    ) -> Result<Zeroizing<[u8; 32]>, TpmError> {
        const ACTIVATE: &str = "TPM2_ActivateCredential";
        let wrong = |error: tss_esapi::Error| unusable(ACTIVATE, EK, error);
        let credential = IdObject::try_from(&offer.credential[..]).map_err(wrong)?;
        let seed = EncryptedSecret::try_from(&offer.credential_seed[..]).map_err(wrong)?;
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
            .map_err(|_| unusable(ACTIVATE, EK, "the credential is no 32 bytes"))
    }

    fn import(&mut self, ek: KeyHandle, public: &Public, offer: &Offer) -> Result<Vec<u8>, TpmError> {
        const IMPORT: &str = "TPM2_Import";
        let wrong = |error: tss_esapi::Error| unusable(IMPORT, KEY, error);
        let duplicate = Private::try_from(&offer.key_duplicate[..]).map_err(wrong)?;
        let seed = EncryptedSecret::try_from(&offer.key_seed[..]).map_err(wrong)?;
        let private = self.with_endorsement(|tpm, session| {
            tpm.run(IMPORT, KEY, |context| {
                let public = for_stack(public)?;
                context.execute_with_session(Some(session), |context| {
                    let no_inner = SymmetricDefinitionObject::Null;
                    context.import(ek.into(), None, public, duplicate.clone(), seed.clone(), no_inner)
                })
            })
        })?;
        Ok(private.value().to_vec())
    }
}
