//! `linewarden signed send`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use linewarden_cli::signals::{SignalRequest, Signals};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read as _};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use linewarden_files::open_regular;
use linewarden_signatures::gpu::Options;
use linewarden_signatures::key::PublicKey;
use linewarden_signatures::lane::GpuLane;
use linewarden_signatures::message::{Priority, Stamp, TimeMs};
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::signer::Signer;
use linewarden_signatures::signing::{SignedMessageSink, SigningService, SigningSettings};
use linewarden_signatures::store::MachineId;
use linewarden_signatures::udp::BATCH;

use super::counters::{CounterPrinter, CounterSnapshot};
use super::lanes::{self, UseGpu};
use super::lines;
use super::next_line::next_line;
use super::outgoing::OutgoingSocket;
use super::payload::LineFormat;
use super::signer_args::SignerArgs;

/// Maximum size in bytes of an input file, which is read into memory.
const INPUT_BYTES_MAX: u64 = 1 << 30;

/// Arguments of `linewarden signed send`.
#[derive(Args, Debug)]
#[command(after_help = "\
Signs each line of the input, and sends each signed message as a datagram. A line is text (--hex: hexadecimal digits); with a layout of \
basic safety messages, or --kind bsm, a JSON object of the message's fields; with a layout of sub-messages a JSON array, such as \
[\"open\", 7].

Masks come from the signer's file, and idle processors create more masks for the lifetime of this process. Without masks, each RA message \
costs an RSA signature. If several processors sign, a message is sent as soon as its signature is complete, so the order may change. \
Masks are taken from the file in blocks of 64; the unused masks of the last block are lost.

If the network fails after messages were sent, the messages of that time are lost and reported; the exit code is 1. If sending never \
worked, the command fails.

An invalid line ends the command; with --input, all lines are checked before the first message is sent. SIGINT and SIGTERM also end the \
command. Payloads that were read before the end are sent and reported. SIGUSR1 prints the counters.

Examples:
  linewarden signed send truck7 --to 192.0.2.1:7447 <<< hello
  linewarden signed send truck7 --to 239.0.0.7:7447 --interface eth1 --priority 0 < bsm.jsonl
  linewarden signed send truck7 --to 127.0.0.1:7447 --input bsm.jsonl --count 100000 --rate 1000")]
pub struct SendArgs {
    #[command(flatten)]
    signer: SignerArgs,
    /// Receiver, or a multicast group (ADDRESS:PORT)
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// Interface for a multicast group (name, default: chosen by the kernel)
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Hop limit of multicast datagrams (integer, default: 1)
    #[arg(long, value_name = "COUNT")]
    hops: Option<u8>,
    /// Priority: 0 (immediate) to 7 (integer)
    #[arg(long, default_value = "3", value_parser = parse_priority)]
    priority: Priority,
    /// Kind of payload, for a key without a layout
    #[arg(long, value_name = "KIND")]
    kind: Option<super::payload::KindName>,
    /// Input lines are hexadecimal digits (flag)
    #[arg(long)]
    hex: bool,
    /// Regular file with input lines, at most 1 GiB (path, default: standard input)
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Number of messages to send; the input is repeated from its first line; requires --input (integer, default: all lines)
    #[arg(long, requires = "input", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Message rate (integer, messages per second, default: unlimited)
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: Option<u64>,
    /// Number of processors that sign (integer, default: all but one)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=60))]
    lanes: Option<u16>,
    /// Whether GPUs sign with masks, and create masks while idle
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = UseGpu::Off)]
    gpu: UseGpu,
    /// Number of masks that idle processors and GPUs keep ready (integer)
    #[arg(long, value_name = "COUNT", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    idle_masks: u32,
}

pub fn parse_priority(text: &str) -> Result<Priority, String> {
    let number: u8 = text.parse().map_err(|error| format!("{error}"))?;
    Priority::try_from(number).map_err(|error| error.to_string())
}

