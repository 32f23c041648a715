//! Latency of immediate messages while an attacker floods the receiver with invalid messages, end to end: over a socket
//! and through the service, from the kernel's receive timestamp to the verdict.
//!
//! With two CPUs, the receiver and its only lane share the first CPU, and the senders use the last CPU. One sender
//! thread sends the flood. The other sends the vehicles' messages: ten immediate messages per second and vehicle,
//! signed when they are sent. Forged messages are copies of valid messages with other stamps, payloads and signatures,
//! in the name of a legitimate signer, from sixteen addresses. The flood begins after the receiver has accepted
//! messages of the vehicles; earlier messages are not counted. The `baseline` rows are without a flood.
//!
//! The result is the run with the smallest 99th percentile of five runs, because another program that runs for a few
//! milliseconds per second already delays one message in a hundred. Another row has the median run.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use linewarden_signatures::calibration::Samples;
use linewarden_signatures::key::{PrivateKey, PublicKey};
use linewarden_signatures::message::{HEADER_BYTES, MASK_NAME_BYTES, Priority, Stamp, TimeMs};
use linewarden_signatures::ra::Layout;
use linewarden_signatures::receive::{Receiver, ReplayMemory, Signers, Verified, Window};
use linewarden_signatures::scheduler::model::CostModel;
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::scheduler::{Class, Config, LaneKind, LaneSpec, Span};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::service::{Lanes, Report as ServiceReport, Service, VerifiedMessageSink};
use linewarden_signatures::store::Revocations;
use linewarden_signatures::udp::{UdpReceiver, prioritize_receiving_thread};

use super::Size;
use super::keys::{invalid_measurement, names, sign_at};
use super::scheduler::{PinnedLane, first_and_last_cpu, pin_current_thread, widest_lane};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Report, Row};

/// Vehicles of each scheme.
const VEHICLES: usize = 8;
/// Messages of each vehicle per second.
const PER_S: u64 = 10;
const SCHEMES: [Scheme; 3] = [Scheme::Ed25519, Scheme::EcdsaP256, Scheme::RaRsa2048];
/// Number of source addresses of the flood.
const ADDRESSES: u8 = 16;
/// Number of different payloads of forged messages. Messages with the same payload have different signatures.
const FORGED_PAYLOADS: usize = 1_024;
/// Bytes of a plain payload, and of a random datagram.
const PAYLOAD_BYTES: usize = 200;
/// Number of runs; the best run is the result.
const RUNS: usize = 5;
/// Target: largest ratio of the 99th percentile during a flood to the 99th percentile without a flood.
const OVER_BASELINE_MAX: f64 = 3.0;

/// A flood of invalid messages.
#[derive(Clone, Copy)]
struct Flood {
    name: &'static str,
    /// `None`: random bytes.
    scheme: Option<Scheme>,
    priority: Priority,
    /// Messages per second; `None`: as many as a core can send.
    per_s: Option<f64>,
}

const FLOODS: [Flood; 6] = [
    Flood {
        name: "garbage",
        scheme: None,
        priority: Priority::URGENT,
        per_s: Some(277_000.0),
    },
    Flood {
        name: "ed25519",
        scheme: Some(Scheme::Ed25519),
        priority: Priority::URGENT,
        per_s: None,
    },
    Flood {
        name: "p256",
        scheme: Some(Scheme::EcdsaP256),
        priority: Priority::URGENT,
        per_s: None,
    },
    Flood {
        name: "ra",
        scheme: Some(Scheme::RaRsa2048),
        priority: Priority::URGENT,
        per_s: None,
    },
    Flood {
        name: "ra_4000",
        scheme: Some(Scheme::RaRsa2048),
        priority: Priority::URGENT,
        per_s: Some(4_000.0),
    },
    Flood {
        name: "false_immediates",
        scheme: Some(Scheme::Ed25519),
        priority: Priority::IMMEDIATE,
        per_s: None,
    },
];

