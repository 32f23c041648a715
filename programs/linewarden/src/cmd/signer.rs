//! `linewarden signer`: manages trusted signers of broadcast messages.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use linewarden_api::{NewSigner, Signer};
use linewarden_files::read_text_bounded;

use crate::access::{AccessArgs, ReasonArgs, check_damaged, read_all};
use crate::date::date;

/// Maximum size of a public key file, bytes.
const KEY_BYTES_MAX: usize = 1 << 18;

/// Subcommands of `linewarden signer`.
#[derive(Subcommand, Debug)]
pub enum SignerCommand {
    /// List signers
    #[command(after_help = "\
Examples:
  linewarden signer list --config controller.toml
  linewarden signer list --output json --server https://ctl.example:20560 --token-file alice.token")]
    List(ListArgs),
    /// Add a trusted signer
    #[command(after_help = "\
Examples:
  linewarden signer create truck7/signer.json --name \"truck 7\" --reason new --config controller.toml")]
    Create(CreateArgs),
    /// Revoke a signer permanently
    #[command(after_help = "\
Examples:
  linewarden signer revoke 3f9a… --reason stolen --config controller.toml")]
    Revoke(RevokeArgs),
}

/// Arguments of `linewarden signer list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden signer create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Public key file of `signed keygen` (path)
    public_key: PathBuf,
    /// Display name (text)
    #[arg(long, value_name = "TEXT")]
    name: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden signer revoke`.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Signer ID, as `signer list` shows it (hexadecimal)
    id: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub fn run(command: &SignerCommand, output: Output) -> Result<(), Failure> {
    match command {
        SignerCommand::List(args) => list(args, output),
        SignerCommand::Create(args) => create(args, output),
        SignerCommand::Revoke(args) => {
            args.access
                .with(async |client| Ok(client.revoke_signer(&args.id, &args.reason.reason).await?))?;
            output.object(&serde_json::json!({ "id": args.id, "status": "revoked" }))?;
            output.line(format_args!("revoked signer {}", args.id))
        }
    }
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let signers = args
        .access
        .with(async |client| read_all(async |page| client.signers(&page).await).await)?;
    let mut rows = Vec::with_capacity(signers.items.len());
    for signer in &signers.items {
        output.object(signer)?;
        let Signer { id, name, scheme, .. } = signer;
        let since = signer.revoked_at_s.unwrap_or(signer.added_at_s);
        rows.push(vec![
            id.clone(),
            name.clone(),
            scheme.clone(),
            signer.status.clone().into_owned(),
            date(since),
        ]);
    }
    output.table(&["signer", "name", "scheme", "status", "since"], &[], rows)?;
    output.line(counted(signers.items.len() as u64, "signer"))?;
    check_damaged(signers.damaged_records)
}

fn create(args: &CreateArgs, output: Output) -> Result<(), Failure> {
    let path = &args.public_key;
    let public_key = read_text_bounded(path, KEY_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))?;
    let new = NewSigner {
        name: args.name.clone(),
        public_key,
        reason: args.reason.reason.clone(),
    };
    let signer = args
        .access
        .with(async |client| Ok(client.create_signer(&new).await?))?;
    output.object(&signer)?;
    output.line(format_args!(
        "created trusted signer {}: {}",
        signer.id, signer.name
    ))
}
