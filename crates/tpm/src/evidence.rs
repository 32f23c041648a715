//! What a device sends of itself when its configuration has changed, and with each quote (LAP/1 1.7.6).
//!
//! A PROOF says whether a device runs what it should, this says what it runs instead. It is the device's word: only what a
//! quote covers is its TPM's.

use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_measurement::eventlog::{
    EventLog, Notice, ParseError as LogError, ReplayError, Replayed, notices, replays,
};
use serde::{Deserialize, Serialize};

use crate::enrol::{Binding, MessageError, Version, from_json};
use crate::key::Protection;
use crate::public::Public;
use crate::quote::{Nonce, QuoteError, QuoteVerified, verify_quote};
use crate::template::{AttestationSigner, TemplateError};
use crate::wire::ParseError;

/// The longest document, bytes: what fits into tickets. [`from_json`] reads no longer one.
pub const EVIDENCE_BYTES_MAX: usize = 2 << 20;

/// The document, as JSON. Nothing in it is proven by itself: the configuration by PROOFs and by the quote, the log by the
/// configuration's PCRs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The form.
    pub version: Version,
    /// In which period it was measured.
    pub period: u64,
    /// What the device runs: `Configuration::encode`.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub configuration: Vec<u8>,
    /// The log that replays to its PCRs, if there are any, it says something about them, and the device sends it.
    #[serde(default, with = "crate::encoding::base64_option")]
    pub event_log: Option<Vec<u8>>,
    /// A quote of its PCRs, if one was due.
    #[serde(default)]
    pub quote: Option<EvidenceQuote>,
    /// Where the device's key lies.
    pub protection: Protection,
}

/// A quote, whose nonce is `protocol::attest::quote_nonce` of the period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceQuote {
    /// TPMS_ATTEST.
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
    /// The log contradicts the PCRs.
    #[error("the event log does not replay to the PCRs: {0}")]
    Replay(#[from] ReplayError),
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
    /// How its PCRs came about, if it has any and has sent a log that says so. What its events' data prove, each event says.
    pub replayed: Option<Replayed>,
    /// What its TPM has signed; then the PCRs are not only its word.
    pub quoted: Option<QuoteVerified>,
}

impl Examined {
    /// What an operator should know of the PCRs before relying on them.
    pub fn notices(&self) -> Vec<Notice> {
        let log = self
            .replayed
            .as_ref()
            .ok_or("the device has sent no event log that says how its PCRs came about");
        notices(self.configuration.pcrs().selection(), log)
    }
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
        // A device need not send its log, which may say nothing either, and a quote is worth something without it.
        let replayed = match &self.event_log {
            Some(log) => match replays(&EventLog::parse(log)?, pcrs) {
                Err(silence) if silence.is_silence() => None,
                replayed => Some(replayed?),
            },
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
            replayed,
            quoted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enrol::from_json;

    #[test]
    fn the_document_is_the_one_that_the_text_says() {
        let evidence = Evidence {
            version: Version,
            period: 7,
            configuration: b"c".to_vec(),
            event_log: None,
            quote: None,
            protection: Protection::Software,
        };
        let json = serde_json::to_string(&evidence).unwrap();
        assert_eq!(
            json,
            r#"{"version":1,"period":7,"configuration":"Yw==","event_log":null,"quote":null,"protection":"software"}"#
        );
        assert_eq!(from_json::<Evidence>(json.as_bytes()).unwrap(), evidence);
        let quoted = Evidence {
            event_log: Some(b"log".to_vec()),
            quote: Some(EvidenceQuote {
                quote: b"q".to_vec(),
                signature: b"s".to_vec(),
            }),
            protection: Protection::Tpm,
            ..evidence
        };
        let json = serde_json::to_vec(&quoted).unwrap();
        assert_eq!(from_json::<Evidence>(&json).unwrap(), quoted);
        for wrong in [&b"{}"[..], br#"{"version":2}"#, &json[1..]] {
            assert!(from_json::<Evidence>(wrong).is_err());
        }
    }
}