/// Adds the rows of this part.
///
/// # Errors
/// A socket failed, or the service reported an internal error.
pub fn rows(size: &Size, progress: Progress<'_>, report: &mut Report) -> Result<(), BenchError> {
    progress("floods: creating keys", None);
    let test_bench = Bench::new(size)?;
    let (baseline, median) = test_bench.best_run(None)?;
    let rows = &mut report.rows;
    rows.push(Row::fact("floods.baseline.p50_us", baseline.p50_us, "us"));
    rows.push(Row::fact("floods.baseline.p99_us", baseline.p99_us, "us"));
    rows.push(Row::fact("floods.baseline.p99_median_us", median, "us"));
    rows.push(Row::lower(
        "floods.baseline.lost",
        baseline.lost,
        "messages",
        Some(0.0),
    ));
    for (number, flood) in (0..).zip(&FLOODS) {
        progress("floods", Some((number, FLOODS.len() as u64)));
        let (flooded, median) = test_bench.best_run(Some(flood))?;
        let name = |figure: &str| format!("floods.{}.{figure}", flood.name);
        let over_baseline = flooded.p99_us / baseline.p99_us;
        rows.push(Row::fact(name("sent_per_s"), flooded.flood_per_s, "/s"));
        rows.push(Row::fact(name("p99_us"), flooded.p99_us, "us"));
        rows.push(Row::fact(name("p99_median_us"), median, "us"));
        rows.push(Row::lower(
            name("p99_over_baseline"),
            over_baseline,
            "ratio",
            Some(OVER_BASELINE_MAX),
        ));
        rows.push(Row::lower(name("lost"), flooded.lost, "messages", Some(0.0)));
        rows.push(Row::fact(name("kernel_drops"), flooded.kernel_drops, "datagrams"));
    }
    Ok(())
}

/// Latency and loss of immediate messages.
struct ImmediateLatency {
    p50_us: f64,
    p99_us: f64,
    /// Messages that were sent and not accepted.
    lost: f64,
    flood_per_s: f64,
    kernel_drops: f64,
}

fn now() -> TimeMs {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    TimeMs::from_unix_ms(since.map_or(0, |since| since.as_millis() as u64))
}

/// Latencies of the messages that were signed at `from_ms` or later.
#[derive(Default)]
struct Arrivals {
    from_ms: AtomicU64,
    latencies: Mutex<Vec<Span>>,
}

impl VerifiedMessageSink for Arrivals {
    fn verified(&self, message: Verified, latency: Span) {
        if message.message().stamp().time.ms() >= self.from_ms.load(Ordering::Relaxed) {
            self.latencies
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(latency);
        }
    }
}

struct Bench {
    keys: Vec<PrivateKey>,
    length: Duration,
}

/// State that the threads share.
struct Shared {
    receiver: SocketAddr,
    begin: Instant,
    /// Time from `begin` to the flood.
    flood_after: Duration,
    length: Duration,
    /// The vehicles have sent all messages.
    vehicles_finished: AtomicBool,
}

impl Bench {
    fn new(size: &Size) -> Result<Self, BenchError> {
        let components = size.components.iter().copied().max().unwrap_or(1);
        let mut keys = Vec::new();
        for scheme in SCHEMES {
            for _ in 0..VEHICLES {
                let layout = match scheme.is_rapid() {
                    true => Some(Layout::bytes(components).map_err(invalid_measurement)?),
                    false => None,
                };
                keys.push(PrivateKey::generate(scheme, layout).map_err(invalid_measurement)?);
            }
        }
        Ok(Self {
            keys,
            length: Duration::from_millis(size.flood_ms),
        })
    }

