//! A switch between two veths, served through packet sockets.
//!
//! The sender has the last processor ([`crate::pace`]), and with it the receive work of the interface that it sends to, up to the
//! socket's ring, as a card's interrupts would. The switch's one worker has the first: it takes frames out of that ring, sends
//! them, and there too runs what the other veth's end does with them, which is to drop them as frames for another station.
//! Both go before all else on their processors.

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
use crate::napi::{pin_task, run_first};
use crate::pace::{Paced, Pacer};
use crate::topology::{Lab, Topology};

/// Processor of the switch's worker; the sender has the last one.
const CPU: usize = 0;
/// When nothing has come for so long, nothing more is on its way.
const QUIET: Duration = Duration::from_millis(50);
/// The longest sleep of the bare forwarder.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// Room for the paper's datagrams and 104 bytes of evidence.
const MTU: u16 = 1600;
/// What the search for frames of 64 bytes begins with, 1/s.
const FIRST_FRAMES_PER_S: u64 = 100_000;

/// A lab with a sender; what is in the middle comes and goes.
pub struct Through<'lab> {
    lab: &'lab Lab,
    pacer: Pacer<'lab>,
}

/// The network for it, silent.
///
/// # Errors
/// Those of the lab.
pub fn lab() -> Result<Lab, BenchError> {
    if processors() < 2 {
        let text = "sender and switch need a processor each";
        return Err(BenchError::Contradiction(text.to_owned()));
    }
    Ok(Lab::build(&Topology {
        ipv6: false,
        device_host: false,
        devices_end_accepts_xdp: false,
        mtu: MTU,
        ..Topology::default()
    })?)
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl<'lab> Through<'lab> {
    /// Attaches the sender.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(lab: &'lab Lab) -> Result<Self, BenchError> {
        Ok(Self {
            lab,
            pacer: Pacer::attach(lab)?,
        })
    }

    /// While this switch runs between the two veths, its ports 0 and 1.
    ///
    /// # Errors
    /// Those of its ports, and of `measure`.
    pub fn switch<T>(
        &mut self,
        switch: &Switch,
        measure: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        self.worker(switch.worker(), measure)
    }

    /// The same with a worker, and whatever is put into its slot meanwhile.
    ///
    /// # Errors
    /// Those of its ports, and of `measure`.
    pub fn worker<T>(
        &mut self,
        mut worker: Worker,
        measure: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let counters = WorkerCounters::default();
        self.serving(
            |ports, stop| {
                serve(&mut worker, ports, &counters, &mut |_| {}, Clock::start(), stop)
                    .map_err(BenchError::from)
            },
            measure,
        )
    }

    /// The same with a forwarder that does nothing but forward.
    ///
    /// # Errors
    /// Those of its ports, and of `measure`.
    pub fn forwarder<T>(
        &mut self,
        measure: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let output = port(OUTPUT)?;
        self.serving(
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

    fn serving<T>(
        &mut self,
        serve: impl FnOnce(&mut PortSet, &AtomicBool) -> Result<(), BenchError> + Send,
        measure: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let mut ports = self.ports()?;
        let (stop, waker) = (AtomicBool::new(false), ports.waker());
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                pin_task(0, CPU)
                    .and_then(|()| run_first(0))
                    .map_err(io("the worker's processor"))?;
                serve(&mut ports, &stop)
            });
            let measured = measure(self);
            stop.store(true, Ordering::Relaxed);
            waker.wake();
            match served.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
            measured
        })
    }

    fn ports(&self) -> Result<PortSet, BenchError> {
        let mut ports = PortSet::new()?;
        let ends = [&self.lab.gateway_devices_end, &self.lab.gateway_service_end];
        for (number, end) in (0..).zip(ends) {
            let opened = self
                .lab
                .gateway
                .run(|| packet::open(&end.name, &PacketOptions::default()))??;
            ports.add(port(number)?, opened)?;
        }
        Ok(ports)
    }

    /// Sends a frame so often for so long; what came out behind the switch, what was on its way included.
    ///
    /// # Errors
    /// Those of the sender.
    pub fn send(&mut self, frame: &[u8], per_second: u64, length: Duration) -> Result<Paced, BenchError> {
        let before = self.received()?;
        let mut run = self.pacer.run(frame, per_second, length, processors() - 1)?;
        run.received = self.settled(before + run.sent)? - before;
        Ok(run)
    }

    /// The same, what was on its way in the end not included: an output rate, also where a ring is full.
    ///
    /// # Errors
    /// Those of the sender.
    pub fn send_meanwhile(
        &mut self,
        frame: &[u8],
        per_second: u64,
        length: Duration,
    ) -> Result<Paced, BenchError> {
        let before = self.settled(u64::MAX)?;
        let mut run = self.pacer.run(frame, per_second, length, processors() - 1)?;
        run.count(self.received()? - before);
        Ok(run)
    }

    /// Frames that have arrived when there are so many, or no more come.
    fn settled(&self, enough: u64) -> Result<u64, BenchError> {
        let (mut last, mut since) = (self.received()?, Instant::now());
        while last < enough && since.elapsed() < QUIET {
            std::thread::sleep(Duration::from_millis(1));
            let now = self.received()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    /// Frames that have arrived at the service's end.
    fn received(&self) -> Result<u64, BenchError> {
        let name = &self.lab.service_end.name;
        let text = self
            .lab
            .service
            .run(|| fs::read_to_string("/proc/thread-self/net/dev"))?
            .map_err(io("/proc/thread-self/net/dev"))?;
        let line = text
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(name.as_str()));
        // Behind the name: bytes, packets.
        let frames = line.and_then(|line| line.trim_start_matches(':').split_whitespace().nth(1));
        let frames = frames.and_then(|frames| frames.parse().ok());
        frames.ok_or_else(|| BenchError::Contradiction(format!("no counters of {name}")))
    }
}

