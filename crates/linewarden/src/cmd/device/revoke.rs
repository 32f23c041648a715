//! `linewarden device revoke`.

use clap::Args;
use linewarden_agent::config::parse_device_id;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::RegistryError;

use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::Output;
use crate::registry::{RegistryArgs, block_on};

/// Which devices.
#[derive(Args, Debug)]
#[command(after_help = "\
There is no way back but to enrol anew under another id. A running gateway on this registry drops the devices' packets \
within a tenth of a second.

Examples:
  linewarden device revoke 00000000000000d1 --reason \"stolen\" --config gateway.toml")]
pub struct RevokeArgs {
    /// Their ids, up to 16 hexadecimal digits
    #[arg(required = true, value_parser = parse_device_id)]
    devices: Vec<DeviceId>,
    /// Why, for people
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Revokes them, one after the other; all ids are looked up first.
pub fn run(args: &RevokeArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    block_on(async {
        let registry = args.registry.open().await?;
        for device in &args.devices {
            match registry.get(*device).await {
                Err(error @ RegistryError::DamagedRecord { .. }) => {
                    tracing::warn!(%error, "revoked all the same");
                }
                known => drop(known?),
            }
        }
        for device in &args.devices {
            let revision = registry.revoke(*device, &args.reason, now_s).await?;
            output.object(&serde_json::json!({
                "device_id": device.to_string(), "status": "revoked", "revision": revision.0,
            }))?;
            output.line(format_args!("revoked {device}"))?;
        }
        registry.close().await;
        Ok(())
    })
}
