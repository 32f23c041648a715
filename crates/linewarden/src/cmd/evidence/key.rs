//! `linewarden evidence key`.

use std::path::PathBuf;

use clap::Args;
use linewarden_evidence::keys::Ed25519Signer;

use crate::failure::Failure;
use crate::output::Output;
use crate::{evidence_key, secret_file};

/// Which key.
#[derive(Args, Debug)]
#[command(after_help = "\
A data plane signs statements with it (`[evidence] key`), and an operator reference values (`appraise --make-reference \
--signing-key`). What is printed is the public key in PEM, for those who verify; the file is secret. With --tpm the key is the \
TPM's: it never leaves it, and the file is of no use without this very TPM.

Examples:
  linewarden evidence key --out gateway.evidence-key > gateway.pub
  linewarden evidence key --tpm device:/dev/tpmrm0 --out gateway.evidence-key > gateway.pub
  linewarden evidence key --show gateway.evidence-key")]
pub struct KeyArgs {
    /// Make a key; nothing may be there
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "show",
        conflicts_with = "show"
    )]
    out: Option<PathBuf>,
    /// Show the public half of a key
    #[arg(long, value_name = "FILE")]
    show: Option<PathBuf>,
    /// The TPM that has it, by its TCTI, as device:/dev/tpmrm0
    #[arg(long, value_name = "TCTI")]
    tpm: Option<String>,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Makes or shows it.
pub fn run(args: &KeyArgs, output: Output) -> Result<(), Failure> {
    let tpm = args.tpm.as_deref();
    let path = match (&args.out, &args.show) {
        (Some(path), _) => {
            secret_file::check_absent(path)?;
            match tpm {
                Some(tcti) => secret_file::create(path, &evidence_key::make_in_tpm(tcti)?)?,
                None => {
                    let pem = Ed25519Signer::generate_pem().map_err(Failure::failed)?;
                    secret_file::create(path, pem.as_bytes())?;
                }
            }
            path
        }
        (None, Some(path)) => path,
        (None, None) => return Err(Failure::input("name a file with --out or --show")),
    };
    let public = evidence_key::signer(path, tpm)?.public_key();
    // The line ends of PEM are a printer's of old.
    let pem = public.to_pem().replace('\r', "");
    let fingerprint = hex::encode(public.fingerprint());
    output.object(&serde_json::json!({
        "file": path,
        "made": args.out.is_some(),
        "public_key": pem,
        "fingerprint": fingerprint,
    }))?;
    output.line(pem.trim_end())
}
