//! Reading TOML files so that every mistake is told with file, line, column and field: all of them at once.

mod recovery;
mod words;

use std::ops::Range;
use std::path::{Path, PathBuf};

use linewarden_agent::AgentConfig;
use linewarden_files::read_text_bounded;
use linewarden_gateway::config::GatewayConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::failure::Failure;

/// No file is read further.
const FILE_BYTES_MAX: usize = 1 << 20;

/// A mistake in a file, or something that the machine lacks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// From 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// Tables and key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What is wrong and what would do.
    pub problem: String,
    /// The exit code that it leads to; 0 for a warning.
    pub exit_code: u8,
}

impl Problem {
    fn new(path: &Path, place: Option<(usize, usize)>, field: Option<String>, problem: String) -> Self {
        Self {
            file: path.to_owned(),
            line: place.map(|place| place.0),
            column: place.map(|place| place.1),
            field,
            problem,
            exit_code: 2,
        }
    }

    /// Where it stands, to sort by.
    pub fn place(&self) -> (Option<usize>, Option<usize>) {
        (self.line, self.column)
    }

    /// Leads to another exit code than a mistake in a file; 0 makes it a warning.
    pub fn with_code(mut self, exit_code: u8) -> Self {
        self.exit_code = exit_code;
        self
    }
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

/// A file that was read, kept to say where its fields stand.
#[derive(Debug)]
pub struct ConfigFile<T> {
    /// Its content.
    pub value: T,
    path: PathBuf,
    text: String,
}

/// What came out of reading a file: its content, unless nothing can stand for what it lacks; and its mistakes. With
/// mistakes the content is for finding more of them only: something stands in it for what is missing or was left out.
pub struct Parsed<T> {
    /// What is right in it.
    pub file: Option<ConfigFile<T>>,
    /// What is not.
    pub problems: Vec<Problem>,
    /// Fields that are missing, or were left out for their mistakes.
    left_out: Vec<Vec<String>>,
}

impl<T> Parsed<T> {
    /// Whether a field, or what it lies in, is missing or was left out.
    pub fn lacks(&self, field: &[impl AsRef<str>]) -> bool {
        recovery::is_left_out(&self.left_out, field)
    }
}

/// What has a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `linewarden serve`
    Gateway,
    /// `linewarden agent`
    Agent,
    /// `linewarden controller`
    Controller,
}

/// A content whose file can be taken for the other role's.
pub trait OfRole {
    /// Whose it is.
    const ROLE: Role;
}

impl OfRole for GatewayConfig {
    const ROLE: Role = Role::Gateway;
}

impl OfRole for AgentConfig {
    const ROLE: Role = Role::Agent;
}

/// Whose configuration a text is: only an agent's has a device, and only a controller's a service.
pub fn role_of(text: &str) -> Option<Role> {
    let (root, _) = DeTable::parse_recoverable(text);
    let has = |name: &str| root.get_ref().iter().any(|(key, _)| key.get_ref() == name);
    match (
        has("device"),
        has("service"),
        has("registry") || has("controller"),
    ) {
        (true, ..) => Some(Role::Agent),
        (false, true, _) => Some(Role::Controller),
        (false, false, true) => Some(Role::Gateway),
        (false, false, false) => None,
    }
}

/// Says so where a file is the other role's: all its fields would be unknown.
///
/// # Errors
/// It is.
pub fn refuse_other_role<T: OfRole>(path: &Path, text: &str) -> Result<(), Failure> {
    let of = |role: Role| match role {
        Role::Gateway => ("a gateway's", "serve"),
        Role::Agent => ("an agent's", "agent"),
        Role::Controller => ("a controller's", "controller"),
    };
    let Some(role) = role_of(text).filter(|role| *role != T::ROLE) else {
        return Ok(());
    };
    let ((whose, command), (wanted, _)) = (of(role), of(T::ROLE));
    let problem = format!("is {whose} configuration, for `linewarden {command}`; {wanted} is wanted here");
    Err(Failure::input(format!("{}: {problem}", path.display())))
}

/// Reads a file's text.
///
/// # Errors
/// A file that cannot be read, or is no text.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    read_text_bounded(path, FILE_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))
}

impl<T: DeserializeOwned + OfRole> ConfigFile<T> {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, is no TOML, is the other role's, or has unknown, missing or wrong fields: all of them.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = read_text(path)?;
        refuse_other_role::<T>(path, &text)?;
        match Self::parse(path, text) {
            Parsed {
                file: Some(file),
                problems,
                ..
            } if problems.is_empty() => Ok(file),
            parsed => Err(Failure::all(&parsed.problems)),
        }
    }
}

