//! `linewarden attest`.

mod devices;
mod enroll;
mod group;
mod key;
mod record;
mod reference;
mod results;
mod rollout;
mod round;
mod show;

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
  linewarden attest group list --config controller.toml"
    )]
    Group(group::GroupCommand),
    /// Manage roll-outs of new reference values
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden attest rollout create pumps --reference pumps-2.conf --for 86400 \\
    --config controller.toml
  linewarden attest rollout approve pumps --config controller.toml"
    )]
    Rollout(rollout::RolloutCommand),
    /// Run and list rounds
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden attest round run pumps --config controller.toml
  linewarden attest round list --group pumps --limit 10 --config controller.toml"
    )]
    Round(round::RoundCommand),
    /// Enroll devices for attestation: store a key in the registry and on the device
    Enroll(Box<enroll::EnrollArgs>),
    /// Set the gateway, address or port at which a device is attested
    Set(devices::SetArgs),
    /// Delete the attestation keys and results of devices
    Delete(devices::DeleteArgs),
    /// List attestation results of devices
    List(results::ListArgs),
    /// Check that all devices are ok
    Check(results::CheckArgs),
    /// Export signed attestation results
    Export(results::ExportArgs),
    /// Show a device's expected and claimed configuration, and their differences
    Show(show::ShowArgs),
    /// Create or show the key that signs attestation results
    Key(key::KeyArgs),
}

/// Runs the command.
pub fn run(command: &AttestCommand, output: Output) -> Result<(), Failure> {
    match command {
        AttestCommand::Group(command) => group::run(command, output),
        AttestCommand::Rollout(command) => rollout::run(command, output),
        AttestCommand::Round(command) => round::run(command, output),
        AttestCommand::Enroll(args) => enroll::run(args, output),
        AttestCommand::Set(args) => devices::set(args, output),
        AttestCommand::Delete(args) => devices::delete(args, output),
        AttestCommand::List(args) => results::list(args, output),
        AttestCommand::Check(args) => results::check(args, output),
        AttestCommand::Export(args) => results::export(args, output),
        AttestCommand::Show(args) => show::run(args, output),
        AttestCommand::Key(args) => key::run(args, output),
    }
}
