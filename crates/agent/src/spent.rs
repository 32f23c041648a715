//! Which rows of a pool the device has answered, and which were accepted, as they lie on disk beside the helper data (LAP/1 1.5).
//!
//! A row whose ACK verified is never answered again, by no process of this device, whatever a registry says that was put back to an
//! earlier state. A row that was answered and not acknowledged may be asked for again, for its RESPONSE may be lost. What is
//! written is on the disk before the RESPONSE leaves, and again when the ACK has come: two files of some hundred bytes for each
//! authentication.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::{read_bounded, replace};
use linewarden_protocol::ids::RowIndex;
use sha2::{Digest as _, Sha256};

use crate::credential::Credential;

const MAGIC: &[u8; 8] = b"LWSPENT\x01";
const HEAD_BYTES: usize = MAGIC.len() + POOL_BYTES + 4;
const POOL_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;
/// Of a pool of 2^24 rows of which every other one is spent.
const FILE_BYTES_MAX: usize = 1 << 26;

/// Why a file of spent rows cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpentError {
    /// It cannot be read.
    #[error("{}: {source}; it lists the rows that this device has spent", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its content is not what was written.
    #[error(
        "{}: the list of spent rows is damaged; enrol the device anew, or remove the file if the registry was never put back to an earlier state",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// The rows of one pool that were answered, and those of them that were accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpentRows {
    /// Which pool: rows of another enrolment have the same numbers.
    pool: [u8; POOL_BYTES],
    /// Above every row that was answered.
    unanswered_from: u32,
    /// Rows whose ACK verified, as first and end; none touches another.
    accepted: BTreeMap<u32, u32>,
}

impl SpentRows {
    /// Of a pool of which nothing is spent. `None` in key mode.
    #[must_use]
    pub fn of(credential: &Credential) -> Option<Self> {
        let Credential::Pool(helper) = credential else {
            return None;
        };
        let first = helper.first_idx();
        let mut hash = Sha256::new();
        hash.update(b"linewarden pool");
        hash.update(first.to_be_bytes());
        // Rows are added behind it, and it stays.
        hash.update(helper.digest(first).unwrap_or_default());
        let mut pool = [0; POOL_BYTES];
        pool.copy_from_slice(hash.finalize().get(..POOL_BYTES)?);
        Some(Self {
            pool,
            ..Self::default()
        })
    }

    /// The lowest row from which on nothing was answered.
    #[must_use]
    pub fn unanswered_from(&self) -> RowIndex {
        RowIndex(self.unanswered_from)
    }

    /// Whether its ACK has verified.
    #[must_use]
    pub fn is_accepted(&self, row: RowIndex) -> bool {
        let before = self.accepted.range(..=row.0).next_back();
        before.is_some_and(|(_, end)| row.0 < *end)
    }

    /// A RESPONSE with that row is about to leave; whether that is new.
    pub fn answer(&mut self, row: RowIndex) -> bool {
        let above = row.0.saturating_add(1);
        let is_new = above > self.unanswered_from;
        self.unanswered_from = self.unanswered_from.max(above);
        is_new
    }

    /// An ACK for that row has verified; whether that is new.
    pub fn accept(&mut self, row: RowIndex) -> bool {
        if self.is_accepted(row) {
            return false;
        }
        self.answer(row);
        let (mut first, mut end) = (row.0, row.0.saturating_add(1));
        if let Some(behind) = self.accepted.remove(&end) {
            end = behind;
        }
        if let Some((before, _)) = self
            .accepted
            .range(..first)
            .next_back()
            .filter(|(_, e)| **e == first)
        {
            first = *before;
        }
        self.accepted.insert(first, end);
        true
    }

    /// The file's content.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + 8 * self.accepted.len() + DIGEST_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.pool);
        bytes.extend_from_slice(&self.unanswered_from.to_be_bytes());
        for (first, end) in &self.accepted {
            bytes.extend_from_slice(&first.to_be_bytes());
            bytes.extend_from_slice(&end.to_be_bytes());
        }
        let digest = Sha256::digest(&bytes);
        bytes.extend_from_slice(&digest);
        bytes
    }

    /// Reads what [`SpentRows::to_bytes`] has made; `None` if it is anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (text, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST_BYTES)?)?;
        if Sha256::digest(text)[..] != *digest {
            return None;
        }
        let rest = text.strip_prefix(MAGIC)?;
        let (pool, rest) = rest.split_first_chunk::<POOL_BYTES>()?;
        let (unanswered_from, mut rest) = rest.split_first_chunk::<4>()?;
        let mut rows = Self {
            pool: *pool,
            unanswered_from: u32::from_be_bytes(*unanswered_from),
            accepted: BTreeMap::new(),
        };
        while let Some((first, behind)) = rest.split_first_chunk::<4>() {
            let (end, behind) = behind.split_first_chunk::<4>()?;
            rows.accepted
                .insert(u32::from_be_bytes(*first), u32::from_be_bytes(*end));
            rest = behind;
        }
        rest.is_empty().then_some(rows)
    }
}

