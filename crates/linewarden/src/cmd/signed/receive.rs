//! `linewarden signed receive`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use linewarden_signatures::message::TimeMs;
use linewarden_signatures::receive::{
    REPLAY_MEMORY_DEFAULT, Receiver, ReplayMemory, Signers, Verified, Window,
};
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::scheduler::{Config, Priority, Span};
use linewarden_signatures::service::{Delivery, Report, Service};
use linewarden_signatures::store::{Revocations, read_public};
use linewarden_signatures::udp::Inbox;

use super::lanes::{self, UseGpu};
use super::payload;
use crate::failure::Failure;
use crate::output::{Output, tell};
use crate::signals::{Signals, Told};

/// How long a receiver waits for a datagram before it looks whether it was told something.
const NAP: Duration = Duration::from_millis(50);
/// Signers that are named where a list no longer has them.
const NAMED_MAX: usize = 1000;

/// Where to listen, whom to believe, and where to hand messages on.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints each verified message as a line of JSON: signer, stamp, priority, payload. What is refused is counted by its reason, and never \
printed. SIGHUP reads the revoked signers again, SIGUSR1 prints the counters, SIGINT and SIGTERM end it.

The list of revoked signers is a text file: the line `linewarden revoked 1`, a line with an id for each signer (behind a blank, why), \
and the line `end`. One that is not whole leaves the one before in force.

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
    /// How long ago a message may have been signed
    #[arg(long, value_name = "MS", default_value_t = Window::DEFAULT.age_ms_max)]
    age_ms_max: u32,
    /// How far ahead a signer's clock may be
    #[arg(long, value_name = "MS", default_value_t = Window::DEFAULT.ahead_ms_max)]
    ahead_ms_max: u32,
    /// Messages that are remembered against replay
    #[arg(long, value_name = "COUNT", default_value_t = REPLAY_MEMORY_DEFAULT)]
    remember: usize,
    /// Processors that verify; all but one if not given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=60))]
    lanes: Option<u16>,
    /// Whether GPUs verify too: if there are any, never, or they must
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = UseGpu::Auto)]
    gpu: UseGpu,
    /// End after so many verified messages
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    /// JSON for machines: the counters too
    #[arg(long)]
    pub json: bool,
}

/// Receives until it is told to end.
pub fn run(args: &ReceiveArgs, output: Output) -> Result<(), Failure> {
    let signals = Signals::of_gateway()?;
    let interface = super::interface(args.interface.as_deref())?;
    let mut inbox = Inbox::open(args.listen, interface, NAP)
        .map_err(|error| Failure::failed(format!("{}: {error}", args.listen)))?;
    let mut service = start(args)?;
    let address = inbox.address().map_err(Failure::failed)?;
    output.object(&serde_json::json!({ "event": "listening", "address": address }))?;
    if !output.is_json() {
        tell(format_args!("listening at {address}"));
    }
    let mut failed_reloads = 0;
    loop {
        inbox
            .receive(|datagram, sender| service.take(datagram, sender))
            .map_err(|error| Failure::failed(format!("{address}: {error}")))?;
        service.submit().map_err(Failure::failed)?;
        match signals.wait(Duration::ZERO)? {
            Some(Told::Stop) => break,
            Some(Told::Reload) => failed_reloads += u64::from(!reload(args, &service, output)?),
            Some(Told::Count) => {
                let counts = service.report().map_err(Failure::failed)?;
                report(&counts, failed_reloads, "counters", output)?;
            }
            None => {}
        }
        if args.count.is_some_and(|count| service.verified() >= count) {
            break;
        }
    }
    let counts = service.finish().map_err(Failure::failed)?;
    report(&counts, failed_reloads, "ended", output)
}

/// For machines on standard output, for people beside it, where verified messages may be going.
fn report(report: &Report, failed_reloads: u64, event: &str, output: Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.object(&json(report, failed_reloads, event));
    }
    for line in lines(report, failed_reloads) {
        tell(line);
    }
    Ok(())
}

fn start(args: &ReceiveArgs) -> Result<Service, Failure> {
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
    let replays = ReplayMemory::new(window, args.remember, random()?).since(clock());
    let receiver = Receiver::new(signers, revoked, window, replays);
    let delivery = Arc::new(Out::open(&args.out)?);
    let mut lanes = lanes::processors(args.lanes);
    lanes.extend(lanes::gpus(args.gpu)?);
    let policy = Box::new(Adaptive::default());
    let random = [random()?, random()?];
    Service::start(
        receiver,
        Config::default(),
        policy,
        lanes,
        delivery,
        clock,
        random,
    )
    .map_err(Failure::failed)
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

/// Whether a new list is in force; the one before stays if it cannot be read. Who is on it no longer is named, for a list that
/// was spoiled in a way that nothing else shows does that.
fn reload(args: &ReceiveArgs, service: &Service, output: Output) -> Result<bool, Failure> {
    let Some(path) = &args.revoked else {
        return Ok(true);
    };
    let revoked = match Revocations::read(path) {
        Ok(revoked) => revoked,
        Err(error) => {
            let problem = format!("{error}; the list before stays in force");
            output
                .object(&serde_json::json!({ "event": "reloaded", "revoked": null, "problem": problem }))?;
            if !output.is_json() {
                tell(problem);
            }
            return Ok(false);
        }
    };
    let unrevoked = service.set_revoked(revoked.clone()).without(&revoked);
    let named: Vec<String> = unrevoked
        .iter()
        .take(NAMED_MAX)
        .map(ToString::to_string)
        .collect();
    output.object(&serde_json::json!({
        "event": "reloaded",
        "revoked": revoked.len(),
        "unrevoked": unrevoked.len(),
        "unrevoked_signers": named,
        "problem": null,
    }))?;
    if !output.is_json() {
        tell(format_args!("{}: {} revoked", path.display(), revoked.len()));
        if !unrevoked.is_empty() {
            let more = match unrevoked.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            tell(format_args!(
                "{}: no longer revoked: {}{more}",
                path.display(),
                named.join(", ")
            ));
        }
    }
    Ok(true)
}

fn random() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Failure::failed(format!("no random bytes: {error}")))?;
    Ok(bytes)
}

