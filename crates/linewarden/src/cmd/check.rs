//! `linewarden check`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, print_error, printable};
use std::path::PathBuf;

use clap::Args;
use linewarden_agent::{AgentConfig, FieldError};
use serde::Serialize;

use crate::config_file::{ConfigFile, Problem, Role, read_text, role_of};
use crate::controller_config;
use crate::gateway_config;
use crate::registry::block_on;

/// Arguments of `linewarden check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reports every mistake of the file with line, column and field; peer.2 is the second [[peer]]. The content determines whether the \
file is a gateway's, an agent's or a controller's. \
With --machine also checks the prerequisites on this machine. Gateway: interfaces, privileges, certificates and key files. Agent: helper data, the PUF source, the interface, and for [attest] the key file, the TCG event log, access to the TPM \
device, and the measured files; run the command as the user of the service; paths that the service's sandbox hides cause a warning. \
`attest measure` tests the TPM and replays the TCG event log to the PCRs. Controller: certificate, keys and CAs, NATS, telemetry and the \
registry, which is not changed. Exit code: 0 without errors (warnings do not count); otherwise the exit code with which the program itself would refuse the \
first error.

Examples:
  linewarden check gateway.toml
  linewarden check --machine gateway.toml
  linewarden check --machine controller.toml
  linewarden check --json 00000000000000d1.toml")]
pub struct CheckArgs {
    /// Configuration file (path)
    file: PathBuf,
    /// Also check the prerequisites on this machine (flag)
    #[arg(long)]
    machine: bool,
    /// Print JSON, one object per problem (flag)
    #[arg(long)]
    pub json: bool,
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

/// Checks a configuration file.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let output = Output::new(args.json);
    let text = read_text(&args.file)?;
    let problems = match role_of(&text) {
        Some(Role::Agent) => check_agent(args, text),
        Some(Role::Controller) => check_controller(args, text)?,
        Some(Role::Gateway) | None => check_gateway(args, text),
    };
    let mut warnings = 0;
    for problem in &problems {
        let is_warning = problem.exit_code == 0;
        let level = if is_warning { "warning" } else { "error" };
        output.object(&CheckOutput::Problem { level, problem })?;
        if is_warning {
            warnings += 1;
            if !args.json {
                print_error(format_args!("warning: {}", printable(&problem.to_string())));
            }
        }
    }
    if warnings < problems.len() {
        return Err(crate::config_file::failure(&problems));
    }
    output.object(&CheckOutput::Checked { warnings })?;
    output.line(format_args!("{}: valid", args.file.display()))
}

fn check_controller(args: &CheckArgs, text: String) -> Result<Vec<Problem>, Failure> {
    let (file, mut problems) = controller_config::parse(&args.file, text);
    if let (Some(file), true, true) = (file, args.machine, problems.is_empty()) {
        problems = block_on(async { Ok(controller_config::check_machine(&file).await) })?;
    }
    Ok(problems)
}

fn check_gateway(args: &CheckArgs, text: String) -> Vec<Problem> {
    let (file, mut problems) = gateway_config::parse(&args.file, text);
    if let (Some(file), true, true) = (file, args.machine, problems.is_empty()) {
        problems = gateway_config::check_machine(&file);
        problems.extend(gateway_config::interfaces_without_subnet(&file));
    }
    problems.sort_by_key(Problem::position);
    problems
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

fn check_agent(args: &CheckArgs, text: String) -> Vec<Problem> {
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
        && let Err(problem) = linewarden_cli::log::filter(level)
    {
        problems.push(file.problem(&["log", "level"], &problem));
    }
    if args.machine && problems.is_empty() {
        problems.extend(field_problems(file, &file.value.check_machine()));
    }
    problems.sort_by_key(Problem::position);
    problems
}
