//! `linewarden attest enroll`.

mod boot;
mod overlay;
mod software;
mod tpm;

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_protocol::wire::ATTEST_PORT;
use linewarden_registry::{
    DeviceError, Group, NewProver, Protection, ProverLocation, Registry, RegistryError,
};
use linewarden_types::GroupName;

use self::overlay::Overlay;
use super::record::find_group;
use crate::registry::RegistryArgs;

/// Arguments of `linewarden attest enroll`.
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("key_source").required(true).args(["software", "identity", "answer"]),
    after_help = "\
With --software the key is a file that must be transferred to the device in secret (`[attest] key` of its agent): the file is \
sufficient to forge proofs of the device.

With a TPM the key is in the TPM, works only in accepted boots, and cannot be copied. The enrollment has two steps. First the device \
creates its identity (`linewarden-agent identity`), which includes the certificate of its TPM and the TCG event log, and the operator creates an \
offer that only this TPM can decrypt (--identity). Then the device creates its answer (`linewarden-agent answer`), which proves that the key \
arrived, and the operator completes the enrollment (--answer) within 300 s after the offer.

The key works in up to eight boots: the boots of the group's reference value and roll-out, if these contain the same PCRs as the key, and \
each boot of --state. During a roll-out, enroll a device again before it starts the next kernel. If the present boot of the device is \
none of these boots, the command fails with exit code 4 and lists the PCRs and events that differ; `--state current` also accepts the \
present boot. PCR values in a file of --overlay do not make a boot accepted, unless an earlier enrollment has accepted these values. If \
the group has no reference value of PCRs and the device is already enrolled with a TPM, the device's present key must work in the present \
boot. If the device is not enrolled with a TPM either, the command accepts the present boot without a comparison, unless the device is in quarantine.

--trust names a directory of trusted certificates of TPM manufacturers; its subdirectory `intermediate` holds intermediate \
certificates, which are valid only with a trusted issuer. Each file is PEM or DER.

A device is attested at the address of its session. A device without a session is attested at --address by --gateway.

Examples:
  linewarden attest enroll d1 --group pumps --software --key-out d1.attest-key \\
    --config controller.toml
  linewarden attest enroll d1 d2 d3 --group pumps --software --key-dir keys --config controller.toml

  linewarden-agent identity --config agent.toml --out d1.identity                # on the device
  linewarden attest enroll d1 --group pumps --identity d1.identity --trust makers \\
    --offer d1.offer --pending d1.pending --config controller.toml
  linewarden-agent answer --config agent.toml --offer d1.offer --out d1.answer   # on the device
  linewarden attest enroll d1 --group pumps --answer d1.answer --pending d1.pending \\
    --config controller.toml"
)]
// There are more than 15 fields because each is an option of the command.
pub struct EnrollArgs {
    /// Device IDs (1 to 16 hexadecimal digits each)
    #[arg(required = true)]
    devices: Vec<DeviceId>,
    /// Group whose reference value the devices must prove (name)
    #[arg(long, value_name = "NAME")]
    group: GroupName,
    /// Create a key file for each device, for devices without a TPM (flag)
    #[arg(long, help_heading = "Keys in files")]
    software: bool,
    /// File of the new key, created with mode 0600; must not exist (path)
    #[arg(
        long,
        help_heading = "Keys in files",
        value_name = "FILE",
        requires = "software"
    )]
    key_out: Option<PathBuf>,
    /// Directory for the keys of several devices, each DEVICE.attest-key (path)
    #[arg(
        long,
        help_heading = "Keys in files",
        value_name = "DIR",
        requires = "software",
        conflicts_with = "key_out"
    )]
    key_dir: Option<PathBuf>,
    /// Identity of the device (path)
    #[arg(long, help_heading = "Keys in TPMs", value_name = "FILE", requires_all = ["offer", "pending"])]
    identity: Option<PathBuf>,
    /// --identity: directory of trusted certificates of TPM manufacturers (path)
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "DIR",
        requires = "identity",
        conflicts_with = "pin"
    )]
    trust: Option<PathBuf>,
    /// --identity: SHA-256 of an endorsement key that is trusted without a certificate (64 hexadecimal digits)
    #[arg(long, help_heading = "Keys in TPMs", value_name = "SHA256", requires = "identity", value_parser = tpm::parse_pin)]
    pin: Option<tpm::Pin>,
    /// --identity: another boot in which the key must work, such as the boot of the next kernel: a file of
    /// `linewarden-agent measure --out`, or `current` for the present boot; repeatable. The boots of the group's reference value
    /// and roll-out are always included (path or `current`)
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "FILE|current",
        requires = "identity"
    )]
    state: Vec<boot::StateArg>,
    /// --identity: output file with the offer for the device; must not exist (path)
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "FILE",
        requires = "identity"
    )]
    offer: Option<PathBuf>,
    /// File that stores the enrollment until the answer arrives: secret, mode 0600, deleted at the end (path)
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "FILE",
        conflicts_with = "software"
    )]
    pending: Option<PathBuf>,
    /// Answer of the device (path)
    #[arg(
        long,
        help_heading = "Keys in TPMs",
        value_name = "FILE",
        requires = "pending"
    )]
    answer: Option<PathBuf>,
    /// UDP port at which the agent receives requests (integer)
    #[arg(long, value_name = "PORT", default_value_t = ATTEST_PORT, conflicts_with = "identity", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// ID of the gateway that attests the device while the device has no session (integer)
    #[arg(long, value_name = "ID", requires = "address", conflicts_with = "identity")]
    gateway: Option<u32>,
    /// Address of the device while the device has no session (IP address)
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "gateway",
        conflicts_with = "identity"
    )]
    address: Option<IpAddr>,
    /// Overlay: device-specific entries that override the group's reference value, a file of `linewarden-agent measure --out`
    /// (path, default: with --software none, with --identity the present overlay of the device; --answer uses the
    /// overlay of --identity). With --identity, PCR values in the file do not make a boot accepted, unless an earlier
    /// enrollment has accepted these values
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// Replace the keys of devices that are already enrolled for attestation; the old keys become invalid (flag)
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Enrolls devices for attestation.
pub fn run(args: &EnrollArgs, output: Output) -> Result<(), Failure> {
    let devices: BTreeSet<DeviceId> = args.devices.iter().copied().collect();
    if args.software {
        return software::run(args, &devices, output);
    }
    let mut devices = devices.into_iter();
    let (Some(device), None) = (devices.next(), devices.next()) else {
        return Err(Failure::input(
            "--identity and --answer enroll one device: enter exactly one device ID",
        ));
    };
    match (&args.identity, &args.offer, &args.answer, &args.pending) {
        (Some(identity), Some(offer), _, Some(pending)) => {
            tpm::begin(args, device, [identity, offer, pending], output)
        }
        (_, _, Some(answer), Some(pending)) => tpm::finish(args, device, answer, pending, output),
        _ => Err(Failure::input(
            "no kind of key selected: for a key in a file, use --software; for a key in a TPM, use --identity, --offer and --pending first, \
             and --answer and --pending after the device has answered",
        )),
    }
}

