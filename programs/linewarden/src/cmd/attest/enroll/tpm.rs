//! Enrollment with keys in TPMs: the operator's side of the protocol (`linewarden_tpm::enroll`), with a file for each message.

use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::{Output, counted};
use linewarden_cli::results;
use linewarden_cli::secret_file;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use linewarden_files::{read_bounded, sync_parent};
use linewarden_measurement::eventlog::{EventLog, Notice, ReplayedLog, notices, verify_replay};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Protection, Registry};
use linewarden_tpm::endorsement::{EkHash, Endorsement, EndorsementTrust};
use linewarden_tpm::enroll::{
    self, EnrollError, Enrollment, Identity, KeyOffer, MESSAGE_BYTES_MAX, OfferResponse, RESPONSE_TIMEOUT_S,
    from_json,
};
use linewarden_tpm::policy::PcrPolicy;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::boot::{AcceptedBy, KnownBoots};
use super::overlay::Overlay;
use super::software::print_agent_config;
use super::{EnrollArgs, ProverTemplate, check};

/// Version of the format of the `--pending` file.
const PENDING_VERSION: u32 = 1;
/// Maximum size of the `--pending` file in bytes.
const PENDING_BYTES_MAX: usize = 1 << 18;
/// Maximum size of a certificate file in bytes. Manufacturers' certificates have 1 to 2 KB each, and a file may contain
/// many certificates.
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;
/// Subdirectory of --trust with intermediate certificates.
const INTERMEDIATE: &str = "intermediate";

/// SHA-256 of a pinned endorsement key.
pub type Pin = [u8; 32];

/// Parses the value of --pin.
pub fn parse_pin(text: &str) -> Result<Pin, String> {
    let mut hash = [0; 32];
    hex::decode_to_slice(text, &mut hash).map_err(|_| {
        "expected 64 hexadecimal digits, the SHA-256 that `linewarden-agent identity` prints on the device".to_owned()
    })?;
    Ok(hash)
}

/// The content of the `--pending` file: the enrollment between offer and answer. Secret: contains the attestation key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingEnrollment {
    version: u32,
    device_id: String,
    /// The group whose boots were accepted.
    group: String,
    /// The overlay with which the boots were accepted: `Configuration::encode`, hexadecimal.
    overlay: Option<String>,
    enrollment: Enrollment,
}

