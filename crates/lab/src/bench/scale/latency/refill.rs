//! Authentications while rows are leased and marks are moved for their devices, against such that need neither.

use hdrhistogram::Histogram;
use linewarden_dataplane::Gate;

use super::ms;
use super::site::{Site, authenticate, contradiction};
use crate::bench::scale::Size;
use crate::bench::{BenchError, Row};
use crate::fleet::{Fleet, FleetSpec, PufKind};

/// How much longer the slowest hundredth may take.
const BAR: f64 = 1.5;
/// Devices in a handshake at once.
const WINDOW: usize = 4;
/// What else the machine does moves a p99 by more than refilling does; the run of the median ratio is told.
const RUNS: u32 = 5;

/// Two fleets in front of one gateway, in turn: one in pool mode, for which marks are moved after every second
/// authentication or so and rows are fetched after every fourteenth, and one in key mode, which needs neither.
///
/// # Errors
/// A device that was not served, or no row leased meanwhile.
pub(super) fn rows(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let devices = size.refill_devices;
    let pool = FleetSpec {
        bound: false,
        // One for the slow path, one a round; more than are leased with the first.
        rows: RUNS * size.refill_rounds + 20,
        ..FleetSpec::new(devices, 12)
    };
    let key = FleetSpec {
        first_index: devices,
        kind: |_| PufKind::WEAK,
        ..pool.clone()
    };
    let (site, [pool, key]) = Site::start([&pool, &key], Gate::Off)?;
    let mut fleets = [site.fleet(key, devices)?, site.fleet(pool, 0)?];
    for fleet in &mut fleets {
        authenticate(fleet, WINDOW)?;
    }
    site.settle_down()?;
    let given = site.gateway.status().rows_given;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(run(&site, &mut fleets, size.refill_rounds)?);
    }
    let refilled = site.gateway.status().rows_given - given;
    if refilled == 0 {
        return Err(contradiction("no row was leased meanwhile"));
    }
    let ratio = |[quiet_ms, refill_ms]: &[f64; 2]| refill_ms / quiet_ms;
    runs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let [quiet_ms, refill_ms] = *runs
        .get(runs.len() / 2)
        .ok_or_else(|| contradiction("nothing was run"))?;
    rows.extend([
        Row::lower("refill.quiet_p99_ms", quiet_ms, "ms", None),
        Row::lower("refill.p99_ms", refill_ms, "ms", None),
        Row::lower("refill.p99_over_quiet", refill_ms / quiet_ms, "ratio", Some(BAR)),
        Row::fact("refill.rows", refilled as f64, "rows"),
    ]);
    Ok(())
}

/// The p99 of both fleets over some rounds, ms: without refilling, and with.
fn run(site: &Site, fleets: &mut [Fleet; 2], rounds: u32) -> Result<[f64; 2], BenchError> {
    let mut latencies: [Option<Histogram<u64>>; 2] = [None, None];
    for _ in 0..rounds {
        for (fleet, latency_ns) in fleets.iter_mut().zip(&mut latencies) {
            fleet.power_cycle();
            let report = authenticate(fleet, WINDOW)?;
            site.settle_down()?;
            match latency_ns {
                Some(sum) => sum.add(&report.network_ns).map_err(contradiction)?,
                None => *latency_ns = Some(report.network_ns),
            }
        }
    }
    match latencies {
        [Some(quiet), Some(refilling)] => Ok([&quiet, &refilling].map(|latency_ns| ms(latency_ns, 0.99))),
        _ => Err(contradiction("no round was played")),
    }
}
