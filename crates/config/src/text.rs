//! Texts of configuration files, and the positions of fields in a text.

use std::ops::Range;
use std::path::{Path, PathBuf};

use linewarden_files::read_text_bounded;
use toml::de::{DeTable, DeValue};

use crate::problem::Problem;

/// Maximum size of a configuration file, bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Reads the text of a file.
///
/// # Errors
/// The file cannot be read, or is not UTF-8 text.
pub fn read_text(path: &Path) -> Result<String, Problem> {
    let refused = |error| Problem::new(path, None, None, format!("cannot be read: {error}"));
    read_text_bounded(path, FILE_BYTES_MAX).map_err(refused)
}

/// The directory that relative paths of a file refer to.
pub(crate) fn directory(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    // Absolute, because the process may change its working directory.
    std::path::absolute(parent).unwrap_or_else(|_| parent.to_owned())
}

/// Span of the key of a field; if the field is missing, of the innermost table that exists.
pub(crate) fn key_of(text: &str, field: &[impl AsRef<str>]) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    key_and_value(root.get_ref(), field, None).map(|(key, _)| key)
}

/// Line and column of an offset, both from 1.
pub(crate) fn position(text: &str, offset: usize) -> (u32, u32) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let characters = before.get(line_start..).unwrap_or_default().chars().count();
    let from_1 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1);
    (from_1(before.matches('\n').count()), from_1(characters))
}

/// Spans of the key and the value of a field; if the field is missing, of the innermost table that exists. In `names`, an
/// element of an array (of tables) is a number, counted from 1, after the array's name. `element` is the index of an element
/// of the field, which replaces the value.
pub(crate) fn key_and_value(
    root: &DeTable<'_>,
    names: &[impl AsRef<str>],
    element: Option<usize>,
) -> Option<(Range<usize>, Range<usize>)> {
    let mut table = root;
    let mut spans = None;
    let mut names = names.iter().map(AsRef::as_ref);
    while let Some(name) = names.next() {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else {
            break;
        };
        spans = Some((key.span(), value.span()));
        let mut value = value.get_ref();
        if let DeValue::Array(array) = value {
            let number = names.next().and_then(element_index).or(element);
            let Some(element) = number.and_then(|number| array.get(number)) else {
                break;
            };
            spans = Some((element.span(), element.span()));
            value = element.get_ref();
        }
        match value {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    spans
}

/// Converts the number of an array element, counted from 1, to its index, counted from 0.
pub(crate) fn element_index(number: &str) -> Option<usize> {
    number.parse::<usize>().ok()?.checked_sub(1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const TEXT: &str = "[a]\nx = 1\ny = \"ä\" \n[b.c]\nz = { w = 2 }\n";

    #[test]
    fn fields_are_found_at_their_lines() {
        let line = |field: &[&str]| position(TEXT, key_of(TEXT, field).unwrap().start);
        assert_eq!(line(&["a"]), (1, 2));
        assert_eq!(line(&["a", "y"]), (3, 1));
        assert_eq!(line(&["b", "c", "z", "w"]), (5, 7));
        assert_eq!(line(&["a", "missing"]), (1, 2), "position of the table");
        assert_eq!(key_of(TEXT, &["d"]), None);
    }

    #[test]
    fn each_of_several_tables_has_its_own_position() {
        let text = "[[t]]\nx = 1\n[[t]]\nx = 2\ny = [{ z = 3 }]\n[b]\nids = [7, 8]\n";
        let position_of = |field: &[&str]| position(text, key_of(text, field).unwrap().start);
        assert_eq!(position_of(&["t", "1", "x"]), (2, 1));
        assert_eq!(position_of(&["t", "2", "x"]), (4, 1));
        assert_eq!(position_of(&["t", "2", "y", "1", "z"]), (5, 8));
        assert_eq!(
            position_of(&["t", "2", "missing"]),
            (3, 1),
            "position of the table"
        );
        assert_eq!(position_of(&["t", "3", "x"]), position_of(&["t"]));
    }
}
