//! Memory that is completely or partly not power-up state is refused, and the error names the addresses.

use crate::support::{chip_readouts, overwritten, real_readouts, with_noise};
use linewarden_puf::{
    bits::Bits,
    blocks::{BadBlocks, Defect},
    extractor::{ExtractorError, KeyEnrollment, enroll},
    fingerprint::{Fingerprint, is_reserved},
    health::HealthTest,
    model::{Simulated, XorArbiterPuf},
};
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha20Rng;

const CHIP_BYTES: usize = 32 << 10;

fn bad_blocks(readouts: &[Bits]) -> BadBlocks {
    match enroll(
        readouts,
        &KeyEnrollment::default(),
        &mut ChaCha20Rng::seed_from_u64(1),
    ) {
        Err(ExtractorError::NotPowerUp(bad_blocks)) => bad_blocks,
        result => panic!("{result:?}"),
    }
}

fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; count];
    ChaCha20Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Machine code of this program: its statistics are like those of a chip's firmware.
fn machine_code(count: usize) -> Vec<u8> {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let start = program.len() / 2;
    program[start..start + count].to_vec()
}

#[test]
fn valid_chips_pass_in_every_block() {
    for seed in 0..6 {
        let readouts = chip_readouts(CHIP_BYTES, 0.06, seed, 5);
        enroll(
            &readouts,
            &KeyEnrollment::default(),
            &mut ChaCha20Rng::seed_from_u64(seed),
        )
        .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    // A memory with low noise, a memory with high noise, and a memory that is read only three times.
    for (rate, count) in [(0.01, 3), (0.12, 5), (0.05, 3)] {
        let readouts = chip_readouts(CHIP_BYTES, rate, 7, count);
        enroll(
            &readouts,
            &KeyEnrollment::default(),
            &mut ChaCha20Rng::seed_from_u64(7),
        )
        .unwrap_or_else(|e| panic!("rate {rate}: {e}"));
    }
}

#[test]
fn data_in_a_part_of_a_chip_is_refused_with_its_addresses() {
    let mut chips = vec![("simulated", chip_readouts(CHIP_BYTES, 0.05, 1, 5))];
    if let Some(real) = real_readouts(5) {
        let part = |readout: &Bits| readout.window(0, 8 * CHIP_BYTES).unwrap();
        chips.push(("real", real.iter().map(part).collect()));
    }
    for (name, chip) in chips {
        for kib in [8, 16, 24] {
            // Even data without recognizable statistics, such as compressed firmware, do not change between readouts.
            for data in [random_bytes(kib << 10, 2), machine_code(kib << 10)] {
                let bad = bad_blocks(&overwritten(&chip, 4096, &data));
                let [range] = bad.ranges.as_slice() else {
                    panic!("{name}, {kib} KiB: {bad}");
                };
                assert_eq!((range.start, range.end), (4096, 4096 + (kib << 10)), "{name}");
                assert_eq!(range.defect, Defect::Constant, "{name}");
                assert!(bad.to_string().contains("0x1000 to 0x"), "{bad}");
            }
        }
    }
}

/// Such data come from a dump tool that adds noise, or from a program that changes data slightly.
#[test]
fn structured_data_with_noise_are_refused_by_their_statistics() {
    let chip = chip_readouts(CHIP_BYTES, 0.05, 3, 5);
    let pointers: Vec<u8> = (0x2000_0000_u32..)
        .step_by(28)
        .take(2048)
        .flat_map(u32::to_le_bytes)
        .collect();
    let text = include_str!("extractor.rs").as_bytes()[..8192].to_vec();
    for (name, data) in [
        ("code", machine_code(8192)),
        ("pointers", pointers),
        ("text", text),
    ] {
        let noisy = with_noise(&overwritten(&chip, 8192, &data), 8192..16_384, 0.05, 4);
        let bad = bad_blocks(&noisy);
        assert!(
            bad.ranges
                .iter()
                .all(|range| (8192..16_384).contains(&range.start)),
            "{name}: {bad}"
        );
        assert!(bad.bytes() > 4096, "{name}: {bad}");
    }
}

#[test]
fn a_readout_given_twice_is_refused_at_any_position() {
    let mut readouts = chip_readouts(CHIP_BYTES, 0.05, 5, 5);
    readouts[4] = readouts[1].clone();
    let result = enroll(
        &readouts,
        &KeyEnrollment::default(),
        &mut ChaCha20Rng::seed_from_u64(1),
    );
    assert!(
        matches!(result, Err(ExtractorError::CopiedReadout { first: 2, second: 5 })),
        "{result:?}"
    );
}

/// The common part is so large that the readouts of the two chips differ only slightly.
#[test]
fn readouts_of_two_chips_in_one_directory_are_refused() {
    let data = chip_readouts(24 << 10, 0.05, 6, 6);
    let mut mixed = chip_readouts(CHIP_BYTES, 0.05, 7, 3);
    mixed.extend(chip_readouts(CHIP_BYTES, 0.05, 8, 3));
    for (readout, common) in mixed.iter_mut().zip(&data) {
        *readout = overwritten(std::slice::from_ref(readout), 0, &common.to_bytes()).remove(0);
    }
    let bad = bad_blocks(&mixed);
    let [range] = bad.ranges.as_slice() else {
        panic!("{bad}");
    };
    assert_eq!(
        (range.start, range.end, range.defect),
        (24 << 10, 32 << 10, Defect::Unrelated)
    );
}

/// A small board with power-up state is refused for its size; with other data, it is refused for these data.
#[test]
fn bad_content_of_a_small_board_is_reported_instead_of_its_size() {
    let board = chip_readouts(1024, 0.05, 9, 5);
    let too_small = enroll(
        &board,
        &KeyEnrollment::default(),
        &mut ChaCha20Rng::seed_from_u64(1),
    );
    assert!(
        matches!(too_small, Err(ExtractorError::TooFewCells { .. })),
        "{too_small:?}"
    );
    let bad = bad_blocks(&overwritten(&board, 0, &random_bytes(1010, 2)));
    assert_eq!(bad.ranges[0].start, 0);
}

#[test]
fn the_secret_uses_no_reserved_cell_and_reveals_no_fingerprint_bit() {
    let readouts = chip_readouts(CHIP_BYTES, 0.05, 10, 5);
    let enrolled = enroll(
        &readouts,
        &KeyEnrollment::default(),
        &mut ChaCha20Rng::seed_from_u64(1),
    )
    .unwrap();
    assert!(enrolled.helper.cells().iter().all(|&cell| !is_reserved(cell)));
    assert_eq!(enrolled.fingerprint.unwrap().bands().len(), 128);
}

/// The numbers of common bands match the registry's thresholds: for one chip at two times, and for different chips.
#[test]
fn fingerprints_of_one_chip_agree_and_those_of_different_chips_do_not() {
    let fingerprint = |readouts: &[Bits]| Fingerprint::of_memory(&Bits::majority(readouts).unwrap(), 0);
    let common =
        |a: &Fingerprint, b: &Fingerprint| a.bands().iter().zip(b.bands()).filter(|(a, b)| a == b).count();
    let mut pairs = Vec::new();
    let chip = chip_readouts(CHIP_BYTES, 0.06, 11, 10);
    pairs.push((fingerprint(&chip[..5]), fingerprint(&chip[5..])));
    if let Some(real) = real_readouts(10) {
        pairs.push((fingerprint(&real[..5]), fingerprint(&real[5..])));
    }
    for (first, second) in &pairs {
        assert!(
            (35..128).contains(&common(first, second)),
            "{}",
            common(first, second)
        );
    }
    for seed in 20..30 {
        let other = fingerprint(&chip_readouts(CHIP_BYTES, 0.06, seed, 3));
        assert!(common(&other, &pairs[0].0) <= 1, "seed {seed}");
    }
    let mut rng = ChaCha20Rng::seed_from_u64(12);
    let reference = Bits::majority(&chip).unwrap();
    let similar = Bits::from_bools(reference.iter().map(|bit| bit ^ rng.random_bool(0.013)));
    let common_bands = common(
        &Fingerprint::of_memory(&reference, 0),
        &Fingerprint::of_memory(&similar, 0),
    );
    assert!(common_bands > 80, "{common_bands} of 128 with 98.7 % equal cells");
}

#[test]
fn strong_pufs_are_recognized_by_a_challenge_that_no_row_has() {
    let fingerprint = |seed, noise| {
        let model = XorArbiterPuf::with_bit_error_rate(64, 4, 0.05, seed).unwrap();
        Fingerprint::of_strong(&mut Simulated::new(model, noise), &HealthTest::default()).unwrap()
    };
    let common =
        |a: &Fingerprint, b: &Fingerprint| a.bands().iter().zip(b.bands()).filter(|(a, b)| a == b).count();
    let chip = fingerprint(1, 1);
    assert!(common(&chip, &fingerprint(1, 2)) > 25);
    for seed in 2..10 {
        assert!(common(&chip, &fingerprint(seed, 3)) <= 1, "seed {seed}");
    }
    let memory = Fingerprint::of_memory(&chip_readouts(4096, 0.05, 1, 1)[0], 0);
    assert!(
        memory
            .bands()
            .iter()
            .all(|band| chip.bands().iter().all(|other| other.position != band.position))
    );
}
