//! Files of dumps in a directory.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use super::ReadoutError;

/// The dumps of a directory, in natural order.
pub(super) fn dump_files(directory: &Path) -> Result<Vec<(PathBuf, Kind)>, ReadoutError> {
    let files = entries(directory, |path| path.is_file())?;
    Ok(files
        .into_iter()
        .filter_map(|path| kind(&path).map(|kind| (path, kind)))
        .collect())
}

pub(super) fn entries(
    directory: &Path,
    is_included: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, ReadoutError> {
    let io = |source| ReadoutError::Io {
        path: directory.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if is_included(&path) {
            paths.push(path);
        }
    }
    paths.sort_by(|a, b| natural_order(&name(a), &name(b)));
    Ok(paths)
}

#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    Binary,
    Text,
}

pub(super) fn kind(path: &Path) -> Option<Kind> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "bin" | "raw" | "dump" => Some(Kind::Binary),
        "txt" | "hex" => Some(Kind::Text),
        _ => None,
    }
}

pub(super) fn name(path: &Path) -> String {
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
