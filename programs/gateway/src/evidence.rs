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

impl EvidenceCommand {
    /// Whether the command prints JSON.
    pub fn prints_json(&self) -> bool {
        match self {
            Self::Export(args) => args.json,
            Self::Key(args) => args.json,
        }
    }
}

/// Runs the command.
pub fn run(command: &EvidenceCommand) -> Result<(), Failure> {
    let output = Output::new(command.prints_json());
    match command {
        EvidenceCommand::Export(args) => export::run(args, output),
        EvidenceCommand::Key(args) => evidence::create_or_show_key(args, output),
    }
}
