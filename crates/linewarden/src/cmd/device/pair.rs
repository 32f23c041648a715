//! `linewarden device pair`.

use clap::{Args, Subcommand};
use linewarden_agent::config::parse_device_id;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::PAIR_LIFETIME_S;

use crate::failure::Failure;
use crate::output::Output;
use crate::registry::RegistryArgs;

/// What about pairs.
#[derive(Subcommand, Debug)]
pub enum PairCommand {
    /// Let two devices talk to each other; connected devices begin within about 10 seconds
    #[command(after_help = "\
Each of the two also needs the other one as a [[peer]] in its agent's configuration.

Examples:
  linewarden device pair allow d1 d2 --config gateway.toml")]
    Allow(PairArgs),
    /// Close a pair: connected devices part within about 10 seconds, others when their key is over
    #[command(after_help = "\
Examples:
  linewarden device pair close d1 d2 --config gateway.toml")]
    Close(PairArgs),
    /// With whom a device may talk
    #[command(after_help = "\
Examples:
  linewarden device pair list d1 --config gateway.toml
  linewarden device pair list d1 --config gateway.toml --json")]
    List(ListArgs),
}

/// Which pair.
#[derive(Args, Debug)]
pub struct PairArgs {
    /// One device, up to 16 hexadecimal digits
    #[arg(value_parser = parse_device_id)]
    device: DeviceId,
    /// The other one
    #[arg(value_parser = parse_device_id)]
    peer: DeviceId,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Whose pairs.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// The device, up to 16 hexadecimal digits
    #[arg(value_parser = parse_device_id)]
    device: DeviceId,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    json: bool,
}

impl PairCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Allow(args) | Self::Close(args) => args.json,
            Self::List(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &PairCommand, output: Output) -> Result<(), Failure> {
    match command {
        PairCommand::Allow(args) => change(args, true, output),
        PairCommand::Close(args) => change(args, false, output),
        PairCommand::List(args) => list(args, output),
    }
}

fn change(args: &PairArgs, allow: bool, output: Output) -> Result<(), Failure> {
    let PairArgs { device, peer, .. } = args;
    let changed = args.registry.with(async |registry| {
        Ok(match allow {
            true => registry.allow_pair(*device, *peer).await?,
            false => registry.close_pair(*device, *peer).await?,
        })
    })?;
    output.object(&serde_json::json!({
        "device_id": device.to_string(), "peer_id": peer.to_string(), "allowed": allow, "changed": changed,
    }))?;
    output.line(match (allow, changed) {
        (true, true) => format!("{device} and {peer} may talk to each other"),
        (true, false) => format!("{device} and {peer} might already"),
        (false, true) => format!("closed: their last key is over in {PAIR_LIFETIME_S} s at the latest"),
        (false, false) => format!("{device} and {peer} were no pair"),
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
            Err(error) => tracing::warn!(%error, "left out"),
        }
    }
    Ok(())
}
