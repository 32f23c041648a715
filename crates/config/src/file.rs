//! Stages of a configuration: the fields of a file, then validated values.

use std::path::{Path, PathBuf};

use linewarden_cli::failure::Failure;
use linewarden_cli::log;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::problem::{FieldError, Problem, failure};
use crate::program::Program;
use crate::reader::{Reader, is_skipped};
use crate::text::{directory, key_of, position};

/// The configuration of a program: the fields of its file.
pub trait Configuration: DeserializeOwned + JsonSchema {
    /// The program.
    const PROGRAM: Program;

    /// Validated values: each is usable, and no two contradict each other.
    type Valid;

    /// The field `log.level`.
    fn log_level(&self) -> Option<&str>;

    /// Makes relative paths absolute that the schema does not mark as paths, such as the file in a registry's location. They
    /// start from `directory`.
    fn resolve_paths(&mut self, _directory: &Path) {}

    /// Validates the fields.
    ///
    /// # Errors
    /// All fields that cannot be used.
    fn validate(&self) -> Result<Self::Valid, Vec<FieldError>>;

    /// Checks whether this machine meets the prerequisites; changes nothing. Warnings have exit code 0.
    ///
    /// # Errors
    /// The check itself failed.
    fn check_machine(config: &Validated<Self>) -> Result<Vec<Problem>, Failure>;
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

/// A file without mistakes.
#[derive(Debug)]
pub struct Validated<T: Configuration> {
    /// The file.
    pub file: ConfigFile<T>,
    /// Its validated values.
    pub valid: T::Valid,
}

impl<T> Parsed<T> {
    /// Whether a field, or a table that contains it, is missing or was skipped.
    pub fn is_missing(&self, field: &[impl AsRef<str>]) -> bool {
        is_skipped(&self.skipped, field)
    }
}

impl<T: Configuration> Parsed<T> {
    /// Validates the content.
    ///
    /// # Errors
    /// All mistakes: those of parsing, and those of validation. Mistakes of missing and skipped fields are not reported again.
    pub fn validate(self) -> Result<Validated<T>, Vec<Problem>> {
        let Some(file) = self.file else {
            return Err(self.problems);
        };
        let level = file.value.log_level().map(log::filter).and_then(Result::err);
        let mut errors: Vec<_> = level
            .map(|problem| FieldError::new(&["log", "level"], problem))
            .into_iter()
            .collect();
        let valid = file.value.validate();
        let valid = valid.map_err(|found| errors.extend(found)).ok();
        errors.retain(|error| !is_skipped(&self.skipped, &error.path));
        let mut problems = self.problems;
        problems.extend(errors.iter().map(|error| file.field_problem(error)));
        problems.sort_by_key(Problem::position);
        match valid.filter(|_| problems.is_empty()) {
            Some(valid) => Ok(Validated { file, valid }),
            None => {
                debug_assert!(!problems.is_empty(), "validation failed without an error");
                Err(problems)
            }
        }
    }
}

impl<T: Configuration> Validated<T> {
    /// Reads and validates a configuration of this program; the paths in the configuration become absolute.
    ///
    /// # Errors
    /// The file cannot be read, or belongs to another program; or all mistakes in the file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::read_changed(path, |_| {})
    }

    /// As [`Validated::read`]; options of the command line change fields before the validation.
    ///
    /// # Errors
    /// As [`Validated::read`].
    pub fn read_changed(path: &Path, change: impl FnOnce(&mut T)) -> Result<Self, Failure> {
        let mut parsed = ConfigFile::<T>::parse(path, T::PROGRAM.read(path)?);
        if let Some(file) = &mut parsed.file {
            change(&mut file.value);
        }
        parsed.validate().map_err(|problems| failure(&problems))
    }
}

impl<T: Configuration> ConfigFile<T> {
    /// Reads and parses a configuration of this program, without validation.
    ///
    /// # Errors
    /// The file cannot be read, or belongs to another program; or all mistakes that parsing finds.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let Parsed { file, problems, .. } = Self::parse(path, T::PROGRAM.read(path)?);
        file.filter(|_| problems.is_empty())
            .ok_or_else(|| failure(&problems))
    }

    /// Parses a text and collects all mistakes. A field with a mistake is skipped, a missing field gets a placeholder, and
    /// parsing continues. Paths become absolute.
    pub fn parse(path: &Path, text: String) -> Parsed<T> {
        let mut parsed = Self::parse_fields(path, text);
        if let Some(file) = &mut parsed.file {
            file.value.resolve_paths(&directory(path));
        }
        parsed
    }
}

impl<T: DeserializeOwned + JsonSchema> ConfigFile<T> {
    /// As [`ConfigFile::parse`], without [`Configuration::resolve_paths`].
    pub(crate) fn parse_fields(path: &Path, text: String) -> Parsed<T> {
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

    /// A failure with errors at the positions of their fields.
    pub fn field_failures(&self, errors: &[FieldError]) -> Failure {
        failure(&self.field_problems(errors))
    }

    /// A failure at the position of a field.
    pub fn field_failure(&self, field: &[impl AsRef<str>], problem: &str) -> Failure {
        self.problem(field, problem).into()
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
        let parsed = ConfigFile::<Outer>::parse_fields(Path::new("f"), text.to_owned());
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
        let parse = |text: &str| ConfigFile::<Lacking>::parse_fields(Path::new("f"), text.to_owned());
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
