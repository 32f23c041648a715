//! `linewarden-agent run`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linewarden_agent::{Agent, AgentEvent, LOSS_COUNTERS, RunOutcome};
use linewarden_cli::failure::Failure;
use linewarden_cli::metrics_file::{MetricsFile, Page};
use linewarden_cli::output::{Output, printable};
use linewarden_cli::signals::Signals;
use linewarden_cli::{log, random_u64, service_manager};
use linewarden_config::Validated;
use linewarden_config::agent::{AgentConfig, RunOptions, parse_gateway};

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line per event: authenticated, renewed, refused, address changed, peer connected or disconnected. With --output json each \
line is an object whose `event` names the event. Exits with code 0 on SIGINT and SIGTERM. With --once and --renew the command exits \
with code 1 if a session was opened but no credential was renewed.

Examples:
  linewarden-agent run --config 00000000000000d1.toml
  linewarden-agent run --config 00000000000000d1.toml --gateway 192.0.2.1 --interface eth0
  linewarden-agent run --config 00000000000000d1.toml --once --timeout 10
  linewarden-agent run --config 00000000000000d1.toml --once --renew --timeout 60

`linewarden-agent config example` prints a commented configuration.")]
pub struct RunArgs {
    /// Configuration file of the agent (path)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Address of the gateway; overrides the configuration (HOST or HOST:PORT)
    #[arg(long, value_name = "ADDRESS", value_parser = parse_gateway)]
    gateway: Option<SocketAddr>,
    /// Bind the session to the MAC address of this interface; overrides the configuration (name)
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Renew the credential: new rows in pool mode, a new key in key mode (flag)
    #[arg(long)]
    renew: bool,
    /// Exit when a session is open and, with --renew, the renewal has ended (flag)
    #[arg(long)]
    once: bool,
    /// Exit with code 5 if no session is open after this time (integer, seconds, default: wait forever)
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// File for counters of lost datagrams in Prometheus text format, rewritten on change (path)
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
}

/// Runs the agent until a signal stops it.
pub fn run(args: &RunArgs, log_flag: Option<&str>, output: Output) -> Result<(), Failure> {
    let config = Validated::<AgentConfig>::read_changed(&args.config, |config| {
        if args.interface.is_some() {
            config.gateway.interface.clone_from(&args.interface);
        }
        if let Some(address) = args.gateway {
            config.gateway.address = Some(address.to_string());
        }
    })?;
    let file = &config.file;
    // The agent itself reports errors of the TPM library.
    log::start(log_flag, file.value.log.level.as_deref(), "info,tss_esapi=off")?;
    let settings = RunOptions {
        renew: args.renew,
        once: args.once,
        session_timeout: args.timeout.map(Duration::from_secs),
        noise_seed: random_u64()?,
    };
    let (options, puf) = config
        .valid
        .options(settings)
        .map_err(|errors| file.field_failures(&errors))?;
    let stop = Signals::for_stop()?;
    let mut print_result = Ok(());
    let metrics = args.metrics_file.as_deref().map(MetricsFile::start).transpose()?;
    let submit_metrics = |losses: &BTreeMap<&'static str, u64>| {
        if let Some(metrics) = &metrics {
            metrics.submit(metrics_page(losses));
        }
    };
    submit_metrics(&LOSS_COUNTERS.map(|name| (name, 0)).into());
    service_manager::notify(service_manager::READY);
    let outcome = Agent::new(options, puf).run(std::os::fd::AsFd::as_fd(&stop), &mut |event| {
        if let Some(status) = attestation_status(event) {
            service_manager::notify(&status);
        }
        if let AgentEvent::DatagramsLost { datagrams } = event {
            submit_metrics(datagrams);
        }
        if print_result.is_ok() {
            print_result = output.object(event).and_then(|()| output.line(event));
        }
    });
    let outcome = outcome.map_err(Failure::failed)?;
    service_manager::notify(service_manager::STOPPING);
    match outcome {
        RunOutcome::Stopped | RunOutcome::Authenticated => print_result,
        RunOutcome::RenewalFailed => Err(Failure::failed(
            "session opened, but the renewal that --renew requests failed; the previous line has the reason",
        )),
        RunOutcome::TimedOut => Err(Failure::not_authenticated(format!(
            "no session within {} s",
            args.timeout.unwrap_or_default()
        ))),
    }
}

fn metrics_page(losses: &BTreeMap<&'static str, u64>) -> Page {
    let mut page = Page::default();
    page.counter(
        "linewarden_agent_datagrams_lost_total",
        "Datagrams lost since the agent started, by direction and reason.",
        Some("reason"),
        losses.iter().map(|(name, count)| (*name, *count)),
    );
    page
}

/// Status text for `systemctl status`: the reason while attestation fails.
fn attestation_status(event: &AgentEvent) -> Option<String> {
    match event {
        AgentEvent::AttestationFailed { .. } | AgentEvent::Attested { .. } => Some(format!(
            "STATUS={}",
            printable(&event.to_string()).replace('\n', " ")
        )),
        _ => None,
    }
}
