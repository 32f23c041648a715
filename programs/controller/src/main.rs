//! The program `linewarden-controller`: serves API, dashboard and gateways.
#![forbid(unsafe_code)]

mod run;

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use linewarden_cli::failure::Failure;
use linewarden_cli::manual::ConfigPage;
use linewarden_cli::program::{self, CommonCommand, GlobalArgs};
use linewarden_cli::{exit_codes, log};
use linewarden_config::Program;
use linewarden_config::command::{CheckArgs, ConfigCommand, check};
use linewarden_config::controller::ControllerConfig;
use linewarden_config::example::example;
use linewarden_config::schema::schema_of;

/// Commented example of the configuration, with all fields.
static EXAMPLE: LazyLock<String> = LazyLock::new(|| example(&schema_of::<ControllerConfig>()));

macro_rules! examples {
    () => {
        "\
Examples:
  linewarden-controller config example > controller.toml
  linewarden-controller check --machine controller.toml
  linewarden-controller run --config controller.toml"
    };
}

/// Serve the API, the dashboard and the gateways of a fleet
#[derive(Parser, Debug)]
#[command(name = "linewarden-controller", version, after_help = examples!(), after_long_help = concat!(examples!(), "\n\n", exit_codes!()), propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a controller: API, dashboard and connections of gateways
    Run(run::RunArgs),
    /// Validate a configuration file
    #[command(after_help = "\
Reports every mistake of the file with line, column and field. With --machine also checks certificate, keys and CAs, NATS, telemetry \
and the registry, which is not changed. Exit code: 0 without errors (warnings do not count); otherwise the exit code with which `run` \
would refuse the first error.

Examples:
  linewarden-controller check controller.toml
  linewarden-controller check --machine controller.toml")]
    Check(CheckArgs),
    /// Show the configuration's format
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden-controller config example > controller.toml
  linewarden-controller config schema > controller.schema.json"
    )]
    Config(ConfigCommand),
    #[command(flatten)]
    Common(CommonCommand),
}

fn main() -> ExitCode {
    program::main(std::env::args_os(), |cli: &Cli| &cli.global, run_command)
}

fn run_command(cli: Cli) -> Result<(), Failure> {
    let (flag, output) = (cli.global.log.as_deref(), cli.global.output());
    if let Command::Run(args) = &cli.command {
        // The configuration file may set the level.
        return run::run(args, flag, output);
    }
    log::start(flag, None, "warn")?;
    match &cli.command {
        Command::Run(_) => Ok(()),
        Command::Check(args) => check::<ControllerConfig>(args, output),
        Command::Config(command) => command.run::<ControllerConfig>(),
        Command::Common(command) => command.run::<Cli>(Some(&ConfigPage {
            program: Program::Controller.name(),
            example: &EXAMPLE,
        })),
    }
}