    /// Returns the best run, with the sum of all runs' losses, and the 99th percentile of the median run, us.
    fn best_run(&self, flood: Option<&Flood>) -> Result<(ImmediateLatency, f64), BenchError> {
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            runs.push(self.run(flood)?);
        }
        runs.sort_by(|a, b| a.p99_us.total_cmp(&b.p99_us));
        let median = runs.get(RUNS / 2).map_or(f64::INFINITY, |run| run.p99_us);
        let lost = runs.iter().map(|run| run.lost).sum();
        let best = runs
            .into_iter()
            .next()
            .ok_or_else(|| invalid_measurement("no run was completed"))?;
        Ok((ImmediateLatency { lost, ..best }, median))
    }

    /// Runs once, on a new thread that is pinned to the first CPU.
    fn run(&self, flood: Option<&Flood>) -> Result<ImmediateLatency, BenchError> {
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| self.receive_under_flood(flood));
            receiver
                .join()
                .unwrap_or_else(|_| Err(invalid_measurement("the receiver panicked")))
        })
    }

    fn receive_under_flood(&self, flood: Option<&Flood>) -> Result<ImmediateLatency, BenchError> {
        let local_address = SocketAddr::from(([127, 0, 0, 1], 0));
        let wait = Duration::from_millis(20);
        let mut inbox = UdpReceiver::open(local_address, 0, wait).map_err(invalid_measurement)?;
        let arrivals = Arc::new(Arrivals::default());
        let mut service = self.service(&arrivals)?;
        let shared = Shared {
            receiver: inbox.address().map_err(invalid_measurement)?,
            begin: Instant::now(),
            flood_after: self.length / 4,
            length: self.length,
            vehicles_finished: AtomicBool::new(false),
        };
        let flood_ms = now().ms() + shared.flood_after.as_millis() as u64;
        arrivals.from_ms.store(flood_ms, Ordering::Relaxed);
        let forged = flood.map(|flood| self.forged(flood)).transpose()?;
        std::thread::scope(|scope| {
            let vehicles = scope.spawn(|| {
                let count = self.vehicles(&shared, flood_ms);
                shared.vehicles_finished.store(true, Ordering::Relaxed);
                count
            });
            let flood = forged.map(|forged| {
                let shared = &shared;
                scope.spawn(move || forged.send(shared))
            });
            let panicked = || invalid_measurement("a sender panicked");
            receive(&mut inbox, &mut service, &shared)?;
            let sent = vehicles.join().map_err(|_| panicked())??;
            let flood_sent = match flood {
                Some(flood) => flood.join().map_err(|_| panicked())??,
                None => 0,
            };
            let service_report = service.finish().map_err(invalid_measurement)?;
            let drops = inbox.dropped().map_err(invalid_measurement)?;
            summarize(&arrivals, &service_report, sent, flood_sent, drops, &shared)
        })
    }

    fn service(&self, arrivals: &Arc<Arrivals>) -> Result<Service, BenchError> {
        let mut signers = Signers::default();
        for key in &self.keys {
            let text = key.public().to_json().map_err(invalid_measurement)?;
            signers
                .add(PublicKey::from_json(&text).map_err(invalid_measurement)?)
                .map_err(invalid_measurement)?;
        }
        let replays = ReplayMemory::new(Window::DEFAULT, 1 << 16, [3; 16]);
        let receiver = Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays);
        let classes = [Class::RA_VERIFY, Class::P256_VERIFY, Class::ED25519_VERIFY];
        let spec = LaneSpec::new("cpu", LaneKind::Cpu).with_grain(8);
        let spec = classes.into_iter().fold(spec, |spec, class| {
            spec.with_class(class, CostModel::new(Span::from_micros(1), 10_000.0))
        });
        let mut lane = widest_lane();
        let samples = Samples::new(&receiver, None, now(), [4; 32]);
        let spec = samples.measure(spec, &mut *lane).map_err(invalid_measurement)?;
        let lane = Box::new(PinnedLane(lane, first_and_last_cpu().map(|[first, _]| first)));
        let lanes = Lanes {
            lanes: vec![(spec, lane)],
            placement: None,
        };
        let delivery: Arc<dyn VerifiedMessageSink> = Arc::<Arrivals>::clone(arrivals);
        let policy = Box::new(Adaptive::default());
        let random = [[5; 16], [6; 16]];
        Service::start(receiver, Config::default(), policy, lanes, delivery, now, random)
            .map_err(invalid_measurement)
    }

    /// Sends the vehicles' messages, each vehicle from its own address. Returns how many of the messages were signed
    /// at `from_ms` or later.
    fn vehicles(&self, shared: &Shared, from_ms: u64) -> Result<u64, BenchError> {
        if let Some([_, last]) = first_and_last_cpu() {
            pin_current_thread(last);
        }
        let mut sockets = Vec::new();
        for number in (1..).take(self.keys.len()) {
            sockets.push(socket([127, 65, 0, number], shared.receiver)?);
        }
        let interval = Duration::from_secs(1) / (PER_S as u32 * self.keys.len() as u32);
        let mut count = 0;
        for number in 0u32.. {
            let send_offset = interval * number;
            if send_offset >= shared.length {
                break;
            }
            std::thread::sleep(send_offset.saturating_sub(shared.begin.elapsed()));
            let index = number as usize % self.keys.len();
            let (Some(key), Some(socket)) = (self.keys.get(index), sockets.get(index)) else {
                continue;
            };
            let stamp = Stamp {
                time: now(),
                priority: Priority::IMMEDIATE,
            };
            let message = message(key, stamp)?;
            socket.send(&message).map_err(invalid_measurement)?;
            count += u64::from(stamp.time.ms() >= from_ms);
        }
        Ok(count)
    }

    /// Creates the messages of a flood: random bytes, or copies of a legitimate signer's message with other payloads.
    fn forged(&self, flood: &Flood) -> Result<ForgedMessages, BenchError> {
        let Some(scheme) = flood.scheme else {
            let mut garbage = vec![vec![0; PAYLOAD_BYTES]; FORGED_PAYLOADS];
            for garbage in &mut garbage {
                getrandom::fill(garbage).map_err(invalid_measurement)?;
            }
            return Ok(ForgedMessages {
                messages: garbage,
                signature_bytes: 0,
                flood: *flood,
            });
        };
        let key = self.keys.iter().find(|key| key.public().scheme() == scheme);
        let key = key.ok_or_else(|| invalid_measurement("no signer for this scheme"))?;
        let stamp = Stamp {
            time: now(),
            priority: flood.priority,
        };
        let valid = message(key, stamp)?;
        let trailer_bytes = scheme.signature_bytes() + if scheme.is_rapid() { MASK_NAME_BYTES } else { 0 };
        let mut messages = vec![valid; FORGED_PAYLOADS];
        for message in &mut messages {
            let end = message.len() - trailer_bytes;
            if let Some(payload) = message.get_mut(HEADER_BYTES..end) {
                getrandom::fill(payload).map_err(invalid_measurement)?;
            }
        }
        Ok(ForgedMessages {
            messages,
            signature_bytes: scheme.signature_bytes(),
            flood: *flood,
        })
    }
}

