//! The stages of Rapid Authentication with RSA-2048 and 32 components, by batch size on one core and by threads: the
//! thesis' Figures 3 to 11.
//!
//! Batches are computed one after another, so a batch of fewer than eight messages leaves vector lanes unused.

use std::sync::Barrier;
use std::time::Duration;

use linewarden_signatures::lane::{BatchLane, SingleLane, Verifier};
use linewarden_signatures::receive::Checked;

use super::Size;
use super::combined;
use super::keys::{RapidKey, invalid_measurement, names};
use super::rounds::{Measurement, Timing, best_of_rounds, timed};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Report, Row};

/// The stages, with their names in rows.
pub const STAGES: [&str; 3] = ["offline", "online", "verify"];
/// Different messages; larger batches repeat them.
const MESSAGES: usize = 512;
/// Maximum number of masks for one timing: the offline and the online stage compute only this part of a larger batch.
/// In the online stage, the time for creating the masks does not count.
const MASKS_MAX: usize = 512;

/// Adds the rows of this part.
///
/// # Errors
/// A signature was invalid.
pub(super) fn rows(
    size: &Size,
    key: &RapidKey,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let rows = &mut report.rows;
    let messages = key.messages(MESSAGES)?;
    for (index, batch) in size.batches.iter().enumerate() {
        progress(
            "stages by batch size",
            Some((index as u64, size.batches.len() as u64)),
        );
        rows_by_batch(size, key, &messages, *batch, rows)?;
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut threads = 1;
    while threads <= 2 * cpus {
        progress("stages by threads", Some((threads as u64, 2 * cpus as u64)));
        rows_by_threads(size, key, &messages, threads, rows)?;
        threads *= 2;
    }
    combined::rows(key, &messages, progress, report)
}

fn rows_by_batch(
    size: &Size,
    key: &RapidKey,
    messages: &[Checked],
    batch: usize,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let mut measurements: Vec<Measurement<'_>> = STAGES
        .iter()
        .map(|stage| Measurement::new(*stage, move || time_batch(key, stage, messages, batch)))
        .collect();
    for (seconds, measurement) in best_of_rounds(size, &mut measurements)?
        .into_iter()
        .zip(&measurements)
    {
        let name = format!("stage.{}.batch.{batch}", measurement.name);
        rows.push(Row::higher(name, 1.0 / seconds, "/s", None));
    }
    Ok(())
}

/// Computes one batch of a stage; returns the time without the preparation.
pub(super) fn time_batch(
    key: &RapidKey,
    stage: &str,
    messages: &[Checked],
    batch: usize,
) -> Result<Timing, BenchError> {
    match stage {
        "offline" => {
            // A smaller batch, because 8,160 masks take seconds.
            let names = names(batch.min(MASKS_MAX))?;
            let ra = key.ra()?;
            let (masks, timing) = timed(names.len(), || ra.masks(&names));
            masks.map_err(invalid_measurement).map(|_| timing)
        }
        "online" => online(key, batch),
        _ => verify(messages, batch),
    }
}

fn online(key: &RapidKey, batch: usize) -> Result<Timing, BenchError> {
    let digits = key.digits(batch.min(MASKS_MAX))?;
    let work = key.masks(digits.len())?.into_iter().zip(&digits).collect();
    let (signed, timing) = timed(digits.len(), || key.table.sign_all(work));
    signed.map_err(invalid_measurement).map(|_| timing)
}

fn verify(messages: &[Checked], batch: usize) -> Result<Timing, BenchError> {
    let mut lane: Box<dyn Verifier> = match BatchLane::widest() {
        Some(lane) => Box::new(lane),
        None => Box::new(SingleLane::default()),
    };
    let mut total = Timing {
        count: 0,
        elapsed: Duration::ZERO,
    };
    while total.count < batch {
        let chunk = messages
            .get(..messages.len().min(batch - total.count))
            .unwrap_or_default();
        let mut validities = Vec::with_capacity(chunk.len());
        let (verified, timing) = timed(chunk.len(), || lane.verify(chunk, &mut validities));
        verified.map_err(invalid_measurement)?;
        if validities.iter().any(|is_valid| !is_valid) {
            return Err(invalid_measurement("a valid signature was rejected"));
        }
        total.count += timing.count;
        total.elapsed += timing.elapsed;
    }
    Ok(total)
}

/// Masks, messages to sign, and messages to verify per thread and batch.
pub(super) const BATCH_PER_THREAD: [usize; 3] = [64, MASKS_MAX, 4 * MESSAGES];

/// All threads prepare the same work and start together. The rate is computed from the time of the slowest thread.
fn rows_by_threads(
    size: &Size,
    key: &RapidKey,
    messages: &[Checked],
    threads: usize,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    for (stage, count) in STAGES.into_iter().zip(BATCH_PER_THREAD) {
        let mut rate = 0.0_f64;
        for _ in 0..size.runs.min(5) {
            let barrier = Barrier::new(threads);
            let times = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads)
                    .map(|_| scope.spawn(|| time_thread_batch(key, stage, messages, count, &barrier)))
                    .collect();
                let results = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
                results
                    .map(|result| result.unwrap_or_else(|_| Err(invalid_measurement("a thread panicked"))))
                    .collect::<Result<Vec<Duration>, _>>()
            })?;
            let slowest = times.into_iter().max().unwrap_or_default();
            rate = rate.max((threads * count) as f64 / slowest.as_secs_f64());
        }
        rows.push(Row::higher(
            format!("stage.{stage}.threads.{threads}"),
            rate,
            "/s",
            None,
        ));
    }
    Ok(())
}

fn time_thread_batch(
    key: &RapidKey,
    stage: &str,
    messages: &[Checked],
    count: usize,
    barrier: &Barrier,
) -> Result<Duration, BenchError> {
    // The thread must reach the barrier even after an error, because the other threads wait there.
    let prepared = match stage {
        "online" => key
            .digits(count)
            .and_then(|digits| Ok((digits, key.masks(count)?))),
        _ => Ok((Vec::new(), Vec::new())),
    };
    barrier.wait();
    let (digits, masks) = prepared?;
    match stage {
        "online" => {
            let (signed, timing) = timed(count, || {
                key.table.sign_all(masks.into_iter().zip(&digits).collect())
            });
            signed.map_err(invalid_measurement).map(|_| timing.elapsed)
        }
        "offline" => time_batch(key, stage, messages, count).map(|timing| timing.elapsed),
        _ => verify(messages, count).map(|timing| timing.elapsed),
    }
}
