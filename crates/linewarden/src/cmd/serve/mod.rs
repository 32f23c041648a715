//! `linewarden serve`.

mod evidence;
mod reload;
mod start;
mod told;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linewarden_gateway::config::GatewayConfig;
use linewarden_gateway::plane;

use self::told::{Told, tell_end};
use self::watch::Watch;
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::Signals;
use crate::{cmd, gateway_config, log, service_manager};

/// Of the log, unless something else is asked for.
const LOG_LEVEL: &str = "info";

/// How to run.
#[derive(Args, Debug)]
#[command(after_help = "\
Checks the configuration as `linewarden check --machine` does before anything is touched, attaches the data plane, takes \
up the devices that it held before, and prints its state when it changes. Ends on SIGINT and SIGTERM: handshakes under \
way may end, the registry is told which rows were used, and the data plane is detached; but a gate that is not off stays \
shut however the gateway ends (`when_gone`), and the next start goes on with its sessions; on a P4 switch devices \
authenticate anew then. SIGHUP reads the configuration \
again: all that may change changes at once, or, after any error, nothing does. SIGUSR1 prints all counters. Ends with \
exit code 1 when the data plane ends by itself, so that a service manager starts it again.

Examples:
  linewarden config example > gateway.toml
  linewarden serve --config gateway.toml
  linewarden serve --config gateway.toml --release")]
pub struct ServeArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Let everything pass again where a gateway of this configuration, which has ended, keeps its gate shut
    #[arg(long)]
    release: bool,
    /// Seconds between two lines of state, if it has changed
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    every: u64,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Runs until it is told to stop.
pub fn run(args: &ServeArgs, log_flag: Option<&str>) -> Result<(), Failure> {
    let output = Output::new(args.json);
    if args.release {
        log::start(log_flag, None, LOG_LEVEL)?;
        return release(output, args);
    }
    let file = gateway_config::read(&args.config)?;
    let config = &file.value;
    log::start(log_flag, config.log.level.as_deref(), LOG_LEVEL)?;
    let resolved = config
        .resolve([cmd::random_u64()?, cmd::random_u64()?], cmd::random_u64()?)
        .map_err(|errors| Failure::all(&gateway_config::places(&file, &errors)))?;
    warn_of_classic(config);
    // Before the first thread, so that only this one takes the signals.
    let signals = Signals::of_gateway()?;
    let (running, reloader) = start::start(file, &resolved, output)?;
    service_manager::tell(service_manager::READY);
    let every = Duration::from_secs(args.every);
    let told = Watch::new(output, &running.gateway, reloader, every).run(&signals);
    service_manager::tell(service_manager::STOPPING);
    output.line("stopping")?;
    let stopped = running.stop()?;
    told?;
    tell_end(output, &stopped)
}

/// Needs interfaces, directory and number only: other mistakes in the configuration must not keep a gate shut.
fn release(output: Output, args: &ServeArgs) -> Result<(), Failure> {
    let (file, mistakes) = gateway_config::read_for_release(&args.config)?;
    for mistake in mistakes {
        tracing::warn!("{mistake}; a release does not need it");
    }
    let interfaces = plane::release(&file.value.gateway)?;
    output.object(&Told::Released { interfaces })?;
    output.line(match interfaces {
        0 => "no gate was kept shut".to_owned(),
        1 => "released: everything passes on 1 interface".to_owned(),
        count => format!("released: everything passes on {count} interfaces"),
    })
}

fn warn_of_classic(config: &GatewayConfig) {
    if config.classic.is_some() {
        tracing::warn!(
            "THE CLASSIC PROFILE IS ON. It is the papers' protocol, for measurement only: its checksums authenticate \
             nobody, its responses can be read off the wire. Never use it with devices that matter."
        );
    }
}
