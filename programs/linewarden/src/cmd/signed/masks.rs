//! `linewarden signed masks`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted, print_error};
use linewarden_cli::signals::Signals;
use std::time::Duration;

use clap::Args;
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::message::MASK_NAME_BYTES;
use linewarden_signatures::store::{BLOCK_MASKS, MachineId, SealingKey, SignerDirectory};

use super::signer_args::SignerArgs;

/// Arguments of `linewarden signed masks`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each RA message uses one mask, and each mask costs an RSA signature. The masks in the file are precomputed; a sender without masks \
computes one RSA signature per message. The file is bound to this machine and to its inode: a copy of the file is refused. If the file \
system has user extended attributes, a restored backup of the file is refused, too.

SIGINT and SIGTERM stop the command; masks created until then are in the file.

Examples:
  linewarden signed masks truck7 --count 100000")]
pub struct MasksArgs {
    #[command(flatten)]
    signer: SignerArgs,
    /// Number of masks to create, rounded up to a multiple of 64 (integer)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    count: u64,
}

/// Creates masks.
pub fn run(args: &MasksArgs, output: Output) -> Result<(), Failure> {
    let signals = Signals::for_stop()?;
    let (key, sealing_key) = args.signer.open()?;
    if key.ra().is_none() {
        return Err(Failure::input(format!(
            "scheme {} uses no masks: omit `signed masks` for this signer",
            key.public().scheme()
        )));
    }
    let remaining = create(
        &args.signer.directory(),
        &key,
        &sealing_key,
        args.count,
        output,
        || match signals.wait(Duration::ZERO)? {
            None => Ok(()),
            Some(_) => Err(Failure::failed(
                "stopped by a signal: masks created so far are in the file; `linewarden signed show` shows their number",
            )),
        },
    )?;
    output.object(&serde_json::json!({ "signer": key.public().id().to_string(), "masks": remaining }))?;
    output.line(format_args!("{} available", counted(remaining, "mask")))
}

/// Adds `count` masks, rounded up to whole blocks, to a signer's file; returns the number of masks in the file.
///
/// # Errors
/// `check_continue` fails, or a mask cannot be created. Masks created so far are in the file.
pub fn create(
    directory: &SignerDirectory,
    key: &PrivateKey,
    sealing_key: &SealingKey,
    count: u64,
    output: Output,
    check_continue: impl Fn() -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (Some(ra), 1..) = (key.ra(), count) else {
        return Ok(0);
    };
    let machine = MachineId::of_this_machine().map_err(Failure::failed)?;
    let mut file = directory.masks(key, &machine, sealing_key)?;
    if !file.detects_rollback() {
        print_error(format_args!(
            "{}: the file system has no user extended attributes, so a restored backup of this file is not detected, and its masks are used twice; \
             move the signer to a file system with user extended attributes (ext4, XFS, Btrfs), or never restore this file",
            directory.masks_path().display()
        ));
    }
    let progress = output.progress(count, "masks");
    for _ in 0..count.div_ceil(BLOCK_MASKS as u64) {
        check_continue()?;
        let mut names = [[0; MASK_NAME_BYTES]; BLOCK_MASKS];
        getrandom::fill(names.as_flattened_mut())
            .map_err(|error| Failure::failed(format!("reading random bytes from the kernel failed: {error}; masks created so far are in the file; repeat the command")))?;
        file.append(&ra.masks(&names).map_err(Failure::failed)?)?;
        progress.inc(BLOCK_MASKS as u64);
    }
    progress.finish_and_clear();
    Ok(file.remaining())
}
