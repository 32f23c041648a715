//! `linewarden switch run`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use linewarden_files::read_bounded;
use linewarden_switch::clock::Clock;
use linewarden_switch::ports::{PortError, PortSet, PortSpec, packet, pcap, xdp};
use linewarden_switch::serve::{ServeError, WorkerCounters, serve};
use linewarden_switch::switch::{DROP_PORT, Settings, Slot, Switch};
use linewarden_switch::tables::HashSeed;
use serde::Serialize;

use super::PROGRAM_BYTES_MAX;
use super::attest::AttestArgs;
use super::control::{self, ControlArgs};
use super::simple_switch::SimpleSwitchArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::Signals;

/// How often a request to stop is looked for.
const STOP_WAIT: Duration = Duration::from_millis(200);

/// How to reach interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Io {
    /// Packet sockets with rings (AF_PACKET): every interface
    Packet,
    /// AF_XDP: faster; one receive queue, and no other XDP program on the interface
    Xdp,
}

/// A program and its ports.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The compiled program
    #[arg(
        value_name = "PROGRAM.json",
        required_unless_present = "no_p4",
        conflicts_with = "no_p4"
    )]
    program: Option<PathBuf>,
    /// A port: its number in the program, and its interface; may be repeated
    #[arg(short = 'i', long = "interface", value_name = "PORT@INTERFACE")]
    interfaces: Vec<PortSpec>,
    /// Read INTERFACE_in.pcap after so many seconds and write INTERFACE_out.pcap, in place of interfaces
    #[arg(long, value_name = "SECONDS")]
    use_files: Option<u64>,
    /// How to reach interfaces
    #[arg(long, value_name = "HOW", default_value = "packet")]
    io: Io,
    /// The port that means "drop"
    #[arg(long, value_name = "PORT", default_value_t = DROP_PORT)]
    drop_port: u32,
    /// Priority queues of a port; packets of a higher priority are dropped
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    priority_queues: u64,
    #[command(flatten)]
    simple_switch: SimpleSwitchArgs,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    attest: AttestArgs,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// What a port has carried.
#[derive(Serialize)]
struct PortReport {
    port: u16,
    interface: String,
    received: u64,
    sent: u64,
}

/// What the switch has done.
#[derive(Serialize)]
struct Report {
    ports: Vec<PortReport>,
    dropped: u64,
    circles: u64,
    assertions: u64,
    queue_full: u64,
    digests: u64,
    /// Packet-ins, digests and notifications that the server did not take in time.
    events_lost: u64,
    /// Packets in which the program had made what looks like evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    forged: Option<u64>,
}

/// Does it.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    args.simple_switch.check()?;
    let output = Output::new(args.json);
    let signals = Signals::to_stop()?;
    let settings = Settings {
        drop_port: args.drop_port,
        queues: args.priority_queues,
    };
    let program = args.program.as_deref().map(read).transpose()?;
    let mut ports = open(args)?;
    let (slot, clock) = (Slot::default(), Clock::start());
    let controlled = if args.control.is_asked_for() || args.attest.is_asked_for() {
        let run = (&slot, settings, clock);
        Some(control::start(
            &args.control,
            &args.attest,
            program,
            run,
            &mut ports,
        )?)
    } else {
        if let Some((path, json)) = program {
            let switch =
                Switch::new(&json, settings, &HashSeed::random()).map_err(|error| wrong(path, &error))?;
            slot.run(&switch);
        }
        None
    };
    tell(args, output, controlled.as_ref())?;
    let (counters, stop) = (
        Arc::new(WorkerCounters::default()),
        Arc::new(AtomicBool::new(false)),
    );
    let (waker, mut worker) = (ports.waker(), slot.worker());
    let wire = controlled.as_ref().map(control::Controlled::wire);
    let thread = {
        let (counters, stop, wire) = (Arc::clone(&counters), Arc::clone(&stop), wire.clone());
        std::thread::spawn(move || {
            let mut digests = |told| {
                if let Some(wire) = &wire {
                    wire.digest(told);
                }
            };
            let ended = serve(&mut worker, &mut ports, &counters, &mut digests, clock, &stop);
            (ports, ended)
        })
    };
    let mut rescanned = Instant::now();
    while !thread.is_finished() {
        if let (Some(every), Some(controlled)) = (args.attest.rescan_every(), &controlled)
            && rescanned.elapsed() >= every
        {
            controlled.rescan();
            rescanned = Instant::now();
        }
        let broken = controlled.as_ref().is_some_and(control::Controlled::has_ended);
        if broken || signals.wait(STOP_WAIT)?.is_some() {
            stop.store(true, Ordering::Relaxed);
            waker.wake();
        }
    }
    let control = controlled.as_ref().map(control::Controlled::control);
    let stopped = controlled.map_or(Ok(()), control::Controlled::stop);
    let (mut ports, ended) = thread
        .join()
        .map_err(|_| Failure::failed("the worker has crashed"))?;
    let events_lost = wire.map_or(0, |wire| wire.lost());
    let forged = control.and_then(|control| control.forged());
    report(args, output, &mut ports, &counters, (events_lost, forged))?;
    ended.map_err(|error: ServeError| Failure::failed(error))?;
    stopped
}

