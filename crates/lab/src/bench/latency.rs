//! Latency of complete authentications in sequence, from REQUEST to verified ACK. An ordinary UDP client, which polls its socket,
//! authenticates through `xdp` and through `host` on the same kind of veth. The classic profile is measured in the same
//! way, at 64 and 256 bits.
//!
//! Client and verifier have one CPU each. The threads of `host` sleep until a datagram arrives, as in production.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use linewarden_dataplane::classic::ClassicProfile;
use linewarden_dataplane::classic::host::ClassicHost;
use linewarden_dataplane::classic::xdp::{ClassicXdp, Profile};
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Config, DataPlane, DataPlaneError, Store};
use linewarden_protocol::classic::{self, Block, Message as ClassicMessage, ResponseBits};
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{self, LAP_PORT, Message};
use linewarden_protocol::{ids::Suite, tag};
use zerocopy::IntoBytes as _;

use super::{BenchError, Report, Row, Scale, freshness, io, keys};
use crate::address::GATEWAY;
use crate::fleet::device_id;
use crate::napi::{NapiThreads, pin_task, task_cpu_time};
use crate::topology::{Lab, Topology};

/// The device that the client simulates, with the addresses of the lab's ordinary host.
const DEVICE: u32 = 1;
pub(super) const CLIENT_CPU: usize = 0;
pub(super) const VERIFIER_CPU: usize = 1;

/// Latencies of one series, ns.
#[derive(Clone, Debug)]
pub struct Series {
    /// Label in the legend.
    pub name: String,
    /// The chart of the series.
    pub picture: &'static str,
    /// Latencies, to three significant digits.
    pub latency_ns: Histogram<u64>,
}

/// The verifier: one of the two data planes.
enum Verifier {
    Xdp(Box<Xdp>),
    Host(Box<Host>),
}

impl Verifier {
    fn start(lab: &Lab, config: &Config, xdp: bool, cpu: usize) -> Result<Self, BenchError> {
        if xdp {
            let mut data_plane = Xdp::load(config)?;
            lab.gateway
                .run(|| data_plane.attach(lab.gateway_devices_end.index))??;
            return Ok(Self::Xdp(Box::new(data_plane)));
        }
        let start = || Host::start(config, &one_thread(cpu));
        Ok(Self::Host(Box::new(lab.gateway.run(start)??)))
    }

    fn data_plane(&mut self) -> &mut dyn DataPlane {
        match self {
            Self::Xdp(data_plane) => data_plane.as_mut(),
            Self::Host(data_plane) => data_plane.as_mut(),
        }
    }

    fn store(&self) -> &Store {
        match self {
            Self::Xdp(data_plane) => data_plane.store(),
            Self::Host(data_plane) => data_plane.store(),
        }
    }
}

/// The options of a verifier with one thread on this CPU.
fn one_thread(cpu: usize) -> HostOptions {
    HostOptions {
        threads: 1,
        cpus: vec![cpu],
        ..HostOptions::default()
    }
}

/// The verifier of a classic profile. It serves until it is dropped.
enum ClassicVerifier {
    Xdp { _program: Box<ClassicXdp> },
    Host { _threads: ClassicHost },
}

impl ClassicVerifier {
    fn start(lab: &Lab, run: ClassicRun, xdp: bool, cpu: usize) -> Result<Self, BenchError> {
        let config = keys::config(16, 8);
        let identifiers = run.count.div_ceil(run.rows).max(1);
        let classic = keys::classic(run.profile, run.bits.bytes(), identifiers, run.rows);
        if xdp {
            let mut program = ClassicXdp::load(&config, Profile::Classic(&classic))?;
            lab.gateway
                .run(|| program.attach(lab.gateway_devices_end.index))??;
            return Ok(Self::Xdp {
                _program: Box::new(program),
            });
        }
        let start = || ClassicHost::start(&config.local, &classic, &one_thread(cpu));
        Ok(Self::Host {
            _threads: lab.gateway.run(start)??,
        })
    }
}

