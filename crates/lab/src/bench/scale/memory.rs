//! Random devices among many rows, and among few that the cache holds.

use linewarden_dataplane::DataPlaneError;
use linewarden_dataplane::xdp::microbench::{Microbench, Program};
use linewarden_protocol::ids::{Mode, RowIndex};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::Size;
use crate::address::GATEWAY;
use crate::bench::micro::{self, Least};
use crate::bench::{BenchError, Row, keys};
use crate::fleet::device_id;

/// Devices of the smaller memory: 10^4 rows.
const FEW: u32 = 100;
/// How much slower the larger one may be.
const BAR: f64 = 6.0;
/// Packets of a load, at least: a pass over few devices is short.
const PACKETS: u32 = 8_000;
/// Passes over all devices with one load, at least; each but the first renews sessions.
const PASSES: u32 = 4;

/// A REQUEST and a RESPONSE of a random device, both sizes, and how much of it is waiting.
///
/// # Errors
/// Those of the programs.
pub fn rows(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let trip = micro::memory::row();
    let mut costs = [0.0; 2];
    for (cost, devices) in costs.iter_mut().zip([FEW, size.random_devices]) {
        let mut least = Least::default();
        let passes_each = PACKETS.div_ceil(devices).clamp(PASSES, size.rows - 2);
        for _ in 0..size.runs.div_ceil(PASSES - 1) {
            passes(devices, size.rows, passes_each, &mut least)?;
        }
        *cost = least.above("harness", "request") + least.above("harness of a pass", "response");
    }
    let [few, many] = costs;
    rows.extend([
        Row::lower("xdp.auth_ns.1e4", few, "ns", None),
        Row::lower("xdp.auth_ns.1e7", many, "ns", None),
        Row::lower("xdp.auth_ns.1e7_over_1e4", many / few, "ratio", Some(BAR)),
        Row::fact("xdp.auth_waiting.1e7", (many - few) / many, "share"),
        trip,
    ]);
    Ok(())
}

fn passes(devices: u32, rows_each: u32, passes: u32, least: &mut Least) -> Result<(), BenchError> {
    let mut order: Vec<u32> = (0..devices).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    let mut bench = Microbench::load(
        &keys::config(devices, rows_each - 1),
        GATEWAY.mac.0,
        devices,
        false,
    )?;
    for device in 0..devices {
        let rows = keys::rows(device, Mode::Pool, RowIndex(0), rows_each);
        bench
            .store()
            .install(device_id(device), Mode::Pool, RowIndex(0), &rows, None)
            .map_err(DataPlaneError::from)?;
    }
    let requests: Vec<Vec<u8>> = order.iter().map(|device| keys::request_frame(*device)).collect();
    bench.set_cases(requests.iter().map(Vec::as_slice));
    least.note(
        "harness",
        micro::best(&mut bench, Program::Harness, devices.max(PACKETS), passes.min(8))?,
    );
    least.note(
        "request",
        micro::best(&mut bench, Program::Gateway, devices.max(PACKETS), passes.min(8))?,
    );
    // What begins and ends a run weighs more in a short one.
    least.note(
        "harness of a pass",
        micro::best(&mut bench, Program::Harness, devices, passes)?,
    );
    for pass in 0..passes {
        let frames: Vec<Vec<u8>> = order
            .iter()
            .map(|device| keys::response_frame(*device, Mode::Pool, RowIndex(pass), false))
            .collect();
        bench.set_cases(frames.iter().map(Vec::as_slice));
        let ns = micro::best(&mut bench, Program::Gateway, devices, 1)?;
        if pass > 0 {
            least.note("response", ns);
        }
    }
    Ok(())
}
