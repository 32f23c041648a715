//! `linewarden device revoke`.

use clap::Args;
use linewarden_agent::config::parse_device_id;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{RegistryError, Status};

use crate::cmd::device::list::date;
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
        let mut statuses = Vec::with_capacity(args.devices.len());
        for device in &args.devices {
            statuses.push(match registry.get(*device).await {
                Err(error @ RegistryError::DamagedRecord { .. }) => {
                    tracing::warn!(%error, "revoked all the same");
                    Status::Active
                }
                known => known?.status,
            });
        }
        for (device, status) in args.devices.iter().zip(statuses) {
            if let Status::Revoked { at_s, reason } = status {
                tell_already(output, *device, at_s, &reason)?;
                continue;
            }
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

/// The first revocation stays as it is.
fn tell_already(output: Output, device: DeviceId, at_s: u64, reason: &str) -> Result<(), Failure> {
    output.object(&serde_json::json!({
        "device_id": device.to_string(), "status": "revoked", "already": true, "revoked_at_s": at_s,
        "revoked_reason": reason,
    }))?;
    let stays = match reason {
        "" => "without a reason, and that stays".to_owned(),
        reason => format!("and its reason stays: {reason}"),
    };
    output.line(format_args!(
        "{device} was revoked already, on {}, {stays}",
        date(at_s)
    ))
}
