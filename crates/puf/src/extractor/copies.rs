//! Detects bits that occur twice. Two response bits from one cell do not hide each other: the sum of their masks is
//! in the public helper data, and the code's parities reveal the rest.

use std::collections::HashMap;

use super::ExtractorError;
use crate::bits::Bits;

/// Number of bits that agree by chance with probability 2^-80 or less, for the most biased cells that the health test
/// accepts.
const BLOCK_BITS: usize = 128;
/// Copies that ignored address lines cause begin at a whole byte.
const STEP_BITS: usize = 8;

/// Refuses reference bits in which a block of 128 bits occurs again at a whole byte: the same memory twice (an
/// address range that wraps, a page that was read again), or a fill pattern.
///
/// # Errors
/// [`ExtractorError::Copied`].
pub(super) fn refuse_copied_cells(reference: &Bits) -> Result<(), ExtractorError> {
    let block = |position: usize| [reference.word_at(position), reference.word_at(position + 64)];
    let Some(last) = reference.len().checked_sub(BLOCK_BITS) else {
        return Ok(());
    };
    let mut first_positions = HashMap::new();
    for copy in (0..=last).step_by(BLOCK_BITS) {
        if let Some(first) = first_positions.insert(block(copy), copy) {
            return Err(ExtractorError::Copied { first, copy });
        }
    }
    for position in (0..=last).step_by(STEP_BITS) {
        match first_positions.get(&block(position)) {
            Some(&other) if other != position => {
                let (first, copy) = (other.min(position), other.max(position));
                return Err(ExtractorError::Copied { first, copy });
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
    /// Maximum number of earlier rows, from the first row, with which each row is compared. A PUF with few different
    /// responses repeats one of them among these rows.
    const COMPARED_ROWS_MAX: usize = 64;
    for (index, reference) in references.clone().enumerate() {
        for earlier in references.clone().take(index.min(COMPARED_ROWS_MAX)) {
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
