//! Reads TOML files and reports all mistakes at once, each with file, line, column and field.

use std::ops::Range;
use std::path::{Path, PathBuf};

use linewarden_cli::failure::Failure;
use linewarden_files::read_text_bounded;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::program::Program;
use crate::recovery;

/// Maximum size of a configuration file, bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// A mistake in a configuration file, or a prerequisite that this machine does not meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// Line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Column, counted from 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// Dotted path of tables and key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The error, and the accepted values.
    pub problem: String,
    /// Exit code that the problem leads to; 0 for a warning.
    pub exit_code: u8,
}

impl Problem {
    pub(crate) fn new(
        path: &Path,
        position: Option<(usize, usize)>,
        field: Option<String>,
        problem: String,
    ) -> Self {
        Self {
            file: path.to_owned(),
            line: position.map(|position| position.0),
            column: position.map(|position| position.1),
            field,
            problem,
            exit_code: 2,
        }
    }

    /// Position in the file; the sort key of problems.
    pub fn position(&self) -> (Option<usize>, Option<usize>) {
        (self.line, self.column)
    }

    /// Whether the problem is only a warning.
    pub fn is_warning(&self) -> bool {
        self.exit_code == 0
    }

    /// The same problem with another exit code. A problem with exit code 0 is a warning.
    pub fn with_code(mut self, exit_code: u8) -> Self {
        self.exit_code = exit_code;
        self
    }
}

/// A failure with all problems that are not warnings. The first of these problems determines the exit code.
pub fn failure(problems: &[Problem]) -> Failure {
    let mut errors = problems.iter().filter(|problem| problem.exit_code != 0);
    let Some(first) = errors.next() else {
        return Failure::failed("configuration refused without an error; report this defect of the program");
    };
    Failure::new(first.exit_code, first).with_further_messages(errors.map(ToString::to_string).collect())
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, ":{line}:{column}")?;
        }
        f.write_str(":")?;
        if let Some(field) = &self.field {
            write!(f, " {field}:")?;
        }
        write!(f, " {}", self.problem)
    }
}

/// A parsed file, with its text to locate fields.
#[derive(Debug)]
pub struct ConfigFile<T> {
    /// The content of the file.
    pub value: T,
    path: PathBuf,
    text: String,
}

/// Result of parsing a file: its content, and all mistakes. If there are mistakes, missing and skipped fields contain
/// placeholders, and the content only serves to find further mistakes. `file` is `None` if no placeholder was possible.
pub struct Parsed<T> {
    /// The content.
    pub file: Option<ConfigFile<T>>,
    /// The mistakes.
    pub problems: Vec<Problem>,
    /// Fields that are missing, or that were skipped because of a mistake.
    skipped: Vec<Vec<String>>,
}

impl<T> Parsed<T> {
    /// Whether a field, or a table that contains it, is missing or was skipped.
    pub fn is_missing(&self, field: &[impl AsRef<str>]) -> bool {
        recovery::is_skipped(&self.skipped, field)
    }
}

/// Reads the text of a file.
///
/// # Errors
/// The file cannot be read, or is not UTF-8 text.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    read_text_bounded(path, FILE_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))
}

impl<T: DeserializeOwned> ConfigFile<T> {
    /// Reads and parses a configuration of this program.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, is the configuration of another program, or has unknown, missing or invalid
    /// fields. The error contains all mistakes.
    pub fn read(program: Program, path: &Path) -> Result<Self, Failure> {
        let text = read_text(path)?;
        program.check_owner(path, &text)?;
        match Self::parse(path, text) {
            Parsed {
                file: Some(file),
                problems,
                ..
            } if problems.is_empty() => Ok(file),
            parsed => Err(failure(&parsed.problems)),
        }
    }
}

impl<T: DeserializeOwned> ConfigFile<T> {
    /// Parses a text and collects all mistakes. A field with a mistake is skipped, a missing field gets a placeholder, and
    /// parsing continues.
    pub fn parse(path: &Path, text: String) -> Parsed<T> {
        let mut problems = Vec::new();
        let mut skipped = Vec::new();
        let value = recovery::parse(path, &text, &mut problems, &mut skipped);
        problems.sort_by_key(Problem::position);
        let path = path.to_owned();
        Parsed {
            file: value.map(|value| Self { value, path, text }),
            problems,
            skipped,
        }
    }
}

/// Converts the number of an array element, counted from 1, to its index, counted from 0.
pub(crate) fn element_index(number: &str) -> Option<usize> {
    number.parse::<usize>().ok()?.checked_sub(1)
}

impl<T> ConfigFile<T> {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that relative paths of the file refer to.
    pub fn directory(&self) -> PathBuf {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        // Absolute, because the process may change its working directory.
        std::path::absolute(parent).unwrap_or_else(|_| parent.to_owned())
    }

    /// A failure at the position of a field.
    pub fn field_failure(&self, field: &[impl AsRef<str>], problem: &str) -> Failure {
        failure(&[self.problem(field, problem)])
    }

