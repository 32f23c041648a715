//! `linewarden registry`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use linewarden_registry::{CopySummary, Location, MasterKey, OpenError, Registry, RegistryError};

use crate::registry::{KEY_VARIABLE, RegistryArgs, block_on, parse_location, update_bar};

/// Subcommands of `linewarden registry`.
#[derive(Subcommand, Debug)]
pub enum RegistryCommand {
    /// Create an empty registry, and a master key if there is none
    #[command(after_help = "\
Examples:
  linewarden registry create --registry fleet.registry --key-file master.key
  linewarden registry create --registry postgres://db.example/fleet --key-file master.key

A registry in PostgreSQL can serve controllers on several machines. Store the password of the database in ~/.pgpass or PGPASSWORD, not \
in the address. The address may have options of libpq, such as ?sslmode=verify-full&sslrootcert=ca.pem.

The registry cannot be used without the key, and the key cannot be recovered. Keep a copy of the key offline, and not with the \
registry's backups.")]
    Create(CreateArgs),
    /// Check the structure of a registry and every record in it
    #[command(after_help = "\
Examples:
  linewarden registry check --registry fleet.registry --key-file master.key")]
    Check(CheckArgs),
    /// Write a copy of a registry to a new file or database, while gateways continue to run
    #[command(after_help = "\
Examples:
  linewarden registry backup fleet-2026-11-21.registry --config controller.toml
  linewarden registry backup fleet.copy --registry postgres://db.example/fleet \\
    --key-file master.key

The copy has the same master key as the registry; store the copy and the key in different places. The command compares the copy with the \
registry, value by value, before the copy gets its final name. Do not copy the file of a registry with other tools: the copy would lack the \
records of the write-ahead log (FILE-wal). COPY can be a file even if the registry is in PostgreSQL.

To restore the file of a registry, stop every gateway and controller that uses the registry, remove FILE-wal and FILE-shm, and replace \
FILE by the copy. To restore into a database, use `linewarden registry restore`.")]
    Backup(BackupArgs),
    /// Restore a backup to a location without a registry
    #[command(after_help = "\
Examples:
  linewarden registry restore fleet.copy --to postgres://db.example/fleet --key-file master.key

A backup does not contain later changes: see docs/operations/disaster-recovery.md for revocations and rows.")]
    Restore(RestoreArgs),
    /// Move a registry to another file or database
    #[command(after_help = "\
Examples:
  linewarden registry migrate --from sqlite:fleet.registry --to postgres://db.example/fleet \\
    --key-file master.key

The old registry is read-only during the move. The command compares the new registry with the old one, value by value. Then it marks the \
old registry as moved, with the new location, so that no row is leased twice. If the command is interrupted, repeat it. Then set the new \
location in the configurations, and start the gateways again.")]
    Migrate(MigrateArgs),
}

/// Arguments of `linewarden registry backup`.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// Location of the copy; an existing registry is not overwritten (file, or postgres://USER@HOST/DATABASE)
    #[arg(value_name = "COPY")]
    copy: String,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Arguments of `linewarden registry restore`.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// Location of the backup (file, or postgres://USER@HOST/DATABASE)
    #[arg(value_name = "COPY")]
    copy: String,
    /// Location to restore to; it must not contain a registry (file, or postgres://USER@HOST/DATABASE)
    #[arg(long, value_name = "REGISTRY")]
    to: String,
    /// File of the master key, mode 0600 (path, default: the key in LINEWARDEN_MASTER_KEY)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// Arguments of `linewarden registry migrate`.
