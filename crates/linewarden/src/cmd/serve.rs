//! `linewarden serve`.

mod evidence;
mod reload;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use linewarden_controller::Controller;
use linewarden_dataplane::Counters;
use linewarden_gateway::audit::{AuditLog, Happening};
use linewarden_gateway::config::{Backend, Gate, GatewayConfig, Resolved};
use linewarden_gateway::{
    About, AttestStatus, ControllerLink, Desk, DeskCounts, DeskSockets, Gateway, LinkState, P4draStatus,
    Status, Stopped, TrustState, plane,
};
use serde::Serialize;

use self::reload::Reloader;
use crate::config_file::{ConfigFile, Problem};
use crate::failure::Failure;
use crate::output::Output;
use crate::privileges::Kept;
use crate::signals::{Signals, Told as Signal};
use crate::{cmd, gateway_config, log, registry, service_manager};

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

/// A line for machines.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Told<'a> {
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
    /// Another configuration is in force.
    Reloaded,
    /// Another configuration was refused; the old one stays.
    ReloadRefused { errors: &'a [String] },
    /// The end.
    Stopped {
        settled: bool,
        goes_on: bool,
        counters: serde_json::Value,
    },
}

/// Runs until it is told to stop.
pub fn run(args: &ServeArgs, log_flag: Option<&str>) -> Result<(), Failure> {
    let file = gateway_config::read(&args.config)?;
    let config = &file.value;
    log::start(log_flag, config.log.level.as_deref(), LOG_LEVEL)?;
    let resolved = config
        .resolve([cmd::random_u64()?, cmd::random_u64()?], cmd::random_u64()?)
        .map_err(|errors| Failure::all(&gateway_config::places(&file, &errors)))?;
    let output = Output::new(args.json);
    if args.release {
        return release(output, config, &resolved);
    }
    warn_of_classic(config);
    // Before the first thread, so that only this one takes the signals.
    let signals = Signals::of_gateway()?;
    let kept = Kept::by(config);
    let runtime = kept.confine(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(confiner(&kept))
            .enable_all()
            .build()
    })??;
    examine(&runtime.block_on(gateway_config::examine(&file)))?;
    let audit = kept.confine(|| open_audit(&file))?;
    let audit = audit.map_err(|problem| Failure::all(&[problem]))?;
    let signer = gateway_config::signer(&file).map_err(|problem| Failure::all(&[problem]))?;
    let trust = gateway_config::trust(&file).map_err(|problem| Failure::all(&[problem]))?;
    let packet_key = gateway_config::packet_key(&file).map_err(|problem| Failure::all(&[problem]))?;
    // After all that can be wrong: a start that fails is no start.
    let attester = evidence::attester(&file).map_err(|problem| Failure::all(&[problem]))?;
    let client = gateway_config::controller(&file).map_err(|problem| Failure::all(&[problem]))?;
    let opened = match &config.registry {
        Some(section) => Some(kept.confine(|| runtime.block_on(registry::open(section)))??),
        None => None,
    };
    // Before the interface is touched: a port that is taken refuses the start.
    let desk = bind_desk(&resolved)?;
    let plane = match config.gateway.dataplane {
        // It has threads of its own, and needs no privilege.
        Backend::P4 => kept.confine(|| plane::start(&config.gateway, &resolved))??,
        Backend::Xdp | Backend::Host => plane::start(&config.gateway, &resolved)?,
    };
    kept.enforce()?;
    tell_start(output, config, &resolved)?;
    let in_process = opened.as_ref().map(|registry| {
        let controller = Controller::new(registry.clone(), resolved.policy);
        let controller = match signer {
            Some(signer) => controller.signing(signer),
            None => controller,
        };
        match trust {
            Some(policy) => controller.trusting(resolved.config.gateway_id, policy),
            None => controller,
        }
    });
    let controller = match (in_process, client) {
        (Some(controller), _) => ControllerLink::from(controller),
        (None, Some(client)) => ControllerLink::Remote(
            client,
            About {
                dataplane: dataplane_name(config).to_owned(),
                slots: config.gateway.slots().into(),
            },
        ),
        // The configuration was checked.
        (None, None) => return Err(Failure::input("no [registry] and no [controller]")),
    };
    let gateway = Gateway::start_with(
        plane,
        controller.clone(),
        resolved.config.gateway_id,
        resolved.settings,
        evidence::source(&file, &resolved, attester.as_ref()),
    )?;
    let in_packets = evidence::in_packets(&file, &gateway, attester.as_ref(), &packet_key)?;
    let evidence_desk =
        evidence::desk(&file, &gateway, attester).map_err(|problem| Failure::all(&[problem]))?;
    gateway.set_audit(audit)?;
    gateway.record(started(config, &resolved));
    let plane = gateway.plane_handle();
    let open = |sockets| Desk::open(sockets, plane, controller, resolved.config.gateway_id);
    let desk = desk.map(open).transpose()?;
    service_manager::tell(service_manager::READY);
    let mut watch = Watch {
        output,
        gateway: &gateway,
        reloader: Reloader::new(file, in_packets),
        every: Duration::from_secs(args.every),
        last: None,
        bar: None,
    };
    let told = watch.run(&signals);
    service_manager::tell(service_manager::STOPPING);
    output.line("stopping")?;
    if let Some(desk) = desk {
        let DeskCounts {
            answered,
            strange,
            limited,
            silent,
            failed,
        } = desk.close();
        tracing::info!(answered, strange, limited, silent, failed, "tickets");
    }
    // The gateway first: who asks for evidence slowly keeps nothing from being settled.
    let stopped = gateway.stop();
    drop(evidence_desk);
    let stopped = stopped?;
    if let Some(opened) = opened {
        runtime.block_on(opened.close());
    }
    told?;
    tell_end(output, &stopped)
}