/// Rejects, before any file is created, enrollments that the registry would reject, and replacements that were not requested.
async fn check(args: &EnrollArgs, registry: &Registry, device: DeviceId) -> Result<(), Failure> {
    if !registry.get(device).await?.status.is_active() {
        return Err(RegistryError::Device(DeviceError::Revoked { device }).into());
    }
    match registry.prover(device).await {
        Ok(Some(_)) if !args.replace => Err(Failure::failed(format!(
            "device {device} is already enrolled for attestation: use --replace for a new key"
        ))),
        Err(error @ RegistryError::Device(DeviceError::DamagedRecord { .. })) if args.replace => {
            tracing::warn!(%error, "attestation record is damaged; the command replaces the record");
            Ok(())
        }
        result => Ok(result.map(drop)?),
    }
}

/// Refuses an overlay that does not fit the group's reference value or roll-out, because the expected proof would be
/// undefined.
fn check_overlay(overlay: &Overlay, group: &Group) -> Result<(), Failure> {
    let reference = group.reference.as_ref().map(|base| (base, "reference value"));
    let roll_out = group.roll_out.as_ref();
    let roll_out = roll_out.map(|roll_out| (&roll_out.reference, "roll-out"));
    for (encoding, role) in reference.into_iter().chain(roll_out) {
        let misfit = |error: ConfigurationError| {
            Failure::input(format!(
                "{}: overlay does not fit the {role} of group {}: {error}; measure the overlay again, or use another file with --overlay",
                overlay.name(),
                group.name
            ))
        };
        let base = Configuration::decode(encoding).map_err(misfit)?;
        base.with_overlay(overlay.entries()).map_err(misfit)?;
    }
    Ok(())
}

/// The fields of a new prover that do not depend on whether the key is in a file or in a TPM.
struct ProverTemplate {
    group: GroupName,
    overlay: Option<Vec<u8>>,
    location: Option<ProverLocation>,
    port: u16,
    period: Period,
}

impl ProverTemplate {
    async fn read(
        args: &EnrollArgs,
        registry: &Registry,
        overlay: Option<&Overlay>,
    ) -> Result<Self, Failure> {
        let group = find_group(registry, &args.group).await?;
        if let Some(overlay) = overlay {
            check_overlay(overlay, &group)?;
        }
        // With a later period, the device would refuse requests of the present period.
        let newest_period = registry.newest_started_period().await?;
        Ok(Self {
            group: group.name,
            overlay: overlay.map(|overlay| overlay.entries().encode()),
            location: args
                .gateway
                .zip(args.address)
                .map(|(gateway, address)| ProverLocation {
                    gateway: GatewayId(gateway),
                    address,
                }),
            port: args.port,
            period: newest_period.map_or(Period(0), |period| period.number),
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
            location: self.location,
            port: self.port,
            enrolled_period: self.period,
        }
    }
}
