//! Where a signer is, and the key that opens its files.

use std::path::PathBuf;

use clap::Args;
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::store::{SealingKey, SignerDirectory};

use crate::failure::Failure;

/// A signer that is there.
#[derive(Args, Debug)]
pub struct SignerArgs {
    /// The signer's directory
    #[arg(value_name = "DIR")]
    signer: PathBuf,
    /// The key that opens its files; DIR/seal.key if not given
    #[arg(long, value_name = "FILE")]
    seal_key: Option<PathBuf>,
}

impl SignerArgs {
    /// The directory.
    pub fn directory(&self) -> SignerDirectory {
        SignerDirectory::at(&self.signer)
    }

    /// Reads the private key, and what opens the other files.
    ///
    /// # Errors
    /// Those of the files.
    pub fn open(&self) -> Result<(PrivateKey, SealingKey), Failure> {
        if !self.signer.is_dir() {
            return Err(Failure::input(format!(
                "{}: is no signer, which is a directory that `linewarden signed keygen` has made",
                self.signer.display()
            )));
        }
        let directory = self.directory();
        let seal_path = self.seal_key.clone().unwrap_or_else(|| directory.seal_path());
        if self.seal_key.is_none() && !seal_path.exists() {
            return Err(Failure::input(format!(
                "{}: is not there; name the key that opens {} with --seal-key",
                seal_path.display(),
                self.signer.display()
            )));
        }
        let sealing_key = SealingKey::read(&seal_path)?;
        Ok((directory.key(&sealing_key)?, sealing_key))
    }
}
