//! The stages of Rapid Authentication by a GPU, batch by batch, and by processors and a GPU at once: the other half of the thesis' Figures 3 to 11.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linewarden_signatures::gpu::{self, Gpu, NoGpu, Options, Plan, Sources, Stage};
use linewarden_signatures::receive::Checked;

use super::batches::{OF_A_THREAD, STAGES, one_batch};
use super::keys::{Rapid, broken};
use super::turns::Done;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Better, Pending, Report, Row};

/// The GPU's names for them.
const ON_GPU: [Stage; 3] = [Stage::Offline, Stage::Online, Stage::Verify];

/// Messages of the GPU's batches: a block, and up to as many as keep a large device busy while it copies.
const ON_GPU_BATCHES: [usize; 5] = [128, 1_024, 8_192, 32_768, 131_072];

/// Adds the rows: measured with the first device, or pending.
///
/// # Errors
/// A GPU that does not work, a signature that is wrong.
pub(super) fn rows(
    key: &Rapid,
    messages: &[Checked],
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let opened = Gpu::discover().and_then(|devices| {
        let device = devices.first().ok_or(NoGpu::NoDevice)?;
        Gpu::open(device, &Options::default())
    });
    match opened {
        Ok(mut gpu) => with_gpu(&mut gpu, key, messages, progress, report),
        Err(why @ (NoGpu::Driver | NoGpu::NoDevice | NoGpu::NoCompiler(_))) => {
            for stage in STAGES {
                let batches = ON_GPU_BATCHES.map(|count| format!("stage.{stage}.gpu_batch.{count}"));
                let threads = threads().map(|count| format!("stage.{stage}.threads_and_gpu.{count}"));
                let pending = |name| Pending::new(name, "/s", Better::Higher, None, why.to_string());
                report
                    .pending
                    .extend(batches.into_iter().chain(threads).map(pending));
            }
            Ok(())
        }
        Err(broken_gpu) => Err(broken(broken_gpu)),
    }
}

fn with_gpu(
    gpu: &mut Gpu,
    key: &Rapid,
    messages: &[Checked],
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    report.gpu = Some(gpu.info().name.clone());
    for (turn, count) in (0..).zip(ON_GPU_BATCHES) {
        progress(
            "stages by batch on the GPU",
            Some((turn, ON_GPU_BATCHES.len() as u64)),
        );
        for (stage, on_gpu) in STAGES.into_iter().zip(ON_GPU) {
            let rate = on_device(gpu, on_gpu, count, BRIEFLY)?;
            let name = format!("stage.{stage}.gpu_batch.{count}");
            report.rows.push(Row::higher(name, rate, "/s", None));
        }
    }
    for threads in threads() {
        progress(
            "stages by threads and GPU",
            Some((threads as u64, processors() as u64)),
        );
        for ((stage, on_gpu), count) in STAGES.into_iter().zip(ON_GPU).zip(OF_A_THREAD) {
            let once = || one_batch(key, stage, messages, count);
            let whole = Plan::default();
            let rate = at_once(threads, once, || {
                on_device(gpu, on_gpu, whole.items, whole.duration)
            })?;
            let name = format!("stage.{stage}.threads_and_gpu.{threads}");
            report.rows.push(Row::higher(name, rate, "/s", None));
        }
    }
    Ok(())
}

/// How long each batch is measured, after as long a warm-up.
const BRIEFLY: Duration = Duration::from_millis(500);

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How many threads compute beside a GPU, which takes one processor.
fn threads() -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(1), |threads: &usize| threads.checked_mul(2));
    powers.take_while(|threads| *threads < processors().max(2))
}

/// Messages per second of a stage, by batches of so many.
fn on_device(gpu: &mut Gpu, stage: Stage, items: usize, duration: Duration) -> Result<f64, BenchError> {
    let begin = Instant::now();
    let mut problem = None;
    let sources = Sources {
        now: &mut || begin.elapsed(),
        random: &mut |bytes| problem = getrandom::fill(bytes).err().or(problem),
    };
    let plan = Plan {
        items,
        duration,
        stage: Some(stage),
        ..Plan::default()
    };
    let rate = gpu::stage_of(gpu, &plan, sources).map_err(broken);
    match problem {
        Some(problem) => Err(broken(problem)),
        None => rate,
    }
}

/// Stops threads when it goes.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What threads do in a second as long as a device is measured, and what it does; preparations are not counted.
fn at_once(
    threads: usize,
    once: impl Fn() -> Result<Done, BenchError> + Sync,
    device: impl FnOnce() -> Result<f64, BenchError>,
) -> Result<f64, BenchError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = || {
            let (mut times, mut took) = (0, Duration::ZERO);
            while times == 0 || !stop.load(Ordering::Relaxed) {
                let done = once()?;
                times += done.times;
                took += done.took;
            }
            Ok::<f64, BenchError>(times as f64 / took.as_secs_f64())
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let of_device = {
            // Also if it panics: the scope waits for the threads.
            let _stopping = Stopping(&stop);
            device()
        };
        let mut rate = of_device?;
        for worker in workers {
            rate += worker
                .join()
                .unwrap_or_else(|_| Err(broken("a thread panicked")))?;
        }
        Ok(rate)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_add_up_and_the_first_error_counts() {
        let once = || {
            let took = Duration::from_millis(10);
            Ok(Done { times: 5, took })
        };
        let rate = at_once(2, once, || Ok(100.0)).unwrap();
        assert!((rate - 1_100.0).abs() < 1e-6, "{rate}");
        assert!(at_once(2, once, || Err(broken("gone"))).is_err());
        assert!(at_once(1, || Err(broken("wrong")), || Ok(1.0)).is_err());
    }
}
