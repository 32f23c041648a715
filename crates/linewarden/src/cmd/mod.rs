//! The commands, one module each.

pub mod agent;
pub mod appraise;
pub mod attest;
pub mod audit;
pub mod bench;
pub mod certificate;
pub mod check;
pub mod completions;
pub mod config;
pub mod controller;
pub mod device;
pub mod events;
pub mod evidence;
pub mod gateway;
pub mod manual;
pub mod policy;
pub mod puf;
pub mod registry;
pub mod serve;
pub mod signed;
pub mod signer;
pub mod switch;
pub mod user;

use linewarden_cli::failure::Failure;
use linewarden_cli::log;
use linewarden_cli::output::Output;
use linewarden_gateway::WRONG_TAGS;

use crate::cli::{Cli, Command};

/// Runs a command.
pub fn run(cli: Cli) -> Result<(), Failure> {
    let flag = cli.log.as_deref();
    match cli.command {
        // The configuration files of these commands may set the level.
        Command::Serve(args) => return serve::run(&args, flag),
        Command::Agent(args) => return agent::run(&args, flag),
        Command::Controller(args) => return controller::run(&args, flag),
        // In a benchmark, wrong tags come from simulated attackers.
        Command::Bench(_) => log::start(flag, None, &format!("warn,{WRONG_TAGS}=error"))?,
        // These commands report errors of the TPM library themselves.
        Command::Attest(_) | Command::Evidence(_) => log::start(flag, None, "warn,tss_esapi=off")?,
        _ => log::start(flag, None, "warn")?,
    }
    match cli.command {
        Command::Check(args) => check::run(&args),
        Command::Bench(command) => bench::run(&command),
        Command::Device(command) => device::run(command),
        Command::Attest(command) => attest::run(&command),
        Command::Evidence(command) => evidence::run(&command),
        Command::Appraise(args) => appraise::run(&args, Output::new(args.json)),
        Command::Registry(command) => registry::run(&command),
        Command::Puf(command) => puf::run(&command),
        Command::Switch(command) => switch::run(&command),
        Command::Signed(command) => signed::run(&command),
        Command::User(command) => user::run(&command),
        Command::Gateway(command) => gateway::run(&command),
        Command::Policy(command) => policy::run(&command),
        Command::Signer(command) => signer::run(&command),
        Command::Events(args) => events::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Certificate(command) => certificate::run(&command),
        Command::Config(command) => config::run(&command, Output::new(false)),
        Command::Completions(args) => completions::run(&args, Output::new(false)),
        Command::Manual(args) => manual::run(&args, Output::new(false)),
        Command::Serve(_) | Command::Agent(_) | Command::Controller(_) => Ok(()),
    }
}

/// 8 random bytes from the operating system, as a number.
pub fn random_u64() -> Result<u64, Failure> {
    getrandom::u64().map_err(|error| {
        Failure::failed(format!(
            "reading random bytes from the kernel failed: {error}; repeat the command"
        ))
    })
}

/// Seconds since 1970-01-01 UTC.
pub fn now_s() -> Result<u64, Failure> {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map(|since| since.as_secs())
        .map_err(|_| Failure::failed("system time is before 1970: set the clock"))
}
