//! Complete authentications one after another: REQUEST to verified ACK by an ordinary UDP client, which waits by
//! polling, through `xdp` and through `host` on the same veth. The classic profile likewise, at 64 and 256 bits.
//!
//! Client and verifier have a CPU each. The host's threads sleep until a datagram comes, as a server's do.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{Classic, ClassicProfile, Config, DataPlane, DataPlaneError, Store};
use linewarden_protocol::classic::{self, Block, Message as ClassicMessage, ResponseBits};
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{self, LAP_PORT, Message};
use linewarden_protocol::{ids::Suite, tag};
use zerocopy::IntoBytes as _;

use super::{BenchError, Report, Row, Scale, io, keys, wait};
use crate::address::GATEWAY;
use crate::fleet::device_id;
use crate::napi::{NapiThreads, pin_task, task_cpu_time};
use crate::topology::{Lab, Topology};

/// The device that the client plays; its addresses are those of the lab's ordinary host.
const DEVICE: u32 = 1;
pub(super) const CLIENT_CPU: usize = 0;
pub(super) const VERIFIER_CPU: usize = 1;

/// Latencies of one series, ns.
#[derive(Clone, Debug)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Which picture it belongs to.
    pub picture: &'static str,
    /// To three significant digits.
    pub latency_ns: Histogram<u64>,
}

/// A verifier for the client: either data plane.
enum Verifier {
    Xdp(Box<Xdp>),
    Host(Box<Host>),
}

impl Verifier {
    fn start(lab: &Lab, config: &Config, xdp: bool, cpu: usize) -> Result<Self, BenchError> {
        if xdp {
            let mut plane = Xdp::load(config)?;
            lab.gateway
                .run(|| plane.attach(lab.gateway_devices_end.index))??;
            return Ok(Self::Xdp(Box::new(plane)));
        }
        let options = HostOptions {
            threads: 1,
            cpus: vec![cpu],
            ..HostOptions::default()
        };
        Ok(Self::Host(Box::new(
            lab.gateway.run(|| Host::start(config, &options))??,
        )))
    }

    fn plane(&mut self) -> &mut dyn DataPlane {
        match self {
            Self::Xdp(plane) => plane.as_mut(),
            Self::Host(plane) => plane.as_mut(),
        }
    }

    fn store(&self) -> &Store {
        match self {
            Self::Xdp(plane) => plane.store(),
            Self::Host(plane) => plane.store(),
        }
    }
}

fn lab() -> Result<Lab, BenchError> {
    Ok(Lab::build(&Topology {
        ipv6: false,
        ..Topology::default()
    })?)
}

fn histogram() -> Histogram<u64> {
    // Up to 100 s at three digits: the bounds are constants that the library accepts.
    Histogram::new_with_bounds(1, 100_000_000_000, 3)
        .unwrap_or_else(|_| Histogram::<u64>::new_from(&fallback()))
}

fn fallback() -> Histogram<u64> {
    let mut histogram = match Histogram::new(1) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("one digit is always allowed: {error}"),
    };
    histogram.auto(true);
    histogram
}

/// A client's socket in the calling thread's namespace, connected to that port of the gateway.
fn client(port: u16) -> Result<UdpSocket, BenchError> {
    pin_task(0, CLIENT_CPU).map_err(io("pinning the client"))?;
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(io("binding the client's socket"))?;
    socket
        .connect(SocketAddr::new(IpAddr::V4(GATEWAY.v4), port))
        .map_err(io("connecting the client's socket"))?;
    socket.set_nonblocking(true).map_err(io("the client's socket"))?;
    Ok(socket)
}

/// Sends and polls for the answer, at most ten seconds: on a machine that is busy otherwise the gateway may have to wait for its turn.
fn ask<'b>(socket: &UdpSocket, message: &[u8], answer: &'b mut [u8]) -> Result<&'b [u8], BenchError> {
    socket.send(message).map_err(io("sending"))?;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match socket.recv(answer) {
            Ok(length) => return Ok(answer.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {}
            Err(error) => {
                return Err(BenchError::Io {
                    what: "waiting for the gateway's answer",
                    source: error,
                });
            }
        }
    }
}

fn wrong(what: &str) -> BenchError {
    BenchError::Contradiction(format!("the gateway's answer was no {what}"))
}

/// One complete authentication in key mode, the ACK's tag verified.
fn handshake(socket: &UdpSocket, idx: RowIndex) -> Result<(), BenchError> {
    let mut buffer = [0u8; 128];
    let answer = ask(socket, keys::request(DEVICE).as_bytes(), &mut buffer)?;
    let Ok(Message::Challenge(challenge)) = wire::parse(answer) else {
        return Err(wrong("CHALLENGE"));
    };
    let offered = RowIndex(challenge.idx.get());
    if offered != idx {
        return Err(BenchError::Contradiction(format!(
            "idx {offered} was offered, not {idx}"
        )));
    }
    let response = keys::response(DEVICE, Mode::Key, offered, false);
    let answer = ask(socket, response.as_bytes(), &mut buffer)?;
    let Ok(Message::Ack(ack)) = wire::parse(answer) else {
        return Err(wrong("ACK"));
    };
    let key = keys::auth_key(DEVICE, Mode::Key, offered);
    let session_key = SessionKey::derive(&key, Suite::SipHash128, &response.tag);
    tag::verify(&tag::ack(&session_key, ack), &ack.tag)
        .map(|_| ())
        .ok_or_else(|| wrong("verified ACK"))
}

