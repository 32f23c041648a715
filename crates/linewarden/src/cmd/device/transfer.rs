//! `linewarden device export` and `import`.

use std::path::PathBuf;

use clap::Args;
use linewarden_registry::{BulkOptions, ExportKey, Exported, Filter, OnConflict, OnDamage};

use crate::cmd::device::list::left_out;
use crate::failure::Failure;
use crate::output::{Output, counted, show};
use crate::registry::RegistryArgs;
use crate::site::{ReasonArgs, SiteArgs};

/// Where to.
#[derive(Args, Debug)]
#[command(after_help = "\
With a key the file holds the devices' credentials, sealed under that key, and can be imported elsewhere. With --public \
it holds no credentials and cannot be imported.

Examples:
  linewarden device export fleet.jsonl --export-key export.key --config gateway.toml
  linewarden device export fleet-public.jsonl --public --config gateway.toml")]
pub struct ExportArgs {
    /// The new file; an existing one is never overwritten
    file: PathBuf,
    /// The export key's file; made, with mode 0600, if nothing is there
    #[arg(long, value_name = "FILE", required_unless_present = "public")]
    export_key: Option<PathBuf>,
    /// Without credentials
    #[arg(long, conflicts_with = "export_key")]
    public: bool,
    /// Leave damaged records out, name them, and end with an error
    #[arg(long)]
    skip_damaged: bool,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Where from.
#[derive(Args, Debug)]
#[command(after_help = "\
The whole file is checked before anything is stored. Marks and revocations come along.

Examples:
  linewarden device import fleet.jsonl --export-key export.key --config gateway.toml
  linewarden device import fleet.jsonl --export-key export.key --reason \"hall 3\" \\
    --server https://ctl.example:20560 --token-file alice.token

A controller is sent a thousand at a time. One that goes away meanwhile is waited for (--patience), and none is stored twice.")]
pub struct ImportArgs {
    /// The file
    file: PathBuf,
    /// The export key's file
    #[arg(long, value_name = "FILE")]
    export_key: PathBuf,
    /// Replace the credentials of devices that are there; revoked ones stay revoked
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Writes the file.
pub fn export(args: &ExportArgs, output: Output) -> Result<(), Failure> {
    let (Exported { devices, damaged }, key_made) = args.registry.with(async |registry| {
        let (key, key_made) = match &args.export_key {
            None => (None, false),
            Some(file) if file.symlink_metadata().is_ok() => (Some(ExportKey::from_file(file)?), false),
            Some(file) => (Some(ExportKey::generate_file(file)?), true),
        };
        let bar = output.progress(registry.count(&Filter::default()).await?, "exporting");
        let on_damage = match args.skip_damaged {
            true => OnDamage::LeaveOut,
            false => OnDamage::Refuse,
        };
        let exported = registry
            .export_file(&args.file, key.as_ref(), on_damage, |progress| {
                show(&bar, progress)
            })
            .await?;
        bar.finish_and_clear();
        Ok((exported, key_made))
    })?;
    output.object(&serde_json::json!({ "exported": devices, "damaged": damaged.len(), "file": args.file, "key_made": key_made }))?;
    if let (true, Some(file)) = (key_made, &args.export_key) {
        output.line(format_args!("made the export key {}", file.display()))?;
    }
    output.line(format_args!(
        "exported {} to {}",
        counted(devices, "device"),
        args.file.display()
    ))?;
    for error in &damaged {
        tracing::error!(%error, "left out");
    }
    match damaged.len() {
        0 => Ok(()),
        count => Err(left_out(count as u64)),
    }
}

/// Takes the file in.
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
    let devices = args.site.with(async |site| {
        let bar = output.progress(0, "importing");
        let imported = site
            .import_file(&args.file, &key, options, &args.reason.reason, |progress| {
                show(&bar, progress)
            })
            .await;
        bar.finish_and_clear();
        imported
    })?;
    output.object(&serde_json::json!({ "imported": devices, "file": args.file }))?;
    output.line(format_args!("imported {}", counted(devices, "device")))
}
