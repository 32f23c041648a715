//! `linewarden signed keygen`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use linewarden_cli::signals::Signals;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use linewarden_files::read_text_bounded;
use linewarden_signatures::key::{LayoutDocument, PUBLIC_KEY_BYTES_MAX, PrivateKey};
use linewarden_signatures::ra::{Layout, Table};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::{SealingKey, SignerDirectory};

use super::masks;

/// Arguments of `linewarden signed keygen`.
#[derive(Args, Debug)]
#[command(after_help = "\
Creates DIR with the public key for receivers, in signer.json, and with the encrypted secrets. The key that encrypts them is in \
DIR/seal.key, or in the file of --seal-key, which may be elsewhere and is created if it does not exist.

Schemes: ra-rsa2048, ra-rsa3072 (Rapid Authentication: messages of one layout, signed with products of precomputed signatures), \
rsa-pss2048, rsa-pss3072, ecdsa-p256, ed25519 (any payload).

A layout for RA is bsm (SAE J2735 Basic Safety Message, part I), bytes:N (1 to 60 arbitrary bytes), or a JSON file:
  {\"kind\": \"submessages\", \"components\": [{\"submessages\": [\"open\", \"close\"]}, \"byte\"]}

Examples:
  linewarden signed keygen --scheme ed25519 --out truck7
  linewarden signed keygen --scheme ra-rsa2048 --layout bsm --masks 4096 --out truck7
  linewarden signed keygen --scheme ra-rsa3072 --layout breaker.json --seal-key seal --out breaker")]
pub struct KeygenArgs {
    /// Signature scheme (name)
    #[arg(long, value_name = "SCHEME", value_parser = scheme_parser())]
    scheme: Scheme,
    /// Layout of RA messages (bsm, bytes:N or a file; RA only)
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<String>,
    /// Number of masks to create, rounded up to a multiple of 64 (integer; RA only)
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    masks: u64,
    /// Output directory for the signer; must not exist (path)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// File of the key that encrypts the secrets (path, default: DIR/seal.key)
    #[arg(long, value_name = "FILE")]
    seal_key: Option<PathBuf>,
}

fn scheme_parser() -> impl TypedValueParser<Value = Scheme> {
    PossibleValuesParser::new(Scheme::ALL.map(Scheme::name)).try_map(|name| name.parse::<Scheme>())
}

/// Creates the signer.
pub fn run(args: &KeygenArgs, output: Output) -> Result<(), Failure> {
    let layout = parse_layout(args)?;
    if args.masks > 0 && !args.scheme.is_rapid() {
        return Err(Failure::input(format!(
            "--masks: scheme {} uses no masks",
            args.scheme
        )));
    }
    let signals = Signals::for_stop()?;
    make_directory(&args.out)?;
    let result = create_signer(args, layout, &signals, output);
    if result.is_err() {
        // An incomplete signer is useless, and would block the next attempt.
        let _ = std::fs::remove_dir_all(&args.out);
    }
    result
}

fn create_signer(
    args: &KeygenArgs,
    layout: Option<Layout>,
    signals: &Signals,
    output: Output,
) -> Result<(), Failure> {
    let directory = SignerDirectory::at(&args.out);
    let sealing_key = read_or_create_sealing_key(args.seal_key.as_deref(), &directory)?;
    let key = PrivateKey::generate(args.scheme, layout).map_err(Failure::failed)?;
    let table = compute_table(&key, signals, output)?;
    directory.create(&key, table.as_ref(), &sealing_key)?;
    let masks = masks::create(&directory, &key, &sealing_key, args.masks, output, || {
        check_not_stopped(signals)
    })?;
    let public = directory.public_path();
    output.object(&serde_json::json!({
        "signer": key.public().id().to_string(),
        "scheme": args.scheme.name(),
        "public_key": public,
        "masks": masks,
    }))?;
    output.line(format_args!(
        "created signer {} ({})",
        key.public().id(),
        args.scheme
    ))?;
    if masks > 0 {
        output.line(format_args!("with {}", counted(masks, "mask")))?;
    }
    output.line(format_args!(
        "copy {} to receivers; all other files are secret",
        public.display()
    ))
}

/// Parses `--layout`; returns `None` for schemes without layouts.
fn parse_layout(args: &KeygenArgs) -> Result<Option<Layout>, Failure> {
    let Some(text) = &args.layout else {
        return match args.scheme.is_rapid() {
            true => Err(Failure::input(format!(
                "scheme {} requires --layout: use bsm, bytes:N or a file",
                args.scheme
            ))),
            false => Ok(None),
        };
    };
    if !args.scheme.is_rapid() {
        return Err(Failure::input(format!(
            "--layout: scheme {} signs any payload and has no layout",
            args.scheme
        )));
    }
    let invalid = |reason: &dyn std::fmt::Display| Failure::input(format!("--layout {text}: {reason}"));
    let layout = match text.strip_prefix("bytes:") {
        Some(bytes) => LayoutDocument::Opaque {
            bytes: bytes.parse().map_err(|error| invalid(&error))?,
        },
        None if text == "bsm" => LayoutDocument::Bsm,
        None => {
            let json = read_text_bounded(text, PUBLIC_KEY_BYTES_MAX)
                .map_err(|error| invalid(&format_args!("{error}; use bsm, bytes:N or a file")))?;
            serde_json::from_str(&json).map_err(|error| invalid(&error))?
        }
    };
    Layout::try_from(layout)
        .map(Some)
        .map_err(|error| invalid(&error))
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    let result = DirBuilder::new().mode(0o700).create(path);
    result.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::input(format!(
            "{} already exists and a signer is not overwritten: name another directory",
            path.display()
        )),
        _ => Failure::input(format!("{}: cannot be created: {error}", path.display())),
    })
}

/// Reads the sealing key from an existing file of `--seal-key`; otherwise, creates a sealing key.
fn read_or_create_sealing_key(
    seal_key_path: Option<&Path>,
    directory: &SignerDirectory,
) -> Result<SealingKey, Failure> {
    match seal_key_path {
        Some(path) if path.exists() => Ok(SealingKey::read(path)?),
        Some(path) => Ok(SealingKey::create(path)?),
        None => Ok(SealingKey::create(&directory.seal_path())?),
    }
}

/// Computes the table of precomputed signatures; returns `None` for schemes without tables.
fn compute_table(key: &PrivateKey, signals: &Signals, output: Output) -> Result<Option<Table>, Failure> {
    let Some(ra) = key.ra() else {
        return Ok(None);
    };
    let progress = output.progress(ra.public().layout().rows() as u64, "rows of the table");
    let mut result = Ok(());
    let table = ra.table(|rows| {
        progress.set_position(rows as u64);
        result = check_not_stopped(signals);
        result.is_ok()
    });
    progress.finish_and_clear();
    result?;
    table.map_err(Failure::failed)
}

/// Fails if a signal requests a stop.
fn check_not_stopped(signals: &Signals) -> Result<(), Failure> {
    match signals.wait(Duration::ZERO)? {
        Some(_) => Err(Failure::failed("stopped by a signal: no signer was created")),
        None => Ok(()),
    }
}
