//! A device's helper data as they lie on disk, through their renewal, and the rows of a pool that are spent.
//!
//! In pool mode the file only grows: rows that it has had stay as they are, so the longer file takes the place of the
//! shorter one before any of its rows is registered. In key mode new helper data lie beside the old ones (`.new`) until a
//! session or an answer shows that the registry has the new key; meanwhile both are tried, the new ones first. So a crash
//! at any moment leaves a device that can authenticate.
//!
//! The helper data of the last three renewals stay as `.previous`, `.previous.2` and `.previous.3`, the newest first: a registry
//! that is restored to an earlier state has one of their keys. The device tries them, in turn with the others, once a handshake
//! has ended in vain with a challenge that did not verify. The session that they open carries the newer key to the registry again.
//!
//! In key mode the device machine keeps all row keys of a handshake, and a challenge verifies with any of them. So the helper data
//! that opened a session are those whose row key its ticket root is made from, not those that were read last.

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{replace, sync_parent};
use linewarden_protocol::device::{DeviceConfig, PufQuery, Session};
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::ticket::{Opening, TicketRoot};

use crate::credential::{Credential, CredentialError};
use crate::spent::{SpentFile, SpentRows};

/// Handshakes in vain after which the helper data of before the last renewals are tried too.
const DOUBTS: u32 = 1;
/// Renewals whose replaced helper data are kept.
const PREVIOUS_MAX: usize = 3;
/// Files for them: one more than are kept, so that none is overwritten while two sets change places.
const PREVIOUS_FILES: usize = PREVIOUS_MAX + 1;
/// Row keys that are kept for one handshake: one for each set of helper data.
const KEYS_MAX: usize = PREVIOUS_FILES + 2;

/// One set of helper data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    Pending,
    Current,
    /// By the renewals since, the newest is 0.
    Previous(usize),
}

