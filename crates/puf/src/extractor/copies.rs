//! Detects bits that occur twice. Two response bits from one cell do not hide each other: the sum of their masks is
//! in the public helper data, and the code's parities reveal the rest.

use std::collections::HashMap;

use super::ExtractorError;
use crate::bits::Bits;

/// Number of bits that agree by chance with probability 2^-80 or less, for the most biased cells that the health test
/// accepts.
const BLOCK_BITS: usize = 128;
/// Copies due to ignored address lines are at whole bytes.
const STEP_BITS: usize = 8;

/// Refuses reference bits in which a block of 128 bits occurs again at a whole byte: the same memory twice (an
/// address range that wraps, a page that was read again), or a fill pattern.
///
/// # Errors
/// [`ExtractorError::Copied`].
pub(super) fn refuse_copied_cells(reference: &Bits) -> Result<(), ExtractorError> {
    let block = |at: usize| [reference.word_at(at), reference.word_at(at + 64)];
    let Some(last) = reference.len().checked_sub(BLOCK_BITS) else {
        return Ok(());
    };
    let mut first_positions = HashMap::new();
    for at in (0..=last).step_by(BLOCK_BITS) {
        if let Some(earlier) = first_positions.insert(block(at), at) {
            return Err(ExtractorError::Copied { earlier, at });
        }
    }
    for at in (0..=last).step_by(STEP_BITS) {
        match first_positions.get(&block(at)) {
            Some(&first_cell) if first_cell != at => {
                let (earlier, at) = (first_cell.min(at), first_cell.max(at));
                return Err(ExtractorError::Copied { earlier, at });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses a strong PUF that gives the same response to two challenges, within the difference of two readings of one
/// challenge: two rows with the same response reveal each other.
///
/// # Errors
/// [`ExtractorError::ChallengeIgnored`].
pub(super) fn refuse_equal_responses<'a>(
    references: impl Iterator<Item = &'a Bits> + Clone,
    distance_max: f64,
) -> Result<(), ExtractorError> {
    /// Each row is compared with the rows before it, but only with this many of the first rows. A PUF with few
    /// responses soon repeats a response.
    const EARLIER: usize = 64;
    for (index, reference) in references.clone().enumerate() {
        for earlier in references.clone().take(index.min(EARLIER)) {
            let share = reference.distance(earlier) as f64 / reference.len().max(1) as f64;
            // In both polarities: an inverted response reveals as much.
            if share.min(1.0 - share) <= distance_max {
                return Err(ExtractorError::ChallengeIgnored { share });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn random(len: usize, p: f64, seed: u64) -> Bits {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Bits::from_bools((0..len).map(|_| rng.random_bool(p)))
    }

    #[test]
    fn repeated_cells_are_found_at_any_position() {
        let cells: Vec<bool> = random(32_768, 0.65, 1).iter().collect();
        refuse_copied_cells(&Bits::from_bools(cells.iter().copied())).unwrap();
        for (from, length, to) in [
            (0, 16_384, 16_384),
            (1_000, 512, 20_008),
            (8, 256, 30_000),
            (24_576, 8_192, 0),
        ] {
            let mut copied = cells.clone();
            copied.copy_within(from..from + length, to);
            let found = refuse_copied_cells(&Bits::from_bools(copied));
            assert!(
                matches!(found, Err(ExtractorError::Copied { .. })),
                "{from} {length} {to}"
            );
        }
    }

    #[test]
    fn short_readouts_have_no_copies() {
        for len in [0, 1, 127, 128, 129] {
            refuse_copied_cells(&random(len, 0.5, 2)).unwrap();
        }
    }
}
