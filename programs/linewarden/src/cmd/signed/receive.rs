//! `linewarden signed receive`.

use linewarden_cli::failure::Failure;
use linewarden_cli::metrics_file::{MetricsFile, Page};
use linewarden_cli::output::Output;
use linewarden_cli::signals::{SignalRequest, Signals};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use linewarden_signatures::calibration::Samples;
use linewarden_signatures::message::TimeMs;
use linewarden_signatures::receive::{
    KEY_MEMORY_DEFAULT_BYTES, REPLAY_MEMORY_DEFAULT, Receiver, ReplayMemory, Signers, Window,
};
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::scheduler::{Config, LaneKind};
use linewarden_signatures::service::{Lanes, Report, Service};
use linewarden_signatures::store::{Revocations, read_public};
use linewarden_signatures::udp::{RECEIVE_BUFFER_BYTES, prioritize_receiving_thread};

use super::lanes::{self, Calibration, UseGpu};
use super::lines::{self, BACKLOG_LINES_DEFAULT};
use super::listener::Listener;
use super::outputs::Outputs;

/// Interval between metrics pages.
const METRICS_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of signers that are listed as no longer revoked.
const LISTED_SIGNERS_MAX: usize = 1000;

/// Arguments of `linewarden signed receive`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints each verified message as a line of JSON: signer, stamp, priority, payload. Refused messages are counted by reason and never \
printed. SIGHUP reloads the list of --revoked only, SIGUSR1 prints the counters, SIGINT and SIGTERM stop the receiver.

The list of revoked signers is a text file: the line `linewarden revoked 1`, a line with an ID for each signer (optionally a blank and \
a reason), and the line `end`. If a new list is incomplete, the previous list stays in force.

A slow reader does not delay verification: up to --backlog lines are queued, further lines are dropped and counted. At the end, queued \
lines are written for up to 2 s. Exit code 1 if a line was not delivered.

Examples:
  linewarden signed receive --listen 0.0.0.0:7447 --signers signers
  linewarden signed receive --listen 239.0.0.7:7447 --interface eth1 --signers truck7/signer.json
  linewarden signed receive --listen [::]:7447 --signers signers --out udp:127.0.0.1:9000
  linewarden signed receive --listen 0.0.0.0:7447 --signers signers --revoked revoked")]
// There are more than 15 fields because each is an option of the command.
pub struct ReceiveArgs {
    /// Address to listen on; a multicast group is joined (ADDRESS:PORT)
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Interface on which a multicast group is joined (name, default: chosen by the kernel)
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Public key of a signer, or directory of public keys, *.json; repeatable (path)
    #[arg(long, value_name = "PATH", required = true)]
    signers: Vec<PathBuf>,
    /// List of revoked signers (path)
    #[arg(long, value_name = "FILE")]
    revoked: Option<PathBuf>,
    /// Destination of verified messages: - for standard output, a file to append to, udp:ADDRESS:PORT or unix:PATH
    /// (one datagram each)
    #[arg(long, value_name = "WHERE", default_value = "-")]
    out: String,
    /// Maximum number of queued lines; further lines are dropped and counted (integer)
    #[arg(long, value_name = "LINES", default_value_t = BACKLOG_LINES_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    backlog: u32,
    /// Maximum age of a message's signature (integer, milliseconds)
    #[arg(long, value_name = "MS", default_value_t = Window::DEFAULT.age_ms_max)]
    age_ms_max: u32,
    /// Maximum time by which the time of a message may be in the future, for signers whose clock is fast (integer, milliseconds)
    #[arg(long, value_name = "MS", default_value_t = Window::DEFAULT.ahead_ms_max)]
    ahead_ms_max: u32,
    /// Refuse ECDSA P-256 signatures whose s is in the upper half of its range; signers of other systems may create them (flag)
    #[arg(long)]
    p256_low_s: bool,
    /// Number of messages that are remembered for replay protection; half of them are divided evenly among the signers (integer)
    #[arg(long, value_name = "COUNT", default_value_t = REPLAY_MEMORY_DEFAULT as u32, value_parser = clap::value_parser!(u32).range(1..))]
    remember: u32,
    /// Memory for precomputed values of all signers: hashes of RA message parts, multiples of ECDSA and Ed25519 keys
    /// (integer, MiB)
    #[arg(long, value_name = "MIB", default_value_t = (KEY_MEMORY_DEFAULT_BYTES >> 20) as u32)]
    key_memory: u32,
    /// Number of processors that verify (integer, default: all but one)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=60))]
    lanes: Option<u16>,
    /// Whether GPUs verify, in addition to processors
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = UseGpu::Auto)]
    gpu: UseGpu,
    /// Exit after this number of verified messages; messages of the last batch are also delivered (integer, default: unlimited)
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    /// File for counters in Prometheus text format, rewritten every 15 s (path)
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
}

