//! `linewarden signed`.

mod counters;
mod keygen;
mod lanes;
mod latency;
mod line_writer;
mod lines;
mod listener;
mod masks;
mod next_line;
mod outgoing;
mod outputs;
mod payload;
mod receive;
mod send;
mod show;
mod signer_args;

use clap::Subcommand;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

/// Subcommands of `linewarden signed`.
#[derive(Subcommand, Debug)]
pub enum SignedCommand {
    /// Create a signer: its keys, and with RA its table and masks
    Keygen(keygen::KeygenArgs),
    /// Create masks in advance, for an RA signer
    Masks(masks::MasksArgs),
    /// Receive and verify messages, and deliver them
    Receive(receive::ReceiveArgs),
    /// Sign and send messages
    Send(send::SendArgs),
    /// Show a signer or a public key
    Show(show::ShowArgs),
}

/// Runs the command.
pub fn run(command: &SignedCommand, output: Output) -> Result<(), Failure> {
    match command {
        SignedCommand::Keygen(args) => keygen::run(args, output),
        SignedCommand::Masks(args) => masks::run(args, output),
        SignedCommand::Receive(args) => receive::run(args, output),
        SignedCommand::Send(args) => send::run(args, output),
        SignedCommand::Show(args) => show::run(args, output),
    }
}

/// Returns the index of the named interface; without a name 0, so that the kernel chooses the interface.
fn interface_index(name: Option<&str>) -> Result<u32, Failure> {
    let Some(name) = name else {
        return Ok(0);
    };
    nix::net::if_::if_nametoindex(name)
        .map_err(|error| Failure::input(format!("--interface {name}: {}", error.desc())))
}
