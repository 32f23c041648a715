//! The stages of Rapid Authentication over RSA-2048 with 32 components, by batch on one core and by threads: the thesis' Figures 3 to 11.
//!
//! A batch is done from beginning to end before the next begins, so a small one pays for what eight lanes have to be filled with.

use std::sync::Barrier;
use std::time::Duration;

use linewarden_signatures::lane::{Eight, OneByOne, Verifier};
use linewarden_signatures::receive::Checked;

use super::Size;
use super::keys::{Rapid, broken, names};
use super::together;
use super::turns::{Done, Way, best, timed};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Report, Row};

/// The stages, as rows name them.
pub const STAGES: [&str; 3] = ["offline", "online", "verify"];
/// Messages that there are; larger batches have them several times.
const MESSAGES: usize = 512;
/// Masks that are made for one timing of the online stage at most: a larger batch is timed in parts, without what makes their masks.
const MASKS_MAX: usize = 512;

/// Measures.
///
/// # Errors
/// A signature that is wrong.
pub(super) fn rows(
    size: &Size,
    key: &Rapid,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let rows = &mut report.rows;
    let messages = key.messages(MESSAGES)?;
    for (index, batch) in size.batches.iter().enumerate() {
        progress("stages by batch", Some((index as u64, size.batches.len() as u64)));
        by_batch(size, key, &messages, *batch, rows)?;
    }
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut threads = 1;
    while threads <= 2 * processors {
        progress("stages by threads", Some((threads as u64, 2 * processors as u64)));
        by_threads(size, key, &messages, threads, rows)?;
        threads *= 2;
    }
    together::rows(key, &messages, progress, report)
}

fn by_batch(
    size: &Size,
    key: &Rapid,
    messages: &[Checked],
    batch: usize,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let mut ways: Vec<Way<'_>> = STAGES
        .iter()
        .map(|stage| Way::new(*stage, move || one_batch(key, stage, messages, batch)))
        .collect();
    for (seconds, way) in best(size, &mut ways)?.into_iter().zip(&ways) {
        let name = format!("stage.{}.batch.{batch}", way.name);
        rows.push(Row::higher(name, 1.0 / seconds, "/s", None));
    }
    Ok(())
}

/// One batch of a stage, and its time without what prepares it.
pub(super) fn one_batch(
    key: &Rapid,
    stage: &str,
    messages: &[Checked],
    batch: usize,
) -> Result<Done, BenchError> {
    match stage {
        "offline" => {
            // As many as take some time: a batch of 8,160 masks is seconds.
            let names = names(batch.min(MASKS_MAX))?;
            let ra = key.ra()?;
            let (masks, done) = timed(names.len(), || ra.masks(&names));
            masks.map_err(broken).map(|_| done)
        }
        "online" => online(key, batch),
        _ => verify(messages, batch),
    }
}

fn online(key: &Rapid, batch: usize) -> Result<Done, BenchError> {
    let digits = key.digits(batch.min(MASKS_MAX))?;
    let work = key.masks(digits.len())?.into_iter().zip(&digits).collect();
    let (signed, done) = timed(digits.len(), || key.table.sign_all(work));
    signed.map_err(broken).map(|_| done)
}

fn verify(messages: &[Checked], batch: usize) -> Result<Done, BenchError> {
    let mut lane: Box<dyn Verifier> = match Eight::widest() {
        Some(eight) => Box::new(eight),
        None => Box::new(OneByOne::default()),
    };
    let mut total = Done {
        times: 0,
        took: Duration::ZERO,
    };
    while total.times < batch {
        let some = messages
            .get(..messages.len().min(batch - total.times))
            .unwrap_or_default();
        let mut holds = Vec::with_capacity(some.len());
        let (verified, done) = timed(some.len(), || lane.verify(some, &mut holds));
        verified.map_err(broken)?;
        if holds.iter().any(|holds| !holds) {
            return Err(broken("a signature that was just made does not verify"));
        }
        total.times += done.times;
        total.took += done.took;
    }
    Ok(total)
}

/// Masks, messages to sign and messages to verify that each thread does at a go.
pub(super) const OF_A_THREAD: [usize; 3] = [64, MASKS_MAX, 4 * MESSAGES];

/// All threads begin together when they have prepared, and do the same; all that they did by the time until the last has done it.
fn by_threads(
    size: &Size,
    key: &Rapid,
    messages: &[Checked],
    threads: usize,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    for (stage, count) in STAGES.into_iter().zip(OF_A_THREAD) {
        let mut rate = 0.0_f64;
        for _ in 0..size.runs.min(5) {
            let begin = Barrier::new(threads);
            let times = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads)
                    .map(|_| scope.spawn(|| of_a_thread(key, stage, messages, count, &begin)))
                    .collect();
                let ends = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
                ends.map(|end| end.unwrap_or_else(|_| Err(broken("a thread panicked"))))
                    .collect::<Result<Vec<Duration>, _>>()
            })?;
            let last = times.into_iter().max().unwrap_or_default();
            rate = rate.max((threads * count) as f64 / last.as_secs_f64());
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

fn of_a_thread(
    key: &Rapid,
    stage: &str,
    messages: &[Checked],
    count: usize,
    begin: &Barrier,
) -> Result<Duration, BenchError> {
    // Whatever fails, the others must not wait for ever.
    let prepared = match stage {
        "online" => key
            .digits(count)
            .and_then(|digits| Ok((digits, key.masks(count)?))),
        _ => Ok((Vec::new(), Vec::new())),
    };
    begin.wait();
    let (digits, masks) = prepared?;
    match stage {
        "online" => {
            let (signed, done) = timed(count, || {
                key.table.sign_all(masks.into_iter().zip(&digits).collect())
            });
            signed.map_err(broken).map(|_| done.took)
        }
        "offline" => one_batch(key, stage, messages, count).map(|done| done.took),
        _ => verify(messages, count).map(|done| done.took),
    }
}
