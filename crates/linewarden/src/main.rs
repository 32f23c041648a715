//! The Linewarden command line.
#![forbid(unsafe_code)]

mod cli;
mod cmd;
mod config_file;
mod controller_config;
mod evidence_key;
mod failure;
mod gateway_config;
mod log;
mod metrics_file;
mod nats_config;
mod output;
mod privileges;
mod registry;
mod results;
mod secret_file;
mod service_manager;
mod signals;
mod site;
mod telemetry_config;
mod tls;
mod trust_config;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let cli = cli::Cli::parse_from(cmd::switch::without_separator(std::env::args_os()));
    cli.color.apply();
    let json = cli.command.wants_json();
    match cmd::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(json),
    }
}
