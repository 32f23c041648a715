//! The saturated `xdp` data plane on its own CPU, while a controller and its clients saturate another CPU, compared with the same
//! data plane while that CPU is idle.
//!
//! The measure is authentications per second of the data plane's CPU time, as in [`crate::bench::rate`], without the generator's
//! share. Two CPUs of one machine share resources independently of the controller: the effects of a program that only
//! counts and of a program that only copies memory are measured for comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::json;

use super::client::full_body;
use super::{Fleet, Size, TestController, invalid_measurement, pending, quantile, reads, runtime};
use crate::bench::rate::{self, SaturatedRun, Saturation};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Report, Row, io};
use crate::capability::{self, FOR_LOAD_GENERATOR};
use crate::napi::pin_task;

const TARGET_RATIO: f64 = 0.95;
/// Name of the row with the target.
const RATIO: &str = "auth_rate.busy_over_idle";
/// The CPU of the controller and the clients; [`rate`] uses the first CPU.
const OTHER_CPU: usize = 1;
/// Bytes that are copied repeatedly: more than a core's private caches.
const COPIED_BYTES: usize = 8 << 20;
/// Windows of a slice: see [`measure_slice`].
const WINDOWS: u32 = 7;
/// Wait before each window, until the work on the other CPU has started.
const WARM_UP: Duration = Duration::from_millis(150);
/// Time for all work of a slice to start and end.
const MARGIN: Duration = Duration::from_secs(2);

/// Adds the rows of this part.
pub(super) fn rows(
    controller: &TestController,
    fleet: &Fleet,
    size: &Size,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    if let Err(missing) = capability::require(FOR_LOAD_GENERATOR) {
        report
            .pending
            .push(pending(RATIO, "ratio", Some(TARGET_RATIO), missing));
        return Ok(());
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        let reason = "data plane and controller need two CPUs";
        report
            .pending
            .push(pending(RATIO, "ratio", Some(TARGET_RATIO), reason));
        return Ok(());
    }
    pin_process(controller.process.id())?;
    let length = Duration::from_millis(size.window_ms);
    let mut ratios = Ratios::default();
    for slice in 0..size.slices {
        progress(
            "data plane with idle and busy controller",
            Some((slice.into(), size.slices.into())),
        );
        rate::xdp_while((length + WARM_UP) * WINDOWS + MARGIN, |run| {
            measure_slice(controller, fleet, slice, length, run, &mut ratios)
        })?;
    }
    if ratios.reads == 0 {
        return Err(invalid_measurement("the controller received no read request"));
    }
    let median =
        |name: &str, values: &mut Vec<f64>, target| Row::higher(name, quantile(values, 0.5), "ratio", target);
    report.rows.extend([
        median(RATIO, &mut ratios.busy, Some(TARGET_RATIO)),
        Row::fact(
            "auth_rate.busy_over_idle.p25",
            quantile(&mut ratios.busy, 0.25),
            "ratio",
        ),
        Row::fact(
            "auth_rate.busy_over_idle.p75",
            quantile(&mut ratios.busy, 0.75),
            "ratio",
        ),
        median("auth_rate.busy_over_idle.wall", &mut ratios.wall, None),
        median("auth_rate.spinning_over_idle", &mut ratios.spinning, None),
        median("auth_rate.copying_over_idle", &mut ratios.copying, None),
    ]);
    Ok(())
}

/// Ratios of the data plane's rate under load on the other CPU to the rates in the idle windows before and after it.
#[derive(Default)]
struct Ratios {
    /// With a busy controller, by CPU time.
    busy: Vec<f64>,
    /// With a busy controller, by wall-clock time.
    wall: Vec<f64>,
    /// With a program that only counts.
    spinning: Vec<f64>,
    /// With a program that only copies memory.
    copying: Vec<f64>,
    /// Read requests to the busy controller.
    reads: u64,
}

