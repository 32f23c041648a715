//! Fingerprints of PUFs: detect that a PUF already belongs to another device.
//!
//! A fingerprint is a list of *bands*: groups of [`BAND_BITS`] bits at positions that are the same for every device.
//! The registry stores a keyed hash of each band. The hashes of two readouts of one PUF agree in many bands, the
//! hashes of unrelated PUFs in none or one.
//!
//! The bits of the bands have no other use, so they reveal nothing about a secret:
//! * of a memory, 160 of each 2,048 cells are *reserved*: enrollment never draws the secret from them;
//! * of a strong PUF, the bits are the response to a challenge that no row has.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};
use zeroize::Zeroize;

use crate::{
    bits::Bits,
    extractor::{ExtractorError, read_reference},
    health::HealthTest,
    puf::Puf,
};

/// Bits of a band.
pub const BAND_BITS: usize = 20;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 256;
/// Cells of a block.
const BLOCK_CELLS: usize = 8 * BLOCK_BYTES;
/// Maximum number of blocks with bands: the blocks of 1 MiB, the maximum for enrollment.
const BLOCKS_MAX: usize = 4096;
/// Bands of a block.
const BLOCK_BANDS: usize = 8;
/// Maximum number of bands of a fingerprint. A larger memory has fewer bands per block, and a still larger one has
/// bands only in every second, fourth, .. block, so that the bands of memories of different lengths have common
/// positions.
pub const BANDS_MAX: usize = 192;
/// Bands of a strong PUF.
const STRONG_BANDS: usize = 128;
/// Position of the first band of a strong PUF.
const STRONG_POSITION: u16 = 1 << 15;
/// How often a strong PUF is read for its fingerprint; the majority counts. By default, enrollment also reads
/// each row three times.
const STRONG_READS: usize = 3;

/// A band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// Position of the bits, the same for every device.
    pub position: u16,
    /// The bits.
    pub bits: u32,
}

/// The bands of one PUF, by position; erased on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Fingerprint(Vec<Band>);

impl Fingerprint {
    /// The fingerprint of a memory, or of the part that begins at byte `start`, from its `reference` values. `start` is
    /// a multiple of [`BLOCK_BYTES`]. Positions are addresses in the memory, so that a part and the whole memory have
    /// common bands.
    pub fn of_memory(reference: &Bits, start: usize) -> Self {
        let first = start / BLOCK_BYTES;
        let blocks = (reference.len() / BLOCK_CELLS).min(BLOCKS_MAX);
        let (mut bands, mut step) = (BLOCK_BANDS, 1);
        while blocks.div_ceil(step) * bands > BANDS_MAX {
            match bands {
                1 => step *= 2,
                _ => bands /= 2,
            }
        }
        let positions = (0..blocks)
            .filter(|block| (first + block).is_multiple_of(step))
            .flat_map(|block| (0..bands).map(move |band| (block, band)));
        let band = |(block, band): (usize, usize)| {
            let position = u16::try_from((first + block) % BLOCKS_MAX * BLOCK_BANDS + band).ok()?;
            let cells = RESERVED.order.chunks_exact(BAND_BITS).nth(band)?;
            let cell = |&cell: &u16| reference.get(block * BLOCK_CELLS + usize::from(cell));
            Some(Band {
                position,
                bits: packed(cells.iter().map(cell)),
            })
        };
        Self(positions.map_while(band).collect())
    }

    /// The fingerprint of a strong PUF, which is read three times on [`challenge`].
    ///
    /// # Errors
    /// [`ExtractorError`] if the PUF cannot be read, or a reading fails its health test.
    pub fn of_strong(puf: &mut dyn Puf, health: &HealthTest) -> Result<Self, ExtractorError> {
        let bits = STRONG_BANDS * BAND_BITS;
        let response = read_reference(puf, challenge(), bits, STRONG_READS, health)?;
        let band = |index: usize| {
            let band_bits = (0..BAND_BITS).map(|bit| response.get(index * BAND_BITS + bit));
            packed(band_bits)
        };
        let positions = STRONG_POSITION..;
        let bands = positions.zip((0..STRONG_BANDS).map(band));
        Ok(Self(
            bands.map(|(position, bits)| Band { position, bits }).collect(),
        ))
    }

