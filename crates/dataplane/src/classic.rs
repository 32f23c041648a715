//! Parts of the classic profiles (docs/protocols.md 2) that all backends share: CRC tables, CRPs in memory, random
//! numbers.

use std::sync::atomic::Ordering::Relaxed;

use linewarden_protocol::classic::rng::SplitMix64;

use crate::layout::ClassicCrp;
use crate::store::wire_word;

/// Slicing-by-16 tables of the reflected CRC-32 (IEEE 802.3): `t[k][b]` is byte `b` followed by `k` zero bytes.
pub(crate) fn crc_tables() -> [[u32; 256]; 16] {
    let mut tables = [[0u32; 256]; 16];
    let mut previous: [u32; 256] = std::array::from_fn(|byte| {
        (0..8).fold(byte as u32, |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    });
    let first = previous;
    for table in &mut tables {
        *table = previous;
        previous = previous.map(|crc| (crc >> 8) ^ first.get((crc & 0xff) as usize).copied().unwrap_or(0));
    }
    tables
}

/// The CRC-32 register after `bytes`, before its final inversion.
fn crc_register(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

/// Writes one CRP in the format that the packet path reads.
pub(crate) fn store_crp(cell: &ClassicCrp, challenge: u32, response: &[u8]) {
    cell.challenge.store(challenge.to_be(), Relaxed);
    cell.crc.store(crc_register(response), Relaxed);
    for (word, bytes) in cell.response.iter().zip(response.chunks_exact(8)) {
        word.store(wire_word(bytes.try_into().unwrap_or_default()), Relaxed);
    }
}

/// The SplitMix64 state of CPU (`xdp`) or thread (`host`) number `index` for `seed`.
#[must_use]
pub fn rng_state(seed: u64, index: u64) -> u64 {
    SplitMix64::from_state(seed ^ index.wrapping_mul(0xd134_2543_de82_ef95)).draw()
}
