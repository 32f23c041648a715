//! `linewarden attest enroll`.

mod boot;
mod own;
mod software;
mod tpm;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use linewarden_agent::config::parse_device_id;
use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_protocol::wire::ATTEST_PORT;
use linewarden_registry::{Group, GroupName, Home, NewProver, Protection, Registry, RegistryError};

use self::own::Own;
use super::{group, message};
use crate::failure::Failure;
use crate::output::Output;
use crate::registry::RegistryArgs;

/// Which devices, and how.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("way").required(true).args(["software", "identity", "answer"]),
    after_help = "\
With --software the key is a file, which goes to the device in secret (`[attest] key` of its agent): whoever has it proves \
whatever he likes in the device's name. With a TPM the key lies in it, works only while the boot is the one that was \
enrolled, and cannot be copied; that takes two steps. The device makes its identity, which comes with its TPM's certificate \
and its event log; the offer answers it and is of use to that TPM alone; the device's answer proves that the key arrived. \
The answer has 300 s from the offer on. The key works in up to eight boots: those of the group's reference value and of what it is \
being updated to if they have the same PCRs, and each --state. So enroll a device again while the group is rolled out, before it \
starts the next kernel. A device in any other boot is refused with exit code 4, and the PCRs and events that differ are named; \
`--state current` accepts that boot too. PCRs in a file of --own accept no boot. Where the group has no reference value of PCRs, \
the boot must be one in which the device's present key works; of a device without such a key, the present boot becomes the \
reference.

--trust names a directory: certificates of the TPMs' makers that are believed, and in `intermediate` below it those that \
count only under one of them, each in PEM or DER.

A device is asked where its session is. One that has none yet is asked at --address by --gateway.

Examples:
  linewarden attest enroll d1 --group pumps --software --key-out d1.attest-key --config gateway.toml
  linewarden attest enroll d1 d2 d3 --group pumps --software --key-dir keys --config gateway.toml

  linewarden attest identity --config agent.toml --out d1.identity                # on the device
  linewarden attest enroll d1 --group pumps --identity d1.identity --trust makers \\
    --offer d1.offer --pending d1.pending --config gateway.toml
  linewarden attest answer --config agent.toml --offer d1.offer --out d1.answer   # on the device
  linewarden attest enroll d1 --group pumps --answer d1.answer --pending d1.pending \\
    --config gateway.toml"
)]
pub struct EnrollArgs {
    /// Their ids, up to 16 hexadecimal digits
    #[arg(required = true, value_parser = parse_device_id)]
    devices: Vec<DeviceId>,
    /// The group, which says what they are to run
    #[arg(long, value_name = "NAME")]
    group: GroupName,
    /// A new key for each device, for devices without a TPM
    #[arg(long, help_heading = "Keys in files")]
    software: bool,
    /// The new key's file, of mode 0600; nothing may be there
    #[arg(
        long,
        help_heading = "Keys in files",
        value_name = "FILE",
        requires = "software"
    )]
    key_out: Option<PathBuf>,
    /// A directory for the keys of several devices, each DEVICE.attest-key
    #[arg(
        long,
        help_heading = "Keys in files",
        value_name = "DIR",
        requires = "software",
        conflicts_with = "key_out"
    )]
    key_dir: Option<PathBuf>,
    /// What the device says of itself
    #[arg(long, help_heading = "Keys in TPMs", value_name = "FILE", requires_all = ["offer", "pending"])]
    identity: Option<PathBuf>,
    /// --identity: the certificates of makers that are believed
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "DIR",
        requires = "identity",
        conflicts_with = "pin"
    )]
    trust: Option<PathBuf>,
    /// --identity: SHA-256 of an endorsement key that is believed without a certificate
    #[arg(long, help_heading = "Keys in TPMs", value_name = "SHA256", requires = "identity", value_parser = tpm::parse_pin)]
    pin: Option<tpm::Pin>,
    /// --identity: another boot in which the key shall work, as the next kernel's: a file that `attest measure --out` has written
    /// there, or `current` for the boot that the device is in; may be given more than once. What the group is to run, and is being
    /// updated to, is allowed by itself
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "FILE|current",
        requires = "identity"
    )]
    state: Vec<boot::StateArg>,
    /// --identity: the new file with what the device must answer; nothing may be there
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "FILE",
        requires = "identity"
    )]
    offer: Option<PathBuf>,
    /// The file with what is remembered until the answer: secret, of mode 0600, and removed at the end
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "FILE",
        conflicts_with = "software"
    )]
    pending: Option<PathBuf>,
    /// What the device has answered
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "FILE",
        requires = "pending"
    )]
    answer: Option<PathBuf>,
    /// The UDP port that the device is asked at
    #[arg(long, value_name = "PORT", default_value_t = ATTEST_PORT, conflicts_with = "identity", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// The gateway that asks it before it has a session anywhere
    #[arg(long, value_name = "ID", requires = "address", conflicts_with = "identity")]
    gateway: Option<u32>,
    /// Where it is then
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "gateway",
        conflicts_with = "identity"
    )]
    address: Option<IpAddr>,
    /// Entries of the device's own, laid over the reference value of its group: a file that `attest measure --out` has written.
    /// Default: none with --software; with --identity those that the device has already. --answer keeps those of --identity. With
    /// --identity, PCRs in the file accept no boot, unless an earlier enrollment has accepted their values
    #[arg(long, value_name = "FILE")]
    own: Option<PathBuf>,
    /// Give devices that are enrolled for attestation already new keys; the old ones prove nothing any more
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Enrols.
pub fn run(args: &EnrollArgs, output: Output) -> Result<(), Failure> {
    let devices: BTreeSet<DeviceId> = args.devices.iter().copied().collect();
    if args.software {
        return software::run(args, &devices, output);
    }
    let mut devices = devices.into_iter();
    let (Some(device), None) = (devices.next(), devices.next()) else {
        return Err(Failure::input("a TPM is one device's: name one"));
    };
    match (&args.identity, &args.offer, &args.answer, &args.pending) {
        (Some(identity), Some(offer), _, Some(pending)) => {
            tpm::begin(args, device, [identity, offer, pending], output)
        }
        (_, _, Some(answer), Some(pending)) => tpm::finish(args, device, answer, pending, output),
        _ => Err(Failure::input("name --software, --identity or --answer")),
    }
}

