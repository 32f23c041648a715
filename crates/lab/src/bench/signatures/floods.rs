//! Immediate messages while somebody floods the receiver with invalid ones, end to end: over a socket, through the service, from the kernel's
//! receive timestamp to the verdict.
//!
//! Where there are two processors, the receiver and its only lane share the first one, and the last one is for the senders: one sends the
//! flood, the other what vehicles send, ten immediate messages a second each, signed as they are sent. Forged messages are copies of valid ones
//! with other stamps, payloads and signatures, in the name of an honest signer, from sixteen addresses. The flood begins when the vehicles have
//! been heard; what was sent before does not count. Without a flood is `quiet`. Of five runs the one with the least 99th percentile counts:
//! another program of the machine that runs for some milliseconds a second delays one message in a hundred. The median run's is a row beside
//! it.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use linewarden_signatures::calibration::Samples;
use linewarden_signatures::key::{PrivateKey, PublicKey};
use linewarden_signatures::message::{HEADER_BYTES, MASK_NAME_BYTES, Priority, Stamp, TimeMs};
use linewarden_signatures::ra::Layout;
use linewarden_signatures::receive::{Receiver, ReplayMemory, Signers, Verified, Window};
use linewarden_signatures::scheduler::model::Line;
use linewarden_signatures::scheduler::policy::Adaptive;
use linewarden_signatures::scheduler::{Class, Config, LaneKind, LaneSpec, Span};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::service::{Delivery, Lanes, Report as Served, Service};
use linewarden_signatures::store::Revocations;
use linewarden_signatures::udp::{Inbox, receive_first};

use super::Size;
use super::keys::{broken, names, sign_at};
use super::scheduler::{Pinned, processors, stay_on, widest};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Report, Row};

/// Vehicles of each scheme, and messages of each vehicle per second.
const VEHICLES: usize = 8;
const PER_S: u64 = 10;
const SCHEMES: [Scheme; 3] = [Scheme::Ed25519, Scheme::EcdsaP256, Scheme::RaRsa2048];
/// Addresses that the flood comes from.
const ADDRESSES: u8 = 16;
/// Forged messages that differ in what they say; those that say the same differ in their signatures.
const FORGED: usize = 1_024;
/// Bytes of a plain payload, and of garbage.
const PAYLOAD_BYTES: usize = 200;
/// Runs, of which the best counts.
const RUNS: usize = 5;
/// A 99th percentile under a flood by the one without it.
const OVER_QUIET_MAX: f64 = 3.0;

/// What comes besides.
#[derive(Clone, Copy)]
struct Flood {
    name: &'static str,
    /// None is garbage.
    scheme: Option<Scheme>,
    priority: Priority,
    /// As many as a core sends, if not given.
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

/// Measures.
///
/// # Errors
/// A socket, or a service that contradicts itself.
pub fn rows(size: &Size, progress: Progress<'_>, report: &mut Report) -> Result<(), BenchError> {
    progress("floods: keys", None);
    let bench = Bench::new(size)?;
    let (quiet, median) = bench.best(None)?;
    let rows = &mut report.rows;
    rows.push(Row::fact("floods.quiet.p50_us", quiet.p50_us, "us"));
    rows.push(Row::fact("floods.quiet.p99_us", quiet.p99_us, "us"));
    rows.push(Row::fact("floods.quiet.p99_median_us", median, "us"));
    rows.push(Row::lower("floods.quiet.lost", quiet.lost, "messages", Some(0.0)));
    for (number, flood) in (0..).zip(&FLOODS) {
        progress("floods", Some((number, FLOODS.len() as u64)));
        let (felt, median) = bench.best(Some(flood))?;
        let name = |what: &str| format!("floods.{}.{what}", flood.name);
        let over_quiet = felt.p99_us / quiet.p99_us;
        rows.push(Row::fact(name("sent_per_s"), felt.flood_per_s, "/s"));
        rows.push(Row::fact(name("p99_us"), felt.p99_us, "us"));
        rows.push(Row::fact(name("p99_median_us"), median, "us"));
        rows.push(Row::lower(
            name("p99_over_quiet"),
            over_quiet,
            "ratio",
            Some(OVER_QUIET_MAX),
        ));
        rows.push(Row::lower(name("lost"), felt.lost, "messages", Some(0.0)));
        rows.push(Row::fact(name("kernel_drops"), felt.kernel_drops, "datagrams"));
    }
    Ok(())
}

/// What immediate messages felt.
struct Felt {
    p50_us: f64,
    p99_us: f64,
    /// Of those that were sent.
    lost: f64,
    flood_per_s: f64,
    kernel_drops: f64,
}

fn clock() -> TimeMs {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    TimeMs::from_unix_ms(since.map_or(0, |since| since.as_millis() as u64))
}

/// Latencies of messages that were signed from a time on.
#[derive(Default)]
struct Arrivals {
    from_ms: AtomicU64,
    latencies: Mutex<Vec<Span>>,
}

impl Delivery for Arrivals {
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

/// What threads have in common.
struct Shared {
    receiver: SocketAddr,
    begin: Instant,
    /// When the flood begins and all ends, after that.
    flood_after: Duration,
    length: Duration,
    /// Nothing more is sent.
    sent: AtomicBool,
}

impl Bench {
    fn new(size: &Size) -> Result<Self, BenchError> {
        let components = size.components.iter().copied().max().unwrap_or(1);
        let mut keys = Vec::new();
        for scheme in SCHEMES {
            for _ in 0..VEHICLES {
                let layout = match scheme.is_rapid() {
                    true => Some(Layout::bytes(components).map_err(broken)?),
                    false => None,
                };
                keys.push(PrivateKey::generate(scheme, layout).map_err(broken)?);
            }
        }
        Ok(Self {
            keys,
            length: Duration::from_millis(size.flood_ms),
        })
    }

