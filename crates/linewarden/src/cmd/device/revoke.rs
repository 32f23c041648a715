//! `linewarden device revoke`.

use clap::Args;
use linewarden_agent::config::parse_device_id;
use linewarden_client::Treatment;
use linewarden_protocol::ids::DeviceId;

use crate::cmd::device::list::date;
use crate::failure::Failure;
use crate::output::Output;
use crate::site::{ReasonArgs, SiteArgs};

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
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Revokes them, one after the other; all ids are looked up first.
pub fn run(args: &RevokeArgs, output: Output) -> Result<(), Failure> {
    args.site.with(async |site| {
        let mut known = Vec::with_capacity(args.devices.len());
        for device in &args.devices {
            known.push(site.find_even_damaged(*device).await?);
        }
        for (device, known) in args.devices.iter().zip(known) {
            if let Some(known) = known.filter(|known| known.status == "revoked") {
                let reason = known.reason.as_deref().unwrap_or_default();
                tell_already(output, *device, known.since_s.unwrap_or_default(), reason)?;
                continue;
            }
            let revision = site
                .treat(*device, Treatment::Revoke, &args.reason.reason)
                .await?;
            output.object(&serde_json::json!({
                "device_id": device.to_string(), "status": "revoked", "revision": revision,
            }))?;
            output.line(format_args!("revoked {device}"))?;
        }
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
