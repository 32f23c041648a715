//! `linewarden signed masks`.

use std::time::Duration;

use clap::Args;
use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::message::MASK_NAME_BYTES;
use linewarden_signatures::store::{BLOCK_MASKS, MachineId, SealingKey, SignerDirectory};

use super::seal::SignerArgs;
use crate::failure::Failure;
use crate::output::{Output, counted, tell};
use crate::signals::Signals;

/// How many, and whose.
#[derive(Args, Debug)]
#[command(after_help = "\
Each message that is signed with RA uses up a mask, and each mask costs an RSA signature. Those in the file are made ahead; a sender \
that runs out of them signs at that price. The file is bound to this machine, and to itself: a copy of it is refused, and so is one into which \
a backup was written back.

SIGINT and SIGTERM end it; what was made until then is in the file.

Examples:
  linewarden signed masks truck7 --count 100000")]
pub struct MasksArgs {
    #[command(flatten)]
    signer: SignerArgs,
    /// Make so many; rounded up to whole blocks of 64
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    count: u64,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Makes them.
pub fn run(args: &MasksArgs, output: Output) -> Result<(), Failure> {
    let signals = Signals::to_stop()?;
    let (key, sealing_key) = args.signer.open()?;
    if key.ra().is_none() {
        return Err(Failure::input(format!(
            "{} signs without masks",
            key.public().scheme()
        )));
    }
    let remaining = make(
        &args.signer.directory(),
        &key,
        &sealing_key,
        args.count,
        output,
        || match signals.wait(Duration::ZERO)? {
            None => Ok(()),
            Some(_) => Err(Failure::failed(
                "told to end: the masks that were made until now are in the file, `linewarden signed show` counts them",
            )),
        },
    )?;
    output.object(&serde_json::json!({ "signer": key.public().id().to_string(), "masks": remaining }))?;
    output.line(format_args!("{} ready", counted(remaining, "mask")))
}

/// Adds so many to a signer's file, if any, as long as `go_on` does not fail; how many it has then.
pub fn make(
    directory: &SignerDirectory,
    key: &PrivateKey,
    sealing_key: &SealingKey,
    count: u64,
    output: Output,
    go_on: impl Fn() -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (Some(ra), 1..) = (key.ra(), count) else {
        return Ok(0);
    };
    let machine = MachineId::of_this_machine().map_err(Failure::failed)?;
    let mut file = directory.masks(key, &machine, sealing_key)?;
    if !file.sees_earlier_content() {
        tell(format_args!(
            "{}: the file system keeps no attributes of users: if a backup is written back into this file, its masks go out twice",
            directory.masks_path().display()
        ));
    }
    let progress = output.progress(count, "masks");
    for _ in 0..count.div_ceil(BLOCK_MASKS as u64) {
        go_on()?;
        let mut names = [[0; MASK_NAME_BYTES]; BLOCK_MASKS];
        getrandom::fill(names.as_flattened_mut())
            .map_err(|error| Failure::failed(format!("no random bytes: {error}")))?;
        file.append(&ra.masks(&names).map_err(Failure::failed)?)?;
        progress.inc(BLOCK_MASKS as u64);
    }
    progress.finish_and_clear();
    Ok(file.remaining())
}
