//! The statistics of a block's values: bias, columns, dependence, repetition.
//!
//! Cells of a memory are independent, but the cells of one column may tend to one value. Columns repeat every 8 to
//! 128 cells. Two chips of one kind then agree in more than half of their cells. A block is refused if its statistics
//! exceed the limits for columns at which two chips agree in 70 % of their cells.

use std::collections::HashMap;

use super::defect::Defect;
use crate::{bits::Bits, health::HealthTest};

/// Minimum number of cells of a block whose values are checked. `Profile::POOL` and `Profile::KEY` need more cells.
const STATISTICS_CELLS_MIN: usize = 1024;
/// Periods of columns, in cells.
const PERIODS: [usize; 5] = [8, 16, 32, 64, 128];
/// The largest mean square bias of columns, `E[(2 p - 1)²]`: two chips then agree in `(1 + 0.4) / 2` of their cells.
const COLUMNS_MAX: f64 = 0.4;
/// Distances at which cells are compared.
const LAGS: [usize; 6] = [1, 8, 16, 32, 64, 128];
/// Maximum difference between 0.5 and the share of equal cells at one of these distances: 0.2 for columns, 0.06 for
/// chance.
const DEPENDENCE_MAX: f64 = 0.26;
/// Maximum number of 32-cell words that equal an earlier word of the block. With the highest permitted
/// column bias, a block has 0.1 repeated words by chance on average.
const REPEATED_WORDS_MAX: usize = 5;
/// Bytes of a row when bytes of one column are compared.
const ROW_BYTES: usize = 16;

/// The defect of the values, if any.
pub(super) fn find_defect(block: &Bits, health: &HealthTest) -> Option<Defect> {
    if block.len() < STATISTICS_CELLS_MIN {
        return None;
    }
    let ones = block.count_ones();
    // The health test reports the bias of the complete chip, so a block is limited to 80 % equal cells here.
    let limit = health.count_limit(block.len()).max(block.len() * 4 / 5);
    if ones.max(block.len() - ones) > limit {
        return Some(Defect::Weight);
    }
    if PERIODS
        .iter()
        .any(|&period| square_bias(block, period) > COLUMNS_MAX)
    {
        return Some(Defect::Columns);
    }
    if LAGS
        .iter()
        .any(|&lag| (equal_share(block, lag) - 0.5).abs() > DEPENDENCE_MAX)
    {
        return Some(Defect::Dependence);
    }
    let bytes = block.to_bytes();
    if repeated_words(&bytes) > REPEATED_WORDS_MAX {
        return Some(Defect::RepeatedWords);
    }
    let (found, expected) = equal_bytes(&bytes);
    (found > 1.5 * expected + 8.0 * (expected + 1.0).sqrt() + 10.0).then_some(Defect::ByteValues)
}

/// An unbiased estimate of the mean over all columns of `(2 p - 1)²`.
fn square_bias(block: &Bits, period: usize) -> f64 {
    let rows = block.len() / period;
    let ones = column_ones(block, period, rows);
    let pairs = (rows * rows.saturating_sub(1)).max(1) as f64;
    let square = |&ones: &u32| {
        let sum = 2.0 * f64::from(ones) - rows as f64;
        (sum * sum - rows as f64) / pairs
    };
    ones.iter().map(square).sum::<f64>() / period as f64
}

fn column_ones(block: &Bits, period: usize, rows: usize) -> Vec<u32> {
    let mut ones = vec![0_u32; period];
    for (column, cell) in (0..period).cycle().zip(block.iter()).take(rows * period) {
        if let Some(count) = ones.get_mut(column) {
            *count += u32::from(cell);
        }
    }
    ones
}

/// The share of cells that equal the cell `lag` positions later.
fn equal_share(block: &Bits, lag: usize) -> f64 {
    let pairs = block.len() - lag;
    let differing: u32 = (0..pairs)
        .step_by(64)
        .map(|offset| {
            let mask = u64::MAX >> (64 - (pairs - offset).min(64));
            ((block.word_at(offset) ^ block.word_at(offset + lag)) & mask).count_ones()
        })
        .sum();
    1.0 - f64::from(differing) / pairs as f64
}

/// Number of aligned 32-bit words that equal an earlier word.
fn repeated_words(bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks::<4>();
    let mut sorted = words.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    words.len() - sorted.len()
}

/// Returns the number of pairs of equal bytes in one column, and the expected number for independent bits that have
/// the bias of their bit columns.
fn equal_bytes(bytes: &[u8]) -> (f64, f64) {
    let (rows, _) = bytes.as_chunks::<ROW_BYTES>();
    let pairs = |count: u32| f64::from(count) * (f64::from(count) - 1.0) / 2.0;
    let all_pairs = pairs(rows.len() as u32).max(1.0);
    let (mut equal_pairs, mut expected) = (0.0, 0.0);
    for column in 0..ROW_BYTES {
        let mut values: HashMap<u8, u32> = HashMap::new();
        let mut ones = [0_u32; 8];
        for byte in rows.iter().filter_map(|row| row.get(column)) {
            *values.entry(*byte).or_default() += 1;
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += u32::from(byte >> bit & 1);
            }
        }
        equal_pairs += values.into_values().map(pairs).sum::<f64>();
        let equal = |&ones: &u32| (pairs(ones) + pairs(rows.len() as u32 - ones)) / all_pairs;
        expected += all_pairs * ones.iter().map(equal).product::<f64>();
    }
    (equal_pairs, expected)
}
