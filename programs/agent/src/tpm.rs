//! `linewarden-agent identity` and `answer`: the device's part in the enrollment of its TPM.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use linewarden_agent::attest::{self, EnrollError, KeyFileError, TpmScope};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::results;
use linewarden_config::ConfigFile;
use linewarden_config::agent::{AgentConfig, AttestSection};
use linewarden_files::PrivateFileError;
use linewarden_measurement::eventlog::Notice;
use linewarden_tpm::device::{Cause, EndorsementKind, TpmError};
use linewarden_tpm::endorsement::EkHash;
use linewarden_tpm::enroll::{KeyOffer, MESSAGE_BYTES_MAX, from_json};
use linewarden_tpm::public::Public;
use linewarden_tpm::template::EndorsementKey;
use serde::Serialize;

use crate::config::read_attest;

/// Kind of the TPM's endorsement key.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Endorsement {
    /// RSA 2048; every TPM of a PC has a certificate for this key
    Rsa2048,
    /// ECC P-256
    EccP256,
}

/// Arguments of `linewarden-agent identity`.
#[derive(Args, Debug)]
#[command(after_help = "\
Creates an attestation key in the TPM that [attest] `tpm` names, and stores the key, encrypted by the TPM, in the file that [attest] \
`key` names; an existing key in this file is used again. The output file is for the operator. It contains the public keys and the certificate of \
the TPM, the PCRs and the TCG event log, and no secret. The operator must verify the origin of the file in one of three ways: transfer \
the file over a trusted channel, pass the printed SHA-256 of the TPM's endorsement key to `linewarden attest enroll \
--identity` with --pin, or compare the SHA-256 with the output of `linewarden attest enroll --answer` and delete the key if they differ.

Examples:
  linewarden-agent identity --config agent.toml --out d1.identity")]
pub struct IdentityArgs {
    /// Configuration file of the agent (path)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Output file for the identity of the device (path)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Kind of the TPM's endorsement key
    #[arg(long, value_name = "KIND", default_value = "rsa2048")]
    endorsement: Endorsement,
    /// Overwrite an existing file (flag)
    #[arg(long)]
    force: bool,
}

/// Arguments of `linewarden-agent answer`.
#[derive(Args, Debug)]
#[command(after_help = "\
The TPM decrypts the operator's offer, imports the device's key, and proves possession of this key and of the key that `identity` \
created; the PCRs must have the same values as at `identity`. The command stores the imported key, encrypted by the TPM, in the file \
that [attest] `key` names. If the TPM fails, repeat the command with the same offer, which is valid for 5 minutes.

Examples:
  linewarden-agent answer --config agent.toml --offer d1.offer --out d1.answer")]
pub struct AnswerArgs {
    /// Configuration file of the agent (path)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Offer of the operator (path)
    #[arg(long, value_name = "FILE")]
    offer: PathBuf,
    /// Output file for the answer of the device (path)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Overwrite an existing file (flag)
    #[arg(long)]
    force: bool,
}

/// JSON output.
#[derive(Serialize)]
struct FileOutput<'a> {
    file: &'a Path,
    key: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    endorsement_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notices: Option<&'a [Notice]>,
}

/// Writes the identity of the device.
pub fn identity(args: &IdentityArgs, output: Output) -> Result<(), Failure> {
    let (file, section) = read_attest(&args.config)?;
    let tpm = tpm(&file, &section)?;
    results::check_new(&args.out, args.force)?;
    let kind = match args.endorsement {
        Endorsement::Rsa2048 => EndorsementKind::Rsa2048,
        Endorsement::EccP256 => EndorsementKind::EccP256,
    };
    let key = key(&file, &section)?;
    let (identity, notices) = attest::identity(&tpm, kind, key).map_err(|error| failure(&file, error))?;
    for notice in &notices {
        tracing::warn!(reason = %notice, "PCRs of the device need attention");
    }
    let public = Public::from_sized(&identity.endorsement_key).map_err(Failure::failed)?;
    let hash = EkHash::of_key(&EndorsementKey::new(public).map_err(Failure::failed)?).to_string();
    write(&args.out, &identity)?;
    output.object(&FileOutput {
        file: &args.out,
        key,
        endorsement_key: Some(&hash),
        notices: Some(&notices),
    })?;
    output.line(format_args!("endorsement key: SHA-256 {hash}"))?;
    output.line(format_args!(
        "{}: send this file to the operator, who responds with an offer",
        args.out.display()
    ))
}

/// Imports the key of the offer and writes the answer.
pub fn accept_offer(args: &AnswerArgs, output: Output) -> Result<(), Failure> {
    let (file, section) = read_attest(&args.config)?;
    let tpm = tpm(&file, &section)?;
    results::check_new(&args.out, args.force)?;
    let offer: KeyOffer =
        results::read_message(&args.offer, MESSAGE_BYTES_MAX, "an operator's offer", from_json)?;
    let key = key(&file, &section)?;
    let answer = attest::accept_offer(&tpm.tcti, &offer, key).map_err(|error| failure(&file, error))?;
    write(&args.out, &answer)?;
    output.object(&FileOutput {
        file: &args.out,
        key,
        endorsement_key: None,
        notices: None,
    })?;
    output.line(format_args!(
        "{}: send this file to the operator, who completes the enrollment; the key is in {}",
        args.out.display(),
        key.display()
    ))
}

fn tpm(file: &ConfigFile<AgentConfig>, section: &AttestSection) -> Result<TpmScope, Failure> {
    let scope = section
        .scope()
        .map_err(|error| file.field_failure(&error.path, &error.problem))?;
    scope.tpm.ok_or_else(|| {
        file.field_failure(
            &["attest", "tpm"],
            "is missing: set the TPM of the device, such as \"device:/dev/tpmrm0\"",
        )
    })
}

fn key<'a>(file: &ConfigFile<AgentConfig>, section: &'a AttestSection) -> Result<&'a Path, Failure> {
    let key = section.key();
    key.map_err(|error| file.field_failure(&error.path, &error.problem))
}

fn write(out: &Path, message: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_vec_pretty(message).map_err(Failure::failed)?;
    results::write(out, text)
}

fn failure(file: &ConfigFile<AgentConfig>, error: EnrollError) -> Failure {
    match &error {
        EnrollError::Tpm(TpmError {
            cause: Cause::Unreachable { .. },
            ..
        }) => file.field_failure(&["attest", "tpm"], &error.to_string()),
        EnrollError::KeyFile {
            source: KeyFileError::File(PrivateFileError::Unsafe { .. }),
            ..
        } => Failure::unsafe_(error),
        EnrollError::KeyFile { .. } | EnrollError::NotBegun(_) => Failure::input(error),
        _ => Failure::failed(error),
    }
}
