//! Complete authentications per second of verifier CPU time, both data planes saturated over the same veth.
//!
//! The generator keeps a window of handshakes going ([`crate::loadgen`]); it and the verifier have their receive work
//! on kernel threads (threaded NAPI) of one CPU, which is busy all the time. What counts is the CPU time of the
//! verifier's side alone: the receive thread of the gateway's interface, where `xdp` does all of its work and the
//! network stack of `host` half of it, and the threads of `host`.

use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{DataPlane, DataPlaneError, Store};
use linewarden_protocol::ids::{Mode, RowIndex, Suite};
use linewarden_protocol::verdict::Verdict;

use super::{BenchError, Row, Scale, io, keys, wait};
use crate::fleet::device_id;
use crate::loadgen::{Generator, Plan, Reflector, Transmit};
use crate::napi::{NapiThreads, task_cpu_time};
use crate::topology::{Lab, Topology};

/// CPU that everything of a saturated run is pinned to.
const CPU: usize = 0;
const DEVICES: u32 = 2_000;
const WINDOW: u32 = 128;

/// What a saturated run gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Saturated {
    completed: u64,
    elapsed: Duration,
    verifier_cpu: Duration,
    generator_cpu: Duration,
}

impl Saturated {
    /// Complete authentications, by the clock.
    pub(super) fn per_second(self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64()
    }
    /// Complete authentications, by the verifier's own CPU time.
    pub(super) fn per_verifier_second(self) -> f64 {
        self.completed as f64 / self.verifier_cpu.as_secs_f64()
    }
    fn per_generator_second(self) -> f64 {
        self.completed as f64 / self.generator_cpu.as_secs_f64()
    }
}

fn plan(transmit: Transmit, rows: u32) -> Plan {
    Plan {
        devices: DEVICES,
        window: WINDOW,
        rows,
        first_idx: RowIndex(0),
        gateway: keys::GATEWAY_ID,
        fresh: keys::FRESH,
        suite: Suite::SipHash128,
        bound: false,
        source_port: keys::PORT,
        transmit,
    }
}

fn lab() -> Result<Lab, BenchError> {
    Ok(Lab::build(&Topology {
        ipv6: false,
        device_host: false,
        permanent_neighbours: DEVICES,
        devices_end_accepts_xdp: false,
        ..Topology::default()
    })?)
}

/// A verifier and a generator at work, everything on [`CPU`]. `keep_fresh` is called while it is measured.
pub(super) struct Saturation<'a> {
    generator: Generator,
    near: NapiThreads,
    far: NapiThreads,
    /// Further threads of the verifier.
    others: &'a [libc::pid_t],
    keep_fresh: &'a dyn Fn(),
}

impl<'a> Saturation<'a> {
    fn start(
        lab: &Lab,
        plan: &Plan,
        others: &'a [libc::pid_t],
        keep_fresh: &'a dyn Fn(),
    ) -> Result<Self, BenchError> {
        let key = |device, idx| keys::auth_key(device, Mode::Pool, idx);
        let mut generator = Generator::attach(lab, plan, device_id, key)?;
        let near = NapiThreads::enable(&lab.devices, &lab.devices_end.name)?;
        let far = NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name)?;
        near.pin(&[CPU])?;
        far.pin(&[CPU])?;
        keep_fresh();
        generator.start()?;
        Ok(Self {
            generator,
            near,
            far,
            others,
            keep_fresh,
        })
    }

    /// What happens in so long from now on. What happens between two calls is nobody's.
    pub(super) fn measure(&mut self, length: Duration) -> Result<Saturated, BenchError> {
        (self.keep_fresh)();
        let start = Instant::now();
        let before = self.so_far()?;
        while start.elapsed() < length {
            (self.keep_fresh)();
            std::thread::sleep(Duration::from_millis(50));
            // A lost packet would stop its handshake for good.
            self.generator.revive()?;
        }
        let elapsed = start.elapsed();
        let after = self.so_far()?;
        Ok(Saturated {
            completed: after.0 - before.0,
            elapsed,
            verifier_cpu: after.1 - before.1,
            generator_cpu: after.2 - before.2,
        })
    }

    /// Handshakes completed, CPU time of the verifier, of the generator.
    fn so_far(&self) -> Result<(u64, Duration, Duration), BenchError> {
        let mut verifier = self.far.cpu_time()?;
        for pid in self.others {
            verifier += task_cpu_time(*pid).map_err(io("reading a thread's CPU time"))?;
        }
        Ok((
            self.generator.counters()?.completed,
            verifier,
            self.near.cpu_time()?,
        ))
    }

    /// Lets each handshake come to its end; how many there were.
    fn finish(mut self) -> Result<u64, BenchError> {
        Ok(self.generator.finish(Duration::from_secs(10))?.completed)
    }
}

/// One run of `length`.
fn saturate(
    lab: &Lab,
    plan: &Plan,
    length: Duration,
    others: &[libc::pid_t],
    keep_fresh: &dyn Fn(),
) -> Result<Saturated, BenchError> {
    let mut saturation = Saturation::start(lab, plan, others, keep_fresh)?;
    let run = saturation.measure(length)?;
    saturation.finish()?;
    Ok(run)
}

