//! Key mode: enrollment from readouts, and the device's side.

use rand::CryptoRng;

use super::copies::refuse_copied_cells;
use super::{CellSelection, ExtractorError, HelperData, Secret, code_offset, rebuild, select};
use crate::{
    bits::Bits,
    blocks,
    code::Profile,
    entropy::{self, EntropyAssessment, MIN_ENTROPY_BITS},
    fingerprint::Fingerprint,
    health::HealthTest,
    puf::{Challenge, Puf},
};

/// Options for the enrollment of a weak PUF.
#[derive(Clone, Debug)]
pub struct KeyEnrollment {
    /// The error-correction profile.
    pub profile: Profile,
    /// Which cells to use.
    pub selection: CellSelection,
    /// Limits for each readout and each pair of consecutive readouts.
    pub health: HealthTest,
    /// Min-entropy per cell as seen across other devices of the kind, if known
    /// ([`crate::entropy::estimate::by_position`]).
    pub fleet_min_entropy_per_bit: Option<f64>,
    /// Offset of the readouts in the memory, bytes: a multiple of [`BLOCK_BYTES`](crate::fingerprint::BLOCK_BYTES).
    pub start: usize,
}

impl Default for KeyEnrollment {
    fn default() -> Self {
        Self {
            profile: Profile::KEY,
            selection: CellSelection::Debiased,
            health: HealthTest::default(),
            fleet_min_entropy_per_bit: None,
            start: 0,
        }
    }
}

/// An enrolled secret.
#[derive(Debug)]
pub struct Enrolled {
    /// `R`; it never leaves enrollment (LAP/1 1.1).
    pub secret: Secret,
    /// Public data that the device stores.
    pub helper: HelperData,
    /// The assessed min-entropy.
    pub entropy: EntropyAssessment,
    /// The fingerprint of the PUF, from cells that carry no secret. `None` with [`CellSelection::First`], which uses
    /// all cells.
    pub fingerprint: Option<Fingerprint>,
}

/// Minimum number of readouts that shows which cells change.
const READOUTS_MIN: usize = 2;

/// Enrolls a weak PUF from readouts of the same range at consecutive power-ups: at least two with
/// [`CellSelection::First`], otherwise three.
///
/// The reference value of a cell is its majority over the readouts.
///
/// # Errors
/// [`ExtractorError`] if a readout fails its health test, is a copy of another readout or comes from another chip, if a
/// block of the memory is not power-up state ([`blocks`]), if there are too few readouts or stable cells, or if the
/// secret would keep less than 128 bits of min-entropy. If a readout is faulty and the memory is too small, the error
/// describes the readout.
pub fn enroll(
    readouts: &[Bits],
    options: &KeyEnrollment,
    rng: &mut dyn CryptoRng,
) -> Result<Enrolled, ExtractorError> {
    let reference = reference_of(readouts, options)?;
    let needed = options.profile.response_bits();
    let Some(readout_bits) = u32::try_from(reference.len())
        .ok()
        .filter(|&b| b as usize >= needed)
    else {
        return Err(ExtractorError::TooFewCells {
            available: reference.len(),
            needed,
        });
    };
    refuse_copied_cells(&reference)?;
    let selected = select::select(options.selection, readouts, &reference, needed, rng)?;
    let used_values = selected.values(&reference, needed);
    let fleet = options.fleet_min_entropy_per_bit;
    let assessed = entropy::assess_cells(
        options.profile,
        &selected.population,
        selected.cell_draw(&used_values),
        fleet,
    );
    let entropy = require_entropy(assessed, 0.0)?;
    let (secret, offset) = code_offset(options.profile, &used_values, rng)?;
    let helper = HelperData::new(options.profile, readout_bits, selected.cells, offset);
    let has_fingerprint = options.selection != CellSelection::First;
    Ok(Enrolled {
        secret,
        helper,
        entropy,
        fingerprint: has_fingerprint.then(|| Fingerprint::of_memory(&reference, options.start)),
    })
}

