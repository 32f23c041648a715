//! Signers whose messages are refused from now on.
//!
//! A text file: the line `linewarden revoked 1`, a line for each signer, the line `end`. A signer's line has its id and, behind a blank,
//! anything. Lines that begin with `#`, and empty ones, say nothing. Nothing but those stands before the first line and behind the last: a file that is
//! empty, cut short or only written in part says so, and does not revoke fewer signers than it should.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linewarden_files::read_text_bounded;

use crate::message::KeyId;

/// 17 bytes a line: some four million signers.
const FILE_BYTES_MAX: usize = 64 << 20;
const FIRST_LINE: &str = "linewarden revoked 1";
const LAST_LINE: &str = "end";

/// Who is revoked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations(Arc<HashSet<KeyId>>);

/// Why a list cannot be used. The one before it stays in force.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// The file cannot be read, is no regular file, or too long.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// It is no list, or not all of one.
    #[error("{path}{fault}")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        fault: NotAList,
    },
}

/// What is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAList {
    /// It begins otherwise.
    #[error(": its first line is not {FIRST_LINE:?}: it is empty, cut off, or another file")]
    First,
    /// It ends otherwise.
    #[error(": its last line is not {LAST_LINE:?}: it may have been cut off")]
    Last,
    /// A line is none.
    #[error(":{line}: {text:?} is no signer's id: 16 hexadecimal digits are")]
    Line {
        /// Which line, from 1.
        line: usize,
        /// What it begins with.
        text: String,
    },
    /// A line has bytes in it that no text has.
    #[error(":{line}: control characters")]
    Control {
        /// Which line, from 1.
        line: usize,
    },
    /// There is more.
    #[error(":{line}: there is more behind the line {LAST_LINE:?}")]
    More {
        /// Which line, from 1.
        line: usize,
    },
}

impl Revocations {
    /// Reads a list, whole or not at all.
    ///
    /// # Errors
    /// A file that cannot be read, is not whole, or has a line that is none.
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

    fn parse(text: &str) -> Result<Self, NotAList> {
        // What a crash has left unwritten is zeros; within a remark they would hide lines.
        let hole = (1..)
            .zip(text.lines())
            .find(|(_, line)| line.contains(|c: char| c.is_control() && c != '\t' && c != '\r'));
        if let Some((line, _)) = hole {
            return Err(NotAList::Control { line });
        }
        let mut lines = (1..)
            .zip(text.lines().map(str::trim_ascii))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        if lines.next().is_none_or(|(_, line)| line != FIRST_LINE) {
            return Err(NotAList::First);
        }
        let mut revoked = HashSet::new();
        loop {
            let (line, text) = lines.next().ok_or(NotAList::Last)?;
            if text == LAST_LINE {
                break;
            }
            let id = text.split_ascii_whitespace().next().unwrap_or_default();
            let id = id.parse().map_err(|_| NotAList::Line {
                line,
                text: id.chars().take(40).collect(),
            })?;
            revoked.insert(id);
        }
        match lines.next() {
            Some((line, _)) => Err(NotAList::More { line }),
            None => Ok(Self(Arc::new(revoked))),
        }
    }

    /// Whether this signer is revoked.
    #[must_use]
    pub fn contains(&self, signer: KeyId) -> bool {
        self.0.contains(&signer)
    }

    /// Those of this list that another does not have, in order.
    #[must_use]
    pub fn without(&self, other: &Self) -> Vec<KeyId> {
        let mut missing: Vec<KeyId> = self.0.difference(&other.0).copied().collect();
        missing.sort_unstable();
        missing
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
    fn a_list_that_is_cut_anywhere_or_blanked_is_none() {
        let whole = LIST.find("end").unwrap() + "end".len();
        for length in 0..LIST.len() {
            let cut = Revocations::parse(&LIST[..length]);
            assert_eq!(cut.is_ok(), length >= whole, "{length} bytes");
            if length >= whole {
                continue;
            }
            // As a file system may leave what was not yet written.
            let mut blanked = LIST[..length].to_owned();
            blanked.extend(std::iter::repeat_n('\0', LIST.len() - length));
            assert!(
                Revocations::parse(&blanked).is_err(),
                "{length} bytes, then zeros"
            );
        }
        for (from, to) in (0..whole).flat_map(|from| (from + 1..=whole).map(move |to| (from, to))) {
            let zeros = "\0".repeat(to - from);
            let blanked = [&LIST[..from], &zeros, &LIST[to..]].concat();
            assert!(Revocations::parse(&blanked).is_err(), "zeros from {from} to {to}");
        }
        assert_eq!(Revocations::parse(""), Err(NotAList::First));
        // The form of before, which had neither line.
        assert_eq!(Revocations::parse("0011223344556677\n"), Err(NotAList::First));
        assert_eq!(
            Revocations::parse(&format!("{LIST}0011223344556678\n")),
            Err(NotAList::More { line: 10 })
        );
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (text, line) in [
            ("0011223344556677\n00112233445566\nend", 3),
            ("zz11223344556677\nend", 2),
            ("-\n", 2),
            ("linewarden revoked 1\nend", 2),
        ] {
            let fault = Revocations::parse(&format!("linewarden revoked 1\n{text}")).unwrap_err();
            assert!(
                matches!(fault, NotAList::Line { line: at, .. } if at == line),
                "{text}: {fault}"
            );
        }
    }

    #[test]
    fn who_is_on_a_list_no_longer_is_told() {
        let of = |ids: &[u64]| -> Revocations { ids.iter().map(|id| KeyId(id.to_be_bytes())).collect() };
        let before = of(&[9, 3, 5]);
        assert_eq!(
            before.without(&of(&[5, 7])),
            [3, 9].map(|id: u64| KeyId(id.to_be_bytes()))
        );
        assert!(before.without(&before.clone()).is_empty());
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
        // Longer than a list can be, without a block on the disk.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(FILE_BYTES_MAX as u64 + 1).unwrap();
        let error = Revocations::read(&path).unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }
}
