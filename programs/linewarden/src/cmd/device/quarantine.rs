//! `linewarden device quarantine` and `release`.

use clap::Args;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_client::DeviceAction;
use linewarden_protocol::ids::DeviceId;

use crate::registry_access::{ReasonArgs, RegistryAccessArgs};

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
    access: RegistryAccessArgs,
}

/// Arguments of `linewarden device release`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden device release d1 --reason \"checked\" --config controller.toml")]
pub struct ReleaseArgs {
    /// Device IDs (1 to 16 hexadecimal digits each)
    #[arg(required = true)]
    devices: Vec<DeviceId>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: RegistryAccessArgs,
}

/// Quarantines devices.
pub fn quarantine(args: &QuarantineArgs, output: Output) -> Result<(), Failure> {
    let change = (DeviceAction::Quarantine, "quarantined", "quarantined device");
    change_state(&args.access, &args.devices, &args.reason.reason, change, output)
}

/// Releases devices.
pub fn release(args: &ReleaseArgs, output: Output) -> Result<(), Failure> {
    let change = (DeviceAction::Release, "active", "released device");
    change_state(&args.access, &args.devices, &args.reason.reason, change, output)
}

/// Changes the state of devices, one by one; the command looks up all devices before the first change.
fn change_state(
    access: &RegistryAccessArgs,
    devices: &[DeviceId],
    reason: &str,
    (action, status, message): (DeviceAction, &str, &str),
    output: Output,
) -> Result<(), Failure> {
    access.with(async |access| {
        for device in devices {
            access.device(*device).await?;
        }
        for device in devices {
            let revision = access.change_state(*device, action, reason).await?;
            output.object(&serde_json::json!({
                "device_id": device.to_string(), "status": status, "revision": revision,
            }))?;
            output.line(format_args!("{message} {device}"))?;
        }
        Ok(())
    })
}
