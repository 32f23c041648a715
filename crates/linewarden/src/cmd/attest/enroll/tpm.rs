//! Keys in TPMs: the controller's side of the conversation (`linewarden_tpm::enrol`), with a file for each message.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use linewarden_files::{read_bounded, sync_parent};
use linewarden_measurement::eventlog::{EventLog, Notice, Replayed, notices, replays};
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Protection, Registry};
use linewarden_tpm::endorsement::{EkHash, Endorsement, Trust};
use linewarden_tpm::enrol::{self, ANSWER_SECONDS_MAX, Answer, EnrolError, Enrolment, Identity, Offer};
use linewarden_tpm::policy::PcrPolicy;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::boot::{AcceptedBy, Known};
use super::own::Own;
use super::software::tell_agent;
use super::{Common, EnrollArgs, check, message};
use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::secret_file;

const PENDING_VERSION: u32 = 1;
const PENDING_BYTES_MAX: usize = 1 << 18;
/// Makers' certificates have one to two thousand bytes each; a file may hold many.
const CERTIFICATES_BYTES_MAX: usize = 1 << 20;
/// Below --trust: what counts only under one of the others.
const INTERMEDIATE: &str = "intermediate";

/// A pinned endorsement key.
pub type Pin = [u8; 32];

/// What --pin takes.
pub fn parse_pin(text: &str) -> Result<Pin, String> {
    let mut hash = [0; 32];
    hex::decode_to_slice(text, &mut hash).map_err(|_| {
        "64 hexadecimal digits are wanted, as the refusal of an unknown key shows them".to_owned()
    })?;
    Ok(hash)
}

/// What is remembered between offer and answer. Secret: it holds k.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    version: u32,
    device_id: String,
    /// Whose boots were accepted.
    group: String,
    /// The entries of the device's own with which the boots were accepted: `Configuration::encode` in hexadecimal digits.
    own: Option<String>,
    enrolment: Enrolment,
}

/// Answers an identity with an offer.
pub fn begin(
    args: &EnrollArgs,
    device: DeviceId,
    [identity_path, offer_path, pending_path]: [&PathBuf; 3],
    output: Output,
) -> Result<(), Failure> {
    let identity: Identity = message::read(identity_path, "a device's identity")?;
    let trust = trust(args)?;
    secret_file::check_absent(offer_path)?;
    secret_file::check_absent(pending_path)?;
    let now_s = now_s()?;
    let known = args.registry.with(async |registry| {
        check(args, registry, device).await?;
        Known::read(args, registry, device, now_s).await
    })?;
    let (log, notices) = appraised(identity_path, &identity)?;
    for notice in &notices {
        tracing::warn!(%notice, "PCRs of the device");
    }
    let pcrs = &identity.pcrs.0;
    let wrong =
        |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", identity_path.display()));
    let accepted = known.judge(&args.state, device, (identity_path, pcrs, log.as_ref()))?;
    let policy = PcrPolicy::new(&accepted.states).map_err(|error| wrong(&error))?;
    let states = policy.branches().len() as u64;
    let (offer, enrolment) = enrol::offer(&identity, &trust, policy, unix_s()?, &mut random()?)
        .map_err(|error| wrong(&refusal(&error, args.pin)))?;
    let pending = Pending {
        version: PENDING_VERSION,
        device_id: device.to_string(),
        group: args.group.to_string(),
        own: known.own().map(Own::to_hex).transpose()?,
        enrolment,
    };
    keep_both(&offer, &pending, offer_path, pending_path)?;
    let events = log.map(|log| log.events().len() as u64);
    output.object(&serde_json::json!({
        "device_id": device.to_string(),
        "offer": offer_path,
        "pending": pending_path,
        "pcrs": identity.pcrs,
        "events": events,
        "states": states,
        "accepted": accepted.by,
        "notices": notices,
        "answer_within_s": ANSWER_SECONDS_MAX,
    }))?;
    let count = counted(pcrs.selection().len() as u64, "PCR");
    match events {
        Some(events) => output.line(format_args!(
            "the event log replays to {count} with {}",
            counted(events, "event")
        ))?,
        None => output.line(format_args!(
            "no event log says how the values of {count} came about; the key is bound to these values"
        ))?,
    }
    output.line(match &accepted.by {
        AcceptedBy::Reference(name) => format!("the device is in the boot of {name}"),
        AcceptedBy::EarlierKey => "the device is in a boot in which its present key works".to_owned(),
        AcceptedBy::Operator => "the boot that the device is in is accepted as --state says".to_owned(),
        AcceptedBy::FirstEnrollment => format!(
            "no reference value of group {} and no earlier key says in which boot the device may be: the boot that the device \
             is in becomes its reference, PCRs {} of {}",
            args.group,
            pcrs.selection(),
            pcrs.bank()
        ),
    })?;
    output.line(format_args!(
        "the key works in {} of {}",
        counted(states, "state"),
        counted(pcrs.selection().len() as u64, "PCR")
    ))?;
    output.line(format_args!(
        "{} is for the device, which has {ANSWER_SECONDS_MAX} s to answer; {} is secret and removed at the end",
        offer_path.display(),
        pending_path.display()
    ))
}

