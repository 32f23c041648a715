//! What a device sends of itself when its configuration has changed, and with each quote (LAP/1 1.7.6).

use serde::{Deserialize, Serialize};

use crate::enrol::Version;
use crate::key::Protection;

/// The longest document, bytes: what fits into tickets. [`from_json`](crate::enrol::from_json) reads no longer one.
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
    /// The log that explains its PCRs, if there are any and the device sends it.
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