    /// The best run with the losses of all runs, and the median run's 99th percentile in microseconds.
    fn best(&self, flood: Option<&Flood>) -> Result<(Felt, f64), BenchError> {
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            runs.push(self.run(flood)?);
        }
        runs.sort_by(|one, other| one.p99_us.total_cmp(&other.p99_us));
        let median = runs.get(RUNS / 2).map_or(f64::INFINITY, |run| run.p99_us);
        let lost = runs.iter().map(|run| run.lost).sum();
        let best = runs.into_iter().next().ok_or_else(|| broken("nothing was run"))?;
        Ok((Felt { lost, ..best }, median))
    }

    /// On a thread of its own, which stays on the first processor.
    fn run(&self, flood: Option<&Flood>) -> Result<Felt, BenchError> {
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| self.receive_under(flood));
            receiver
                .join()
                .unwrap_or_else(|_| Err(broken("the receiver panicked")))
        })
    }

    fn receive_under(&self, flood: Option<&Flood>) -> Result<Felt, BenchError> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let wait = Duration::from_millis(20);
        let mut inbox = Inbox::open(any, 0, wait).map_err(broken)?;
        let arrivals = Arc::new(Arrivals::default());
        let mut service = self.service(&arrivals)?;
        let shared = Shared {
            receiver: inbox.address().map_err(broken)?,
            begin: Instant::now(),
            flood_after: self.length / 4,
            length: self.length,
            sent: AtomicBool::new(false),
        };
        let flood_ms = clock().ms() + shared.flood_after.as_millis() as u64;
        arrivals.from_ms.store(flood_ms, Ordering::Relaxed);
        let forged = flood.map(|flood| self.forged(flood)).transpose()?;
        std::thread::scope(|scope| {
            let vehicles = scope.spawn(|| {
                let counted = self.vehicles(&shared, flood_ms);
                shared.sent.store(true, Ordering::Relaxed);
                counted
            });
            let flood = forged.map(|forged| {
                let shared = &shared;
                scope.spawn(move || forged.send(shared))
            });
            let panicked = || broken("a sender panicked");
            receive(&mut inbox, &mut service, &shared)?;
            let sent = vehicles.join().map_err(|_| panicked())??;
            let flood_sent = match flood {
                Some(flood) => flood.join().map_err(|_| panicked())??,
                None => 0,
            };
            let served = service.finish().map_err(broken)?;
            let drops = inbox.lost().map_err(broken)?;
            felt(&arrivals, &served, sent, flood_sent, drops, &shared)
        })
    }

    fn service(&self, arrivals: &Arc<Arrivals>) -> Result<Service, BenchError> {
        let mut signers = Signers::default();
        for key in &self.keys {
            let text = key.public().to_json().map_err(broken)?;
            signers
                .add(PublicKey::from_json(&text).map_err(broken)?)
                .map_err(broken)?;
        }
        let replays = ReplayMemory::new(Window::DEFAULT, 1 << 16, [3; 16]);
        let receiver = Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays);
        let classes = [Class::RA_VERIFY, Class::P256_VERIFY, Class::ED25519_VERIFY];
        let spec = LaneSpec::new("processor", LaneKind::Cpu).with_grain(8);
        let spec = classes.into_iter().fold(spec, |spec, class| {
            spec.with(class, Line::new(Span::from_micros(1), 10_000.0))
        });
        let mut lane = widest();
        let samples = Samples::new(&receiver, None, clock(), [4; 32]);
        let spec = samples.measure(spec, &mut *lane).map_err(broken)?;
        let lane = Box::new(Pinned(lane, processors().map(|[first, _]| first)));
        let lanes = Lanes {
            lanes: vec![(spec, lane)],
            places: None,
        };
        let delivery: Arc<dyn Delivery> = Arc::<Arrivals>::clone(arrivals);
        let policy = Box::new(Adaptive::default());
        let random = [[5; 16], [6; 16]];
        Service::start(
            receiver,
            Config::default(),
            policy,
            lanes,
            delivery,
            clock,
            random,
        )
        .map_err(broken)
    }

    /// Sends what vehicles send, each from an address of its own; how many were signed from a time on.
    fn vehicles(&self, shared: &Shared, from_ms: u64) -> Result<u64, BenchError> {
        if let Some([_, last]) = processors() {
            stay_on(last);
        }
        let mut sockets = Vec::new();
        for number in (1..).take(self.keys.len()) {
            sockets.push(socket([127, 65, 0, number], shared.receiver)?);
        }
        let interval = Duration::from_secs(1) / (PER_S as u32 * self.keys.len() as u32);
        let mut counted = 0;
        for number in 0u32.. {
            let due = interval * number;
            if due >= shared.length {
                break;
            }
            std::thread::sleep(due.saturating_sub(shared.begin.elapsed()));
            let by_turns = number as usize % self.keys.len();
            let (Some(key), Some(socket)) = (self.keys.get(by_turns), sockets.get(by_turns)) else {
                continue;
            };
            let stamp = Stamp {
                time: clock(),
                priority: Priority::IMMEDIATE,
            };
            let message = message(key, stamp)?;
            socket.send(&message).map_err(broken)?;
            counted += u64::from(stamp.time.ms() >= from_ms);
        }
        Ok(counted)
    }

    /// Copies of a valid message in the name of an honest signer, with other payloads.
    fn forged(&self, flood: &Flood) -> Result<Forged, BenchError> {
        let Some(scheme) = flood.scheme else {
            let mut garbage = vec![vec![0; PAYLOAD_BYTES]; FORGED];
            for garbage in &mut garbage {
                getrandom::fill(garbage).map_err(broken)?;
            }
            return Ok(Forged {
                messages: garbage,
                signature_bytes: 0,
                flood: *flood,
            });
        };
        let key = self.keys.iter().find(|key| key.public().scheme() == scheme);
        let key = key.ok_or_else(|| broken("a scheme without a signer"))?;
        let stamp = Stamp {
            time: clock(),
            priority: flood.priority,
        };
        let valid = message(key, stamp)?;
        let behind = scheme.signature_bytes() + if scheme.is_rapid() { MASK_NAME_BYTES } else { 0 };
        let mut messages = vec![valid; FORGED];
        for message in &mut messages {
            let end = message.len() - behind;
            if let Some(payload) = message.get_mut(HEADER_BYTES..end) {
                getrandom::fill(payload).map_err(broken)?;
            }
        }
        Ok(Forged {
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
    // The half of it says the same in all messages of a vehicle, as positions do.
    let (_, changing) = payload.split_at_mut(bytes / 2);
    getrandom::fill(changing).map_err(broken)?;
    let [name] = names(1)?
        .try_into()
        .map_err(|_| broken("one name was asked for"))?;
    sign_at(key, &name, stamp, &payload)
}

/// What is sent over and over.
struct Forged {
    messages: Vec<Vec<u8>>,
    signature_bytes: usize,
    flood: Flood,
}

impl Forged {
    /// Sends until the vehicles have sent all; how many.
    fn send(mut self, shared: &Shared) -> Result<u64, BenchError> {
        if let Some([_, last]) = processors() {
            stay_on(last);
        }
        let mut sockets = Vec::new();
        for number in 1..=ADDRESSES {
            sockets.push(socket([127, 66, 0, number], shared.receiver)?);
        }
        std::thread::sleep(shared.flood_after.saturating_sub(shared.begin.elapsed()));
        let begin = Instant::now();
        let mut sent = 0u64;
        while !shared.sent.load(Ordering::Relaxed) {
            let due = match self.flood.per_s {
                Some(per_s) => (begin.elapsed().as_secs_f64() * per_s) as u64,
                None => u64::MAX,
            };
            if sent >= due {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            let count = (due - sent).min(256);
            self.send_some(&sockets, &mut sent, count)?;
        }
        Ok(sent)
    }

    fn send_some(&mut self, sockets: &[UdpSocket], sent: &mut u64, count: u64) -> Result<(), BenchError> {
        let stamp = Stamp {
            time: clock(),
            priority: self.flood.priority,
        };
        for _ in 0..count {
            let messages = self.messages.len();
            let message = self.messages.get_mut(*sent as usize % messages);
            let socket = sockets.get(*sent as usize % sockets.len().max(1));
            let (Some(message), Some(socket)) = (message, socket) else {
                return Err(broken("nothing to send"));
            };
            if self.signature_bytes > 0 {
                forge(message, stamp, self.signature_bytes, *sent);
            }
            // What the kernel does not take is not sent; loopback takes all.
            socket.send(message).map_err(broken)?;
            *sent += 1;
        }
        Ok(())
    }
}

/// Another stamp, and another number in the middle of the signature: in its range for all schemes.
fn forge(message: &mut [u8], stamp: Stamp, signature_bytes: usize, number: u64) {
    if let Some(place) = message.get_mut(12..18) {
        for (byte, of_stamp) in place.iter_mut().zip(stamp.bits().to_be_bytes().iter().skip(2)) {
            *byte = *of_stamp;
        }
    }
    // The middle of a modulus, or of the second number of 32 bytes.
    let place = message.len() - signature_bytes + 3 * signature_bytes / 4;
    for (byte, of_number) in message.iter_mut().skip(place - 4).zip(number.to_le_bytes()) {
        *byte = of_number;
    }
}

fn socket(from: [u8; 4], to: SocketAddr) -> Result<UdpSocket, BenchError> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::from(from), 0)).map_err(broken)?;
    socket.connect(to).map_err(broken)?;
    Ok(socket)
}

