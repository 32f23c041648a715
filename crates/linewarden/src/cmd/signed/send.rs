//! `linewarden signed send`.

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
use linewarden_signatures::lane::Graphics;
use linewarden_signatures::message::{Priority, Stamp, TimeMs};
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::signer::Signer;
use linewarden_signatures::signing::{Dispatch, Settings, SigningService};
use linewarden_signatures::store::MachineId;
use linewarden_signatures::udp::BATCH;

use super::counters::{self, Counters};
use super::lanes::{self, UseGpu};
use super::lines;
use super::next_line::next_line;
use super::outgoing::Outgoing;
use super::payload::Form;
use super::seal::SignerArgs;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::signals::{Signals, Told};

/// All of it is held in memory.
const INPUT_BYTES_MAX: u64 = 1 << 30;

/// What to sign, and where to send it.
#[derive(Args, Debug)]
#[command(after_help = "\
Signs each line of its input, and sends it as a datagram of its own. A line is a text (--hex: bytes as hexadecimal digits); with a \
layout of basic safety messages, or --kind bsm, a JSON object of its fields; with one of sub-messages a JSON array, as [\"open\", 7].

Masks come out of the signer's file, and idle processors make more, which live as long as this process. Where none is left, RA signs \
at the price of an RSA signature. Messages of several processors leave in the order in which they are done. Masks are taken out of \
the file by 64, and what is left of these at the end is gone.

What a network does not take that has taken messages before is lost, and said; the exit code is 1 then. What it never took ends it.

A line that is no payload ends it, with --input before anything is sent; SIGINT and SIGTERM do, too. What was read before is sent, and said. \
SIGUSR1 prints the counters.

Examples:
  linewarden signed send truck7 --to 192.0.2.1:7447 <<< hello
  linewarden signed send truck7 --to 239.0.0.7:7447 --interface eth1 --priority 0 < bsm.jsonl
  linewarden signed send truck7 --to 127.0.0.1:7447 --input bsm.jsonl --count 100000 --rate 1000")]
pub struct SendArgs {
    #[command(flatten)]
    signer: SignerArgs,
    /// The receiver, or a multicast group
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// By which interface a multicast group is reached
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Routers that a multicast may pass, and one more; 1 if not given
    #[arg(long, value_name = "COUNT")]
    hops: Option<u8>,
    /// How urgent: 0 (immediate) to 7
    #[arg(long, default_value = "3", value_parser = parse_priority)]
    priority: Priority,
    /// opaque or bsm, for a plain key; RA has its layout
    #[arg(long, value_name = "KIND")]
    kind: Option<super::payload::KindName>,
    /// Lines are hexadecimal digits
    #[arg(long)]
    hex: bool,
    /// A regular file with the lines, of at most 1 GiB; standard input if not given
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Send so many messages, and begin with the first line again after the last; needs --input
    #[arg(long, requires = "input", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Messages a second; as fast as lines come if not given
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: Option<u64>,
    /// Processors that sign; all but one if not given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=60))]
    lanes: Option<u16>,
    /// Whether GPUs sign with masks, and make some while they are idle: if there are any, never, or they must
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = UseGpu::Off)]
    gpu: UseGpu,
    /// Masks that idle processors and GPUs keep ready
    #[arg(long, value_name = "COUNT", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    idle_masks: u32,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

pub fn parse_priority(text: &str) -> Result<Priority, String> {
    let number: u8 = text.parse().map_err(|error| format!("{error}"))?;
    Priority::try_from(number).map_err(|error| error.to_string())
}

/// Sends them.
pub fn run(args: &SendArgs, output: Output) -> Result<(), Failure> {
    let signals = Signals::to_stop_or_count()?;
    let signer = Arc::new(signer(args)?);
    let form = Form::of(signer.public(), args.kind, args.hex)?;
    let outgoing = Arc::new(Outgoing::open(args.to, args.interface.clone(), args.hops)?);
    let settings = Settings {
        lanes: lanes::count(args.lanes),
        idle_masks: args.idle_masks as usize,
    };
    let dispatch: Arc<dyn Dispatch> = Arc::<Outgoing>::clone(&outgoing);
    let service = SigningService::start(
        Arc::clone(&signer),
        settings,
        graphics(args, &signer)?,
        Box::new(Adaptive::default()),
        dispatch,
    );
    let mut sender = Sender {
        service: service.map_err(Failure::failed)?,
        signer: Arc::clone(&signer),
        counters: Counters::start(output)?,
        outgoing,
        form,
        priority: args.priority,
        payload_bytes: signer.public().ra().map(|ra| ra.layout().payload_bytes()),
        signals,
        pace: args.rate.map(Pace::new),
        moments: Moments::of(signer.public()),
    };
    let read = match (&args.input, args.count) {
        (Some(path), count) => sender.send_file(path, count),
        (None, _) => {
            // Not what the library has read ahead: signals are waited for beside it.
            let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
            sender.send_lines(&mut BufReader::new(input))
        }
    };
    // What was read before a line that is none is sent all the same, and said.
    let told = sender.finish();
    let ended = read.and(told);
    if ended.is_err() {
        lines::end_soon();
    }
    ended
}

