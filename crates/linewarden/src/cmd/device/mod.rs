//! `linewarden device`.

mod enroll;
mod list;
mod pair;
mod revoke;
mod transfer;
mod treat;

use clap::Subcommand;

pub use self::list::{date, left_out};

use crate::failure::Failure;
use crate::output::Output;

/// What about devices.
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// Enrol devices: credentials into the registry, helper data into files
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden device enroll simulated --count 1000 --out devices --config gateway.toml
  linewarden device enroll readouts dumps/chip7 --name \"pump 7\" --out devices --config gateway.toml"
    )]
    Enroll(enroll::EnrollCommand),
    /// List devices
    List(list::ListArgs),
    /// Show one device
    Show(list::ShowArgs),
    /// Revoke devices, for good: running gateways shut them out at once
    Revoke(revoke::RevokeArgs),
    /// Shut devices out until they are released
    Quarantine(treat::TreatArgs),
    /// Let devices out of quarantine
    Release(treat::ReleaseArgs),
    /// Which devices may talk to each other
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden device pair allow d1 d2 --config gateway.toml
  linewarden device pair list d1 --config gateway.toml"
    )]
    Pair(pair::PairCommand),
    /// Write devices to a file
    Export(transfer::ExportArgs),
    /// Take devices from a file that `export` wrote
    Import(transfer::ImportArgs),
}

impl DeviceCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Enroll(command) => command.common().json,
            Self::List(args) => args.json,
            Self::Show(args) => args.json,
            Self::Revoke(args) => args.json,
            Self::Quarantine(args) => args.json,
            Self::Release(args) => args.json,
            Self::Pair(command) => command.wants_json(),
            Self::Export(args) => args.json,
            Self::Import(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: DeviceCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        DeviceCommand::Enroll(command) => enroll::run(command, output),
        DeviceCommand::List(args) => list::list(&args, output),
        DeviceCommand::Show(args) => list::show(&args, output),
        DeviceCommand::Revoke(args) => revoke::run(&args, output),
        DeviceCommand::Quarantine(args) => treat::quarantine(&args, output),
        DeviceCommand::Release(args) => treat::release(&args, output),
        DeviceCommand::Pair(command) => pair::run(&command, output),
        DeviceCommand::Export(args) => transfer::export(&args, output),
        DeviceCommand::Import(args) => transfer::import(&args, output),
    }
}