/// Helper data, and those that may take their place.
#[derive(Debug)]
pub struct Keyring {
    current: Credential,
    pending: Option<Credential>,
    /// Of before the last renewals, the newest first.
    previous: Vec<Credential>,
    /// Where they lie; `None` for those that are never renewed.
    path: Option<PathBuf>,
    /// Read last in this handshake.
    read: Option<Set>,
    /// Key mode: the digests of the helper data that were read in this handshake, and the row keys that they gave. Of a fixed
    /// capacity, so that no copy of a key stays behind.
    keys: Vec<([u8; 32], RowKey)>,
    /// Handshakes since the last session in which a challenge verified with none of those that were tried.
    doubts: u32,
    /// `None` in key mode.
    spent: Option<SpentFile>,
    /// An error was logged since spent rows could be written last.
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
            previous: Vec::new(),
            path: None,
            read: None,
            keys: Vec::with_capacity(KEYS_MAX),
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
        let pending = beside(path, PENDING);
        let pending = match pending.symlink_metadata() {
            Ok(_) => Some(Credential::read_from(&pending)?),
            Err(_) => None,
        };
        let is_key = |other: &Credential| current.mode() == Mode::Key && other.mode() == Mode::Key;
        let pending = pending.filter(|pending| is_key(pending) && *pending != current);
        let mut previous: Vec<Credential> = Vec::new();
        for older in (0..PREVIOUS_FILES).filter_map(|number| read_previous(&previous_path(path, number))) {
            let known = previous.iter().chain(&pending).chain([&current]);
            if is_key(&older) && known.into_iter().all(|known| *known != older) {
                previous.push(older);
            }
        }
        Ok(Self {
            previous,
            pending,
            spent: SpentFile::read_beside(path, &current)?,
            current,
            path: Some(path.to_owned()),
            read: None,
            keys: Vec::with_capacity(KEYS_MAX),
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

    /// Reads the PUF with the next set: while it is open which is in force, each in turn, the new ones first.
    ///
    /// # Errors
    /// That of `read`.
    pub(crate) fn read_next<E>(
        &mut self,
        read: impl FnOnce(&Credential) -> Result<RowKey, E>,
    ) -> Result<RowKey, E> {
        let set = self.next_to_read();
        self.read = Some(set);
        let credential = self.credential(set).unwrap_or(&self.current);
        let key = read(credential)?;
        if let Credential::Key(helper) = credential {
            let digest = helper.digest();
            self.keep(digest, &key);
        }
        Ok(key)
    }

    fn keep(&mut self, digest: [u8; 32], key: &RowKey) {
        let is_full = self.keys.len() >= KEYS_MAX;
        let place = self.keys.iter().position(|(of, _)| *of == digest);
        let place = place.or(is_full.then_some(KEYS_MAX - 1));
        match place.and_then(|place| self.keys.get_mut(place)) {
            Some(kept) => *kept = (digest, key.clone()),
            None => self.keys.push((digest, key.clone())),
        }
    }

    fn next_to_read(&self) -> Set {
        let older = match self.doubts >= DOUBTS {
            true => self.previous.len(),
            false => 0,
        };
        let pending = self.pending.as_ref().map(|_| Set::Pending);
        let mut sets = pending
            .into_iter()
            .chain([Set::Current])
            .chain((0..older).map(Set::Previous));
        let first = sets.clone().next().unwrap_or(Set::Current);
        if self.read.is_some() && !sets.any(|set| Some(set) == self.read) {
            return first;
        }
        sets.next().unwrap_or(first)
    }

    fn credential(&self, set: Set) -> Option<&Credential> {
        match set {
            Set::Pending => self.pending.as_ref(),
            Set::Current => Some(&self.current),
            Set::Previous(number) => self.previous.get(number),
        }
    }

    /// A handshake begins, or has ended without a session: its row keys are forgotten.
    pub(crate) fn forget_handshake(&mut self) {
        self.read = None;
        self.keys.clear();
    }

    /// A handshake has ended in vain, and a challenge in it verified with none of those that were tried.
    pub(crate) fn doubt(&mut self) {
        self.doubts = self.doubts.saturating_add(1);
    }

    /// A session was opened: with which helper data. The row keys of its handshake are forgotten.
    pub(crate) fn opened(&mut self, session: &Session, config: &DeviceConfig) -> Set {
        self.doubts = 0;
        let opening = Opening {
            suite: config.suite,
            device: config.device,
            gateway: session.gateway,
            idx: session.idx,
            response_tag: *session.response_tag(),
        };
        let verified = self
            .keys
            .iter()
            .find(|(_, key)| TicketRoot::derive(key, &opening) == *session.ticket());
        let digest = verified.map(|(digest, _)| *digest);
        self.forget_handshake();
        let all = [Set::Pending, Set::Current];
        let all = all.into_iter().chain((0..self.previous.len()).map(Set::Previous));
        let is_theirs = |set: &Set| match self.credential(*set) {
            Some(Credential::Key(helper)) => Some(helper.digest()) == digest,
            _ => false,
        };
        all.into_iter().find(is_theirs).unwrap_or(Set::Current)
    }

    /// The registry has the key of earlier helper data: they are the file again. The newer ones lie beside it, as in a renewal that has
    /// not ended; where others lie there already, the newer ones are kept as the previous ones.
    ///
    /// # Errors
    /// The file's; each set is still in one of the files then.
    pub(crate) fn restore(&mut self, number: usize) -> io::Result<()> {
        let Some(older) = self.previous.get(number).cloned() else {
            return Ok(());
        };
        let newer = std::mem::replace(&mut self.current, older);
        let path = self.path.as_deref().ok_or(io::ErrorKind::Unsupported)?;
        let kept = match &self.pending {
            None => {
                let kept = replace(&beside(path, PENDING), &newer.to_bytes());
                self.pending = Some(newer);
                kept
            }
            Some(_) => {
                self.previous.insert(0, newer);
                write_previous(path, &self.previous)
            }
        };
        let current = &self.current;
        self.previous.retain(|previous| previous != current);
        kept?;
        replace(path, &self.current.to_bytes())
    }

    /// The rows of the pool that are spent; `None` in key mode.
    pub(crate) fn spent(&self) -> Option<&SpentRows> {
        self.spent.as_ref().map(SpentFile::rows)
    }

    /// A RESPONSE with that row is about to leave, or its ACK has verified. A row that cannot be written down is known to this process
    /// alone, and is written with the next one. The RESPONSE leaves nevertheless: a full disk must not end a device's access.
    pub(crate) fn note_spent(&mut self, row: RowIndex, is_accepted: bool) {
        let Some(spent) = &mut self.spent else {
            return;
        };
        let noted = match is_accepted {
            true => spent.accept(row),
            false => spent.answer(row),
        };
        let Err(error) = noted else {
            self.told_of_spent = false;
            return;
        };
        if !std::mem::replace(&mut self.told_of_spent, true) {
            tracing::error!(
                %error,
                row = row.0,
                action = "make the directory of the helper data writable",
                "spent rows cannot be written; they are written again with each RESPONSE and ACK, until then a restarted device may \
                 answer them to a restored registry"
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
    /// The file's; the new ones are still pending then.
    pub(crate) fn promote(&mut self) -> io::Result<()> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let older = self.previous.iter().take(PREVIOUS_MAX - 1);
        let previous: Vec<Credential> = [&self.current].into_iter().chain(older).cloned().collect();
        let path = self.path()?;
        write_previous(path, &previous)?;
        replace(path, &pending.to_bytes())?;
        let beside = beside(path, PENDING);
        remove(&beside)?;
        sync_parent(&beside)?;
        if let Some(pending) = self.pending.take() {
            self.current = pending;
        }
        self.previous = previous;
        Ok(())
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

fn previous_path(path: &Path, number: usize) -> PathBuf {
    match number {
        0 => beside(path, PREVIOUS),
        _ => beside(path, &format!("{PREVIOUS}.{}", number + 1)),
    }
}

/// They only help after a restore of the registry: a file that cannot be used is left out.
fn read_previous(path: &Path) -> Option<Credential> {
    path.symlink_metadata().ok()?;
    let read = Credential::read_from(path);
    if let Err(error) = &read {
        tracing::warn!(
            %error,
            action = "remove the file",
            "previous helper data cannot be read; after a restore of the registry the device cannot use their key"
        );
    }
    read.ok()
}

/// The oldest first: each is in its new file before its old one is overwritten.
fn write_previous(path: &Path, previous: &[Credential]) -> io::Result<()> {
    for (number, credential) in previous.iter().enumerate().rev() {
        replace(&previous_path(path, number), &credential.to_bytes())?;
    }
    (previous.len()..PREVIOUS_FILES).try_for_each(|number| remove(&previous_path(path, number)))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the helper data of before the renewals of the key in `helper`, as far as that succeeds: after a new enrolment they open no
/// session.
pub fn remove_previous(helper: &Path) {
    for number in 0..PREVIOUS_FILES {
        let _ = remove(&previous_path(helper, number));
    }
}

#[cfg(test)]
mod tests;
