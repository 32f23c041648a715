//! `linewarden signed receive`.

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
use linewarden_signatures::udp::{RECEIVE_BUFFER_BYTES, receive_first};

use super::lanes::{self, Calibration, UseGpu};
use super::lines::{self, WAITING_DEFAULT};
use super::listener::Listener;
use super::outputs::Outputs;
use crate::failure::Failure;
use crate::metrics_file::{MetricsFile, Page};
use crate::output::{Output, counted};
use crate::signals::{Signals, Told};

/// From one page of metrics to the next.
const METRICS_EVERY: Duration = Duration::from_secs(15);
/// Signers that are named where a list no longer has them.
const NAMED_MAX: usize = 1000;

/// Where to listen, whom to believe, and where to hand messages on.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints each verified message as a line of JSON: signer, stamp, priority, payload. What is refused is counted by its reason, and never \
printed. SIGHUP reads the list of --revoked again, and nothing else, SIGUSR1 prints the counters, SIGINT and SIGTERM end it.

The list of revoked signers is a text file: the line `linewarden revoked 1`, a line with an id for each signer (behind a blank, why), \
and the line `end`. One that is not whole leaves the one before in force.

Nobody who reads too slowly, or not at all, holds up verification: up to --backlog lines wait, further ones are dropped and counted. At \
the end those that wait are written for up to 2 s. If a line did not arrive, the exit code is 1.

Examples:
  linewarden signed receive --listen 0.0.0.0:7447 --signers signers
  linewarden signed receive --listen 239.0.0.7:7447 --interface eth1 --signers truck7/signer.json
  linewarden signed receive --listen [::]:7447 --signers signers --out udp:127.0.0.1:9000
  linewarden signed receive --listen 0.0.0.0:7447 --signers signers --revoked revoked")]
pub struct ReceiveArgs {
    /// Where to listen; a multicast group is joined
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// On which interface a multicast group is joined
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// A public key, or a directory of them (*.json); several are named one by one
    #[arg(long, value_name = "PATH", required = true)]
    signers: Vec<PathBuf>,
    /// Signers that are refused: a list of ids
    #[arg(long, value_name = "FILE")]
    revoked: Option<PathBuf>,
    /// Where verified messages go: -, a file that is added to, udp:ADDRESS:PORT or unix:PATH (a datagram each)
    #[arg(long, value_name = "WHERE", default_value = "-")]
    out: String,
    /// Lines that wait for a slow reader; further ones are dropped, and counted
    #[arg(long, value_name = "LINES", default_value_t = WAITING_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    backlog: u32,
    /// How long ago a message may have been signed
    #[arg(long, value_name = "MS", default_value_t = Window::DEFAULT.age_ms_max)]
    age_ms_max: u32,
    /// How far ahead a signer's clock may be
    #[arg(long, value_name = "MS", default_value_t = Window::DEFAULT.ahead_ms_max)]
    ahead_ms_max: u32,
    /// Refuse ECDSA P-256 signatures whose s is in the upper half of its range (off unless given: signers of other systems make both forms)
    #[arg(long)]
    p256_low_s: bool,
    /// Messages that are remembered against replay; half of them are shared out to the signers, evenly
    #[arg(long, value_name = "COUNT", default_value_t = REPLAY_MEMORY_DEFAULT as u32, value_parser = clap::value_parser!(u32).range(1..))]
    remember: u32,
    /// Memory for what is computed ahead for signers, of all together: hashes of RA messages' parts, multiples of ECDSA's and Ed25519's keys; less makes them slower
    #[arg(long, value_name = "MIB", default_value_t = (KEY_MEMORY_DEFAULT_BYTES >> 20) as u32)]
    key_memory: u32,
    /// Processors that verify; all but one if not given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=60))]
    lanes: Option<u16>,
    /// Whether GPUs verify too: if there are any, never, or they must
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = UseGpu::Auto)]
    gpu: UseGpu,
    /// End once so many messages were verified; those that came with the last are handed on too
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    /// A file with the counters in the text format of Prometheus, for a collector of files, replaced every 15 s
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
    /// JSON for machines: the counters too
    #[arg(long)]
    pub json: bool,
}

/// Receives until it is told to end.
pub fn run(args: &ReceiveArgs, output: Output) -> Result<(), Failure> {
    let signals = Signals::of_gateway()?;
    let mut listener = Listener::open(args.listen, args.interface.as_deref())?;
    let mut outputs = Outputs::open(&args.out, args.backlog, output)?;
    let receiver = trusting(args)?;
    let (signers, revoked) = (receiver.signers().count(), receiver.revoked().len());
    let (mut service, calibrations) = start(args, receiver, &outputs)?;
    for calibration in &calibrations {
        outputs.tell(calibration);
    }
    let lanes: Vec<_> = calibrations.iter().map(Calibration::json).collect();
    let address = listener.bound()?;
    outputs.event(&serde_json::json!({
        "event": "listening",
        "address": address,
        "receive_buffer_bytes": listener.buffer_bytes(),
        "signers": signers,
        "revoked": revoked,
        "lanes": lanes,
    }));
    outputs.tell(format_args!(
        "{}; the list of revoked ones has {revoked}",
        counted(signers as u64, "signer")
    ));
    outputs.tell(format_args!("listening at {address}"));
    if listener.buffer_bytes() < RECEIVE_BUFFER_BYTES {
        outputs.tell(format_args!(
            "receive buffer is {} KiB instead of {} KiB; raise net.core.rmem_max, or run with CAP_NET_ADMIN",
            listener.buffer_bytes() >> 10,
            RECEIVE_BUFFER_BYTES >> 10
        ));
    }
    let metrics = args.metrics_file.as_deref().map(MetricsFile::start).transpose()?;
    receive_first();
    let ended = receive(
        args,
        &signals,
        &mut listener,
        &mut service,
        (&mut outputs, metrics),
    );
    let kernel_drops = listener.count_drops(&mut service);
    let report = service.finish().map_err(Failure::failed)?;
    let ended = ended.and(outputs.end(&report, kernel_drops?));
    if ended.is_err() {
        lines::end_soon();
    }
    ended
}