    /// A mistake at the position of a field.
    pub fn problem(&self, field: &[impl AsRef<str>], problem: &str) -> Problem {
        let field: Vec<&str> = field.iter().map(AsRef::as_ref).collect();
        let start = key_span(&self.text, &field).map(|span| position(&self.text, span.start));
        Problem::new(&self.path, start, Some(field.join(".")), problem.to_owned())
    }
}

/// Line and column of an offset, both from 1.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (
        line,
        before.get(line_start..).unwrap_or_default().chars().count() + 1,
    )
}

/// Span of a field's key; if the field is missing, span of the innermost table that exists. In `field`, an element of an array
/// (of tables) is a number, counted from 1, after the array's name.
fn key_span(text: &str, field: &[&str]) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    let mut table = root.get_ref();
    let mut span = None;
    let mut names = field.iter();
    while let Some(name) = names.next() {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else {
            break;
        };
        span = Some(key.span());
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            DeValue::Array(array) => {
                let number = names.next().and_then(|number| element_index(number));
                let Some(element) = number.and_then(|number| array.get(number)) else {
                    break;
                };
                span = Some(element.span());
                match element.get_ref() {
                    DeValue::Table(inner) => table = inner,
                    _ => break,
                }
            }
            _ => break,
        }
    }
    span
}

/// Dotted names of the field that contains a span; array elements are numbered as in [`key_span`].
pub(crate) fn field_at(table: &DeTable<'_>, span: &Range<usize>) -> Vec<String> {
    let mut names = Vec::new();
    descend(table, span, &mut names);
    names
}

fn descend(table: &DeTable<'_>, span: &Range<usize>, names: &mut Vec<String>) {
    for (key, value) in table {
        if covers(&key.span(), span) {
            return names.push(key.get_ref().to_string());
        }
        if !contains_span(value, span) {
            continue;
        }
        names.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) => descend(inner, span, names),
            DeValue::Array(array) => descend_into_array(array, span, names),
            _ => {}
        }
        return;
    }
}

/// Descends into the table of an array of tables that contains a span. A plain array is one field.
fn descend_into_array(array: &DeArray<'_>, span: &Range<usize>, names: &mut Vec<String>) {
    let table = array
        .iter()
        .zip(1..)
        .find_map(|(element, number)| match element.get_ref() {
            DeValue::Table(inner) if contains_span(element, span) => Some((inner, number)),
            _ => None,
        });
    if let Some((inner, number)) = table {
        let number: usize = number;
        names.push(number.to_string());
        descend(inner, span, names);
    }
}

fn covers(outer: &Range<usize>, span: &Range<usize>) -> bool {
    outer.start <= span.start && span.end <= outer.end
}

