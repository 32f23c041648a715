//! `linewarden-gateway run` and `remove-gate`.
//!
//! A start has three stages; each needs the result of the previous stage:
//!
//! ```text
//!  configuration ──► StartInputs ───────────► AttachedGateway ─────────► RunningGateway ──► GatewayMonitor
//!                    machine checked,         data plane attached,       devices served     until a signal
//!                    files and keys read      privileges dropped
//! ```

mod attach;
mod inputs;
mod output;
mod reload;
mod serve;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::signals::Signals;
use linewarden_cli::{log, random_u64, service_manager};
use linewarden_config::gateway::GatewayConfig;
use linewarden_config::{ConfigFile, Validated};
use linewarden_gateway::data_plane::{self, RemoveGateError};
use linewarden_protocol::ids::GatewayId;

use self::attach::AttachedGateway;
use self::inputs::StartInputs;
use self::output::{ServeOutput, print_end, print_start};
use self::serve::RunningGateway;
use self::watch::GatewayMonitor;

/// Default log level.
const LOG_LEVEL: &str = "info";

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Checks the configuration as `check --machine` does, attaches the data plane, restores the devices that the gateway had before \
it ended, and prints its state on change. Stops on SIGINT and SIGTERM: pending handshakes may complete, used rows are reported to the \
controller, and the data plane is detached. Unless gate_on_exit is \"remove\", a gate stays on its interfaces after the gateway has ended, \
and the next start continues the sessions; on a P4 switch, devices must authenticate again. SIGHUP reloads the configuration: all \
changeable settings change together, or none after an error. SIGUSR1 prints all counters. Exits with code 1 if the data plane fails, so \
that a service manager restarts the gateway.

Examples:
  linewarden-gateway config example > gateway.toml
  linewarden-gateway run --config gateway.toml")]
pub struct RunArgs {
    /// Configuration file of the gateway (path)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Minimum interval between two status lines; a status line is printed only after a change (integer, seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    status_interval: u64,
}

/// Arguments of `remove-gate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Removes the gates that an ended gateway with this configuration left on its interfaces. Only the ID, the interfaces and the pin \
directory of the configuration are needed; mistakes in other fields are ignored with a warning.

Examples:
  linewarden-gateway remove-gate --config gateway.toml")]
pub struct RemoveGateArgs {
    /// Configuration file of the gateway (path)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the gateway until a signal stops it.
pub fn run(args: &RunArgs, log_flag: Option<&str>, output: Output) -> Result<(), Failure> {
    let validated = Validated::<GatewayConfig>::read(&args.config)?;
    let config = &validated.file.value;
    log::start(log_flag, config.log.level.as_deref(), LOG_LEVEL)?;
    let resolved = validated
        .resolve([random_u64()?, random_u64()?])
        .map_err(|errors| validated.file.field_failures(&errors))?;
    // Signals are blocked before the first thread starts, so that only this thread receives them.
    let signals = Signals::for_service()?;
    let attached = AttachedGateway::attach(StartInputs::read(validated, resolved)?)?;
    print_start(output, &attached.inputs.file.value, &attached.inputs.resolved)?;
    let (running_gateway, reloader) = RunningGateway::start(attached)?;
    service_manager::notify(service_manager::READY);
    let interval = Duration::from_secs(args.status_interval);
    let result = GatewayMonitor::new(output, &running_gateway.gateway, reloader, interval).run(&signals);
    service_manager::notify(service_manager::STOPPING);
    output.line("stopping")?;
    let stop_report = running_gateway.stop()?;
    result?;
    print_end(output, &stop_report)
}

/// Removes gates. Only interfaces, pin directory and ID of the configuration are needed: a mistake in another field must
/// not prevent the removal.
pub fn remove_gates(args: &RemoveGateArgs, output: Output) -> Result<(), Failure> {
    let (file, mistakes) = ConfigFile::<GatewayConfig>::read_for_gate_removal(&args.config)?;
    for mistake in mistakes {
        tracing::warn!(reason = %mistake, "configuration error ignored: removing a gate does not need the field");
    }
    let section = &file.value.gateway;
    let removed =
        data_plane::remove_gates(GatewayId(section.id), &section.interfaces, &section.pin_directory);
    let interfaces = removed.map_err(|error| match error {
        RemoveGateError::Interface(error) => Failure::input(error),
        RemoveGateError::DataPlane(error) => error.into(),
    })?;
    output.object(&ServeOutput::GatesRemoved { interfaces })?;
    output.line(match interfaces {
        0 => "no gate of an ended gateway found".to_owned(),
        1 => "gate removed: all traffic passes on 1 interface".to_owned(),
        count => format!("gates removed: all traffic passes on {count} interfaces"),
    })
}
