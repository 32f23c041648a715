//! A copy of a registry in use.
//!
//! Copying the file is not enough: the newest commits may lie in the log beside it (`-wal`) only, revocations among
//! them, and a copy made while the log is worked in is torn.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::error::{RegistryError, Result};
use crate::store::{Registry, draft_path, publish, refuse_existing};

impl Registry {
    /// Writes a copy of everything that is committed to a new file of mode 0600, under the same master key; durable
    /// before it returns. Gateways go on meanwhile.
    ///
    /// # Errors
    /// A file that is there already, which is never overwritten, or a failure of the database or the file system;
    /// nothing is left then.
    pub async fn backup(&self, path: &Path) -> Result<()> {
        refuse_existing(path)?;
        let draft = draft_path(path)?;
        let written = self.write_copy(&draft).await.and_then(|()| publish(&draft, path));
        // The file has its name, or is of no use.
        let _ = std::fs::remove_file(&draft);
        written
    }

    async fn write_copy(&self, draft: &Path) -> Result<()> {
        // SQLite takes an empty file, whose mode is ours to choose.
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(draft)
            .map_err(RegistryError::io(format!("create {}", draft.display())))?;
        let name = draft.to_str().ok_or_else(|| RegistryError::NotWritable {
            detail: format!("{} is no UTF-8, which the database wants", draft.display()),
        })?;
        sqlx::query("VACUUM INTO $1")
            .bind(name)
            .execute(self.reader())
            .await?;
        File::open(draft)
            .and_then(|file| file.sync_all())
            .map_err(RegistryError::io("write the backup to disk"))
    }
}