#[derive(Args, Debug)]
pub struct MigrateArgs {
    /// Present location of the registry (sqlite:FILE, or postgres://USER@HOST/DATABASE)
    #[arg(long, value_name = "REGISTRY")]
    from: String,
    /// New location; it must not contain a registry (file, or postgres://USER@HOST/DATABASE)
    #[arg(long, value_name = "REGISTRY")]
    to: String,
    /// File of the master key, mode 0600 (path, default: the key in LINEWARDEN_MASTER_KEY)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// Arguments of `linewarden registry create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Location; it must not contain a registry (file, or postgres://USER@HOST/DATABASE of an existing database)
    #[arg(long, value_name = "REGISTRY")]
    registry: String,
    /// File of the master key; created with mode 0600 if it does not exist (path, default: the key in LINEWARDEN_MASTER_KEY)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// Arguments of `linewarden registry check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Runs the command.
pub fn run(command: &RegistryCommand, output: Output) -> Result<(), Failure> {
    match command {
        RegistryCommand::Create(args) => create(args, output),
        RegistryCommand::Check(args) => check(args, output),
        RegistryCommand::Backup(args) => backup(args, output),
        RegistryCommand::Restore(args) => restore(args, output),
        RegistryCommand::Migrate(args) => migrate(args, output),
    }
}

fn create(args: &CreateArgs, output: Output) -> Result<(), Failure> {
    let registry = parse_location(&args.registry)?;
    // An existing registry is detected before a key is created, because the key would not be used.
    let exists = |path: &PathBuf| path.symlink_metadata().is_ok();
    if registry.file().is_some_and(exists) {
        return Err(RegistryError::Open(OpenError::AlreadyExists {
            registry: registry.clone(),
        })
        .into());
    }
    let (key, is_key_created) = match &args.key_file {
        Some(file) if file.symlink_metadata().is_ok() => (MasterKey::from_file(file)?, false),
        Some(file) => (MasterKey::generate_file(file)?, true),
        None => (MasterKey::from_env(KEY_VARIABLE)?, false),
    };
    block_on(async {
        Registry::create(&registry, &key).await?.close().await;
        Ok(())
    })?;
    output.object(
        &serde_json::json!({ "registry": registry, "key_file": args.key_file, "key_created": is_key_created }),
    )?;
    if let (true, Some(file)) = (is_key_created, &args.key_file) {
        output.line(format_args!(
            "created master key {}; keep a copy of it offline",
            file.display()
        ))?;
    }
    output.line(format_args!("created registry {registry}"))
}

fn backup(args: &BackupArgs, output: Output) -> Result<(), Failure> {
    let to = parse_location(&args.copy)?;
    let summary = args
        .registry
        .with(async |registry| copy(registry, &to, output).await)?;
    output.object(
        &serde_json::json!({ "backup": to, "rows": summary.records_in_all_tables, "sha256": hex::encode(summary.digest) }),
    )?;
    output.line(format_args!("copied the registry to {to}"))
}

async fn copy(registry: &Registry, to: &Location, output: Output) -> Result<CopySummary, Failure> {
    let bar = output.progress(0, "copying and comparing");
    let result = registry.copy_to(to, |progress| update_bar(&bar, progress)).await;
    bar.finish_and_clear();
    Ok(result.map_err(|error| match (error, to) {
        // The text of `AlreadyExists` advises to open the existing registry, which is no remedy for a copy.
        (RegistryError::Open(OpenError::AlreadyExists { .. }), Location::Sqlite(path)) => {
            RegistryError::Open(OpenError::FileExists { path: path.clone() })
        }
        (other, _) => other,
    })?)
}

fn restore(args: &RestoreArgs, output: Output) -> Result<(), Failure> {
    let (from, to) = (parse_location(&args.copy)?, parse_location(&args.to)?);
    let key = read_master_key(args.key_file.as_deref())?;
    let summary = block_on(async {
        let backup = Registry::open(&from, &key).await?;
        let result = copy(&backup, &to, output).await;
        backup.close().await;
        result
    })?;
    output.object(
        &serde_json::json!({ "registry": to, "rows": summary.records_in_all_tables, "sha256": hex::encode(summary.digest) }),
    )?;
    output.line(format_args!("restored {from} to {to}"))
}

fn migrate(args: &MigrateArgs, output: Output) -> Result<(), Failure> {
    let (from, to) = (parse_location(&args.from)?, parse_location(&args.to)?);
    let key = read_master_key(args.key_file.as_deref())?;
    let summary = block_on(async {
        let registry = Registry::open_to_move(&from, &key, &to).await?;
        let bar = output.progress(0, "copying and comparing");
        let result = registry.move_to(&to, |progress| update_bar(&bar, progress)).await;
        bar.finish_and_clear();
        registry.close().await;
        Ok(result?)
    })?;
    output.object(&serde_json::json!({
        "from": from, "to": to, "rows": summary.records_in_all_tables, "sha256": hex::encode(summary.digest)
    }))?;
    output.line(format_args!(
        "moved {from} to {to}: {}, identical in both (SHA-256 {})",
        counted(summary.records_in_all_tables, "record"),
        hex::encode(summary.digest)
    ))?;
    output.line(format_args!(
        "{from} is marked as moved; name {to} in the configurations and restart the gateways"
    ))
}

fn read_master_key(file: Option<&Path>) -> Result<MasterKey, Failure> {
    Ok(match file {
        Some(file) => MasterKey::from_file(file)?,
        None => MasterKey::from_env(KEY_VARIABLE)?,
    })
}

fn check(args: &CheckArgs, output: Output) -> Result<(), Failure> {
    let damaged = args.registry.with(async |registry| Ok(registry.check().await?))?;
    let damaged: Vec<String> = damaged.iter().map(ToString::to_string).collect();
    output.object(&serde_json::json!({ "damaged": damaged }))?;
    for record in &damaged {
        output.line(record)?;
    }
    if damaged.is_empty() {
        return output.line("registry check passed");
    }
    Err(Failure::failed(counted(damaged.len() as u64, "damaged record")))
}