/// Signs and sends messages.
pub fn run(args: &SendArgs, output: Output) -> Result<(), Failure> {
    let signals = Signals::for_stop_and_counters()?;
    let signer = Arc::new(open_signer(args)?);
    let line_format = LineFormat::for_key(signer.public(), args.kind, args.hex)?;
    let outgoing = Arc::new(OutgoingSocket::open(args.to, args.interface.clone(), args.hops)?);
    let settings = SigningSettings {
        lanes: lanes::processor_count(args.lanes),
        idle_masks: args.idle_masks as usize,
    };
    let sink: Arc<dyn SignedMessageSink> = Arc::<OutgoingSocket>::clone(&outgoing);
    let service = SigningService::start(
        Arc::clone(&signer),
        settings,
        open_gpus(args, &signer)?,
        Box::new(Adaptive::default()),
        sink,
    );
    let mut sender = Sender {
        service: service.map_err(Failure::failed)?,
        signer: Arc::clone(&signer),
        counters: CounterPrinter::start(output)?,
        outgoing,
        line_format,
        priority: args.priority,
        payload_bytes: signer.public().ra().map(|ra| ra.layout().payload_bytes()),
        signals,
        pacer: args.rate.map(Pacer::new),
        timestamps: Timestamps::for_key(signer.public()),
    };
    let send_result = match (&args.input, args.count) {
        (Some(path), count) => sender.send_file(path, count),
        (None, _) => {
            // The sender waits for input and for signals at the same time. For this, a separate descriptor without the
            // standard library's buffer is necessary.
            let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
            sender.send_lines(&mut BufReader::new(input))
        }
    };
    // Payloads before an invalid line are sent and reported.
    let finish_result = sender.finish();
    let result = send_result.and(finish_result);
    if result.is_err() {
        lines::exit_soon();
    }
    result
}

/// Opens GPUs, if the key uses masks.
fn open_gpus(args: &SendArgs, signer: &Signer) -> Result<Vec<GpuLane>, Failure> {
    // After a timeout of a GPU, messages are signed a second time, and must then not be older than the 5 s that
    // receivers accept. The first batch of a slow GPU, whose rate is not known yet, must not time out.
    let options = Options {
        timeout: Duration::from_secs(2),
        ..Options::default()
    };
    match (signer.public().ra().is_some(), args.gpu) {
        (true, use_gpu) => Ok(lanes::open_gpus(use_gpu, [], options)?.0),
        (false, UseGpu::Require) => Err(Failure::input(
            "--gpu require: GPUs sign only with masks, and this key uses none",
        )),
        (false, UseGpu::Auto | UseGpu::Off) => Ok(Vec::new()),
    }
}

fn open_signer(args: &SendArgs) -> Result<Signer, Failure> {
    let (key, sealing_key) = args.signer.open()?;
    let directory = args.signer.directory();
    let table = directory.table(&key, &sealing_key)?;
    let masks = match directory.masks_path().exists() && key.ra().is_some() {
        true => {
            let machine = MachineId::of_this_machine().map_err(Failure::failed)?;
            Some(directory.masks(&key, &machine, &sealing_key)?)
        }
        false => None,
    };
    Ok(Signer::new(key, table, masks))
}

struct Sender {
    service: SigningService,
    signer: Arc<Signer>,
    counters: CounterPrinter,
    outgoing: Arc<OutgoingSocket>,
    line_format: LineFormat,
    priority: Priority,
    /// Payload size of the key's layout, bytes.
    payload_bytes: Option<usize>,
    signals: Signals,
    pacer: Option<Pacer>,
    timestamps: Timestamps,
}

impl Sender {
    /// Sends all lines of a file. With `count`, repeats the lines until `count` messages were sent.
    fn send_file(&mut self, path: &std::path::Path, count: Option<u64>) -> Result<(), Failure> {
        let unreadable = |error: io::Error| Failure::input(format!("{}: {error}", path.display()));
        let file = open_regular(path, OpenOptions::new().read(true)).map_err(unreadable)?;
        let mut reader = BufReader::new(file.take(INPUT_BYTES_MAX + 1));
        let mut payloads = Vec::new();
        let mut line_number = 0;
        while let Some(line) = next_line(&mut reader, unreadable, |_| Ok(true))? {
            line_number += 1;
            payloads.extend(self.parse_payload(&line, line_number)?);
        }
        let count = count.unwrap_or(payloads.len() as u64);
        if reader.get_ref().limit() == 0 {
            let path = path.display();
            return Err(Failure::input(format!(
                "{path}: file longer than {INPUT_BYTES_MAX} bytes"
            )));
        }
        if payloads.is_empty() {
            return Err(Failure::input(format!("{}: file has no lines", path.display())));
        }
        let repeated_payloads = payloads.iter().cycle();
        for (payload, _) in repeated_payloads.zip(0..count) {
            self.send(payload)?;
            if self.pacer.as_mut().is_some_and(Pacer::is_slow) {
                self.counters
                    .print_error("signing is slower than --rate: sending at the maximum rate");
            }
            if self.service.waiting() == BATCH || self.pacer.is_some() {
                self.flush()?;
                if !self.should_continue()? {
                    break;
                }
            }
        }
        self.flush()
    }