/// GPUs, if there is something for them to do.
fn graphics(args: &SendArgs, signer: &Signer) -> Result<Vec<Graphics>, Failure> {
    // Messages that are signed anew, their device having been waited for, must not be older than receivers' 5 s then; and a slow device's
    // first slices, made before its rate is known, are no reason to leave it alone.
    let options = Options {
        patience: Duration::from_secs(2),
        ..Options::default()
    };
    match (signer.public().ra().is_some(), args.gpu) {
        (true, when) => Ok(lanes::graphics(when, [], options)?.0),
        (false, UseGpu::Require) => Err(Failure::input(
            "--gpu require: a GPU signs with masks, and this key has none",
        )),
        (false, UseGpu::Auto | UseGpu::Off) => Ok(Vec::new()),
    }
}

fn signer(args: &SendArgs) -> Result<Signer, Failure> {
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
    counters: Counters,
    outgoing: Arc<Outgoing>,
    form: Form,
    priority: Priority,
    /// What the key's layout demands.
    payload_bytes: Option<usize>,
    signals: Signals,
    pace: Option<Pace>,
    moments: Moments,
}

impl Sender {
    /// All lines of a file, once or until so many messages were sent.
    fn send_file(&mut self, path: &std::path::Path, count: Option<u64>) -> Result<(), Failure> {
        let unreadable = |error: io::Error| Failure::input(format!("{}: {error}", path.display()));
        let file = open_regular(path, OpenOptions::new().read(true)).map_err(unreadable)?;
        let mut reader = BufReader::new(file.take(INPUT_BYTES_MAX + 1));
        let mut payloads = Vec::new();
        let mut number = 0;
        while let Some(line) = next_line(&mut reader, unreadable, |_| Ok(true))? {
            number += 1;
            payloads.extend(self.payload(&line, number)?);
        }
        let count = count.unwrap_or(payloads.len() as u64);
        if reader.get_ref().limit() == 0 {
            let path = path.display();
            return Err(Failure::input(format!(
                "{path}: longer than {INPUT_BYTES_MAX} bytes"
            )));
        }
        if payloads.is_empty() {
            return Err(Failure::input(format!("{}: has no lines", path.display())));
        }
        let all = payloads.iter().cycle();
        for (payload, _) in all.zip(0..count) {
            self.send(payload)?;
            if self.pace.as_mut().is_some_and(Pace::is_slow) {
                self.counters
                    .tell("fewer messages are signed than --rate asks for: it sends as many as it can");
            }
            if self.service.waiting() == BATCH || self.pace.is_some() {
                self.flush()?;
                if !self.goes_on()? {
                    break;
                }
            }
        }
        self.flush()
    }

    /// Lines as they come, until it is told to end; those that are there together are sent together.
    fn send_lines(&mut self, reader: &mut BufReader<impl io::Read + AsFd>) -> Result<(), Failure> {
        let mut number = 0;
        while let Some(line) = next_line(reader, Failure::from, |reader| self.awaits(reader))? {
            number += 1;
            if let Some(payload) = self.payload(&line, number)? {
                self.send(&payload)?;
            }
            let more = reader.buffer().contains(&b'\n');
            if !more || self.service.waiting() == BATCH || self.pace.is_some() {
                self.flush()?;
                if !self.goes_on()? {
                    break;
                }
            }
        }
        self.flush()
    }

    /// Waits for something to read; whether it comes before this is told to end.
    fn awaits(&self, reader: &BufReader<impl io::Read + AsFd>) -> Result<bool, Failure> {
        loop {
            match self.signals.wait_for_input(reader)? {
                None => return Ok(true),
                Some(told) if !self.heeds(told)? => return Ok(false),
                Some(_) => {}
            }
        }
    }

    /// Whether nobody has told it to end.
    fn goes_on(&self) -> Result<bool, Failure> {
        self.signals
            .wait(Duration::ZERO)?
            .map_or(Ok(true), |told| self.heeds(told))
    }

    /// Prints the counters so far if that was asked for; whether it goes on.
    fn heeds(&self, told: Told) -> Result<bool, Failure> {
        if told != Told::Count {
            return Ok(false);
        }
        let snapshot = self.service.snapshot().map_err(Failure::failed)?;
        self.counters.print(
            "counters",
            &counters::Told {
                counts: self.service.counts(),
                unsent: self.outgoing.unsent(),
                latencies: &snapshot.latencies,
                masks: self.signer.in_file(),
            },
        );
        Ok(true)
    }

    /// `None` of a blank line where an empty payload is none.
    fn payload(&self, line: &[u8], number: usize) -> Result<Option<Vec<u8>>, Failure> {
        if self.form.is_blank(line) {
            return Ok(None);
        }
        let wrong = |problem| Failure::input(format!("line {number}: {problem}"));
        let payload = self.form.parse(line).map_err(wrong)?;
        match self.payload_bytes {
            Some(bytes) if bytes != payload.len() => Err(wrong(format!(
                "a payload of {}; those of the key's layout have {bytes}",
                counted(payload.len() as u64, "byte")
            ))),
            _ => Ok(Some(payload)),
        }
    }