/// The same on disk.
#[derive(Debug)]
pub struct SpentFile {
    rows: SpentRows,
    /// `None`: they are forgotten with this process.
    path: Option<PathBuf>,
}

impl SpentFile {
    /// Reads what lies beside the helper data in `helper`; of another pool than theirs it says nothing. `None` in key mode.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn read_beside(helper: &Path, credential: &Credential) -> Result<Option<Self>, SpentError> {
        let Some(blank) = SpentRows::of(credential) else {
            return Ok(None);
        };
        let path = beside(helper);
        let rows = match read_bounded(&path, FILE_BYTES_MAX) {
            Ok(bytes) => {
                SpentRows::from_bytes(&bytes).ok_or_else(|| SpentError::Damaged { path: path.clone() })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => blank.clone(),
            Err(source) => return Err(SpentError::Read { path, source }),
        };
        let rows = if rows.pool == blank.pool { rows } else { blank };
        Ok(Some(Self {
            rows,
            path: Some(path),
        }))
    }

    /// In memory only, for helper data that come from no file. `None` in key mode.
    #[must_use]
    pub fn in_memory(credential: &Credential) -> Option<Self> {
        SpentRows::of(credential).map(|rows| Self { rows, path: None })
    }

    /// The rows.
    #[must_use]
    pub fn rows(&self) -> &SpentRows {
        &self.rows
    }

    /// A RESPONSE with that row is about to leave: notes it, durably.
    ///
    /// # Errors
    /// The file's; in memory it is noted all the same.
    pub fn answer(&mut self, row: RowIndex) -> io::Result<()> {
        match self.rows.answer(row) {
            true => self.write(),
            false => Ok(()),
        }
    }

    /// An ACK for that row has verified: notes it, durably.
    ///
    /// # Errors
    /// As [`SpentFile::answer`].
    pub fn accept(&mut self, row: RowIndex) -> io::Result<()> {
        match self.rows.accept(row) {
            true => self.write(),
            false => Ok(()),
        }
    }

    fn write(&self) -> io::Result<()> {
        match &self.path {
            Some(path) => replace(path, &self.rows.to_bytes()),
            None => Ok(()),
        }
    }
}

fn beside(helper: &Path) -> PathBuf {
    let mut name: OsString = helper.file_name().unwrap_or_default().to_owned();
    name.push(".spent");
    helper.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_rows_join_in_whatever_order_they_come() {
        let mut rows = SpentRows::default();
        for row in [5, 3, 16, 4, 15, 0] {
            assert!(rows.accept(RowIndex(row)));
            assert!(!rows.accept(RowIndex(row)));
        }
        assert_eq!(rows.accepted, BTreeMap::from([(0, 1), (3, 6), (15, 17)]));
        assert_eq!(rows.unanswered_from(), RowIndex(17));
        for (row, is_accepted) in [
            (0, true),
            (1, false),
            (3, true),
            (5, true),
            (6, false),
            (16, true),
            (17, false),
        ] {
            assert_eq!(rows.is_accepted(RowIndex(row)), is_accepted, "{row}");
        }
        assert_eq!(SpentRows::from_bytes(&rows.to_bytes()), Some(rows));
    }

    #[test]
    fn an_answered_row_is_not_spent_and_raises_the_statement() {
        let mut rows = SpentRows::default();
        assert!(rows.answer(RowIndex(7)));
        assert!(!rows.answer(RowIndex(7)));
        assert!(!rows.is_accepted(RowIndex(7)));
        assert!(!rows.answer(RowIndex(3)), "it never falls");
        assert_eq!(rows.unanswered_from(), RowIndex(8));
        let read = SpentRows::from_bytes(&rows.to_bytes());
        assert_eq!(read, Some(rows));
    }

    #[test]
    fn what_is_not_as_it_was_written_is_refused() {
        let mut rows = SpentRows::default();
        rows.accept(RowIndex(1));
        let bytes = rows.to_bytes();
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert_eq!(SpentRows::from_bytes(&altered), None, "byte {at}");
            assert_eq!(SpentRows::from_bytes(&bytes[..at]), None, "{at} bytes");
        }
    }
}
