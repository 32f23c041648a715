//! Rebuild trials over stored readouts: enrol from the first few, rebuild from every other one.

use std::fmt;

use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use serde::Serialize;

use super::ReportOptions;
use crate::{
    bits::Bits,
    code::Profile,
    extractor::{self, CellSelection, ExtractorError, KeyEnrolment},
};

/// A kind of trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Rebuild {
    /// Key mode with stable cells out of windows of 8,192 cells.
    KeyStable,
    /// Key mode with all cells of windows as large as the profile.
    KeyFirst,
    /// The error correction of pool mode on windows as large as its profile. Cells are no strong PUF, so this tests the
    /// code and not the entropy.
    PoolCode,
}

impl Rebuild {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::KeyStable, Self::KeyFirst, Self::PoolCode];

    fn profile(self) -> Profile {
        match self {
            Self::KeyStable | Self::KeyFirst => Profile::KEY,
            Self::PoolCode => Profile::POOL,
        }
    }

    fn window_bits(self) -> usize {
        match self {
            Self::KeyStable => 8192,
            Self::KeyFirst | Self::PoolCode => self.profile().response_bits(),
        }
    }
}

impl fmt::Display for Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyStable => "key mode, stable cells",
            Self::KeyFirst => "key mode, all cells",
            Self::PoolCode => "pool mode's code",
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
    };
    let mut rng = ChaCha20Rng::seed_from_u64(options.seed);
    let size = kind.window_bits();
    for readouts in devices {
        let cells = readouts.first().map_or(0, Bits::len);
        for offset in (0..).map(|i| i * size).take_while(|offset| offset + size <= cells) {
            let window: Vec<Bits> = readouts.iter().filter_map(|r| r.window(offset, size)).collect();
            let Some((enrolment, later)) = window.split_at_checked(options.enrolment_readouts) else {
                continue;
            };
            match trial(kind, enrolment, later, options, &mut rng) {
                Ok(failures) => {
                    result.windows += 1;
                    result.attempts += later.len();
                    result.failures += failures;
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

/// The number of later readouts from which the secret is not rebuilt.
fn trial(
    kind: Rebuild,
    enrolment: &[Bits],
    later: &[Bits],
    options: &ReportOptions,
    rng: &mut ChaCha20Rng,
) -> Result<usize, ExtractorError> {
    let selection = match kind {
        Rebuild::KeyStable => CellSelection::Stable,
        Rebuild::KeyFirst => CellSelection::First,
        Rebuild::PoolCode => return code_trial(kind.profile(), enrolment, later, rng),
    };
    let how = KeyEnrolment { selection, health: options.health, ..KeyEnrolment::default() };
    let enrolled = extractor::enrol(enrolment, &how, rng)?;
    let rebuilt = |readout| extractor::reproduce(readout, &enrolled.helper, &options.health);
    Ok(later.iter().filter(|readout| !rebuilt(readout).is_ok_and(|secret| secret == enrolled.secret)).count())
}

fn code_trial(
    profile: Profile,
    enrolment: &[Bits],
    later: &[Bits],
    rng: &mut ChaCha20Rng,
) -> Result<usize, ExtractorError> {
    let none = ExtractorError::TooFewReadouts { given: 0, needed: 1, purpose: "enrol" };
    let reference = Bits::majority(enrolment).ok_or(none)?;
    let (secret, offset) = extractor::code_offset(profile, &reference, rng)?;
    let rebuilt = |readout| extractor::rebuild(profile, readout, &offset);
    Ok(later.iter().filter(|readout| !rebuilt(readout).is_ok_and(|found| found == secret)).count())
}
