//! The commands `check` and `config` of a program with a configuration file.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, print_error, printable};
use serde::Serialize;

use crate::file::{Problem, failure};

/// Arguments of `check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration file (path)
    pub file: PathBuf,
    /// Also check the prerequisites on this machine (flag)
    #[arg(long)]
    pub machine: bool,
    /// Print JSON, one object per problem (flag)
    #[arg(long)]
    pub json: bool,
}

/// Subcommands of `config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print a commented example configuration
    Example,
}

impl ConfigCommand {
    /// Prints what the command shows of a configuration with this example.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn run(&self, example: &str) -> Result<(), Failure> {
        let Self::Example = self;
        Output::new(false).raw(example.as_bytes())
    }
}

/// An example with every commented field enabled, for tests of the example.
#[must_use]
pub fn with_all_fields(example: &str) -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(field) if field.starts_with('[') || field.contains(" = ") => field.to_owned(),
        _ => line.to_owned(),
    };
    example.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// JSON output.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum CheckOutput<'a> {
    Problem {
        level: &'static str,
        #[serde(flatten)]
        problem: &'a Problem,
    },
    Checked {
        warnings: usize,
    },
}

/// Prints the problems that `check` has found in a file.
///
/// # Errors
/// A problem is not a warning.
pub fn report(file: &Path, problems: &[Problem], output: Output) -> Result<(), Failure> {
    let (warnings, errors): (Vec<_>, Vec<_>) = problems.iter().partition(|problem| problem.is_warning());
    for problem in problems {
        let level = if problem.is_warning() { "warning" } else { "error" };
        output.object(&CheckOutput::Problem { level, problem })?;
        if problem.is_warning() && !output.is_json() {
            print_error(format_args!("warning: {}", printable(&problem.to_string())));
        }
    }
    if !errors.is_empty() {
        return Err(failure(problems));
    }
    output.object(&CheckOutput::Checked {
        warnings: warnings.len(),
    })?;
    output.line(format_args!("{}: valid", file.display()))
}
