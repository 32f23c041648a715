//! The commands, one module each.

pub mod appraise;
pub mod attest;
pub mod audit;
pub mod certificate;
pub mod device;
pub mod events;
pub mod gateway;
pub mod policy;
pub mod puf;
pub mod registry;
pub mod signed;
pub mod signer;
pub mod user;

use linewarden_cli::evidence;
use linewarden_cli::failure::Failure;
use linewarden_cli::log;
use linewarden_cli::output::Output;

use crate::cli::{Cli, Command, EvidenceCommand};

/// Runs a command.
pub fn run(cli: Cli) -> Result<(), Failure> {
    // Commands report errors of the TPM library themselves.
    log::start(cli.global.log.as_deref(), None, "warn,tss_esapi=off")?;
    match cli.command {
        Command::Device(command) => device::run(command),
        Command::Attest(command) => attest::run(&command),
        Command::Evidence(EvidenceCommand::Key(args)) => {
            evidence::create_or_show_key(&args, Output::new(args.json))
        }
        Command::Appraise(args) => appraise::run(&args, Output::new(args.json)),
        Command::Registry(command) => registry::run(&command),
        Command::Puf(command) => puf::run(&command),
        Command::Signed(command) => signed::run(&command),
        Command::User(command) => user::run(&command),
        Command::Gateway(command) => gateway::run(&command),
        Command::Policy(command) => policy::run(&command),
        Command::Signer(command) => signer::run(&command),
        Command::Events(args) => events::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Certificate(command) => certificate::run(&command),
        Command::Common(command) => command.run::<Cli>(None),
    }
}
