//! `linewarden attest`.

mod device_status;
mod devices;
mod enroll;
mod explain;
mod group;
mod key;
mod reference;
mod round;
mod status;

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

use clap::Subcommand;

/// Subcommands of `linewarden attest`.
#[derive(Subcommand, Debug)]
pub enum AttestCommand {
    /// Manage groups of devices: reference value and attestation policy
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden attest group set pumps --reference pumps.conf --every 60 --config controller.toml
  linewarden attest group list --config controller.toml
  linewarden attest group roll-out pumps --reference pumps-2.conf --for 86400 \\
    --config controller.toml"
    )]
    Group(group::GroupCommand),
    /// Enroll devices for attestation: store a key in the registry and on the device
    Enroll(Box<enroll::EnrollArgs>),
    /// Delete the attestation keys and results of devices
    Delete(devices::DeleteArgs),
    /// Change the gateway, address or port at which a device is attested
    Move(devices::MoveArgs),
    /// Run a round now and show its results
    Round(round::RoundArgs),
    /// Show attestation states of devices
    Status(status::StatusArgs),
    /// Show a device's expected and claimed configuration, and their differences
    Explain(explain::ExplainArgs),
    /// Release devices from quarantine
    Release(devices::ReleaseArgs),
    /// Create or show the key that signs attestation results
    Key(key::KeyArgs),
}

/// Runs the command.
pub fn run(command: &AttestCommand, output: Output) -> Result<(), Failure> {
    match command {
        AttestCommand::Group(command) => group::run(command, output),
        AttestCommand::Enroll(args) => enroll::run(args, output),
        AttestCommand::Delete(args) => devices::delete(args, output),
        AttestCommand::Move(args) => devices::move_device(args, output),
        AttestCommand::Round(args) => round::run(args, output),
        AttestCommand::Status(args) => status::run(args, output),
        AttestCommand::Explain(args) => explain::run(args, output),
        AttestCommand::Release(args) => devices::release(args, output),
        AttestCommand::Key(args) => key::run(args, output),
    }
}
