//! The program `linewarden-gateway`: authenticates devices in the packet path.
//!
//! ```text
//!   arguments ─► run ─► configuration ─► inputs ─► attached data plane ─► running gateway, until a signal
//! ```
//!
//! The program contains no protocol and no data plane: the other crates of this repository implement them.
//!
//! | Module | Contents |
//! |---|---|
//! | `run` | start, reload and stop of a gateway |
//! | `evidence` | the commands `evidence export` and `evidence key` |
//! | `export` | the command `evidence export`: requests a statement from a running gateway |
//! | `privileges` | capabilities |
#![forbid(unsafe_code)]

mod evidence;
mod export;
mod privileges;
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
use linewarden_config::example::example;
use linewarden_config::gateway::GatewayConfig;
use linewarden_config::schema::schema_of;

/// Commented example of the configuration, with all fields.
static EXAMPLE: LazyLock<String> = LazyLock::new(|| example(&schema_of::<GatewayConfig>()));

macro_rules! examples {
    () => {
        "\
Examples:
  linewarden-gateway config example > gateway.toml
  linewarden-gateway check --machine gateway.toml
  linewarden-gateway run --config gateway.toml"
    };
}

/// Authenticate and attest devices in the network data plane
#[derive(Parser, Debug)]
#[command(name = "linewarden-gateway", version, after_help = examples!(), after_long_help = concat!(examples!(), "\n\n", exit_codes!()), propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a gateway
    Run(run::RunArgs),
    /// Remove the gates that an ended gateway left; all traffic passes again
    RemoveGate(run::RemoveGateArgs),
    /// Validate a configuration file
    #[command(after_help = "\
Reports every mistake of the file with line, column and field. With --machine also checks interfaces, privileges, certificates and \
key files. Exit code: 0 without errors (warnings do not count); otherwise the exit code with which `run` would refuse the first error.

Examples:
  linewarden-gateway check gateway.toml
  linewarden-gateway check --machine gateway.toml")]
    Check(CheckArgs),
    /// Show the configuration's format
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden-gateway config example > gateway.toml
  linewarden-gateway config schema > gateway.schema.json"
    )]
    Config(ConfigCommand),
    /// Manage signed evidence of the data plane
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden-gateway evidence key --out gateway.evidence-key > gateway.pub
  linewarden-gateway evidence export --socket evidence.sock --out s.cose --inventory s.inventory"
    )]
    Evidence(evidence::EvidenceCommand),
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
    // Errors of the TPM library are reported by the command itself.
    log::start(flag, None, "warn,tss_esapi=off")?;
    match &cli.command {
        Command::Run(_) => Ok(()),
        Command::RemoveGate(args) => run::remove_gates(args, output),
        Command::Check(args) => check::<GatewayConfig>(args, output),
        Command::Config(command) => command.run::<GatewayConfig>(),
        Command::Evidence(command) => evidence::run(command, output),
        Command::Common(command) => command.run::<Cli>(Some(&ConfigPage {
            program: Program::Gateway.name(),
            example: &EXAMPLE,
        })),
    }
}