/// Receives messages, and prints the counters at the end.
pub fn run(args: &ReceiveArgs, output: Output) -> Result<(), Failure> {
    let signals = Signals::for_service()?;
    let mut listener = Listener::open(args.listen, args.interface.as_deref())?;
    let mut outputs = Outputs::open(&args.out, args.backlog, output)?;
    let receiver = build_receiver(args)?;
    let (signers, revoked) = (receiver.signers().count(), receiver.revoked().len());
    let (mut service, calibrations) = start_service(args, receiver, &outputs)?;
    for calibration in &calibrations {
        outputs.print(calibration);
    }
    let lanes: Vec<_> = calibrations.iter().map(Calibration::json).collect();
    let address = listener.local_address()?;
    outputs.event(&serde_json::json!({
        "event": "listening",
        "address": address,
        "receive_buffer_bytes": listener.buffer_bytes(),
        "signers": signers,
        "revoked": revoked,
        "lanes": lanes,
    }));
    outputs.print(format_args!("trusted signers: {}; revoked: {revoked}", signers,));
    outputs.print(format_args!("listening on {address}"));
    if listener.buffer_bytes() < RECEIVE_BUFFER_BYTES {
        outputs.print(format_args!(
            "receive buffer is {} KiB instead of {} KiB: raise net.core.rmem_max, or run with CAP_NET_ADMIN",
            listener.buffer_bytes() >> 10,
            RECEIVE_BUFFER_BYTES >> 10
        ));
    }
    let metrics = args.metrics_file.as_deref().map(MetricsFile::start).transpose()?;
    prioritize_receiving_thread();
    let receive_result = receive(
        args,
        &signals,
        &mut listener,
        &mut service,
        (&mut outputs, metrics),
    );
    let kernel_drops = listener.count_drops(&mut service);
    let report = service.finish().map_err(Failure::failed)?;
    let result = receive_result.and(outputs.finish(&report, kernel_drops?));
    if result.is_err() {
        lines::exit_soon();
    }
    result
}

/// Receives messages until a signal stops the receiver, or until `--count` messages are verified.
fn receive(
    args: &ReceiveArgs,
    signals: &Signals,
    listener: &mut Listener,
    service: &mut Service,
    (outputs, metrics): (&mut Outputs, Option<MetricsFile>),
) -> Result<(), Failure> {
    let mut next_metrics_at = Instant::now();
    loop {
        listener.receive(outputs, |datagram| service.enqueue(&datagram))?;
        service.submit().map_err(Failure::failed)?;
        listener.update_filter(service, outputs)?;
        match signals.wait(Duration::ZERO)? {
            Some(SignalRequest::Stop) => return Ok(()),
            Some(SignalRequest::Reload) => reload(args, service, outputs),
            Some(SignalRequest::PrintCounters) => {
                let kernel_drops = listener.count_drops(service)?;
                let report = service.report().map_err(Failure::failed)?;
                outputs.report(&report, kernel_drops);
            }
            None => {}
        }
        if let Some(metrics) = metrics.as_ref().filter(|_| next_metrics_at <= Instant::now()) {
            next_metrics_at = Instant::now() + METRICS_INTERVAL;
            let kernel_drops = listener.count_drops(service)?;
            let report = service.report().map_err(Failure::failed)?;
            metrics.submit(metrics_page(&report, kernel_drops));
        }
        if args.count.is_some_and(|count| service.verified() >= count) {
            return Ok(());
        }
    }
}

/// Creates a metrics page. Label values are from this program's own lists.
fn metrics_page(report: &Report, kernel_drops: u64) -> Page {
    let mut page = Page::default();
    for (name, help, count) in [
        ("received", "Datagrams received.", report.received),
        ("verified", "Messages verified.", report.verified),
        (
            "kernel_drops",
            "Datagrams dropped by the kernel while no flood filter was attached.",
            kernel_drops,
        ),
    ] {
        page.counter(
            &format!("linewarden_signed_{name}_total"),
            help,
            None,
            [("", count)],
        );
    }
    let refused = report
        .refused
        .iter()
        .map(|(refusal, count)| (refusal.key(), *count));
    let help = "Messages refused, by reason.";
    page.counter("linewarden_signed_refused_total", help, Some("reason"), refused);
    let shed = report.shed();
    let shed = shed.iter().map(|(reason, count)| (reason.name(), *count));
    let help = "Datagrams and messages dropped before verification, by reason.";
    page.counter("linewarden_signed_shed_total", help, Some("reason"), shed);
    page
}

