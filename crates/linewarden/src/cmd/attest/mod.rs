//! `linewarden attest`.

#[cfg(feature = "tpm")]
mod enrol;
mod measure;

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
    /// On the device: measure what it runs, as its agent does
    Measure(measure::MeasureArgs),
    /// On the device: begin the enrolment of its TPM
    #[cfg(feature = "tpm")]
    Identity(enrol::IdentityArgs),
    /// On the device: take the key that the operator offers into its TPM
    #[cfg(feature = "tpm")]
    Answer(enrol::AnswerArgs),
}

impl AttestCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
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
        AttestCommand::Measure(args) => measure::run(args, output),
        #[cfg(feature = "tpm")]
        AttestCommand::Identity(args) => enrol::identity(args, output),
        #[cfg(feature = "tpm")]
        AttestCommand::Answer(args) => enrol::answer(args, output),
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