/// Checks that the readouts are new power-ups of one chip and power-up state in every block; returns their majority.
///
/// A fault of some blocks is reported with their addresses; a fault of the whole memory is reported by the health test.
fn reference_of(readouts: &[Bits], options: &KeyEnrollment) -> Result<Bits, ExtractorError> {
    let too_few = ExtractorError::TooFewReadouts {
        given: readouts.len(),
        needed: READOUTS_MIN,
        purpose: "see which cells change",
    };
    if readouts.len() < READOUTS_MIN {
        return Err(too_few);
    }
    check_lengths(readouts)?;
    let reference = Bits::majority(readouts).ok_or(too_few)?;
    let health = &options.health;
    let bad = blocks::examine(readouts, &reference, health).map(|bad| bad.shifted_by(options.start));
    if let Some(bad) = bad.as_ref().filter(|bad| bad.bytes() < bad.of_bytes) {
        return Err(ExtractorError::NotPowerUp(bad.clone()));
    }
    check_readouts(readouts, health)?;
    match bad {
        None => Ok(reference),
        Some(bad) => Err(ExtractorError::NotPowerUp(bad)),
    }
}

/// Takes `readouts` readouts of `cells` cells from a PUF and enrolls the PUF.
///
/// # Errors
/// As [`enroll`], and if the PUF cannot be read.
pub fn enroll_puf(
    puf: &mut dyn Puf,
    cells: usize,
    readouts: usize,
    options: &KeyEnrollment,
    rng: &mut dyn CryptoRng,
) -> Result<Enrolled, ExtractorError> {
    let readings: Result<Vec<Bits>, _> = (0..readouts)
        .map(|_| puf.read(Challenge::PowerUp, cells))
        .collect();
    enroll(&readings?, options, rng)
}

/// The device's side: rebuilds the secret from one readout.
///
/// # Errors
/// [`ExtractorError`] if the readout has another length, fails its health test or has too many errors.
pub fn reproduce(readout: &Bits, helper: &HelperData, health: &HealthTest) -> Result<Secret, ExtractorError> {
    if readout.len() != helper.readout_bits() {
        let (bits, expected) = (readout.len(), helper.readout_bits());
        return Err(ExtractorError::WrongReadingLength { bits, expected });
    }
    health.check(readout)?;
    rebuild(helper.profile(), &helper.used_bits(readout), helper.offset())
}

/// Reads the PUF once and rebuilds the secret.
///
/// # Errors
/// As [`reproduce`], and if the PUF cannot be read.
pub fn reproduce_puf(
    puf: &mut dyn Puf,
    helper: &HelperData,
    health: &HealthTest,
) -> Result<Secret, ExtractorError> {
    reproduce(
        &puf.read(Challenge::PowerUp, helper.readout_bits())?,
        helper,
        health,
    )
}

/// Returns the assessment, or an error if it is less than `margin_bits` above [`MIN_ENTROPY_BITS`].
pub(super) fn require_entropy(
    entropy: EntropyAssessment,
    margin_bits: f64,
) -> Result<EntropyAssessment, ExtractorError> {
    let needed_bits = MIN_ENTROPY_BITS + margin_bits;
    if entropy.residual_bits >= needed_bits {
        return Ok(entropy);
    }
    let EntropyAssessment {
        residual_bits,
        per_bit,
        limited_by,
        ..
    } = entropy;
    Err(ExtractorError::TooLittleEntropy {
        residual_bits,
        needed_bits,
        per_bit,
        limited_by,
    })
}

fn check_lengths(readouts: &[Bits]) -> Result<(), ExtractorError> {
    let expected = readouts.first().map_or(0, Bits::len);
    match readouts.iter().position(|readout| readout.len() != expected) {
        None => Ok(()),
        Some(index) => Err(ExtractorError::UnevenReadouts {
            index,
            bits: readouts.get(index).map_or(0, Bits::len),
            expected,
        }),
    }
}

/// Checks that the readouts have equal lengths and are healthy, that consecutive readouts do not differ too much, and
/// that no two readouts are identical.
pub(super) fn check_readouts(readouts: &[Bits], health: &HealthTest) -> Result<(), ExtractorError> {
    check_lengths(readouts)?;
    for readout in readouts {
        health.check(readout)?;
    }
    for (first, second) in readouts.iter().zip(readouts.iter().skip(1)) {
        health.check_pair(first, second)?;
    }
    match identical_pair(readouts) {
        Some((first, second)) if health.refuse_identical => {
            Err(ExtractorError::CopiedReadout { first, second })
        }
        _ => Ok(()),
    }
}

/// Finds two identical readouts; returns their positions, counted from 1.
fn identical_pair(readouts: &[Bits]) -> Option<(usize, usize)> {
    (1..).zip(readouts).find_map(|(second, readout)| {
        let earlier = readouts
            .iter()
            .take(second - 1)
            .position(|other| other == readout)?;
        Some((earlier + 1, second))
    })
}
