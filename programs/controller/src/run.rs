//! `linewarden-controller run`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::signals::{SignalRequest, Signals};
use linewarden_cli::tls::TlsFiles;
use linewarden_cli::{log, service_manager};
use linewarden_config::controller::{self, ControllerConfig};
use linewarden_config::{Validated, failure};
use linewarden_controller::{Controller, Policy};
use linewarden_registry::Registry;
use linewarden_service::{ApiOptions, Service, ServiceOptions};
use linewarden_tls::ServerTls;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use tokio::runtime::Runtime;

/// Default log level.
const LOG_LEVEL: &str = "info";

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Serves API, dashboard and gateways over TLS at one address, and metrics at another. SIGHUP reloads certificates and CA for new \
connections; SIGINT and SIGTERM stop the controller. Several controllers can share one registry in PostgreSQL.

Examples:
  linewarden certificate ca --out pki
  linewarden certificate controller --ca pki --name ctl.example --out ctl
  linewarden registry create --registry fleet.registry --key-file master.key
  linewarden user create alice --role admin --config controller.toml
  linewarden-controller run --config controller.toml

`linewarden-controller config example` prints a commented configuration.")]
pub struct RunArgs {
    /// Configuration file of the controller (path)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// JSON output.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum ControllerOutput<'a> {
    Started {
        name: &'a str,
        address: Option<String>,
        socket: Option<&'a Path>,
        metrics: Option<String>,
    },
    Reloaded,
    ReloadRefused {
        error: String,
    },
    Stopped,
}

/// Runs the controller until a signal stops it.
pub fn run(args: &RunArgs, log_flag: Option<&str>, output: Output) -> Result<(), Failure> {
    let validated = Validated::<ControllerConfig>::read(&args.config)?;
    let config = &validated.file.value;
    log::start(log_flag, config.log.level.as_deref(), LOG_LEVEL)?;
    // Signals are blocked before the first thread starts, so that only this thread receives them.
    let signals = Signals::for_service()?;
    raise_open_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("lw-service")
        .enable_all()
        .build()?;
    let files = config.tls.as_ref().map(|section| TlsFiles {
        ca: section.ca.clone(),
        cert: section.cert.clone(),
        key: section.key.clone(),
        domain: None,
    });
    let name = controller_name(config);
    let identity = files.as_ref().map(TlsFiles::read_server).transpose()?;
    if let Some(problem) = controller::certificate_problem(&validated.file) {
        tracing::error!(error = %problem, action = "replace the certificate and send SIGHUP to the controller", "certificate of the controller is invalid; clients and gateways refuse the controller");
    }
    let (service, registry) = start(&runtime, &validated, &name, identity)?;
    print_start(output, &name, &service, config)?;
    service_manager::notify(service_manager::READY);
    serve(&signals, &service, files.as_ref(), output)?;
    service_manager::notify(service_manager::STOPPING);
    output.line("stopping")?;
    runtime.block_on(async {
        service.stop().await;
        registry.close().await;
    });
    output.object(&ControllerOutput::Stopped)
}

/// Starts the service; checks all files before it opens the registry.
fn start(
    runtime: &Runtime,
    validated: &Validated<ControllerConfig>,
    name: &str,
    identity: Option<ServerTls>,
) -> Result<(Service, Registry), Failure> {
    let (file, config) = (&validated.file, &validated.file.value);
    let signing_key = config.attest.signing_key.as_deref();
    let signer = signing_key.map(controller::read_signing_key).transpose()?;
    let trust_policies = controller::read_trust_policies(file).map_err(|problems| failure(&problems))?;
    let socket = controller::read_socket(file)?;
    let nats = controller::read_nats(validated)?;
    let telemetry = controller::read_telemetry(file)?;
    let registry = runtime.block_on(validated.valid.registry.open())?;
    let policy = Policy {
        lease_rows: config.rows.lease_rows,
        mark_block: config.rows.mark_block,
    };
    let controller = trust_policies.into_iter().fold(
        Controller::new(registry.clone(), policy),
        |controller, (gateway, policy)| controller.with_trust_policy(gateway, policy),
    );
    let controller = match signer {
        Some(signer) => controller.with_signer(signer),
        None => controller,
    };
    let started = Service::start(ServiceOptions {
        name: name.to_owned(),
        api: identity.map(|tls| ApiOptions {
            listen: config.service.listen,
            tls,
        }),
        socket,
        metrics: config.service.metrics,
        registry: registry.clone(),
        controller,
        nats,
        telemetry,
    });
    let service = runtime.block_on(started).map_err(Failure::failed)?;
    Ok((service, registry))
}

fn print_start(
    output: Output,
    name: &str,
    service: &Service,
    config: &ControllerConfig,
) -> Result<(), Failure> {
    let socket = config.service.socket.as_deref();
    output.object(&ControllerOutput::Started {
        name,
        address: service.address().map(|address| address.to_string()),
        socket,
        metrics: service.metrics_address().map(|address| address.to_string()),
    })?;
    if let Some(address) = service.address() {
        output.line(format_args!("controller {name}: https://{address}"))?;
    }
    if let Some(socket) = socket {
        output.line(format_args!("gateways on this machine: {}", socket.display()))?;
    }
    match service.metrics_address() {
        Some(metrics) => output.line(format_args!("metrics: http://{metrics}/metrics")),
        None => Ok(()),
    }
}

/// Handles signals until a signal stops the controller.
fn serve(
    signals: &Signals,
    service: &Service,
    files: Option<&TlsFiles>,
    output: Output,
) -> Result<(), Failure> {
    loop {
        match signals.wait(Duration::from_secs(1))? {
            None | Some(SignalRequest::PrintCounters) => {}
            Some(SignalRequest::Stop) => return Ok(()),
            Some(SignalRequest::Reload) => {
                service_manager::notify(&service_manager::reloading());
                if let Some(files) = files {
                    reload(service, files, output)?;
                }
                service_manager::notify(service_manager::READY);
            }
        }
    }
}

/// Raises the limit of open files to its maximum: each connection needs an open file.
fn raise_open_file_limit() {
    let result = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard_limit)| setrlimit(Resource::RLIMIT_NOFILE, hard_limit, hard_limit));
    if let Err(error) = result {
        tracing::warn!(%error, "raising the limit of open files failed; the present limit stays in force");
    }
}

fn reload(service: &Service, files: &TlsFiles, output: Output) -> Result<(), Failure> {
    let result = files
        .read_server()
        .and_then(|identity| service.replace_tls(&identity).map_err(Failure::failed));
    match result {
        Ok(()) => {
            output.object(&ControllerOutput::Reloaded)?;
            output.line("certificates reloaded")
        }
        Err(failure) => {
            tracing::error!(error = %failure, "reloading certificates failed; the previous certificates stay in force");
            output.object(&ControllerOutput::ReloadRefused {
                error: failure.to_string(),
            })?;
            output.line(format_args!(
                "reloading certificates failed; the previous certificates stay in force: {failure}"
            ))
        }
    }
}

fn controller_name(config: &ControllerConfig) -> String {
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
