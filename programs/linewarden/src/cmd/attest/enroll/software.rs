//! Enrollment with keys in files.

use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::{Output, counted};
use linewarden_cli::secret_file;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Protection, Registry};
use zeroize::Zeroizing;

use super::overlay::Overlay;
use super::{EnrollArgs, ProverTemplate, check};

const KEY_BYTES: usize = 32;

/// Enrolls devices, one by one; the command checks all devices before the first enrollment.
pub fn run(args: &EnrollArgs, devices: &BTreeSet<DeviceId>, output: Output) -> Result<(), Failure> {
    if devices.len() > 1 && args.address.is_some() {
        return Err(Failure::input(
            "--address applies to one device: enter exactly one device ID",
        ));
    }
    let files = key_files(args, devices)?;
    let now_s = now_s()?;
    args.registry.with(async |registry| {
        let overlay = Overlay::read(args, None)?;
        let template = ProverTemplate::read(args, registry, overlay.as_ref()).await?;
        for device in devices {
            check(args, registry, *device).await?;
        }
        for (_, path) in &files {
            secret_file::check_absent(path)?;
        }
        if let Some(directory) = &args.key_dir {
            std::fs::create_dir_all(directory).map_err(|error| {
                Failure::input(format!("{}: cannot be created: {error}", directory.display()))
            })?;
        }
        let bar = output.progress(files.len() as u64, "enrolling");
        let result = enroll_all(registry, &template, &files, now_s, output, &bar).await;
        bar.finish_and_clear();
        result?;
        print_result(args, &files, &template, output)
    })
}

fn key_files(args: &EnrollArgs, devices: &BTreeSet<DeviceId>) -> Result<Vec<(DeviceId, PathBuf)>, Failure> {
    match (&args.key_out, &args.key_dir) {
        (Some(path), _) => match devices.first() {
            Some(device) if devices.len() == 1 => Ok(vec![(*device, path.clone())]),
            _ => Err(Failure::input(
                "--key-out is for one key: use --key-dir for several devices",
            )),
        },
        (None, Some(directory)) => Ok(devices
            .iter()
            .map(|device| (*device, directory.join(format!("{device}.attest-key"))))
            .collect()),
        (None, None) => Err(Failure::input(
            "--software needs an output: use --key-out FILE or --key-dir DIR",
        )),
    }
}

async fn enroll_all(
    registry: &Registry,
    template: &ProverTemplate,
    files: &[(DeviceId, PathBuf)],
    now_s: u64,
    output: Output,
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure> {
    for (device, path) in files {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        getrandom::fill(&mut *bytes)
            .map_err(|error| Failure::failed(format!("reading random bytes from the kernel failed: {error}; this device is not enrolled; repeat the command")))?;
        secret_file::create(path, key_text(&bytes).as_bytes())?;
        let key = AttestationKey::from_bytes(*bytes);
        let prover = template.prover(*device, key, Protection::Software, None);
        let revision = match registry.enroll_prover(prover, now_s).await {
            Ok(revision) => revision,
            Err(error) => {
                discard_key(path);
                return Err(error.into());
            }
        };
        output.object(&serde_json::json!({
            "device_id": device.to_string(),
            "group": template.group.as_str(),
            "key": "software",
            "key_file": path,
            "port": template.port,
            "enrolled_period": template.period.0,
            "revision": revision,
        }))?;
        bar.inc(1);
    }
    Ok(())
}

/// Removes the file of a key that the registry has not stored, so that an operator does not use the file.
fn discard_key(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::error!(%error, path = %path.display(), action = "delete the file", "removing an unused key failed");
    }
}

/// Formats a key for the agent: hexadecimal digits and a line break.
fn key_text(key: &[u8; KEY_BYTES]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES + 1));
    for byte in key {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    text
}

fn print_result(
    args: &EnrollArgs,
    files: &[(DeviceId, PathBuf)],
    template: &ProverTemplate,
    output: Output,
) -> Result<(), Failure> {
    let group = &template.group;
    match (files, &args.key_dir) {
        ([(device, path)], None) => output.line(format_args!(
            "enrolled device {device} for attestation in group {group}; transfer the key to the device in secret: {}",
            path.display()
        ))?,
        (_, directory) => output.line(format_args!(
            "enrolled {} for attestation in group {group}; transfer each DEVICE.attest-key to its device in secret: {}",
            counted(files.len() as u64, "device"),
            directory.as_deref().unwrap_or(Path::new(".")).display()
        ))?,
    }
    print_agent_config(template, output)
}

/// Prints the settings that the agent's configuration needs.
pub(super) fn print_agent_config(template: &ProverTemplate, output: Output) -> Result<(), Failure> {
    output.line(format_args!(
        "set under [attest] of the agent's configuration: port = {}, enrolled_period = {}",
        template.port, template.period.0
    ))
}