/// Threads of the runtime that are started later, too, by whichever thread.
fn confiner(kept: &Kept) -> impl Fn() + Send + Sync + 'static {
    let kept = kept.clone();
    move || {
        if let Err(failure) = kept.enforce() {
            tracing::error!(%failure, "a thread keeps what it may");
        }
    }
}

/// Warnings go to the log, errors end the start.
fn examine(problems: &[Problem]) -> Result<(), Failure> {
    for problem in problems.iter().filter(|problem| problem.exit_code == 0) {
        tracing::warn!("{problem}");
    }
    match problems.iter().any(|problem| problem.exit_code != 0) {
        true => Err(Failure::all(problems)),
        false => Ok(()),
    }
}

/// The audit record's file and its rate, if one is kept.
fn open_audit(file: &ConfigFile<GatewayConfig>) -> Result<Option<(AuditLog, u32)>, Problem> {
    let Some(section) = &file.value.audit else {
        return Ok(None);
    };
    let gateway = linewarden_protocol::ids::GatewayId(file.value.gateway.id);
    match AuditLog::open(gateway, &section.options()) {
        Ok(log) => Ok(Some((log, section.per_s))),
        Err(error) => {
            let problem = format!("{}: cannot be opened: {error}", section.path.display());
            Err(file.problem(&["audit", "path"], &problem).with_code(1))
        }
    }
}

fn started(config: &GatewayConfig, resolved: &Resolved) -> Happening {
    let names = config.gateway.interfaces.iter().cloned();
    Happening::Started {
        program: env!("CARGO_PKG_VERSION"),
        dataplane: dataplane_name(config).to_owned(),
        gate: gate_name(config).to_owned(),
        interfaces: names.zip(resolved.interfaces.iter().copied()).collect(),
    }
}

/// Where devices' tickets are taken, unless the configuration wants none taken.
fn bind_desk(resolved: &Resolved) -> Result<Option<DeskSockets>, Failure> {
    let bind = |port| DeskSockets::bind(&resolved.config.local, port);
    Ok(resolved.desk_port.map(bind).transpose()?)
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
    let (dataplane, gate) = (dataplane_name(config), gate_name(config));
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

fn dataplane_name(config: &GatewayConfig) -> &'static str {
    match config.gateway.dataplane {
        Backend::Xdp => "xdp",
        Backend::Host => "host",
        Backend::P4 => "p4",
    }
}

fn gate_name(config: &GatewayConfig) -> &'static str {
    match config.gateway.gate {
        Gate::Off => "off",
        Gate::Open => "open",
        Gate::Sealed => "sealed",
    }
}