/// Responds to an identity with an offer.
pub fn begin(
    args: &EnrollArgs,
    device: DeviceId,
    [identity_path, offer_path, pending_path]: [&PathBuf; 3],
    output: Output,
) -> Result<(), Failure> {
    let identity: Identity =
        results::read_message(identity_path, MESSAGE_BYTES_MAX, "a device's identity", from_json)?;
    let trust = read_trust(args)?;
    secret_file::check_absent(offer_path)?;
    secret_file::check_absent(pending_path)?;
    let now_s = now_s()?;
    let known_boots = args.registry.with(async |registry| {
        check(args, registry, device).await?;
        KnownBoots::read(args, registry, device, now_s).await
    })?;
    let (log, notices) = check_event_log(identity_path, &identity)?;
    for notice in &notices {
        tracing::warn!(reason = %notice, "device PCRs need attention");
    }
    let pcrs = &identity.pcrs.0;
    let invalid =
        |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", identity_path.display()));
    let accepted_boot = known_boots.check_boot(&args.state, device, (identity_path, pcrs, log.as_ref()))?;
    let policy = PcrPolicy::new(&accepted_boot.states).map_err(|error| invalid(&error))?;
    let boot_count = policy.branches().len() as u64;
    let (offer, enrollment) = enroll::offer(&identity, &trust, policy, unix_s()?, &mut random_generator()?)
        .map_err(|error| invalid(&error_text(&error, args.pin)))?;
    let pending = PendingEnrollment {
        version: PENDING_VERSION,
        device_id: device.to_string(),
        group: args.group.to_string(),
        overlay: known_boots.overlay().map(Overlay::to_hex).transpose()?,
        enrollment,
    };
    write_files(&offer, &pending, offer_path, pending_path)?;
    let event_count = log.map(|log| log.events().len() as u64);
    output.object(&serde_json::json!({
        "device_id": device.to_string(),
        "offer": offer_path,
        "pending": pending_path,
        "pcrs": identity.pcrs,
        "events": event_count,
        "states": boot_count,
        "accepted": accepted_boot.accepted_by,
        "notices": notices,
        "answer_within_s": RESPONSE_TIMEOUT_S,
    }))?;
    let pcr_count = counted(pcrs.selection().len() as u64, "PCR");
    match event_count {
        Some(event_count) => output.line(format_args!(
            "the TCG event log replays to {pcr_count} with {}",
            counted(event_count, "event")
        ))?,
        None => output.line(format_args!(
            "no TCG event log: the key is bound to the present values of {pcr_count}"
        ))?,
    }
    output.line(match &accepted_boot.accepted_by {
        AcceptedBy::Reference(name) => format!("boot accepted: same PCRs as {name}"),
        AcceptedBy::EarlierKey => "boot accepted: the present key of the device works in this boot".to_owned(),
        AcceptedBy::Operator => "boot accepted by --state current".to_owned(),
        AcceptedBy::FirstEnrollment => format!(
            "boot accepted without comparison, because group {} has no reference value and the device has no earlier key: PCRs {} of \
             bank {}",
            args.group,
            pcrs.selection(),
            pcrs.bank()
        ),
    })?;
    output.line(format_args!(
        "the key works in {} (compared: {pcr_count})",
        counted(boot_count, "boot")
    ))?;
    output.line(format_args!(
        "transfer {} to the device, which must answer within {RESPONSE_TIMEOUT_S} s; {} is secret and deleted at the end",
        offer_path.display(),
        pending_path.display()
    ))
}

/// Replays the TCG event log to the PCRs, if there is a log, and collects notices.
///
/// Refuses a log that contradicts the PCRs, because the key would be bound to a boot that the log does not describe.
/// Refuses also an identity without PCRs.
fn check_event_log(path: &Path, identity: &Identity) -> Result<(Option<ReplayedLog>, Vec<Notice>), Failure> {
    let invalid = |reason: String| Failure::input(format!("{}: {reason}", path.display()));
    let selection = identity.pcrs.0.selection();
    if selection.is_empty() {
        return Err(invalid(
            "no PCRs, so the key would work after any boot: set `pcrs` under [attest] of the agent"
                .to_owned(),
        ));
    }
    let Some(log) = &identity.event_log else {
        let reason = "the device has no TCG event log that explains its PCRs";
        return Ok((None, notices(selection, Err(reason))));
    };
    let log = EventLog::parse(log).map_err(|error| invalid(format!("invalid TCG event log: {error}")))?;
    match verify_replay(&log, &identity.pcrs.0) {
        Ok(log) => {
            let notices = notices(selection, Ok(&log));
            Ok((Some(log), notices))
        }
        Err(error) if error.has_no_statement() => Ok((None, notices(selection, Err(&error.to_string())))),
        Err(error) => Err(invalid(format!(
            "TCG event log does not replay to the PCRs: {error}"
        ))),
    }
}

/// The error text, with a remedy.
fn error_text(error: &EnrollError, pin: Option<Pin>) -> String {
    match (error, pin) {
        (EnrollError::UntrustedEndorsement { key, .. }, Some(pin)) => format!(
            "--pin {} is not the SHA-256 of this endorsement key, which is {key}; compare it with the output of `linewarden-agent identity` on \
             the device",
            EkHash::from(pin)
        ),
        (EnrollError::UntrustedEndorsement { .. }, None) => format!(
            "{error}; trust the CA certificates of the manufacturer with --trust DIR; or, if `linewarden-agent identity` on the device printed \
             the same SHA-256, trust the key with --pin SHA256"
        ),
        (EnrollError::ResponseTooLate(_), _) => format!("{error}; begin again with --identity"),
        (error, _) => error.to_string(),
    }
}

