//! A device's helper data as they lie on disk, through their renewal.
//!
//! In pool mode the file only grows: rows that it has had stay as they are, so the longer file takes the place of the
//! shorter one before any of its rows is registered. In key mode new helper data lie beside the old ones (`.new`) until a
//! session or an answer shows that the registry has the new key; meanwhile both are tried, the new ones first. So a crash
//! at any moment leaves a device that can authenticate.

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{replace, sync_parent};
use linewarden_protocol::device::PufQuery;

use crate::credential::{Credential, CredentialError};

/// Which helper data were used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    Current,
    Pending,
}

/// Helper data, and those that may take their place.
#[derive(Debug)]
pub struct Keyring {
    current: Credential,
    pending: Option<Credential>,
    /// Where they lie; `None` for those that are never renewed.
    path: Option<PathBuf>,
    used: Used,
}

impl Keyring {
    /// Helper data that are never renewed.
    #[must_use]
    pub fn fixed(current: Credential) -> Self {
        Self {
            current,
            pending: None,
            path: None,
            used: Used::Current,
        }
    }

    /// Reads a file that enrolment wrote, and what a renewal has left beside it.
    ///
    /// # Errors
    /// As [`Credential::read_from`].
    pub fn read_from(path: &Path) -> Result<Self, CredentialError> {
        let current = Credential::read_from(path)?;
        let beside = pending_path(path);
        let pending = match beside.symlink_metadata() {
            Ok(_) => Some(Credential::read_from(&beside)?),
            Err(_) => None,
        };
        Ok(Self {
            pending: pending.filter(|pending| *pending != current),
            current,
            path: Some(path.to_owned()),
            used: Used::Current,
        })
    }

    /// Those in force.
    #[must_use]
    pub fn current(&self) -> &Credential {
        &self.current
    }

    /// Whether the PUF may be read for this row.
    pub(crate) fn is_enrolled(&self, query: &PufQuery) -> bool {
        self.current.is_enrolled(query)
    }

    pub(crate) fn pending(&self) -> Option<&Credential> {
        self.pending.as_ref()
    }

    /// Those to read the PUF with next: while it is open which are in force, each in turn, the new ones first.
    pub(crate) fn next_to_try(&mut self) -> &Credential {
        match (&self.pending, self.used) {
            (Some(pending), Used::Current) => {
                self.used = Used::Pending;
                pending
            }
            _ => {
                self.used = Used::Current;
                &self.current
            }
        }
    }

    /// A handshake begins.
    pub(crate) fn begin(&mut self) {
        self.used = Used::Current;
    }

    /// Whether those that were tried last are the new ones.
    pub(crate) fn has_used_pending(&self) -> bool {
        self.pending.is_some() && self.used == Used::Pending
    }

    /// Puts longer helper data in the file's place.
    ///
    /// # Errors
    /// The file's; the old content is there still.
    pub(crate) fn grow(&mut self, longer: Credential) -> io::Result<()> {
        replace(self.path()?, &longer.to_bytes())?;
        self.current = longer;
        Ok(())
    }

    /// Puts helper data beside the file.
    ///
    /// # Errors
    /// The file's.
    pub(crate) fn put_beside(&mut self, pending: Credential) -> io::Result<()> {
        replace(&pending_path(self.path()?), &pending.to_bytes())?;
        self.pending = Some(pending);
        Ok(())
    }

    /// The registry has the new key: its helper data take the file's place.
    ///
    /// # Errors
    /// The file's; both are there still then.
    pub(crate) fn promote(&mut self) -> io::Result<()> {
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        self.current = pending;
        self.used = Used::Current;
        let path = self.path()?;
        let beside = pending_path(path);
        replace(path, &self.current.to_bytes())?;
        std::fs::remove_file(&beside)?;
        sync_parent(&beside)
    }

    fn path(&self) -> io::Result<&Path> {
        self.path
            .as_deref()
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "these helper data come from no file"))
    }
}

fn pending_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}
