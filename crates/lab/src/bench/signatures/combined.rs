//! The stages of Rapid Authentication on a GPU by batch size, and on CPUs together with a GPU: the other half of the
//! thesis' Figures 3 to 11.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_signatures::gpu::{self, BenchEnvironment, Gpu, GpuUnavailable, Options, Plan, Stage};
use linewarden_signatures::receive::Checked;

use super::batches::{BATCH_PER_THREAD, STAGES, time_batch};
use super::keys::{RapidKey, invalid_measurement};
use super::rounds::Timing;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Better, Pending, Report, Row};

/// The stages of `batches::STAGES` as values of the GPU library.
const GPU_STAGES: [Stage; 3] = [Stage::Offline, Stage::Online, Stage::Verify];

/// Messages per batch of the GPU: from one block to enough to keep a large device busy while it copies.
const GPU_BATCH_SIZES: [usize; 5] = [128, 1_024, 8_192, 32_768, 131_072];

/// Adds the rows, measured with the first GPU. Without a GPU, the rows are pending.
///
/// # Errors
/// A GPU failed, or a signature was invalid.
pub(super) fn rows(
    key: &RapidKey,
    messages: &[Checked],
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let first_gpu = Gpu::discover().and_then(|devices| {
        let device = devices.first().ok_or(GpuUnavailable::NoDevice)?;
        Gpu::open(device, &Options::default())
    });
    match first_gpu {
        Ok(mut gpu) => measure_with_gpu(&mut gpu, key, messages, progress, report),
        Err(
            error @ (GpuUnavailable::DriverMissing
            | GpuUnavailable::NoDevice
            | GpuUnavailable::CompilerMissing(_)),
        ) => {
            for stage in STAGES {
                let batches = GPU_BATCH_SIZES.map(|count| format!("stage.{stage}.gpu_batch.{count}"));
                let threads = threads().map(|count| format!("stage.{stage}.threads_and_gpu.{count}"));
                let pending = |name| Pending::new(name, "/s", Better::Higher, None, error.to_string());
                report
                    .pending
                    .extend(batches.into_iter().chain(threads).map(pending));
            }
            Ok(())
        }
        Err(error) => Err(invalid_measurement(error)),
    }
}

fn measure_with_gpu(
    gpu: &mut Gpu,
    key: &RapidKey,
    messages: &[Checked],
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    report.gpu = Some(gpu.info().name.clone());
    for (index, count) in (0..).zip(GPU_BATCH_SIZES) {
        progress(
            "stages on the GPU by batch size",
            Some((index, GPU_BATCH_SIZES.len() as u64)),
        );
        for (stage, gpu_stage) in STAGES.into_iter().zip(GPU_STAGES) {
            let rate = gpu_rate(gpu, gpu_stage, count, BATCH_DURATION)?;
            let name = format!("stage.{stage}.gpu_batch.{count}");
            report.rows.push(Row::higher(name, rate, "/s", None));
        }
    }
    for threads in threads() {
        progress(
            "stages on threads and GPU",
            Some((threads as u64, cpu_count() as u64)),
        );
        for ((stage, gpu_stage), count) in STAGES.into_iter().zip(GPU_STAGES).zip(BATCH_PER_THREAD) {
            let time_one_batch = || time_batch(key, stage, messages, count);
            let plan = Plan::default();
            let rate = combined_rate(threads, time_one_batch, || {
                gpu_rate(gpu, gpu_stage, plan.items, plan.duration)
            })?;
            let name = format!("stage.{stage}.threads_and_gpu.{threads}");
            report.rows.push(Row::higher(name, rate, "/s", None));
        }
    }
    Ok(())
}

/// Measurement time of each batch size, after a warm-up of the same length.
const BATCH_DURATION: Duration = Duration::from_millis(500);

fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Numbers of threads that compute together with a GPU, which occupies one CPU.
fn threads() -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(1), |threads: &usize| threads.checked_mul(2));
    powers.take_while(|threads| *threads < cpu_count().max(2))
}

/// Messages per second of a stage with batches of `items` messages.
fn gpu_rate(gpu: &mut Gpu, stage: Stage, items: usize, duration: Duration) -> Result<f64, BenchError> {
    let begin = Instant::now();
    let mut random_error = None;
    let sources = BenchEnvironment {
        now: &mut || begin.elapsed(),
        random: &mut |bytes| random_error = getrandom::fill(bytes).err().or(random_error),
    };
    let plan = Plan {
        items,
        duration,
        stage: Some(stage),
        ..Plan::default()
    };
    let rate = gpu::stage_of(gpu, &plan, sources).map_err(invalid_measurement);
    match random_error {
        Some(random_error) => Err(invalid_measurement(random_error)),
        None => rate,
    }
}

/// Stops the threads when it is dropped.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Combined rate, per second, of the device and of threads that compute while the device is measured; preparations do not count.
fn combined_rate(
    threads: usize,
    time_one_batch: impl Fn() -> Result<Timing, BenchError> + Sync,
    device: impl FnOnce() -> Result<f64, BenchError>,
) -> Result<f64, BenchError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = || {
            let (mut count, mut elapsed) = (0, Duration::ZERO);
            while count == 0 || !stop.load(Ordering::Relaxed) {
                let timing = time_one_batch()?;
                count += timing.count;
                elapsed += timing.elapsed;
            }
            Ok::<f64, BenchError>(count as f64 / elapsed.as_secs_f64())
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let device_rate = {
            // Stops the threads also after a panic, because the scope waits for them.
            let _stop_on_return = StopOnDrop(&stop);
            device()
        };
        let mut rate = device_rate?;
        for worker in workers {
            rate += worker
                .join()
                .unwrap_or_else(|_| Err(invalid_measurement("a thread panicked")))?;
        }
        Ok(rate)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_add_up_and_the_first_error_is_returned() {
        let time_one_batch = || {
            let elapsed = Duration::from_millis(10);
            Ok(Timing { count: 5, elapsed })
        };
        let rate = combined_rate(2, time_one_batch, || Ok(100.0)).unwrap();
        assert!((rate - 1_100.0).abs() < 1e-6, "{rate}");
        assert!(combined_rate(2, time_one_batch, || Err(invalid_measurement("gone"))).is_err());
        assert!(combined_rate(1, || Err(invalid_measurement("wrong")), || Ok(1.0)).is_err());
    }
}