/// Whether a value contains a span. The parser's span of a `[table]` covers only the header, so the content is searched.
fn contains_span(value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> bool {
    covers(&value.span(), span)
        || match value.get_ref() {
            DeValue::Table(inner) => inner.iter().any(|(key, value): (&Spanned<_>, _)| {
                covers(&key.span(), span) || contains_span(value, span)
            }),
            DeValue::Array(array) => array.iter().any(|element| contains_span(element, span)),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[a]\nx = 1\ny = \"ä\" \n[b.c]\nz = { w = 2 }\n";

    #[test]
    fn fields_are_found_at_their_lines() {
        let line = |field: &[&str]| position(TEXT, key_span(TEXT, field).unwrap().start);
        assert_eq!(line(&["a"]), (1, 2));
        assert_eq!(line(&["a", "y"]), (3, 1));
        assert_eq!(line(&["b", "c", "z", "w"]), (5, 7));
        assert_eq!(line(&["a", "missing"]), (1, 2), "position of the table");
        assert_eq!(key_span(TEXT, &["d"]), None);
    }

    #[test]
    fn each_of_several_tables_has_its_own_position() {
        let text = "[[t]]\nx = 1\n[[t]]\nx = 2\ny = [{ z = 3 }]\n[b]\nids = [7, 8]\n";
        let position_of = |field: &[&str]| position(text, key_span(text, field).unwrap().start);
        assert_eq!(position_of(&["t", "1", "x"]), (2, 1));
        assert_eq!(position_of(&["t", "2", "x"]), (4, 1));
        assert_eq!(position_of(&["t", "2", "y", "1", "z"]), (5, 8));
        assert_eq!(
            position_of(&["t", "2", "missing"]),
            (3, 1),
            "position of the table"
        );
        assert_eq!(position_of(&["t", "3", "x"]), position_of(&["t"]));
        let root = DeTable::parse(text).unwrap();
        for (needle, name) in [("2", "t.2.x"), ("3", "t.2.y.1.z"), ("8", "b.ids")] {
            let start = text.find(needle).unwrap();
            assert_eq!(field_at(root.get_ref(), &(start..start + 1)).join("."), name);
        }
    }

    #[test]
    fn a_position_in_the_text_belongs_to_a_field() {
        let field_of = |needle: &str| {
            let start = TEXT.find(needle).unwrap();
            field_at(
                DeTable::parse(TEXT).unwrap().get_ref(),
                &(start..start + needle.len()),
            )
            .join(".")
        };
        assert_eq!(field_of("1"), "a.x");
        assert_eq!(field_of("\"ä\""), "a.y");
        assert_eq!(field_of("y"), "a.y");
        assert_eq!(field_of("2"), "b.c.z.w");
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Outer {
        a: Inner,
        b: Option<Inner>,
        #[serde(default)]
        c: Vec<Inner>,
    }
    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Inner {
        #[serde(default)]
        lease_s: u32,
        #[serde(default)]
        port: u16,
        id: u32,
    }

    fn problems_of(text: &str) -> Vec<String> {
        let parsed = ConfigFile::<Outer>::parse(Path::new("f"), text.to_owned());
        parsed.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_mistakes_are_reported_once() {
        assert_eq!(
            problems_of("[a]\nlease = 1\nid = -1\nport = 70000\n[b]\nzzz = 1\nid = 1\n"),
            [
                "f:2:1: a.lease: unknown field `lease`; did you mean `lease_s`?",
                "f:3:6: a.id: -1: expected a whole number from 0 to 4294967295",
                "f:4:8: a.port: 70000: expected a whole number from 0 to 65535",
                "f:6:1: b.zzz: unknown field `zzz`, expected one of `lease_s`, `port`, `id`",
            ]
        );
        assert_eq!(
            problems_of("[a]\nid = 1\nport = 70000\n[b]\nzzz = 1\nid = 1\n"),
            [
                "f:3:8: a.port: 70000: expected a whole number from 0 to 65535",
                "f:5:1: b.zzz: unknown field `zzz`, expected one of `lease_s`, `port`, `id`",
            ]
        );
        assert_eq!(problems_of("[a]\nport = 1\n"), ["f:1:1: a: missing field `id`"]);
        assert_eq!(
            problems_of("[a]\nid = 1\n[[c]]\nid = 1\n[[c]]\nid = 2\nport = -1\nzzz = 1\n[[c]]\nport = 7\n"),
            [
                "f:7:8: c.2.port: -1: expected a whole number from 0 to 65535",
                "f:8:1: c.2.zzz: unknown field `zzz`, expected one of `lease_s`, `port`, `id`",
                "f:9:1: c.3: missing field `id`",
            ]
        );
    }

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code, reason = "only read")]
    struct Lacking {
        place: Place,
        shape: Shape,
        #[serde(default)]
        last: u8,
    }
    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code, reason = "only read")]
    struct Place {
        path: PathBuf,
        at: std::net::SocketAddr,
        ip: Option<std::net::IpAddr>,
        #[serde(default)]
        many: Vec<u8>,
    }
    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Shape {
        Round,
    }

    #[test]
    fn placeholders_replace_missing_fields_and_reading_continues() {
        let parse = |text: &str| ConfigFile::<Lacking>::parse(Path::new("f"), text.to_owned());
        let problems_of = |text: &str| -> Vec<String> {
            let parsed = parse(text);
            parsed.problems.iter().map(ToString::to_string).collect()
        };
        let parsed = parse("last = 256\n[place]\nip = \"here\"\nat = \"127.0.0.1\"\nmany = [1, \"x\"]\n");
        let problems: Vec<String> = parsed.problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "f:1:1: missing field `shape`",
                "f:1:8: last: 256: expected a whole number from 0 to 255",
                "f:2:1: place: missing field `path`",
                "f:3:6: place.ip: \"here\": expected an address, such as \"192.0.2.1\" or \"2001:db8::1\"",
                "f:4:6: place.at: \"127.0.0.1\": expected an address and a port, such as \"127.0.0.1:5683\" or \"[::1]:5683\"",
                "f:5:12: place.many: \"x\": expected a whole number from 0 to 255",
            ]
        );
        for (field, is_missing) in [("path", true), ("at", true), ("many", true), ("other", false)] {
            assert_eq!(parsed.is_missing(&["place", field]), is_missing, "{field}");
        }
        assert_eq!(
            problems_of("last = -1"),
            [
                "f:1:1: missing field `place`",
                "f:1:1: missing field `shape`",
                "f:1:8: last: -1: expected a whole number from 0 to 255"
            ]
        );
        assert_eq!(
            problems_of("place = 7\nshape = \"rund\"\n"),
            [
                "f:1:9: place: 7: expected a table with fields",
                "f:2:9: shape: unknown variant `rund`; did you mean `round`?",
            ]
        );
    }

    #[test]
    fn all_syntax_errors_are_reported() {
        let problems = problems_of("[a]\nid = \nport = 1 2\n");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0].starts_with("f:2:") && problems[1].starts_with("f:3:"),
            "{problems:?}"
        );
    }
}
