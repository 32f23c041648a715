//! Complete authentications per second of verifier CPU time, both data planes saturated over the same kind of veth.
//!
//! The generator keeps a window of concurrent handshakes ([`crate::loadgen`]). The receive work of generator and verifier
//! runs on kernel threads (threaded NAPI) of one CPU, which is always busy. Only the CPU time of the verifier's side
//! counts: the receive thread of the gateway's interface, which does all work of `xdp` and half of the network stack's
//! work for `host`, and the threads of `host`.

use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_dataplane::xdp::Xdp;
use linewarden_dataplane::{DataPlane, DataPlaneError, Store, Telemetry as _};
use linewarden_protocol::ids::{Mode, RowIndex, Suite};
use linewarden_protocol::verdict::Verdict;

use super::{BenchError, Row, Scale, freshness, io, keys};
use crate::fleet::device_id;
use crate::loadgen::{Generator, Plan, Reflector, Transmit};
use crate::napi::{NapiThreads, task_cpu_time};
use crate::topology::{Lab, Topology};

/// CPU of all threads of a saturated run.
const CPU: usize = 0;
const DEVICES: u32 = 2_000;
/// Concurrent handshakes.
const WINDOW: u32 = 128;

/// The result of a saturated run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SaturatedRun {
    completed: u64,
    elapsed: Duration,
    verifier_cpu: Duration,
    generator_cpu: Duration,
}

impl SaturatedRun {
    /// Complete authentications per second of wall-clock time.
    pub(super) fn per_second(self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64()
    }
    /// Complete authentications per second of the verifier's CPU time.
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
        permanent_neighbors: DEVICES,
        devices_end_accepts_xdp: false,
        ..Topology::default()
    })?)
}

/// A running verifier and generator, both on [`CPU`]. `refresh` is called during the measurement.
pub(super) struct Saturation<'a> {
    generator: Generator,
    devices_napi: NapiThreads,
    gateway_napi: NapiThreads,
    /// Further threads of the verifier.
    verifier_threads: &'a [libc::pid_t],
    refresh: &'a dyn Fn(),
}

impl<'a> Saturation<'a> {
    fn start(
        lab: &Lab,
        plan: &Plan,
        verifier_threads: &'a [libc::pid_t],
        refresh: &'a dyn Fn(),
    ) -> Result<Self, BenchError> {
        let key = |device, idx| keys::auth_key(device, Mode::Pool, idx);
        let mut generator = Generator::attach(lab, plan, device_id, key)?;
        let devices_napi = NapiThreads::enable(&lab.devices, &lab.devices_end.name)?;
        let gateway_napi = NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name)?;
        devices_napi.pin(&[CPU])?;
        gateway_napi.pin(&[CPU])?;
        refresh();
        generator.start()?;
        Ok(Self {
            generator,
            devices_napi,
            gateway_napi,
            verifier_threads,
            refresh,
        })
    }

    /// Measures for `length`. Work between two calls is not counted.
    pub(super) fn measure(&mut self, length: Duration) -> Result<SaturatedRun, BenchError> {
        (self.refresh)();
        let start = Instant::now();
        let before = self.totals()?;
        while start.elapsed() < length {
            (self.refresh)();
            std::thread::sleep(Duration::from_millis(50));
            // Restarts handshakes that have lost a packet.
            self.generator.restart_stalled()?;
        }
        let elapsed = start.elapsed();
        let after = self.totals()?;
        Ok(SaturatedRun {
            completed: after.0 - before.0,
            elapsed,
            verifier_cpu: after.1 - before.1,
            generator_cpu: after.2 - before.2,
        })
    }

    /// Returns the completed handshakes, the verifier's CPU time and the generator's CPU time.
    fn totals(&self) -> Result<(u64, Duration, Duration), BenchError> {
        let mut verifier = self.gateway_napi.cpu_time()?;
        for pid in self.verifier_threads {
            verifier += task_cpu_time(*pid).map_err(io("read the CPU time of a thread"))?;
        }
        Ok((
            self.generator.counters()?.completed,
            verifier,
            self.devices_napi.cpu_time()?,
        ))
    }

    /// Lets all handshakes end; returns the number of completed handshakes.
    fn finish(mut self) -> Result<u64, BenchError> {
        Ok(self.generator.finish(Duration::from_secs(10))?.completed)
    }
}

