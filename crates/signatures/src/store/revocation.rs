//! Revoked signers, whose messages are refused.
//!
//! A text file: the line `linewarden revoked 1`, a line for each signer, the line `end`. The line of a signer has its id and, after a
//! space, an optional comment. Empty lines and lines that begin with `#` are ignored. No other lines are allowed before the first and after
//! the last line. A file that is empty, truncated or partly written, and would revoke too few signers, is therefore
//! refused.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linewarden_files::read_text_bounded;

use crate::message::KeyId;

/// Maximum length of a file: with 17 bytes a line, about four million signers.
const FILE_BYTES_MAX: usize = 64 << 20;
const FIRST_LINE: &str = "linewarden revoked 1";
const LAST_LINE: &str = "end";

/// The revoked signers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations(Arc<HashSet<KeyId>>);

/// Why a list cannot be used. The previous list stays in force.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// The file cannot be read, is not a regular file, or is too long.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not a complete list.
    #[error("{path}{fault}")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Position and error.
        fault: RevocationListFault,
    },
}

/// Error in the text of a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevocationListFault {
    /// The first line is invalid.
    #[error(": first line is not {FIRST_LINE:?}: the file is empty, truncated, or another file")]
    FirstLine,
    /// The last line is invalid.
    #[error(": last line is not {LAST_LINE:?}: the file may be truncated")]
    LastLine,
    /// A line is not a signer's id.
    #[error(":{line}: invalid signer id {text:?}; expected 16 hexadecimal digits")]
    InvalidLine {
        /// Line number, from 1.
        line: usize,
        /// Beginning of the line.
        text: String,
    },
    /// A line has control characters.
    #[error(":{line}: control characters")]
    ControlCharacters {
        /// Line number, from 1.
        line: usize,
    },
    /// Text follows the last line.
    #[error(":{line}: unexpected text after the line {LAST_LINE:?}")]
    TrailingContent {
        /// Line number, from 1.
        line: usize,
    },
}

impl Revocations {
    /// Reads a list, completely or not at all.
    ///
    /// # Errors
    /// The file cannot be read, is incomplete, or has an invalid line.
    pub fn read(path: &Path) -> Result<Self, RevocationError> {
        let text = read_text_bounded(path, FILE_BYTES_MAX).map_err(|source| RevocationError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|fault| RevocationError::Malformed {
            path: path.to_owned(),
            fault,
        })
    }

    fn parse(text: &str) -> Result<Self, RevocationListFault> {
        // After a crash, unwritten blocks of a file contain zero bytes. If such a block began within a comment, the
        // comment would continue in it, and the lines of the block would be missing.
        let control_characters = (1..)
            .zip(text.lines())
            .find(|(_, line)| line.contains(|c: char| c.is_control() && c != '\t' && c != '\r'));
        if let Some((line, _)) = control_characters {
            return Err(RevocationListFault::ControlCharacters { line });
        }
        let mut lines = (1..)
            .zip(text.lines().map(str::trim_ascii))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        if lines.next().is_none_or(|(_, line)| line != FIRST_LINE) {
            return Err(RevocationListFault::FirstLine);
        }
        let mut revoked = HashSet::new();
        loop {
            let (line, text) = lines.next().ok_or(RevocationListFault::LastLine)?;
            if text == LAST_LINE {
                break;
            }
            let id = text.split_ascii_whitespace().next().unwrap_or_default();
            let id = id.parse().map_err(|_| RevocationListFault::InvalidLine {
                line,
                text: id.chars().take(40).collect(),
            })?;
            revoked.insert(id);
        }
        match lines.next() {
            Some((line, _)) => Err(RevocationListFault::TrailingContent { line }),
            None => Ok(Self(Arc::new(revoked))),
        }
    }

    /// Whether this signer is revoked.
    #[must_use]
    pub fn contains(&self, signer: KeyId) -> bool {
        self.0.contains(&signer)
    }

