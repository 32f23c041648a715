//! `linewarden signer`: whose broadcast messages are believed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use linewarden_files::read_text_bounded;
use linewarden_service::wire::{NewSigner, Signer};

use crate::cmd::device::{date, left_out};
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::site::{ReasonArgs, SiteArgs};

/// No public key is longer.
const KEY_BYTES_MAX: usize = 1 << 18;

/// What about signers.
#[derive(Subcommand, Debug)]
pub enum SignerCommand {
    /// List signers
    #[command(after_help = "\
Examples:
  linewarden signer list --config controller.toml
  linewarden signer list --json --server https://ctl.example:20560 --token-file alice.token")]
    List(ListArgs),
    /// Believe a signer
    #[command(after_help = "\
Examples:
  linewarden signer add truck7/signer.json --name \"truck 7\" --reason new --config controller.toml")]
    Add(AddArgs),
    /// Believe a signer no more, for good
    #[command(after_help = "\
Examples:
  linewarden signer revoke 3f9a… --reason stolen --config controller.toml")]
    Revoke(RevokeArgs),
}

/// Of whom.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    json: bool,
}

/// Whom.
#[derive(Args, Debug)]
pub struct AddArgs {
    /// The file of a public key that `signed keygen` has made
    public_key: PathBuf,
    /// For people
    #[arg(long, value_name = "TEXT")]
    name: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Whom.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// The signer's id, as `signer list` shows it
    id: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

impl SignerCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Add(args) => args.json,
            Self::Revoke(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &SignerCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        SignerCommand::List(args) => list(args, output),
        SignerCommand::Add(args) => add(args, output),
        SignerCommand::Revoke(args) => {
            args.site
                .with(async |site| site.revoke_signer(&args.id, &args.reason.reason).await)?;
            output.object(&serde_json::json!({ "id": args.id, "status": "revoked" }))?;
            output.line(format_args!("{} is believed no more", args.id))
        }
    }
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let signers = args.site.with(async |site| site.signers().await)?;
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
    match signers.damaged {
        0 => Ok(()),
        damaged => Err(left_out(damaged)),
    }
}

fn add(args: &AddArgs, output: Output) -> Result<(), Failure> {
    let path = &args.public_key;
    let public_key = read_text_bounded(path, KEY_BYTES_MAX)
        .map_err(|error| Failure::input(format!("{}: cannot be read: {error}", path.display())))?;
    let new = NewSigner {
        name: args.name.clone(),
        public_key,
        reason: args.reason.reason.clone(),
    };
    let signer = args.site.with(async |site| site.add_signer(&new).await)?;
    output.object(&signer)?;
    output.line(format_args!("signer {} is believed: {}", signer.id, signer.name))
}
