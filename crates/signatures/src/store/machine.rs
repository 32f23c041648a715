//! Identity of a machine.

use std::io;
use std::path::Path;

use linewarden_files::read_text_bounded;
use sha2::{Digest as _, Sha256};

/// Bytes of a machine's identity in files.
pub const MACHINE_BYTES: usize = 32;
/// The installation id of systemd, drawn at the first start (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";
const MACHINE_ID_BYTES_MAX: usize = 64;

/// Identity of a machine: a hash of its machine id. machine-id(5) requires that the id itself never leaves
/// the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineId([u8; MACHINE_BYTES]);

/// The machine has no valid machine id.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The file cannot be read.
    #[error("reading {MACHINE_ID} failed: {0}; run `systemd-machine-id-setup`")]
    Io(#[from] io::Error),
    /// The file holds no valid id.
    #[error(
        "invalid machine id in {MACHINE_ID}: expected 32 hexadecimal digits; delete the file and run `systemd-machine-id-setup`"
    )]
    Malformed,
}

impl MachineId {
    /// The identity of this machine.
    ///
    /// # Errors
    /// The machine has no valid id, for example an image that was never booted.
    pub fn of_this_machine() -> Result<Self, MachineError> {
        let text = read_text_bounded(Path::new(MACHINE_ID), MACHINE_ID_BYTES_MAX)?;
        let name = text.trim_ascii();
        match name.len() == 32 && name.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            true => Ok(Self::of_name(name.as_bytes())),
            false => Err(MachineError::Malformed),
        }
    }

    /// The identity of a machine with this machine id.
    #[must_use]
    pub fn of_name(name: &[u8]) -> Self {
        let hash = Sha256::new()
            .chain_update(b"linewarden machine 1\0")
            .chain_update(name)
            .finalize();
        Self(hash.into())
    }

    /// The bytes that represent the identity in files.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; MACHINE_BYTES] {
        &self.0
    }
}
