//! `linewarden-switch run`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::signals::Signals;
use linewarden_files::read_bounded;
use linewarden_switch::clock::Clock;
use linewarden_switch::ports::{PortError, PortSet, PortSpec, packet, pcap, xdp};
use linewarden_switch::serve::{ServeError, WorkerCounters, serve};
use linewarden_switch::switch::{DROP_PORT, Settings, Slot, Switch};
use linewarden_switch::tables::HashSeed;
use serde::Serialize;

use crate::PROGRAM_BYTES_MAX;
use crate::attest::AttestArgs;
use crate::control::{self, ControlArgs};
use crate::simple_switch::SimpleSwitchArgs;

/// Interval at which stop requests are checked.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// How packets are read from interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Io {
    /// Packet sockets with rings (AF_PACKET): any interface
    Packet,
    /// AF_XDP: faster; the interface must have one receive queue and no other XDP program
    Xdp,
}

/// Arguments of `linewarden-switch run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Compiled program (path)
    #[arg(
        value_name = "PROGRAM.json",
        required_unless_present = "no_p4",
        conflicts_with = "no_p4"
    )]
    program: Option<PathBuf>,
    /// Port number and interface; repeatable (PORT@INTERFACE)
    #[arg(short = 'i', long = "interface", value_name = "PORT@INTERFACE")]
    interfaces: Vec<PortSpec>,
    /// Use capture files instead of interfaces: read INTERFACE_in.pcap after this delay and write
    /// INTERFACE_out.pcap (integer, seconds)
    #[arg(long, value_name = "SECONDS")]
    use_files: Option<u64>,
    /// How packets are read from interfaces
    #[arg(long, value_name = "HOW", default_value = "packet")]
    io: Io,
    /// Egress port number that drops a packet (integer)
    #[arg(long, value_name = "PORT", default_value_t = DROP_PORT)]
    drop_port: u32,
    /// Number of priority queues of a port; packets whose priority is this number or higher are dropped (integer)
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    priority_queues: u64,
    #[command(flatten)]
    simple_switch: SimpleSwitchArgs,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    attest: AttestArgs,
}

/// Counters of a port.
#[derive(Serialize)]
struct PortReport {
    port: u16,
    interface: String,
    received: u64,
    sent: u64,
}

/// Counters of the switch.
#[derive(Serialize)]
struct Report {
    ports: Vec<PortReport>,
    /// Number of packets that the program dropped.
    dropped: u64,
    /// Number of packets that exceeded the step, pass or copy limit.
    circles: u64,
    /// Number of packets with a failed assertion.
    assertions: u64,
    /// Number of packets that were dropped because a queue was full or no queue had their priority.
    queue_full: u64,
    /// Number of digests that the program emitted.
    digests: u64,
    /// Number of packet-ins, digests and notifications that the server did not accept in time.
    events_lost: u64,
    /// Number of packets that were dropped because the program forged evidence in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    forged: Option<u64>,
}

/// Runs the switch until a signal stops it.
pub fn run(args: &RunArgs, output: Output) -> Result<(), Failure> {
    args.simple_switch.check()?;
    let signals = Signals::for_stop()?;
    let settings = Settings {
        drop_port: args.drop_port,
        priority_queues: args.priority_queues,
    };
    let program = args.program.as_deref().map(read_program).transpose()?;
    let mut ports = open_ports(args)?;
    let (slot, clock) = (Slot::default(), Clock::start());
    let server = if args.control.is_requested() || args.attest.is_requested() {
        let switch_settings = (&slot, settings, clock);
        Some(control::start(
            &args.control,
            &args.attest,
            program,
            switch_settings,
            &mut ports,
        )?)
    } else {
        if let Some((path, json)) = program {
            let switch = Switch::new(&json, settings, &HashSeed::random())
                .map_err(|error| input_failure(path, &error))?;
            slot.run(&switch);
        }
        None
    };
    print_start(args, output, server.as_ref())?;
    let (counters, stop) = (
        Arc::new(WorkerCounters::default()),
        Arc::new(AtomicBool::new(false)),
    );
    let (waker, mut worker) = (ports.waker(), slot.worker());
    let channel = server.as_ref().map(control::ControlServer::digest_channel);
    let thread = {
        let (counters, stop, channel) = (Arc::clone(&counters), Arc::clone(&stop), channel.clone());
        std::thread::spawn(move || {
            let mut digests = |digest| {
                if let Some(channel) = &channel {
                    channel.send_digest(digest);
                }
            };
            let result = serve(&mut worker, &mut ports, &counters, &mut digests, clock, &stop);
            (ports, result)
        })
    };
    let mut rescanned_at = Instant::now();
    while !thread.is_finished() {
        if let (Some(interval), Some(server)) = (args.attest.rescan_interval(), &server)
            && rescanned_at.elapsed() >= interval
        {
            server.rescan();
            rescanned_at = Instant::now();
        }
        let has_failed = server.as_ref().is_some_and(control::ControlServer::has_ended);
        if has_failed || signals.wait(STOP_CHECK_INTERVAL)?.is_some() {
            stop.store(true, Ordering::Relaxed);
            waker.wake();
        }
    }
    let control = server.as_ref().map(control::ControlServer::control);
    let stop_result = server.map_or(Ok(()), control::ControlServer::stop);
    let (mut ports, result) = thread
        .join()
        .map_err(|_| Failure::failed("switch worker thread panicked"))?;
    let events_lost = channel.map_or(0, |channel| channel.lost_events());
    let forged = control.and_then(|control| control.forged_packets());
    print_report(args, output, &mut ports, &counters, (events_lost, forged))?;
    result.map_err(|error: ServeError| Failure::failed(error))?;
    stop_result
}