/// Runs verifier and generator for `length`.
fn saturate(
    lab: &Lab,
    plan: &Plan,
    length: Duration,
    verifier_threads: &[libc::pid_t],
    refresh: &dyn Fn(),
) -> Result<SaturatedRun, BenchError> {
    let mut saturation = Saturation::start(lab, plan, verifier_threads, refresh)?;
    let run = saturation.measure(length)?;
    saturation.finish()?;
    Ok(run)
}

fn install(data_plane: &mut dyn DataPlane, rows: u32) -> Result<(), BenchError> {
    for device in 0..DEVICES {
        let device_rows = keys::rows(device, Mode::Pool, RowIndex(0), rows);
        data_plane
            .install(device_id(device), Mode::Pool, RowIndex(0), &device_rows, None)
            .map_err(DataPlaneError::from)?;
    }
    Ok(())
}

/// Checks that every completed handshake has an accepted RESPONSE.
fn check_accepted(name: &str, completed: u64, accepted: u64) -> Result<(), BenchError> {
    if accepted < completed {
        let text = format!("{name}: {completed} handshakes completed, {accepted} RESPONSEs accepted");
        return Err(BenchError::InvalidMeasurement(text));
    }
    Ok(())
}

fn saturate_reflector(length: Duration, transmit: Transmit) -> Result<SaturatedRun, BenchError> {
    let lab = lab()?;
    let plan = plan(transmit, 1);
    let _reflector = Reflector::attach(&lab, &plan)?;
    saturate(&lab, &plan, length, &[], &|| {})
}

/// Rows per device that are enough for three million handshakes per second.
fn rows_per_device(length: Duration) -> u32 {
    let handshakes = (length.as_millis() + 500) * 3000;
    u32::try_from(handshakes / u128::from(DEVICES))
        .unwrap_or(u32::MAX)
        .max(64)
}

/// Runs `job` while the `xdp` data plane is saturated over a veth. The devices have rows for a job of at most `length`.
pub(super) fn xdp_while<T>(
    length: Duration,
    job: impl FnOnce(&mut Saturation<'_>) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let rows = rows_per_device(length);
    let lab = lab()?;
    let mut data_plane = Xdp::load(&keys::config(DEVICES, rows))?;
    install(&mut data_plane, rows)?;
    lab.gateway
        .run(|| data_plane.attach(lab.gateway_devices_end.index))??;
    let store: &Store = data_plane.store();
    let refresh = || freshness::refresh(store);
    let mut saturation = Saturation::start(&lab, &plan(Transmit::Tx, rows), &[], &refresh)?;
    let result = job(&mut saturation)?;
    let completed = saturation.finish()?;
    check_accepted("xdp", completed, data_plane.counters()?.get(Verdict::ReplyAck))?;
    Ok(result)
}

fn saturate_host(length: Duration, rows: u32) -> Result<SaturatedRun, BenchError> {
    let lab = lab()?;
    let config = keys::config(DEVICES, rows);
    let options = HostOptions {
        threads: 1,
        cpus: vec![CPU],
        ..HostOptions::default()
    };
    let mut data_plane = lab.gateway.run(|| Host::start(&config, &options))??;
    install(&mut data_plane, rows)?;
    let store: &Store = data_plane.store();
    let threads = threads_named("lw-host-")?;
    let run = saturate(&lab, &plan(Transmit::Redirect, rows), length, &threads, &|| {
        freshness::refresh(store)
    })?;
    check_accepted(
        "host",
        run.completed,
        data_plane.counters()?.get(Verdict::ReplyAck),
    )?;
    Ok(run)
}

/// Threads of this process whose name starts with `prefix`.
pub(super) fn threads_named(prefix: &str) -> Result<Vec<libc::pid_t>, BenchError> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(io("list threads"))?;
    Ok(tasks
        .flatten()
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(prefix))
        })
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect())
}

/// Adds the rows of this part.
///
/// # Errors
/// The lab or a data plane could not be set up.
pub fn rows(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let length = Duration::from_millis(scale.saturate_ms);
    let ring = rows_per_device(length);
    let idle = saturate_reflector(length, Transmit::Tx)?;
    let xdp = xdp_while(length, |run| run.measure(length))?;
    let host = saturate_host(length, ring)?;
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
