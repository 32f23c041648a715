//! `linewarden evidence`.

mod export;
mod key;

use clap::Subcommand;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

/// Subcommands of `linewarden evidence`.
#[derive(Subcommand, Debug)]
pub enum EvidenceCommand {
    /// Export a signed statement and inventory of a gateway on this machine
    Export(export::ExportArgs),
    /// Create or show a key that signs statements or reference values
    Key(key::KeyArgs),
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
        EvidenceCommand::Key(args) => key::run(args, output),
    }
}
