//! PROOFs over a veth: what `xdp` takes for one beside verifiers of user space, and how long it takes until all of many provers
//! are attested.
//!
//! Every run is a round, each PROOF of which comes once, over the same kind of veth and in the same bursts ([`crate::burst`]). Of
//! user space there are two verifiers, both the `host` data plane's with the portable Forró: on a UDP socket, 64 datagrams a
//! call, as it is run; and on a packet socket's memory ring, whose frames the stack then drops first of all, as for another
//! station.
//!
//! *Rates* are PROOFs per second of the verifier's processor time: of the receive thread of the gateway's interface, where `xdp`
//! does all of its work (numbers of PROOFs are even: a last one would wait for who looks, and that is not counted) and the stack
//! its part for the others, and of the thread in user space, its system calls and copies included. The sender is on the same processor and is not counted: from another one's cache each frame would cost all
//! verifiers the same on top. *Times* are that processor time for a whole round, of two provers up to all: what a core is busy
//! with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use linewarden_dataplane::host::{Engine, Host, HostOptions, Moment, ThreadState};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{DataPlane, DataPlaneError};
use linewarden_forro::Backend;
use linewarden_protocol::frame;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{LAP_PORT, PROOF_BYTES};

use super::Size;
use super::proof::{frames_of_next, in_memory};
use super::provers::{Fleet, open};
use crate::bench::rate::threads_named;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};
use crate::burst::{Burster, FRAME_BYTES};
use crate::clock::monotonic_ns;
use crate::napi::{NapiThreads, is_running, pin_task, task_cpu_time};
use crate::packet_socket::{Options, PacketSocket};
use crate::topology::{Lab, Topology};

/// Processor of all verifiers.
const CPU: usize = 0;
/// PROOFs of a burst: half of what waits at an end of a veth at most, two calls of a socket's.
const BURST: u32 = 128;
/// Of the rates, as of `xdp.proof_ns`.
const PROVERS: u32 = 10_000;
/// Runs of which the time of a round is the least.
const TIMED_RUNS: u32 = 10;
/// PROOFs that a packet ring's verifier judges at once.
const RING_BATCH: usize = 64;
/// How often it looks whether it shall end.
const RING_WAIT: Duration = Duration::from_millis(50);
/// Nobody's: first byte of the address of frames for another station.
const ELSEWHERE: u8 = 6;

/// Rates and times.
///
/// # Errors
/// Those of the lab and the data planes.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        let text = "sender and verifier need a processor each";
        return Err(BenchError::Contradiction(text.to_owned()));
    }
    progress("proofs over a link, xdp", None);
    let mut xdp = Site::new(size)?.xdp()?;
    let kernel = xdp.rate(size, "xdp", rows)?;
    xdp.times(size, "xdp", rows)?;
    drop(xdp);
    progress("proofs over a link, a socket", None);
    let mut socket = Site::new(size)?.socket(Backend::PORTABLE)?;
    let portable = socket.rate(size, "socket", rows)?;
    socket.times(size, "socket", rows)?;
    drop(socket);
    let widest = Backend::widest();
    if widest != Backend::PORTABLE {
        let name = format!("socket.{}", widest.name());
        Site::new(size)?.socket(widest)?.rate(size, &name, rows)?;
    }
    progress("proofs over a link, a packet ring", None);
    let ring = Site::new(size)?.ring(size, rows)?;
    rows.push(Row::higher(
        "xdp_over_socket.proof_rate",
        kernel / portable,
        "ratio",
        Some(3.0),
    ));
    rows.push(Row::fact("xdp_over_ring.proof_rate", kernel / ring, "ratio"));
    for provers in size.attested {
        let all_ms = in_memory(*provers, TIMED_RUNS.min(size.runs), widest, 1)? * f64::from(*provers) / 1e6;
        rows.push(Row::fact(time_row("simd", *provers), all_ms, "ms"));
    }
    Ok(())
}

/// The row of how long a round of so many takes.
pub(super) fn time_row(verifier: &str, provers: u32) -> String {
    format!("{verifier}.attest_ms.{provers}")
}

