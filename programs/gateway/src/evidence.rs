//! `linewarden-gateway evidence`.

use clap::Subcommand;
use linewarden_cli::evidence;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

use crate::export;

/// Subcommands of `evidence`.
#[derive(Subcommand, Debug)]
pub enum EvidenceCommand {
    /// Export a signed statement and inventory of a running gateway
    Export(export::ExportArgs),
    /// Create or show the key that signs statements
    Key(evidence::KeyArgs),
}

/// Runs the command.
pub fn run(command: &EvidenceCommand, output: Output) -> Result<(), Failure> {
    match command {
        EvidenceCommand::Export(args) => export::run(args, output),
        EvidenceCommand::Key(args) => evidence::create_or_show_key(args, output),
    }
}
