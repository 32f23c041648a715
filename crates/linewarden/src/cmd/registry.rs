//! `linewarden registry`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use linewarden_registry::{MasterKey, Registry, RegistryError};

use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::registry::{KEY_VARIABLE, RegistryArgs, block_on};

/// What about registries.
#[derive(Subcommand, Debug)]
pub enum RegistryCommand {
    /// Make a new, empty registry, and a master key if there is none
    #[command(after_help = "\
Examples:
  linewarden registry create --registry fleet.registry --key-file master.key

The registry is worthless without the key, and nobody can restore it. Keep a copy of the key offline, and not beside \
the registry's backups.")]
    Create(CreateArgs),
    /// Check a registry's structure and every record in it
    #[command(after_help = "\
Examples:
  linewarden registry check --registry fleet.registry --key-file master.key")]
    Check(CheckArgs),
    /// Write a copy of a registry to a new file, while gateways go on
    #[command(after_help = "\
Examples:
  linewarden registry backup fleet-2026-11-21.registry --config gateway.toml

The copy opens with the same master key; keep the two apart. Copying the file itself would miss what lies in the log \
beside it. To restore, stop the gateway, remove FILE-wal and FILE-shm beside the registry, and put the copy in its place.")]
    Backup(BackupArgs),
}

/// Where to copy what.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// The copy; an existing file is never overwritten
    file: PathBuf,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// What to make.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// The registry's file; nothing may be there
    #[arg(long, value_name = "FILE")]
    registry: PathBuf,
    /// The master key's file; made, with mode 0600, if nothing is there. Without it the key is taken from
    /// LINEWARDEN_MASTER_KEY
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// What to check.
#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

impl RegistryCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Create(args) => args.json,
            Self::Check(args) => args.json,
            Self::Backup(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &RegistryCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        RegistryCommand::Create(args) => create(args, output),
        RegistryCommand::Check(args) => check(args, output),
        RegistryCommand::Backup(args) => backup(args, output),
    }
}

fn create(args: &CreateArgs, output: Output) -> Result<(), Failure> {
    if args.registry.symlink_metadata().is_ok() {
        return Err(RegistryError::AlreadyExists {
            path: args.registry.clone(),
        }
        .into());
    }
    let (key, key_made) = match &args.key_file {
        Some(file) if file.symlink_metadata().is_ok() => (MasterKey::from_file(file)?, false),
        Some(file) => (MasterKey::generate_file(file)?, true),
        None => (MasterKey::from_env(KEY_VARIABLE)?, false),
    };
    block_on(async {
        Registry::create(&args.registry, &key).await?.close().await;
        Ok(())
    })?;
    output.object(
        &serde_json::json!({ "registry": args.registry, "key_file": args.key_file, "key_made": key_made }),
    )?;
    if let (true, Some(file)) = (key_made, &args.key_file) {
        output.line(format_args!(
            "made the master key {}; keep a copy of it offline",
            file.display()
        ))?;
    }
    output.line(format_args!("made the registry {}", args.registry.display()))
}

fn backup(args: &BackupArgs, output: Output) -> Result<(), Failure> {
    block_on(async {
        let registry = args.registry.open().await?;
        registry.backup(&args.file).await?;
        registry.close().await;
        Ok(())
    })?;
    output.object(&serde_json::json!({ "backup": args.file }))?;
    output.line(format_args!("copied the registry to {}", args.file.display()))
}

fn check(args: &CheckArgs, output: Output) -> Result<(), Failure> {
    let damaged = block_on(async {
        let registry = args.registry.open().await?;
        let damaged = registry.check().await?;
        registry.close().await;
        Ok(damaged)
    })?;
    let damaged: Vec<String> = damaged.iter().map(ToString::to_string).collect();
    output.object(&serde_json::json!({ "damaged": damaged }))?;
    for record in &damaged {
        output.line(record)?;
    }
    if damaged.is_empty() {
        return output.line("the registry and all its records are sound");
    }
    Err(Failure::failed(counted(damaged.len() as u64, "damaged record")))
}
