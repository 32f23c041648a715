//! The command `evidence key`.

use std::path::PathBuf;

use clap::Args;
use linewarden_evidence::keys::Ed25519Signer;

use super::{create_key_in_tpm, read_signer};
use crate::failure::Failure;
use crate::output::Output;
use crate::secret_file;

/// Arguments of `evidence key`.
#[derive(Args, Debug)]
#[command(after_help = "\
The key signs the statements of a gateway (`[evidence] key`) or of a switch (--evidence-key), or the reference values of an operator \
(`linewarden appraise --make-reference --signing-key`). The command prints the public key in PEM, for verifiers; the file is secret. With --tpm the key never leaves the TPM, \
and the file is only usable with this TPM.

Examples:
  linewarden-gateway evidence key --out gateway.evidence-key > gateway.pub
  linewarden-switch evidence key --tpm device:/dev/tpmrm0 --out switch.evidence-key > switch.pub
  linewarden evidence key --show reference.key")]
pub struct KeyArgs {
    /// Output file for a new key; must not exist (path)
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "show",
        conflicts_with = "show"
    )]
    out: Option<PathBuf>,
    /// Show the public key of this key file (path)
    #[arg(long, value_name = "FILE")]
    show: Option<PathBuf>,
    /// TPM that holds the key (TCTI, such as device:/dev/tpmrm0)
    #[arg(long, value_name = "TCTI")]
    tpm: Option<String>,
}

/// Creates or shows the key.
pub fn run(args: &KeyArgs, output: Output) -> Result<(), Failure> {
    let tpm = args.tpm.as_deref();
    let path = match (&args.out, &args.show) {
        (Some(path), _) => {
            secret_file::check_absent(path)?;
            match tpm {
                Some(tcti) => secret_file::create(path, &create_key_in_tpm(tcti)?)?,
                None => {
                    let pem = Ed25519Signer::generate_pem().map_err(Failure::failed)?;
                    secret_file::create(path, pem.as_bytes())?;
                }
            }
            path
        }
        (None, Some(path)) => path,
        (None, None) => return Err(Failure::input("no key file given: use --out FILE or --show FILE")),
    };
    let public = read_signer(path, tpm)?.public_key();
    // The PEM encoder uses CRLF line ends.
    let pem = public.to_pem().replace('\r', "");
    let fingerprint = hex::encode(public.fingerprint());
    output.object(&serde_json::json!({
        "file": path,
        "created": args.out.is_some(),
        "public_key": pem,
        "fingerprint": fingerprint,
    }))?;
    output.line(pem.trim_end())
}
