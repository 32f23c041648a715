//! Rebuild trials over stored readouts: enroll from the first readouts, rebuild from each later one.

use std::fmt;

use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use serde::Serialize;

use super::ReportOptions;
use crate::{
    bits::Bits,
    code::{Profile, binomial::lower_tail},
    extractor::{self, ExtractorError, KeyEnrollment},
};

/// A kind of trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TrialKind {
    /// Key mode as enrollment does it, with debiased stable cells out of windows of 32,768 cells.
    Key,
    /// The error correction of key mode on all cells, in windows of the profile's size: a test of the code, not of
    /// entropy.
    KeyCode,
    /// The error correction of pool mode on all cells, in windows of the profile's size.
    PoolCode,
}

impl TrialKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Key, Self::KeyCode, Self::PoolCode];

    fn profile(self) -> Profile {
        match self {
            Self::Key | Self::KeyCode => Profile::KEY,
            Self::PoolCode => Profile::POOL,
        }
    }

    fn window_bits(self) -> usize {
        match self {
            Self::Key => 32_768,
            Self::KeyCode | Self::PoolCode => self.profile().response_bits(),
        }
    }
}

impl fmt::Display for TrialKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key mode",
            Self::KeyCode => "key mode's code, all cells",
            Self::PoolCode => "pool mode's code, all cells",
        })
    }
}

/// The result of one kind of trial over all devices, windows and readouts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RebuildResult {
    /// The kind.
    pub kind: TrialKind,
    /// The error-correction profile, as text.
    pub profile: String,
    /// Number of enrollment readouts of each window.
    pub enrollment_readouts: usize,
    /// Number of enrolled windows.
    pub windows: usize,
    /// Number of windows that enrollment refused.
    pub refused: usize,
    /// Why enrollment refused the first of these windows.
    pub first_refusal: Option<String>,
    /// Number of rebuilds: one per enrolled window and later readout.
    pub attempts: usize,
    /// Number of rebuilds that failed or returned a wrong secret.
    pub failures: usize,
    /// Upper limit of the failure rate with 95 % confidence (Clopper, Pearson 1934). `None` if nothing was tried.
    /// Rebuilds of one chip at one temperature are not independent, so the true limit may be higher.
    pub failure_rate_below: Option<f64>,
    /// The largest number of readouts of a device.
    pub readouts: usize,
    /// The smallest min-entropy of an enrolled window's secret; `None` if only the code is tried.
    pub residual_bits_min: Option<f64>,
}

/// The result of one window.
struct Trial {
    failures: usize,
    residual_bits: Option<f64>,
}

/// Maximum number of windows of a memory's first segment that are tried.
const WINDOWS_MAX: usize = 512;

/// Trials of one kind in progress.
pub(super) struct Trials {
    result: RebuildResult,
    options: ReportOptions,
    rng: ChaCha20Rng,
}

impl Trials {
    pub(super) fn new(kind: TrialKind, options: &ReportOptions) -> Self {
        let result = RebuildResult {
            kind,
            profile: kind.profile().to_string(),
            enrollment_readouts: options.enrollment_readouts,
            windows: 0,
            refused: 0,
            first_refusal: None,
            attempts: 0,
            failures: 0,
            failure_rate_below: None,
            readouts: 0,
            residual_bits_min: None,
        };
        Self {
            result,
            options: options.clone(),
            rng: ChaCha20Rng::seed_from_u64(options.seed),
        }
    }

    pub(super) fn kind(&self) -> TrialKind {
        self.result.kind
    }

    /// Tries windows of a segment of a device's memory; segments are numbered from 0. The maximum number of windows is
    /// halved from each segment to the next.
    pub(super) fn add(&mut self, segment: usize, readouts: &[Bits]) {
        self.result.readouts = self.result.readouts.max(readouts.len());
        let size = self.result.kind.window_bits();
        let cells = readouts.first().map_or(0, Bits::len);
        let windows = WINDOWS_MAX >> segment.min(16);
        for index in 0..(cells / size).min(windows) {
            let window: Vec<Bits> = readouts
                .iter()
                .filter_map(|r| r.window(index * size, size))
                .collect();
            if let Some((enrollment, later)) = window.split_at_checked(self.options.enrollment_readouts) {
                self.try_window(enrollment, later);
            }
        }
    }

    fn try_window(&mut self, enrollment: &[Bits], later: &[Bits]) {
        let result = &mut self.result;
        match trial(result.kind, enrollment, later, &self.options, &mut self.rng) {
            Ok(trial) => {
                result.windows += 1;
                result.attempts += later.len();
                result.failures += trial.failures;
                let minimums = [result.residual_bits_min, trial.residual_bits];
                result.residual_bits_min = minimums.into_iter().flatten().reduce(f64::min);
            }
            Err(refusal) => {
                result.refused += 1;
                result.first_refusal.get_or_insert_with(|| refusal.to_string());
            }
        }
    }

    pub(super) fn result(mut self) -> RebuildResult {
        let RebuildResult {
            attempts, failures, ..
        } = self.result;
        self.result.failure_rate_below = (attempts > 0).then(|| rate_below(failures, attempts));
        self.result
    }
}

/// The failure rate at which at most `failures` failures occur in 5 % of all series, by bisection.
fn rate_below(failures: usize, attempts: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        match lower_tail(attempts as u64, middle, failures as u64) > 0.05 {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

/// Enrolls from `enrollment` and counts the readouts in `later` from which the secret is not rebuilt.
fn trial(
    kind: TrialKind,
    enrollment: &[Bits],
    later: &[Bits],
    options: &ReportOptions,
    rng: &mut ChaCha20Rng,
) -> Result<Trial, ExtractorError> {
    if kind != TrialKind::Key {
        return code_trial(kind.profile(), enrollment, later, rng);
    }
    let enrollment_options = KeyEnrollment {
        health: options.health,
        ..KeyEnrollment::default()
    };
    let enrolled = extractor::enroll(enrollment, &enrollment_options, rng)?;
    let rebuilt = |readout: &Bits| extractor::reproduce(readout, &enrolled.helper, &options.health);
    let failed = |readout: &&Bits| !rebuilt(readout).is_ok_and(|secret| secret == enrolled.secret);
    let failures = later.iter().filter(failed).count();
    Ok(Trial {
        failures,
        residual_bits: Some(enrolled.entropy.residual_bits),
    })
}

fn code_trial(
    profile: Profile,
    enrollment: &[Bits],
    later: &[Bits],
    rng: &mut ChaCha20Rng,
) -> Result<Trial, ExtractorError> {
    let no_readouts = ExtractorError::TooFewReadouts {
        given: 0,
        needed: 1,
        purpose: "enroll",
    };
    let reference = Bits::majority(enrollment).ok_or(no_readouts)?;
    let (secret, offset) = extractor::code_offset(profile, &reference, rng)?;
    let rebuilt = |readout: &Bits| extractor::rebuild(profile, readout, &offset);
    let failed = |readout: &&Bits| !rebuilt(readout).is_ok_and(|rebuilt_secret| rebuilt_secret == secret);
    Ok(Trial {
        failures: later.iter().filter(failed).count(),
        residual_bits: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_without_failures_is_the_rule_of_three() {
        assert!((rate_below(0, 1000) - 0.003).abs() < 1e-5);
        // Clopper and Pearson's tables: 2 of 20, one-sided 95 %.
        assert!((rate_below(2, 20) - 0.2826).abs() < 1e-3);
        assert!(rate_below(5, 5) > 0.999);
    }
}