fn message(key: &PrivateKey, stamp: Stamp) -> Result<Vec<u8>, BenchError> {
    let bytes = key
        .public()
        .ra()
        .map_or(PAYLOAD_BYTES, |ra| ra.layout().payload_bytes());
    let mut payload = vec![0; bytes];
    // Half of the payload is the same in all messages of a vehicle, as in position messages.
    let (_, changing) = payload.split_at_mut(bytes / 2);
    getrandom::fill(changing).map_err(invalid_measurement)?;
    let [name] = names(1)?
        .try_into()
        .map_err(|_| invalid_measurement("wrong number of mask names"))?;
    sign_at(key, &name, stamp, &payload)
}

/// Forged messages that are sent repeatedly.
struct ForgedMessages {
    messages: Vec<Vec<u8>>,
    signature_bytes: usize,
    flood: Flood,
}

impl ForgedMessages {
    /// Sends until the vehicles have sent all messages; returns the number of forged messages sent.
    fn send(mut self, shared: &Shared) -> Result<u64, BenchError> {
        if let Some([_, last]) = first_and_last_cpu() {
            pin_current_thread(last);
        }
        let mut sockets = Vec::new();
        for number in 1..=ADDRESSES {
            sockets.push(socket([127, 66, 0, number], shared.receiver)?);
        }
        std::thread::sleep(shared.flood_after.saturating_sub(shared.begin.elapsed()));
        let begin = Instant::now();
        let mut sent = 0u64;
        while !shared.vehicles_finished.load(Ordering::Relaxed) {
            let target_count = match self.flood.per_s {
                Some(per_s) => (begin.elapsed().as_secs_f64() * per_s) as u64,
                None => u64::MAX,
            };
            if sent >= target_count {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            let count = (target_count - sent).min(256);
            self.send_batch(&sockets, &mut sent, count)?;
        }
        Ok(sent)
    }

    fn send_batch(&mut self, sockets: &[UdpSocket], sent: &mut u64, count: u64) -> Result<(), BenchError> {
        let stamp = Stamp {
            time: now(),
            priority: self.flood.priority,
        };
        for _ in 0..count {
            let messages = self.messages.len();
            let message = self.messages.get_mut(*sent as usize % messages);
            let socket = sockets.get(*sent as usize % sockets.len().max(1));
            let (Some(message), Some(socket)) = (message, socket) else {
                return Err(invalid_measurement("no forged message to send"));
            };
            if self.signature_bytes > 0 {
                forge(message, stamp, self.signature_bytes, *sent);
            }
            // Loopback accepts all datagrams.
            socket.send(message).map_err(invalid_measurement)?;
            *sent += 1;
        }
        Ok(())
    }
}

/// Replaces the stamp and eight bytes of the signature. The numbers in the signature remain in range for all schemes.
fn forge(message: &mut [u8], stamp: Stamp, signature_bytes: usize, number: u64) {
    if let Some(stamp_field) = message.get_mut(12..18) {
        for (byte, stamp_byte) in stamp_field
            .iter_mut()
            .zip(stamp.bits().to_be_bytes().iter().skip(2))
        {
            *byte = *stamp_byte;
        }
    }
    // After three quarters of the signature: in a signature of two 32-byte numbers, the middle of the second number.
    let middle = message.len() - signature_bytes + 3 * signature_bytes / 4;
    for (byte, number_byte) in message.iter_mut().skip(middle - 4).zip(number.to_le_bytes()) {
        *byte = number_byte;
    }
}

fn socket(from: [u8; 4], to: SocketAddr) -> Result<UdpSocket, BenchError> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::from(from), 0)).map_err(invalid_measurement)?;
    socket.connect(to).map_err(invalid_measurement)?;
    Ok(socket)
}