    /// The signers of this list that `other` does not have, in order.
    #[must_use]
    pub fn without(&self, other: &Self) -> Vec<KeyId> {
        let mut missing: Vec<KeyId> = self.0.difference(&other.0).copied().collect();
        missing.sort_unstable();
        missing
    }

    /// Number of signers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<KeyId> for Revocations {
    fn from_iter<I: IntoIterator<Item = KeyId>>(signers: I) -> Self {
        Self(Arc::new(signers.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# of Monday\n\nlinewarden revoked 1\n# stolen\n0011223344556677 stolen on Monday\n\n  AABBCCDDEEFF0011\r\nend\n# so far\n";

    #[test]
    fn a_list_has_comments_reasons_and_any_case() {
        let list = Revocations::parse(LIST).unwrap();
        assert_eq!(list.len(), 2);
        assert!(list.contains("0011223344556677".parse().unwrap()));
        assert!(list.contains("aabbccddeeff0011".parse().unwrap()));
        assert!(!list.contains("0011223344556678".parse().unwrap()));
        assert!(
            Revocations::parse("linewarden revoked 1\nend")
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_truncated_or_blanked_list_is_refused() {
        let complete_length = LIST.find("end").unwrap() + "end".len();
        for length in 0..LIST.len() {
            let result = Revocations::parse(&LIST[..length]);
            assert_eq!(result.is_ok(), length >= complete_length, "{length} bytes");
            if length >= complete_length {
                continue;
            }
            // A file system may leave unwritten parts as zeros.
            let mut blanked = LIST[..length].to_owned();
            blanked.extend(std::iter::repeat_n('\0', LIST.len() - length));
            assert!(
                Revocations::parse(&blanked).is_err(),
                "{length} bytes, then zeros"
            );
        }
        for (from, to) in
            (0..complete_length).flat_map(|from| (from + 1..=complete_length).map(move |to| (from, to)))
        {
            let zeros = "\0".repeat(to - from);
            let blanked = [&LIST[..from], &zeros, &LIST[to..]].concat();
            assert!(Revocations::parse(&blanked).is_err(), "zeros from {from} to {to}");
        }
        assert_eq!(Revocations::parse(""), Err(RevocationListFault::FirstLine));
        // An earlier format, without the first and the last line.
        assert_eq!(
            Revocations::parse("0011223344556677\n"),
            Err(RevocationListFault::FirstLine)
        );
        assert_eq!(
            Revocations::parse(&format!("{LIST}0011223344556678\n")),
            Err(RevocationListFault::TrailingContent { line: 10 })
        );
    }

    #[test]
    fn an_invalid_line_is_reported() {
        for (text, line) in [
            ("0011223344556677\n00112233445566\nend", 3),
            ("zz11223344556677\nend", 2),
            ("-\n", 2),
            ("linewarden revoked 1\nend", 2),
        ] {
            let fault = Revocations::parse(&format!("linewarden revoked 1\n{text}")).unwrap_err();
            assert!(
                matches!(fault, RevocationListFault::InvalidLine { line: reported_line, .. } if reported_line == line),
                "{text}: {fault}"
            );
        }
    }

    #[test]
    fn removed_signers_are_reported() {
        let list_of = |ids: &[u64]| -> Revocations { ids.iter().map(|id| KeyId(id.to_be_bytes())).collect() };
        let previous = list_of(&[9, 3, 5]);
        assert_eq!(
            previous.without(&list_of(&[5, 7])),
            [3, 9].map(|id: u64| KeyId(id.to_be_bytes()))
        );
        assert!(previous.without(&previous.clone()).is_empty());
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
        std::fs::write(&path, LIST).unwrap();
        assert_eq!(Revocations::read(&path).unwrap().len(), 2);
        // A sparse file that is longer than a list can be.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(FILE_BYTES_MAX as u64 + 1).unwrap();
        let error = Revocations::read(&path).unwrap_err();
        assert!(error.to_string().contains("file too long"), "{error}");
    }
}
