//! What a device tells the controller of itself (LAP/1 1.7.6): its configuration, the event log that explains its PCRs, a quote of them.
//!
//! A PROOF says whether a device runs what it should, this says what it runs instead. It is the device's word: only what a
//! quote covers is its TPM's.

use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_measurement::eventlog::{EventLog, Explained, ParseError as LogError, Unexplained, explains};
use serde::{Deserialize, Serialize};

use crate::enrol::{Binding, MessageError, Version, from_json};
use crate::key::Protection;
use crate::public::Public;
use crate::quote::{Nonce, QuoteError, QuoteVerified, verify_quote};
use crate::template::{AttestationSigner, TemplateError};
use crate::wire::ParseError;

/// From the device: what it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The form.
    pub version: Version,
    /// The period in which it was measured.
    pub period: u64,
    /// [`Configuration::encode`].
    #[serde(with = "crate::encoding::base64_bytes")]
    pub configuration: Vec<u8>,
    /// The log that explains its PCRs, if there are any.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::encoding::base64_option"
    )]
    pub event_log: Option<Vec<u8>>,
    /// A quote of its PCRs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<SignedQuote>,
    /// Where k lies, by the device's word.
    pub protection: Protection,
}

/// A quote and who signed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedQuote {
    /// TPMS_ATTEST over the period's quote nonce.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub quote: Vec<u8>,
    /// TPMT_SIGNATURE over it by the attestation key.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub signature: Vec<u8>,
}

/// Why evidence is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvidenceError {
    /// No configuration.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// No event log.
    #[error("the event log: {0}")]
    Log(#[from] LogError),
    /// The log does not say how the PCRs came about, or lies.
    #[error("the event log does not explain the PCRs: {0}")]
    Unexplained(#[from] Unexplained),
    /// There are PCRs, and nothing says how they came about.
    #[error("there are values of PCRs and no event log that explains them")]
    NoLog,
    /// A quote of a device that has no TPM on record.
    #[error("a quote, of a device that was enrolled without a TPM")]
    NoTpm,
    /// The key on record cannot be read.
    #[error("the attestation key on record: {0}")]
    Record(ParseError),
    /// The key on record is none.
    #[error("the attestation key on record: {0}")]
    Template(#[from] TemplateError),
    /// The quote shows nothing.
    #[error(transparent)]
    Quote(#[from] QuoteError),
    /// The TPM counts fewer starts than before.
    #[error("the TPM counts {now} starts and had counted {before} at enrolment: it was cleared since")]
    Cleared {
        /// At enrolment.
        before: u32,
        /// In this quote.
        now: u32,
    },
}

/// Evidence that was looked at.
#[derive(Clone, Debug)]
pub struct Examined {
    /// What the device says it runs.
    pub configuration: Configuration,
    /// How its PCRs came about, if it has any.
    pub explained: Option<Explained>,
    /// What its TPM has signed; then the PCRs are not only its word.
    pub quoted: Option<QuoteVerified>,
}

impl Evidence {
    /// Reads it.
    ///
    /// # Errors
    /// Too long, or of another form.
    pub fn read(document: &[u8]) -> Result<Self, MessageError> {
        from_json(document)
    }

    /// Looks at all that it says. `binding` is of the device's enrolment, if it has a TPM; `nonce` is what a quote of its
    /// period must be over.
    ///
    /// # Errors
    /// The first thing that cannot be believed.
    pub fn examine(&self, binding: Option<&Binding>, nonce: &Nonce) -> Result<Examined, EvidenceError> {
        let configuration = Configuration::decode(&self.configuration)?;
        let pcrs = configuration.pcrs();
        let has_pcrs = pcrs.iter().next().is_some();
        let explained = match &self.event_log {
            Some(log) => Some(explains(&EventLog::parse(log)?, pcrs)?),
            None if has_pcrs => return Err(EvidenceError::NoLog),
            None => None,
        };
        let quoted = match &self.quote {
            None => None,
            Some(quote) => {
                let binding = binding.ok_or(EvidenceError::NoTpm)?;
                let public = Public::from_sized(&binding.attestation_key).map_err(EvidenceError::Record)?;
                let signer = AttestationSigner::new(public)?;
                let selected = (pcrs.bank(), pcrs.selection());
                let verified = verify_quote(&signer, &quote.quote, &quote.signature, nonce, selected, pcrs)?;
                let (before, now) = (binding.quote.clock.reset_count, verified.clock.reset_count);
                if now < before {
                    return Err(EvidenceError::Cleared { before, now });
                }
                Some(verified)
            }
        };
        Ok(Examined {
            configuration,
            explained,
            quoted,
        })
    }
}
