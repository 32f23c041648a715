//! `linewarden device`.

mod enroll;
mod list;
mod pair;
mod quarantine;
mod record;
mod revoke;
mod transfer;

use clap::Subcommand;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

/// Subcommands of `linewarden device`.
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// Enroll devices: store credentials in the registry and helper data in files
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden device enroll simulated --count 1000 --out devices --config controller.toml
  linewarden device enroll readouts dumps/chip7 --name \"pump 7\" --out devices \\
    --config controller.toml"
    )]
    Enroll(enroll::EnrollCommand),
    /// List devices
    List(list::ListArgs),
    /// Show a device
    Show(list::ShowArgs),
    /// Revoke devices permanently; running gateways drop their packets at once
    Revoke(revoke::RevokeArgs),
    /// Quarantine devices until they are released
    Quarantine(quarantine::QuarantineArgs),
    /// Release devices from quarantine
    Release(quarantine::ReleaseArgs),
    /// Manage pairs of devices that may communicate with each other
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden device pair create d1 d2 --config controller.toml
  linewarden device pair list d1 --config controller.toml"
    )]
    Pair(pair::PairCommand),
    /// Export devices to a file
    Export(transfer::ExportArgs),
    /// Import devices from a file of `export`
    Import(transfer::ImportArgs),
}

/// Runs the command.
pub fn run(command: DeviceCommand, output: Output) -> Result<(), Failure> {
    match command {
        DeviceCommand::Enroll(command) => enroll::run(command, output),
        DeviceCommand::List(args) => list::list(&args, output),
        DeviceCommand::Show(args) => list::show(&args, output),
        DeviceCommand::Revoke(args) => revoke::run(&args, output),
        DeviceCommand::Quarantine(args) => quarantine::quarantine(&args, output),
        DeviceCommand::Release(args) => quarantine::release(&args, output),
        DeviceCommand::Pair(command) => pair::run(&command, output),
        DeviceCommand::Export(args) => transfer::export(&args, output),
        DeviceCommand::Import(args) => transfer::import(&args, output),
    }
}
