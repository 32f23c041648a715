//! Simulated chips with modified memory, and the real readouts.

use std::ops::Range;
use std::path::{Path, PathBuf};

use linewarden_harness::{skip, skip_part};
use linewarden_puf::{
    Challenge, Puf as _,
    bits::Bits,
    model::{Simulated, SramParameters, SramPuf},
    readout::{Span, read_directory},
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha20Rng;

/// Readouts of a simulated memory.
pub fn chip_readouts(bytes: usize, bit_error_rate: f64, seed: u64, count: usize) -> Vec<Bits> {
    let parameters = SramParameters {
        cells: 8 * bytes,
        ones: 0.5,
        bit_error_rate,
    };
    let mut chip = Simulated::new(SramPuf::new(parameters, seed).unwrap(), seed + 1);
    (0..count)
        .map(|_| chip.read(Challenge::PowerUp, 8 * bytes).unwrap())
        .collect()
}

/// The readouts with `data` written at byte `start` of each readout.
pub fn overwritten(readouts: &[Bits], start: usize, data: &[u8]) -> Vec<Bits> {
    let write = |readout: &Bits| {
        let mut bytes = readout.to_bytes();
        bytes[start..start + data.len()].copy_from_slice(data);
        Bits::from_bytes(&bytes)
    };
    readouts.iter().map(write).collect()
}

/// The readouts with the share `share` of the bits in `bytes` inverted; in each readout, different bits are inverted.
pub fn with_noise(readouts: &[Bits], bytes: Range<usize>, share: f64, seed: u64) -> Vec<Bits> {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let mut noisy = readouts.to_vec();
    for readout in &mut noisy {
        for cell in 8 * bytes.start..8 * bytes.end {
            let flips = rng.random_bool(share);
            readout.set(cell, readout.get(cell) ^ flips);
        }
    }
    noisy
}

/// The directory of the real readouts. `Err`: the reason why it does not exist.
fn real_data_directory() -> Result<PathBuf, String> {
    let default_path =
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/sram-puf-stm32f407");
    let directory = std::env::var_os("LINEWARDEN_PUF_DATA").map_or_else(default_path, PathBuf::from);
    if directory.is_dir() {
        return Ok(directory);
    }
    Err(format!(
        "no readouts at {}; set LINEWARDEN_PUF_DATA",
        directory.display()
    ))
}

/// The directory of the real readouts. Skips the test if the directory does not exist.
pub fn real_data() -> PathBuf {
    real_data_directory().unwrap_or_else(|reason| skip!("{reason}"))
}

/// The first `count` real readouts. If their directory does not exist, the test runs without them, and counts as ignored.
pub fn real_readouts(count: usize) -> Option<Vec<Bits>> {
    let directory = real_data_directory()
        .map_err(|reason| skip_part!("{reason}"))
        .ok()?;
    let dumps = read_directory(&directory, &Span::default()).unwrap();
    Some(dumps.into_iter().take(count).map(|dump| dump.bits).collect())
}
