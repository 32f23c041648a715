//! Settings of attestation.

use std::path::PathBuf;

use linewarden_protocol::ids::Period;

use super::key::{KeyFile, KeySource};
use super::measurement::MeasurementScope;

/// Attestation settings of a device.
#[derive(Clone, Debug)]
pub struct AttestOptions {
    /// What is measured.
    pub scope: MeasurementScope,
    /// The attestation key.
    pub key: KeySource,
    /// The file of the key; `None`: the key is never read again.
    pub key_file: Option<KeyFile>,
    /// UDP port for attestation requests.
    pub port: u16,
    /// Whether a changed configuration is sent to the controller.
    pub send_log: bool,
    /// Periods between two quotes of a TPM; 0: never.
    pub quote_every: u64,
    /// State file.
    pub state: PathBuf,
    /// The period of the enrollment.
    pub enrolled_period: Period,
}
