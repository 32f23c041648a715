//! Reading TOML files so that every mistake is told with file, line, column and field.

use std::ops::Range;
use std::path::{Path, PathBuf};

use linewarden_files::read_text_bounded;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::failure::Failure;

/// No file is read further.
const FILE_BYTES_MAX: usize = 1 << 20;

/// A file that was read, kept to say where its fields stand.
pub struct ConfigFile<T> {
    /// Its content.
    pub value: T,
    path: PathBuf,
    text: String,
}

impl<T: DeserializeOwned> ConfigFile<T> {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, is no TOML, or has unknown, missing or wrong fields.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = read_text_bounded(path, FILE_BYTES_MAX)
            .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))?;
        match toml::from_str(&text) {
            Ok(value) => Ok(Self {
                value,
                path: path.to_owned(),
                text,
            }),
            Err(error) => {
                let place = error.span().map(|span| place(&text, span.start));
                let field = error.span().and_then(|span| field_at(&text, &span));
                // Its further lines repeat the text of the file.
                let message = error.message().lines().collect::<Vec<_>>().join(" ");
                Err(located(path, place, field.as_deref(), &message))
            }
        }
    }

    /// The directory that the file's relative paths start from.
    pub fn directory(&self) -> PathBuf {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        // A relative directory would mean another one for whoever changes theirs.
        std::path::absolute(parent).unwrap_or_else(|_| parent.to_owned())
    }

    /// A failure that names the place of a field.
    pub fn field(&self, field: &[&str], problem: &str) -> Failure {
        let place = span_of(&self.text, field).map(|span| place(&self.text, span.start));
        // Messages of the data plane begin with the field's name themselves.
        let bare = field.last().copied().unwrap_or_default();
        let problem = problem
            .strip_prefix(bare)
            .and_then(|rest| rest.strip_prefix(" = "))
            .unwrap_or(problem);
        located(&self.path, place, Some(&field.join(".")), problem)
    }
}

fn located(path: &Path, place: Option<(usize, usize)>, field: Option<&str>, message: &str) -> Failure {
    let place = place.map_or(String::new(), |(line, column)| format!(":{line}:{column}"));
    let field = field.map_or(String::new(), |field| format!(" {field}:"));
    Failure::input(format!("{}{place}:{field} {message}", path.display()))
}

/// Line and column, both from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (
        line,
        before.get(line_start..).unwrap_or_default().chars().count() + 1,
    )
}

/// Where a field's key stands; that of the innermost table which is there if the field is not.
fn span_of(text: &str, field: &[&str]) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    let mut table = root.get_ref();
    let mut span = None;
    for name in field {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else {
            break;
        };
        span = Some(key.span());
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    span
}

/// The names of the field that a span lies in.
fn field_at(text: &str, span: &Range<usize>) -> Option<String> {
    let root = DeTable::parse(text).ok()?;
    let mut names = Vec::new();
    descend(root.get_ref(), span, &mut names);
    (!names.is_empty()).then(|| names.join("."))
}

fn descend(table: &DeTable<'_>, span: &Range<usize>, names: &mut Vec<String>) {
    let covers = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    for (key, value) in table {
        let name = || key.get_ref().to_string();
        if covers(key.span()) {
            return names.push(name());
        }
        match value.get_ref() {
            // The span of a [table] is that of its header only.
            DeValue::Table(inner) if covers(value.span()) || contains(inner, span) => {
                names.push(name());
                return descend(inner, span, names);
            }
            _ if covers(value.span()) => return names.push(name()),
            _ => {}
        }
    }
}

fn contains(table: &DeTable<'_>, span: &Range<usize>) -> bool {
    table
        .iter()
        .any(|(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let covers = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
            covers(key.span())
                || covers(value.span())
                || value
                    .get_ref()
                    .as_table()
                    .is_some_and(|inner| contains(inner, span))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[a]\nx = 1\ny = \"ä\" \n[b.c]\nz = { w = 2 }\n";

    #[test]
    fn fields_are_found_at_their_lines() {
        let line = |field: &[&str]| place(TEXT, span_of(TEXT, field).unwrap().start);
        assert_eq!(line(&["a"]), (1, 2));
        assert_eq!(line(&["a", "y"]), (3, 1));
        assert_eq!(line(&["b", "c", "z", "w"]), (5, 7));
        assert_eq!(line(&["a", "missing"]), (1, 2), "else where the table is");
        assert_eq!(span_of(TEXT, &["d"]), None);
    }

    #[test]
    fn a_place_in_the_text_has_its_field() {
        let at = |needle: &str| {
            let start = TEXT.find(needle).unwrap();
            field_at(TEXT, &(start..start + needle.len())).unwrap()
        };
        assert_eq!(at("1"), "a.x");
        assert_eq!(at("\"ä\""), "a.y");
        assert_eq!(at("y"), "a.y");
        assert_eq!(at("2"), "b.c.z.w");
    }
}