fn lab() -> Result<Lab, BenchError> {
    Ok(Lab::build(&Topology {
        ipv6: false,
        ..Topology::default()
    })?)
}

fn histogram() -> Histogram<u64> {
    // Up to 100 s with three digits; the library accepts these constant bounds.
    Histogram::new_with_bounds(1, 100_000_000_000, 3)
        .unwrap_or_else(|_| Histogram::<u64>::new_from(&auto_resizing_histogram()))
}

fn auto_resizing_histogram() -> Histogram<u64> {
    let mut histogram = match Histogram::new(1) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("one digit is always allowed: {error}"),
    };
    histogram.auto(true);
    histogram
}

/// Opens a client socket in the calling thread's namespace, connected to `port` of the gateway.
fn client(port: u16) -> Result<UdpSocket, BenchError> {
    pin_task(0, CLIENT_CPU).map_err(io("pin the client thread"))?;
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(io("bind the client socket"))?;
    socket
        .connect(SocketAddr::new(IpAddr::V4(GATEWAY.v4), port))
        .map_err(io("connect the client socket"))?;
    socket
        .set_nonblocking(true)
        .map_err(io("configure the client socket"))?;
    Ok(socket)
}

/// Sends a message and polls for the reply, at most 10 s: on a busy machine the gateway may have to wait for its CPU.
fn exchange<'b>(socket: &UdpSocket, message: &[u8], reply: &'b mut [u8]) -> Result<&'b [u8], BenchError> {
    socket.send(message).map_err(io("send a message"))?;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match socket.recv(reply) {
            Ok(length) => return Ok(reply.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {}
            Err(error) => {
                return Err(BenchError::Io {
                    operation: "wait for the gateway's reply",
                    source: error,
                });
            }
        }
    }
}

fn unexpected_reply(expected: &str) -> BenchError {
    BenchError::InvalidMeasurement(format!("the gateway's reply is not a {expected}"))
}

/// One complete authentication in key mode, including the verification of the ACK's tag.
fn handshake(socket: &UdpSocket, idx: RowIndex) -> Result<(), BenchError> {
    let mut buffer = [0u8; 128];
    let reply = exchange(socket, keys::request(DEVICE).as_bytes(), &mut buffer)?;
    let Ok(Message::Challenge(challenge)) = wire::parse(reply) else {
        return Err(unexpected_reply("CHALLENGE"));
    };
    let offered_row = RowIndex(challenge.idx.get());
    if offered_row != idx {
        return Err(BenchError::InvalidMeasurement(format!(
            "the gateway offered row {offered_row} instead of {idx}"
        )));
    }
    let response = keys::response(DEVICE, Mode::Key, offered_row, false);
    let reply = exchange(socket, response.as_bytes(), &mut buffer)?;
    let Ok(Message::Ack(ack)) = wire::parse(reply) else {
        return Err(unexpected_reply("ACK"));
    };
    let key = keys::auth_key(DEVICE, Mode::Key, offered_row);
    let session_key = SessionKey::derive(&key, Suite::SipHash128, &response.tag);
    tag::verify(&tag::ack(&session_key, ack), &ack.tag)
        .map(|_| ())
        .ok_or_else(|| unexpected_reply("verified ACK"))
}