/// Builds a receiver that trusts the named signers.
fn build_receiver(args: &ReceiveArgs) -> Result<Receiver, Failure> {
    let mut signers = Signers::default();
    for path in &args.signers {
        add_signers(&mut signers, path)?;
    }
    let revoked = match &args.revoked {
        Some(path) => Revocations::read(path).map_err(Failure::input)?,
        None => Revocations::default(),
    };
    let window = Window {
        age_ms_max: args.age_ms_max,
        ahead_ms_max: args.ahead_ms_max,
    };
    let replays = ReplayMemory::new(window, args.remember as usize, random_bytes()?).accept_since(clock());
    let receiver = Receiver::new(signers, revoked, window, replays).with_p256_low_s(args.p256_low_s);
    receiver.set_key_memory((args.key_memory as usize) << 20);
    Ok(receiver)
}

/// Measures and starts the lanes that verify.
fn start_service(
    args: &ReceiveArgs,
    receiver: Receiver,
    outputs: &Outputs,
) -> Result<(Service, Vec<Calibration>), Failure> {
    let mut lanes = lanes::processor_lanes(args.lanes);
    let (gpus, placement) = lanes::gpu_lanes(args.gpu, &receiver)?;
    lanes.extend(gpus);
    let samples = Samples::new(&receiver, placement.as_deref(), clock(), random_bytes()?);
    let (lanes, calibrations) = lanes::calibrate(lanes, &samples, args.gpu)?;
    // If all GPUs failed, no key is in GPU memory.
    let placement = placement.filter(|_| {
        let kinds = lanes.iter().map(|(spec, _)| spec.kind);
        kinds.into_iter().any(|kind| kind == LaneKind::Accelerator)
    });
    let service = Service::start(
        receiver,
        Config::default(),
        Box::new(Adaptive::default()),
        Lanes { lanes, placement },
        outputs.messages(),
        clock,
        [random_bytes()?, random_bytes()?],
    );
    Ok((service.map_err(Failure::failed)?, calibrations))
}

fn add_signers(signers: &mut Signers, path: &Path) -> Result<(), Failure> {
    let mut files = Vec::new();
    if path.is_dir() {
        let unreadable = |error: io::Error| Failure::input(format!("{}: {error}", path.display()));
        for entry in path.read_dir().map_err(unreadable)? {
            let file = entry.map_err(unreadable)?.path();
            if file.extension().is_some_and(|extension| extension == "json") {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(Failure::input(format!(
                "{}: directory contains no public keys (*.json)",
                path.display()
            )));
        }
    } else {
        files.push(path.to_owned());
    }
    for file in files {
        let added = signers.add(read_public(&file)?);
        added.map_err(|error| Failure::input(format!("{}: {error}", file.display())))?;
    }
    Ok(())
}

/// Reloads the list of revoked signers. If the new list is unreadable, the previous list stays in force.
///
/// Prints the signers that are no longer on the list, so that an operator notices a truncated list.
fn reload(args: &ReceiveArgs, service: &Service, outputs: &mut Outputs) {
    let Some(path) = &args.revoked else {
        let problem = "nothing to reload: --revoked was not given, and signers are read only at the start";
        outputs.event(&serde_json::json!({ "event": "reloaded", "revoked": null, "problem": problem }));
        outputs.print(problem);
        return;
    };
    let revoked = match Revocations::read(path) {
        Ok(revoked) => revoked,
        Err(error) => {
            outputs.failed_reloads += 1;
            let problem = format!("{error}; the previous list stays in force");
            outputs.event(&serde_json::json!({ "event": "reloaded", "revoked": null, "problem": problem }));
            outputs.print(problem);
            return;
        }
    };
    let unrevoked = service.set_revoked(revoked.clone()).without(&revoked);
    let listed: Vec<String> = unrevoked
        .iter()
        .take(LISTED_SIGNERS_MAX)
        .map(ToString::to_string)
        .collect();
    outputs.event(&serde_json::json!({
        "event": "reloaded",
        "revoked": revoked.len(),
        "unrevoked": unrevoked.len(),
        "unrevoked_signers": listed,
        "problem": null,
    }));
    outputs.print(format_args!("{}: {} revoked", path.display(), revoked.len()));
    if !unrevoked.is_empty() {
        let suffix = match unrevoked.len() - listed.len() {
            0 => String::new(),
            unlisted => format!(" and {unlisted} more"),
        };
        let listed = listed.join(", ");
        outputs.print(format_args!(
            "{}: no longer revoked: {listed}{suffix}",
            path.display()
        ));
    }
}

fn random_bytes<const BYTES: usize>() -> Result<[u8; BYTES], Failure> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::failed(format!(
            "reading random bytes from the kernel failed: {error}; start the command again"
        ))
    })?;
    Ok(bytes)
}

/// Returns the present time. If the system clock is before 2020, every message appears to be from the future, and is refused.
fn clock() -> TimeMs {
    super::send::now().unwrap_or(TimeMs::since_2020(0))
}
