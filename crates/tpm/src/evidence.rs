//! Evidence that a device sends when its configuration has changed, and with each quote (LAP/1 1.7.6).
//!
//! A PROOF shows whether the configuration of a device is compliant; this document shows the configuration itself. The
//! document is a claim of the device. Only a quote proves the part that the quote covers.

use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_measurement::eventlog::{
    EventLog, Notice, ParseError as LogError, ReplayError, ReplayedLog, notices, verify_replay,
};
use serde::{Deserialize, Serialize};

use crate::enroll::{Binding, MessageError, Version, from_json};
use crate::key::Protection;
use crate::public::Public;
use crate::quote::{Nonce, QuoteError, VerifiedQuote, verify_quote};
use crate::template::{AttestationSigner, TemplateError};
use crate::wire::ParseError;

/// Maximum length of the document, bytes: tickets limit the length. [`from_json`] refuses a longer document.
pub const EVIDENCE_BYTES_MAX: usize = 2 << 20;

/// The document, as JSON. The document alone proves nothing: PROOFs and the quote prove the configuration, and the PCRs in
/// the configuration prove the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// The format version.
    pub version: Version,
    /// The period of the measurement.
    pub period: u64,
    /// The configuration of the device: `Configuration::encode`.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub configuration: Vec<u8>,
    /// The log that replays to the PCRs, if the device sends one.
    #[serde(default, with = "crate::encoding::base64_option")]
    pub event_log: Option<Vec<u8>>,
    /// A quote of the PCRs, if one was due.
    #[serde(default)]
    pub quote: Option<EvidenceQuote>,
    /// Where the key of the device is stored.
    pub protection: Protection,
}

/// A quote with the nonce `protocol::attest::quote_nonce` of the period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvidenceQuote {
    /// TPMS_ATTEST.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub quote: Vec<u8>,
    /// TPMT_SIGNATURE of the attestation key over the quote.
    #[serde(with = "crate::encoding::base64_bytes")]
    pub signature: Vec<u8>,
}

/// Why evidence is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvidenceError {
    /// Invalid configuration.
    #[error(transparent)]
    InvalidConfiguration(#[from] ConfigurationError),
    /// Invalid event log.
    #[error("invalid event log: {0}")]
    InvalidEventLog(#[from] LogError),
    /// The log contradicts the PCRs.
    #[error("event log does not replay to the PCRs: {0}")]
    EventLogMismatch(#[from] ReplayError),
    /// A quote from a device without a TPM on record.
    #[error("quote rejected: the device was enrolled without a TPM")]
    QuoteWithoutTpm,
    /// The recorded key cannot be parsed.
    #[error("invalid recorded attestation key: {0}")]
    InvalidRecordedKey(ParseError),
    /// The recorded key is not an attestation key.
    #[error("invalid recorded attestation key: {0}")]
    WrongRecordedKey(#[from] TemplateError),
    /// The quote does not verify.
    #[error(transparent)]
    InvalidQuote(#[from] QuoteError),
    /// The TPM's reset count is lower than at the enrollment.
    #[error(
        "TPM was cleared after the enrollment: its reset count is {now}, but was {before} at the enrollment"
    )]
    TpmCleared {
        /// The count at the enrollment.
        before: u32,
        /// The count in this quote.
        now: u32,
    },
}

/// Checked evidence.
#[derive(Clone, Debug)]
pub struct CheckedEvidence {
    /// The configuration that the device claims.
    pub configuration: Configuration,
    /// The replay of the log, if the device sent a log about its PCRs. Each event states which part of its data is proven.
    pub replayed: Option<ReplayedLog>,
    /// The verified quote of the TPM, which proves the PCRs; without a quote the PCRs are only a claim of the device.
    pub verified_quote: Option<VerifiedQuote>,
}

impl CheckedEvidence {
    /// Notices for operators about the PCRs.
    pub fn notices(&self) -> Vec<Notice> {
        let log = self
            .replayed
            .as_ref()
            .ok_or("the device has sent no event log for its PCRs");
        notices(self.configuration.pcrs().selection(), log)
    }
}

impl Evidence {
    /// Parses the document.
    ///
    /// # Errors
    /// The document is too long, or is not evidence of the supported version.
    pub fn read(document: &[u8]) -> Result<Self, MessageError> {
        from_json(document)
    }

    /// Checks the whole document. `binding` is from the enrollment of a device with a TPM; `nonce` is the nonce for quotes in
    /// the document's period.
    ///
    /// # Errors
    /// The first part that does not verify.
    pub fn check(&self, binding: Option<&Binding>, nonce: &Nonce) -> Result<CheckedEvidence, EvidenceError> {
        let configuration = Configuration::decode(&self.configuration)?;
        let pcrs = configuration.pcrs();
        // A device need not send its log, and a log may contain no statement about the PCRs. A quote is useful without a log.
        let replayed = match &self.event_log {
            Some(log) => match verify_replay(&EventLog::parse(log)?, pcrs) {
                Err(error) if error.has_no_statement() => None,
                replayed => Some(replayed?),
            },
            None => None,
        };
        let verified_quote = match &self.quote {
            None => None,
            Some(quote) => {
                let binding = binding.ok_or(EvidenceError::QuoteWithoutTpm)?;
                let public = Public::from_sized(&binding.attestation_key)
                    .map_err(EvidenceError::InvalidRecordedKey)?;
                let signer = AttestationSigner::new(public)?;
                let selected = (pcrs.bank(), pcrs.selection());
                let verified = verify_quote(&signer, &quote.quote, &quote.signature, nonce, selected, pcrs)?;
                let (before, now) = (binding.quote.clock.reset_count, verified.clock.reset_count);
                if now < before {
                    return Err(EvidenceError::TpmCleared { before, now });
                }
                Some(verified)
            }
        };
        Ok(CheckedEvidence {
            configuration,
            replayed,
            verified_quote,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enroll::from_json;

    #[test]
    fn the_json_form_is_the_specified_form() {
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
        for invalid in [&b"{}"[..], br#"{"version":2}"#, &json[1..]] {
            assert!(from_json::<Evidence>(invalid).is_err());
        }
    }
}