    /// Sends lines as they arrive, until a signal stops the sender; lines that are available together are sent together.
    fn send_lines(&mut self, reader: &mut BufReader<impl io::Read + AsFd>) -> Result<(), Failure> {
        let mut line_number = 0;
        while let Some(line) = next_line(reader, Failure::from, |reader| self.wait_for_line(reader))? {
            line_number += 1;
            if let Some(payload) = self.parse_payload(&line, line_number)? {
                self.send(&payload)?;
            }
            let has_more_lines = reader.buffer().contains(&b'\n');
            if !has_more_lines || self.service.waiting() == BATCH || self.pacer.is_some() {
                self.flush()?;
                if !self.should_continue()? {
                    break;
                }
            }
        }
        self.flush()
    }

    /// Waits for input; returns false if a signal stops the sender before there is input.
    fn wait_for_line(&self, reader: &BufReader<impl io::Read + AsFd>) -> Result<bool, Failure> {
        loop {
            match self.signals.wait_for_input(reader)? {
                None => return Ok(true),
                Some(request) if !self.handle_signal(request)? => return Ok(false),
                Some(_) => {}
            }
        }
    }

    /// Whether no signal has stopped the sender.
    fn should_continue(&self) -> Result<bool, Failure> {
        self.signals
            .wait(Duration::ZERO)?
            .map_or(Ok(true), |request| self.handle_signal(request))
    }

    /// Handles a signal: prints the counters if requested; returns whether sending continues.
    fn handle_signal(&self, request: SignalRequest) -> Result<bool, Failure> {
        if request != SignalRequest::PrintCounters {
            return Ok(false);
        }
        let snapshot = self.service.snapshot().map_err(Failure::failed)?;
        self.counters.print(
            "counters",
            &CounterSnapshot {
                counts: self.service.counts(),
                unsent: self.outgoing.unsent(),
                latencies: &snapshot.latencies,
                masks_left: self.signer.masks_in_file(),
            },
        );
        Ok(true)
    }

    /// Parses a line; `None` for a blank line that is not an empty payload.
    fn parse_payload(&self, line: &[u8], line_number: usize) -> Result<Option<Vec<u8>>, Failure> {
        if self.line_format.is_blank(line) {
            return Ok(None);
        }
        let invalid_line = |problem| Failure::input(format!("line {line_number}: {problem}"));
        let payload = self.line_format.parse(line).map_err(invalid_line)?;
        match self.payload_bytes {
            Some(bytes) if bytes != payload.len() => Err(invalid_line(format!(
                "payload of {}, but the key's layout has {bytes}",
                counted(payload.len() as u64, "byte")
            ))),
            _ => Ok(Some(payload)),
        }
    }

    fn send(&mut self, payload: &[u8]) -> Result<(), Failure> {
        if let Some(pacer) = &mut self.pacer {
            pacer.wait();
        }
        if self.service.waiting() == 0 {
            self.service.wait_for_capacity(BATCH);
        }
        let stamp = Stamp {
            time: self.next_timestamp(payload)?,
            priority: self.priority,
        };
        self.service
            .enqueue(stamp, self.line_format.kind(), payload)
            .map_err(Failure::failed)
    }

    /// Returns the present time. If an equal message was signed in the present millisecond, first waits for the next
    /// millisecond. The wait is limited, because the clock may stop.
    fn next_timestamp(&mut self, payload: &[u8]) -> Result<TimeMs, Failure> {
        if let Some(time) = self.timestamps.take(payload)? {
            return Ok(time);
        }
        // Earlier messages are sent before the wait.
        self.flush()?;
        let wait_start = Instant::now();
        while wait_start.elapsed() < TIMESTAMP_WAIT_MAX {
            std::thread::sleep(Duration::from_micros(100));
            if let Some(time) = self.timestamps.take(payload)? {
                return Ok(time);
            }
        }
        now()
    }

