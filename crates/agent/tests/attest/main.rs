//! The agent as a prover, with its real socket, files, thread and TPM (swtpm), against the reference gateway.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod evidence;
mod oracle;
mod site;
#[cfg(feature = "tpm")]
#[path = "../../../tpm/tests/emulator/swtpm.rs"]
#[allow(dead_code, reason = "the tests of crates/tpm use all items")]
mod swtpm;
#[cfg(feature = "tpm")]
mod tpm;
