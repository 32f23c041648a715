//! `linewarden agent`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linewarden_agent::config::parse_gateway;
use linewarden_agent::{Agent, AgentConfig, AgentOptions, Ended, Keyring, LOSSES, Report, interface_mac};
use linewarden_protocol::device::DeviceConfig;
use linewarden_protocol::ids::Suite;
use linewarden_puf::Puf;
use linewarden_puf::health::HealthTest;

use super::check::{place, places};
use crate::config_file::ConfigFile;
use crate::failure::Failure;
use crate::metrics_file::{MetricsFile, Page};
use crate::output::{Output, printable};
use crate::signals::Signals;
use crate::{log, service_manager};

/// How to run.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line at each change: authenticated, renewed, refused, address changed, a peer open or closed. With --json each \
line is an object whose `event` says what it is. Ends cleanly on SIGINT and SIGTERM, with exit code 0. With --once and \
--renew it ends with exit code 1 if there was a session and nothing was renewed.

Examples:
  linewarden agent --config 00000000000000d1.toml
  linewarden agent --config 00000000000000d1.toml --gateway 192.0.2.1 --interface eth0
  linewarden agent --config 00000000000000d1.toml --once --timeout 10
  linewarden agent --config 00000000000000d1.toml --once --renew --timeout 60

`linewarden config example agent` prints a commented configuration.")]
pub struct AgentArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The gateway, in place of the configuration's: HOST or HOST:PORT
    #[arg(long, value_name = "ADDRESS", value_parser = parse_gateway)]
    gateway: Option<SocketAddr>,
    /// The interface whose MAC address the session is bound to, in place of the configuration's
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Renew what the device proves itself with: new rows, or in key mode a new key
    #[arg(long)]
    renew: bool,
    /// End with the first session, and what is to be renewed in it
    #[arg(long)]
    once: bool,
    /// End with exit code 5 if there is no session after so many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// A file with the counters of lost datagrams in the text format of Prometheus, for a collector of files, replaced when they change
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Runs until it is told to stop.
pub fn run(args: &AgentArgs, log_flag: Option<&str>) -> Result<(), Failure> {
    let mut file = ConfigFile::<AgentConfig>::read(&args.config)?;
    // What the library says of a TPM's answers, the agent reports itself.
    log::start(log_flag, file.value.log.level.as_deref(), "info,tss_esapi=off")?;
    let directory = file.directory();
    file.value.resolve_paths(&directory);
    let gateway = &mut file.value.gateway;
    if args.interface.is_some() {
        gateway.interface.clone_from(&args.interface);
    }
    if let Some(address) = args.gateway {
        gateway.address = Some(address.to_string());
    }
    let problems = file.value.problems();
    if !problems.is_empty() {
        return Err(Failure::all(&places(&file, &problems)));
    }
    let (options, puf) = prepare(&file, args)?;
    let stop = Signals::to_stop()?;
    let output = Output::new(args.json);
    let mut printed = Ok(());
    let metrics = args.metrics_file.as_deref().map(MetricsFile::start).transpose()?;
    let put = |losses: &BTreeMap<&'static str, u64>| {
        if let Some(metrics) = &metrics {
            metrics.put(page(losses));
        }
    };
    put(&LOSSES.map(|name| (name, 0)).into());
    service_manager::tell(service_manager::READY);
    let ended = Agent::new(options, puf).run(std::os::fd::AsFd::as_fd(&stop), &mut |report| {
        if let Some(status) = attestation_status(report) {
            service_manager::tell(&status);
        }
        if let Report::DatagramsLost { datagrams } = report {
            put(datagrams);
        }
        if printed.is_ok() {
            printed = output.object(report).and_then(|()| output.line(report));
        }
    })?;
    service_manager::tell(service_manager::STOPPING);
    match ended {
        Ended::Stopped | Ended::Authenticated => printed,
        Ended::NotRenewed => Err(Failure::failed(
            "there was a session, but what --renew demands was not renewed; the line before says why",
        )),
        Ended::GaveUp => Err(Failure::not_authenticated(format!(
            "no session after {} s",
            args.timeout.unwrap_or_default()
        ))),
    }
}

fn page(losses: &BTreeMap<&'static str, u64>) -> Page {
    let mut page = Page::default();
    page.counter(
        "linewarden_agent_datagrams_lost_total",
        "Datagrams that were lost since the agent's start, by where and why.",
        Some("reason"),
        losses.iter().map(|(name, count)| (*name, *count)),
    );
    page
}

/// What `systemctl status` shows of attestation: that nothing is proven and why, until something is.
fn attestation_status(report: &Report) -> Option<String> {
    match report {
        Report::NotAttesting { .. } | Report::Attested { .. } => Some(format!(
            "STATUS={}",
            printable(&report.to_string()).replace('\n', " ")
        )),
        _ => None,
    }
}

fn prepare(
    file: &ConfigFile<AgentConfig>,
    args: &AgentArgs,
) -> Result<(AgentOptions, Box<dyn Puf>), Failure> {
    let config = &file.value;
    let field = |error: linewarden_agent::FieldError| Failure::all(&[place(file, &error)]);
    let device = config.device_id().map_err(field)?;
    let keyring = Keyring::read_from(&config.device.helper)
        .map_err(|error| file.field(&["device", "helper"], &error.to_string()))?;
    let gateway = config.gateway_address().map_err(field)?;
    let bound_mac = match &config.gateway.interface {
        Some(name) => Some(
            interface_mac(name).map_err(|error| file.field(&["gateway", "interface"], &error.to_string()))?,
        ),
        None => None,
    };
    let puf = config
        .open_puf(device, crate::cmd::random_u64()?)
        .map_err(field)?;
    let tunnels = config.tunnels(gateway).map_err(field)?;
    let options = AgentOptions {
        tunnels,
        device: DeviceConfig {
            device,
            suite: Suite::SipHash128,
            mode: keyring.current().mode(),
            gateways: config.gateway_policy().map_err(field)?,
            bound_mac,
        },
        keyring,
        renewal: config.renewal(args.renew).map_err(field)?,
        desk_port: config.desk_port(gateway).map_err(field)?,
        peers: config.peers(gateway).map_err(field)?,
        peer_port: config.peer_port(gateway).map_err(field)?,
        attest: config.attest().map_err(field)?,
        health: HealthTest::default(),
        gateway,
        once: args.once,
        give_up_after: args.timeout.map(Duration::from_secs),
    };
    Ok((options, puf))
}