/// A gateway at work, and what has been told of it.
struct Watch<'a> {
    output: Output,
    gateway: &'a Gateway,
    reloader: Reloader,
    every: Duration,
    last: Option<(Status, Counters)>,
    /// Of what is loaded.
    bar: Option<ProgressBar>,
}

impl Watch<'_> {
    /// Prints the state whenever it has changed, and does what it is told, until it is time to stop.
    fn run(&mut self, signals: &Signals) -> Result<(), Failure> {
        let mut next = Instant::now();
        loop {
            let status = self.gateway.status();
            if let Some(failure) = status.plane_failure {
                return Err(Failure::failed(format!("the data plane has ended: {failure}")));
            }
            if status.replaced {
                return Err(Failure::failed(
                    "another process has registered as this gateway; give each its own `id`".to_owned(),
                ));
            }
            self.show_loading(&status);
            if self.is_urgent(&status) || Instant::now() >= next {
                self.tell_changes(status)?;
                next = Instant::now() + self.every;
            }
            match signals.wait(Duration::from_millis(100))? {
                None => {}
                Some(Signal::Stop) => return Ok(()),
                Some(Signal::Count) => self.tell_all()?,
                Some(Signal::Reload) => self.reload(),
            }
        }
    }

    /// The end of loading, the registry's coming and going, and whether anything is answered, are told at once.
    fn is_urgent(&self, status: &Status) -> bool {
        (status.loaded || status.trust.is_some())
            && self.last.as_ref().is_none_or(|(before, _)| {
                before.loaded != status.loaded
                    || before.link != status.link
                    || before.lapsed != status.lapsed
                    || before.trust != status.trust
            })
    }

    fn show_loading(&mut self, status: &Status) {
        let (done, all) = status.resumed;
        if status.loaded {
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
        } else if all > 0 {
            let bar = self
                .bar
                .get_or_insert_with(|| self.output.progress(all, "loading"));
            bar.set_length(all);
            bar.set_position(done);
        }
    }

    fn tell_changes(&mut self, status: Status) -> Result<(), Failure> {
        let counters = self.gateway.counters()?;
        let is_new = self
            .last
            .as_ref()
            .is_none_or(|before| before.0 != status || before.1 != counters);
        if is_new {
            // A full disk under the output is no reason to stop serving.
            if let Err(failure) = tell_status(self.output, &status, &counters) {
                tracing::warn!(%failure, "cannot print the state");
            }
            self.last = Some((status, counters));
        }
        Ok(())
    }

    fn tell_all(&mut self) -> Result<(), Failure> {
        let (status, counters) = (self.gateway.status(), self.gateway.counters()?);
        let told =
            tell_status(self.output, &status, &counters).and_then(|()| tell_counters(self.output, &counters));
        if let Err(failure) = told {
            tracing::warn!(%failure, "cannot print the counters");
        }
        Ok(())
    }

    fn reload(&mut self) {
        service_manager::tell(&service_manager::reloading());
        let told = match self.reloader.reload(self.gateway) {
            Ok(()) => {
                tracing::info!("another configuration is in force");
                self.output.object(&Told::Reloaded)
            }
            Err(failure) => {
                let errors = failure.messages();
                for error in &errors {
                    tracing::error!("{}", crate::output::printable(error));
                }
                tracing::error!("the configuration was refused; the old one stays in force");
                let told = self.output.object(&Told::ReloadRefused { errors: &errors });
                self.gateway.refuse_change(errors);
                told
            }
        };
        if let Err(failure) = told {
            tracing::warn!(%failure, "cannot print what became of the configuration");
        }
        service_manager::tell(service_manager::READY);
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
        ("wrong proofs", status.wrong_proofs),
        ("closed for newer ones elsewhere", status.sessions_closed),
        ("reports refused", status.reports_refused),
        ("reports dropped", status.reports_dropped),
        ("turned away", status.visitors_turned_away),
        ("replays failed", status.replays_failed),
        ("reloads", status.reloads),
        ("reloads refused", status.reloads_refused),
        ("audit records lost", status.audit_lost),
        ("times not measured", status.unmeasured),
    ];
    for (what, count) in notes.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {what} {count}"));
    }
    text.push_str(&describe_attestation(&status.attest));
    if let Some(p4dra) = &status.p4dra {
        text.push_str(&describe_p4dra(p4dra));
    }
    if !status.loaded {
        let (done, all) = status.resumed;
        text.push_str(&format!(", loading {done} of {all}"));
    }
    if status.link != LinkState::Reachable {
        text.push_str(", controller away");
    }
    match &status.trust {
        None | Some(TrustState::Trusted) => {}
        Some(TrustState::Unproven) => text.push_str(", not shown yet what it runs: no rows"),
        Some(TrustState::Distrusted { why }) => {
            text.push_str(&format!(", NOT TRUSTED, no rows: {why}"));
        }
    }
    let states = [
        (status.replaced, ", REPLACED: answering nothing"),
        (
            status.lapsed && !status.replaced,
            ", LAPSED: too long without the controller, answering nothing",
        ),
        (status.events_failing, ", events cannot be read"),
        (status.audit_failing, ", audit record cannot be written"),
    ];
    for (_, state) in states.iter().filter(|(is_so, _)| *is_so) {
        text.push_str(state);
    }
    text
}

