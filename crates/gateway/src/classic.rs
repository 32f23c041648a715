//! The CRP file of a classic profile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use linewarden_files::read_text_bounded;

/// The reason why a CRP file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CrpFileError {
    /// Reading failed.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        source: std::io::Error,
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

/// Maximum size of a file, bytes: more than a million CRPs of 256 bits.
const FILE_BYTES_MAX: usize = 128 << 20;

/// CRPs (challenge and response) of each identifier: element 0 contains the CRPs of identifier 1.
pub type Crps = Vec<Vec<(u32, Vec<u8>)>>;

/// Reads a file of CRPs.
///
/// # Errors
/// The file, the line and the problem.
pub fn read_crps(path: &Path, response_bytes: usize) -> Result<Crps, CrpFileError> {
    let text = read_text_bounded(path, FILE_BYTES_MAX).map_err(|source| CrpFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse_crps(&text, response_bytes).map_err(|(line, problem)| CrpFileError::Line {
        path: path.to_owned(),
        line,
        problem,
    })
}

/// Reads CRPs, one in each line: `identifier challenge response`. The identifier is decimal and counts from 1 without
/// gaps, the challenge has 8 and the response `2 * response_bytes` hexadecimal digits. Empty lines and text after `#`
/// are skipped.
///
/// # Errors
/// The line, from 1 (0 for an empty text), and the problem.
pub fn parse_crps(text: &str, response_bytes: usize) -> Result<Crps, (usize, String)> {
    let mut by_identifier: BTreeMap<u32, Vec<(u32, Vec<u8>)>> = BTreeMap::new();
    let mut last_line = 0;
    for (number, line) in (1..).zip(text.lines()) {
        last_line = number;
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let (identifier, crp) = parse_line(content, response_bytes).map_err(|problem| (number, problem))?;
        by_identifier.entry(identifier).or_default().push(crp);
    }
    for (expected, identifier) in (1..).zip(by_identifier.keys()) {
        if *identifier != expected {
            return Err((
                last_line,
                format!(
                    "no CRP has identifier {expected}, but one has identifier {identifier}; number identifiers from 1 without a gap"
                ),
            ));
        }
    }
    if by_identifier.is_empty() {
        return Err((last_line, "there is no CRP".to_owned()));
    }
    Ok(by_identifier.into_values().collect())
}

fn parse_line(content: &str, response_bytes: usize) -> Result<(u32, (u32, Vec<u8>)), String> {
    let fields: Vec<&str> = content.split_whitespace().collect();
    let [identifier, challenge, response] = fields.as_slice() else {
        return Err(format!(
            "{} fields; expected are identifier, challenge, response",
            fields.len()
        ));
    };
    let identifier: u32 = identifier
        .parse()
        .ok()
        .filter(|identifier| *identifier > 0)
        .ok_or_else(|| format!("identifier {identifier:?} is not a number from 1"))?;
    let challenge_bytes = Some(*challenge).filter(|text| text.len() == 8);
    let challenge = challenge_bytes
        .and_then(|text| u32::from_str_radix(text, 16).ok())
        .ok_or_else(|| format!("challenge {challenge:?} is not 8 hexadecimal digits"))?;
    let response = hex::decode(response)
        .ok()
        .filter(|bytes| bytes.len() == response_bytes)
        .ok_or_else(|| format!("the response is not {} hexadecimal digits", 2 * response_bytes))?;
    Ok((identifier, (challenge, response)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crps_are_grouped_by_identifier() {
        let text = "# two devices\n1 00000001 0102030405060708\n2 00000003 aaaaaaaaaaaaaaaa # other\n\n1 00000002 1112131415161718\n";
        let crps = parse_crps(text, 8).unwrap();
        assert_eq!(crps.len(), 2);
        assert_eq!(
            crps[0],
            [
                (1, vec![1, 2, 3, 4, 5, 6, 7, 8]),
                (2, vec![0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18])
            ]
        );
    }

    #[test]
    fn each_mistake_names_its_line() {
        let good = "1 00000001 0102030405060708\n";
        for (text, line, problem) in [
            ("", 0, "no CRP"),
            ("1 00000001\n", 1, "2 fields"),
            ("0 00000001 0102030405060708\n", 1, "from 1"),
            ("1 1 0102030405060708\n", 1, "8 hexadecimal"),
            ("1 00000001 01020304050607\n", 1, "16 hexadecimal"),
            ("3 00000001 0102030405060708\n", 2, "identifier 2"),
        ] {
            let input = if line == 2 {
                format!("{good}{text}")
            } else {
                text.to_owned()
            };
            let (at, message) = parse_crps(&input, 8).unwrap_err();
            assert_eq!(at, line, "{text}");
            assert!(message.contains(problem), "{message}");
        }
    }
}
