//! Finds the blocks of a memory that are not power-up state.
//!
//! The cells of the secret are drawn from the whole memory, so the entropy claim must hold for each part of it.
//! Firmware, initialized data, a stack or a fill pattern is known to everyone who has the program, and is the same on
//! all devices that run it. Each block of [`BLOCK_BYTES`] is checked separately, by the changes between readouts and
//! by the statistics of its values. A good block exceeds a limit by chance with a probability below 2^-40, if two
//! chips agree in at most 70 % of their cells.

mod defect;
mod statistics;

use std::fmt;
use std::ops::Range;

use serde::Serialize;

pub use self::defect::Defect;

use crate::{
    bits::Bits,
    code::binomial::lower_tail,
    health::{HealthError, HealthTest},
};

/// Bytes of a block. Of its 4,096 cells, hundreds change between readouts. Firmware of 8 KiB fills 16 blocks.
pub const BLOCK_BYTES: usize = 512;
const BLOCK_CELLS: usize = 8 * BLOCK_BYTES;
/// A block whose number of changing cells is significantly below this share of the typical number has the defect
/// `LowNoise`.
const LOW_NOISE_SHARE: f64 = 0.25;

/// Consecutive blocks with the same defect.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BadRange {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
    /// The defect.
    pub defect: Defect,
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.end.saturating_sub(1);
        write!(f, "0x{:x} to 0x{last:x} ({})", self.start, self.defect)
    }
}

/// All blocks of a memory that are not power-up state; at least one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BadBlocks {
    /// The ranges, by address.
    pub ranges: Vec<BadRange>,
    /// Size of the memory, bytes.
    pub of_bytes: usize,
}

impl BadBlocks {
    /// Converts addresses of the readouts to addresses of the memory, if the readouts begin at byte `start` of the
    /// memory.
    #[must_use]
    pub fn shifted_by(mut self, start: usize) -> Self {
        for range in &mut self.ranges {
            range.start = range.start.saturating_add(start);
            range.end = range.end.saturating_add(start);
        }
        self
    }

    /// Bytes in the ranges.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// Maximum number of ranges in a message.
const NAMED_MAX: usize = 6;

impl fmt::Display for BadBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} bytes are not power-up state: ",
            self.bytes(),
            self.of_bytes
        )?;
        for (index, range) in self.ranges.iter().take(NAMED_MAX).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{range}")?;
        }
        match self.ranges.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more ranges"),
        }
    }
}

/// Checks each block by its values in `reference`, the majority of `readouts`, and by the changes between the
/// readouts, if there are two or more. `None` if all blocks are power-up state.
pub fn examine(readouts: &[Bits], reference: &Bits, health: &HealthTest) -> Option<BadBlocks> {
    let blocks = blocks_of(reference.len());
    let changed: Vec<usize> = blocks
        .iter()
        .map(|cells| changed_cells(readouts, cells))
        .collect();
    let share = |(cells, changed): (&Range<usize>, &usize)| *changed as f64 / cells.len() as f64;
    let low_noise_share = LOW_NOISE_SHARE * typical(blocks.iter().zip(&changed).map(share).collect());
    let bad_range = |(cells, changed): (&Range<usize>, &usize)| -> Option<BadRange> {
        let by_changes = || find_noise_defect(readouts, cells, *changed, low_noise_share, health);
        let by_values = || statistics::find_defect(&reference.window(cells.start, cells.len())?, health);
        let defect = by_changes().or_else(by_values)?;
        Some(BadRange {
            start: cells.start / 8,
            end: cells.end.div_ceil(8),
            defect,
        })
    };
    let mut ranges: Vec<BadRange> = Vec::new();
    for bad in blocks.iter().zip(&changed).filter_map(bad_range) {
        match ranges.last_mut() {
            Some(last) if last.end == bad.start && last.defect == bad.defect => last.end = bad.end,
            _ => ranges.push(bad),
        }
    }
    let of_bytes = reference.len().div_ceil(8);
    (!ranges.is_empty()).then_some(BadBlocks { ranges, of_bytes })
}

/// The cells of each block; the last block includes the remaining cells.
fn blocks_of(cells: usize) -> Vec<Range<usize>> {
    let count = (cells / BLOCK_CELLS).max(1);
    (0..count)
        .map(|i| {
            i * BLOCK_CELLS..if i + 1 == count {
                cells
            } else {
                (i + 1) * BLOCK_CELLS
            }
        })
        .filter(|cells| !cells.is_empty())
        .collect()
}

/// The number of cells that differ between the readouts.
fn changed_cells(readouts: &[Bits], cells: &Range<usize>) -> usize {
    let Some((first, later)) = readouts.split_first() else {
        return 0;
    };
    word_masks(cells)
        .map(|(offset, mask)| {
            let first_word = first.word_at(offset);
            let differing = later
                .iter()
                .fold(0, |sum, readout| sum | (readout.word_at(offset) ^ first_word));
            (differing & mask).count_ones() as usize
        })
        .sum()
}

/// The offset of each 64-bit word of a range, and the mask of the word's bits that belong to the range.
fn word_masks(cells: &Range<usize>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let end = cells.end;
    cells
        .clone()
        .step_by(64)
        .map(move |offset| (offset, u64::MAX >> (64 - (end - offset).min(64))))
}

/// The 90th percentile of the shares. The median would be wrong, because most blocks of a memory may be constant.
fn typical(mut shares: Vec<f64>) -> f64 {
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() * 9 / 10).copied().unwrap_or(0.0)
}

/// The defect that the changes between the readouts show; `None` with fewer than two readouts.
fn find_noise_defect(
    readouts: &[Bits],
    cells: &Range<usize>,
    changed: usize,
    low_noise_share: f64,
    health: &HealthTest,
) -> Option<Defect> {
    if readouts.len() < 2 {
        return None;
    }
    if changed == 0 {
        return Some(Defect::Constant);
    }
    if lower_tail(cells.len() as u64, low_noise_share, changed as u64) < health.false_alarm() {
        return Some(Defect::LowNoise);
    }
    let of_block = |readout: &Bits| readout.window(cells.start, cells.len());
    let is_too_far = |(first, second): (&Bits, &Bits)| {
        let (Some(first), Some(second)) = (of_block(first), of_block(second)) else {
            return false;
        };
        matches!(
            health.check_pair(&first, &second),
            Err(HealthError::TooFar { .. })
        )
    };
    let mut pairs = readouts.iter().zip(readouts.iter().skip(1));
    pairs.any(is_too_far).then_some(Defect::Unrelated)
}
