//! Dumps from files and directories.

use std::path::{Path, PathBuf};

use linewarden_files::read_bounded;

use super::files::{Kind, dump_files, entries, kind};
use super::{DUMP_BYTES_MAX, Dump, DumpSet, ReadoutError, SPAN_BYTES_MAX, Span, hex, parse_hex};
use crate::bits::Bits;

/// Reads one dump.
///
/// `.bin`, `.raw` and `.dump` are binary, `.txt` and `.hex` are hex text ([`parse_hex`]). Any other file is text if
/// it contains only printable ASCII.
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

/// Reads a part of each dump in the directory of one device, in natural order of the names.
///
/// # Errors
/// [`ReadoutError`] as for [`DumpSet`], or if the dumps end before the end of the part.
pub fn read_directory(directory: &Path, span: &Span) -> Result<Vec<Dump>, ReadoutError> {
    let mut set = DumpSet::open(directory)?;
    let mut skipped = 0;
    while skipped < span.start {
        let next = set.next((span.start - skipped).min(SPAN_BYTES_MAX))?;
        match next.first() {
            None => break,
            Some(dump) => skipped += dump.bits.len() / 8,
        }
    }
    let bytes_max = span.bytes_max();
    let dumps = match skipped == span.start {
        true => set.next(bytes_max)?,
        false => Vec::new(),
    };
    let bytes = dumps.first().map_or(0, |dump| dump.bits.len() / 8);
    if bytes == 0 || span.end.is_some() && bytes < bytes_max {
        return Err(ReadoutError::EndsBeforeRange {
            path: directory.to_owned(),
            bytes: skipped + bytes,
            span: *span,
        });
    }
    Ok(dumps)
}

/// The subdirectories that contain dumps, in natural order: one per device. Empty if the directory itself contains
/// the dumps of one device.
///
/// # Errors
/// [`ReadoutError`] if there are dumps on both levels, or on none.
pub fn subdirectories(directory: &Path) -> Result<Vec<PathBuf>, ReadoutError> {
    let has_dumps = |path: &Path| dump_files(path).map(|files| !files.is_empty());
    let mut directories = Vec::new();
    for path in entries(directory, Path::is_dir)? {
        if has_dumps(&path)? {
            directories.push(path);
        }
    }
    match (has_dumps(directory)?, directories.is_empty()) {
        (true, false) => Err(ReadoutError::MixedLevels {
            path: directory.to_owned(),
        }),
        (false, true) => Err(ReadoutError::NoDumps {
            path: directory.to_owned(),
        }),
        _ => Ok(directories),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::files::name;
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
    fn dumps_of_any_format_are_in_natural_order() {
        let directory = directory(&[
            ("10.txt", b"0a 0a"),
            ("2.bin", &[2, 2]),
            ("1.HEX", b"0x01\n0x01"),
            ("README.md", b"not a dump"),
        ]);
        let dumps = read_directory(directory.path(), &Span::default()).unwrap();
        let bytes: Vec<Vec<u8>> = dumps.iter().map(|d| d.bits.to_bytes()).collect();
        assert_eq!(bytes, [[1, 1], [2, 2], [10, 10]]);
    }

    type Files<'a> = &'a [(&'a str, &'a [u8])];

    #[test]
    fn errors_name_the_file_and_the_position() {
        let cases: [(Files<'_>, &[&str]); 6] = [
            (&[("a.txt", b"00\n0q")], &["a.txt:2:2:", "'q'"]),
            (
                &[("a.bin", b"12"), ("b.bin", b"123")],
                &["b.bin: 3 bytes", "a.bin has 2"],
            ),
            (&[("a.bin", b"")], &["empty dump", "a.bin;"]),
            (&[("a.md", b"x")], &["no dumps in"]),
            (&[("a.txt", b"001")], &["a.txt:1:3:", "one hex digit"]),
            (&[("a.txt", b"  \n")], &["empty dump", "a.txt;"]),
        ];
        for (files, expected) in cases {
            let directory = directory(files);
            let error = read_directory(directory.path(), &Span::default())
                .unwrap_err()
                .to_string();
            assert!(expected.iter().all(|e| error.contains(e)), "{error}");
        }
    }

    #[test]
    fn a_part_of_each_dump_is_read() {
        let directory = directory(&[("1.txt", b"00 01 02 03 04 05"), ("2.bin", &[0, 1, 2, 3, 4, 5])]);
        let read = |start, end| read_directory(directory.path(), &Span { start, end });
        for (start, end, expected) in [
            (0, None, [0, 1, 2, 3, 4, 5].as_slice()),
            (2, Some(4), &[2, 3]),
            (5, None, &[5]),
        ] {
            for dump in read(start, end).unwrap() {
                assert_eq!(dump.bits.to_bytes(), expected, "{start}, {end:?}");
            }
        }
        for (start, end) in [(4, Some(7)), (6, None), (9, Some(10))] {
            let refused = read(start, end);
            assert!(
                matches!(refused, Err(ReadoutError::EndsBeforeRange { bytes: 6, .. })),
                "{start}: {refused:?}"
            );
        }
    }

    #[test]
    fn directory_levels_are_distinguished() {
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
            Err(ReadoutError::MixedLevels { .. })
        ));
        let neither = directory(&[("a.md", b"1")]);
        assert!(matches!(
            subdirectories(neither.path()),
            Err(ReadoutError::NoDumps { .. })
        ));
        assert!(matches!(
            read_directory(Path::new("no/such/place"), &Span::default()),
            Err(ReadoutError::Io { .. })
        ));
    }

    #[test]
    fn files_without_a_known_extension_are_classified_by_content() {
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