/// The log that led to the PCRs, if there is one, and what to know of them. A log that contradicts the PCRs is refused: the key
/// would be bound to a state of which the device says something else.
fn appraised(path: &Path, identity: &Identity) -> Result<(Option<Replayed>, Vec<Notice>), Failure> {
    let wrong = |why: String| Failure::input(format!("{}: {why}", path.display()));
    let selection = identity.pcrs.0.selection();
    if selection.is_empty() {
        return Err(wrong(
            "it has no PCRs, so its key would work after any boot; set `pcrs` under [attest] of the agent"
                .to_owned(),
        ));
    }
    let Some(log) = &identity.event_log else {
        let why = "the device has no event log that says how its PCRs came about";
        return Ok((None, notices(selection, Err(why))));
    };
    let log = EventLog::parse(log).map_err(|error| wrong(format!("its event log: {error}")))?;
    match replays(&log, &identity.pcrs.0) {
        Ok(log) => {
            let notices = notices(selection, Ok(&log));
            Ok((Some(log), notices))
        }
        Err(silence) if silence.is_silence() => Ok((None, notices(selection, Err(&silence.to_string())))),
        Err(error) => Err(wrong(format!(
            "its event log does not replay to its PCRs: {error}"
        ))),
    }
}

/// What is wrong, and what the operator can do about it.
fn refusal(error: &EnrolError, pin: Option<Pin>) -> String {
    match (error, pin) {
        (EnrolError::Endorsement { key, .. }, Some(pin)) => format!(
            "--pin {} is not the SHA-256 of this endorsement key, which is {key}; compare it with what `attest identity` \
             has printed on the device",
            EkHash::from(pin)
        ),
        (EnrolError::Endorsement { .. }, None) => format!(
            "{error}; --trust names the makers' certificates; --pin with that SHA-256 believes this one key, which `attest \
             identity` must have printed on the device too"
        ),
        (EnrolError::Late(_), _) => format!("{error}; begin again with --identity"),
        (error, _) => error.to_string(),
    }
}

fn keep_both(
    offer: &Offer,
    pending: &Pending,
    offer_path: &Path,
    pending_path: &Path,
) -> Result<(), Failure> {
    let bytes = Zeroizing::new(serde_json::to_vec(pending).map_err(Failure::failed)?);
    let offer = serde_json::to_vec(offer).map_err(Failure::failed)?;
    secret_file::create(pending_path, &bytes)?;
    write_new(offer_path, &offer).map_err(|error| {
        // An answer cannot come: what waits for it is of no use.
        forget(pending_path);
        Failure::input(format!("{}: cannot be written: {error}", offer_path.display()))
    })
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_parent(path));
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

fn forget(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::error!(%error, file = %path.display(), "it holds a secret; remove it");
    }
}

/// Checks the answer and enrols the device.
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
            "{}: it is of group {}, not of {}, whose devices may run something else; begin again with --identity",
            pending_path.display(),
            pending.group,
            args.group
        )));
    }
    let own = pending_own(args, &pending, pending_path)?;
    let answer: Answer = message::read(answer_path, "a device's answer")?;
    let enrolled = pending
        .enrolment
        .finish(&answer, unix_s()?)
        .map_err(|error| Failure::input(format!("{}: {}", answer_path.display(), refusal(&error, None))))?;
    let binding = serde_json::to_vec(&enrolled.binding).map_err(Failure::failed)?;
    let key = AttestationKey::from_bytes(*enrolled.key.expose());
    let now_s = now_s()?;
    let (common, revision) = args
        .registry
        .with(async |registry| enrol_one(args, registry, device, (key, binding, own), now_s).await)?;
    forget(pending_path);
    let by = match &enrolled.binding.endorsement {
        Endorsement::Pinned => "pinned".to_owned(),
        Endorsement::Certificate { issuers, .. } => issuers.join(" under "),
    };
    output.object(&serde_json::json!({
        "device_id": device.to_string(),
        "group": common.group.as_str(),
        "key": "tpm",
        "endorsement_key": enrolled.binding.endorsement_key,
        "endorsement": enrolled.binding.endorsement,
        "port": common.port,
        "enrolled_period": common.period.0,
        "revision": revision,
    }))?;
    output.line(format_args!(
        "{device} is enrolled for attestation in group {}; its key lies in the TPM with the endorsement key {} ({by})",
        common.group, enrolled.binding.endorsement_key
    ))?;
    tell_agent(&common, output)
}

