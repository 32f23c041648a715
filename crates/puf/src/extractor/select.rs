//! Selects the cells of a weak PUF that carry the secret.

use rand::CryptoRng;

use super::ExtractorError;
use crate::{
    bits::Bits,
    entropy::{CellDraw, estimate::CellSample},
    fingerprint::is_reserved,
};

/// How enrollment selects cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellSelection {
    /// The first cells of the readout, in order, without a cell list in the helper data. Such an enrollment has no
    /// fingerprint.
    First,
    /// Cells drawn at random from all cells that agree in all enrollment readouts and are not [reserved](is_reserved).
    Stable,
    /// Stable cells, debiased by von Neumann's method (Maes, van der Leest, van der Sluis, Willems: Secure key
    /// generation from biased PUFs, CHES 2015): consecutive stable cells of one memory column form a pair. The first
    /// cell of a pair with different values is a candidate; pairs with equal values are skipped. Cells of a column
    /// share their bias, so the first cell of a 01 or 10 pair is one or zero with the same probability, independent
    /// of the bias. Both cells must be stable. With a bias, stability depends on the value, so a requirement for only
    /// one cell of the pair would restore the bias. One bit takes about five cells.
    Debiased,
}

/// Minimum number of readouts that shows whether a cell is stable.
const STABLE_READOUTS_MIN: usize = 3;

/// The period in cells after which a memory's column structure repeats: on the STM32F407, 32 cells that tend to one
/// and 32 that tend to zero. The entropy estimate detects remaining structure.
const COLUMNS: usize = 128;

/// The selected cells of an enrollment.
pub(super) struct SelectedCells {
    /// The selected cells, ascending; empty with [`CellSelection::First`].
    pub(super) cells: Vec<u32>,
    /// The cells from which `cells` were drawn.
    pub(super) population: CellSample,
    /// All cells whose values follow from the values of `cells`; empty with [`CellSelection::First`].
    involved: Vec<u32>,
}

impl SelectedCells {
    /// The values of the selected cells.
    pub(super) fn values(&self, reference: &Bits, needed: usize) -> Bits {
        match self.cells.as_slice() {
            [] => reference.window(0, needed).unwrap_or_else(|| reference.clone()),
            cells => reference.gather(cells),
        }
    }

    /// How the cells were selected, for the entropy estimate; `used` contains their values.
    pub(super) fn cell_draw<'a>(&'a self, used: &'a Bits) -> CellDraw<'a> {
        match self.involved.as_slice() {
            [] => CellDraw::InOrder(Some(used)),
            cells => CellDraw::Random(cells),
        }
    }
}

/// Selects `needed` cells; `reference` has at least `needed` and fewer than 2^32 cells.
pub(super) fn select(
    selection: CellSelection,
    readouts: &[Bits],
    reference: &Bits,
    needed: usize,
    rng: &mut dyn CryptoRng,
) -> Result<SelectedCells, ExtractorError> {
    match selection {
        CellSelection::First => {
            let population = CellSample::all(reference);
            Ok(SelectedCells {
                cells: Vec::new(),
                population,
                involved: Vec::new(),
            })
        }
        CellSelection::Stable => {
            let stable = stable_cells(readouts)?;
            let population = CellSample::of_cells(reference, &stable);
            let cells = draw(stable, needed, rng)?;
            Ok(SelectedCells {
                involved: cells.clone(),
                cells,
                population,
            })
        }
        CellSelection::Debiased => {
            let pairs = unequal_pairs(&stable_cells(readouts)?, reference);
            let first_cells: Vec<u32> = pairs.iter().map(|(first, _)| *first).collect();
            let population = CellSample::of_cells(reference, &first_cells);
            let drawn = draw(pairs, needed, rng)?;
            let involved = drawn
                .iter()
                .flat_map(|(first, second)| [*first, *second])
                .collect();
            Ok(SelectedCells {
                cells: drawn.into_iter().map(|(first, _)| first).collect(),
                population,
                involved,
            })
        }
    }
}

/// The cells that agree in all readouts and are not reserved, ascending.
fn stable_cells(readouts: &[Bits]) -> Result<Vec<u32>, ExtractorError> {
    if readouts.len() < STABLE_READOUTS_MIN {
        let (given, purpose) = (readouts.len(), "find stable cells");
        return Err(ExtractorError::TooFewReadouts {
            given,
            needed: STABLE_READOUTS_MIN,
            purpose,
        });
    }
    let agree = |cell: &u32| {
        let mut values = readouts.iter().map(|r| r.get(*cell as usize));
        let first = values.next();
        values.all(|value| Some(value) == first)
    };
    let cells = readouts.first().map_or(0, Bits::len);
    let usable = |cell: &u32| !is_reserved(*cell) && agree(cell);
    Ok((0..=u32::MAX).take(cells).filter(usable).collect())
}

/// The pairs of consecutive stable cells of a column that have different values.
fn unequal_pairs(stable: &[u32], reference: &Bits) -> Vec<(u32, u32)> {
    let mut waiting: [Option<u32>; COLUMNS] = [None; COLUMNS];
    let mut pairs = Vec::new();
    for &cell in stable {
        let Some(unpaired) = waiting.get_mut(cell as usize % COLUMNS) else {
            continue;
        };
        match unpaired.take() {
            None => *unpaired = Some(cell),
            Some(first) if reference.get(first as usize) != reference.get(cell as usize) => {
                pairs.push((first, cell))
            }
            Some(_) => {}
        }
    }
    pairs
}

/// Draws `needed` candidates at random; returns them in ascending order.
fn draw<T: Ord>(
    mut candidates: Vec<T>,
    needed: usize,
    rng: &mut dyn CryptoRng,
) -> Result<Vec<T>, ExtractorError> {
    if candidates.len() < needed {
        return Err(ExtractorError::TooFewCells {
            available: candidates.len(),
            needed,
        });
    }
    // The first steps of a Fisher-Yates shuffle draw `needed` candidates without repetition.
    for i in 0..needed {
        let rest = (candidates.len() - i) as u64;
        let offset = usize::try_from(rng.next_u64() % rest).unwrap_or(0);
        candidates.swap(i, i + offset);
    }
    candidates.truncate(needed);
    candidates.sort_unstable();
    Ok(candidates)
}
