//! The command `linewarden`: runs gateways, agents and controllers, and operates a fleet.
//!
//! ```text
//!   arguments ─► cli ─► cmd::run ─► cmd::{serve, agent, controller}      services, until a signal
//!                          │
//!                          ├──────► cmd::{device, attest, registry, ..} ─► registry_access ─► registry, or API of a controller
//!                          │
//!                          └──────► Failure ─► message, exit code
//! ```
//!
//! The program contains no protocol and no cryptography: the other crates of this repository implement them. The
//! program parses arguments and configuration files, calls these crates, and prints results as text, tables or JSON.
//!
//! | Module | Contents |
//! |---|---|
//! | `cli` | grammar of the command line, global options |
//! | `cmd` | the commands, one module each |
//! | `config_file`, `gateway_config`, `controller_config` | reading configuration files; all errors with line, column and field |
//! | `nats_config`, `telemetry_config`, `trust_config` | sections of configuration files |
//! | `registry`, `registry_access` | access to a registry, directly or through a controller |
//! | `evidence_key`, `secret_file`, `tls` | reading and creating keys and certificates |
//! | `metrics_file` | metrics in the text format of Prometheus |
//! | `privileges`, `service_manager` | capabilities, sd_notify |
#![forbid(unsafe_code)]

mod cli;
mod cmd;
mod config_file;
mod controller_config;
mod evidence_key;
mod gateway_config;
mod metrics_file;
mod nats_config;
mod privileges;
mod registry;
mod registry_access;
mod secret_file;
mod service_manager;
mod telemetry_config;
mod tls;
mod trust_config;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let cli = cli::Cli::parse_from(cmd::switch::without_separator(std::env::args_os()));
    cli.color.apply();
    let json = cli.command.prints_json();
    match cmd::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print(json),
    }
}
