//! Performs one rebuild, so that its instructions can be counted. The count must not depend on the secret, the number
//! of errors, or their positions.
//!
//! Build with `cargo build --release -p linewarden-puf --example decode_trace`. Then run
//! `valgrind --tool=callgrind --toggle-collect='*extractor*rebuild*' target/release/examples/decode_trace ERRORS SEED`
//! with several values of ERRORS and SEED. Each run must print the same number after "Collected".

use std::error::Error;

use linewarden_puf::{
    Challenge, Puf, PufError,
    bits::Bits,
    extractor::{PoolEnrollment, enroll_pool},
    health::HealthTest,
};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha20Rng;

/// Responds to every challenge with the same random bits, and makes `errors` bit flips at random positions.
struct BitFlippingPuf {
    response: Bits,
    errors: usize,
    rng: ChaCha20Rng,
}

impl Puf for BitFlippingPuf {
    fn read(&mut self, _: Challenge, bits: usize) -> Result<Bits, PufError> {
        let available = self.response.len();
        let mut reading = self.response.window(0, bits).ok_or(PufError::TooFewBits {
            requested: bits,
            available,
        })?;
        for _ in 0..self.errors {
            let position = self.rng.random_range(0..bits);
            reading.set(position, !reading.get(position));
        }
        Ok(reading)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (errors, seed) = (number(0)?, number(1)?);

    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let response = Bits::from_words((0..1024).map(|_| rng.next_u64()).collect(), 65_536);
    let mut puf = BitFlippingPuf {
        response,
        errors: 0,
        rng: ChaCha20Rng::seed_from_u64(seed + 1),
    };
    let health = HealthTest {
        refuse_identical: false,
        ..HealthTest::default()
    };
    let options = PoolEnrollment {
        health,
        entropy_sample_bits: 65_536 - 1785,
        ..PoolEnrollment::rows(1)
    };
    let pool = enroll_pool(&mut puf, &options, &mut rng)?;

    puf.errors = usize::try_from(errors)?;
    let row = pool.rows.first().ok_or("no row")?;
    let rebuilt = pool.helper.reproduce(row.idx, row.challenge, &mut puf, &health);
    println!(
        "{errors} errors, seed {seed}: {}",
        rebuilt.map_or_else(|e| e.to_string(), |s| (s == row.secret).to_string())
    );
    Ok(())
}
