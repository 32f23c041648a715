//! Options that select a signer and its sealing key.

use linewarden_cli::failure::Failure;
use std::path::PathBuf;

use clap::Args;
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::store::{SealingKey, SignerDirectory};

/// An existing signer.
#[derive(Args, Debug)]
pub struct SignerArgs {
    /// Directory of the signer (path)
    #[arg(value_name = "DIR")]
    signer: PathBuf,
    /// File of the key that decrypts the signer's files (path, default: DIR/seal.key)
    #[arg(long, value_name = "FILE")]
    seal_key: Option<PathBuf>,
}

impl SignerArgs {
    /// The directory of the signer.
    pub fn directory(&self) -> SignerDirectory {
        SignerDirectory::at(&self.signer)
    }

    /// Reads the private key and the sealing key.
    ///
    /// # Errors
    /// A file is missing, unreadable or damaged.
    pub fn open(&self) -> Result<(PrivateKey, SealingKey), Failure> {
        if !self.signer.is_dir() {
            return Err(Failure::input(format!(
                "{}: not a signer; create a signer directory with `linewarden signed keygen`",
                self.signer.display()
            )));
        }
        let directory = self.directory();
        let seal_path = self.seal_key.clone().unwrap_or_else(|| directory.seal_path());
        if self.seal_key.is_none() && !seal_path.exists() {
            return Err(Failure::input(format!(
                "{}: file not found; set --seal-key to the file of the key that decrypts {}",
                seal_path.display(),
                self.signer.display()
            )));
        }
        let sealing_key = SealingKey::read(&seal_path)?;
        Ok((directory.key(&sealing_key)?, sealing_key))
    }
}
