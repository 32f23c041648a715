//! PROOFs over a veth: the time that `xdp` takes for one PROOF, compared with verifiers in user space, and the time to
//! attest a fleet.
//!
//! Every run is a round in which each PROOF arrives once, over the same kind of veth and in the same bursts
//! ([`crate::burst`]). Two verifiers run in user space, both with the `host` data plane and the portable Forró
//! implementation: one on a UDP socket, with 64 datagrams per call, as in production; the other on the memory ring of a
//! packet socket, with frames that are addressed to another station, so that the kernel drops them early. The verifier
//! on a UDP socket is also measured with the widest vector instructions, if there are any.
//!
//! *Rates* are PROOFs per second of the verifier's CPU time, the sum over two threads. In the receive thread of
//! the gateway's interface, `xdp` does all of its work, and the kernel does its part for the other verifiers.
//! The thread in user space makes the system calls and copies. The number of PROOFs is even, because `xdp` verifies
//! PROOFs in pairs: with an odd number, the last PROOF would be verified only when the counters are read, outside of
//! the measurement. The sender runs on the same CPU, and its time does not count: on another CPU, each frame would cost
//! all verifiers the same additional cache miss. *Times* are the CPU time for a whole round, by the number of provers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use linewarden_dataplane::host::{Engine, Host, HostOptions, ThreadState, Timestamps};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{DataPlane, DataPlaneError};
use linewarden_forro::Backend;
use linewarden_protocol::frame;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{LAP_PORT, PROOF_BYTES};

use super::Size;
use super::proof::{in_memory, next_round_frames};
use super::provers::{ProverFleet, open_round};
use crate::bench::rate::threads_named;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};
use crate::burst::{BurstSender, FRAME_BYTES};
use crate::clock::monotonic_ns;
use crate::napi::{NapiThreads, is_running, pin_task, task_cpu_time};
use crate::packet_socket::{Options, PacketSocket};
use crate::topology::{Lab, Topology};

/// The CPU of all verifiers.
const CPU: usize = 0;
/// PROOFs of a burst: half of the capacity of the queue at an end of a veth, and two receive calls of a socket.
const BURST: u32 = 128;
/// Provers for the rates, as for `xdp.proof_ns`.
const PROVERS: u32 = 10_000;
/// Number of runs; the shortest time of a round is the result.
const TIMED_RUNS: u32 = 10;
/// PROOFs that the verifier on the packet ring verifies at once.
const RING_BATCH: usize = 64;
/// Interval between two checks of the stop flag by the verifier on the packet ring.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// First byte of a MAC address that no station has.
const FOREIGN_MAC_FIRST_BYTE: u8 = 6;

/// Adds the rows of this part.
///
/// # Errors
/// The lab or a data plane could not be set up.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        let error = "sender and verifier need two CPUs";
        return Err(BenchError::InvalidMeasurement(error.to_owned()));
    }
    progress("PROOFs over a link: xdp", None);
    let mut xdp = LinkSetup::new(size)?.xdp()?;
    let xdp_rate = xdp.rate(size, "xdp", rows)?;
    xdp.times(size, "xdp", rows)?;
    drop(xdp);
    progress("PROOFs over a link: UDP socket", None);
    let mut socket = LinkSetup::new(size)?.socket(Backend::PORTABLE)?;
    let socket_rate = socket.rate(size, "socket", rows)?;
    socket.times(size, "socket", rows)?;
    drop(socket);
    let widest = Backend::widest();
    if widest != Backend::PORTABLE {
        let name = format!("socket.{}", widest.name());
        LinkSetup::new(size)?.socket(widest)?.rate(size, &name, rows)?;
    }
    progress("PROOFs over a link: packet ring", None);
    let ring_rate = LinkSetup::new(size)?.ring(size, rows)?;
    rows.push(Row::higher(
        "xdp_over_socket.proof_rate",
        xdp_rate / socket_rate,
        "ratio",
        Some(3.0),
    ));
    rows.push(Row::fact(
        "xdp_over_ring.proof_rate",
        xdp_rate / ring_rate,
        "ratio",
    ));
    for provers in size.fleet_sizes {
        let round_ms = in_memory(*provers, TIMED_RUNS.min(size.runs), widest, 1)? * f64::from(*provers) / 1e6;
        rows.push(Row::fact(time_row("simd", *provers), round_ms, "ms"));
    }
    Ok(())
}

/// Name of the row with the time of a round of `provers` provers.
pub(super) fn time_row(verifier: &str, provers: u32) -> String {
    format!("{verifier}.attest_ms.{provers}")
}