fn port(number: u16) -> Result<PortId, BenchError> {
    PortId::new(number).ok_or_else(|| BenchError::Contradiction(format!("there is no port {number}")))
}

/// A search for the highest rate at which nothing is lost, as in the paper of the attesting BMv2: the rate is doubled until
/// something is lost, and then lowered bit by bit until nothing is, in any of the last runs.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Where it begins, frames a second.
    pub first: u64,
    /// Length of a run.
    pub length: Duration,
    /// Runs at the rate that is found.
    pub runs: u32,
}

impl Search {
    /// Frames a second. Where the sender cannot send what would be lost, it is the rate that it reached.
    ///
    /// # Errors
    /// Those of `send`, which is given the rate; nothing that passes without loss.
    pub fn run(
        self,
        mut send: impl FnMut(u64, Duration) -> Result<Paced, BenchError>,
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
            let mut least = f64::MAX;
            for _ in 0..self.runs {
                let run = send(rate, self.length)?;
                // All of it comes back, or it does not count.
                least = least.min(run.sent_per_s());
                if run.received < run.sent {
                    least = 0.0;
                    break;
                }
            }
            if least > 0.0 {
                return Ok(least);
            }
            rate = rate * 15 / 16;
        }
        Err(BenchError::Contradiction(
            "nothing passes without loss".to_owned(),
        ))
    }
}

/// The router over packet sockets, beside a forwarder.
///
/// # Errors
/// Those of the lab and of the program.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let routes = Routes::new();
    let switch = programs.switch("router", &routes.commands)?;
    let lab = lab()?;
    let mut through = Through::new(&lab)?;
    let frame = routes.frames_v4().swap_remove(0);
    let search = Search {
        first: FIRST_FRAMES_PER_S,
        length: Duration::from_millis(size.search_ms / 10),
        runs: size.search_runs,
    };
    progress("a bare forwarder over packet sockets", None);
    let floor = through.forwarder(|through| search.run(|rate, length| through.send(&frame, rate, length)))?;
    progress("the router over packet sockets", None);
    let router = through.switch(&switch, |through| {
        search.run(|rate, length| through.send(&frame, rate, length))
    })?;
    rows.extend([
        Row::higher("router.af_packet_pps", router, "packets/s", Some(600_000.0)),
        Row::fact("forwarder.af_packet_pps", floor, "packets/s"),
        Row::higher("router_over_forwarder.rate", router / floor, "ratio", None),
    ]);
    Ok(())
}