fn wrong(path: &Path, what: &dyn std::fmt::Display) -> Failure {
    Failure::input(format_args!("{}: {what}", path.display()))
}

fn read(path: &Path) -> Result<(&Path, Vec<u8>), Failure> {
    let json = read_bounded(path, PROGRAM_BYTES_MAX).map_err(|error| wrong(path, &error))?;
    Ok((path, json))
}

/// Says what runs where.
fn tell(args: &RunArgs, output: Output, controlled: Option<&control::Controlled>) -> Result<(), Failure> {
    let interfaces: Vec<String> = args.interfaces.iter().map(ToString::to_string).collect();
    let interfaces = interfaces.join(", ");
    match &args.program {
        Some(program) => output.line(format_args!("{} runs on {interfaces}", program.display()))?,
        None => output.line(format_args!("no program runs yet on {interfaces}"))?,
    }
    let Some(controlled) = controlled else {
        return Ok(());
    };
    let serving = controlled.serving();
    output.object(&serving)?;
    output.line(format_args!(
        "P4Runtime on {}, {}, device {}",
        serving.p4runtime,
        serving.tls.words(),
        serving.device_id
    ))
}

fn open(args: &RunArgs) -> Result<PortSet, Failure> {
    if args.interfaces.is_empty() {
        return Err(Failure::input("no port: name one or more with -i PORT@INTERFACE"));
    }
    check_ports(args)?;
    let failed = |error: PortError| match &error {
        PortError::Kernel { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Failure::privilege(&error)
        }
        PortError::NoInterface { .. } => Failure::input(&error),
        _ => Failure::failed(&error),
    };
    let mut set = PortSet::new().map_err(failed)?;
    let opened = match args.use_files {
        Some(wait_s) => {
            let start = Instant::now() + Duration::from_secs(wait_s);
            pcap::open(std::path::Path::new("."), &args.interfaces, start).map_err(failed)?
        }
        None => {
            let mut opened = Vec::new();
            for spec in &args.interfaces {
                let port = match args.io {
                    Io::Packet => packet::open(&spec.interface, &packet::PacketOptions::default()),
                    Io::Xdp => xdp::open(&spec.interface, &xdp::XdpOptions::default()),
                };
                opened.push((spec.port, port.map_err(failed)?));
            }
            opened
        }
    };
    for (id, port) in opened {
        set.add(id, port).map_err(Failure::input)?;
    }
    Ok(set)
}

/// Each number and each interface once.
fn check_ports(args: &RunArgs) -> Result<(), Failure> {
    let mut seen: Vec<&PortSpec> = Vec::new();
    for spec in &args.interfaces {
        let (port, interface) = (spec.port, &spec.interface);
        if args.control.cpu_port() == Some(port) {
            return Err(Failure::input(format_args!(
                "-i {spec}: port {port} is --cpu-port"
            )));
        }
        if u32::from(port.get()) == args.drop_port {
            tracing::warn!("-i {spec}: what the program sends to port {port} is dropped (--drop-port)");
        }
        if let Some(other) = seen
            .iter()
            .find(|other| other.port == port || other.interface == *interface)
        {
            return Err(Failure::input(format_args!(
                "-i {spec}: there is -i {other} already; each port and each interface once"
            )));
        }
        seen.push(spec);
    }
    Ok(())
}

fn report(
    args: &RunArgs,
    output: Output,
    ports: &mut PortSet,
    counters: &WorkerCounters,
    (events_lost, forged): (u64, Option<u64>),
) -> Result<(), Failure> {
    let interfaces = args
        .interfaces
        .iter()
        .map(|spec| (spec.port, spec.interface.as_str()));
    let controllers = args.control.cpu_port().map(|port| (port, "controllers"));
    let ports: Vec<PortReport> = interfaces
        .chain(controllers)
        .filter_map(|(port, interface)| {
            let counted = ports.counters(port)?;
            Some(PortReport {
                port: port.get(),
                interface: interface.to_owned(),
                received: counted.rx.frames,
                sent: counted.tx.frames,
            })
        })
        .collect();
    let report = Report {
        ports,
        dropped: counters.dropped.load(Ordering::Relaxed),
        circles: counters.circles.load(Ordering::Relaxed),
        assertions: counters.assertions.load(Ordering::Relaxed),
        queue_full: counters.queue_full.load(Ordering::Relaxed),
        digests: counters.digests.load(Ordering::Relaxed),
        events_lost,
        forged,
    };
    output.object(&report)?;
    let rows = report.ports.iter().map(|port| {
        vec![
            port.port.to_string(),
            port.interface.clone(),
            port.received.to_string(),
            port.sent.to_string(),
        ]
    });
    output.table(
        &["port", "interface", "received", "sent"],
        &[0, 2, 3],
        rows.collect(),
    )?;
    output.line(format_args!("dropped by the program: {}", report.dropped))?;
    match forged {
        Some(forged) => output.line(format_args!(
            "dropped as evidence that the program forged: {forged}"
        )),
        None => Ok(()),
    }
}
