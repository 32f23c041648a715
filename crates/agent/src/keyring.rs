//! A device's helper data on disk, with the helper data that a renewal adds or replaces, and the spent rows of a pool.
//!
//! In pool mode the file only grows: existing rows never change, so the longer file replaces the shorter one before any
//! new row is registered. In key mode new helper data are stored in a separate file (`.new`) until a session or a
//! response shows that the registry has the new key. Until then the device tries the new and the old helper data, the
//! new ones first. After a crash at any moment, the device can therefore authenticate.
//!
//! The helper data from before the last three renewals remain as `.previous`, `.previous.2` and `.previous.3`, the
//! newest first: a registry that is restored to an earlier state has one of their keys. After a handshake in which a
//! challenge did not verify, the device also tries these helper data. If they open a session, the device sends the
//! newer key to the registry again.
//!
//! In key mode the device state machine keeps all row keys of a handshake, and a challenge may verify with any of them.
//! The set of helper data that opened a session is therefore not always the last set that was read. The ticket root of
//! the session, which is derived from that set's key, shows which set opened the session.

use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{replace, sync_parent};
use linewarden_protocol::device::{DeviceConfig, PufQuery, Session};
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::keys::RowKey;
use linewarden_protocol::ticket::{TicketRoot, TicketSession};

use crate::credential::Credential;
use crate::error::CredentialError;
use crate::spent::{SpentFile, SpentRows};

/// Failed handshakes after which previous helper data are tried too.
const UNVERIFIED_HANDSHAKES_MIN: u32 = 1;
/// Number of previous helper data that are kept.
const PREVIOUS_MAX: usize = 3;
/// Number of files for previous helper data: one more than [`PREVIOUS_MAX`], so that no set is overwritten while two
/// sets are exchanged.
const PREVIOUS_FILES: usize = PREVIOUS_MAX + 1;
/// Maximum number of row keys that are kept for one handshake: one per set of helper data.
const KEYS_MAX: usize = PREVIOUS_FILES + 2;

/// One set of helper data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CredentialSet {
    Pending,
    Current,
    /// Previous helper data; the newest has number 0.
    Previous(usize),
}

