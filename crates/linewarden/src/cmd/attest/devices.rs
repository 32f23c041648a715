//! `linewarden attest remove`, `move` and `reopen`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clap::Args;
use linewarden_agent::config::parse_device_id;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{DeviceInfo, Home, NewProver, Registry, RegistryError, Reopen};

use super::group;
use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::Output;
use crate::registry::RegistryArgs;

/// Which devices.
#[derive(Args, Debug)]
#[command(after_help = "\
Their keys and what they have shown are forgotten. The devices stay enrolled, and those in quarantine stay there.

Examples:
  linewarden attest remove d1 d2 --config gateway.toml")]
pub struct RemoveArgs {
    /// Their ids, up to 16 hexadecimal digits
    #[arg(required = true, value_parser = parse_device_id)]
    devices: Vec<DeviceId>,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Which device, and where it is asked from now on.
#[derive(Args, Debug)]
#[command(after_help = "\
Its key stays. Gateways ask it there within seconds; how it stood is forgotten until then, and so is what it has said of itself. \
One in quarantine stays there. A device with a session is asked where that is, at --port.

Examples:
  linewarden attest move d1 --gateway 1 --address 192.0.2.7 --config gateway.toml
  linewarden attest move d1 --port 20555 --config gateway.toml")]
pub struct MoveArgs {
    /// Its id, up to 16 hexadecimal digits
    #[arg(value_parser = parse_device_id)]
    device: DeviceId,
    /// The gateway that asks it before it has a session anywhere
    #[arg(long, value_name = "ID", requires = "address")]
    gateway: Option<u32>,
    /// Where it is then
    #[arg(long, value_name = "ADDRESS", requires = "gateway")]
    address: Option<IpAddr>,
    /// The UDP port that it is asked at
    #[arg(long, value_name = "PORT", required_unless_present = "gateway", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Which devices.
#[derive(Args, Debug)]
#[command(after_help = "\
Look first why a device is there: `linewarden attest explain DEVICE`. Gateways on this registry let it in within a tenth of \
a second, when it authenticates: an agent that tries already is back within a minute, one that holds its session for good \
learns it from the next round (`attest round` begins one), and one of pool mode may have to wait 10 minutes. It goes on being \
asked, and is put into quarantine again if it stays silent.

Examples:
  linewarden attest status --config gateway.toml
  linewarden attest reopen d1 --config gateway.toml")]
pub struct ReopenArgs {
    /// Their ids, up to 16 hexadecimal digits
    #[arg(required = true, value_parser = parse_device_id)]
    devices: Vec<DeviceId>,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Makes them mere devices, one after the other; all are looked up first.
pub fn remove(args: &RemoveArgs, output: Output) -> Result<(), Failure> {
    let devices: BTreeSet<DeviceId> = args.devices.iter().copied().collect();
    args.registry.with(async |registry| {
        for device in &devices {
            match registry.prover(*device).await {
                Err(error @ RegistryError::DamagedRecord { .. }) => {
                    tracing::warn!(%error, "removed all the same");
                }
                found => {
                    if found?.is_none() {
                        // Of one that is no device at all, that is said.
                        registry.get(*device).await?;
                        return Err(Failure::input(format!(
                            "device {device} is not attested; `attest status` lists those that are"
                        )));
                    }
                }
            }
        }
        for device in devices {
            registry.remove_prover(device).await?;
            let stays = match registry.get(device).await {
                Ok(info) => info.quarantine.is_some() && info.status.is_active(),
                Err(RegistryError::DamagedRecord { .. }) => false,
                Err(error) => return Err(error.into()),
            };
            output.object(&serde_json::json!({
                "device_id": device.to_string(), "removed": true, "quarantined": stays,
            }))?;
            output.line(match stays {
                false => format!("{device} is attested no more"),
                true => format!(
                    "{device} is attested no more, and stays in quarantine: `attest reopen {device}` lets it out"
                ),
            })?;
        }
        Ok(())
    })
}

/// Enrols it with the key that it has, elsewhere.
pub fn relocate(args: &MoveArgs, output: Output) -> Result<(), Failure> {
    let device = args.device;
    let now_s = now_s()?;
    let (home, port) = args.registry.with(async |registry| {
        let found = registry.prover(device).await?;
        let before = found.ok_or(RegistryError::NotAProver { device })?;
        let home = args.gateway.zip(args.address).map(|(gateway, address)| Home {
            gateway: GatewayId(gateway),
            address,
        });
        let port = args.port.unwrap_or(before.port);
        // Of one in quarantine the registry knows where it was asked last.
        let is_out = registry.get(device).await?.quarantine.is_some();
        let home = home.or(before.home.filter(|_| !is_out));
        let moved = NewProver {
            device,
            group: before.group,
            key: before.key,
            protection: before.protection,
            binding: before.binding,
            overlay: before.overlay,
            home,
            port,
            enrolled_period: before.enrolled_period,
        };
        registry.enrol_prover(moved, now_s).await?;
        let after = registry.prover(device).await?;
        Ok((after.and_then(|after| after.home), port))
    })?;
    output.object(&serde_json::json!({
        "device_id": device.to_string(),
        "port": port,
        "home": home.map(|home| serde_json::json!({ "gateway_id": home.gateway.0, "address": home.address })),
    }))?;
    let place = home.map_or_else(String::new, |home| {
        format!(
            ", without a session by gateway {} at {}",
            home.gateway, home.address
        )
    });
    output.line(format_args!("{device} is asked at UDP port {port}{place}"))
}

/// Lets them out, one after the other; all are looked up first.
pub fn reopen(args: &ReopenArgs, output: Output) -> Result<(), Failure> {
    let devices: BTreeSet<DeviceId> = args.devices.iter().copied().collect();
    args.registry.with(async |registry| {
        let mut found = Vec::with_capacity(devices.len());
        for device in devices {
            let info = registry.get(device).await?;
            if !info.status.is_active() {
                return Err(RegistryError::Revoked { device }.into());
            }
            found.push(info);
        }
        for info in found {
            reopen_one(registry, &info, output).await?;
        }
        Ok(())
    })
}

async fn reopen_one(registry: &Registry, info: &DeviceInfo, output: Output) -> Result<(), Failure> {
    let device = info.device;
    if info.quarantine.is_some() {
        registry.readmit(device).await?;
    }
    output.object(&serde_json::json!({
        "device_id": device.to_string(), "reopened": info.quarantine.is_some(),
    }))?;
    let Some(quarantine) = &info.quarantine else {
        return output.line(format_args!("{device} is not in quarantine"));
    };
    let why = match quarantine.reason.as_str() {
        "" => String::new(),
        reason => format!(" (it was there: {reason})"),
    };
    let next = match registry.prover(device).await? {
        None => "it is not attested".to_owned(),
        Some(prover) => {
            let policy = group::find(registry, &prover.group).await?.policy;
            let again = match policy.reopen {
                Reopen::Automatic => "",
                Reopen::ByCommand => ", and by command only it comes out again",
            };
            format!(
                "it is put there again if it is silent in {} of {} rounds{again}",
                policy.silent, policy.of
            )
        }
    };
    output.line(format_args!("{device} is let in again{why}; {next}"))
}
