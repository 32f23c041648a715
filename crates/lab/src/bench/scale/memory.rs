//! Authentication of random devices: of a large fleet, and of a small fleet whose rows fit into the cache.

use linewarden_dataplane::DataPlaneError;
use linewarden_dataplane::xdp::bench::micro::{Microbench, Program};
use linewarden_protocol::ids::{Mode, RowIndex};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::Size;
use crate::address::GATEWAY;
use crate::bench::micro::{self, Minimums};
use crate::bench::{BenchError, Row, keys};
use crate::fleet::device_id;

/// Devices of the small fleet: 10^4 rows.
const SMALL_FLEET_DEVICES: u32 = 100;
/// Target: largest ratio of the costs of the large and the small fleet.
const TARGET_RATIO: f64 = 6.0;
/// Minimum number of packets per load of the programs, because a pass over few devices is short.
const PACKETS: u32 = 8_000;
/// Minimum number of passes over all devices per load of the programs. The first pass opens sessions; the other passes
/// renew them.
const PASSES: u32 = 4;

/// Measures the cost of a REQUEST and a RESPONSE of a random device in both fleets, and the share of memory latency in
/// the cost.
///
/// # Errors
/// A program could not be loaded or run.
pub fn rows(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let memory_latency = micro::memory::row();
    let mut costs = [0.0; 2];
    for (cost, devices) in costs.iter_mut().zip([SMALL_FLEET_DEVICES, size.random_devices]) {
        let mut minimums = Minimums::default();
        let passes = PACKETS.div_ceil(devices).clamp(PASSES, size.rows - 2);
        for _ in 0..size.runs.div_ceil(PASSES - 1) {
            measure_passes(devices, size.rows, passes, &mut minimums)?;
        }
        *cost = minimums.above_harness("harness", "request")
            + minimums.above_harness("harness of a pass", "response");
    }
    let [few, many] = costs;
    rows.extend([
        Row::lower("xdp.auth_ns.1e4", few, "ns", None),
        Row::lower("xdp.auth_ns.1e7", many, "ns", None),
        Row::lower(
            "xdp.auth_ns.1e7_over_1e4",
            many / few,
            "ratio",
            Some(TARGET_RATIO),
        ),
        Row::fact("xdp.auth_waiting.1e7", (many - few) / many, "share"),
        memory_latency,
    ]);
    Ok(())
}

fn measure_passes(
    devices: u32,
    rows_each: u32,
    passes: u32,
    minimums: &mut Minimums,
) -> Result<(), BenchError> {
    let mut order: Vec<u32> = (0..devices).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    let mut microbench = Microbench::load(
        &keys::config(devices, rows_each - 1),
        GATEWAY.mac.0,
        devices,
        false,
    )?;
    for device in 0..devices {
        let rows = keys::rows(device, Mode::Pool, RowIndex(0), rows_each);
        microbench
            .store()
            .install(device_id(device), Mode::Pool, RowIndex(0), &rows, None)
            .map_err(DataPlaneError::from)?;
    }
    let requests: Vec<Vec<u8>> = order.iter().map(|device| keys::request_frame(*device)).collect();
    microbench.set_cases(requests.iter().map(Vec::as_slice));
    minimums.record(
        "harness",
        micro::fastest_run(
            &mut microbench,
            Program::Harness,
            devices.max(PACKETS),
            passes.min(8),
        )?,
    );
    minimums.record(
        "request",
        micro::fastest_run(
            &mut microbench,
            Program::Gateway,
            devices.max(PACKETS),
            passes.min(8),
        )?,
    );
    // The fixed cost of a run has more weight in a short run, so the harness is also measured for a pass.
    minimums.record(
        "harness of a pass",
        micro::fastest_run(&mut microbench, Program::Harness, devices, passes)?,
    );
    for pass in 0..passes {
        let frames: Vec<Vec<u8>> = order
            .iter()
            .map(|device| keys::response_frame(*device, Mode::Pool, RowIndex(pass), false))
            .collect();
        microbench.set_cases(frames.iter().map(Vec::as_slice));
        let ns = micro::fastest_run(&mut microbench, Program::Gateway, devices, 1)?;
        if pass > 0 {
            minimums.record("response", ns);
        }
    }
    Ok(())
}
