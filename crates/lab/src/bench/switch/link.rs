//! A switch between two veths over packet sockets.
//!
//! The sender ([`crate::pace`]) runs on the last CPU, which also does the receive work of the target interface up to the socket's
//! ring, as the interrupts of a network card would. The switch's single worker runs on the first CPU: it reads frames
//! from the ring and sends them. The other veth's end drops them on the same CPU as frames for another station. Both
//! threads have real-time priority.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_switch::clock::Clock;
use linewarden_switch::ports::packet::{self, PacketOptions};
use linewarden_switch::ports::{PortId, PortSet};
use linewarden_switch::serve::{WorkerCounters, serve};
use linewarden_switch::switch::{Switch, Worker};

use super::Size;
use super::programs::Programs;
use super::router::{OUTPUT, Routes};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};
use crate::napi::{pin_task, set_fifo_priority};
use crate::pace::{PacedRun, Pacer};
use crate::topology::{Lab, Topology};

/// The CPU of the switch's worker; the sender uses the last CPU.
const CPU: usize = 0;
/// Time without frames after which no frame is in transit.
const IDLE_MIN: Duration = Duration::from_millis(50);
/// Longest sleep of the plain forwarder.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// Space for the datagrams of the paper on the attesting BMv2 and 104 bytes of evidence.
const MTU: u16 = 1600;
/// First rate of the search with frames of 64 bytes, 1/s.
const FIRST_FRAMES_PER_S: u64 = 100_000;

/// A lab with a sender, for several switches one after another.
pub struct SwitchHarness<'lab> {
    lab: &'lab Lab,
    pacer: Pacer<'lab>,
}

/// Builds the network without any other traffic.
///
/// # Errors
/// The lab could not be set up, or there is only one CPU.
pub fn lab() -> Result<Lab, BenchError> {
    if cpu_count() < 2 {
        let text = "sender and switch need two CPUs";
        return Err(BenchError::InvalidMeasurement(text.to_owned()));
    }
    Ok(Lab::build(&Topology {
        ipv6: false,
        device_host: false,
        devices_end_accepts_xdp: false,
        mtu: MTU,
        ..Topology::default()
    })?)
}

fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl<'lab> SwitchHarness<'lab> {
    /// Attaches the sender.
    ///
    /// # Errors
    /// The sender's eBPF program could not be loaded or attached.
    pub fn new(lab: &'lab Lab) -> Result<Self, BenchError> {
        Ok(Self {
            lab,
            pacer: Pacer::attach(lab)?,
        })
    }

    /// Runs `measure` while this switch connects the two veths with its ports 0 and 1.
    ///
    /// # Errors
    /// A port could not be opened, or `measure` failed.
    pub fn with_switch<T>(
        &mut self,
        switch: &Switch,
        measure: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        self.with_worker(switch.worker(), measure)
    }

    /// Runs `measure` with a worker whose switch may be exchanged during the run.
    ///
    /// # Errors
    /// A port could not be opened, or `measure` failed.
    pub fn with_worker<T>(
        &mut self,
        mut worker: Worker,
        measure: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let counters = WorkerCounters::default();
        self.with_server(
            |ports, stop| {
                serve(&mut worker, ports, &counters, &mut |_| {}, Clock::start(), stop)
                    .map_err(BenchError::from)
            },
            measure,
        )
    }

    /// Runs `measure` with a plain forwarder.
    ///
    /// # Errors
    /// A port could not be opened, or `measure` failed.
    pub fn with_forwarder<T>(
        &mut self,
        measure: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let output = port(OUTPUT)?;
        self.with_server(
            |ports, stop| {
                while !stop.load(Ordering::Relaxed) {
                    ports.serve(Some(SLEEP_MAX), |_, frame, senders| {
                        senders.send(output, frame, &[])
                    })?;
                }
                Ok(())
            },
            measure,
        )
    }

    fn with_server<T>(
        &mut self,
        serve: impl FnOnce(&mut PortSet, &AtomicBool) -> Result<(), BenchError> + Send,
        measure: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let mut ports = self.ports()?;
        let (stop, waker) = (AtomicBool::new(false), ports.waker());
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                pin_task(0, CPU)
                    .and_then(|()| set_fifo_priority(0))
                    .map_err(io("pin the worker thread"))?;
                serve(&mut ports, &stop)
            });
            let result = measure(self);
            stop.store(true, Ordering::Relaxed);
            waker.wake();
            match server.join() {
                Ok(server_result) => server_result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
            result
        })
    }

    fn ports(&self) -> Result<PortSet, BenchError> {
        let mut ports = PortSet::new()?;
        let ends = [&self.lab.gateway_devices_end, &self.lab.gateway_service_end];
        for (number, end) in (0..).zip(ends) {
            let socket = self
                .lab
                .gateway
                .run(|| packet::open(&end.name, &PacketOptions::default()))??;
            ports.add(port(number)?, socket)?;
        }
        Ok(ports)
    }

    /// Sends a frame at a rate and counts the output behind the switch, including frames in transit at the end.
    ///
    /// # Errors
    /// The sender failed.
    pub fn send(&mut self, frame: &[u8], per_second: u64, length: Duration) -> Result<PacedRun, BenchError> {
        let before = self.received()?;
        let mut run = self.pacer.run(frame, per_second, length, cpu_count() - 1)?;
        run.received = self.received_when_idle(before + run.sent)? - before;
        Ok(run)
    }

    /// Sends a frame at a rate and counts the output without frames in transit at the end: an output rate under overload.
    ///
    /// # Errors
    /// The sender failed.
    pub fn send_without_drain(
        &mut self,
        frame: &[u8],
        per_second: u64,
        length: Duration,
    ) -> Result<PacedRun, BenchError> {
        let before = self.received_when_idle(u64::MAX)?;
        let mut run = self.pacer.run(frame, per_second, length, cpu_count() - 1)?;
        run.count(self.received()? - before);
        Ok(run)
    }

    /// Waits until `target` frames have arrived at the service's end or no more frames arrive; returns the number of frames.
    fn received_when_idle(&self, target: u64) -> Result<u64, BenchError> {
        let (mut received, mut since) = (self.received()?, Instant::now());
        while received < target && since.elapsed() < IDLE_MIN {
            std::thread::sleep(Duration::from_millis(1));
            let count = self.received()?;
            if count != received {
                (received, since) = (count, Instant::now());
            }
        }
        Ok(received)
    }

    /// Frames that have arrived at the service's end.
    fn received(&self) -> Result<u64, BenchError> {
        let name = &self.lab.service_end.name;
        let text = self
            .lab
            .service
            .run(|| fs::read_to_string("/proc/thread-self/net/dev"))?
            .map_err(io("read /proc/thread-self/net/dev"))?;
        let line = text
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(name.as_str()));
        // The columns after the name: bytes, packets.
        let frames = line.and_then(|line| line.trim_start_matches(':').split_whitespace().nth(1));
        let frames = frames.and_then(|frames| frames.parse().ok());
        frames.ok_or_else(|| {
            BenchError::InvalidMeasurement(format!(
                "interface {name} has no counters in /proc/thread-self/net/dev"
            ))
        })
    }
}

