//! `linewarden device export` and `import`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use std::path::PathBuf;

use clap::Args;
use linewarden_registry::{BulkOptions, DeviceFilter, ExportKey, ExportSummary, OnConflict, OnDamage};

use crate::access::{AccessArgs, ReasonArgs, check_damaged};
use crate::registry::{RegistryArgs, update_bar};

/// Arguments of `linewarden device export`.
#[derive(Args, Debug)]
#[command(after_help = "\
With --export-key the file contains the devices' credentials, encrypted under this key, and can be imported into another registry. With \
--public the file contains no credentials and cannot be imported.

Examples:
  linewarden device export fleet.jsonl --export-key export.key --config controller.toml
  linewarden device export fleet-public.jsonl --public --config controller.toml")]
pub struct ExportArgs {
    /// Output file; an existing file is not overwritten (path)
    file: PathBuf,
    /// File of the export key; created with mode 0600 if it does not exist (path)
    #[arg(long, value_name = "FILE", required_unless_present = "public")]
    export_key: Option<PathBuf>,
    /// Export without credentials (flag)
    #[arg(long, conflicts_with = "export_key")]
    public: bool,
    /// Skip and report damaged records, and exit with an error (flag)
    #[arg(long)]
    skip_damaged: bool,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Arguments of `linewarden device import`.
#[derive(Args, Debug)]
#[command(after_help = "\
The command verifies the whole file before it stores the first device. The file includes the marks and revocations of the devices.

Examples:
  linewarden device import fleet.jsonl --export-key export.key --config controller.toml
  linewarden device import fleet.jsonl --export-key export.key --reason \"hall 3\" \\
    --server https://ctl.example:20560 --token-file alice.token

With --server devices are sent in batches of a thousand. If the controller is unreachable, the client retries (--retry-for), and no \
device is stored twice.")]
pub struct ImportArgs {
    /// File of `device export` (path)
    file: PathBuf,
    /// File of the export key (path)
    #[arg(long, value_name = "FILE")]
    export_key: PathBuf,
    /// Replace the credentials of existing devices; revoked devices stay revoked (flag)
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Exports devices.
pub fn export(args: &ExportArgs, output: Output) -> Result<(), Failure> {
    let (ExportSummary { devices, damaged }, is_key_created) = args.registry.with(async |registry| {
        let (key, is_key_created) = match &args.export_key {
            None => (None, false),
            Some(file) if file.symlink_metadata().is_ok() => (Some(ExportKey::from_file(file)?), false),
            Some(file) => (Some(ExportKey::generate_file(file)?), true),
        };
        let bar = output.progress(registry.count(&DeviceFilter::default()).await?, "exporting");
        let on_damage = match args.skip_damaged {
            true => OnDamage::Skip,
            false => OnDamage::Refuse,
        };
        let exported = registry
            .export_file(&args.file, key.as_ref(), on_damage, |progress| {
                update_bar(&bar, progress)
            })
            .await?;
        bar.finish_and_clear();
        Ok((exported, is_key_created))
    })?;
    output.object(&serde_json::json!({ "exported": devices, "damaged": damaged.len(), "file": args.file, "key_created": is_key_created }))?;
    if let (true, Some(file)) = (is_key_created, &args.export_key) {
        output.line(format_args!("created export key {}", file.display()))?;
    }
    output.line(format_args!(
        "exported {} to {}",
        counted(devices, "device"),
        args.file.display()
    ))?;
    for error in &damaged {
        tracing::error!(%error, action = "run `linewarden registry check`", "device record is damaged; skipped");
    }
    check_damaged(damaged.len() as u64)
}

/// Imports devices.
pub fn import(args: &ImportArgs, output: Output) -> Result<(), Failure> {
    let key = ExportKey::from_file(&args.export_key)?;
    let options = BulkOptions {
        on_conflict: if args.replace {
            OnConflict::Replace
        } else {
            OnConflict::Refuse
        },
        ..BulkOptions::default()
    };
    let bar = output.progress(0, "importing");
    let update = |progress| update_bar(&bar, progress);
    let imported = args
        .access
        .import_file(&args.file, &key, options, &args.reason.reason, update);
    bar.finish_and_clear();
    let devices = imported?;
    output.object(&serde_json::json!({ "imported": devices, "file": args.file }))?;
    output.line(format_args!("imported {}", counted(devices, "device")))
}
