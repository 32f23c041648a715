//! Reads and checks the configuration of an agent.

use std::path::Path;

use linewarden_agent::attest::AttestSection;
use linewarden_agent::{AgentConfig, FieldError};
use linewarden_cli::failure::Failure;
use linewarden_cli::log;
use linewarden_cli::output::Output;
use linewarden_config::command::{CheckArgs, report};
use linewarden_config::{ConfigFile, Problem, Program, read_text};

/// Reads a configuration; the paths in the configuration become absolute.
///
/// # Errors
/// All mistakes that parsing finds in the file.
pub fn read(path: &Path) -> Result<ConfigFile<AgentConfig>, Failure> {
    let mut file = ConfigFile::<AgentConfig>::read(Program::Agent, path)?;
    let directory = file.directory();
    file.value.resolve_paths(&directory);
    Ok(file)
}

/// Reads a configuration with `[attest]`.
///
/// # Errors
/// As [`read()`], or the configuration has no `[attest]`.
pub fn read_attest(path: &Path) -> Result<(ConfigFile<AgentConfig>, AttestSection), Failure> {
    let file = read(path)?;
    match file.value.attest.clone() {
        Some(section) => Ok((file, section)),
        None => Err(file.field_failure(
            &["attest"],
            "is missing: set the measured files, as `linewarden-agent config example` shows",
        )),
    }
}

/// Checks a configuration file, and with `--machine` the prerequisites on this machine.
///
/// # Errors
/// The file cannot be read, belongs to another program, or has mistakes.
pub fn check(args: &CheckArgs, output: Output) -> Result<(), Failure> {
    let text = read_text(&args.file)?;
    Program::Agent.check_owner(&args.file, &text)?;
    report(&args.file, &problems(args, text), output)
}

/// Converts a field error to a problem with its position.
pub fn field_problem(file: &ConfigFile<AgentConfig>, error: &FieldError) -> Problem {
    let problem = file.problem(&error.path, &error.problem);
    match (error.is_unsafe, error.is_warning) {
        (true, _) => problem.with_code(4),
        (false, true) => problem.with_code(0),
        (false, false) => problem,
    }
}

/// Converts field errors to problems, sorted by position.
pub fn field_problems(file: &ConfigFile<AgentConfig>, errors: &[FieldError]) -> Vec<Problem> {
    let mut problems: Vec<Problem> = errors.iter().map(|error| field_problem(file, error)).collect();
    problems.sort_by_key(Problem::position);
    problems
}

fn problems(args: &CheckArgs, text: String) -> Vec<Problem> {
    let mut parsed = ConfigFile::<AgentConfig>::parse(&args.file, text);
    let mut problems = std::mem::take(&mut parsed.problems);
    if let Some(file) = &mut parsed.file {
        let directory = file.directory();
        file.value.resolve_paths(&directory);
    }
    let Some(file) = &parsed.file else {
        return problems;
    };
    let mut errors = file.value.problems();
    // A missing or skipped field has a placeholder. Errors of a placeholder are not reported.
    errors.retain(|error| !parsed.is_missing(&error.path));
    problems.extend(field_problems(file, &errors));
    if let Some(level) = &file.value.log.level
        && let Err(problem) = log::filter(level)
    {
        problems.push(file.problem(&["log", "level"], &problem));
    }
    if args.machine && problems.is_empty() {
        problems.extend(field_problems(file, &file.value.check_machine()));
    }
    problems.sort_by_key(Problem::position);
    problems
}
