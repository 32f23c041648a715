//! Signers whose messages are refused from now on.
//!
//! A text file, a line for each: a signer's id and, behind a blank, anything. Lines that begin with `#`, and empty ones, say nothing.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use linewarden_files::read_text_bounded;

use crate::message::KeyId;

/// 17 bytes a line: some four million signers.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Who is revoked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations(HashSet<KeyId>);

/// Why a list cannot be used. The one before it stays in force.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A line is none.
    #[error("{path}:{line}: {text:?} is no signer's id: 16 hexadecimal digits are")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What it begins with.
        text: String,
    },
}

impl Revocations {
    /// Reads a list, whole or not at all.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is none.
    pub fn read(path: &Path) -> Result<Self, RevocationError> {
        let text = read_text_bounded(path, FILE_BYTES_MAX).map_err(|source| RevocationError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|(line, text)| RevocationError::Line {
            path: path.to_owned(),
            line,
            text,
        })
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut revoked = HashSet::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let id = line.split_ascii_whitespace().next().unwrap_or_default();
            let id = id
                .parse()
                .map_err(|_| (index + 1, id.chars().take(40).collect()))?;
            revoked.insert(id);
        }
        Ok(Self(revoked))
    }

    /// Whether this signer is revoked.
    #[must_use]
    pub fn contains(&self, signer: KeyId) -> bool {
        self.0.contains(&signer)
    }

    /// How many are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<KeyId> for Revocations {
    fn from_iter<I: IntoIterator<Item = KeyId>>(signers: I) -> Self {
        Self(signers.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_comments_reasons_and_any_case() {
        let list =
            Revocations::parse("# stolen\n\n0011223344556677 stolen on Monday\n  AABBCCDDEEFF0011\r\n")
                .unwrap();
        assert_eq!(list.len(), 2);
        assert!(list.contains("0011223344556677".parse().unwrap()));
        assert!(list.contains("aabbccddeeff0011".parse().unwrap()));
        assert!(!list.contains("0011223344556678".parse().unwrap()));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (text, line) in [
            ("0011223344556677\n00112233445566\n", 2),
            ("zz11223344556677", 1),
            ("-", 1),
        ] {
            assert_eq!(Revocations::parse(text).unwrap_err().0, line);
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("revoked");
        assert!(matches!(
            Revocations::read(&path),
            Err(RevocationError::Io { .. })
        ));
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(
            Revocations::read(&path),
            Err(RevocationError::Io { .. })
        ));
        std::fs::write(&path, "0011223344556677").unwrap();
        assert_eq!(Revocations::read(&path).unwrap().len(), 1);
    }
}
