//! `linewarden device pair`.

use clap::{Args, Subcommand};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::PAIR_LIFETIME_S;

use crate::access::{AccessArgs, ReasonArgs, check_damaged, read_all};

/// Subcommands of `linewarden device pair`.
#[derive(Subcommand, Debug)]
pub enum PairCommand {
    /// Permit two devices to communicate; connected devices can communicate within about 10 seconds
    #[command(after_help = "\
The agent's configuration of each device must also list the other device as a [[peer]].

Examples:
  linewarden device pair create d1 d2 --config controller.toml")]
    Create(PairArgs),
    /// Delete a pair; its devices stop communicating within about 10 seconds if one of them reaches its gateway, otherwise when the pair's key expires
    #[command(after_help = "\
Examples:
  linewarden device pair delete d1 d2 --config controller.toml")]
    Delete(PairArgs),
    /// List the peers of a device
    #[command(after_help = "\
Examples:
  linewarden device pair list d1 --config controller.toml
  linewarden device pair list d1 --config controller.toml --output json")]
    List(ListArgs),
}

/// Arguments of `linewarden device pair create` and `delete`.
#[derive(Args, Debug)]
pub struct PairArgs {
    /// Device ID (1 to 16 hexadecimal digits)
    device: DeviceId,
    /// Device ID of the peer (1 to 16 hexadecimal digits)
    peer: DeviceId,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden device pair list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Device ID (1 to 16 hexadecimal digits)
    device: DeviceId,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub fn run(command: &PairCommand, output: Output) -> Result<(), Failure> {
    match command {
        PairCommand::Create(args) => change(args, true, output),
        PairCommand::Delete(args) => change(args, false, output),
        PairCommand::List(args) => list(args, output),
    }
}

fn change(args: &PairArgs, is_allowed: bool, output: Output) -> Result<(), Failure> {
    let (device, peer, reason) = (
        args.device.to_string(),
        args.peer.to_string(),
        &args.reason.reason,
    );
    let pair = args.access.with(async |client| {
        Ok(match is_allowed {
            true => client.create_pair(&device, &peer, reason).await?,
            false => client.delete_pair(&device, &peer, reason).await?,
        })
    })?;
    output.object(&serde_json::json!({
        "device_id": device, "peer_id": peer, "allowed": is_allowed, "changed": pair.changed,
    }))?;
    output.line(match (is_allowed, pair.changed) {
        (true, true) => format!("created pair {device} and {peer}"),
        (true, false) => format!("pair {device} and {peer} already exists"),
        (false, true) => {
            format!("deleted pair {device} and {peer}; their last key expires within {PAIR_LIFETIME_S} s")
        }
        (false, false) => format!("no pair {device} and {peer} to delete"),
    })
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let device = args.device.to_string();
    let pairs = args
        .access
        .with(async |client| read_all(async |page| client.pairs(&device, &page).await).await)?;
    for pair in pairs.items {
        output.object(&serde_json::json!({ "peer_id": pair.peer }))?;
        output.line(pair.peer)?;
    }
    check_damaged(pairs.damaged_records)
}
