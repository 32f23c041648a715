//! `linewarden device revoke`.

use clap::Args;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_client::DeviceAction;
use linewarden_protocol::ids::DeviceId;

use crate::access::{AccessArgs, ReasonArgs};
use crate::cmd::device::record::find;
use crate::date::date;

/// Arguments of `linewarden device revoke`.
#[derive(Args, Debug)]
#[command(after_help = "\
A revocation is permanent: the device must be enrolled again under another ID. A running gateway on this registry drops the devices' \
packets within a tenth of a second.

Examples:
  linewarden device revoke 00000000000000d1 --reason \"stolen\" --config controller.toml")]
pub struct RevokeArgs {
    /// Device IDs (1 to 16 hexadecimal digits each)
    #[arg(required = true)]
    devices: Vec<DeviceId>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Revokes devices, one by one; the command looks up all devices before the first revocation.
pub fn run(args: &RevokeArgs, output: Output) -> Result<(), Failure> {
    args.access.with(async |client| {
        let mut records = Vec::with_capacity(args.devices.len());
        for device in &args.devices {
            let record = find(client, *device).await?;
            if record.is_none() {
                tracing::warn!(device_id = %device, "device record is damaged; the command revokes the device");
            }
            records.push(record);
        }
        for (device, record) in args.devices.iter().zip(records) {
            if let Some(record) = record.filter(|record| record.status == "revoked") {
                let reason = record.reason.as_deref().unwrap_or_default();
                print_already_revoked(output, *device, record.since_s.unwrap_or_default(), reason)?;
                continue;
            }
            let revoked = client
                .change_device_state(&device.to_string(), DeviceAction::Revoke, &args.reason.reason)
                .await?;
            output.object(&serde_json::json!({
                "device_id": device.to_string(), "status": "revoked", "revision": revoked.revision,
            }))?;
            output.line(format_args!("revoked {device}"))?;
        }
        Ok(())
    })
}

/// Reports that the device was revoked earlier, and that the command has changed nothing.
fn print_already_revoked(output: Output, device: DeviceId, at_s: u64, reason: &str) -> Result<(), Failure> {
    output.object(&serde_json::json!({
        "device_id": device.to_string(), "status": "revoked", "already": true, "revoked_at_s": at_s,
        "revoked_reason": reason,
    }))?;
    let detail = match reason {
        "" => "without a reason; not changed".to_owned(),
        reason => format!("with the reason: {reason}; not changed"),
    };
    output.line(format_args!(
        "device {device} was already revoked on {}, {detail}",
        date(at_s)
    ))
}