/// Measures seven windows of one running data plane. Every second window is idle, so slow drift affects both sides of a
/// ratio.
fn measure_slice(
    controller: &TestController,
    fleet: &Fleet,
    slice: u32,
    length: Duration,
    run: &mut Saturation<'_>,
    ratios: &mut Ratios,
) -> Result<(), BenchError> {
    let window = |run: &mut Saturation<'_>| {
        run.measure(WARM_UP)?;
        run.measure(length)
    };
    let idle_1 = window(run)?;
    let (busy, read_count) = with_controller_load(controller, fleet, slice, || window(run))?;
    let idle_2 = window(run)?;
    let mut count = 0_u64;
    let spin = || count = std::hint::black_box(count.wrapping_mul(3).wrapping_add(1));
    let spinning = with_background_work(spin, || window(run))?;
    let idle_3 = window(run)?;
    let (source, mut target) = (vec![1_u8; COPIED_BYTES], vec![0; COPIED_BYTES]);
    let copy = || std::hint::black_box(&mut target).copy_from_slice(&source);
    let copying = with_background_work(copy, || window(run))?;
    let idle_4 = window(run)?;

    let ratio_to_idle = |loaded: SaturatedRun, idle: [SaturatedRun; 2], rate_of: fn(SaturatedRun) -> f64| {
        let [before, after] = idle.map(rate_of);
        rate_of(loaded) / f64::midpoint(before, after)
    };
    let per_verifier_second = SaturatedRun::per_verifier_second;
    ratios
        .busy
        .push(ratio_to_idle(busy, [idle_1, idle_2], per_verifier_second));
    ratios
        .wall
        .push(ratio_to_idle(busy, [idle_1, idle_2], SaturatedRun::per_second));
    ratios
        .spinning
        .push(ratio_to_idle(spinning, [idle_2, idle_3], per_verifier_second));
    ratios
        .copying
        .push(ratio_to_idle(copying, [idle_3, idle_4], per_verifier_second));
    ratios.reads += read_count;
    Ok(())
}

/// Runs `work` on the first CPU while the controller is saturated with reads and writes on the other CPU; returns the
/// number of reads.
fn with_controller_load<T>(
    controller: &TestController,
    fleet: &Fleet,
    slice: u32,
    work: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, u64), BenchError> {
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stop_flag = Arc::clone(&stop);
        let clients = scope.spawn(move || {
            pin_task(0, OTHER_CPU).map_err(io("pin a thread"))?;
            let seed = u64::from(slice) + 100;
            runtime()?.block_on(async {
                let changes = quarantine_and_release(controller, fleet, &stop_flag);
                let (read_count, change_result) =
                    tokio::join!(reads::run_load(controller, fleet, seed, &stop_flag), changes);
                change_result?;
                read_count
            })
        });
        let result = work();
        stop.store(true, Relaxed);
        let read_count = clients
            .join()
            .map_err(|_| invalid_measurement("a load thread panicked"))??;
        Ok((result?, read_count))
    })
}

/// Quarantines and releases a device repeatedly: each change is three transactions on the disk.
async fn quarantine_and_release(
    controller: &TestController,
    fleet: &Fleet,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let mut client = controller.client(3);
    let id = fleet.id(fleet.count / 2);
    while !stop.load(Relaxed) {
        for action in ["quarantine", "release"] {
            let body = full_body(json!({"reason": "bench"}).to_string());
            client
                .post(&format!("/api/v1/devices/{id}/{action}"), body)
                .await?;
        }
    }
    Ok(())
}

/// Runs `work` on the first CPU while a thread repeats `step` on the other CPU.
fn with_background_work<T>(
    mut step: impl FnMut() + Send,
    work: impl FnOnce() -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let worker = scope.spawn(move || {
            pin_task(0, OTHER_CPU).map_err(io("pin a thread"))?;
            while !stop.load(Relaxed) {
                step();
            }
            Ok::<_, BenchError>(())
        });
        let result = work();
        stop.store(true, Relaxed);
        worker
            .join()
            .map_err(|_| invalid_measurement("a load thread panicked"))??;
        result
    })
}

/// Pins all threads of a process; new threads inherit the CPU.
fn pin_process(id: u32) -> Result<(), BenchError> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).map_err(io("list threads"))?;
    for task in tasks.flatten() {
        let task = task.file_name().to_str().and_then(|task| task.parse().ok());
        if let Some(task) = task {
            pin_task(task, OTHER_CPU).map_err(io("pin a thread"))?;
        }
    }
    Ok(())
}
