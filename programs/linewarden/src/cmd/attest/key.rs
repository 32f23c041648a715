//! `linewarden attest key`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::secret_file;
use linewarden_config::controller::read_signing_key;
use std::path::{Path, PathBuf};

use clap::Args;
use linewarden_controller::attest::Signer;

/// Arguments of `linewarden attest key`.
#[derive(Args, Debug)]
#[command(after_help = "\
Gateways and controllers (`[attest] signing_key`) and `attest export --signing-key` sign attestation results with this key. The command \
prints the public key as a JWK (RFC 7517), for verifiers of the results; the file is secret.

Examples:
  linewarden attest key --out results.pem > results.jwk
  linewarden attest key --show results.pem")]
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
}

/// Creates or shows the key.
pub fn run(args: &KeyArgs, output: Output) -> Result<(), Failure> {
    let (path, signer) = match (&args.out, &args.show) {
        (Some(path), _) => (path, create(path)?),
        (None, Some(path)) => (path, read_signing_key(path)?),
        (None, None) => return Err(Failure::input("no key file given: use --out FILE or --show FILE")),
    };
    let jwk = signer.public_jwk();
    let object: serde_json::Value = serde_json::from_str(&jwk).map_err(Failure::failed)?;
    output.object(&serde_json::json!({ "file": path, "created": args.out.is_some(), "jwk": object }))?;
    output.line(jwk)
}

fn create(path: &Path) -> Result<Signer, Failure> {
    let pem = Signer::generate_pem().map_err(Failure::failed)?;
    let signer = Signer::from_pem(&pem).map_err(Failure::failed)?;
    secret_file::create(path, pem.as_bytes())?;
    Ok(signer)
}
