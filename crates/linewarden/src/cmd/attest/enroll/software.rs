//! Keys in files.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Protection, Registry};
use zeroize::Zeroizing;

use super::own::Own;
use super::{Common, EnrollArgs, check};
use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::secret_file;

const KEY_BYTES: usize = 32;

/// Enrols devices, one after the other; all are looked up first.
pub fn run(args: &EnrollArgs, devices: &BTreeSet<DeviceId>, output: Output) -> Result<(), Failure> {
    if devices.len() > 1 && args.address.is_some() {
        return Err(Failure::input(
            "--address is one device's: name one device with it",
        ));
    }
    let files = key_files(args, devices)?;
    let now_s = now_s()?;
    args.registry.with(async |registry| {
        let own = Own::read(args, None)?;
        let common = Common::read(args, registry, own.as_ref()).await?;
        for device in devices {
            check(args, registry, *device).await?;
        }
        for (_, path) in &files {
            secret_file::check_absent(path)?;
        }
        if let Some(directory) = &args.key_dir {
            std::fs::create_dir_all(directory).map_err(|error| {
                Failure::input(format!("{}: cannot be made: {error}", directory.display()))
            })?;
        }
        let bar = output.progress(files.len() as u64, "enrolling");
        let enrolled = enrol_all(registry, &common, &files, now_s, output, &bar).await;
        bar.finish_and_clear();
        enrolled?;
        tell(args, &files, &common, output)
    })
}

fn key_files(args: &EnrollArgs, devices: &BTreeSet<DeviceId>) -> Result<Vec<(DeviceId, PathBuf)>, Failure> {
    match (&args.key_out, &args.key_dir) {
        (Some(path), _) => match devices.first() {
            Some(device) if devices.len() == 1 => Ok(vec![(*device, path.clone())]),
            _ => Err(Failure::input(
                "--key-out is one key's file; --key-dir takes the keys of several devices",
            )),
        },
        (None, Some(directory)) => Ok(devices
            .iter()
            .map(|device| (*device, directory.join(format!("{device}.attest-key"))))
            .collect()),
        (None, None) => Err(Failure::input(
            "--software makes a key: name its file with --key-out, or a directory with --key-dir",
        )),
    }
}

async fn enrol_all(
    registry: &Registry,
    common: &Common,
    files: &[(DeviceId, PathBuf)],
    now_s: u64,
    output: Output,
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure> {
    for (device, path) in files {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        getrandom::fill(&mut *bytes).map_err(|error| Failure::failed(format!("no random bytes: {error}")))?;
        secret_file::create(path, key_text(&bytes).as_bytes())?;
        let key = AttestationKey::from_bytes(*bytes);
        let prover = common.prover(*device, key, Protection::Software, None);
        let revision = match registry.enrol_prover(prover, now_s).await {
            Ok(revision) => revision,
            Err(error) => {
                take_back(path);
                return Err(error.into());
            }
        };
        output.object(&serde_json::json!({
            "device_id": device.to_string(),
            "group": common.group.as_str(),
            "key": "software",
            "key_file": path,
            "port": common.port,
            "enrolled_period": common.period.0,
            "revision": revision,
        }))?;
        bar.inc(1);
    }
    Ok(())
}

/// A key that counts nowhere shall not be taken for one that does.
fn take_back(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::error!(%error, file = %path.display(), "the key is of no use; remove it");
    }
}

/// As the agent reads it: hexadecimal digits and a line's end.
fn key_text(key: &[u8; KEY_BYTES]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES + 1));
    for byte in key {
        // Writing into a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    text
}

fn tell(
    args: &EnrollArgs,
    files: &[(DeviceId, PathBuf)],
    common: &Common,
    output: Output,
) -> Result<(), Failure> {
    let group = &common.group;
    match (files, &args.key_dir) {
        ([(device, path)], None) => output.line(format_args!(
            "{device} is enrolled for attestation in group {group}; its key, for the device alone: {}",
            path.display()
        ))?,
        (_, directory) => output.line(format_args!(
            "enrolled {} for attestation in group {group}; their keys, for each device its own: {}",
            counted(files.len() as u64, "device"),
            directory.as_deref().unwrap_or(Path::new(".")).display()
        ))?,
    }
    tell_agent(common, output)
}

/// What the agent's configuration must say.
pub(super) fn tell_agent(common: &Common, output: Output) -> Result<(), Failure> {
    output.line(format_args!(
        "[attest] of the agent's configuration: port = {}, enrolled_period = {}",
        common.port, common.period.0
    ))
}
