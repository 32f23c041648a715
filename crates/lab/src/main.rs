//! The program `linewarden-lab`: demonstrations and benchmarks with simulated devices and attackers, in isolated networks on this
//! machine, and packet tests of P4 programs.
#![forbid(unsafe_code)]

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use linewarden_cli::failure::Failure;
use linewarden_cli::program::{self, CommonCommand, GlobalArgs};
use linewarden_cli::{exit_codes, log};
use linewarden_gateway::WRONG_TAGS;

use self::command::demo;
#[cfg(feature = "bench")]
use self::command::{bench, stf};

macro_rules! examples {
    () => {
        "\
Examples:
  linewarden-lab demo
  linewarden-lab bench auth --quick
  linewarden-lab stf p4/tests"
    };
}

/// Demonstrate, measure and attack Linewarden with simulated devices
#[derive(Parser, Debug)]
#[command(name = "linewarden-lab", version, after_help = examples!(), after_long_help = concat!(examples!(), "\n\n", exit_codes!()), propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a demonstration: a simulated fleet authenticates while attackers interfere
    Demo(demo::DemoArgs),
    /// Run benchmarks
    #[cfg(feature = "bench")]
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden-lab bench auth --quick
  linewarden-lab bench attest --only round"
    )]
    Bench(bench::BenchCommand),
    /// Run packet tests in p4c's STF format against compiled P4 programs
    #[cfg(feature = "bench")]
    Stf(stf::StfArgs),
    #[command(flatten)]
    Common(CommonCommand),
}

fn main() -> ExitCode {
    program::main(std::env::args_os(), |cli: &Cli| &cli.global, run)
}

fn run(cli: Cli) -> Result<(), Failure> {
    // Wrong tags come from simulated attackers: the gateway's warnings about them are expected.
    log::start(
        cli.global.log.as_deref(),
        None,
        &format!("warn,{WRONG_TAGS}=error"),
    )?;
    let output = cli.global.output();
    match &cli.command {
        Command::Demo(args) => demo::run(args, output),
        #[cfg(feature = "bench")]
        Command::Bench(command) => bench::run(command, output),
        #[cfg(feature = "bench")]
        Command::Stf(args) => stf::run(args, output),
        Command::Common(command) => command.run::<Cli>(None),
    }
}