/// The helper data in use, and the helper data that may replace them.
#[derive(Debug)]
pub struct Keyring {
    current: Credential,
    pending: Option<Credential>,
    /// Previous helper data, the newest first.
    previous: Vec<Credential>,
    /// Path of the helper data; `None` if they are never renewed.
    path: Option<PathBuf>,
    /// The set that was read last in this handshake.
    last_read: Option<CredentialSet>,
    /// Key mode: digests of the helper data that were read in this handshake, and their row keys. The capacity is fixed, so that
    /// reallocation leaves no copy of a key in memory.
    keys: Vec<([u8; 32], RowKey)>,
    /// Number of failed handshakes since the last session. Only handshakes in which a CHALLENGE had a wrong tag count.
    unverified_handshakes: u32,
    /// `None` in key mode.
    spent: Option<SpentFile>,
    /// Whether a write error was logged since the last successful write of spent rows.
    spent_error_logged: bool,
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
            last_read: None,
            keys: Vec::with_capacity(KEYS_MAX),
            unverified_handshakes: 0,
            spent_error_logged: false,
        }
    }

    /// Reads a helper data file of an enrollment, and the files of its renewals.
    ///
    /// # Errors
    /// As [`Credential::read_from`].
    pub fn read_from(path: &Path) -> Result<Self, CredentialError> {
        let current = Credential::read_from(path)?;
        let pending = sibling_path(path, PENDING);
        let pending = match pending.symlink_metadata() {
            Ok(_) => Some(Credential::read_from(&pending)?),
            Err(_) => None,
        };
        let are_keys =
            |credential: &Credential| current.mode() == Mode::Key && credential.mode() == Mode::Key;
        let pending = pending.filter(|pending| are_keys(pending) && *pending != current);
        let mut previous: Vec<Credential> = Vec::new();
        for older in (0..PREVIOUS_FILES).filter_map(|number| read_previous(&previous_path(path, number))) {
            let newer = previous.iter().chain(&pending).chain([&current]);
            if are_keys(&older) && newer.into_iter().all(|newer| *newer != older) {
                previous.push(older);
            }
        }
        Ok(Self {
            previous,
            pending,
            spent: SpentFile::read_for(path, &current)?,
            current,
            path: Some(path.to_owned()),
            last_read: None,
            keys: Vec::with_capacity(KEYS_MAX),
            unverified_handshakes: 0,
            spent_error_logged: false,
        })
    }

    /// The helper data in use.
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

    /// Reads the PUF with the next set of helper data. While the key in the registry is unknown, the sets are used in turn, the
    /// pending set first.
    ///
    /// # Errors
    /// The error of `read`.
    pub(crate) fn read_next<E>(
        &mut self,
        read: impl FnOnce(&Credential) -> Result<RowKey, E>,
    ) -> Result<RowKey, E> {
        let set = self.next_to_read();
        self.last_read = Some(set);
        let credential = self.credential(set).unwrap_or(&self.current);
        let key = read(credential)?;
        if let Credential::Key(helper) = credential {
            let digest = helper.digest();
            self.cache_key(digest, &key);
        }
        Ok(key)
    }

    fn cache_key(&mut self, digest: [u8; 32], key: &RowKey) {
        let is_full = self.keys.len() >= KEYS_MAX;
        let index = self.keys.iter().position(|(cached, _)| *cached == digest);
        let index = index.or(is_full.then_some(KEYS_MAX - 1));
        match index.and_then(|index| self.keys.get_mut(index)) {
            Some(entry) => *entry = (digest, key.clone()),
            None => self.keys.push((digest, key.clone())),
        }
    }

    /// The set after `last_read`, in the order pending, current, previous. The first set follows the last set.
    fn next_to_read(&self) -> CredentialSet {
        let previous_count = match self.unverified_handshakes >= UNVERIFIED_HANDSHAKES_MIN {
            true => self.previous.len(),
            false => 0,
        };
        let pending = self.pending.as_ref().map(|_| CredentialSet::Pending);
        let mut sets = pending
            .into_iter()
            .chain([CredentialSet::Current])
            .chain((0..previous_count).map(CredentialSet::Previous));
        let first = sets.clone().next().unwrap_or(CredentialSet::Current);
        if self.last_read.is_some() && !sets.any(|set| Some(set) == self.last_read) {
            return first;
        }
        sets.next().unwrap_or(first)
    }

    fn credential(&self, set: CredentialSet) -> Option<&Credential> {
        match set {
            CredentialSet::Pending => self.pending.as_ref(),
            CredentialSet::Current => Some(&self.current),
            CredentialSet::Previous(number) => self.previous.get(number),
        }
    }

    /// Forgets the row keys of a handshake, at its start or after its failure.
    pub(crate) fn forget_handshake(&mut self) {
        self.last_read = None;
        self.keys.clear();
    }

    /// Records a failed handshake in which a CHALLENGE had a wrong tag.
    pub(crate) fn record_unverified_handshake(&mut self) {
        self.unverified_handshakes = self.unverified_handshakes.saturating_add(1);
    }

    /// Determines which set opened the session, and forgets the row keys of its handshake.
    pub(crate) fn identify_opening_set(&mut self, session: &Session, config: &DeviceConfig) -> CredentialSet {
        self.unverified_handshakes = 0;
        let ticket_session = TicketSession {
            suite: config.suite,
            device: config.device,
            gateway: session.gateway,
            idx: session.idx,
            response_tag: *session.response_tag(),
        };
        let verified = self
            .keys
            .iter()
            .find(|(_, key)| TicketRoot::derive(key, &ticket_session) == *session.ticket_root());
        let digest = verified.map(|(digest, _)| *digest);
        self.forget_handshake();
        let sets = [CredentialSet::Pending, CredentialSet::Current];
        let sets = sets
            .into_iter()
            .chain((0..self.previous.len()).map(CredentialSet::Previous));
        let has_verified_digest = |set: &CredentialSet| match self.credential(*set) {
            Some(Credential::Key(helper)) => Some(helper.digest()) == digest,
            _ => false,
        };
        sets.into_iter()
            .find(has_verified_digest)
            .unwrap_or(CredentialSet::Current)
    }

    /// Makes previous helper data current, because the registry has their key. The newer helper data become pending, or
    /// previous if other helper data are pending already.
    ///
    /// # Errors
    /// Writing a file fails; each set is then still in one of the files.
    pub(crate) fn restore(&mut self, number: usize) -> io::Result<()> {
        let Some(older) = self.previous.get(number).cloned() else {
            return Ok(());
        };
        let newer = std::mem::replace(&mut self.current, older);
        let path = self.path.as_deref().ok_or(io::ErrorKind::Unsupported)?;
        let write_result = match &self.pending {
            None => {
                let write_result = replace(&sibling_path(path, PENDING), &newer.to_bytes());
                self.pending = Some(newer);
                write_result
            }
            Some(_) => {
                self.previous.insert(0, newer);
                write_previous(path, &self.previous)
            }
        };
        let current = &self.current;
        self.previous.retain(|previous| previous != current);
        write_result?;
        replace(path, &self.current.to_bytes())
    }

    /// The spent rows of the pool; `None` in key mode.
    pub(crate) fn spent(&self) -> Option<&SpentRows> {
        self.spent.as_ref().map(SpentFile::rows)
    }

    /// Records a row, before its RESPONSE is sent or after its ACK has verified. If the write fails, the row stays in
    /// memory, and is written with the next row. The RESPONSE is sent nevertheless: a full disk must not end a device's
    /// access.
    pub(crate) fn record_spent_row(&mut self, row: RowIndex, is_accepted: bool) {
        let Some(spent) = &mut self.spent else {
            return;
        };
        let write_result = match is_accepted {
            true => spent.mark_accepted(row),
            false => spent.mark_answered(row),
        };
        let Err(error) = write_result else {
            self.spent_error_logged = false;
            return;
        };
        if !std::mem::replace(&mut self.spent_error_logged, true) {
            tracing::error!(
                %error,
                row = row.0,
                action = "make the directory of the helper data writable",
                "writing spent rows failed; retrying with each RESPONSE and ACK; until then a restarted device may answer a spent row of a \
                 restored registry"
            );
        }
    }

    /// Replaces the file by longer helper data.
    ///
    /// # Errors
    /// Writing fails; the old content is unchanged then.
    pub(crate) fn extend(&mut self, longer: Credential) -> io::Result<()> {
        replace(self.path()?, &longer.to_bytes())?;
        self.current = longer;
        Ok(())
    }

    /// Stores pending helper data in their own file.
    ///
    /// # Errors
    /// Writing the file fails.
    pub(crate) fn store_pending(&mut self, pending: Credential) -> io::Result<()> {
        replace(&sibling_path(self.path()?, PENDING), &pending.to_bytes())?;
        self.pending = Some(pending);
        Ok(())
    }

    /// Makes the pending helper data current, because the registry has their key. The old helper data become previous helper
    /// data.
    ///
    /// # Errors
    /// Writing a file fails; the helper data are still pending then.
    pub(crate) fn promote(&mut self) -> io::Result<()> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let older = self.previous.iter().take(PREVIOUS_MAX - 1);
        let previous: Vec<Credential> = [&self.current].into_iter().chain(older).cloned().collect();
        let path = self.path()?;
        write_previous(path, &previous)?;
        replace(path, &pending.to_bytes())?;
        let pending_path = sibling_path(path, PENDING);
        remove(&pending_path)?;
        sync_parent(&pending_path)?;
        if let Some(pending) = self.pending.take() {
            self.current = pending;
        }
        self.previous = previous;
        Ok(())
    }

    fn path(&self) -> io::Result<&Path> {
        self.path.as_deref().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "helper data were not read from a file",
            )
        })
    }
}

const PENDING: &str = ".new";
const PREVIOUS: &str = ".previous";

fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

fn previous_path(path: &Path, number: usize) -> PathBuf {
    match number {
        0 => sibling_path(path, PREVIOUS),
        _ => sibling_path(path, &format!("{PREVIOUS}.{}", number + 1)),
    }
}

/// Reads previous helper data. They only help after a restore of the registry, so an unusable file is skipped.
fn read_previous(path: &Path) -> Option<Credential> {
    path.symlink_metadata().ok()?;
    let credential = Credential::read_from(path);
    if let Err(error) = &credential {
        tracing::warn!(
            %error,
            action = "remove the file",
            "reading previous helper data failed; after a restore of the registry the device cannot use their key"
        );
    }
    credential.ok()
}

/// Writes previous helper data, the oldest first, so that each set is in its new file before its old file is overwritten.
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

/// Removes previous helper data, which open no session after a new enrollment. Errors are ignored.
pub fn remove_previous(helper: &Path) {
    for number in 0..PREVIOUS_FILES {
        let _ = remove(&previous_path(helper, number));
    }
}

#[cfg(test)]
mod tests;