/// Receives until all messages have been sent and no more arrive.
fn receive(inbox: &mut UdpReceiver, service: &mut Service, shared: &Shared) -> Result<(), BenchError> {
    if let Some([first, _]) = first_and_last_cpu() {
        pin_current_thread(first);
    }
    prioritize_receiving_thread();
    loop {
        let received = inbox
            .receive(|datagram| service.enqueue(&datagram))
            .map_err(invalid_measurement)?;
        service.submit().map_err(invalid_measurement)?;
        service.update_flood_filter(inbox).map_err(invalid_measurement)?;
        if received == 0 && shared.vehicles_finished.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

fn summarize(
    arrivals: &Arrivals,
    service_report: &ServiceReport,
    sent: u64,
    flood_sent: u64,
    kernel_drops: u64,
    shared: &Shared,
) -> Result<ImmediateLatency, BenchError> {
    if service_report.engine.sink_panics + service_report.engine.errors > 0 {
        return Err(invalid_measurement("the service reported an internal error"));
    }
    let mut latencies = arrivals
        .latencies
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    latencies.sort_unstable();
    let quantile = |fraction: f64| {
        let rank = (latencies.len() as f64 * fraction) as usize;
        let latency = latencies.get(rank.min(latencies.len().saturating_sub(1)));
        latency.map_or(f64::INFINITY, |latency| latency.as_secs_f64() * 1e6)
    };
    let flood_duration = shared.length.saturating_sub(shared.flood_after);
    Ok(ImmediateLatency {
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        lost: sent.saturating_sub(latencies.len() as u64) as f64,
        flood_per_s: flood_sent as f64 / flood_duration.as_secs_f64(),
        kernel_drops: kernel_drops as f64,
    })
}
