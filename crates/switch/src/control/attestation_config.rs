//! Attestation configuration of a switch.

use std::sync::Mutex;

use linewarden_evidence::keys::Signer;

use crate::evidence::EvidenceSettings;

/// Attestation configuration of a switch, for all programs.
pub struct AttestationConfig {
    pub(super) settings: EvidenceSettings,
    pub(super) software_version: String,
    pub(super) signer: Option<Mutex<Box<dyn Signer + Send>>>,
}

impl AttestationConfig {
    /// Creates the configuration. Without a signer the switch provides digests and evidence in packets, but no statements.
    #[must_use]
    pub fn new(
        settings: EvidenceSettings,
        software_version: &str,
        signer: Option<Box<dyn Signer + Send>>,
    ) -> Self {
        Self {
            settings,
            software_version: software_version.to_owned(),
            signer: signer.map(Mutex::new),
        }
    }
}
