//! `linewarden signed keygen`.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use linewarden_files::read_text_bounded;
use linewarden_signatures::key::{LayoutText, PUBLIC_KEY_BYTES_MAX, PrivateKey};
use linewarden_signatures::ra::{Layout, Table};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::{SealingKey, SignerDirectory};

use super::masks;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::signals::Signals;

/// Which signer to make.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes DIR with signer.json, the public key that receivers get, and the secrets beside it, sealed. They open with DIR/seal.key, or with \
the file of --seal-key, which may be elsewhere, and is made if it is not there.

Schemes: ra-rsa2048, ra-rsa3072 (Rapid Authentication: messages of one layout, signed with products of what was signed before), \
rsa-pss2048, rsa-pss3072, ecdsa-p256, ed25519 (any payload).

A layout for RA is bsm (SAE J2735 Basic Safety Message, part I), bytes:N (1 to 60 bytes of anything), or a JSON file:
  {\"kind\": \"submessages\", \"components\": [{\"submessages\": [\"open\", \"close\"]}, \"byte\"]}

Examples:
  linewarden signed keygen --scheme ed25519 --out truck7
  linewarden signed keygen --scheme ra-rsa2048 --layout bsm --masks 4096 --out truck7
  linewarden signed keygen --scheme ra-rsa3072 --layout breaker.json --seal-key seal --out breaker")]
pub struct KeygenArgs {
    /// With what messages will be signed
    #[arg(long, value_name = "SCHEME", value_parser = scheme_parser())]
    scheme: Scheme,
    /// What messages will be made of: bsm, bytes:N or a file; for RA only
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<String>,
    /// Make so many masks too, rounded up to 64; for RA only
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    masks: u64,
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The key that seals the secrets; DIR/seal.key if not given
    #[arg(long, value_name = "FILE")]
    seal_key: Option<PathBuf>,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

fn scheme_parser() -> impl TypedValueParser<Value = Scheme> {
    PossibleValuesParser::new(Scheme::ALL.map(Scheme::name)).try_map(|name| name.parse::<Scheme>())
}

/// Makes it.
pub fn run(args: &KeygenArgs, output: Output) -> Result<(), Failure> {
    let layout = layout(args)?;
    if args.masks > 0 && !args.scheme.is_rapid() {
        return Err(Failure::input(format!(
            "--masks: {} signs without masks",
            args.scheme
        )));
    }
    let signals = Signals::to_stop()?;
    make_directory(&args.out)?;
    let made = make(args, layout, &signals, output);
    if made.is_err() {
        // Half a signer is none, and would be in the way of the next attempt.
        let _ = std::fs::remove_dir_all(&args.out);
    }
    made
}

fn make(args: &KeygenArgs, layout: Option<Layout>, signals: &Signals, output: Output) -> Result<(), Failure> {
    let directory = SignerDirectory::at(&args.out);
    let sealing_key = sealing_key(args.seal_key.as_deref(), &directory)?;
    let key = PrivateKey::generate(args.scheme, layout).map_err(Failure::failed)?;
    let table = table(&key, signals, output)?;
    directory.create(&key, table.as_ref(), &sealing_key)?;
    let masks = masks::make(&directory, &key, &sealing_key, args.masks, output, || {
        go_on(signals)
    })?;
    let public = directory.public_path();
    output.object(&serde_json::json!({
        "signer": key.public().id().to_string(),
        "scheme": args.scheme.name(),
        "public_key": public,
        "masks": masks,
    }))?;
    output.line(format_args!(
        "made the signer {} ({})",
        key.public().id(),
        args.scheme
    ))?;
    if masks > 0 {
        output.line(format_args!("with {}", counted(masks, "mask")))?;
    }
    output.line(format_args!(
        "give {} to receivers; all else is secret",
        public.display()
    ))
}

fn layout(args: &KeygenArgs) -> Result<Option<Layout>, Failure> {
    let Some(text) = &args.layout else {
        return match args.scheme.is_rapid() {
            true => Err(Failure::input(format!(
                "{} needs --layout: bsm, bytes:N or a file",
                args.scheme
            ))),
            false => Ok(None),
        };
    };
    if !args.scheme.is_rapid() {
        return Err(Failure::input(format!(
            "--layout: {} signs any payload",
            args.scheme
        )));
    }
    let wrong = |why: &dyn std::fmt::Display| Failure::input(format!("--layout {text}: {why}"));
    let layout = match text.strip_prefix("bytes:") {
        Some(bytes) => LayoutText::Opaque {
            bytes: bytes.parse().map_err(|error| wrong(&error))?,
        },
        None if text == "bsm" => LayoutText::Bsm,
        None => {
            let json = read_text_bounded(text, PUBLIC_KEY_BYTES_MAX)
                .map_err(|error| wrong(&format_args!("{error}; it is bsm, bytes:N or a file")))?;
            serde_json::from_str(&json).map_err(|error| wrong(&error))?
        }
    };
    Layout::try_from(layout).map(Some).map_err(|error| wrong(&error))
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::input(format!(
            "{} exists already, and a signer is not overwritten; name another directory",
            path.display()
        )),
        _ => Failure::input(format!("{}: cannot be made: {error}", path.display())),
    })
}

/// The one that is there, or a new one.
fn sealing_key(given: Option<&Path>, directory: &SignerDirectory) -> Result<SealingKey, Failure> {
    match given {
        Some(path) if path.exists() => Ok(SealingKey::read(path)?),
        Some(path) => Ok(SealingKey::create(path)?),
        None => Ok(SealingKey::create(&directory.seal_path())?),
    }
}

fn table(key: &PrivateKey, signals: &Signals, output: Output) -> Result<Option<Table>, Failure> {
    let Some(ra) = key.ra() else {
        return Ok(None);
    };
    let progress = output.progress(ra.public().layout().rows() as u64, "rows of the table");
    let mut told = Ok(());
    let table = ra.table(|made| {
        progress.set_position(made as u64);
        told = go_on(signals);
        told.is_ok()
    });
    progress.finish_and_clear();
    told?;
    table.map_err(Failure::failed)
}

/// Fails once it is told to end.
fn go_on(signals: &Signals) -> Result<(), Failure> {
    match signals.wait(Duration::ZERO)? {
        Some(_) => Err(Failure::failed("told to end: no signer was made")),
        None => Ok(()),
    }
}
