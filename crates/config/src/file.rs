//! Parsed files: their content, all mistakes, and the positions of fields.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::problem::{FieldError, Problem};
use crate::program::Program;
use crate::reader::{Reader, is_skipped};
use crate::text::{key_of, position};

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
    /// Returns the file, if there is any, and all mistakes: those of parsing, and those that `check` finds in the content. Errors
    /// of missing and skipped fields are not reported again.
    pub fn check(self, check: impl FnOnce(&T) -> Vec<FieldError>) -> (Option<ConfigFile<T>>, Vec<Problem>) {
        let found: Vec<Problem> = self.file.as_ref().map_or_else(Vec::new, |file| {
            let errors = check(&file.value);
            let errors = errors.iter().filter(|error| !self.is_missing(&error.path));
            errors.map(|error| file.field_problem(error)).collect()
        });
        let mut problems = self.problems;
        problems.extend(found);
        problems.sort_by_key(Problem::position);
        (self.file, problems)
    }

    /// Whether a field, or a table that contains it, is missing or was skipped.
    pub fn is_missing(&self, field: &[impl AsRef<str>]) -> bool {
        is_skipped(&self.skipped, field)
    }
}

impl<T: DeserializeOwned + JsonSchema> ConfigFile<T> {
    /// Reads and parses a configuration of this program.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, is the configuration of another program, or has unknown, missing or invalid
    /// fields: all mistakes.
    pub fn read(program: Program, path: &Path) -> Result<Self, Vec<Problem>> {
        let text = program.read(path).map_err(|problem| vec![problem])?;
        let Parsed { file, problems, .. } = Self::parse(path, text);
        file.filter(|_| problems.is_empty()).ok_or(problems)
    }

    /// Parses a text and collects all mistakes. A field with a mistake is skipped, a missing field gets a placeholder, and
    /// parsing continues.
    pub fn parse(path: &Path, text: String) -> Parsed<T> {
        let mut reader = Reader::new(path, &text);
        let value = reader.read();
        let Reader {
            mut problems,
            skipped,
            ..
        } = reader;
        problems.sort_by_key(Problem::position);
        let path = path.to_owned();
        Parsed {
            file: value.map(|value| Self { value, path, text }),
            problems,
            skipped,
        }
    }
}

impl<T> ConfigFile<T> {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error at the position of its field.
    pub fn field_problem(&self, error: &FieldError) -> Problem {
        self.problem(&error.path, &error.problem)
            .with_code(error.exit_code())
    }

    /// Errors at the positions of their fields, sorted by position.
    pub fn field_problems(&self, errors: &[FieldError]) -> Vec<Problem> {
        let mut problems: Vec<Problem> = errors.iter().map(|error| self.field_problem(error)).collect();
        problems.sort_by_key(Problem::position);
        problems
    }

    /// A mistake at the position of a field.
    pub fn problem(&self, field: &[impl AsRef<str>], problem: &str) -> Problem {
        let span = key_of(&self.text, field);
        let start = span.as_ref().map(|span| position(&self.text, span.start));
        let names: Vec<&str> = field.iter().map(AsRef::as_ref).collect();
        Problem::new(&self.path, start, Some(names.join(".")), problem.to_owned()).with_span(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Outer {
        a: Inner,
        b: Option<Inner>,
        #[serde(default)]
        c: Vec<Inner>,
    }
    #[derive(Debug, serde::Deserialize, JsonSchema)]
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
        assert_eq!(
            problems_of("[a]\nport = 1\n"),
            ["f:1:1: a: missing field `id`; add the field, such as `id = 1`"]
        );
        assert_eq!(
            problems_of("[a]\nid = 1\n[[c]]\nid = 1\n[[c]]\nid = 2\nport = -1\nzzz = 1\n[[c]]\nport = 7\n"),
            [
                "f:7:8: c.2.port: -1: expected a whole number from 0 to 65535",
                "f:8:1: c.2.zzz: unknown field `zzz`, expected one of `lease_s`, `port`, `id`",
                "f:9:1: c.3: missing field `id`; add the field, such as `id = 1`",
            ]
        );
    }

    #[derive(Debug, serde::Deserialize, JsonSchema)]
    #[allow(dead_code, reason = "only read")]
    struct Lacking {
        place: Place,
        shape: Shape,
        #[serde(default)]
        last: u8,
    }
    #[derive(Debug, serde::Deserialize, JsonSchema)]
    #[allow(dead_code, reason = "only read")]
    struct Place {
        path: PathBuf,
        #[schemars(extend("format" = "socket-address"))]
        at: std::net::SocketAddr,
        ip: Option<std::net::IpAddr>,
        #[serde(default)]
        many: Vec<u8>,
    }
    #[derive(Debug, serde::Deserialize, JsonSchema)]
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
                "f:1:1: missing field `shape`; add the field, such as `shape = \"round\"`",
                "f:1:8: last: 256: expected a whole number from 0 to 255",
                "f:2:1: place: missing field `path`; add the field, such as `path = \"\"`",
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
                "f:1:1: missing field `place`; add the table [place]",
                "f:1:1: missing field `shape`; add the field, such as `shape = \"round\"`",
                "f:1:8: last: -1: expected a whole number from 0 to 255"
            ]
        );
        assert_eq!(
            problems_of("place = 7\nshape = \"rund\"\n"),
            [
                "f:1:9: place: 7: expected a table with fields",
                "f:2:9: shape: \"rund\": expected \"round\"",
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
