//! Latency of devices in pool mode, whose rows are leased and whose marks are moved at the same time, compared with
//! devices in key mode, which need neither.

use hdrhistogram::Histogram;
use linewarden_dataplane::Gate;

use super::ms;
use super::setup::{GatewaySetup, authenticate, invalid_measurement};
use crate::bench::scale::Size;
use crate::bench::{BenchError, Row};
use crate::fleet::{Fleet, FleetSpec, PufKind};

/// Target: largest ratio of the 99th percentiles.
const TARGET_RATIO: f64 = 1.5;
/// Concurrent handshakes.
const WINDOW: usize = 4;
/// Number of runs. The result is the median ratio, because other work of the machine affects a p99 more than refills do.
const RUNS: u32 = 5;

/// Measures two fleets alternately at one gateway. For the fleet in pool mode, marks move after about every second
/// authentication and rows are leased after every fourteenth. The fleet in key mode needs neither.
///
/// # Errors
/// A device was not served, or no row was leased during the runs.
pub(super) fn rows(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let devices = size.refill_devices;
    let pool = FleetSpec {
        mac_bound: false,
        // One row for the slow path and one for each round; together, these are more rows than the first lease has.
        rows: RUNS * size.refill_rounds + 20,
        ..FleetSpec::new(devices, 12)
    };
    let key = FleetSpec {
        first_index: devices,
        puf_kind: |_| PufKind::WEAK,
        ..pool.clone()
    };
    let (setup, [pool, key]) = GatewaySetup::start([&pool, &key], Gate::Off)?;
    let mut fleets = [setup.fleet(key, devices)?, setup.fleet(pool, 0)?];
    for fleet in &mut fleets {
        authenticate(fleet, WINDOW)?;
    }
    setup.wait_for_rows()?;
    let rows_before = setup.gateway.status().rows_installed;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(run(&setup, &mut fleets, size.refill_rounds)?);
    }
    let refilled_rows = setup.gateway.status().rows_installed - rows_before;
    if refilled_rows == 0 {
        return Err(invalid_measurement("no row was leased during the runs"));
    }
    let ratio = |[baseline_ms, refill_ms]: &[f64; 2]| refill_ms / baseline_ms;
    runs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let [baseline_ms, refill_ms] = *runs
        .get(runs.len() / 2)
        .ok_or_else(|| invalid_measurement("no run was completed"))?;
    rows.extend([
        Row::lower("refill.baseline_p99_ms", baseline_ms, "ms", None),
        Row::lower("refill.p99_ms", refill_ms, "ms", None),
        Row::lower(
            "refill.p99_over_baseline",
            refill_ms / baseline_ms,
            "ratio",
            Some(TARGET_RATIO),
        ),
        Row::fact("refill.rows", refilled_rows as f64, "rows"),
    ]);
    Ok(())
}

/// Returns the p99 of both fleets over `rounds` rounds, ms: without refills, with refills.
fn run(setup: &GatewaySetup, fleets: &mut [Fleet; 2], rounds: u32) -> Result<[f64; 2], BenchError> {
    let mut latencies: [Option<Histogram<u64>>; 2] = [None, None];
    for _ in 0..rounds {
        for (fleet, latency_ns) in fleets.iter_mut().zip(&mut latencies) {
            fleet.power_cycle();
            let report = authenticate(fleet, WINDOW)?;
            setup.wait_for_rows()?;
            match latency_ns {
                Some(sum) => sum.add(&report.network_ns).map_err(invalid_measurement)?,
                None => *latency_ns = Some(report.network_ns),
            }
        }
    }
    match latencies {
        [Some(baseline), Some(refilling)] => {
            Ok([&baseline, &refilling].map(|latency_ns| ms(latency_ns, 0.99)))
        }
        _ => Err(invalid_measurement("no round was completed")),
    }
}
