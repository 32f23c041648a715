//! Emulated TPMs.

#[path = "../../../../crates/tpm/tests/emulator/swtpm.rs"]
#[allow(dead_code, reason = "the tests of crates/tpm use all items")]
mod swtpm;

pub use swtpm::{Emulator, TpmManufacturer};

/// Skips the test if the emulator of a TPM or one of its tools is not installed.
pub fn require() {
    if let Some(reason) = swtpm::missing_tool() {
        linewarden_harness::skip!("{reason}");
    }
}
