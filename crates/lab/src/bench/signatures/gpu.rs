//! The GPU's rates, host to host with copies, with random inputs, after a warm-up. Without a GPU they are pending.

use std::time::Instant;

use linewarden_signatures::gpu::{self, NoGpu, Options, Plan, Sources};

use super::keys::broken;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Better, Pending, Report, Row};

/// The device that bars are for.
const WITH_BARS: &str = "H200";
/// What must be reached on it, per second.
const BARS: [(&str, f64); 5] = [
    ("gpu.rsa2048_verify_per_s", 25e6),
    ("gpu.ra32_online_per_s", 12e6),
    ("gpu.ra32_verify_per_s", 8e6),
    ("gpu.rsa2048_sign_per_s", 0.8e6),
    ("gpu.p256_verify_per_s", 10e6),
];

/// Adds the rows: measured on the first device, or pending.
///
/// # Errors
/// No random bytes; a GPU that does not work.
pub fn rows(progress: Progress<'_>, report: &mut Report) -> Result<(), BenchError> {
    progress("gpu", None);
    let begin = Instant::now();
    let mut problem = None;
    let sources = Sources {
        now: &mut || begin.elapsed(),
        random: &mut |bytes| problem = getrandom::fill(bytes).err().or(problem),
    };
    let measured = gpu::rows(&Options::default(), &Plan::default(), sources);
    if let Some(problem) = problem {
        return Err(broken(problem));
    }
    match measured {
        Ok(measured) => {
            report.gpu = Some(measured.device.name.clone());
            report.rows.extend(of_device(&measured));
        }
        Err(why @ (NoGpu::Driver | NoGpu::NoDevice | NoGpu::NoCompiler(_))) => {
            let pending = |(name, bar): (&str, f64)| {
                let share = format!("{}.share_of_multiplier", operation(name));
                [
                    Pending::new(name, "/s", Better::Higher, Some(bar), why.to_string()),
                    Pending::new(share, "ratio", Better::Neither, None, why.to_string()),
                ]
            };
            report.pending.extend(BARS.into_iter().flat_map(pending));
        }
        // One that is there and does not work is no reason to wait for another.
        Err(broken_gpu) => return Err(broken(broken_gpu)),
    }
    Ok(())
}

/// What a row of a rate is of.
fn operation(row: &str) -> &str {
    row.trim_end_matches("_per_s")
}

/// Each rate with its share of what the multipliers could do, and how long it was measured.
fn of_device(measured: &gpu::Rows) -> Vec<Row> {
    let clock = measured.multiplier.products_per_clock;
    let has_bars = measured
        .device
        .name
        .split_whitespace()
        .any(|word| word == WITH_BARS);
    let mut rows = vec![Row::fact("gpu.products_per_clock", clock, "of a multiprocessor")];
    for row in &measured.rows {
        let bar = BARS
            .iter()
            .find(|(name, _)| *name == row.name && has_bars)
            .map(|(_, bar)| *bar);
        let name = operation(row.name);
        let measurement = &row.measurement;
        rows.push(Row::higher(row.name, measurement.items_per_s, "/s", bar));
        let share = measurement.share_of_limit;
        rows.push(Row::fact(format!("{name}.share_of_multiplier"), share, "ratio"));
        rows.push(Row::fact(format!("{name}.seconds"), measurement.seconds, "s"));
    }
    rows
}
