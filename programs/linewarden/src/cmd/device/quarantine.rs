//! `linewarden device quarantine` and `release`.

use clap::Args;
use linewarden_api::Device;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_client::DeviceAction;
use linewarden_protocol::ids::DeviceId;

use crate::access::{AccessArgs, ReasonArgs};
use crate::cmd::device::record::find;

/// Arguments of `linewarden device quarantine`.
#[derive(Args, Debug)]
#[command(after_help = "\
Gateways drop the devices' packets within a tenth of a second. Proofs do not end this quarantine; `device \
release` does.

Examples:
  linewarden device quarantine d1 --reason \"odd traffic\" --config controller.toml
  linewarden device quarantine d1 --reason \"odd traffic\" \\
    --server https://ctl.example:20560 --token-file alice.token")]
pub struct QuarantineArgs {
    /// Device IDs (1 to 16 hexadecimal digits each)
    #[arg(required = true)]
    devices: Vec<DeviceId>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden device release`.
#[derive(Args, Debug)]
#[command(after_help = "\
`linewarden attest show DEVICE` shows the reason of a quarantine by attestation: check the reason first. A tenth of a second after the \
release, gateways let the device authenticate again. An agent that retries authentication reconnects within a minute; an agent with an \
open session learns of the release in the next round (`attest round run` starts one); an agent in pool mode may need up to 10 minutes. \
Attestation continues, and further missed rounds put the device into quarantine again.

Examples:
  linewarden device release d1 --reason \"checked\" --config controller.toml")]
pub struct ReleaseArgs {
    /// Device IDs (1 to 16 hexadecimal digits each)
    #[arg(required = true)]
    devices: Vec<DeviceId>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Quarantines devices, one by one; the command looks up all devices before the first change.
pub fn quarantine(args: &QuarantineArgs, output: Output) -> Result<(), Failure> {
    args.access.with(async |client| {
        for device in &args.devices {
            find(client, *device).await?;
        }
        for device in &args.devices {
            let (id, reason) = (device.to_string(), &args.reason.reason);
            let changed = client
                .change_device_state(&id, DeviceAction::Quarantine, reason)
                .await?;
            print_change(output, &changed)?;
            output.line(format_args!("quarantined device {device}"))?;
        }
        Ok(())
    })
}

/// Releases devices, one by one; the command looks up all devices before the first change.
pub fn release(args: &ReleaseArgs, output: Output) -> Result<(), Failure> {
    args.access.with(async |client| {
        let mut records = Vec::with_capacity(args.devices.len());
        for device in &args.devices {
            records.push(find(client, *device).await?);
        }
        for (device, record) in args.devices.iter().zip(records) {
            if let Some(record) = record.as_ref().filter(|record| record.status == "active") {
                print_change(output, record)?;
                output.line(format_args!("device {device} is not in quarantine"))?;
                continue;
            }
            let (id, reason) = (device.to_string(), &args.reason.reason);
            let released = client
                .change_device_state(&id, DeviceAction::Release, reason)
                .await?;
            print_change(output, &released)?;
            let cause = record.and_then(|record| record.reason);
            let cause = cause.filter(|cause| !cause.is_empty());
            let cause = cause.map_or_else(String::new, |cause| {
                format!(" (reason of the quarantine: {cause})")
            });
            output.line(format_args!("released device {device}{cause}"))?;
        }
        Ok(())
    })
}

fn print_change(output: Output, device: &Device) -> Result<(), Failure> {
    output.object(&serde_json::json!({
        "device_id": device.id, "status": device.status, "revision": device.revision,
    }))
}