/// Measures `count` authentications through one data plane.
fn lap_latency(xdp: bool, count: u32, runs: u32) -> Result<Histogram<u64>, BenchError> {
    let lab = lab()?;
    let mut verifier = Verifier::start(&lab, &keys::config(16, 8), xdp, VERIFIER_CPU)?;
    let rows = keys::rows(DEVICE, Mode::Key, RowIndex(0), 1);
    verifier
        .data_plane()
        .install(device_id(DEVICE), Mode::Key, RowIndex(0), &rows, None)
        .map_err(DataPlaneError::from)?;
    let store = verifier.store();
    let mut row_indices = 0..;
    let mut best: Option<Histogram<u64>> = None;
    for _ in 0..runs {
        let mut latency_ns = histogram();
        lab.devices.run(|| -> Result<(), BenchError> {
            let socket = client(LAP_PORT)?;
            for (number, idx) in (0..count).zip(row_indices.by_ref()) {
                if number % 1000 == 0 {
                    freshness::refresh(store);
                }
                let start = Instant::now();
                handshake(&socket, RowIndex(idx))?;
                latency_ns.saturating_record(nanos(start.elapsed()));
            }
            Ok(())
        })??;
        keep_lower_p99(&mut best, latency_ns);
    }
    Ok(best.unwrap_or_else(histogram))
}

