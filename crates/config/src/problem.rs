//! Mistakes in configuration files.

use std::ops::Range;
use std::path::{Path, PathBuf};

use linewarden_cli::failure::Failure;
use serde::Serialize;

/// A mistake in a configuration file, or a prerequisite that this machine does not meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// Line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column, counted from 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// Dotted path of tables and key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The error, and the accepted values.
    pub problem: String,
    /// What to do, if `problem` does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Box<str>>,
    /// Exit code that the problem leads to; 0 for a warning.
    pub exit_code: u8,
    /// The part of the text, bytes.
    #[serde(skip)]
    pub span: Option<Range<u32>>,
}

impl Problem {
    pub(crate) fn new(
        path: &Path,
        position: Option<(u32, u32)>,
        field: Option<String>,
        problem: String,
    ) -> Self {
        Self {
            file: path.to_owned(),
            line: position.map(|position| position.0),
            column: position.map(|position| position.1),
            field,
            problem,
            remedy: None,
            exit_code: 2,
            span: None,
        }
    }

    /// The same problem with the part of the text.
    pub(crate) fn with_span(mut self, span: Option<Range<usize>>) -> Self {
        let bound = |offset| u32::try_from(offset).unwrap_or(u32::MAX);
        self.span = span.map(|span| bound(span.start)..bound(span.end));
        self
    }

    /// Position in the file; the sort key of problems.
    pub fn position(&self) -> (Option<u32>, Option<u32>) {
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
        write!(f, " {}", self.problem)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// A failure with all problems that are not warnings. The first of these problems determines the exit code.
#[must_use]
pub fn failure(problems: &[Problem]) -> Failure {
    let mut errors = problems.iter().filter(|problem| problem.exit_code != 0);
    let Some(first) = errors.next() else {
        return Failure::failed("configuration refused without an error; report this defect of the program");
    };
    Failure::new(first.exit_code, first).with_further_messages(errors.map(ToString::to_string).collect())
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        failure(&[problem])
    }
}

/// A field that cannot be used. A parsed file converts the error to a [`Problem`] with a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Names of the tables and the field, outermost first; an element of a list is named by its number, from 1.
    pub path: Vec<String>,
    /// The problem, and the remedy.
    pub problem: String,
    /// Whether other users may have read or written a secret.
    pub is_unsafe: bool,
    /// Whether this is only a warning: the value is accepted, but probably not intended.
    pub is_warning: bool,
}

impl FieldError {
    /// An error in a field.
    pub fn new(path: &[impl AsRef<str>], problem: impl ToString) -> Self {
        Self {
            path: path.iter().map(|name| name.as_ref().to_owned()).collect(),
            problem: problem.to_string(),
            is_unsafe: false,
            is_warning: false,
        }
    }

    /// Exit code of the problem; 0 for a warning.
    pub(crate) fn exit_code(&self) -> u8 {
        match (self.is_unsafe, self.is_warning) {
            (true, _) => 4,
            (false, true) => 0,
            (false, false) => 2,
        }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.join("."), self.problem)
    }
}

impl std::error::Error for FieldError {}
