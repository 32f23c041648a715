//! The program `linewarden-agent`: authenticates this device to a gateway, and measures and attests its software.
//!
//! | Module | Contents |
//! |---|---|
//! | `run` | the agent, until a signal |
//! | `config` | reading and checking the configuration |
//! | `measure` | the command `measure` |
//! | `tpm` | the commands `identity` and `answer`: the device's part in the enrollment of its TPM |
#![forbid(unsafe_code)]

mod config;
mod measure;
mod run;
#[cfg(feature = "tpm")]
mod tpm;

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use linewarden_cli::failure::Failure;
use linewarden_cli::manual::ConfigPage;
use linewarden_cli::program::{self, CommonCommand, GlobalArgs};
use linewarden_cli::{exit_codes, log};
use linewarden_config::Program;
use linewarden_config::agent::AgentConfig;
use linewarden_config::command::{CheckArgs, ConfigCommand, check};
use linewarden_config::example::example;
use linewarden_config::schema::schema_of;

/// Commented example of the configuration, with all fields.
static EXAMPLE: LazyLock<String> = LazyLock::new(|| example(&schema_of::<AgentConfig>()));

macro_rules! examples {
    () => {
        "\
Examples:
  linewarden-agent check --machine 00000000000000d1.toml
  linewarden-agent run --config 00000000000000d1.toml --gateway 192.0.2.1
  linewarden-agent measure --config 00000000000000d1.toml"
    };
}

/// Authenticate this device to a gateway, and attest its software
#[derive(Parser, Debug)]
#[command(name = "linewarden-agent", version, after_help = examples!(), after_long_help = concat!(examples!(), "\n\n", exit_codes!()), propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Authenticate to a gateway and keep the session open
    Run(run::RunArgs),
    /// Validate a configuration file
    #[command(after_help = "\
Reports every mistake of the file with line, column and field; peer.2 is the second [[peer]]. With --machine also checks helper data, \
the PUF source, the interface, and for [attest] the key file, the TCG event log, access to the TPM device, and the measured files; run \
the command as the user of the service; paths that the service's sandbox hides cause a warning. `measure` tests the TPM and replays \
the TCG event log to the PCRs. Exit code: 0 without errors (warnings do not count); otherwise the exit code with which `run` would \
refuse the first error.

Examples:
  linewarden-agent check 00000000000000d1.toml
  linewarden-agent check --machine --output json 00000000000000d1.toml")]
    Check(CheckArgs),
    /// Show the configuration's format
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden-agent config example > agent.toml
  linewarden-agent config schema > agent.schema.json"
    )]
    Config(ConfigCommand),
    /// Measure the configuration of this device, as the agent does
    Measure(measure::MeasureArgs),
    /// Begin the enrollment of this device's TPM
    #[cfg(feature = "tpm")]
    Identity(tpm::IdentityArgs),
    /// Import the offered key into this device's TPM
    #[cfg(feature = "tpm")]
    Answer(tpm::AnswerArgs),
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
    // Commands report errors of the TPM library themselves.
    log::start(flag, None, "warn,tss_esapi=off")?;
    match &cli.command {
        Command::Run(_) => Ok(()),
        Command::Check(args) => check::<AgentConfig>(args, output),
        Command::Config(command) => command.run::<AgentConfig>(),
        Command::Measure(args) => measure::run(args, output),
        #[cfg(feature = "tpm")]
        Command::Identity(args) => tpm::identity(args, output),
        #[cfg(feature = "tpm")]
        Command::Answer(args) => tpm::accept_offer(args, output),
        Command::Common(command) => command.run::<Cli>(Some(&ConfigPage {
            program: Program::Agent.name(),
            example: &EXAMPLE,
        })),
    }
}