fn input_failure(path: &Path, reason: &dyn std::fmt::Display) -> Failure {
    Failure::input(format_args!("{}: {reason}", path.display()))
}

fn read_program(path: &Path) -> Result<(&Path, Vec<u8>), Failure> {
    let json = read_bounded(path, PROGRAM_BYTES_MAX).map_err(|error| input_failure(path, &error))?;
    Ok((path, json))
}

/// Prints the program, its interfaces and the P4Runtime server.
fn print_start(
    args: &RunArgs,
    output: Output,
    server: Option<&control::ControlServer>,
) -> Result<(), Failure> {
    let interfaces: Vec<String> = args.interfaces.iter().map(ToString::to_string).collect();
    let interfaces = interfaces.join(", ");
    match &args.program {
        Some(program) => output.line(format_args!("running {} on {interfaces}", program.display()))?,
        None => output.line(format_args!("running without a program on {interfaces}"))?,
    }
    let Some(server) = server else {
        return Ok(());
    };
    let info = server.info();
    output.object(&info)?;
    output.line(format_args!(
        "P4Runtime on {}, {}, device ID {}",
        info.p4runtime,
        info.tls.label(),
        info.device_id
    ))
}

fn open_ports(args: &RunArgs) -> Result<PortSet, Failure> {
    if args.interfaces.is_empty() {
        return Err(Failure::input(
            "no port given: use -i PORT@INTERFACE once or more",
        ));
    }
    check_ports(args)?;
    let port_failure = |error: PortError| match &error {
        PortError::Kernel { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Failure::privilege(&error)
        }
        PortError::NoInterface { .. } => Failure::input(&error),
        _ => Failure::failed(&error),
    };
    let mut set = PortSet::new().map_err(port_failure)?;
    let opened = match args.use_files {
        Some(wait_s) => {
            let start = Instant::now() + Duration::from_secs(wait_s);
            pcap::open(std::path::Path::new("."), &args.interfaces, start).map_err(port_failure)?
        }
        None => {
            let mut opened = Vec::new();
            for spec in &args.interfaces {
                let port = match args.io {
                    Io::Packet => packet::open(&spec.interface, &packet::PacketOptions::default()),
                    Io::Xdp => xdp::open(&spec.interface, &xdp::XdpOptions::default()),
                };
                opened.push((spec.port, port.map_err(port_failure)?));
            }
            opened
        }
    };
    for (id, port) in opened {
        set.add(id, port).map_err(Failure::input)?;
    }
    Ok(set)
}

/// Checks that each port number and each interface occurs only once, and that no interface has the number of the CPU
/// port. Warns about an interface that has the number of the drop port.
fn check_ports(args: &RunArgs) -> Result<(), Failure> {
    let mut seen: Vec<&PortSpec> = Vec::new();
    for spec in &args.interfaces {
        let (port, interface) = (spec.port, &spec.interface);
        if args.control.cpu_port() == Some(port) {
            return Err(Failure::input(format_args!(
                "-i {spec}: port {port} is the port of --cpu-port: use another port number"
            )));
        }
        if u32::from(port.get()) == args.drop_port {
            tracing::warn!(port = %port, action = "use another port number with -i or --drop-port", "packets to this port are dropped: -i and --drop-port name the same port");
        }
        if let Some(conflicting) = seen
            .iter()
            .find(|conflicting| conflicting.port == port || conflicting.interface == *interface)
        {
            return Err(Failure::input(format_args!(
                "-i {spec}: conflicts with -i {conflicting}: use each port and each interface once"
            )));
        }
        seen.push(spec);
    }
    Ok(())
}

fn print_report(
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
            let port_counters = ports.counters(port)?;
            Some(PortReport {
                port: port.get(),
                interface: interface.to_owned(),
                received: port_counters.rx.frames,
                sent: port_counters.tx.frames,
            })
        })
        .collect();
    let report = Report {
        ports,
        dropped: counters.dropped.load(Ordering::Relaxed),
        circles: counters.limit_exceeded.load(Ordering::Relaxed),
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
            "dropped because the program forged evidence: {forged}"
        )),
        None => Ok(()),
    }
}
