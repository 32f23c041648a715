//! Dumps from files and directories.

use std::{
    cmp::Ordering,
    fs,
    path::{Path, PathBuf},
};

use linewarden_files::read_bounded;

use super::{DUMP_BYTES_MAX, ReadoutError, hex, parse_hex};
use crate::bits::Bits;

/// One readout from a file.
#[derive(Clone, Debug)]
pub struct Dump {
    /// Where it was read from.
    pub path: PathBuf,
    /// Its bits, from the least significant of the first byte on.
    pub bits: Bits,
}

/// Reads one dump.
///
/// `.bin`, `.raw` and `.dump` are binary, `.txt` and `.hex` are hex text ([`parse_hex`]); any other file is
/// text if it holds nothing but printable ASCII.
///
/// # Errors
/// [`ReadoutError`] with the file, and line and column in hex text.
pub fn read_dump(path: &Path) -> Result<Bits, ReadoutError> {
    let io = |source| ReadoutError::Io {
        path: path.to_owned(),
        source,
    };
    let content = read_bounded(path, DUMP_BYTES_MAX).map_err(io)?;
    let is_text = match kind(path) {
        Some(kind) => kind == Kind::Text,
        None => hex::looks_like_text(&content),
    };
    let content = match is_text {
        true => parse_hex(&content).map_err(|source| ReadoutError::Hex {
            path: path.to_owned(),
            source,
        })?,
        false => content,
    };
    if content.is_empty() {
        return Err(ReadoutError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(Bits::from_bytes(&content))
}

/// Reads all dumps of a directory, one device, in natural order of their names (`2.txt` before `10.txt`).
///
/// Files with other endings than those named at [`read_dump`] are left out.
///
/// # Errors
/// [`ReadoutError`] if there are none, one cannot be read, or their lengths differ.
pub fn read_directory(directory: &Path) -> Result<Vec<Dump>, ReadoutError> {
    let mut dumps: Vec<Dump> = Vec::new();
    for path in entries(directory, |path| path.is_file() && kind(path).is_some())? {
        let bits = read_dump(&path)?;
        if let Some(first) = dumps.first().filter(|first| first.bits.len() != bits.len()) {
            return Err(ReadoutError::Length {
                path,
                bytes: bits.len() / 8,
                first: first.path.clone(),
                expected: first.bits.len() / 8,
            });
        }
        dumps.push(Dump { path, bits });
    }
    if dumps.is_empty() {
        return Err(ReadoutError::NoDumps {
            path: directory.to_owned(),
        });
    }
    Ok(dumps)
}

/// The subdirectories that hold dumps, in natural order: one device each. Empty if the directory itself holds
/// the dumps of one device.
///
/// # Errors
/// [`ReadoutError`] if there are dumps on both levels or on neither.
pub fn subdirectories(directory: &Path) -> Result<Vec<PathBuf>, ReadoutError> {
    let has_dumps = |path: &Path| {
        entries(path, |path| path.is_file() && kind(path).is_some()).map(|files| !files.is_empty())
    };
    let mut found = Vec::new();
    for path in entries(directory, Path::is_dir)? {
        if has_dumps(&path)? {
            found.push(path);
        }
    }
    match (has_dumps(directory)?, found.is_empty()) {
        (true, false) => Err(ReadoutError::Mixed {
            path: directory.to_owned(),
        }),
        (false, true) => Err(ReadoutError::NoDumps {
            path: directory.to_owned(),
        }),
        _ => Ok(found),
    }
}

fn entries(directory: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, ReadoutError> {
    let io = |source| ReadoutError::Io {
        path: directory.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if wanted(&path) {
            paths.push(path);
        }
    }
    paths.sort_by(|a, b| natural_order(&name(a), &name(b)));
    Ok(paths)
}

#[derive(PartialEq)]
enum Kind {
    Binary,
    Text,
}

fn kind(path: &Path) -> Option<Kind> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "bin" | "raw" | "dump" => Some(Kind::Binary),
        "txt" | "hex" => Some(Kind::Text),
        _ => None,
    }
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Compares names with runs of digits as numbers.
fn natural_order(a: &str, b: &str) -> Ordering {
    let parts = |name: &str| {
        let mut parts: Vec<(String, u64)> = Vec::new();
        let (mut text, mut number) = (String::new(), None);
        for c in name.chars() {
            match (c.to_digit(10), number) {
                (Some(d), n) => number = Some(n.unwrap_or(0_u64).saturating_mul(10).saturating_add(d.into())),
                (None, None) => text.push(c),
                (None, Some(n)) => {
                    parts.push((std::mem::take(&mut text), n));
                    (text, number) = (c.to_string(), None);
                }
            }
        }
        parts.push((text, number.unwrap_or(0)));
        parts
    };
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: Files<'_>) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        directory
    }

    #[test]
    fn dumps_come_in_natural_order_whatever_their_format() {
        let directory = directory(&[
            ("10.txt", b"0a 0a"),
            ("2.bin", &[2, 2]),
            ("1.HEX", b"0x01\n0x01"),
            ("README.md", b"not a dump"),
        ]);
        let dumps = read_directory(directory.path()).unwrap();
        let bytes: Vec<Vec<u8>> = dumps.iter().map(|d| d.bits.to_bytes()).collect();
        assert_eq!(bytes, [[1, 1], [2, 2], [10, 10]]);
    }

    type Files<'a> = &'a [(&'a str, &'a [u8])];

    #[test]
    fn errors_name_the_file_and_the_place() {
        let cases: [(Files<'_>, &[&str]); 6] = [
            (&[("a.txt", b"00\n0q")], &["a.txt:2:2:", "'q'"]),
            (
                &[("a.bin", b"12"), ("b.bin", b"123")],
                &["b.bin: 3 bytes", "a.bin has 2"],
            ),
            (&[("a.bin", b"")], &["a.bin: holds no bytes"]),
            (&[("a.md", b"x")], &["holds no dumps"]),
            (&[("a.txt", b"001")], &["a.txt:1:3:", "one hex digit"]),
            (&[("a.txt", b"  \n")], &["a.txt: holds no bytes"]),
        ];
        for (files, expected) in cases {
            let directory = directory(files);
            let error = read_directory(directory.path()).unwrap_err().to_string();
            assert!(expected.iter().all(|e| error.contains(e)), "{error}");
        }
    }

    #[test]
    fn levels_are_told_apart() {
        let flat = directory(&[("a.bin", b"1")]);
        assert!(subdirectories(flat.path()).unwrap().is_empty());
        let fleet = directory(&[("dev10/a.bin", b"1"), ("dev9/a.bin", b"1"), ("notes/a.md", b"1")]);
        let names: Vec<String> = subdirectories(fleet.path())
            .unwrap()
            .iter()
            .map(|p| name(p))
            .collect();
        assert_eq!(names, ["dev9", "dev10"]);
        let mixed = directory(&[("a.bin", b"1"), ("dev/a.bin", b"1")]);
        assert!(matches!(
            subdirectories(mixed.path()),
            Err(ReadoutError::Mixed { .. })
        ));
        let neither = directory(&[("a.md", b"1")]);
        assert!(matches!(
            subdirectories(neither.path()),
            Err(ReadoutError::NoDumps { .. })
        ));
        assert!(matches!(
            read_directory(Path::new("no/such/place")),
            Err(ReadoutError::Io { .. })
        ));
    }

    #[test]
    fn files_without_a_known_ending_are_told_by_their_content() {
        let directory = directory(&[("text", b"0f 0f"), ("binary", &[0x0f, 0x00])]);
        assert_eq!(
            read_dump(&directory.path().join("text")).unwrap().to_bytes(),
            [0x0f, 0x0f]
        );
        assert_eq!(
            read_dump(&directory.path().join("binary")).unwrap().to_bytes(),
            [0x0f, 0x00]
        );
    }
}