/// Keeps the run with the lowest p99, because disturbances only add latency.
fn keep_lower_p99(best: &mut Option<Histogram<u64>>, run: Histogram<u64>) {
    let p99 = |histogram: &Histogram<u64>| histogram.value_at_quantile(0.99);
    if best.as_ref().is_none_or(|best| p99(&run) < p99(best)) {
        *best = Some(run);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn block(bytes: &[u8]) -> Block {
    let mut block = Block::default();
    block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    block
}

/// The response of a device to a classic challenge.
fn classic_response(
    identifier: u32,
    bits: ResponseBits,
    challenge: &ClassicMessage,
) -> Option<ClassicMessage> {
    let response = |number: u32| {
        block(&keys::classic_response(
            identifier,
            number.wrapping_sub(1),
            bits.bytes(),
        ))
    };
    let second = (challenge.challenge2 != 0).then(|| response(challenge.challenge2));
    classic::device::respond(challenge, bits, &response(challenge.challenge1), second.as_ref())
}

/// One classic exchange with an immediate reply to each message.
fn classic_handshake(socket: &UdpSocket, identifier: u32, bits: ResponseBits) -> Result<(), BenchError> {
    let mut payload = vec![0u8; bits.message_bytes()];
    let mut buffer = [0u8; 128];
    let malformed = || BenchError::InvalidMeasurement("a classic message cannot be encoded".into());
    classic::device::request(identifier)
        .write(bits, &mut payload)
        .ok_or_else(malformed)?;
    let reply = exchange(socket, &payload, &mut buffer)?;
    let challenge =
        ClassicMessage::parse(bits, reply).ok_or_else(|| unexpected_reply("classic challenge"))?;
    let response = classic_response(identifier, bits, &challenge)
        .ok_or_else(|| unexpected_reply("classic challenge"))?;
    response.write(bits, &mut payload).ok_or_else(malformed)?;
    let reply = exchange(socket, &payload, &mut buffer)?;
    let ack = ClassicMessage::parse(bits, reply).ok_or_else(|| unexpected_reply("classic ACK"))?;
    if classic::device::is_accepted(&ack, &response) {
        Ok(())
    } else {
        Err(unexpected_reply("classic ACK"))
    }
}

/// A measurement of a classic profile: the profile, its response size, and the number of exchanges as in the IoT and
/// UAV papers.
#[derive(Clone, Copy)]
struct ClassicRun {
    profile: ClassicProfile,
    bits: ResponseBits,
    count: u32,
    /// CRPs of a device: 500 in the IoT paper, 5 in the UAV paper. `classic-uav` draws one CRP from each of two halves; the
    /// fifth CRP is not used.
    rows: u32,
}

impl ClassicRun {
    fn identifier(self, exchange: u32) -> u32 {
        exchange / self.rows + 1
    }
}

fn classic_latency(run: ClassicRun, xdp: bool, runs: u32) -> Result<Histogram<u64>, BenchError> {
    let mut best = None;
    for _ in 0..runs {
        let lab = lab()?;
        let _verifier = ClassicVerifier::start(&lab, run, xdp, VERIFIER_CPU)?;
        let mut latency_ns = histogram();
        lab.devices.run(|| -> Result<(), BenchError> {
            let socket = client(keys::CLASSIC_PORT)?;
            for number in 0..run.count {
                let start = Instant::now();
                classic_handshake(&socket, run.identifier(number), run.bits)?;
                latency_ns.saturating_record(nanos(start.elapsed()));
            }
            Ok(())
        })??;
        keep_lower_p99(&mut best, latency_ns);
    }
    Ok(best.unwrap_or_else(histogram))
}

/// Measures the verifier's CPU time of one classic exchange, for each response size and data plane, in bursts of 64.
///
/// # Errors
/// The lab or a data plane could not be set up.
pub fn classic_costs(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    for bits in [ResponseBits::B64, ResponseBits::B128, ResponseBits::B256] {
        let count = scale.handshakes * 4;
        // At least 64 identifiers, one for each exchange of a burst: an identifier has only one outstanding challenge.
        let crps = (count / 64).clamp(2, 500);
        let run = ClassicRun {
            profile: ClassicProfile::Iot,
            bits,
            count,
            rows: crps,
        };
        let xdp = classic_cpu_ns(run, true)?;
        let host = classic_cpu_ns(run, false)?;
        let size = bits.bytes() * 8;
        rows.push(Row::lower(
            format!("xdp.classic_cpu_ns.{size}"),
            xdp,
            "ns of verifier CPU",
            None,
        ));
        rows.push(Row::lower(
            format!("host.classic_cpu_ns.{size}"),
            host,
            "ns of verifier CPU",
            None,
        ));
        rows.push(Row::higher(
            format!("xdp_over_host.classic_rate.{size}"),
            host / xdp,
            "ratio",
            None,
        ));
    }
    Ok(())
}

fn classic_cpu_ns(run: ClassicRun, xdp: bool) -> Result<f64, BenchError> {
    let lab = lab()?;
    let _verifier = ClassicVerifier::start(&lab, run, xdp, CLIENT_CPU)?;
    let gateway_napi = NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name)?;
    gateway_napi.pin(&[CLIENT_CPU])?;
    // The client side needs its own receive thread; otherwise its work would be counted in the verifier's thread.
    NapiThreads::enable(&lab.devices, &lab.devices_end.name)?.pin(&[CLIENT_CPU])?;
    let threads = if xdp {
        Vec::new()
    } else {
        super::rate::threads_named("lw-host-")?
    };
    let verifier_cpu_time = || -> Result<Duration, BenchError> {
        let mut sum = gateway_napi.cpu_time()?;
        for pid in &threads {
            sum += task_cpu_time(*pid).map_err(io("read the CPU time of a thread"))?;
        }
        Ok(sum)
    };
    let before = verifier_cpu_time()?;
    let completed = lab.devices.run(|| classic_bursts(run))??;
    Ok((verifier_cpu_time()? - before).as_nanos() as f64 / f64::from(completed.max(1)))
}

/// Exchanges in bursts: 64 REQs, then the responses to the challenges. Returns the number of accepted exchanges.
///
/// The client runs on the verifier's CPU and sleeps while the verifier works, so the verifier finds a whole burst and does
/// not sleep within it.
fn classic_bursts(run: ClassicRun) -> Result<u32, BenchError> {
    const BURST: u32 = 64;
    let socket = client(keys::CLASSIC_PORT)?;
    socket
        .set_nonblocking(false)
        .map_err(io("configure the client socket"))?;
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .map_err(io("configure the client socket"))?;
    let mut payload = vec![0u8; run.bits.message_bytes()];
    let mut done = 0;
    let identifiers = run.count.div_ceil(run.rows).max(1);
    let mut buffer = [0u8; 128];
    for burst in 0..run.count / BURST {
        // Different identifiers in a burst, because an identifier has only one outstanding challenge.
        let ids: Vec<u32> = (0..BURST.min(identifiers))
            .map(|offset| (burst * BURST + offset) % identifiers + 1)
            .collect();
        for id in &ids {
            if classic::device::request(*id)
                .write(run.bits, &mut payload)
                .is_some()
            {
                socket.send(&payload).map_err(io("send a message"))?;
            }
        }
        // Challenges and ACKs arrive in any order; a lost message ends the burst.
        let mut accepted = 0;
        while accepted < ids.len() {
            let Ok(length) = socket.recv(&mut buffer) else {
                break;
            };
            let Some(message) = ClassicMessage::parse(run.bits, buffer.get(..length).unwrap_or_default())
            else {
                continue;
            };
            if let Some(response) = classic_response(message.identifier, run.bits, &message) {
                if response.write(run.bits, &mut payload).is_some() {
                    socket.send(&payload).map_err(io("send a message"))?;
                }
            } else if message.kind == classic::message_type::ACK {
                accepted += 1;
            }
        }
        done += u32::try_from(accepted).unwrap_or(0);
    }
    Ok(done)
}

/// Adds the rows and series of this part.
///
/// # Errors
/// The lab or a data plane could not be set up.
pub fn rows(scale: &Scale, report: &mut Report) -> Result<(), BenchError> {
    let runs = scale.runs.clamp(1, 3);
    let (xdp, host) = (
        lap_latency(true, scale.handshakes, runs)?,
        lap_latency(false, scale.handshakes, runs)?,
    );
    push_pair(report, "lap", &xdp, &host);
    let ratio = |quantile: f64| {
        host.value_at_quantile(quantile) as f64 / xdp.value_at_quantile(quantile).max(1) as f64
    };
    report.rows.push(Row::higher(
        "xdp_over_host.latency_p50",
        ratio(0.5),
        "ratio",
        None,
    ));
    report.rows.push(Row::higher(
        "xdp_over_host.latency_p99",
        ratio(0.99),
        "ratio",
        Some(2.0),
    ));
    push_series(report, "LAP/1, xdp", "iot-fig9a", xdp);
    push_series(report, "LAP/1, host", "iot-fig9a", host);
    for bits in [ResponseBits::B64, ResponseBits::B256] {
        let run = ClassicRun {
            profile: ClassicProfile::Iot,
            bits,
            count: scale.handshakes,
            rows: 500,
        };
        let (xdp, host) = (
            classic_latency(run, true, runs)?,
            classic_latency(run, false, runs)?,
        );
        let size = bits.bytes() * 8;
        push_pair(report, &format!("classic_iot_{size}"), &xdp, &host);
        push_series(report, &format!("classic {size} bit, xdp"), "iot-fig9a", xdp);
        push_series(report, &format!("classic {size} bit, host"), "iot-fig9a", host);
    }
    let run = ClassicRun {
        profile: ClassicProfile::Uav,
        bits: ResponseBits::B64,
        count: 100,
        rows: 5,
    };
    let (xdp, host) = (
        classic_latency(run, true, runs)?,
        classic_latency(run, false, runs)?,
    );
    push_pair(report, "classic_uav_64", &xdp, &host);
    push_series(report, "classic-uav, xdp", "uav-fig9", xdp);
    push_series(report, "classic-uav, host", "uav-fig9", host);
    Ok(())
}

fn push_pair(report: &mut Report, name: &str, xdp: &Histogram<u64>, host: &Histogram<u64>) {
    for (data_plane, histogram) in [("xdp", xdp), ("host", host)] {
        for (quantile, label) in [(0.5, "p50"), (0.99, "p99")] {
            let us = histogram.value_at_quantile(quantile) as f64 / 1000.0;
            report.rows.push(Row::lower(
                format!("{data_plane}.{name}_latency_us.{label}"),
                us,
                "us",
                None,
            ));
        }
    }
}

fn push_series(report: &mut Report, name: &str, picture: &'static str, latency_ns: Histogram<u64>) {
    report.latencies.push(Series {
        name: name.into(),
        picture,
        latency_ns,
    });
}
