//! Reads and checks the configuration of an agent.

use std::path::Path;

use linewarden_agent::AgentConfig;
use linewarden_agent::attest::AttestSection;
use linewarden_cli::failure::Failure;
use linewarden_cli::log;
use linewarden_cli::output::Output;
use linewarden_config::command::{CheckArgs, report};
use linewarden_config::{ConfigFile, FieldError, Program, failure};

/// Reads a configuration; the paths in the configuration become absolute.
///
/// # Errors
/// All mistakes that parsing finds in the file.
pub fn read(path: &Path) -> Result<ConfigFile<AgentConfig>, Failure> {
    ConfigFile::read(Program::Agent, path).map_err(|problems| failure(&problems))
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
    let text = Program::Agent.read(&args.file)?;
    let (file, mut problems) = ConfigFile::<AgentConfig>::parse(&args.file, text.clone()).check(|config| {
        let level = config.log.level.as_deref().map(log::filter);
        let level = level.and_then(Result::err);
        let level = level.map(|problem| FieldError::new(&["log", "level"], problem));
        config.problems().into_iter().chain(level).collect()
    });
    if let (Some(file), true, true) = (file, args.machine, problems.is_empty()) {
        problems = file.field_problems(&file.value.check_machine());
    }
    report(&args.file, &text, &problems, output)
}