impl<T: DeserializeOwned> ConfigFile<T> {
    /// Reads a text with everything that is wrong in it. A field with a mistake is left out, something stands for one that is
    /// missing, and reading goes on.
    pub fn parse(path: &Path, text: String) -> Parsed<T> {
        let mut problems = Vec::new();
        let mut left_out = Vec::new();
        let value = recovery::parse(path, &text, &mut problems, &mut left_out);
        problems.sort_by_key(Problem::place);
        let path = path.to_owned();
        Parsed {
            file: value.map(|value| Self { value, path, text }),
            problems,
            left_out,
        }
    }
}

/// Where in an array the element of that number is.
fn index(number: &str) -> Option<usize> {
    number.parse::<usize>().ok()?.checked_sub(1)
}

impl<T> ConfigFile<T> {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that the file's relative paths start from.
    pub fn directory(&self) -> PathBuf {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        // A relative directory would mean another one for whoever changes theirs.
        std::path::absolute(parent).unwrap_or_else(|_| parent.to_owned())
    }

    /// A failure that names the place of a field.
    pub fn field(&self, field: &[impl AsRef<str>], problem: &str) -> Failure {
        Failure::all(&[self.problem(field, problem)])
    }

    /// A mistake at the place of a field.
    pub fn problem(&self, field: &[impl AsRef<str>], problem: &str) -> Problem {
        let field: Vec<&str> = field.iter().map(AsRef::as_ref).collect();
        let place = span_of(&self.text, &field).map(|span| place(&self.text, span.start));
        Problem::new(&self.path, place, Some(field.join(".")), problem.to_owned())
    }
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

/// Where a field's key stands; that of the innermost table which is there if the field is not. Of several tables of one
/// name, or elements of an array, the name is followed by a number, from 1.
fn span_of(text: &str, field: &[&str]) -> Option<Range<usize>> {
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
                let number = names.next().and_then(|number| index(number));
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

/// The names of the field that a span lies in, numbers among them as for [`span_of`].
fn names_at(table: &DeTable<'_>, span: &Range<usize>) -> Vec<String> {
    let mut names = Vec::new();
    descend(table, span, &mut names);
    names
}

fn descend(table: &DeTable<'_>, span: &Range<usize>, names: &mut Vec<String>) {
    for (key, value) in table {
        if covers(&key.span(), span) {
            return names.push(key.get_ref().to_string());
        }
        if !lies_in(value, span) {
            continue;
        }
        names.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) => descend(inner, span, names),
            DeValue::Array(array) => descend_into(array, span, names),
            _ => {}
        }
        return;
    }
}

/// Into the one of several tables that a span lies in. A plain array is one field.
fn descend_into(array: &DeArray<'_>, span: &Range<usize>, names: &mut Vec<String>) {
    let found = array
        .iter()
        .zip(1..)
        .find_map(|(element, number)| match element.get_ref() {
            DeValue::Table(inner) if lies_in(element, span) => Some((inner, number)),
            _ => None,
        });
    if let Some((inner, number)) = found {
        let number: usize = number;
        names.push(number.to_string());
        descend(inner, span, names);
    }
}

fn covers(outer: &Range<usize>, span: &Range<usize>) -> bool {
    outer.start <= span.start && span.end <= outer.end
}