/// A network with provers that send over it.
struct LinkSetup {
    lab: Lab,
    fleet: ProverFleet,
}

/// A verifier at the gateway's end with the keys of all provers.
struct Verifier<P> {
    data_plane: P,
    setup: LinkSetup,
    receiver: NapiThreads,
    /// The threads in user space.
    threads: Vec<libc::pid_t>,
    /// Whether frames are addressed to another station.
    uses_foreign_mac: bool,
}

impl LinkSetup {
    fn new(size: &Size) -> Result<Self, BenchError> {
        let lab = Lab::build(&Topology {
            ipv6: false,
            device_host: false,
            devices_end_accepts_xdp: false,
            ..Topology::default()
        })?;
        let max_provers = size.fleet_sizes.iter().copied().max().unwrap_or(1);
        Ok(Self {
            lab,
            fleet: ProverFleet::new(max_provers.max(PROVERS.min(size.provers))),
        })
    }

    fn xdp(self) -> Result<Verifier<Xdp>, BenchError> {
        let config = self.fleet.config();
        let index = self.lab.gateway_devices_end.index;
        let data_plane = self.lab.gateway.run(|| {
            let mut data_plane = Xdp::load(&config)?;
            data_plane.attach(index)?;
            Ok::<_, DataPlaneError>(data_plane)
        })??;
        self.verifier(data_plane, Vec::new())
    }

    /// The `host` data plane with one thread.
    fn socket(self, lanes: Backend) -> Result<Verifier<Host>, BenchError> {
        let config = self.fleet.config();
        let options = HostOptions {
            threads: 1,
            cpus: vec![CPU],
            ..HostOptions::default()
        };
        let data_plane = self.lab.gateway.run(|| {
            let mut data_plane = Host::with_lanes(&config, lanes)?;
            data_plane.listen(&config, &options)?;
            Ok::<_, DataPlaneError>(data_plane)
        })??;
        let threads = threads_named("lw-host-")?;
        self.verifier(data_plane, threads)
    }

    /// Measures the rate of the `host` verifier on the ring of a packet socket; returns PROOFs per second.
    fn ring(self, size: &Size, rows: &mut Vec<Row>) -> Result<f64, BenchError> {
        let mut data_plane = Host::with_lanes(&self.fleet.config(), Backend::PORTABLE)?;
        let socket = PacketSocket::open(
            &self.lab.gateway,
            &self.lab.gateway_devices_end,
            &Options::default(),
        )?;
        let (engine, thread) = (data_plane.engine(), data_plane.thread_state());
        let stop = AtomicBool::new(false);
        let (pid_sender, pid_receiver) = mpsc::sync_channel(1);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // SAFETY: takes no pointer.
                pid_sender.send(unsafe { libc::gettid() }).ok();
                serve_ring(socket, &engine, thread, &stop)
            });
            let stopped_early =
                || BenchError::InvalidMeasurement("the packet ring's verifier stopped early".to_owned());
            let rate = pid_receiver.recv().map_err(|_| stopped_early()).and_then(|pid| {
                let mut verifier = self.verifier(data_plane, vec![pid])?;
                verifier.uses_foreign_mac = true;
                verifier.rate(size, "ring", rows)
            });
            stop.store(true, Ordering::Release);
            reader.join().map_err(|_| stopped_early())??;
            rate
        })
    }

    fn verifier<P: DataPlane>(
        self,
        mut data_plane: P,
        threads: Vec<libc::pid_t>,
    ) -> Result<Verifier<P>, BenchError> {
        self.fleet
            .install(data_plane.provers().ok_or_else(no_provers_error)?)?;
        let receiver = NapiThreads::enable(&self.lab.gateway, &self.lab.gateway_devices_end.name)?;
        receiver.pin(&[CPU])?;
        Ok(Verifier {
            data_plane,
            receiver,
            threads,
            setup: self,
            uses_foreign_mac: false,
        })
    }
}

fn no_provers_error() -> BenchError {
    BenchError::InvalidMeasurement("the data plane does not support attestation".to_owned())
}

impl<P: DataPlane + Sync> Verifier<P> {
    /// Adds and returns the rate: PROOFs per second of the verifier's CPU time.
    fn rate(&mut self, size: &Size, name: &str, rows: &mut Vec<Row>) -> Result<f64, BenchError> {
        let provers = PROVERS.min(size.provers);
        let duration = self.min_cpu_time(provers, size.runs)?;
        let rate = f64::from(provers) / duration.as_secs_f64();
        rows.push(Row::higher(
            format!("{name}.proof_rate"),
            rate,
            "proofs per verifier CPU s",
            None,
        ));
        Ok(rate)
    }