fn install(plane: &mut dyn DataPlane, rows: u32) -> Result<(), BenchError> {
    for device in 0..DEVICES {
        let given = keys::rows(device, Mode::Pool, RowIndex(0), rows);
        plane
            .install(device_id(device), Mode::Pool, RowIndex(0), &given, None)
            .map_err(DataPlaneError::from)?;
    }
    Ok(())
}

/// Every completed handshake is one accepted RESPONSE of one answered REQUEST.
fn agree(name: &str, completed: u64, accepted: u64) -> Result<(), BenchError> {
    if accepted < completed {
        let text = format!("{name}: {completed} handshakes completed, {accepted} RESPONSEs accepted");
        return Err(BenchError::Contradiction(text));
    }
    Ok(())
}

fn reflector(length: Duration, transmit: Transmit) -> Result<Saturated, BenchError> {
    let lab = lab()?;
    let plan = plan(transmit, 1);
    let _reflector = Reflector::attach(&lab, &plan)?;
    saturate(&lab, &plan, length, &[], &|| {})
}

/// Rows that last: three million handshakes a second, spread over the devices.
fn ring(length: Duration) -> u32 {
    let handshakes = (length.as_millis() + 500) * 3000;
    u32::try_from(handshakes / u128::from(DEVICES))
        .unwrap_or(u32::MAX)
        .max(64)
}

/// What `job` makes of the `xdp` data plane saturated over one veth, for `length` at most.
pub(super) fn xdp_while<T>(
    length: Duration,
    job: impl FnOnce(&mut Saturation<'_>) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let rows = ring(length);
    let lab = lab()?;
    let mut plane = Xdp::load(&keys::config(DEVICES, rows))?;
    install(&mut plane, rows)?;
    lab.gateway
        .run(|| plane.attach(lab.gateway_devices_end.index))??;
    let store: &Store = plane.store();
    let keep_fresh = || wait::keep_fresh(store);
    let mut saturation = Saturation::start(&lab, &plan(Transmit::Tx, rows), &[], &keep_fresh)?;
    let made = job(&mut saturation)?;
    let completed = saturation.finish()?;
    agree("xdp", completed, plane.counters()?.get(Verdict::ReplyAck))?;
    Ok(made)
}

fn host(length: Duration, rows: u32) -> Result<Saturated, BenchError> {
    let lab = lab()?;
    let config = keys::config(DEVICES, rows);
    let options = HostOptions {
        threads: 1,
        cpus: vec![CPU],
        ..HostOptions::default()
    };
    let mut plane = lab.gateway.run(|| Host::start(&config, &options))??;
    install(&mut plane, rows)?;
    let store: &Store = plane.store();
    let threads = threads_named("lw-host-")?;
    let run = saturate(&lab, &plan(Transmit::Redirect, rows), length, &threads, &|| {
        wait::keep_fresh(store)
    })?;
    agree("host", run.completed, plane.counters()?.get(Verdict::ReplyAck))?;
    Ok(run)
}

/// Threads of this process whose name begins so.
pub(super) fn threads_named(prefix: &str) -> Result<Vec<libc::pid_t>, BenchError> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(io("listing threads"))?;
    Ok(tasks
        .flatten()
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(prefix))
        })
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect())
}

/// The rows of this part.
///
/// # Errors
/// Those of the lab and the data planes.
pub fn rows(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let length = Duration::from_millis(scale.saturate_ms);
    let ring = ring(length);
    let idle = reflector(length, Transmit::Tx)?;
    let xdp = xdp_while(length, |run| run.measure(length))?;
    let host = host(length, ring)?;
    rows.push(Row::fact(
        "loadgen.idle_sink_rate",
        idle.per_generator_second(),
        "auth per generator CPU s",
    ));
    rows.push(Row::higher(
        "loadgen.idle_sink_over_measured",
        idle.per_generator_second() / xdp.per_verifier_second(),
        "ratio",
        Some(2.0),
    ));
    rows.push(Row::fact(
        "loadgen.idle_sink_rate.one_cpu",
        idle.per_second(),
        "auth/s on one CPU",
    ));
    rows.push(Row::higher(
        "xdp.auth_rate",
        xdp.per_verifier_second(),
        "auth per verifier CPU s",
        None,
    ));
    rows.push(Row::higher(
        "host.auth_rate",
        host.per_verifier_second(),
        "auth per verifier CPU s",
        None,
    ));
    rows.push(Row::fact(
        "xdp.auth_rate.one_cpu",
        xdp.per_second(),
        "auth/s on one CPU",
    ));
    rows.push(Row::fact(
        "host.auth_rate.one_cpu",
        host.per_second(),
        "auth/s on one CPU",
    ));
    let ratio = xdp.per_verifier_second() / host.per_verifier_second();
    rows.push(Row::higher("xdp_over_host.auth_rate", ratio, "ratio", Some(5.0)));
    Ok(())
}
