//! The command `linewarden-lab`: demonstrations on simulated devices, in an isolated network on this machine.
#![forbid(unsafe_code)]

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use linewarden_cli::color::ColorWhen;
use linewarden_cli::failure::Failure;
use linewarden_cli::{exit_codes, log};
use linewarden_gateway::WRONG_TAGS;

use self::command::demo;

/// Demonstrate Linewarden with simulated devices and attackers
#[derive(Parser, Debug)]
#[command(name = "linewarden-lab", version, after_long_help = exit_codes!(), propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Log level or filter: error, warn, info, debug, trace, off, or e.g. linewarden_gateway=debug [env: LINEWARDEN_LOG]
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<String>,
    /// When to color the output
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ColorWhen,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a demonstration: a simulated fleet authenticates while attackers interfere
    Demo(demo::DemoArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.color.apply();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print(false),
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    // Wrong tags come from simulated attackers: the gateway's warnings about them are expected.
    log::start(cli.log.as_deref(), None, &format!("warn,{WRONG_TAGS}=error"))?;
    match &cli.command {
        Command::Demo(args) => demo::run(args),
    }
}
