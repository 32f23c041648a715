//! `linewarden attest identity` and `answer`: the device's part in the enrolment of its TPM.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use linewarden_agent::AgentConfig;
use linewarden_agent::attest::{self, AttestSection, EnrolError, KeyFileError, TpmSubject};
use linewarden_files::PrivateFileError;
use linewarden_measurement::eventlog::Notice;
use linewarden_tpm::device::{Cause, EndorsementKind, TpmError};
use linewarden_tpm::endorsement::EkHash;
use linewarden_tpm::enrol::Offer;
use linewarden_tpm::public::Public;
use linewarden_tpm::template::EndorsementKey;
use serde::Serialize;

use super::{message, read};
use crate::config_file::ConfigFile;
use crate::failure::Failure;
use crate::output::Output;
use crate::results;

/// Which endorsement key.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Endorsement {
    /// RSA 2048, which every TPM of a PC has a certificate for
    Rsa2048,
    /// ECC P-256
    EccP256,
}

/// Where to put the first message.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes an attestation key in the TPM of [attest], unless there is one, and keeps it, encrypted by the TPM, in the file of \
[attest] `key`. FILE is for the operator: the TPM's keys and certificate, the PCRs as they are and the event log. There is \
no secret in it, but it must come from this device: carry it over a way that you trust, or compare the SHA-256 of the TPM's \
endorsement key, which is printed, with what the operator's `attest enroll --identity` tells or is given as --pin.

Examples:
  linewarden attest identity --config agent.toml --out d1.identity")]
pub struct IdentityArgs {
    /// The agent's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where to put it
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The TPM's endorsement key
    #[arg(long, value_name = "KIND", default_value = "rsa2048")]
    endorsement: Endorsement,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// What to answer, and where to put the answer.
#[derive(Args, Debug)]
#[command(after_help = "\
The TPM opens the operator's offer, takes the device's key in, and proves both; the PCRs must be those of `identity`. The \
key lies in the file of [attest] `key` then, encrypted by the TPM. If the TPM fails, do it again with the same offer, which \
is good for 5 minutes.

Examples:
  linewarden attest answer --config agent.toml --offer d1.offer --out d1.answer")]
pub struct AnswerArgs {
    /// The agent's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// What the operator has sent
    #[arg(long, value_name = "FILE")]
    offer: PathBuf,
    /// Where to put the answer
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// What machines get.
#[derive(Serialize)]
struct Written<'a> {
    file: &'a Path,
    key: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    endorsement_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notices: Option<&'a [Notice]>,
}

/// Writes the first message.
pub fn identity(args: &IdentityArgs, output: Output) -> Result<(), Failure> {
    let (file, section) = read(&args.config)?;
    let tpm = tpm(&file, &section)?;
    results::check_new(&args.out, args.force)?;
    let kind = match args.endorsement {
        Endorsement::Rsa2048 => EndorsementKind::Rsa2048,
        Endorsement::EccP256 => EndorsementKind::EccP256,
    };
    let key = key(&file, &section)?;
    let (identity, notices) = attest::identity(&tpm, kind, key).map_err(|error| failure(&file, error))?;
    for notice in &notices {
        tracing::warn!(%notice, "measured PCRs");
    }
    let public = Public::from_sized(&identity.endorsement_key).map_err(Failure::failed)?;
    let hash = EkHash::of(&EndorsementKey::new(public).map_err(Failure::failed)?).to_string();
    write(&args.out, &identity)?;
    output.object(&Written {
        file: &args.out,
        key,
        endorsement_key: Some(&hash),
        notices: Some(&notices),
    })?;
    output.line(format_args!("endorsement key: SHA-256 {hash}"))?;
    output.line(format_args!(
        "{}: for the operator, who answers with an offer",
        args.out.display()
    ))
}

/// Writes the answer.
pub fn answer(args: &AnswerArgs, output: Output) -> Result<(), Failure> {
    let (file, section) = read(&args.config)?;
    let tpm = tpm(&file, &section)?;
    results::check_new(&args.out, args.force)?;
    let offer: Offer = message::read(&args.offer, "an operator's offer")?;
    let key = key(&file, &section)?;
    let answer = attest::answer(&tpm.tcti, &offer, key).map_err(|error| failure(&file, error))?;
    write(&args.out, &answer)?;
    output.object(&Written {
        file: &args.out,
        key,
        endorsement_key: None,
        notices: None,
    })?;
    output.line(format_args!(
        "{}: for the operator, who ends the enrolment with it; the key is in {}",
        args.out.display(),
        key.display()
    ))
}

fn tpm(file: &ConfigFile<AgentConfig>, section: &AttestSection) -> Result<TpmSubject, Failure> {
    let subject = section
        .subject()
        .map_err(|error| file.field(&error.path, &error.problem))?;
    subject.tpm.ok_or_else(|| {
        file.field(
            &["attest", "tpm"],
            "it is missing: name the device's TPM, such as \"device:/dev/tpmrm0\"",
        )
    })
}

fn key<'a>(file: &ConfigFile<AgentConfig>, section: &'a AttestSection) -> Result<&'a Path, Failure> {
    let key = section.key();
    key.map_err(|error| file.field(&error.path, &error.problem))
}

fn write(out: &Path, message: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_vec_pretty(message).map_err(Failure::failed)?;
    results::write(out, text)
}

fn failure(file: &ConfigFile<AgentConfig>, error: EnrolError) -> Failure {
    match &error {
        EnrolError::Tpm(TpmError {
            cause: Cause::Unreachable { .. },
            ..
        }) => file.field(&["attest", "tpm"], &error.to_string()),
        EnrolError::KeyFile {
            source: KeyFileError::File(PrivateFileError::Unsafe { .. }),
            ..
        } => Failure::unsafe_(error),
        EnrolError::KeyFile { .. } | EnrolError::NotBegun(_) => Failure::input(error),
        _ => Failure::failed(error),
    }
}
