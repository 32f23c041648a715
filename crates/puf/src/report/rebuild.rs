//! Rebuild trials over stored readouts: enrol from the first few, rebuild from every other one.

use std::fmt;

use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use serde::Serialize;

use super::ReportOptions;
use crate::{
    bits::Bits,
    code::Profile,
    extractor::{self, ExtractorError, KeyEnrolment},
};

/// A kind of trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Rebuild {
    /// Key mode as enrolment does it, with debiased stable cells out of windows of 32,768 cells.
    Key,
    /// The error correction of key mode on all cells, in windows as large as its profile: a test of the code,
    /// not of entropy.
    KeyCode,
    /// The error correction of pool mode likewise.
    PoolCode,
}

impl Rebuild {
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

impl fmt::Display for Rebuild {
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
    pub kind: Rebuild,
    /// The error-correction profile, in words.
    pub profile: String,
    /// Readouts each window was enrolled from.
    pub enrolment_readouts: usize,
    /// Windows that were enrolled.
    pub windows: usize,
    /// Windows that enrolment refused.
    pub refused: usize,
    /// Why the first of them was refused.
    pub first_refusal: Option<String>,
    /// Rebuilds tried: enrolled windows times remaining readouts.
    pub attempts: usize,
    /// Rebuilds that failed or gave another secret.
    pub failures: usize,
    /// The least min-entropy of an enrolled window's secret; `None` where only the code is tried.
    pub residual_bits_min: Option<f64>,
}

/// One window's outcome.
struct Trial {
    failures: usize,
    residual_bits: Option<f64>,
}

pub(super) fn run<'a>(
    kind: Rebuild,
    devices: impl Iterator<Item = &'a [Bits]>,
    options: &ReportOptions,
) -> RebuildResult {
    let mut result = RebuildResult {
        kind,
        profile: kind.profile().to_string(),
        enrolment_readouts: options.enrolment_readouts,
        windows: 0,
        refused: 0,
        first_refusal: None,
        attempts: 0,
        failures: 0,
        residual_bits_min: None,
    };
    let mut rng = ChaCha20Rng::seed_from_u64(options.seed);
    let size = kind.window_bits();
    for readouts in devices {
        let cells = readouts.first().map_or(0, Bits::len);
        for offset in (0..)
            .map(|i| i * size)
            .take_while(|offset| offset + size <= cells)
        {
            let window: Vec<Bits> = readouts.iter().filter_map(|r| r.window(offset, size)).collect();
            let Some((enrolment, later)) = window.split_at_checked(options.enrolment_readouts) else {
                continue;
            };
            match trial(kind, enrolment, later, options, &mut rng) {
                Ok(trial) => {
                    result.windows += 1;
                    result.attempts += later.len();
                    result.failures += trial.failures;
                    let both = [result.residual_bits_min, trial.residual_bits];
                    result.residual_bits_min = both.into_iter().flatten().reduce(f64::min);
                }
                Err(refusal) => {
                    result.refused += 1;
                    result.first_refusal.get_or_insert_with(|| refusal.to_string());
                }
            }
        }
    }
    result
}

/// Enrols from the first readouts and counts the later ones from which the secret is not rebuilt.
fn trial(
    kind: Rebuild,
    enrolment: &[Bits],
    later: &[Bits],
    options: &ReportOptions,
    rng: &mut ChaCha20Rng,
) -> Result<Trial, ExtractorError> {
    if kind != Rebuild::Key {
        return code_trial(kind.profile(), enrolment, later, rng);
    }
    let how = KeyEnrolment {
        health: options.health,
        ..KeyEnrolment::default()
    };
    let enrolled = extractor::enrol(enrolment, &how, rng)?;
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
    enrolment: &[Bits],
    later: &[Bits],
    rng: &mut ChaCha20Rng,
) -> Result<Trial, ExtractorError> {
    let none = ExtractorError::TooFewReadouts {
        given: 0,
        needed: 1,
        purpose: "enrol",
    };
    let reference = Bits::majority(enrolment).ok_or(none)?;
    let (secret, offset) = extractor::code_offset(profile, &reference, rng)?;
    let rebuilt = |readout: &Bits| extractor::rebuild(profile, readout, &offset);
    let failed = |readout: &&Bits| !rebuilt(readout).is_ok_and(|found| found == secret);
    Ok(Trial {
        failures: later.iter().filter(failed).count(),
        residual_bits: None,
    })
}