fn receive(
    args: &ReceiveArgs,
    signals: &Signals,
    listener: &mut Listener,
    service: &mut Service,
    (outputs, metrics): (&mut Outputs, Option<MetricsFile>),
) -> Result<(), Failure> {
    let mut put_at = Instant::now();
    loop {
        listener.receive(outputs, |datagram| service.take(&datagram))?;
        service.submit().map_err(Failure::failed)?;
        listener.filter(service, outputs)?;
        match signals.wait(Duration::ZERO)? {
            Some(Told::Stop) => return Ok(()),
            Some(Told::Reload) => reload(args, service, outputs),
            Some(Told::Count) => {
                let kernel_drops = listener.count_drops(service)?;
                let report = service.report().map_err(Failure::failed)?;
                outputs.report(&report, kernel_drops);
            }
            None => {}
        }
        if let Some(metrics) = metrics.as_ref().filter(|_| put_at <= Instant::now()) {
            put_at = Instant::now() + METRICS_EVERY;
            let kernel_drops = listener.count_drops(service)?;
            let report = service.report().map_err(Failure::failed)?;
            metrics.put(metrics_page(&report, kernel_drops));
        }
        if args.count.is_some_and(|count| service.verified() >= count) {
            return Ok(());
        }
    }
}

/// Labels are names of the program's own lists.
fn metrics_page(report: &Report, kernel_drops: u64) -> Page {
    let mut page = Page::default();
    for (name, help, count) in [
        ("received", "Datagrams that were received.", report.received),
        ("verified", "Messages that were verified.", report.verified),
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
    let shed = shed.iter().map(|(why, count)| (why.name(), *count));
    let help = "Datagrams and messages dropped before verification, by reason.";
    page.counter("linewarden_signed_shed_total", help, Some("reason"), shed);
    page
}

/// A receiver that believes the signers that were named.
fn trusting(args: &ReceiveArgs) -> Result<Receiver, Failure> {
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
    let replays = ReplayMemory::new(window, args.remember as usize, random()?).since(clock());
    let receiver = Receiver::new(signers, revoked, window, replays).with_p256_low_s(args.p256_low_s);
    receiver.set_key_memory((args.key_memory as usize) << 20);
    Ok(receiver)
}

/// What verifies, measured and at work.
fn start(
    args: &ReceiveArgs,
    receiver: Receiver,
    outputs: &Outputs,
) -> Result<(Service, Vec<Calibration>), Failure> {
    let mut lanes = lanes::processors(args.lanes);
    let (gpus, places) = lanes::gpus(args.gpu, &receiver)?;
    lanes.extend(gpus);
    let samples = Samples::new(&receiver, places.as_deref(), clock(), random()?);
    let (lanes, calibrations) = lanes::calibrated(lanes, &samples, args.gpu)?;
    // A GPU that failed is left out.
    let places = places.filter(|_| {
        let kinds = lanes.iter().map(|(spec, _)| spec.kind);
        kinds.into_iter().any(|kind| kind == LaneKind::Accelerator)
    });
    let service = Service::start(
        receiver,
        Config::default(),
        Box::new(Adaptive::default()),
        Lanes { lanes, places },
        outputs.messages(),
        clock,
        [random()?, random()?],
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
                "{}: has no public keys (*.json)",
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

/// The list before stays in force if the new one cannot be read. Who is on it no longer is named, for a list that was spoiled in a
/// way that nothing else shows does that.
fn reload(args: &ReceiveArgs, service: &Service, outputs: &mut Outputs) {
    let Some(path) = &args.revoked else {
        let problem =
            "there is nothing to read again: no --revoked was given, and signers are read at the start";
        outputs.event(&serde_json::json!({ "event": "reloaded", "revoked": null, "problem": problem }));
        outputs.tell(problem);
        return;
    };
    let revoked = match Revocations::read(path) {
        Ok(revoked) => revoked,
        Err(error) => {
            outputs.failed_reloads += 1;
            let problem = format!("{error}; the list before stays in force");
            outputs.event(&serde_json::json!({ "event": "reloaded", "revoked": null, "problem": problem }));
            outputs.tell(problem);
            return;
        }
    };
    let unrevoked = service.set_revoked(revoked.clone()).without(&revoked);
    let named: Vec<String> = unrevoked
        .iter()
        .take(NAMED_MAX)
        .map(ToString::to_string)
        .collect();
    outputs.event(&serde_json::json!({
        "event": "reloaded",
        "revoked": revoked.len(),
        "unrevoked": unrevoked.len(),
        "unrevoked_signers": named,
        "problem": null,
    }));
    outputs.tell(format_args!("{}: {} revoked", path.display(), revoked.len()));
    if !unrevoked.is_empty() {
        let more = match unrevoked.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = named.join(", ");
        outputs.tell(format_args!(
            "{}: no longer revoked: {named}{more}",
            path.display()
        ));
    }
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES], Failure> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| Failure::failed(format!("no random bytes: {error}")))?;
    Ok(bytes)
}

/// A clock that stands before 1970 makes every message one of the future, which is refused.
fn clock() -> TimeMs {
    super::send::now().unwrap_or(TimeMs::since_2020(0))
}
