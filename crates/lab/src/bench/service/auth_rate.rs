//! The `xdp` data plane on its own CPU, saturated, while a controller and who asks it are at their limit on another; over the same
//! while they do nothing.
//!
//! What counts is authentications per second of the data plane's own CPU time, as in [`crate::bench::rate`]: the generator's share does
//! not. Two CPUs of one machine share more than a controller can help: what a program costs that only counts, and one that only copies
//! memory, is measured beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::json;

use super::client::full;
use super::{Fleet, Office, Size, contradiction, pending, quantile, reads, runtime};
use crate::bench::rate::{self, Saturated, Saturation};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Report, Row, io};
use crate::capability::{self, FOR_LOAD_GENERATOR};
use crate::napi::pin_task;

const BAR: f64 = 0.95;
const RATIO: &str = "auth_rate.busy_over_idle";
/// The CPU of the controller, of PostgreSQL's and of who asks; [`rate`] has the first.
const OTHER_CPU: usize = 1;
/// What is copied over and over: more than a core has caches of its own.
const COPIED_BYTES: usize = 8 << 20;
/// Windows of a slice: [`slice_of`].
const WINDOWS: u32 = 7;
/// Before each window, for the work on the other CPU to begin.
const SETTLE: Duration = Duration::from_millis(150);
/// For all work of a slice to begin and to end.
const SLACK: Duration = Duration::from_secs(2);

/// All rows of this part.
pub(super) fn rows(
    office: &Office,
    fleet: &Fleet,
    size: &Size,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    if let Err(missing) = capability::require(FOR_LOAD_GENERATOR) {
        report.pending.push(pending(RATIO, "ratio", Some(BAR), missing));
        return Ok(());
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        let why = "data plane and controller need a CPU each";
        report.pending.push(pending(RATIO, "ratio", Some(BAR), why));
        return Ok(());
    }
    pin_process(office.controller.id())?;
    let length = Duration::from_millis(size.slice_ms);
    let mut ratios = Ratios::default();
    for slice in 0..size.slices {
        progress(
            "data plane, idle and busy",
            Some((slice.into(), size.slices.into())),
        );
        rate::xdp_while((length + SETTLE) * WINDOWS + SLACK, |run| {
            slice_of(office, fleet, slice, length, run, &mut ratios)
        })?;
    }
    if ratios.questions == 0 {
        return Err(contradiction("the controller was not asked anything"));
    }
    let median = |name: &str, of: &mut Vec<f64>, bar| Row::higher(name, quantile(of, 0.5), "ratio", bar);
    report.rows.extend([
        median(RATIO, &mut ratios.busy, Some(BAR)),
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

/// What the other CPU's work makes of the data plane, over the idle windows just before and just after it.
#[derive(Default)]
struct Ratios {
    busy: Vec<f64>,
    wall: Vec<f64>,
    spinning: Vec<f64>,
    copying: Vec<f64>,
    questions: u64,
}

/// Seven windows of one data plane at work, every second of them idle: what drifts slowly falls on both sides of a ratio.
fn slice_of(
    office: &Office,
    fleet: &Fleet,
    slice: u32,
    length: Duration,
    run: &mut Saturation<'_>,
    ratios: &mut Ratios,
) -> Result<(), BenchError> {
    let window = |run: &mut Saturation<'_>| {
        run.measure(SETTLE)?;
        run.measure(length)
    };
    let before = window(run)?;
    let (busy, asked) = loaded(office, fleet, slice, || window(run))?;
    let between = window(run)?;
    let mut count = 0_u64;
    let spin = || count = std::hint::black_box(count.wrapping_mul(3).wrapping_add(1));
    let spinning = beside(spin, || window(run))?;
    let later = window(run)?;
    let (from, mut to) = (vec![1_u8; COPIED_BYTES], vec![0; COPIED_BYTES]);
    let copy = || std::hint::black_box(&mut to).copy_from_slice(&from);
    let copying = beside(copy, || window(run))?;
    let after = window(run)?;

    let over = |loaded: Saturated, idle: [Saturated; 2], of: fn(Saturated) -> f64| {
        let [before, after] = idle.map(of);
        of(loaded) / f64::midpoint(before, after)
    };
    let of_cpu = Saturated::per_verifier_second;
    ratios.busy.push(over(busy, [before, between], of_cpu));
    ratios
        .wall
        .push(over(busy, [before, between], Saturated::per_second));
    ratios.spinning.push(over(spinning, [between, later], of_cpu));
    ratios.copying.push(over(copying, [later, after], of_cpu));
    ratios.questions += asked;
    Ok(())
}

/// Runs something on the first CPU while the controller answers and stores as much as it can on the other; how many questions it answered.
fn loaded<T>(
    office: &Office,
    fleet: &Fleet,
    slice: u32,
    what: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, u64), BenchError> {
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let until = Arc::clone(&stop);
        let asking = scope.spawn(move || {
            pin_task(0, OTHER_CPU).map_err(io("pinning a thread"))?;
            let seed = u64::from(slice) + 100;
            runtime()?.block_on(async {
                let changes = change(office, fleet, &until);
                let (asked, changed) = tokio::join!(reads::load(office, fleet, seed, &until), changes);
                changed?;
                asked
            })
        });
        let done = what();
        stop.store(true, Relaxed);
        let asked = asking.join().map_err(|_| contradiction("a thread panicked"))??;
        Ok((done?, asked))
    })
}

/// Quarantines a device and lets it out again, over and over: each is three transactions on the disk.
async fn change(office: &Office, fleet: &Fleet, stop: &AtomicBool) -> Result<(), BenchError> {
    let mut client = office.client(3);
    let id = fleet.id(fleet.count / 2);
    while !stop.load(Relaxed) {
        for what in ["quarantine", "release"] {
            let body = full(json!({"reason": "bench"}).to_string());
            client.post(&format!("/api/v1/devices/{id}/{what}"), body).await?;
        }
    }
    Ok(())
}

/// Runs something on the first CPU while a thread does the same thing over and over on the other.
fn beside<T>(
    mut step: impl FnMut() + Send,
    what: impl FnOnce() -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let stepping = scope.spawn(move || {
            pin_task(0, OTHER_CPU).map_err(io("pinning a thread"))?;
            while !stop.load(Relaxed) {
                step();
            }
            Ok::<_, BenchError>(())
        });
        let done = what();
        stop.store(true, Relaxed);
        stepping
            .join()
            .map_err(|_| contradiction("a thread panicked"))??;
        done
    })
}

/// All threads of a process, and those that it starts from now on.
fn pin_process(id: u32) -> Result<(), BenchError> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).map_err(io("listing threads"))?;
    for task in tasks.flatten() {
        let task = task.file_name().to_str().and_then(|task| task.parse().ok());
        if let Some(task) = task {
            pin_task(task, OTHER_CPU).map_err(io("pinning a thread"))?;
        }
    }
    Ok(())
}
