//! The commands `check` and `config` of a program with a configuration file.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted, print_error, printable};
use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity, SourceCode,
};
use serde::Serialize;

use crate::example::example;
use crate::file::{ConfigFile, Configuration};
use crate::problem::{Problem, failure};
use crate::schema::schema_of;

/// Arguments of `check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration file (path)
    pub file: PathBuf,
    /// Also check the prerequisites on this machine (flag)
    #[arg(long)]
    pub machine: bool,
}

/// Subcommands of `config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print a commented example configuration
    Example,
    /// Print the JSON Schema of the configuration
    Schema,
}

impl ConfigCommand {
    /// Prints the example or the schema of a configuration.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn run<T: Configuration>(&self) -> Result<(), Failure> {
        let schema = schema_of::<T>();
        let text = match self {
            Self::Example => example(&schema),
            Self::Schema => format!("{schema:#}\n"),
        };
        Output::default().raw(text.as_bytes())
    }
}

/// A problem with the text of the file, for a report on a terminal.
#[derive(Debug)]
struct Diagnosis<'a> {
    problem: &'a Problem,
    source: &'a NamedSource<String>,
}

impl std::fmt::Display for Diagnosis<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let field = self.problem.field.iter().map(|field| format!("{field}: "));
        write!(f, "{}{}", field.collect::<String>(), self.problem.problem)
    }
}

impl std::error::Error for Diagnosis<'_> {}

impl Diagnostic for Diagnosis<'_> {
    fn severity(&self) -> Option<Severity> {
        let is_warning = self.problem.is_warning();
        Some(if is_warning {
            Severity::Warning
        } else {
            Severity::Error
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        let remedy = self.problem.remedy.as_ref()?;
        Some(Box::new(remedy))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.problem.span.as_ref()?;
        Some(self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.problem.span.as_ref()?;
        let span = span.start as usize..span.end as usize;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(None, span))))
    }
}

/// Prints a problem with the line of the file in which it is.
fn print_with_source(problem: &Problem, source: &NamedSource<String>) {
    let mut report = String::new();
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor());
    match handler.render_report(&mut report, &Diagnosis { problem, source }) {
        Ok(()) => print_error(printable(&report)),
        Err(std::fmt::Error) => print_error(printable(&problem.to_string())),
    }
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

/// Checks a configuration file, and with `--machine` the prerequisites on this machine.
///
/// # Errors
/// The file cannot be read, belongs to another program, or has mistakes.
pub fn check<T: Configuration>(args: &CheckArgs, output: Output) -> Result<(), Failure> {
    let text = T::PROGRAM.read(&args.file)?;
    let problems = match ConfigFile::<T>::parse(&args.file, text.clone()).validate() {
        Ok(config) if args.machine => {
            let mut problems = T::check_machine(&config)?;
            problems.sort_by_key(Problem::position);
            problems
        }
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    };
    report(&args.file, &text, &problems, output)
}

/// Prints the problems that `check` has found in a file with this text: on a terminal with the lines of the file, otherwise one
/// problem a line.
///
/// # Errors
/// A problem is not a warning.
fn report(file: &Path, text: &str, problems: &[Problem], output: Output) -> Result<(), Failure> {
    let (warnings, errors): (Vec<_>, Vec<_>) = problems.iter().partition(|problem| problem.is_warning());
    let prints_source = !output.is_json() && std::io::stderr().is_terminal();
    let source = NamedSource::new(file.display().to_string(), text.to_owned());
    for problem in problems {
        let level = if problem.is_warning() { "warning" } else { "error" };
        output.object(&CheckOutput::Problem { level, problem })?;
        if prints_source {
            print_with_source(problem, &source);
        } else if problem.is_warning() && !output.is_json() {
            print_error(format_args!("warning: {}", printable(&problem.to_string())));
        }
    }
    if let Some(first) = errors.first().filter(|_| prints_source) {
        let count = counted(errors.len() as u64, "error");
        return Err(Failure::new(
            first.exit_code,
            format!("{}: {count}", file.display()),
        ));
    }
    if !errors.is_empty() {
        return Err(failure(problems));
    }
    output.object(&CheckOutput::Checked {
        warnings: warnings.len(),
    })?;
    output.line(format_args!("{}: valid", file.display()))
}