/// A clock that stands before 1970 makes every message one of the future, which is refused.
fn clock() -> TimeMs {
    super::send::now().unwrap_or(TimeMs::since_2020(0))
}

/// Where verified messages go.
struct Out(Mutex<Way>);

enum Way {
    Stdout,
    File(File),
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Out {
    fn open(to: &str) -> Result<Self, Failure> {
        let wrong = |error: &dyn std::fmt::Display| Failure::input(format!("--out {to}: {error}"));
        let way = if to == "-" {
            Way::Stdout
        } else if let Some(address) = to.strip_prefix("udp:") {
            let address: SocketAddr = address.parse().map_err(|error| wrong(&error))?;
            let any: SocketAddr = if address.is_ipv4() {
                ([0; 4], 0).into()
            } else {
                ([0; 16], 0).into()
            };
            let socket = UdpSocket::bind(any).map_err(|error| wrong(&error))?;
            socket.connect(address).map_err(|error| wrong(&error))?;
            Way::Udp(socket)
        } else if let Some(path) = to.strip_prefix("unix:") {
            let socket = UnixDatagram::unbound().map_err(|error| wrong(&error))?;
            socket.connect(path).map_err(|error| wrong(&error))?;
            Way::Unix(socket)
        } else {
            let file = OpenOptions::new().create(true).append(true).open(to);
            Way::File(file.map_err(|error| wrong(&error))?)
        };
        Ok(Self(Mutex::new(way)))
    }
}

impl Delivery for Out {
    /// Who cannot take a message has lost it, as with any datagram.
    fn verified(&self, message: Verified, latency: Span) {
        let Ok(mut line) = serde_json::to_vec(&to_json(&message, latency)) else {
            return;
        };
        let mut way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = match &mut *way {
            Way::Udp(socket) => socket.send(&line).map(drop),
            Way::Unix(socket) => socket.send(&line).map(drop),
            Way::Stdout => {
                line.push(b'\n');
                io::stdout().lock().write_all(&line)
            }
            Way::File(file) => {
                line.push(b'\n');
                file.write_all(&line)
            }
        };
    }
}

fn to_json(message: &Verified, latency: Span) -> serde_json::Value {
    let checked = message.message();
    serde_json::json!({
        "event": "verified",
        "signer": message.signer().to_string(),
        "scheme": checked.key().scheme().name(),
        "signed_unix_ms": checked.stamp().time.unix_ms(),
        "priority": checked.stamp().priority.number(),
        "latency_us": latency.as_nanos() / 1000,
        "payload": payload::to_json(checked.key(), message.kind(), checked.payload()),
    })
}

fn json(report: &Report, failed_reloads: u64, event: &str) -> serde_json::Value {
    let refused = report
        .refused
        .iter()
        .map(|(refusal, count)| (refusal.key(), *count));
    let shed = report.shed();
    let shed = shed.iter().map(|(why, count)| (why.name(), *count));
    let latencies = &report.engine.latencies;
    let latency = Priority::all()
        .filter(|priority| latencies.count(*priority) > 0)
        .map(|priority| {
            let us = |part| latencies.quantile(priority, part).as_nanos() / 1000;
            let of = serde_json::json!({
                "count": latencies.count(priority),
                "late": latencies.late(priority),
                "p50_us": us(0.5),
                "p99_us": us(0.99),
                "p999_us": us(0.999),
            });
            (priority.number().to_string(), of)
        });
    serde_json::json!({
        "event": event,
        "received": report.received,
        "verified": report.verified,
        "refused": refused.collect::<std::collections::BTreeMap<_, _>>(),
        "shed": shed.collect::<std::collections::BTreeMap<_, _>>(),
        "failed_reloads": failed_reloads,
        "latency_by_priority": latency.collect::<serde_json::Map<_, _>>(),
        "lanes": report.engine.lanes.iter().map(|lane| serde_json::json!({
            "name": lane.name,
            "batches": lane.batches,
            "messages": lane.jobs,
            "lost": lane.lost,
        })).collect::<Vec<_>>(),
    })
}

fn lines(report: &Report, failed_reloads: u64) -> Vec<String> {
    let mut lines = vec![format!(
        "received {}, verified {}",
        report.received, report.verified
    )];
    for (refusal, count) in &report.refused {
        lines.push(format!("refused {count}: {refusal}"));
    }
    for (why, count) in report.shed() {
        lines.push(format!("dropped before verification {count}: {why}"));
    }
    if failed_reloads > 0 {
        lines.push(format!(
            "lists of revoked signers that could not be read {failed_reloads}"
        ));
    }
    lines
}
