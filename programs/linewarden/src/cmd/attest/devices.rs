//! `linewarden attest delete` and `set`.

use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::Output;
use std::collections::BTreeSet;
use std::net::IpAddr;

use clap::Args;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{AttestationError, DeviceError, NewProver, ProverLocation, RegistryError};

use crate::registry::RegistryArgs;

/// Arguments of `linewarden attest delete`.
#[derive(Args, Debug)]
#[command(after_help = "\
Deletes the devices' attestation keys and results. The devices stay enrolled, and a quarantine stays in force.

Examples:
  linewarden attest delete d1 d2 --config controller.toml")]
pub struct DeleteArgs {
    /// Device IDs (1 to 16 hexadecimal digits each)
    #[arg(required = true)]
    devices: Vec<DeviceId>,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Arguments of `linewarden attest set`.
#[derive(Args, Debug)]
#[command(after_help = "\
The device keeps its key; its attestation state and evidence are reset. The gateway sends requests to the new address within seconds. A \
quarantine stays in force. A device with a session receives requests at the address of its session, at --port.

Examples:
  linewarden attest set d1 --gateway 1 --address 192.0.2.7 --config controller.toml
  linewarden attest set d1 --port 20555 --config controller.toml")]
pub struct SetArgs {
    /// Device ID (1 to 16 hexadecimal digits)
    device: DeviceId,
    /// ID of the gateway that attests the device while the device has no session (integer)
    #[arg(long, value_name = "ID", requires = "address")]
    gateway: Option<u32>,
    /// Address of the device while the device has no session (IP address)
    #[arg(long, value_name = "ADDRESS", requires = "gateway")]
    address: Option<IpAddr>,
    /// UDP port at which the agent receives requests (integer)
    #[arg(long, value_name = "PORT", required_unless_present = "gateway", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Deletes the attestation records of devices, one by one; all devices are looked up first.
pub fn delete(args: &DeleteArgs, output: Output) -> Result<(), Failure> {
    let devices: BTreeSet<DeviceId> = args.devices.iter().copied().collect();
    args.registry.with(async |registry| {
        for device in &devices {
            match registry.prover(*device).await {
                Err(error @ RegistryError::Device(DeviceError::DamagedRecord { .. })) => {
                    tracing::warn!(%error, "attestation record is damaged; the command deletes the record");
                }
                result => {
                    if result?.is_none() {
                        // A device that is not enrolled at all has another error.
                        registry.get(*device).await?;
                        return Err(Failure::input(format!(
                            "device {device} is not enrolled for attestation: `attest list` lists the enrolled devices"
                        )));
                    }
                }
            }
        }
        for device in devices {
            registry.remove_prover(device).await?;
            let is_quarantined = match registry.get(device).await {
                Ok(info) => info.quarantine.is_some() && info.status.is_active(),
                Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => false,
                Err(error) => return Err(error.into()),
            };
            output.object(&serde_json::json!({
                "device_id": device.to_string(), "deleted": true, "quarantined": is_quarantined,
            }))?;
            output.line(match is_quarantined {
                false => format!("deleted the attestation key and results of device {device}"),
                true => format!(
                    "deleted the attestation key and results of device {device}; the device stays in quarantine until `device release {device}`"
                ),
            })?;
        }
        Ok(())
    })
}

/// Stores a device's key with another gateway, address or port.
pub fn set(args: &SetArgs, output: Output) -> Result<(), Failure> {
    let device = args.device;
    let now_s = now_s()?;
    let (location, port) = args.registry.with(async |registry| {
        let prover = registry.prover(device).await?;
        let before = prover.ok_or(RegistryError::Attestation(AttestationError::NotAProver {
            device,
        }))?;
        let location = args
            .gateway
            .zip(args.address)
            .map(|(gateway, address)| ProverLocation {
                gateway: GatewayId(gateway),
                address,
            });
        let port = args.port.unwrap_or(before.port);
        // If the device is in quarantine and no location is given, the registry uses the last known location of the device.
        let is_quarantined = registry.get(device).await?.quarantine.is_some();
        let location = location.or(before.location.filter(|_| !is_quarantined));
        let moved = NewProver {
            device,
            group: before.group,
            key: before.key,
            protection: before.protection,
            binding: before.binding,
            overlay: before.overlay,
            location,
            port,
            enrolled_period: before.enrolled_period,
        };
        registry.enroll_prover(moved, now_s).await?;
        let after = registry.prover(device).await?;
        Ok((after.and_then(|after| after.location), port))
    })?;
    output.object(&serde_json::json!({
        "device_id": device.to_string(),
        "port": port,
        "location": location.map(|location| serde_json::json!({ "gateway_id": location.gateway.0, "address": location.address })),
    }))?;
    let location_text = location.map_or_else(String::new, |location| {
        format!(
            "; while the device has no session, gateway {} attests it at {}",
            location.gateway, location.address
        )
    });
    output.line(format_args!(
        "device {device} is attested at UDP port {port}{location_text}"
    ))
}