fn write_files(
    offer: &KeyOffer,
    pending: &PendingEnrollment,
    offer_path: &Path,
    pending_path: &Path,
) -> Result<(), Failure> {
    let bytes = Zeroizing::new(serde_json::to_vec(pending).map_err(Failure::failed)?);
    let offer = serde_json::to_vec(offer).map_err(Failure::failed)?;
    secret_file::create(pending_path, &bytes)?;
    write_new(offer_path, &offer).map_err(|error| {
        // Without the offer, the device cannot answer, so the pending file is useless.
        remove_secret(pending_path);
        Failure::input(format!("{}: cannot be written: {error}", offer_path.display()))
    })
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let result = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_parent(path));
    if result.is_err() {
        let _ = fs::remove_file(path);
    }
    result
}

fn remove_secret(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::error!(%error, path = %path.display(), action = "delete the file", "removing a secret file failed");
    }
}

/// Verifies the answer and enrolls the device.
pub fn finish(
    args: &EnrollArgs,
    device: DeviceId,
    answer_path: &Path,
    pending_path: &Path,
    output: Output,
) -> Result<(), Failure> {
    let mut pending = read_pending(pending_path, device)?;
    if pending.group != args.group.as_str() {
        return Err(Failure::input(format!(
            "{}: enrollment was begun for group {}, not {}: begin again with --identity",
            pending_path.display(),
            pending.group,
            args.group
        )));
    }
    let overlay = pending_overlay(args, &pending, pending_path)?;
    let answer: OfferResponse =
        results::read_message(answer_path, MESSAGE_BYTES_MAX, "a device's answer", from_json)?;
    let enrolled = pending.enrollment.finish(&answer, unix_s()?).map_err(|error| {
        Failure::input(format!("{}: {}", answer_path.display(), error_text(&error, None)))
    })?;
    let binding = serde_json::to_vec(&enrolled.binding).map_err(Failure::failed)?;
    let key = AttestationKey::from_bytes(*enrolled.key.expose());
    let now_s = now_s()?;
    let (template, revision) = args
        .registry
        .with(async |registry| enroll_one(args, registry, device, (key, binding, overlay), now_s).await)?;
    remove_secret(pending_path);
    let endorsement = match &enrolled.binding.endorsement {
        Endorsement::Pinned => "pinned".to_owned(),
        Endorsement::Certificate { issuers, .. } => issuers.join(", issued by "),
    };
    output.object(&serde_json::json!({
        "device_id": device.to_string(),
        "group": template.group.as_str(),
        "key": "tpm",
        "endorsement_key": enrolled.binding.endorsement_key,
        "endorsement": enrolled.binding.endorsement,
        "port": template.port,
        "enrolled_period": template.period.0,
        "revision": revision,
    }))?;
    output.line(format_args!(
        "enrolled device {device} for attestation in group {}; its key is in the TPM with endorsement key {} ({endorsement})",
        template.group, enrolled.binding.endorsement_key
    ))?;
    print_agent_config(&template, output)
}

async fn enroll_one(
    args: &EnrollArgs,
    registry: &Registry,
    device: DeviceId,
    (key, binding, overlay): (AttestationKey, Vec<u8>, Option<Overlay>),
    now_s: u64,
) -> Result<(ProverTemplate, u64), Failure> {
    let template = ProverTemplate::read(args, registry, overlay.as_ref()).await?;
    check(args, registry, device).await?;
    let prover = template.prover(device, key, Protection::Tpm, Some(binding));
    let revision = registry.enroll_prover(prover, now_s).await?;
    Ok((template, revision))
}

