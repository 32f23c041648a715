//! What tells a machine from others.

use std::io;
use std::path::Path;

use linewarden_files::read_text_bounded;
use sha2::{Digest as _, Sha256};

/// Bytes of a machine's name as it stands in files.
pub const MACHINE_BYTES: usize = 32;
/// systemd's name of an installation, which is drawn at its first start (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";
const MACHINE_ID_BYTES_MAX: usize = 64;

/// A machine, by a hash of its own name: machine-id(5) asks that the name itself leaves the machine nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineId([u8; MACHINE_BYTES]);

/// The machine has no name.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The file cannot be read.
    #[error("{MACHINE_ID}: {0}; `systemd-machine-id-setup` makes one")]
    Io(#[from] io::Error),
    /// It holds no name.
    #[error("{MACHINE_ID}: holds no 32 hexadecimal digits; `systemd-machine-id-setup` makes it anew")]
    Malformed,
}

impl MachineId {
    /// This machine.
    ///
    /// # Errors
    /// It has no name, as an image that is not booted yet.
    pub fn of_this_machine() -> Result<Self, MachineError> {
        let text = read_text_bounded(Path::new(MACHINE_ID), MACHINE_ID_BYTES_MAX)?;
        let name = text.trim_ascii();
        match name.len() == 32 && name.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            true => Ok(Self::of_name(name.as_bytes())),
            false => Err(MachineError::Malformed),
        }
    }

    /// The machine that is called so.
    #[must_use]
    pub fn of_name(name: &[u8]) -> Self {
        let hash = Sha256::new()
            .chain_update(b"linewarden machine 1\0")
            .chain_update(name)
            .finalize();
        Self(hash.into())
    }

    /// As it stands in files.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; MACHINE_BYTES] {
        &self.0
    }
}
