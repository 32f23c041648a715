//! `linewarden signed`.

mod counters;
mod keygen;
mod lanes;
mod latency;
mod lines;
mod listener;
mod masks;
mod next_line;
mod outgoing;
mod outputs;
mod payload;
mod receive;
mod seal;
mod send;
mod show;
mod way;

use clap::Subcommand;
use linewarden_signatures::store::{MaskFileError, SealedFileError, SignerFileError};

use crate::failure::Failure;
use crate::output::Output;

/// What about signed messages.
#[derive(Subcommand, Debug)]
pub enum SignedCommand {
    /// Make a signer: its keys, and with RA its table and masks
    Keygen(keygen::KeygenArgs),
    /// Make masks ahead, for a signer of RA
    Masks(masks::MasksArgs),
    /// Receive messages, verify them, and hand them on
    Receive(receive::ReceiveArgs),
    /// Sign messages, and send them
    Send(send::SendArgs),
    /// Show a signer, or a public key
    Show(show::ShowArgs),
}

impl SignedCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Keygen(args) => args.json,
            Self::Masks(args) => args.json,
            Self::Receive(args) => args.json,
            Self::Send(args) => args.json,
            Self::Show(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &SignedCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        SignedCommand::Keygen(args) => keygen::run(args, output),
        SignedCommand::Masks(args) => masks::run(args, output),
        SignedCommand::Receive(args) => receive::run(args, output),
        SignedCommand::Send(args) => send::run(args, output),
        SignedCommand::Show(args) => show::run(args, output),
    }
}

/// The kernel's number of an interface; 0, the one that it chooses, if none is named.
fn interface(name: Option<&str>) -> Result<u32, Failure> {
    let Some(name) = name else {
        return Ok(0);
    };
    nix::net::if_::if_nametoindex(name)
        .map_err(|error| Failure::input(format!("--interface {name}: {}", error.desc())))
}

/// What no other path would mend.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl From<SealedFileError> for Failure {
    fn from(error: SealedFileError) -> Self {
        match error {
            SealedFileError::Unsafe { .. } => Self::unsafe_(error),
            SealedFileError::Entropy(_) => Self::failed(error),
            SealedFileError::Io { ref source, .. } if is_full(source) => Self::failed(error),
            _ => Self::input(error),
        }
    }
}

impl From<SignerFileError> for Failure {
    fn from(error: SignerFileError) -> Self {
        match error {
            SignerFileError::Sealed(error) => error.into(),
            SignerFileError::UnsafeSeal { .. } => Self::unsafe_(error),
            SignerFileError::Entropy(_) => Self::failed(error),
            SignerFileError::Io { ref source, .. } if is_full(source) => Self::failed(error),
            _ => Self::input(error),
        }
    }
}

impl From<MaskFileError> for Failure {
    fn from(error: MaskFileError) -> Self {
        match error {
            MaskFileError::Unsafe { .. }
            | MaskFileError::OtherMachine { .. }
            | MaskFileError::Copied { .. }
            | MaskFileError::SetBack { .. }
            | MaskFileError::Uncounted { .. } => Self::unsafe_(error),
            MaskFileError::Entropy(_) | MaskFileError::InUse { .. } => Self::failed(error),
            MaskFileError::Io { ref source, .. } if is_full(source) => Self::failed(error),
            _ => Self::input(error),
        }
    }
}