/// `count` authentications through one data plane.
fn lap(xdp: bool, count: u32, runs: u32) -> Result<Histogram<u64>, BenchError> {
    let lab = lab()?;
    let mut verifier = Verifier::start(&lab, &keys::config(16, 8), xdp, VERIFIER_CPU)?;
    let rows = keys::rows(DEVICE, Mode::Key, RowIndex(0), 1);
    verifier
        .plane()
        .install(device_id(DEVICE), Mode::Key, RowIndex(0), &rows, None)
        .map_err(DataPlaneError::from)?;
    let store = verifier.store();
    let mut next = 0..;
    let mut best: Option<Histogram<u64>> = None;
    for _ in 0..runs {
        let mut latency_ns = histogram();
        lab.devices.run(|| -> Result<(), BenchError> {
            let socket = client(LAP_PORT)?;
            for (at, idx) in (0..count).zip(next.by_ref()) {
                if at % 1000 == 0 {
                    wait::keep_fresh(store);
                }
                let start = Instant::now();
                handshake(&socket, RowIndex(idx))?;
                latency_ns.saturating_record(nanos(start.elapsed()));
            }
            Ok(())
        })??;
        keep_better(&mut best, latency_ns);
    }
    Ok(best.unwrap_or_else(histogram))
}

/// Of several runs the one with the lowest p99 counts: whatever disturbs a run only adds to it.
fn keep_better(best: &mut Option<Histogram<u64>>, run: Histogram<u64>) {
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

/// The answer of a device to a classic challenge.
fn classic_answer(identifier: u32, bits: ResponseBits, challenge: &ClassicMessage) -> Option<ClassicMessage> {
    let response = |number: u32| {
        block(&keys::classic_response(
            identifier,
            number.wrapping_sub(1),
            bits.bytes(),
        ))
    };
    let two = (challenge.challenge2 != 0).then(|| response(challenge.challenge2));
    classic::device::respond(challenge, bits, &response(challenge.challenge1), two.as_ref())
}

/// One classic exchange with an answer at once to each message.
fn classic_handshake(socket: &UdpSocket, identifier: u32, bits: ResponseBits) -> Result<(), BenchError> {
    let mut payload = vec![0u8; bits.message_bytes()];
    let mut buffer = [0u8; 128];
    let malformed = || BenchError::Contradiction("a classic message".into());
    classic::device::request(identifier)
        .write(bits, &mut payload)
        .ok_or_else(malformed)?;
    let answer = ask(socket, &payload, &mut buffer)?;
    let challenge = ClassicMessage::parse(bits, answer).ok_or_else(|| wrong("classic challenge"))?;
    let response = classic_answer(identifier, bits, &challenge).ok_or_else(|| wrong("classic challenge"))?;
    response.write(bits, &mut payload).ok_or_else(malformed)?;
    let answer = ask(socket, &payload, &mut buffer)?;
    let ack = ClassicMessage::parse(bits, answer).ok_or_else(|| wrong("classic ACK"))?;
    if classic::device::is_accepted(&ack, &response) {
        Ok(())
    } else {
        Err(wrong("classic ACK"))
    }
}

/// What of the classic profile is measured: the profile, its size, and as in the papers how many exchanges.
#[derive(Clone, Copy)]
struct ClassicRun {
    profile: ClassicProfile,
    bits: ResponseBits,
    count: u32,
    /// CRPs of a device: 500 in the IoT paper, 5 (of which two halves of 2 are used) in the UAV paper.
    rows: u32,
}

impl ClassicRun {
    fn config(self) -> Config {
        let identifiers = self.count.div_ceil(self.rows).max(1);
        let classic: Classic = keys::classic(self.profile, self.bits.bytes(), identifiers, self.rows);
        let mut config = keys::config(16, 8);
        config.classic = Some(classic);
        config
    }

    fn identifier(self, at: u32) -> u32 {
        at / self.rows + 1
    }
}

fn classic_latency(run: ClassicRun, xdp: bool, runs: u32) -> Result<Histogram<u64>, BenchError> {
    let mut best = None;
    for _ in 0..runs {
        let lab = lab()?;
        let _verifier = Verifier::start(&lab, &run.config(), xdp, VERIFIER_CPU)?;
        let mut latency_ns = histogram();
        lab.devices.run(|| -> Result<(), BenchError> {
            let socket = client(keys::CLASSIC_PORT)?;
            for at in 0..run.count {
                let start = Instant::now();
                classic_handshake(&socket, run.identifier(at), run.bits)?;
                latency_ns.saturating_record(nanos(start.elapsed()));
            }
            Ok(())
        })??;
        keep_better(&mut best, latency_ns);
    }
    Ok(best.unwrap_or_else(histogram))
}

/// Verifier CPU time of one classic exchange at each response size, both data planes, in bursts of 64 requests.
///
/// # Errors
/// Those of the lab and the data planes.
pub fn classic_costs(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    for bits in [ResponseBits::B64, ResponseBits::B128, ResponseBits::B256] {
        let count = scale.handshakes * 4;
        // At least a burst of identifiers, each with a challenge outstanding.
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
    let _verifier = Verifier::start(&lab, &run.config(), xdp, CLIENT_CPU)?;
    let far = NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name)?;
    far.pin(&[CLIENT_CPU])?;
    // On a thread of its own too, or the client's side of the work would be done, and counted, where the reply is made.
    NapiThreads::enable(&lab.devices, &lab.devices_end.name)?.pin(&[CLIENT_CPU])?;
    let threads = if xdp {
        Vec::new()
    } else {
        super::rate::threads_named("lw-host-")?
    };
    let used = || -> Result<Duration, BenchError> {
        let mut sum = far.cpu_time()?;
        for pid in &threads {
            sum += task_cpu_time(*pid).map_err(io("reading a thread's CPU time"))?;
        }
        Ok(sum)
    };
    let before = used()?;
    let done = lab.devices.run(|| classic_bursts(run))??;
    Ok((used()? - before).as_nanos() as f64 / f64::from(done.max(1)))
}

/// Exchanges in bursts: 64 REQs, then the answers to what came back. Returns how many were accepted.
///
/// On the verifier's CPU, and asleep while it works: so it finds a burst at a time and does not sleep in between.
fn classic_bursts(run: ClassicRun) -> Result<u32, BenchError> {
    const BURST: u32 = 64;
    let socket = client(keys::CLASSIC_PORT)?;
    socket.set_nonblocking(false).map_err(io("the client's socket"))?;
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .map_err(io("the client's socket"))?;
    let mut payload = vec![0u8; run.bits.message_bytes()];
    let mut done = 0;
    let identifiers = run.count.div_ceil(run.rows).max(1);
    let mut buffer = [0u8; 128];
    for burst in 0..run.count / BURST {
        // Different identifiers in a burst, since each has one challenge outstanding.
        let ids: Vec<u32> = (0..BURST.min(identifiers))
            .map(|at| (burst * BURST + at) % identifiers + 1)
            .collect();
        for id in &ids {
            if classic::device::request(*id)
                .write(run.bits, &mut payload)
                .is_some()
            {
                socket.send(&payload).map_err(io("sending"))?;
            }
        }
        // Challenges and ACKs come back in any order; a lost one ends the burst.
        let mut accepted = 0;
        while accepted < ids.len() {
            let Ok(length) = socket.recv(&mut buffer) else {
                break;
            };
            let Some(message) = ClassicMessage::parse(run.bits, buffer.get(..length).unwrap_or_default())
            else {
                continue;
            };
            if let Some(response) = classic_answer(message.identifier, run.bits, &message) {
                if response.write(run.bits, &mut payload).is_some() {
                    socket.send(&payload).map_err(io("sending"))?;
                }
            } else if message.kind == classic::message_type::ACK {
                accepted += 1;
            }
        }
        done += u32::try_from(accepted).unwrap_or(0);
    }
    Ok(done)
}

/// The rows and series of this part.
///
/// # Errors
/// Those of the lab and the data planes.
pub fn rows(scale: &Scale, report: &mut Report) -> Result<(), BenchError> {
    let runs = scale.runs.clamp(1, 3);
    let (xdp, host) = (
        lap(true, scale.handshakes, runs)?,
        lap(false, scale.handshakes, runs)?,
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
    series(report, "LAP/1, xdp", "iot-fig9a", xdp);
    series(report, "LAP/1, host", "iot-fig9a", host);
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
        series(report, &format!("classic {size} bit, xdp"), "iot-fig9a", xdp);
        series(report, &format!("classic {size} bit, host"), "iot-fig9a", host);
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
    series(report, "classic-uav, xdp", "uav-fig9", xdp);
    series(report, "classic-uav, host", "uav-fig9", host);
    Ok(())
}

fn push_pair(report: &mut Report, name: &str, xdp: &Histogram<u64>, host: &Histogram<u64>) {
    for (plane, histogram) in [("xdp", xdp), ("host", host)] {
        for (quantile, label) in [(0.5, "p50"), (0.99, "p99")] {
            let us = histogram.value_at_quantile(quantile) as f64 / 1000.0;
            report.rows.push(Row::lower(
                format!("{plane}.{name}_latency_us.{label}"),
                us,
                "us",
                None,
            ));
        }
    }
}

fn series(report: &mut Report, name: &str, picture: &'static str, latency_ns: Histogram<u64>) {
    report.latencies.push(Series {
        name: name.into(),
        picture,
        latency_ns,
    });
}
