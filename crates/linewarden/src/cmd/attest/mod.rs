//! `linewarden attest`.

#[cfg(feature = "tpm")]
mod device_tpm;
mod devices;
mod enroll;
mod explain;
mod group;
mod key;
mod measure;
mod message;
mod reference;
mod round;
mod standing;
mod status;

use std::path::Path;

use clap::Subcommand;
use linewarden_agent::AgentConfig;
use linewarden_agent::attest::AttestSection;

use crate::config_file::ConfigFile;
use crate::failure::Failure;
use crate::output::Output;

/// What about attestation.
#[derive(Subcommand, Debug)]
pub enum AttestCommand {
    /// Groups of devices: what they are to run, and how often they are asked
    #[command(
        subcommand,
        after_help = "\
Examples:
  linewarden attest group set pumps --reference pumps.conf --every 60 --config gateway.toml
  linewarden attest group list --config gateway.toml
  linewarden attest group roll-out pumps --reference pumps-2.conf --for 86400 --config gateway.toml"
    )]
    Group(group::GroupCommand),
    /// Enrol devices for attestation: a key into the registry, and to the device
    Enroll(Box<enroll::EnrollArgs>),
    /// Attest devices no more
    Remove(devices::RemoveArgs),
    /// Have a device asked elsewhere, with the key that it has
    Move(devices::MoveArgs),
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
    /// On the device: measure what it runs, as its agent does
    Measure(measure::MeasureArgs),
    /// On the device: begin the enrolment of its TPM
    #[cfg(feature = "tpm")]
    Identity(device_tpm::IdentityArgs),
    /// On the device: take the key that the operator offers into its TPM
    #[cfg(feature = "tpm")]
    Answer(device_tpm::AnswerArgs),
}

impl AttestCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Group(command) => command.wants_json(),
            Self::Enroll(args) => args.json,
            Self::Remove(args) => args.json,
            Self::Move(args) => args.json,
            Self::Round(args) => args.json,
            Self::Status(args) => args.json,
            Self::Explain(args) => args.json,
            Self::Reopen(args) => args.json,
            Self::Key(args) => args.json,
            Self::Measure(args) => args.json,
            #[cfg(feature = "tpm")]
            Self::Identity(args) => args.json,
            #[cfg(feature = "tpm")]
            Self::Answer(args) => args.json,
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
        AttestCommand::Move(args) => devices::relocate(args, output),
        AttestCommand::Round(args) => round::run(args, output),
        AttestCommand::Status(args) => status::run(args, output),
        AttestCommand::Explain(args) => explain::run(args, output),
        AttestCommand::Reopen(args) => devices::reopen(args, output),
        AttestCommand::Key(args) => key::run(args, output),
        AttestCommand::Measure(args) => measure::run(args, output),
        #[cfg(feature = "tpm")]
        AttestCommand::Identity(args) => device_tpm::identity(args, output),
        #[cfg(feature = "tpm")]
        AttestCommand::Answer(args) => device_tpm::answer(args, output),
    }
}

/// An agent's configuration, which has `[attest]`.
fn read(path: &Path) -> Result<(ConfigFile<AgentConfig>, AttestSection), Failure> {
    let mut file = ConfigFile::<AgentConfig>::read(path)?;
    let directory = file.directory();
    file.value.resolve_paths(&directory);
    match file.value.attest.clone() {
        Some(section) => Ok((file, section)),
        None => Err(file.field(
            &["attest"],
            "it is missing: say what is measured, as `linewarden config example agent` shows",
        )),
    }
}
