//! `linewarden device quarantine` and `release`.

use clap::Args;
use linewarden_agent::config::parse_device_id;
use linewarden_client::Treatment;
use linewarden_protocol::ids::DeviceId;

use crate::failure::Failure;
use crate::output::Output;
use crate::site::{ReasonArgs, SiteArgs};

/// Which devices.
#[derive(Args, Debug)]
#[command(after_help = "\
Gateways drop the devices' packets within a tenth of a second. Nothing that a device proves lets it out, only `device release`.

Examples:
  linewarden device quarantine d1 --reason \"odd traffic\" --config gateway.toml
  linewarden device quarantine d1 --reason \"odd traffic\" \\
    --server https://ctl.example:20560 --token-file alice.token")]
pub struct TreatArgs {
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

/// Which devices.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden device release d1 --reason \"explained\" --config gateway.toml")]
pub struct ReleaseArgs {
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

/// Shuts them out.
pub fn quarantine(args: &TreatArgs, output: Output) -> Result<(), Failure> {
    let what = (Treatment::Quarantine, "quarantined", "is in quarantine");
    treat(&args.site, &args.devices, &args.reason.reason, what, output)
}

/// Lets them in.
pub fn release(args: &ReleaseArgs, output: Output) -> Result<(), Failure> {
    let what = (Treatment::Release, "active", "may come in");
    treat(&args.site, &args.devices, &args.reason.reason, what, output)
}

/// One after the other; all are looked up first.
fn treat(
    site: &SiteArgs,
    devices: &[DeviceId],
    reason: &str,
    (treatment, status, words): (Treatment, &str, &str),
    output: Output,
) -> Result<(), Failure> {
    site.with(async |site| {
        for device in devices {
            site.device(*device).await?;
        }
        for device in devices {
            let revision = site.treat(*device, treatment, reason).await?;
            output.object(&serde_json::json!({
                "device_id": device.to_string(), "status": status, "revision": revision,
            }))?;
            output.line(format_args!("{device} {words}"))?;
        }
        Ok(())
    })
}
