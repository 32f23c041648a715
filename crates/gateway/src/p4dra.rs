//! The prover file of `p4dra-classic`.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use linewarden_dataplane::P4draProver;
use linewarden_files::{PrivateFileError, read_private};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::ProverId;
use zeroize::Zeroizing;

/// The reason why a prover file cannot be used. No message contains file content.
#[derive(Debug, thiserror::Error)]
pub enum ProverFileError {
    /// Reading failed, or the file's permissions allow access by other users.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        source: PrivateFileError,
    },
    /// The file is too long.
    #[error("{}: longer than {FILE_BYTES_MAX} bytes; check that this is a prover file", path.display())]
    Long {
        /// The file.
        path: PathBuf,
    },
    /// A line is invalid.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
}

impl ProverFileError {
    /// Whether other users may have read or written the keys.
    #[must_use]
    pub fn is_unsafe(&self) -> bool {
        let Self::Read { source, .. } = self else {
            return false;
        };
        matches!(source, PrivateFileError::Unsafe { .. })
    }
}

/// Maximum size of a file, bytes: a million provers with comments.
const FILE_BYTES_MAX: usize = 256 << 20;

/// Reads a prover file. The file contains keys, so only its owner may have access.
///
/// # Errors
/// The file, the line and the problem.
pub fn read_provers(path: &Path) -> Result<Vec<P4draProver>, ProverFileError> {
    let refuse = |source| match source {
        PrivateFileError::Io(error) if error.kind() == ErrorKind::FileTooLarge => ProverFileError::Long {
            path: path.to_owned(),
        },
        source => ProverFileError::Read {
            path: path.to_owned(),
            source,
        },
    };
    let length = path.metadata().map_err(|error| refuse(error.into()))?.len();
    // The complete buffer is allocated and wiped, so the buffer is not longer than the file. A file that has grown since
    // its length was read is too long.
    let capacity = usize::try_from(length).unwrap_or(usize::MAX).min(FILE_BYTES_MAX);
    let bytes = read_private(path, capacity).map_err(refuse)?;
    parse_provers(&bytes).map_err(|(line, problem)| ProverFileError::Line {
        path: path.to_owned(),
        line,
        problem,
    })
}

/// Reads provers, one in each line: `d k h`, of 32, 64 and 64 hexadecimal digits. `d` is the prover's identifier, `k`
/// its key and `h` its configuration hash. Empty lines and text after `#` are skipped.
///
/// # Errors
/// The line, from 1, and the problem.
pub fn parse_provers(bytes: &[u8]) -> Result<Vec<P4draProver>, (usize, String)> {
    let mut provers: Vec<P4draProver> = Vec::new();
    let mut lines: HashMap<ProverId, usize> = HashMap::new();
    let mut last_line = 0;
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        last_line = number;
        let content = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        if content.trim_ascii().is_empty() {
            continue;
        }
        let prover = parse_line(content).map_err(|problem| (number, problem))?;
        if let Some(first_line) = lines.insert(prover.id, number) {
            return Err((
                number,
                format!("d is the same as in line {first_line}; list each prover once"),
            ));
        }
        provers.push(prover);
    }
    match provers.is_empty() {
        true => Err((last_line, "there is no prover".to_owned())),
        false => Ok(provers),
    }
}

fn parse_line(content: &[u8]) -> Result<P4draProver, String> {
    let words = content.split(u8::is_ascii_whitespace);
    let fields: Vec<&[u8]> = words.filter(|word| !word.is_empty()).collect();
    let [d, k, h] = fields.as_slice() else {
        return Err(format!("{} fields; expected are d, k, h", fields.len()));
    };
    Ok(P4draProver {
        id: ProverId(digits("d", d)?),
        key: AttestationKey::from_bytes(*Zeroizing::new(digits("k", k)?)),
        configuration_hash: ConfigurationHash(digits("h", h)?),
    })
}

fn digits<const BYTES: usize>(name: &str, text: &[u8]) -> Result<[u8; BYTES], String> {
    let mut bytes = [0; BYTES];
    match hex::decode_to_slice(text, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(format!("{name} is not {} hexadecimal digits", 2 * BYTES)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn line(d: u8, k: u8, h: u8) -> String {
        format!(
            "{} {} {}",
            hex::encode([d; 16]),
            hex::encode([k; 32]),
            hex::encode([h; 32])
        )
    }

    #[test]
    fn each_line_is_a_prover() {
        let text = format!("# two\n{}\n\n\t{}  # the other\r\n", line(1, 2, 3), line(4, 5, 6));
        let prover = |d, k, h| P4draProver {
            id: ProverId([d; 16]),
            key: AttestationKey::from_bytes([k; 32]),
            configuration_hash: ConfigurationHash([h; 32]),
        };
        let provers = parse_provers(text.as_bytes()).unwrap();
        assert_eq!(provers, [prover(1, 2, 3), prover(4, 5, 6)]);
    }

    #[test]
    fn each_mistake_names_its_line_and_no_key() {
        let good = line(1, 0xab, 3);
        let cases = [
            (String::new(), 1, "no prover"),
            ("# no prover\n\n".to_owned(), 3, "no prover"),
            (format!("{good} 00"), 1, "4 fields"),
            (good.replacen("01", "0x", 1), 1, "d is not 32"),
            (good.replacen("ab", "", 1), 1, "k is not 64"),
            (format!("{good}0"), 1, "h is not 64"),
            (format!("{good}\n{}\n", line(1, 4, 5)), 2, "same as in line 1"),
            (format!("{good}\n\u{e9} {good}"), 2, "4 fields"),
        ];
        for (text, line, problem) in cases {
            let (at, message) = parse_provers(text.as_bytes()).unwrap_err();
            assert_eq!(at, line, "{text}");
            assert!(message.contains(problem), "{message}");
            assert!(!message.contains("abab"), "{message}");
        }
    }

    #[test]
    fn keys_that_others_can_read_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("provers");
        assert!(
            !read_provers(&path).unwrap_err().is_unsafe(),
            "the file does not exist"
        );
        std::fs::write(&path, line(1, 2, 3)).unwrap();
        for (mode, is_private) in [(0o640, false), (0o604, false), (0o600, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match read_provers(&path) {
                Ok(provers) => assert!(is_private && provers.len() == 1, "{mode:o}"),
                Err(error) => assert!(!is_private && error.is_unsafe(), "{mode:o}: {error}"),
            }
        }
        std::fs::write(&path, "1 2\n").unwrap();
        let message = read_provers(&path).unwrap_err().to_string();
        assert!(
            message.ends_with("provers, line 1: 2 fields; expected are d, k, h"),
            "{message}"
        );
    }
}