fn read_pending(path: &Path, device: DeviceId) -> Result<PendingEnrollment, Failure> {
    if matches!(path.try_exists(), Ok(false)) {
        return Err(Failure::input(format!(
            "{}: file not found; an enrollment deletes the file at its end, so {device} may be enrolled already (check with `attest list \
             {device}`); otherwise begin again with --identity",
            path.display()
        )));
    }
    let bytes = secret_file::read(path, PENDING_BYTES_MAX)?;
    let invalid = |reason: &dyn std::fmt::Display| Failure::input(format!("{}: {reason}", path.display()));
    let pending: PendingEnrollment = serde_json::from_slice(&bytes)
        // The text of the JSON error is not printed, because the text may contain parts of the secret.
        .map_err(|error| {
            let (line, column) = (error.line(), error.column());
            invalid(&format!(
                "line {line}, column {column}: not a file that --identity wrote with --pending; begin again with --identity"
            ))
        })?;
    if pending.version != PENDING_VERSION {
        return Err(invalid(&format!(
            "unsupported version {}, written by another version of this program; begin again with --identity",
            pending.version
        )));
    }
    if pending.device_id != device.to_string() {
        return Err(invalid(&format!(
            "pending enrollment is of device {}, not of {device}; enter the file and the answer of the same device",
            pending.device_id
        )));
    }
    Ok(pending)
}

/// The overlay with which `--identity` accepted the boot. Refuses a different overlay in `--overlay`.
fn pending_overlay(
    args: &EnrollArgs,
    pending: &PendingEnrollment,
    path: &Path,
) -> Result<Option<Overlay>, Failure> {
    let overlay = pending.overlay.as_deref().map(|hex| Overlay::from_hex(hex, path));
    let overlay = overlay.transpose()?;
    let option_overlay = match &args.overlay {
        Some(_) => Overlay::read(args, None)?,
        None => return Ok(overlay),
    };
    match option_overlay.as_ref().map(Overlay::entries) == overlay.as_ref().map(Overlay::entries) {
        true => Ok(overlay),
        false => Err(Failure::input(format!(
            "{}: the overlay differs from the one that --identity accepted: omit --overlay, or begin again with --identity",
            path.display()
        ))),
    }
}

/// Reads the certificates and the pinned endorsement key that the operator trusts.
fn read_trust(args: &EnrollArgs) -> Result<EndorsementTrust, Failure> {
    let mut trust = EndorsementTrust::new();
    if let Some(pin) = args.pin {
        trust.pin(EkHash::from(pin));
    }
    let Some(directory) = &args.trust else {
        return Ok(trust);
    };
    let roots = files_in(directory)?;
    if roots.is_empty() {
        return Err(Failure::input(format!(
            "{}: directory contains no certificate; copy the CA certificates of the TPM manufacturer into the directory (PEM or DER)",
            directory.display()
        )));
    }
    for path in roots {
        let bytes = read_certificates(&path)?;
        trust
            .add_roots(&path.display().to_string(), &bytes)
            .map_err(Failure::input)?;
    }
    let intermediates = directory.join(INTERMEDIATE);
    if intermediates.is_dir() {
        for path in files_in(&intermediates)? {
            let bytes = read_certificates(&path)?;
            trust
                .add_intermediates(&path.display().to_string(), &bytes)
                .map_err(Failure::input)?;
        }
    }
    Ok(trust)
}

/// The files of a directory except hidden files, sorted by name.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable =
        |error: io::Error| Failure::input(format!("{}: cannot be read: {error}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if entry.path().is_file() && !is_hidden {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn read_certificates(path: &Path) -> Result<Vec<u8>, Failure> {
    read_bounded(path, CERTIFICATES_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))
}

fn unix_s() -> Result<i64, Failure> {
    Ok(i64::try_from(now_s()?).unwrap_or(i64::MAX))
}

/// A random generator that is seeded by the operating system.
fn random_generator() -> Result<ChaCha20Rng, Failure> {
    let mut seed = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *seed).map_err(|error| {
        Failure::failed(format!(
            "reading random bytes from the kernel failed: {error}; no offer was created; repeat the command"
        ))
    })?;
    Ok(ChaCha20Rng::from_seed(*seed))
}
