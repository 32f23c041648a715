//! `linewarden signed show`.

use std::path::PathBuf;

use clap::Args;
use linewarden_signatures::store::{SignerDirectory, read_public};

use crate::failure::Failure;
use crate::output::Output;

/// Of whom.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden signed show truck7
  linewarden signed show signers/truck7.json --json")]
pub struct ShowArgs {
    /// A signer's directory, or the file of a public key
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Shows it.
pub fn run(args: &ShowArgs, output: Output) -> Result<(), Failure> {
    let path = match args.path.is_dir() {
        true => SignerDirectory::at(&args.path).public_path(),
        false => args.path.clone(),
    };
    let key = read_public(&path)?;
    let layout = key.ra().map(linewarden_signatures::ra::RaPublic::layout);
    output.object(&serde_json::json!({
        "signer": key.id().to_string(),
        "scheme": key.scheme().name(),
        "security_bits": key.scheme().security_bits(),
        "signature_bytes": key.scheme().signature_bytes(),
        "kind": layout.map(|layout| layout.kind().name()),
        "components": layout.map(linewarden_signatures::ra::Layout::components),
        "payload_bytes": layout.map(linewarden_signatures::ra::Layout::payload_bytes),
    }))?;
    let mut fields = vec![
        ("signer", key.id().to_string()),
        ("scheme", key.scheme().name().to_owned()),
        ("security", format!("{} bits", key.scheme().security_bits())),
    ];
    if let Some(layout) = layout {
        let payload = format!(
            "{}, {} bytes, signed as {} components with {} values",
            layout.kind().name(),
            layout.payload_bytes(),
            layout.components(),
            layout.rows()
        );
        fields.push(("payload", payload));
    }
    output.fields(&fields)
}
