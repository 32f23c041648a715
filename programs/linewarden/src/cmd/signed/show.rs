//! `linewarden signed show`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use std::path::PathBuf;

use clap::Args;
use linewarden_signatures::key::PublicKey;
use linewarden_signatures::store::{MachineId, SignerDirectory, read_public};

/// Arguments of `linewarden signed show`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden signed show truck7
  linewarden signed show signers/truck7.json --output json")]
pub struct ShowArgs {
    /// Directory of a signer, or file of a public key (path)
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

/// Shows a signer or a public key.
pub fn run(args: &ShowArgs, output: Output) -> Result<(), Failure> {
    let directory = args.path.is_dir().then(|| SignerDirectory::at(&args.path));
    let path = match &directory {
        Some(directory) => directory.public_path(),
        None => args.path.clone(),
    };
    let key = read_public(&path)?;
    let masks = directory
        .filter(|_| key.ra().is_some())
        .map(|directory| masks_left(&directory, &key));
    let layout = key.ra().map(linewarden_signatures::ra::RaPublic::layout);
    output.object(&serde_json::json!({
        "signer": key.id().to_string(),
        "scheme": key.scheme().name(),
        "security_bits": key.scheme().security_bits(),
        "signature_bytes": key.scheme().signature_bytes(),
        "kind": layout.map(|layout| layout.kind().name()),
        "components": layout.map(linewarden_signatures::ra::Layout::components),
        "payload_bytes": layout.map(linewarden_signatures::ra::Layout::payload_bytes),
        "masks_left": masks.as_ref().and_then(|masks| masks.as_ref().ok()),
        "masks_problem": masks.as_ref().and_then(|masks| masks.as_ref().err()),
    }))?;
    let mut fields = vec![
        ("signer", key.id().to_string()),
        ("scheme", key.scheme().name().to_owned()),
        ("security", format!("{} bits", key.scheme().security_bits())),
    ];
    if let Some(layout) = layout {
        let payload = format!(
            "{}, {} bytes, signed as {} components with {} possible values in all",
            layout.kind().name(),
            layout.payload_bytes(),
            layout.components(),
            layout.rows()
        );
        fields.push(("payload", payload));
    }
    match masks {
        Some(Ok(count)) => fields.push(("masks", format!("{count} left"))),
        Some(Err(problem)) => fields.push(("masks", problem)),
        None => {}
    }
    output.fields(&fields)
}

/// Returns the number of masks left, or the reason why the masks are unusable. A sender may use the file at the same time.
/// A restored backup is detected only when a sender opens the file.
fn masks_left(directory: &SignerDirectory, key: &PublicKey) -> Result<u64, String> {
    let machine = MachineId::of_this_machine().map_err(|error| error.to_string())?;
    directory
        .masks_left(key, &machine)
        .map_err(|error| error.to_string())
}