    /// Submits queued messages, and checks whether earlier messages were sent.
    fn flush(&mut self) -> Result<(), Failure> {
        self.check_socket()?;
        self.service.submit().map_err(Failure::failed)?;
        if let Some(problem) = self.service.take_last_error() {
            return Err(Failure::failed(problem));
        }
        self.counters.warn_without_masks(self.service.counts());
        self.check_socket()
    }

    /// Reports whether sending fails or works again.
    fn check_socket(&self) -> Result<(), Failure> {
        if let Some(notice) = self.outgoing.check()? {
            self.counters.print_error(&notice);
        }
        Ok(())
    }

    /// Waits until all messages are sent, and prints the counters.
    ///
    /// # Errors
    /// A message was not signed or not sent, or the counters were not read.
    fn finish(mut self) -> Result<(), Failure> {
        let (counts, snapshot, problem) = self.service.finish().map_err(Failure::failed)?;
        self.counters.warn_without_masks(counts);
        self.counters.print(
            "ended",
            &CounterSnapshot {
                counts,
                unsent: self.outgoing.unsent(),
                latencies: &snapshot.latencies,
                masks_left: self.signer.masks_in_file(),
            },
        );
        let print_result = self.counters.finish();
        if let Some(problem) = problem {
            return Err(Failure::failed(problem));
        }
        self.outgoing.check()?;
        if counts.failed > 0 {
            return Err(Failure::failed(format!(
                "signing failed on every processor: {} lost",
                counted(counts.failed, "message")
            )));
        }
        match self.outgoing.unsent() {
            0 => print_result,
            unsent => Err(Failure::failed(format!(
                "{} not sent while the network failed",
                counted(unsent, "message")
            ))),
        }
    }
}

/// The present time of the system clock.
pub fn now() -> Result<TimeMs, Failure> {
    let unix_time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unix_ms = unix_time.map_or(0, |unix_time| {
        u64::try_from(unix_time.as_millis()).unwrap_or(u64::MAX)
    });
    let time = TimeMs::from_unix_ms(unix_ms);
    match time.ms() {
        0 => Err(Failure::failed("system time is before 2020: set the clock")),
        _ => Ok(time),
    }
}

/// Time limit for waiting for the next millisecond.
const TIMESTAMP_WAIT_MAX: Duration = Duration::from_millis(10);

/// Timestamps of messages.
///
/// With a plain scheme, equal payloads of the same millisecond are the same message, which receivers accept only one
/// time. RA messages are never equal, because each RA message has its own mask.
struct Timestamps {
    is_plain: bool,
    latest_ms: TimeMs,
    /// Payloads of messages that were signed in the millisecond `latest_ms`.
    payloads: HashSet<Vec<u8>>,
}

impl Timestamps {
    fn for_key(key: &PublicKey) -> Self {
        Self {
            is_plain: key.ra().is_none(),
            latest_ms: TimeMs::since_2020(0),
            payloads: HashSet::new(),
        }
    }

    /// Returns the present time; `None` if this payload was already signed in the present millisecond.
    fn take(&mut self, payload: &[u8]) -> Result<Option<TimeMs>, Failure> {
        let time = now()?;
        if !self.is_plain {
            return Ok(Some(time));
        }
        if time != self.latest_ms {
            self.latest_ms = time;
            self.payloads.clear();
        }
        Ok(self.payloads.insert(payload.to_vec()).then_some(time))
    }
}

/// Paces messages at a constant rate, counted from the first message.
///
/// After a delay, messages are sent without waits, until the number of sent messages is again the rate times the time.
struct Pacer {
    interval: Duration,
    /// Planned time of the next message; `None` before the first message.
    next_at: Option<Instant>,
    was_slow: bool,
}

impl Pacer {
    fn new(rate: u64) -> Self {
        Self {
            interval: Duration::from_nanos(1_000_000_000 / rate),
            next_at: None,
            was_slow: false,
        }
    }

    /// Whether sending is more than a second late. Returns true only one time.
    fn is_slow(&mut self) -> bool {
        let is_slow = self
            .next_at
            .is_some_and(|next_at| next_at.elapsed() > Duration::from_secs(1));
        is_slow && !std::mem::replace(&mut self.was_slow, true)
    }

    fn wait(&mut self) {
        let now = Instant::now();
        let next_at = self.next_at.unwrap_or(now);
        std::thread::sleep(next_at.saturating_duration_since(now));
        self.next_at = Some(next_at + self.interval);
    }
}
