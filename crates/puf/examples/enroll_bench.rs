//! Enrolls a fleet of simulated devices and lets each rebuild one row, and prints the rates.
//!
//! `cargo run --release -p linewarden-puf --example enroll_bench [DEVICES] [ROWS]`

use std::{error::Error, time::Instant};

use linewarden_puf::{
    extractor::{EnrolledPool, ExtractorError, PoolEnrollment, enroll_pool},
    health::HealthTest,
    model::{Simulated, XorArbiterPuf},
};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

type Device = (Simulated<XorArbiterPuf>, EnrolledPool);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u32| arguments.next().map_or(Ok(default), |text| text.parse());
    let (devices, rows) = (number(2000)?, number(8)?);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u32;

    let start = Instant::now();
    let mut fleet: Vec<Device> = Vec::new();
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let seeds_of = |thread| (0..devices).filter(move |seed| seed % threads == thread);
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    seeds_of(thread)
                        .map(|seed| enroll(seed, rows))
                        .collect::<Result<Vec<_>, _>>()
                })
            })
            .collect();
        for worker in workers {
            fleet.extend(worker.join().map_err(|_| "a worker thread panicked")??);
        }
        Ok(())
    })?;
    let elapsed = start.elapsed().as_secs_f64();
    println!(
        "{devices} devices with {rows} rows enrolled on {threads} threads: {:.0} devices/s",
        f64::from(devices) / elapsed
    );

    let start = Instant::now();
    let mut failures = 0;
    for (device, pool) in &mut fleet {
        let Some(row) = pool.rows.last() else { continue };
        let rebuilt = pool
            .helper
            .reproduce(row.idx, row.challenge, device, &HealthTest::default());
        failures += u32::from(!rebuilt.is_ok_and(|secret| secret == row.secret));
    }
    let per_rebuild_us = start.elapsed().as_secs_f64() * 1e6 / f64::from(devices);
    println!(
        "each device rebuilt one row: {per_rebuild_us:.0} us per rebuild with PUF model and health test, {failures} failures"
    );
    Ok(())
}

/// Enrolls a simulated 6-XOR arbiter PUF of 64 stages with 5 % wrong bits; returns the PUF and its pool.
fn enroll(seed: u32, rows: u32) -> Result<Device, ExtractorError> {
    let model = XorArbiterPuf::with_bit_error_rate(64, 6, 0.05, seed.into())?;
    let mut device = Simulated::new(model, u64::from(seed) + 1);
    let mut rng = ChaCha20Rng::seed_from_u64(seed.into());
    let pool = enroll_pool(
        &mut device,
        &PoolEnrollment {
            reads: 3,
            ..PoolEnrollment::rows(rows)
        },
        &mut rng,
    )?;
    Ok((device, pool))
}
