//! A device's helper data as they lie on disk, through their renewal, and the rows of a pool that are spent.
//!
//! In pool mode the file only grows: rows that it has had stay as they are, so the longer file takes the place of the
//! shorter one before any of its rows is registered. In key mode new helper data lie beside the old ones (`.new`) until a
//! session or an answer shows that the registry has the new key; meanwhile both are tried, the new ones first. So a crash
//! at any moment leaves a device that can authenticate.
//!
//! The helper data of before stay as `.previous`: a registry that is put back to an earlier state has the key of then. They are
//! tried, in turn with the others, once a handshake has met challenges that no other helper data verify; the session that they
//! open carries the newer key to the registry again.

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{replace, sync_parent};
use linewarden_protocol::device::PufQuery;
use linewarden_protocol::ids::RowIndex;

use crate::credential::{Credential, CredentialError};
use crate::spent::{SpentFile, SpentRows};

/// Handshakes in vain after which the helper data of before the last renewal are tried too.
const DOUBTS: u32 = 1;

/// Which helper data were used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    Pending,
    Current,
    Previous,
}

/// Helper data, and those that may take their place.
#[derive(Debug)]
pub struct Keyring {
    current: Credential,
    pending: Option<Credential>,
    /// Of before the last renewal.
    previous: Option<Credential>,
    /// Where they lie; `None` for those that are never renewed.
    path: Option<PathBuf>,
    /// In this handshake.
    used: Option<Used>,
    /// Handshakes since the last session in which a challenge verified with none of those that were tried.
    doubts: u32,
    /// `None` in key mode.
    spent: Option<SpentFile>,
    /// It has been told that spent rows cannot be written down.
    told_of_spent: bool,
}

impl Keyring {
    /// Helper data that are never renewed.
    #[must_use]
    pub fn fixed(current: Credential) -> Self {
        Self {
            spent: SpentFile::in_memory(&current),
            current,
            pending: None,
            previous: None,
            path: None,
            used: None,
            doubts: 0,
            told_of_spent: false,
        }
    }

    /// Reads a file that enrolment wrote, and what a renewal has left beside it.
    ///
    /// # Errors
    /// As [`Credential::read_from`].
    pub fn read_from(path: &Path) -> Result<Self, CredentialError> {
        let current = Credential::read_from(path)?;
        let read = |path: PathBuf| match path.symlink_metadata() {
            Ok(_) => Credential::read_from(&path).map(Some),
            Err(_) => Ok(None),
        };
        let others = |other: &Credential| *other != current;
        let pending = read(beside(path, PENDING))?.filter(others);
        let previous = read(beside(path, PREVIOUS))?.filter(others);
        Ok(Self {
            previous: previous.filter(|previous| pending.as_ref() != Some(previous)),
            pending,
            spent: SpentFile::read_beside(path, &current)?,
            current,
            path: Some(path.to_owned()),
            used: None,
            doubts: 0,
            told_of_spent: false,
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
        let all = [Used::Pending, Used::Current, Used::Previous];
        let candidates: Vec<Used> = all.into_iter().filter(|used| self.may_try(*used)).collect();
        let last = candidates.iter().position(|used| Some(*used) == self.used);
        let next = last.map_or(0, |last| last + 1);
        let next = candidates.get(next).or_else(|| candidates.first()).copied();
        self.used = next;
        match (next, &self.pending, &self.previous) {
            (Some(Used::Pending), Some(pending), _) => pending,
            (Some(Used::Previous), _, Some(previous)) => previous,
            _ => &self.current,
        }
    }

    fn may_try(&self, which: Used) -> bool {
        match which {
            Used::Pending => self.pending.is_some(),
            Used::Current => true,
            Used::Previous => self.previous.is_some() && self.doubts >= DOUBTS,
        }
    }

    /// A handshake begins.
    pub(crate) fn begin(&mut self) {
        self.used = None;
    }

    /// A handshake has ended in vain, and a challenge in it verified with none of those that were tried.
    pub(crate) fn doubt(&mut self) {
        self.doubts = self.doubts.saturating_add(1);
    }

    /// Whether those that were tried last are the new ones.
    pub(crate) fn has_used_pending(&self) -> bool {
        self.pending.is_some() && self.used == Some(Used::Pending)
    }

    /// A session was opened. With the helper data of before the last renewal: the registry has their key, and theirs is the file again;
    /// the newer ones lie beside it, as in a renewal that has not ended. Whether it was so.
    ///
    /// # Errors
    /// The file's; whatever is there then can be gone on with.
    pub(crate) fn settle(&mut self) -> io::Result<bool> {
        self.doubts = 0;
        if self.used != Some(Used::Previous) {
            return Ok(false);
        }
        let Some(previous) = self.previous.take() else {
            return Ok(false);
        };
        let newer = std::mem::replace(&mut self.current, previous);
        let newer = self.pending.insert(newer);
        self.used = Some(Used::Current);
        let path = self.path.as_deref().ok_or(io::ErrorKind::Unsupported)?;
        replace(&beside(path, PENDING), &newer.to_bytes())?;
        replace(path, &self.current.to_bytes())?;
        Ok(true)
    }

    /// The rows of the pool that are spent; `None` in key mode.
    pub(crate) fn spent(&self) -> Option<&SpentRows> {
        self.spent.as_ref().map(SpentFile::rows)
    }

    /// A RESPONSE with that row is about to leave, or its ACK has verified. What cannot be written down is known to this process alone.
    pub(crate) fn note_spent(&mut self, row: RowIndex, is_accepted: bool) {
        let Some(spent) = &mut self.spent else {
            return;
        };
        let noted = match is_accepted {
            true => spent.accept(row),
            false => spent.answer(row),
        };
        if let Err(error) = noted
            && !std::mem::replace(&mut self.told_of_spent, true)
        {
            tracing::error!(
                %error,
                row = row.0,
                action = "make the directory of the helper data writable",
                "spent rows cannot be written; after a restart this device may answer them to a registry that was put back"
            );
        }
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
        replace(&beside(self.path()?, PENDING), &pending.to_bytes())?;
        self.pending = Some(pending);
        Ok(())
    }

    /// The registry has the new key: its helper data take the file's place, and those of before stay as the previous ones.
    ///
    /// # Errors
    /// The file's; both are there still then.
    pub(crate) fn promote(&mut self) -> io::Result<()> {
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        let before = std::mem::replace(&mut self.current, pending);
        let before = self.previous.insert(before);
        self.used = Some(Used::Current);
        let path = self.path.as_deref().ok_or(io::ErrorKind::Unsupported)?;
        replace(&beside(path, PREVIOUS), &before.to_bytes())?;
        replace(path, &self.current.to_bytes())?;
        let pending = beside(path, PENDING);
        std::fs::remove_file(&pending)?;
        sync_parent(&pending)
    }

    fn path(&self) -> io::Result<&Path> {
        self.path
            .as_deref()
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "these helper data come from no file"))
    }
}

const PENDING: &str = ".new";
const PREVIOUS: &str = ".previous";

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}
