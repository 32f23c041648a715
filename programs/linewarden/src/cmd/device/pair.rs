//! `linewarden device pair`.

use clap::{Args, Subcommand};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::PAIR_LIFETIME_S;

use crate::registry::RegistryArgs;

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
    registry: RegistryArgs,
}

/// Arguments of `linewarden device pair list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Device ID (1 to 16 hexadecimal digits)
    device: DeviceId,
    #[command(flatten)]
    registry: RegistryArgs,
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
    let PairArgs { device, peer, .. } = args;
    let changed = args.registry.with(async |registry| {
        Ok(match is_allowed {
            true => registry.allow_pair(*device, *peer).await?,
            false => registry.disallow_pair(*device, *peer).await?,
        })
    })?;
    output.object(&serde_json::json!({
        "device_id": device.to_string(), "peer_id": peer.to_string(), "allowed": is_allowed, "changed": changed,
    }))?;
    output.line(match (is_allowed, changed) {
        (true, true) => format!("created pair {device} and {peer}"),
        (true, false) => format!("pair {device} and {peer} already exists"),
        (false, true) => {
            format!("deleted pair {device} and {peer}; their last key expires within {PAIR_LIFETIME_S} s")
        }
        (false, false) => format!("no pair {device} and {peer} to delete"),
    })
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let peers = args
        .registry
        .with(async |registry| Ok(registry.pairs_of(args.device).await?))?;
    for peer in peers {
        match peer {
            Ok(peer) => {
                output.object(&serde_json::json!({ "peer_id": peer.to_string() }))?;
                output.line(peer)?;
            }
            Err(error) => {
                tracing::warn!(%error, action = "run `linewarden registry check`", "pair record is damaged; skipped")
            }
        }
    }
    Ok(())
}
