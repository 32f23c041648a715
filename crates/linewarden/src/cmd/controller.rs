//! `linewarden controller`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linewarden_controller::{Controller, Policy};
use linewarden_registry::Registry;
use linewarden_service::{Service, ServiceOptions};
use linewarden_tls::ServerTls;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::config_file::ConfigFile;
use crate::controller_config::{self, ControllerConfig};
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::{Signals, Told};
use crate::{log, nats_config, registry, secret_file, service_manager, telemetry_config, tls};

/// What is told if the configuration says nothing.
const LOG_LEVEL: &str = "info";

/// How to run.
#[derive(Args, Debug)]
#[command(after_help = "\
Serves the API, the dashboard and gateways by TLS at one address, and metrics at another. SIGHUP reads certificates and their CA again, for \
connections from then on; SIGINT and SIGTERM end it. Several controllers may stand over one registry on PostgreSQL.

Examples:
  linewarden certificate ca --out pki
  linewarden certificate controller --ca pki --name ctl.example --out ctl
  linewarden registry create --registry fleet.registry --key-file master.key
  linewarden user add alice --role admin --config controller.toml
  linewarden controller --config controller.toml

`linewarden config example controller` prints a commented configuration.")]
pub struct ControllerArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// A line for machines.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Started {
        name: &'a str,
        address: String,
        metrics: Option<String>,
    },
    Reloaded,
    ReloadRefused {
        error: String,
    },
    Stopped,
}

/// Runs until it is told to stop.
pub fn run(args: &ControllerArgs, log_flag: Option<&str>) -> Result<(), Failure> {
    let file = controller_config::read(&args.config)?;
    let config = &file.value;
    log::start(log_flag, config.log.level.as_deref(), LOG_LEVEL)?;
    let output = Output::new(args.json);
    // Before the first thread, so that only this one takes the signals.
    let signals = Signals::of_gateway()?;
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("lw-service")
        .enable_all()
        .build()?;
    let files = tls::Files {
        ca: config.tls.ca.clone(),
        cert: config.tls.cert.clone(),
        key: config.tls.key.clone(),
        domain: None,
    };
    let (name, identity) = (name(config), files.read_server()?);
    if let Some(problem) = controller_config::outlived(&file) {
        tracing::error!(%problem, "nobody believes this controller; SIGHUP has it read its certificate again");
    }
    let (service, registry) = start(&runtime, &file, &name, identity)?;
    tell_start(output, &name, &service)?;
    service_manager::tell(service_manager::READY);
    watch(&signals, &service, &files, output)?;
    service_manager::tell(service_manager::STOPPING);
    output.line("stopping")?;
    runtime.block_on(async {
        service.stop().await;
        registry.close().await;
    });
    output.object(&Line::Stopped)
}

/// All that can be wrong is looked at before the registry is opened.
fn start(
    runtime: &Runtime,
    file: &ConfigFile<ControllerConfig>,
    name: &str,
    identity: ServerTls,
) -> Result<(Service, Registry), Failure> {
    let config = &file.value;
    let signing_key = config.attest.signing_key.as_deref();
    let signer = signing_key.map(secret_file::signer).transpose()?;
    let trust = controller_config::trust(file).map_err(|problems| Failure::all(&problems))?;
    let nats = nats_config::read(file).map_err(|problem| Failure::all(&[problem]))?;
    let telemetry = telemetry_config::read(file).map_err(|problem| Failure::all(&[problem]))?;
    let registry = runtime.block_on(registry::open(&config.registry))?;
    let policy = Policy {
        lease_rows: config.rows.lease_rows,
        mark_block: config.rows.mark_block,
    };
    let controller = trust.into_iter().fold(
        Controller::new(registry.clone(), policy),
        |controller, (gateway, policy)| controller.trusting(gateway, policy),
    );
    let controller = match signer {
        Some(signer) => controller.signing(signer),
        None => controller,
    };
    let started = Service::start(ServiceOptions {
        name: name.to_owned(),
        listen: config.service.listen,
        metrics: config.service.metrics,
        tls: identity,
        registry: registry.clone(),
        controller,
        nats,
        telemetry,
    });
    let service = runtime.block_on(started).map_err(Failure::failed)?;
    Ok((service, registry))
}

fn tell_start(output: Output, name: &str, service: &Service) -> Result<(), Failure> {
    output.object(&Line::Started {
        name,
        address: service.address().to_string(),
        metrics: service.metrics_address().map(|at| at.to_string()),
    })?;
    output.line(format_args!("controller {name}: https://{}", service.address()))?;
    match service.metrics_address() {
        Some(metrics) => output.line(format_args!("metrics: http://{metrics}/metrics")),
        None => Ok(()),
    }
}

/// Until it is told to stop.
fn watch(signals: &Signals, service: &Service, files: &tls::Files, output: Output) -> Result<(), Failure> {
    loop {
        match signals.wait(Duration::from_secs(1))? {
            None | Some(Told::Count) => {}
            Some(Told::Stop) => return Ok(()),
            Some(Told::Reload) => {
                service_manager::tell(&service_manager::reloading());
                reload(service, files, output)?;
                service_manager::tell(service_manager::READY);
            }
        }
    }
}

/// As many descriptors as this process may have: each connection is one.
fn raise_descriptors() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn reload(service: &Service, files: &tls::Files, output: Output) -> Result<(), Failure> {
    let exchanged = files
        .read_server()
        .and_then(|identity| service.exchange_tls(&identity).map_err(Failure::failed));
    match exchanged {
        Ok(()) => {
            output.object(&Line::Reloaded)?;
            output.line("certificates were read again")
        }
        Err(failure) => {
            tracing::error!(%failure, "the certificates of before stay");
            output.object(&Line::ReloadRefused {
                error: failure.to_string(),
            })?;
            output.line(format_args!("the certificates of before stay: {failure}"))
        }
    }
}

fn name(config: &ControllerConfig) -> String {
    let host = || {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.trim();
        match name.is_empty() {
            true => "controller".to_owned(),
            false => name.to_owned(),
        }
    };
    config.service.name.clone().unwrap_or_else(host)
}
