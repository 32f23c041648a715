//! `linewarden serve`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use linewarden_controller::Controller;
use linewarden_dataplane::Counters;
use linewarden_gateway::config::{Backend, Gate, GatewayConfig, Resolved};
use linewarden_gateway::{Desk, Gateway, LinkState, Status, Stopped, plane};
use serde::Serialize;

use crate::config_file::ConfigFile;
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::StopSignal;
use crate::{cmd, log, registry};

/// How to run.
#[derive(Args, Debug)]
#[command(after_help = "\
Checks the whole configuration before anything is touched, attaches the data plane, takes up the devices that it held before, and prints its
state when it changes. Ends on SIGINT and SIGTERM: handshakes under way may end, the registry is told which rows were
used, and the data plane is detached, but for a gate that is not off, which stays shut however the gateway ends (`when_gone`). Ends with exit code 1 when the data plane ends by itself, so that a service manager starts
it again.

Examples:
  linewarden config example > gateway.toml
  linewarden serve --config gateway.toml --check
  linewarden serve --config gateway.toml
  linewarden serve --config gateway.toml --release")]
pub struct ServeArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration, the key and the registry, and start nothing
    #[arg(long)]
    check: bool,
    /// Let everything pass again where a gateway of this configuration, which has ended, keeps its gate shut
    #[arg(long, conflicts_with = "check")]
    release: bool,
    /// Seconds between two lines of state, if it has changed
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    every: u64,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// A line for machines.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Told<'a> {
    /// The configuration is in order.
    Checked,
    /// Gates that were kept shut are gone.
    Released { interfaces: usize },
    /// The data plane is attached.
    Started {
        gateway_id: u32,
        dataplane: &'a str,
        gate: &'a str,
        addresses: Vec<std::net::IpAddr>,
        port: u16,
    },
    /// How things stand.
    Status {
        #[serde(flatten)]
        status: &'a Status,
        counters: serde_json::Value,
    },
    /// The end.
    Stopped {
        settled: bool,
        counters: serde_json::Value,
    },
}

/// Runs until it is told to stop.
pub fn run(args: &ServeArgs, log_flag: Option<&str>) -> Result<(), Failure> {
    let mut file = ConfigFile::<GatewayConfig>::read(&args.config)?;
    log::start(log_flag, file.value.log.level.as_deref(), "info")?;
    let directory = file.directory();
    file.value.resolve_paths(&directory);
    let config = &file.value;
    let resolved = config
        .resolve([cmd::random_u64()?, cmd::random_u64()?], cmd::random_u64()?)
        .map_err(|error| file.field(&error.path, &error.problem))?;
    warn_of_classic(config);
    if args.release {
        return release(Output::new(args.json), config, &resolved);
    }
    // Before the first thread, so that only this one takes the signals.
    let stop = StopSignal::take_over()?;
    let output = Output::new(args.json);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let opened = runtime.block_on(registry::open(&config.registry))?;
    if args.check {
        runtime.block_on(opened.close());
        output.object(&Told::Checked)?;
        return output.line(format_args!("{}: in order", args.config.display()));
    }
    let plane = plane::start(&config.gateway, &resolved)?;
    tell_start(output, config, &resolved)?;
    let gateway = Gateway::start(
        plane,
        Controller::new(opened.clone(), resolved.policy),
        resolved.config.gateway_id,
        resolved.settings,
    )?;
    let desk = open_desk(
        &gateway,
        Controller::new(opened.clone(), resolved.policy),
        &resolved,
    )?;
    let told = tell_state(output, &gateway, &stop, Duration::from_secs(args.every));
    output.line("stopping")?;
    if let Some(desk) = desk {
        tracing::info!(counts = ?desk.close(), "tickets");
    }
    let stopped = gateway.stop()?;
    runtime.block_on(opened.close());
    told?;
    tell_end(output, &stopped)
}

/// Where devices' tickets are taken, unless the configuration wants none taken.
fn open_desk(
    gateway: &Gateway,
    controller: Controller,
    resolved: &Resolved,
) -> Result<Option<Desk>, Failure> {
    let Some(port) = resolved.desk_port else {
        return Ok(None);
    };
    let config = &resolved.config;
    let plane = gateway.plane_handle();
    Ok(Some(Desk::open(
        &config.local,
        port,
        plane,
        controller,
        config.gateway_id,
    )?))
}

