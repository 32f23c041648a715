//! Compares the computed failure rates with simulated failure rates, and prints the number of rebuilds per second.
//!
//! `cargo run --release -p linewarden-puf --example decode_bench [DECODES]`

use std::{error::Error, time::Instant};

use linewarden_puf::code::{Profile, simulate::rate_per_s, simulate_failure};

fn main() -> Result<(), Box<dyn Error>> {
    let decodes = match std::env::args().nth(1) {
        Some(count) => count.parse()?,
        None => 3_000_000,
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{decodes} rebuilds each, {threads} threads");
    for (name, profile) in [("pool", Profile::POOL), ("key", Profile::KEY)] {
        for bit_error_rate in [0.05, 0.10, 0.15] {
            let start = Instant::now();
            let report = simulate_failure(profile, bit_error_rate, decodes, 1, threads, &|_| true)?;
            println!(
                "{name} {profile} at {:.0} %: {} failures, computed {:.2e}, 99 % limit {:.2e}, {:.0} rebuilds/s/core, {}",
                bit_error_rate * 100.0,
                report.failures(),
                report.computed,
                report.upper_99,
                rate_per_s(decodes, start.elapsed()) / threads as f64,
                if report.agrees(1e-4) {
                    "agrees"
                } else {
                    "DISAGREES"
                },
            );
        }
    }
    Ok(())
}