    fn send(&mut self, payload: &[u8]) -> Result<(), Failure> {
        if let Some(pace) = &mut self.pace {
            pace.wait();
        }
        if self.service.waiting() == 0 {
            self.service.await_room(BATCH);
        }
        let stamp = Stamp {
            time: self.moment(payload)?,
            priority: self.priority,
        };
        self.service
            .take(stamp, self.form.kind(), payload)
            .map_err(Failure::failed)
    }

    /// Now, or in the next millisecond if an equal message was signed in this one. Whatever the clock does, not much later.
    fn moment(&mut self, payload: &[u8]) -> Result<TimeMs, Failure> {
        if let Some(time) = self.moments.take(payload)? {
            return Ok(time);
        }
        // Those before it need not wait.
        self.flush()?;
        let begin = Instant::now();
        while begin.elapsed() < MOMENT_MAX {
            std::thread::sleep(Duration::from_micros(100));
            if let Some(time) = self.moments.take(payload)? {
                return Ok(time);
            }
        }
        now()
    }

    /// Hands over what was taken in, and finds out whether what was handed over before has left.
    fn flush(&mut self) -> Result<(), Failure> {
        self.look()?;
        self.service.submit().map_err(Failure::failed)?;
        if let Some(problem) = self.service.problem() {
            return Err(Failure::failed(problem));
        }
        self.counters.tell_if_dry(self.service.counts());
        self.look()
    }

    /// Says whether messages leave again, or do not.
    fn look(&self) -> Result<(), Failure> {
        if let Some(news) = self.outgoing.look()? {
            self.counters.tell(&news);
        }
        Ok(())
    }

    /// Waits until all has left, and prints the counters.
    fn finish(mut self) -> Result<(), Failure> {
        let (counts, snapshot, problem) = self.service.finish().map_err(Failure::failed)?;
        self.counters.tell_if_dry(counts);
        self.counters.print(
            "ended",
            &counters::Told {
                counts,
                unsent: self.outgoing.unsent(),
                latencies: &snapshot.latencies,
                masks: self.signer.in_file(),
            },
        );
        let told = self.counters.end();
        if let Some(problem) = problem {
            return Err(Failure::failed(problem));
        }
        self.outgoing.look()?;
        if counts.lost > 0 {
            return Err(Failure::failed(format!(
                "{} could not be signed: every processor failed at them",
                counted(counts.lost, "message")
            )));
        }
        match self.outgoing.unsent() {
            0 => told,
            unsent => Err(Failure::failed(format!(
                "{} did not leave while the network did not take them",
                counted(unsent, "message")
            ))),
        }
    }
}

/// The clock's time.
pub fn now() -> Result<TimeMs, Failure> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unix_ms = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let time = TimeMs::from_unix_ms(unix_ms);
    match time.ms() {
        0 => Err(Failure::failed("the clock stands before 2020; set it")),
        _ => Ok(time),
    }
}

/// How long the next millisecond is waited for.
const MOMENT_MAX: Duration = Duration::from_millis(10);

/// When messages are signed. By a plain scheme, equal payloads of one millisecond are one message, which receivers take once; RA's have a
/// mask each.
struct Moments {
    is_plain: bool,
    at: TimeMs,
    taken: HashSet<Vec<u8>>,
}

impl Moments {
    fn of(signer: &PublicKey) -> Self {
        Self {
            is_plain: signer.ra().is_none(),
            at: TimeMs::since_2020(0),
            taken: HashSet::new(),
        }
    }

    /// Now, if this payload was not sent in this millisecond.
    fn take(&mut self, payload: &[u8]) -> Result<Option<TimeMs>, Failure> {
        let time = now()?;
        if !self.is_plain {
            return Ok(Some(time));
        }
        if time != self.at {
            self.at = time;
            self.taken.clear();
        }
        Ok(self.taken.insert(payload.to_vec()).then_some(time))
    }
}

/// So many a second, counted from the first: what was late is made up for.
struct Pace {
    every: Duration,
    next: Option<Instant>,
    was_slow: bool,
}

impl Pace {
    fn new(rate: u64) -> Self {
        Self {
            every: Duration::from_nanos(1_000_000_000 / rate),
            next: None,
            was_slow: false,
        }
    }

    /// Whether it is a second behind, once.
    fn is_slow(&mut self) -> bool {
        let is_slow = self
            .next
            .is_some_and(|next| next.elapsed() > Duration::from_secs(1));
        is_slow && !std::mem::replace(&mut self.was_slow, true)
    }

    fn wait(&mut self) {
        let now = Instant::now();
        let next = self.next.unwrap_or(now);
        std::thread::sleep(next.saturating_duration_since(now));
        self.next = Some(next + self.every);
    }
}
