//! `linewarden check`.

use std::path::PathBuf;

use clap::Args;
use linewarden_agent::{AgentConfig, FieldError};
use serde::Serialize;

use crate::config_file::{ConfigFile, Problem, Role, read_text, role_of};
use crate::controller_config;
use crate::failure::Failure;
use crate::gateway_config;
use crate::output::{Output, printable, tell};
use crate::registry::block_on;

/// What to check.
#[derive(Args, Debug)]
#[command(after_help = "\
Tells every mistake of the file with line, column and field; peer.2 is the second [[peer]]. Whether it is a gateway's, an \
agent's or a controller's is seen from it. \
With --machine also what this machine lacks for it: interfaces, privileges, the key file, the registry, which is only \
looked at; for an agent's the helper data, what its PUF names, the interface, and for [attest] the key's file, the event \
log, that the TPM's device file can be opened, and that the files can be measured: by this process, so run it as the \
service's user; paths that the service's sandbox hides get a warning. Whether the TPM works, and whether the log replays to its \
PCRs, is found out by `attest measure`; for a controller's its certificate, keys and CAs, where events and traces go, and the registry. Warnings change nothing of the exit \
code: 0 without errors, else that of the first error, as `serve` would end.

Examples:
  linewarden check gateway.toml
  linewarden check --machine gateway.toml
  linewarden check --machine controller.toml
  linewarden check --json 00000000000000d1.toml")]
pub struct CheckArgs {
    /// The configuration
    file: PathBuf,
    /// Also look at this machine
    #[arg(long)]
    machine: bool,
    /// JSON for machines: a line for each problem
    #[arg(long)]
    pub json: bool,
}

/// A line for machines.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Told<'a> {
    Problem {
        level: &'static str,
        #[serde(flatten)]
        problem: &'a Problem,
    },
    Checked {
        warnings: usize,
    },
}

/// Checks it.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let output = Output::new(args.json);
    let text = read_text(&args.file)?;
    let problems = match role_of(&text) {
        Some(Role::Agent) => check_agent(args, text),
        Some(Role::Controller) => check_controller(args, text)?,
        Some(Role::Gateway) | None => check_gateway(args, text)?,
    };
    let mut warnings = 0;
    for problem in &problems {
        let is_warning = problem.exit_code == 0;
        let level = if is_warning { "warning" } else { "error" };
        output.object(&Told::Problem { level, problem })?;
        if is_warning {
            warnings += 1;
            if !args.json {
                tell(format_args!("warning: {}", printable(&problem.to_string())));
            }
        }
    }
    if warnings < problems.len() {
        return Err(Failure::all(&problems));
    }
    output.object(&Told::Checked { warnings })?;
    output.line(format_args!("{}: in order", args.file.display()))
}

fn check_controller(args: &CheckArgs, text: String) -> Result<Vec<Problem>, Failure> {
    let (file, mut problems) = controller_config::parse(&args.file, text);
    if let (Some(file), true, true) = (file, args.machine, problems.is_empty()) {
        problems = block_on(async { Ok(controller_config::examine(&file).await) })?;
    }
    Ok(problems)
}

fn check_gateway(args: &CheckArgs, text: String) -> Result<Vec<Problem>, Failure> {
    let (file, mut problems) = gateway_config::parse(&args.file, text);
    if let (Some(file), true, true) = (file, args.machine, problems.is_empty()) {
        problems = block_on(async { Ok(gateway_config::examine(&file).await) })?;
        problems.extend(gateway_config::without_subnet(&file));
    }
    problems.sort_by_key(Problem::place);
    Ok(problems)
}

/// A field as a problem.
pub fn place(file: &ConfigFile<AgentConfig>, error: &FieldError) -> Problem {
    let problem = file.problem(&error.path, &error.problem);
    match (error.is_unsafe, error.is_warning) {
        (true, _) => problem.with_code(4),
        (false, true) => problem.with_code(0),
        (false, false) => problem,
    }
}

/// Fields as problems, in the order of their places.
pub fn places(file: &ConfigFile<AgentConfig>, errors: &[FieldError]) -> Vec<Problem> {
    let mut problems: Vec<Problem> = errors.iter().map(|error| place(file, error)).collect();
    problems.sort_by_key(Problem::place);
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
    // What is wrong only because a field was left out is no mistake of the file.
    errors.retain(|error| !parsed.lacks(&error.path));
    problems.extend(places(file, &errors));
    if let Some(level) = &file.value.log.level
        && let Err(problem) = crate::log::filter(level)
    {
        problems.push(file.problem(&["log", "level"], &problem));
    }
    if args.machine && problems.is_empty() {
        problems.extend(places(file, &file.value.lacks()));
    }
    problems.sort_by_key(Problem::place);
    problems
}