/// A network, and provers that send over it.
struct Site {
    lab: Lab,
    fleet: Fleet,
}

/// A verifier at the gateway's end, which knows all provers.
struct Verifier<P> {
    plane: P,
    site: Site,
    receiver: NapiThreads,
    /// Its threads in user space.
    threads: Vec<libc::pid_t>,
    /// Whether frames are addressed to another station.
    is_elsewhere: bool,
}

impl Site {
    fn new(size: &Size) -> Result<Self, BenchError> {
        let lab = Lab::build(&Topology {
            ipv6: false,
            device_host: false,
            devices_end_accepts_xdp: false,
            ..Topology::default()
        })?;
        let most = size.attested.iter().copied().max().unwrap_or(1);
        Ok(Self {
            lab,
            fleet: Fleet::new(most.max(PROVERS.min(size.provers))),
        })
    }

    fn xdp(self) -> Result<Verifier<Xdp>, BenchError> {
        let config = self.fleet.config();
        let index = self.lab.gateway_devices_end.index;
        let plane = self.lab.gateway.run(|| {
            let mut plane = Xdp::load(&config)?;
            plane.attach(index)?;
            Ok::<_, DataPlaneError>(plane)
        })??;
        self.verifier(plane, Vec::new())
    }

    /// The `host` data plane as it is run, with one thread.
    fn socket(self, lanes: Backend) -> Result<Verifier<Host>, BenchError> {
        let config = self.fleet.config();
        let options = HostOptions {
            threads: 1,
            cpus: vec![CPU],
            ..HostOptions::default()
        };
        let plane = self.lab.gateway.run(|| {
            let mut plane = Host::with_lanes(&config, lanes)?;
            plane.listen(&config, &options)?;
            Ok::<_, DataPlaneError>(plane)
        })??;
        let threads = threads_named("lw-host-")?;
        self.verifier(plane, threads)
    }

    /// The same verifier behind a packet socket's ring.
    fn ring(self, size: &Size, rows: &mut Vec<Row>) -> Result<f64, BenchError> {
        let mut plane = Host::with_lanes(&self.fleet.config(), Backend::PORTABLE)?;
        let socket = PacketSocket::open(
            &self.lab.gateway,
            &self.lab.gateway_devices_end,
            &Options::default(),
        )?;
        let (engine, thread) = (plane.engine(), plane.thread_state());
        let stop = AtomicBool::new(false);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // SAFETY: takes no pointer.
                tell.send(unsafe { libc::gettid() }).ok();
                serve_ring(socket, &engine, thread, &stop)
            });
            let ended = || BenchError::Contradiction("the packet ring's verifier has ended".to_owned());
            let rate = told.recv().map_err(|_| ended()).and_then(|pid| {
                let mut verifier = self.verifier(plane, vec![pid])?;
                verifier.is_elsewhere = true;
                verifier.rate(size, "ring", rows)
            });
            stop.store(true, Ordering::Release);
            reader.join().map_err(|_| ended())??;
            rate
        })
    }

    fn verifier<P: DataPlane>(
        self,
        mut plane: P,
        threads: Vec<libc::pid_t>,
    ) -> Result<Verifier<P>, BenchError> {
        self.fleet.install(plane.provers().ok_or_else(no_provers)?)?;
        let receiver = NapiThreads::enable(&self.lab.gateway, &self.lab.gateway_devices_end.name)?;
        receiver.pin(&[CPU])?;
        Ok(Verifier {
            plane,
            receiver,
            threads,
            site: self,
            is_elsewhere: false,
        })
    }
}

fn no_provers() -> BenchError {
    BenchError::Contradiction("the data plane attests nobody".to_owned())
}

impl<P: DataPlane + Sync> Verifier<P> {
    /// PROOFs per second of the verifier's processor time.
    fn rate(&mut self, size: &Size, name: &str, rows: &mut Vec<Row>) -> Result<f64, BenchError> {
        let provers = PROVERS.min(size.provers);
        let took = self.least(provers, size.runs)?;
        let rate = f64::from(provers) / took.as_secs_f64();
        rows.push(Row::higher(
            format!("{name}.proof_rate"),
            rate,
            "proofs per verifier CPU s",
            None,
        ));
        Ok(rate)
    }