/// Refuses what the registry would, and what nobody asked for, before anything is made.
async fn check(args: &EnrollArgs, registry: &Registry, device: DeviceId) -> Result<(), Failure> {
    if !registry.get(device).await?.status.is_active() {
        return Err(RegistryError::Revoked { device }.into());
    }
    match registry.prover(device).await {
        Ok(Some(_)) if !args.replace => Err(Failure::failed(format!(
            "device {device} is enrolled for attestation already; --replace gives it a new key"
        ))),
        Err(error @ RegistryError::DamagedRecord { .. }) if args.replace => {
            tracing::warn!(%error, "replaced");
            Ok(())
        }
        found => Ok(found.map(drop)?),
    }
}

/// Refuses what cannot be laid over what the group runs, or is being updated to: nobody would know what to ask the device for.
fn check_overlay(own: &Own, group: &Group) -> Result<(), Failure> {
    let reference = group.reference.as_ref().map(|base| (base, "reference value"));
    let roll_out = group.roll_out.as_ref();
    let roll_out = roll_out.map(|roll_out| (&roll_out.reference, "roll-out"));
    for (encoding, role) in reference.into_iter().chain(roll_out) {
        let wrong = |error: ConfigurationError| {
            Failure::input(format!(
                "{}: it cannot be laid over the {role} of group {}: {error}",
                own.name(),
                group.name
            ))
        };
        let base = Configuration::decode(encoding).map_err(wrong)?;
        base.overlaid(own.entries()).map_err(wrong)?;
    }
    Ok(())
}

/// What of a new prover does not depend on where its key lies.
struct Common {
    group: GroupName,
    overlay: Option<Vec<u8>>,
    home: Option<Home>,
    port: u16,
    period: Period,
}

impl Common {
    async fn read(args: &EnrollArgs, registry: &Registry, own: Option<&Own>) -> Result<Self, Failure> {
        let group = group::find(registry, &args.group).await?;
        if let Some(own) = own {
            check_overlay(own, &group)?;
        }
        // One that has not begun would have the device refuse the one that runs.
        let period = registry.newest_begun_period().await?;
        Ok(Self {
            group: group.name,
            overlay: own.map(|own| own.entries().encode()),
            home: args.gateway.zip(args.address).map(|(gateway, address)| Home {
                gateway: GatewayId(gateway),
                address,
            }),
            port: args.port,
            period: period.map_or(Period(0), |period| period.number),
        })
    }

    fn prover(
        &self,
        device: DeviceId,
        key: AttestationKey,
        protection: Protection,
        binding: Option<Vec<u8>>,
    ) -> NewProver {
        NewProver {
            device,
            group: self.group.clone(),
            key,
            protection,
            binding,
            overlay: self.overlay.clone(),
            home: self.home,
            port: self.port,
            enrolled_period: self.period,
        }
    }
}