async fn enrol_one(
    args: &EnrollArgs,
    registry: &Registry,
    device: DeviceId,
    (key, binding, own): (AttestationKey, Vec<u8>, Option<Own>),
    now_s: u64,
) -> Result<(Common, u64), Failure> {
    let common = Common::read(args, registry, own.as_ref()).await?;
    check(args, registry, device).await?;
    let prover = common.prover(device, key, Protection::Tpm, Some(binding));
    let revision = registry.enrol_prover(prover, now_s).await?;
    Ok((common, revision))
}

fn read_pending(path: &Path, device: DeviceId) -> Result<Pending, Failure> {
    if matches!(path.try_exists(), Ok(false)) {
        return Err(Failure::input(format!(
            "{}: it is not there; it is removed at the end, so {device} may be enrolled already (`attest status {device}` \
             tells); else begin with --identity",
            path.display()
        )));
    }
    let bytes = secret_file::read(path, PENDING_BYTES_MAX)?;
    let wrong = |why: &dyn std::fmt::Display| Failure::input(format!("{}: {why}", path.display()));
    let pending: Pending = serde_json::from_slice(&bytes)
        // What else the error says may be a part of the secret.
        .map_err(|error| {
            let (line, column) = (error.line(), error.column());
            wrong(&format!(
                "line {line}, column {column}: not what `--identity` has written with --pending"
            ))
        })?;
    if pending.version != PENDING_VERSION {
        return Err(wrong(&format!(
            "of version {}, which another program has written",
            pending.version
        )));
    }
    if pending.device_id != device.to_string() {
        return Err(wrong(&format!(
            "it is of device {}, not of {device}",
            pending.device_id
        )));
    }
    Ok(pending)
}

/// The entries of the device's own with which --identity has accepted the boot.
fn pending_own(args: &EnrollArgs, pending: &Pending, path: &Path) -> Result<Option<Own>, Failure> {
    let own = pending.own.as_deref().map(|hex| Own::from_hex(hex, path));
    let own = own.transpose()?;
    let given = match &args.own {
        Some(_) => Own::read(args, None)?,
        None => return Ok(own),
    };
    match given.as_ref().map(Own::entries) == own.as_ref().map(Own::entries) {
        true => Ok(own),
        false => Err(Failure::input(format!(
            "{}: the entries of --own are not those with which --identity accepted the boot of the device; leave --own out, or \
             begin again with --identity",
            path.display()
        ))),
    }
}

/// Whom the operator believes.
fn trust(args: &EnrollArgs) -> Result<Trust, Failure> {
    let mut trust = Trust::new();
    if let Some(pin) = args.pin {
        trust.pin(EkHash::from(pin));
    }
    let Some(directory) = &args.trust else {
        return Ok(trust);
    };
    let roots = files_in(directory)?;
    if roots.is_empty() {
        return Err(Failure::input(format!(
            "{}: there is no certificate in it",
            directory.display()
        )));
    }
    for path in roots {
        let bytes = read_certificates(&path)?;
        trust
            .add_roots(&path.display().to_string(), &bytes)
            .map_err(Failure::input)?;
    }
    let below = directory.join(INTERMEDIATE);
    if below.is_dir() {
        for path in files_in(&below)? {
            let bytes = read_certificates(&path)?;
            trust
                .add_intermediates(&path.display().to_string(), &bytes)
                .map_err(Failure::input)?;
        }
    }
    Ok(trust)
}

/// The files of a directory, but hidden ones, by their names.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let cannot =
        |error: io::Error| Failure::input(format!("{}: cannot be read: {error}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
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

/// Seeded by the operating system.
fn random() -> Result<ChaCha20Rng, Failure> {
    let mut seed = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *seed).map_err(|error| Failure::failed(format!("no random bytes: {error}")))?;
    Ok(ChaCha20Rng::from_seed(*seed))
}
