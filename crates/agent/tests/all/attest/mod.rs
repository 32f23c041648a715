//! The agent as a prover, with its real socket, files, thread and TPM (swtpm), against the reference gateway.

mod evidence;
mod oracle;
mod site;
#[cfg(feature = "tpm")]
#[path = "../../../../tpm/tests/emulator/swtpm.rs"]
#[allow(dead_code, reason = "the tests of crates/tpm use all items")]
mod swtpm;
#[cfg(feature = "tpm")]
mod tpm;

/// Skips the test if the emulator of a TPM or one of its tools is not installed.
#[cfg(feature = "tpm")]
fn require_emulator() {
    if let Some(reason) = swtpm::missing_tool() {
        linewarden_harness::skip!("{reason}");
    }
}
