//! `linewarden evidence`.

mod ask;
mod key;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;

/// What about evidence.
#[derive(Subcommand, Debug)]
pub enum EvidenceCommand {
    /// Ask a gateway on this machine what its data plane runs
    Ask(ask::AskArgs),
    /// Make or show a key that signs statements or reference values
    Key(key::KeyArgs),
}

impl EvidenceCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Ask(args) => args.json,
            Self::Key(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &EvidenceCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        EvidenceCommand::Ask(args) => ask::run(args, output),
        EvidenceCommand::Key(args) => key::run(args, output),
    }
}
