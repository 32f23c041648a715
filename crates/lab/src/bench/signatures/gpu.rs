//! Rates of the GPU with random inputs after a warm-up, including the copies from and to the host. Without a GPU, the rows are
//! pending.

use std::time::Instant;

use linewarden_signatures::gpu::{self, BenchEnvironment, GpuUnavailable, Options, Plan};

use super::keys::invalid_measurement;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Better, Pending, Report, Row};

/// The device for which there are targets.
const DEVICE_WITH_TARGETS: &str = "H200";
/// Targets for [`DEVICE_WITH_TARGETS`], per second.
const TARGETS: [(&str, f64); 5] = [
    ("gpu.rsa2048_verify_per_s", 25e6),
    ("gpu.ra32_online_per_s", 12e6),
    ("gpu.ra32_verify_per_s", 8e6),
    ("gpu.rsa2048_sign_per_s", 0.8e6),
    ("gpu.p256_verify_per_s", 10e6),
];

/// Adds the rows, measured on the first GPU. Without a GPU, the rows are pending.
///
/// # Errors
/// The system provided no random bytes, or a GPU failed.
pub fn rows(progress: Progress<'_>, report: &mut Report) -> Result<(), BenchError> {
    progress("GPU", None);
    let begin = Instant::now();
    let mut random_error = None;
    let sources = BenchEnvironment {
        now: &mut || begin.elapsed(),
        random: &mut |bytes| random_error = getrandom::fill(bytes).err().or(random_error),
    };
    let measured = gpu::rows(&Options::default(), &Plan::default(), sources);
    if let Some(random_error) = random_error {
        return Err(invalid_measurement(random_error));
    }
    match measured {
        Ok(measured) => {
            report.gpu = Some(measured.device.name.clone());
            report.rows.extend(device_rows(&measured));
        }
        Err(
            error @ (GpuUnavailable::DriverMissing
            | GpuUnavailable::NoDevice
            | GpuUnavailable::CompilerMissing(_)),
        ) => {
            let pending = |(name, target): (&str, f64)| {
                let share = format!("{}.share_of_multiplier", operation(name));
                [
                    Pending::new(name, "/s", Better::Higher, Some(target), error.to_string()),
                    Pending::new(share, "ratio", Better::Neither, None, error.to_string()),
                ]
            };
            report.pending.extend(TARGETS.into_iter().flat_map(pending));
        }
        // A GPU that is present but fails is an error, not a pending value.
        Err(error) => return Err(invalid_measurement(error)),
    }
    Ok(())
}

/// The operation that a row names.
fn operation(row: &str) -> &str {
    row.trim_end_matches("_per_s")
}

/// Each rate, with its share of the multipliers' maximum rate and the measurement time.
fn device_rows(measured: &gpu::BenchRows) -> Vec<Row> {
    let clock = measured.multiplier.products_per_clock;
    let has_targets = measured
        .device
        .name
        .split_whitespace()
        .any(|word| word == DEVICE_WITH_TARGETS);
    let mut rows = vec![Row::fact("gpu.products_per_clock", clock, "of a multiprocessor")];
    for row in &measured.rows {
        let target = TARGETS
            .iter()
            .find(|(name, _)| *name == row.name && has_targets)
            .map(|(_, target)| *target);
        let name = operation(row.name);
        let measurement = &row.measurement;
        rows.push(Row::higher(row.name, measurement.items_per_s, "/s", target));
        let share = measurement.share_of_limit;
        rows.push(Row::fact(format!("{name}.share_of_multiplier"), share, "ratio"));
        rows.push(Row::fact(format!("{name}.seconds"), measurement.seconds, "s"));
    }
    rows
}
