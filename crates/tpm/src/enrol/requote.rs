//! Quotes asked for again and again of a device that is enrolled.

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use rand::CryptoRng;
use serde::{Deserialize, Serialize};

use super::messages::{QuoteAnswer, QuoteRequest, Version};
use super::{ANSWER_SECONDS_MAX, Binding};
use crate::public::Public;
use crate::quote::{QuoteError, QuoteVerified, verify_quote};
use crate::template::{AttestationSigner, TemplateError};
use crate::wire::ParseError;

/// Why an answer does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequoteError {
    /// The binding's key cannot be read: the record is damaged.
    #[error("the attestation key on record: {0}")]
    Record(ParseError),
    /// The binding's key is none: the record is damaged.
    #[error("the attestation key on record: {0}")]
    Template(#[from] TemplateError),
    /// A second answer.
    #[error("this request has had its answer")]
    Answered,
    /// An answer that comes late.
    #[error("the quote came {0} s after the request; it has {ANSWER_SECONDS_MAX} s")]
    Late(i64),
    /// The quote shows nothing.
    #[error(transparent)]
    Quote(#[from] QuoteError),
    /// The TPM counts fewer starts than before: it was cleared, or another one answers with its key.
    #[error("the TPM counts {now} starts and had counted {before} at enrolment: it was cleared since")]
    Cleared {
        /// At enrolment.
        before: u32,
        /// In this quote.
        now: u32,
    },
}

/// What the controller remembers between request and answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuoteChallenge {
    request: QuoteRequest,
    asked_s: i64,
    answered: bool,
}

impl QuoteChallenge {
    /// Asks for these PCRs. `now_s` is Unix time in seconds.
    pub fn new<R: CryptoRng + ?Sized>(
        bank: HashAlgorithm,
        selection: PcrSelection,
        now_s: i64,
        rng: &mut R,
    ) -> Self {
        let mut nonce = [0; 32];
        rng.fill_bytes(&mut nonce);
        let request = QuoteRequest {
            version: Version,
            bank,
            selection,
            nonce,
        };
        Self {
            request,
            asked_s: now_s,
            answered: false,
        }
    }

    /// What goes to the device.
    pub const fn request(&self) -> &QuoteRequest {
        &self.request
    }

    /// Checks the answer, once: the values are those that the device's TPM held after it was asked. Whether they are good
    /// ones is not decided here.
    ///
    /// # Errors
    /// Each way in which the TPM has not proved that.
    pub fn check(
        &mut self,
        device: &Binding,
        answer: &QuoteAnswer,
        now_s: i64,
    ) -> Result<(PcrValues, QuoteVerified), RequoteError> {
        if self.answered {
            return Err(RequoteError::Answered);
        }
        match now_s.saturating_sub(self.asked_s) {
            0..=ANSWER_SECONDS_MAX => {}
            late => return Err(RequoteError::Late(late)),
        }
        let public = Public::from_sized(&device.attestation_key).map_err(RequoteError::Record)?;
        let QuoteRequest {
            bank,
            selection,
            nonce,
            ..
        } = &self.request;
        let verified = verify_quote(
            &AttestationSigner::new(public)?,
            &answer.quote,
            &answer.signature,
            nonce,
            (*bank, *selection),
            &answer.pcrs.0,
        )?;
        let before = device.quote.clock.reset_count;
        let now = verified.clock.reset_count;
        if now < before {
            return Err(RequoteError::Cleared { before, now });
        }
        self.answered = true;
        Ok((answer.pcrs.0.clone(), verified))
    }
}