    /// The bands, by position.
    pub fn bands(&self) -> &[Band] {
        &self.0
    }
}

impl Drop for Fingerprint {
    fn drop(&mut self) {
        for band in &mut self.0 {
            band.bits.zeroize();
        }
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({} bands)", self.0.len())
    }
}

/// The challenge for fingerprints of strong PUFs; no row has it.
pub fn challenge() -> [u8; 8] {
    let hash = Sha256::digest(b"linewarden PUF fingerprint v1");
    hash.first_chunk().copied().unwrap_or_default()
}

/// Whether a memory's cell is reserved for fingerprints, and so carries no secret.
pub fn is_reserved(cell: u32) -> bool {
    RESERVED.cells.get(cell as usize % BLOCK_CELLS)
}

/// The reserved cells of a block.
struct Reserved {
    /// The reserved cells, in the order in which bands use them.
    order: Vec<u16>,
    /// One bit per cell of a block, set for reserved cells.
    cells: Bits,
}

/// A fixed shuffle draws the reserved cells, so that they are in all columns of a memory and no data pattern misses
/// them.
static RESERVED: LazyLock<Reserved> = LazyLock::new(|| {
    let count = BLOCK_BANDS * BAND_BITS;
    let mut order: Vec<u16> = (0..BLOCK_CELLS as u16).collect();
    let mut state = 0_u64;
    for i in 0..count {
        let rest = (BLOCK_CELLS - i) as u64;
        let offset = usize::try_from(split_mix(&mut state) % rest).unwrap_or(0);
        order.swap(i, i + offset);
    }
    order.truncate(count);
    let mut cells = Bits::zeros(BLOCK_CELLS);
    for &cell in &order {
        cells.set(usize::from(cell), true);
    }
    Reserved { order, cells }
});

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn packed(bits: impl Iterator<Item = bool>) -> u32 {
    bits.fold(0, |word, bit| word << 1 | u32::from(bit))
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn memory(bytes: usize, seed: u64) -> Bits {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Bits::from_bools((0..8 * bytes).map(|_| rng.random()))
    }

    fn common(a: &Fingerprint, b: &Fingerprint) -> usize {
        a.bands().iter().filter(|band| b.bands().contains(band)).count()
    }

    #[test]
    fn memories_of_every_length_have_enough_bands_at_common_positions() {
        for (bytes, bands) in [
            (256, 8),
            (4096, 128),
            (6144, 192),
            (6400, 100),
            (32_768, 128),
            (65_536, 128),
            (1 << 20, 128),
        ] {
            assert_eq!(
                Fingerprint::of_memory(&memory(bytes, 1), 0).bands().len(),
                bands,
                "{bytes}"
            );
        }
        let full_memory = memory(65_536, 1);
        let memory_fingerprint = Fingerprint::of_memory(&full_memory, 0);
        for start in [0, 256, 4096, 61_440] {
            let part = full_memory.window(8 * start, 8 * 4096).unwrap();
            let of_part = Fingerprint::of_memory(&part, start);
            assert_eq!(
                common(&memory_fingerprint, &of_part),
                8,
                "every second of 16 blocks, from {start} on"
            );
        }
        assert_eq!(
            common(
                &memory_fingerprint,
                &Fingerprint::of_memory(&memory(65_536, 2), 0)
            ),
            0
        );
    }

    #[test]
    fn reserved_cells_are_those_of_the_bands() {
        let bytes = 4096;
        let zeros = Fingerprint::of_memory(&Bits::zeros(8 * bytes), 0);
        let reserved: Vec<u32> = (0..8 * bytes as u32).filter(|&cell| is_reserved(cell)).collect();
        assert_eq!(reserved.len(), 16 * BLOCK_BANDS * BAND_BITS);
        for cell in 0..8 * bytes as u32 {
            let mut one = Bits::zeros(8 * bytes);
            one.set(cell as usize, true);
            let changed = common(&Fingerprint::of_memory(&one, 0), &zeros) < zeros.bands().len();
            assert_eq!(changed, is_reserved(cell), "{cell}");
        }
    }
}