    /// How long a processor is busy with rounds of these many provers.
    fn times(&mut self, size: &Size, name: &str, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        for provers in size.attested {
            let took = self.least(*provers, TIMED_RUNS.min(size.runs))?;
            rows.push(Row::fact(
                time_row(name, *provers),
                took.as_secs_f64() * 1e3,
                "ms",
            ));
        }
        Ok(())
    }

    /// The verifier's processor time for a round of so many provers, of several rounds the least.
    fn least(&mut self, provers: u32, runs: u32) -> Result<Duration, BenchError> {
        let mut burster = Burster::new(&self.site.lab, provers)?;
        let mut least = Duration::MAX;
        for _ in 0..runs {
            let (round, mut frames) = frames_of_next(&mut self.site.fleet);
            frames.truncate(provers as usize);
            if self.is_elsewhere {
                frames.iter_mut().for_each(|[first, ..]| *first = ELSEWHERE);
            }
            open(self.plane.provers().ok_or_else(no_provers)?, round)?;
            burster.prepare(&frames)?;
            let (before, busy_before) = (self.plane.counters()?.get(Verdict::ProofOk), self.busy()?);
            let seen = AtomicU64::new(0);
            // Only when the verifier rests: a look settles what waits, by this thread, whose time is not counted.
            let judged = || {
                if self.is_at_rest()? {
                    let counters = self.plane.counters().map_err(BenchError::from)?;
                    seen.store(counters.get(Verdict::ProofOk) - before, Ordering::Relaxed);
                }
                Ok::<_, BenchError>(seen.load(Ordering::Relaxed))
            };
            let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
            burster.run(BURST, [CPU, last], &judged)?;
            least = least.min(self.busy()? - busy_before);
        }
        Ok(least)
    }

    fn pids(&self) -> impl Iterator<Item = &libc::pid_t> {
        self.threads.iter().chain(self.receiver.pids())
    }

    /// Whether none of its threads has work.
    fn is_at_rest(&self) -> Result<bool, BenchError> {
        for pid in self.pids() {
            if is_running(*pid).map_err(io("reading a thread's state"))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Processor time of all its threads, when they have come to rest: only then the kernel has counted all.
    fn busy(&self) -> Result<Duration, BenchError> {
        while !self.is_at_rest()? {
            std::thread::yield_now();
        }
        self.pids().try_fold(Duration::ZERO, |sum, pid| {
            Ok(sum + task_cpu_time(*pid).map_err(io("reading a thread's CPU time"))?)
        })
    }
}

/// Judges the PROOFs that come into a packet socket's ring.
fn serve_ring(
    mut socket: PacketSocket,
    engine: &Arc<Engine>,
    mut thread: ThreadState,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    pin_task(0, CPU).map_err(io("pinning the packet ring's verifier"))?;
    let mut batch: Vec<[u8; PROOF_BYTES]> = Vec::with_capacity(RING_BATCH);
    while !stop.load(Ordering::Acquire) {
        socket.wait(RING_WAIT)?;
        while socket.receive(RING_BATCH, |received| batch.extend(proof_in(received.frame))) > 0 {
            let now = Moment::from(Now::default().plus_ms(monotonic_ns() / 1_000_000));
            engine.process_proofs(&mut thread, now, &batch);
            batch.clear();
        }
    }
    Ok(())
}

/// The PROOF in a frame to LAP's port.
fn proof_in(bytes: &[u8]) -> Option<[u8; PROOF_BYTES]> {
    let parsed = frame::parse(bytes).ok()?;
    let (_, udp) = parsed.datagram()?;
    let payload = bytes.get(udp.payload())?;
    (udp.dst_port == LAP_PORT).then(|| payload.try_into().ok())?
}

const _: () = assert!(FRAME_BYTES == linewarden_dataplane::xdp::proof_bench::FRAME_BYTES);