fn release(output: Output, config: &GatewayConfig, resolved: &Resolved) -> Result<(), Failure> {
    let interfaces = plane::release(&config.gateway, resolved)?;
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

fn tell_start(output: Output, config: &GatewayConfig, resolved: &Resolved) -> Result<(), Failure> {
    let section = &config.gateway;
    let dataplane = match section.dataplane {
        Backend::Xdp => "xdp",
        Backend::Host => "host",
    };
    let gate = match section.gate {
        Gate::Off => "off",
        Gate::Open => "open",
        Gate::Sealed => "sealed",
    };
    let addresses = resolved.config.local.clone();
    let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    output.object(&Told::Started {
        gateway_id: section.id,
        dataplane,
        gate,
        addresses,
        port: section.port,
    })?;
    let interfaces = match section.interfaces.as_slice() {
        [] => String::new(),
        names => format!(" on {}", names.join(", ")),
    };
    output.line(format_args!(
        "gateway {}: {dataplane}{interfaces}, {} port {}, gate {gate}",
        section.id,
        shown.join(", "),
        section.port
    ))
}

/// Prints the state whenever it has changed, until it is time to stop.
fn tell_state(output: Output, gateway: &Gateway, stop: &StopSignal, every: Duration) -> Result<(), Failure> {
    let mut last: Option<(Status, Counters)> = None;
    let mut next = Instant::now();
    loop {
        let status = gateway.status();
        if let Some(failure) = status.plane_failure {
            return Err(Failure::failed(format!("the data plane has ended: {failure}")));
        }
        if status.replaced {
            return Err(Failure::failed(
                "another process has registered as this gateway; give each its own `id`".to_owned(),
            ));
        }
        // The end of loading and the registry's coming and going are told at once.
        let urgent = last
            .as_ref()
            .is_none_or(|(before, _)| before.loaded != status.loaded || before.link != status.link);
        if urgent && status.loaded || Instant::now() >= next {
            let counters = gateway.counters()?;
            if last
                .as_ref()
                .is_none_or(|before| before.0 != status || before.1 != counters)
            {
                // A full disk under the output is no reason to stop serving.
                if let Err(failure) = tell_status(output, &status, &counters) {
                    tracing::warn!(%failure, "cannot print the state");
                }
                last = Some((status, counters));
            }
            next = Instant::now() + every;
        }
        if stop.wait(Duration::from_millis(100))? {
            return Ok(());
        }
    }
}

fn tell_status(output: Output, status: &Status, counters: &Counters) -> Result<(), Failure> {
    output.object(&Told::Status {
        status,
        counters: as_json(counters),
    })?;
    output.line(describe(status))
}

fn describe(status: &Status) -> String {
    let mut text = format!(
        "devices {}, sessions opened {}",
        status.devices, status.sessions_opened
    );
    let notes = [
        ("revoked", status.revoked),
        ("on their last rows", status.exhausted),
        ("admitted", status.admitted),
        ("evicted", status.evicted),
        ("without room", status.no_room),
        ("damaged", status.damaged),
        ("wrong tags", status.wrong_tags),
    ];
    for (what, count) in notes.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {what} {count}"));
    }
    if !status.loaded {
        let (done, all) = status.resumed;
        text.push_str(&format!(", loading {done} of {all}"));
    }
    if status.link != LinkState::Reachable {
        text.push_str(", controller away");
    }
    text
}

fn tell_end(output: Output, stopped: &Stopped) -> Result<(), Failure> {
    output.object(&Told::Stopped {
        settled: stopped.settled,
        counters: as_json(&stopped.counters),
    })?;
    let row = |(verdict, count): (linewarden_protocol::verdict::Verdict, u64)| {
        vec![
            verdict.name().to_owned(),
            count.to_string(),
            verdict.description().trim().to_owned(),
        ]
    };
    let rows = stopped.counters.nonzero().map(row).collect();
    output.table(&["verdict", "packets", ""], &[1], rows)?;
    output.line("stopped")
}

fn as_json(counters: &Counters) -> serde_json::Value {
    counters
        .nonzero()
        .map(|(verdict, count)| (verdict.name().to_owned(), count.into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