fn port(number: u16) -> Result<PortId, BenchError> {
    PortId::new(number).ok_or_else(|| BenchError::InvalidMeasurement(format!("invalid switch port {number}")))
}

/// A search for the highest loss-free rate, as in the paper on the attesting BMv2: the rate is doubled until frames are lost,
/// and then lowered in steps until a series of runs loses no frame.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// First rate, frames/s.
    pub first: u64,
    /// Length of a run.
    pub length: Duration,
    /// Runs without loss that confirm the rate.
    pub runs: u32,
}

impl Search {
    /// The highest loss-free rate, frames/s; if the sender is the limit, the rate that the sender reached.
    ///
    /// # Errors
    /// An error of `send`, or no rate is loss-free.
    pub fn run(
        self,
        mut send: impl FnMut(u64, Duration) -> Result<PacedRun, BenchError>,
    ) -> Result<f64, BenchError> {
        let mut rate = self.first;
        loop {
            let run = send(rate, self.length)?;
            let is_all_sent = run.sent_per_s() > 0.9 * rate as f64;
            if run.received < run.sent || !is_all_sent {
                break;
            }
            rate *= 2;
        }
        while rate > self.first / 100 {
            let mut min_rate = f64::MAX;
            for _ in 0..self.runs {
                let run = send(rate, self.length)?;
                // A single run with loss disproves the rate.
                min_rate = min_rate.min(run.sent_per_s());
                if run.received < run.sent {
                    min_rate = 0.0;
                    break;
                }
            }
            if min_rate > 0.0 {
                return Ok(min_rate);
            }
            rate = rate * 15 / 16;
        }
        Err(BenchError::InvalidMeasurement("no rate is loss-free".to_owned()))
    }
}

/// Adds the rows of the router over packet sockets and of a plain forwarder.
///
/// # Errors
/// The lab could not be set up, or the program could not be loaded.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let routes = Routes::new();
    let switch = programs.switch("router", &routes.commands)?;
    let lab = lab()?;
    let mut harness = SwitchHarness::new(&lab)?;
    let frame = routes.frames_v4().swap_remove(0);
    let search = Search {
        first: FIRST_FRAMES_PER_S,
        length: Duration::from_millis(size.search_ms / 10),
        runs: size.search_runs,
    };
    progress("plain forwarder over packet sockets", None);
    let floor =
        harness.with_forwarder(|harness| search.run(|rate, length| harness.send(&frame, rate, length)))?;
    progress("router over packet sockets", None);
    let router = harness.with_switch(&switch, |harness| {
        search.run(|rate, length| harness.send(&frame, rate, length))
    })?;
    rows.extend([
        Row::higher("router.af_packet_pps", router, "packets/s", Some(600_000.0)),
        Row::fact("forwarder.af_packet_pps", floor, "packets/s"),
        Row::higher("router_over_forwarder.rate", router / floor, "ratio", None),
    ]);
    Ok(())
}
