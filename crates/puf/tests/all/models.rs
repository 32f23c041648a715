//! The models behave as their parameters specify.

use linewarden_puf::{
    Challenge,
    bits::Bits,
    metrics::{DeviceTally, Spread, pairwise_distances},
    model::{ArbiterPuf, InterposePuf, Model, SramParameters, SramPuf, XorArbiterPuf},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const DEVICES: u64 = 60;
const BITS: usize = 4000;

/// The mean bit error rate of `DEVICES` devices against their noise-free responses, and these noise-free responses.
fn population<M: Model>(challenge: Challenge, new_device: impl Fn(u64) -> M) -> (f64, Vec<Bits>) {
    let mut noise = ChaCha8Rng::seed_from_u64(99);
    let (mut errors, mut responses) = (0, Vec::new());
    for seed in 0..DEVICES {
        let device = new_device(seed);
        let nominal = device.nominal(challenge, BITS).unwrap();
        errors += device
            .respond(challenge, BITS, &mut noise)
            .unwrap()
            .distance(&nominal);
        responses.push(nominal);
    }
    (errors as f64 / (DEVICES as f64 * BITS as f64), responses)
}

/// The error rates of calibrated devices have a standard deviation of about 10 %, so the mean over 60 devices deviates
/// by less than 1.5 %. Five times this deviation is allowed.
fn assert_rate(name: &str, observed: f64, expected: f64) {
    assert!(
        (observed / expected - 1.0).abs() < 0.075,
        "{name}: {observed:.4} instead of {expected}"
    );
}

#[test]
fn calibrated_models_have_the_given_error_rate_and_random_output() {
    let pool = Challenge::Pool(*b"any seed");
    for rate in [0.03, 0.05, 0.10] {
        let (arbiter, _) = population(pool, |s| ArbiterPuf::with_bit_error_rate(64, rate, s).unwrap());
        assert_rate("arbiter", arbiter, rate);
        for (stages, chains) in [(64, 4), (128, 2), (64, 8)] {
            let (xor, responses) = population(pool, |s| {
                XorArbiterPuf::with_bit_error_rate(stages, chains, rate, s).unwrap()
            });
            assert_rate("xor", xor, rate);
            // The relative Hamming distance of two unrelated devices is 0.5 on average.
            let spread = Spread::of(&pairwise_distances(&responses)).unwrap();
            assert!(
                (spread.mean - 0.5).abs() < 0.01,
                "{chains}-xor, {stages} stages: {spread:?}"
            );
        }
        for (up, down) in [(1, 4), (2, 2)] {
            let (interpose, _) = population(pool, |s| {
                InterposePuf::with_bit_error_rate(64, up, down, rate, s).unwrap()
            });
            assert_rate("interpose", interpose, rate);
        }
        for ones in [0.5, 0.6] {
            let parameters = SramParameters {
                cells: BITS,
                ones,
                bit_error_rate: rate,
            };
            let (sram, cells) = population(Challenge::PowerUp, |s| SramPuf::new(parameters, s).unwrap());
            assert_rate("sram", sram, rate);
            let share: f64 = cells
                .iter()
                .map(|c| c.count_ones() as f64 / BITS as f64)
                .sum::<f64>()
                / DEVICES as f64;
            assert!((share - ones).abs() < 0.01, "{share} ones instead of {ones}");
        }
    }
}

#[test]
fn sram_errors_are_concentrated_in_few_cells() {
    let parameters = SramParameters {
        cells: 100_000,
        ones: 0.5,
        bit_error_rate: 0.0495,
    };
    let device = SramPuf::new(parameters, 1).unwrap();
    let mut noise = ChaCha8Rng::seed_from_u64(2);
    let readouts: Vec<Bits> = (0..35)
        .map(|_| device.respond(Challenge::PowerUp, 100_000, &mut noise).unwrap())
        .collect();
    let mut tally = DeviceTally::default();
    tally.add(&readouts, &Bits::majority(&readouts).unwrap());
    let metrics = tally.metrics().unwrap();
    // Independent errors would leave 0.95^35 = 17 % of the cells stable. The real chip has 74.2 % stable cells, and
    // an error rate of 6.97 % against the first readout.
    assert!((metrics.stable_share - 0.742).abs() < 0.02, "{metrics:?}");
    assert!(
        (metrics.error_vs_first.unwrap().mean - 0.0699).abs() < 0.003,
        "{metrics:?}"
    );
}

#[test]
fn a_seed_determines_the_model_and_noise_free_models_are_exact() {
    let pool = Challenge::Pool([7; 8]);
    let device = |seed| XorArbiterPuf::new(64, 3, 0.0, seed).unwrap();
    let mut noise = ChaCha8Rng::seed_from_u64(1);
    let first = device(1).respond(pool, 500, &mut noise).unwrap();
    assert_eq!(first, device(1).nominal(pool, 500).unwrap());
    assert_ne!(first, device(2).nominal(pool, 500).unwrap());
    assert_ne!(first, device(1).nominal(Challenge::Pool([8; 8]), 500).unwrap());
    // A longer response to the same challenge begins with the shorter response.
    assert_eq!(
        device(1).nominal(pool, 900).unwrap().window(0, 500).unwrap(),
        first
    );
    let noise_free = SramPuf::new(
        SramParameters {
            cells: 1000,
            ones: 0.5,
            bit_error_rate: 0.0,
        },
        1,
    )
    .unwrap();
    assert_eq!(
        noise_free.respond(Challenge::PowerUp, 1000, &mut noise).unwrap(),
        noise_free.nominal(Challenge::PowerUp, 1000).unwrap()
    );
}

#[test]
fn wrong_challenges_and_sizes_are_refused() {
    let sram = SramPuf::new(
        SramParameters {
            cells: 100,
            ones: 0.5,
            bit_error_rate: 0.05,
        },
        1,
    )
    .unwrap();
    let strong = ArbiterPuf::new(64, 0.1, 1).unwrap();
    for error in [
        sram.nominal(Challenge::PowerUp, 101).unwrap_err(),
        sram.nominal(Challenge::Pool([0; 8]), 10).unwrap_err(),
        strong.nominal(Challenge::PowerUp, 10).unwrap_err(),
        XorArbiterPuf::new(7, 4, 0.1, 1).unwrap_err(),
        XorArbiterPuf::new(64, 33, 0.1, 1).unwrap_err(),
        XorArbiterPuf::new(64, 4, f64::NAN, 1).unwrap_err(),
        InterposePuf::new(64, 0, 4, 0.1, 1).unwrap_err(),
    ] {
        assert!(!error.to_string().is_empty());
    }
}