/// Receives until all has been sent and nothing comes.
fn receive(inbox: &mut Inbox, service: &mut Service, shared: &Shared) -> Result<(), BenchError> {
    if let Some([first, _]) = processors() {
        stay_on(first);
    }
    receive_first();
    loop {
        let received = inbox
            .receive(|datagram| service.take(&datagram))
            .map_err(broken)?;
        service.submit().map_err(broken)?;
        service.update_flood_filter(inbox).map_err(broken)?;
        if received == 0 && shared.sent.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

fn felt(
    arrivals: &Arrivals,
    served: &Served,
    sent: u64,
    flood_sent: u64,
    kernel_drops: u64,
    shared: &Shared,
) -> Result<Felt, BenchError> {
    if served.engine.sink_panics + served.engine.errors > 0 {
        return Err(broken("the service contradicted itself"));
    }
    let mut latencies = arrivals
        .latencies
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    latencies.sort_unstable();
    let quantile = |part: f64| {
        let place = (latencies.len() as f64 * part) as usize;
        let latency = latencies.get(place.min(latencies.len().saturating_sub(1)));
        latency.map_or(f64::INFINITY, |latency| latency.as_secs_f64() * 1e6)
    };
    let flooded = shared.length.saturating_sub(shared.flood_after);
    Ok(Felt {
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        lost: sent.saturating_sub(latencies.len() as u64) as f64,
        flood_per_s: flood_sent as f64 / flooded.as_secs_f64(),
        kernel_drops: kernel_drops as f64,
    })
}