/// Whether a span lies in a value. The span of a `[table]` is that of its header only.
fn lies_in(value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> bool {
    covers(&value.span(), span)
        || match value.get_ref() {
            DeValue::Table(inner) => inner
                .iter()
                .any(|(key, value): (&Spanned<_>, _)| covers(&key.span(), span) || lies_in(value, span)),
            DeValue::Array(array) => array.iter().any(|element| lies_in(element, span)),
            _ => false,
        }
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
    fn each_of_several_tables_has_its_own_place() {
        let text = "[[t]]\nx = 1\n[[t]]\nx = 2\ny = [{ z = 3 }]\n[b]\nids = [7, 8]\n";
        let at = |field: &[&str]| place(text, span_of(text, field).unwrap().start);
        assert_eq!(at(&["t", "1", "x"]), (2, 1));
        assert_eq!(at(&["t", "2", "x"]), (4, 1));
        assert_eq!(at(&["t", "2", "y", "1", "z"]), (5, 8));
        assert_eq!(at(&["t", "2", "missing"]), (3, 1), "else where the table is");
        assert_eq!(at(&["t", "3", "x"]), at(&["t"]));
        let root = DeTable::parse(text).unwrap();
        for (needle, name) in [("2", "t.2.x"), ("3", "t.2.y.1.z"), ("8", "b.ids")] {
            let start = text.find(needle).unwrap();
            assert_eq!(names_at(root.get_ref(), &(start..start + 1)).join("."), name);
        }
    }

    #[test]
    fn a_place_in_the_text_has_its_field() {
        let at = |needle: &str| {
            let start = TEXT.find(needle).unwrap();
            names_at(
                DeTable::parse(TEXT).unwrap().get_ref(),
                &(start..start + needle.len()),
            )
            .join(".")
        };
        assert_eq!(at("1"), "a.x");
        assert_eq!(at("\"ä\""), "a.y");
        assert_eq!(at("y"), "a.y");
        assert_eq!(at("2"), "b.c.z.w");
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

    fn told(text: &str) -> Vec<String> {
        let parsed = ConfigFile::<Outer>::parse(Path::new("f"), text.to_owned());
        parsed.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_mistakes_are_told_and_none_twice() {
        assert_eq!(
            told("[a]\nlease = 1\nid = -1\nport = 70000\n[b]\nzzz = 1\nid = 1\n"),
            [
                "f:2:1: a.lease: unknown field `lease`; did you mean `lease_s`?",
                "f:3:6: a.id: -1: a whole number from 0 to 4294967295",
                "f:4:8: a.port: 70000: a whole number from 0 to 65535",
                "f:6:1: b.zzz: unknown field `zzz`, expected one of `lease_s`, `port`, `id`",
            ]
        );
        assert_eq!(
            told("[a]\nid = 1\nport = 70000\n[b]\nzzz = 1\nid = 1\n"),
            [
                "f:3:8: a.port: 70000: a whole number from 0 to 65535",
                "f:5:1: b.zzz: unknown field `zzz`, expected one of `lease_s`, `port`, `id`",
            ]
        );
        assert_eq!(told("[a]\nport = 1\n"), ["f:1:1: a: missing field `id`"]);
        assert_eq!(
            told("[a]\nid = 1\n[[c]]\nid = 1\n[[c]]\nid = 2\nport = -1\nzzz = 1\n[[c]]\nport = 7\n"),
            [
                "f:7:8: c.2.port: -1: a whole number from 0 to 65535",
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
    fn something_stands_for_what_is_missing_and_reading_goes_on() {
        let read = |text: &str| ConfigFile::<Lacking>::parse(Path::new("f"), text.to_owned());
        let told = |text: &str| -> Vec<String> {
            let parsed = read(text);
            parsed.problems.iter().map(ToString::to_string).collect()
        };
        let parsed = read("last = 256\n[place]\nip = \"here\"\nat = \"127.0.0.1\"\nmany = [1, \"x\"]\n");
        let said: Vec<String> = parsed.problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "f:1:1: missing field `shape`",
                "f:1:8: last: 256: a whole number from 0 to 255",
                "f:2:1: place: missing field `path`",
                "f:3:6: place.ip: \"here\": an address, such as \"192.0.2.1\" or \"2001:db8::1\"",
                "f:4:6: place.at: \"127.0.0.1\": an address and a port, such as \"127.0.0.1:5683\" or \"[::1]:5683\"",
                "f:5:12: place.many: \"x\": a whole number from 0 to 255",
            ]
        );
        for (field, lacks) in [("path", true), ("at", true), ("many", true), ("other", false)] {
            assert_eq!(parsed.lacks(&["place", field]), lacks, "{field}");
        }
        assert_eq!(
            told("last = -1"),
            [
                "f:1:1: missing field `place`",
                "f:1:1: missing field `shape`",
                "f:1:8: last: -1: a whole number from 0 to 255"
            ]
        );
        assert_eq!(
            told("place = 7\nshape = \"rund\"\n"),
            [
                "f:1:9: place: 7: a table of its own, with fields",
                "f:2:9: shape: unknown variant `rund`; did you mean `round`?",
            ]
        );
    }

    #[test]
    fn all_lines_that_are_no_toml_are_told() {
        let told = told("[a]\nid = \nport = 1 2\n");
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].starts_with("f:2:") && told[1].starts_with("f:3:"),
            "{told:?}"
        );
    }
}
