//! `linewarden attest`.

mod devices;
mod enroll;
mod explain;
mod group;
mod key;
mod reference;
mod round;
mod standing;
mod status;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;

/// What about attestation.
#[derive(Subcommand, Debug)]
pub enum AttestCommand {
    /// Groups of devices: what they are to run, and how often they are asked
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Enrol devices for attestation: a key into the registry, and to the device
    Enroll(Box<enroll::EnrollArgs>),
    /// Attest devices no more
    Remove(devices::RemoveArgs),
    /// Have devices asked now, and show what came of it
    Round(round::RoundArgs),
    /// Show how devices stand
    Status(status::StatusArgs),
    /// Show what a device should run, what it says it runs, and what differs
    Explain(explain::ExplainArgs),
    /// Let devices out of quarantine
    Reopen(devices::ReopenArgs),
    /// Make or show the key that signs results
    Key(key::KeyArgs),
}

impl AttestCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Group(command) => command.wants_json(),
            Self::Enroll(args) => args.json,
            Self::Remove(args) => args.json,
            Self::Round(args) => args.json,
            Self::Status(args) => args.json,
            Self::Explain(args) => args.json,
            Self::Reopen(args) => args.json,
            Self::Key(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &AttestCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        AttestCommand::Group(command) => group::run(command, output),
        AttestCommand::Enroll(args) => enroll::run(args, output),
        AttestCommand::Remove(args) => devices::remove(args, output),
        AttestCommand::Round(args) => round::run(args, output),
        AttestCommand::Status(args) => status::run(args, output),
        AttestCommand::Explain(args) => explain::run(args, output),
        AttestCommand::Reopen(args) => devices::reopen(args, output),
        AttestCommand::Key(args) => key::run(args, output),
    }
}