/// Nothing where nobody is to be attested.
fn describe_attestation(attest: &AttestStatus) -> String {
    if attest.not_attested > 0 {
        return format!(", NOT ATTESTED {}: no [attest] here", attest.not_attested);
    }
    if attest.provers == 0 && attest.rounds == 0 {
        return String::new();
    }
    let mut text = format!(
        ", to attest {}, rounds {}, the last {}",
        attest.provers, attest.rounds, attest.round
    );
    let notes = [
        ("quarantined", attest.quarantined),
        ("let in again", attest.readmitted + attest.reopened),
        ("CANNOT BE ASKED", attest.unreached),
        ("without room for their keys", attest.provers_refused),
        ("rounds lost", attest.rounds_lost),
    ];
    for (what, count) in notes.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {what} {count}"));
    }
    text
}

fn describe_p4dra(p4dra: &P4draStatus) -> String {
    let mut text = format!(
        ", p4dra-classic rounds {}, the last with {} of {} verified",
        p4dra.rounds, p4dra.verified, p4dra.provers
    );
    if p4dra.unsent > 0 {
        text.push_str(&format!(", rounds NOT SENT {}", p4dra.unsent));
    }
    text
}

fn tell_end(output: Output, stopped: &Stopped) -> Result<(), Failure> {
    output.object(&Told::Stopped {
        settled: stopped.settled,
        goes_on: stopped.goes_on,
        counters: as_json(&stopped.counters),
    })?;
    tell_counters(output, &stopped.counters)?;
    output.line("stopped")
}

fn tell_counters(output: Output, counters: &Counters) -> Result<(), Failure> {
    let row = |(verdict, count): (linewarden_protocol::verdict::Verdict, u64)| {
        vec![
            verdict.name().to_owned(),
            count.to_string(),
            verdict.description().trim().to_owned(),
        ]
    };
    let rows = counters.nonzero().map(row).collect();
    output.table(&["verdict", "packets", ""], &[1], rows)
}

fn as_json(counters: &Counters) -> serde_json::Value {
    counters
        .nonzero()
        .map(|(verdict, count)| (verdict.name().to_owned(), count.into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_state_tells_of_attestation_where_there_is_some() {
        let mut status = Status {
            devices: 3,
            loaded: true,
            ..Status::default()
        };
        assert_eq!(describe(&status), "devices 3, sessions opened 0");
        status.attest = AttestStatus {
            provers: 3,
            round: 17,
            rounds: 9,
            quarantined: 1,
            ..AttestStatus::default()
        };
        assert_eq!(
            describe(&status),
            "devices 3, sessions opened 0, to attest 3, rounds 9, the last 17, quarantined 1"
        );
        status.attest = AttestStatus {
            not_attested: 2,
            ..AttestStatus::default()
        };
        assert_eq!(
            describe(&status),
            "devices 3, sessions opened 0, NOT ATTESTED 2: no [attest] here"
        );
    }
}
