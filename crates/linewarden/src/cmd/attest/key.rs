//! `linewarden attest key`.

use std::path::{Path, PathBuf};

use clap::Args;
use linewarden_controller::attest::Signer;

use crate::failure::Failure;
use crate::output::Output;
use crate::secret_file;

/// Which key.
#[derive(Args, Debug)]
#[command(after_help = "\
Gateways sign their results with it (`[attest] signing_key`), and so does `attest status --ear`. What is printed is the \
public key as a JWK (RFC 7517), for those who verify them; the file is secret.

Examples:
  linewarden attest key --out results.pem > results.jwk
  linewarden attest key --show results.pem")]
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
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Makes or shows it.
pub fn run(args: &KeyArgs, output: Output) -> Result<(), Failure> {
    let (path, signer) = match (&args.out, &args.show) {
        (Some(path), _) => (path, make(path)?),
        (None, Some(path)) => (path, secret_file::signer(path)?),
        (None, None) => return Err(Failure::input("name a file with --out or --show")),
    };
    let jwk = signer.public_jwk();
    let object: serde_json::Value = serde_json::from_str(&jwk).map_err(Failure::failed)?;
    output.object(&serde_json::json!({ "file": path, "made": args.out.is_some(), "jwk": object }))?;
    output.line(jwk)
}

fn make(path: &Path) -> Result<Signer, Failure> {
    let pem = Signer::generate_pem().map_err(Failure::failed)?;
    let signer = Signer::from_pem(&pem).map_err(Failure::failed)?;
    secret_file::create(path, pem.as_bytes())?;
    Ok(signer)
}