    /// Adds the CPU time of a round for each fleet size.
    fn times(&mut self, size: &Size, name: &str, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        for provers in size.fleet_sizes {
            let duration = self.min_cpu_time(*provers, TIMED_RUNS.min(size.runs))?;
            rows.push(Row::fact(
                time_row(name, *provers),
                duration.as_secs_f64() * 1e3,
                "ms",
            ));
        }
        Ok(())
    }

    /// The verifier's CPU time for a round of `provers` provers: the minimum of `runs` rounds.
    fn min_cpu_time(&mut self, provers: u32, runs: u32) -> Result<Duration, BenchError> {
        let mut sender = BurstSender::new(&self.setup.lab, provers)?;
        let mut min_time = Duration::MAX;
        for _ in 0..runs {
            let (round, mut frames) = next_round_frames(&mut self.setup.fleet);
            frames.truncate(provers as usize);
            if self.uses_foreign_mac {
                frames
                    .iter_mut()
                    .for_each(|[first, ..]| *first = FOREIGN_MAC_FIRST_BYTE);
            }
            open_round(self.data_plane.provers().ok_or_else(no_provers_error)?, round)?;
            sender.prepare(&frames)?;
            let (accepted_before, cpu_time_before) = (
                self.data_plane.counters()?.get(Verdict::ProofOk),
                self.idle_cpu_time()?,
            );
            let accepted = AtomicU64::new(0);
            // Reads the counters only while the verifier is idle: the read verifies pending PROOFs in this thread,
            // which is not measured.
            let count_accepted = || {
                if self.is_idle()? {
                    let counters = self.data_plane.counters().map_err(BenchError::from)?;
                    accepted.store(
                        counters.get(Verdict::ProofOk) - accepted_before,
                        Ordering::Relaxed,
                    );
                }
                Ok::<_, BenchError>(accepted.load(Ordering::Relaxed))
            };
            let last_cpu = std::thread::available_parallelism().map_or(1, usize::from) - 1;
            sender.run(BURST, [CPU, last_cpu], &count_accepted)?;
            min_time = min_time.min(self.idle_cpu_time()? - cpu_time_before);
        }
        Ok(min_time)
    }

    fn pids(&self) -> impl Iterator<Item = &libc::pid_t> {
        self.threads.iter().chain(self.receiver.pids())
    }

    /// Whether all threads of the verifier are idle.
    fn is_idle(&self) -> Result<bool, BenchError> {
        for pid in self.pids() {
            if is_running(*pid).map_err(io("read a thread's state"))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// CPU time of all threads of the verifier. Waits until the threads are idle, because only then the kernel's figures
    /// are complete.
    fn idle_cpu_time(&self) -> Result<Duration, BenchError> {
        while !self.is_idle()? {
            std::thread::yield_now();
        }
        self.pids().try_fold(Duration::ZERO, |sum, pid| {
            Ok(sum + task_cpu_time(*pid).map_err(io("read a thread's CPU time"))?)
        })
    }
}

/// Verifies the PROOFs that arrive in the ring of a packet socket.
fn serve_ring(
    mut socket: PacketSocket,
    engine: &Arc<Engine>,
    mut thread: ThreadState,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    pin_task(0, CPU).map_err(io("pin the packet ring's verifier to a CPU"))?;
    let mut batch: Vec<[u8; PROOF_BYTES]> = Vec::with_capacity(RING_BATCH);
    while !stop.load(Ordering::Acquire) {
        socket.wait(STOP_POLL_INTERVAL)?;
        while socket.receive(RING_BATCH, |received| batch.extend(proof_in(received.frame))) > 0 {
            let now = Timestamps::from(Now::default().plus_ms(monotonic_ns() / 1_000_000));
            engine.process_proofs(&mut thread, now, &batch);
            batch.clear();
        }
    }
    Ok(())
}

/// The PROOF in a frame to the LAP port.
fn proof_in(bytes: &[u8]) -> Option<[u8; PROOF_BYTES]> {
    let parsed = frame::parse(bytes).ok()?;
    let (_, udp) = parsed.datagram()?;
    let payload = bytes.get(udp.payload())?;
    (udp.dst_port == LAP_PORT).then(|| payload.try_into().ok())?
}

const _: () = assert!(FRAME_BYTES == linewarden_dataplane::xdp::bench::proof::FRAME_BYTES);
