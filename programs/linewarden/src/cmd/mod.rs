//! The commands, one module each.

pub mod appraise;
pub mod attest;
pub mod audit;
pub mod certificate;
pub mod device;
pub mod event;
pub mod gateway;
pub mod puf;
pub mod registry;
pub mod signed;
pub mod signer;
pub mod user;

use linewarden_cli::evidence;
use linewarden_cli::failure::Failure;
use linewarden_cli::log;

use crate::cli::{Cli, Command, EvidenceCommand};

/// Runs a command.
pub fn run(cli: Cli) -> Result<(), Failure> {
    // Commands report errors of the TPM library themselves.
    log::start(cli.global.log.as_deref(), None, "warn,tss_esapi=off")?;
    let output = cli.global.output();
    match cli.command {
        Command::Device(command) => device::run(command, output),
        Command::Attest(command) => attest::run(&command, output),
        Command::Evidence(EvidenceCommand::Key(args)) => evidence::create_or_show_key(&args, output),
        Command::Appraise(args) => appraise::run(&args, output),
        Command::Registry(command) => registry::run(&command, output),
        Command::Puf(command) => puf::run(&command, output),
        Command::Signed(command) => signed::run(&command, output),
        Command::User(command) => user::run(&command, output),
        Command::Gateway(command) => gateway::run(&command, output),
        Command::Signer(command) => signer::run(&command, output),
        Command::Event(command) => event::run(&command, output),
        Command::Audit(command) => audit::run(&command, output),
        Command::Certificate(command) => certificate::run(&command, output),
        Command::Common(command) => command.run::<Cli>(None),
    }
}
