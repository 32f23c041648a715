//! The cost for many devices in random order: every device causes memory accesses.

use linewarden_dataplane::DataPlaneError;
use linewarden_dataplane::xdp::bench::micro::{Microbench, Program};
use linewarden_protocol::ids::{Mode, RowIndex};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::{Minimums, fastest_run};
use crate::address::GATEWAY;
use crate::bench::{BenchError, Row, Scale, keys};
use crate::fleet::device_id;

/// Rows of a device in addition to the row in its line.
const RING: u32 = 8;
/// Passes over all devices per load of the programs. In the first pass, each RESPONSE opens the first session of its device. In
/// later passes, each RESPONSE renews a session, as for a hot device. A row is valid only once, so the ring limits the number of
/// passes.
const PASSES: u32 = 6;

/// Measures REQUESTs, first RESPONSEs, and RESPONSEs that renew a live session, as for the hot device.
///
/// # Errors
/// A program could not be loaded or run.
pub fn rows(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut order: Vec<u32> = (0..scale.random_devices).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    let mut minimums = Minimums::default();
    for _ in 0..scale.runs.div_ceil(PASSES - 1) {
        measure_passes(&order, &mut minimums)?;
    }
    let hot = |name: &str| {
        rows.iter()
            .find(|row| row.name == name)
            .map_or(f64::NAN, |row| row.value)
    };
    let (hot_request, hot_response, hot_first) = (
        hot("xdp.request_ns.hot"),
        hot("xdp.response_ns.hot"),
        hot("xdp.response_ns.first"),
    );
    let ns = |name| minimums.above_harness("harness", name);
    let (request, response, first) = (ns("request"), ns("response"), ns("first response"));
    rows.extend([
        Row::lower("xdp.request_ns.1m_random", request, "ns", Some(3.0 * hot_request)),
        Row::lower(
            "xdp.response_ns.1m_random",
            response,
            "ns",
            Some(3.0 * hot_response),
        ),
        Row::lower("xdp.response_ns.first_1m_random", first, "ns", None),
        Row::lower(
            "xdp.request_random_over_hot",
            request / hot_request,
            "ratio",
            Some(3.0),
        ),
        Row::lower(
            "xdp.response_random_over_hot",
            response / hot_response,
            "ratio",
            Some(3.0),
        ),
        Row::lower("xdp.response_random_over_first", first / hot_first, "ratio", None),
    ]);
    Ok(())
}

fn measure_passes(order: &[u32], minimums: &mut Minimums) -> Result<(), BenchError> {
    let devices = order.len() as u32;
    let mut microbench = Microbench::load(&keys::config(devices, RING), GATEWAY.mac.0, devices, false)?;
    for device in 0..devices {
        let rows = keys::rows(device, Mode::Pool, RowIndex(0), RING + 1);
        microbench
            .store()
            .install(device_id(device), Mode::Pool, RowIndex(0), &rows, None)
            .map_err(DataPlaneError::from)?;
    }
    let frames: Vec<Vec<u8>> = order.iter().map(|device| keys::request_frame(*device)).collect();
    microbench.set_cases(frames.iter().map(Vec::as_slice));
    minimums.record(
        "harness",
        fastest_run(&mut microbench, Program::Harness, devices, PASSES)?,
    );
    minimums.record(
        "request",
        fastest_run(&mut microbench, Program::Gateway, devices, PASSES)?,
    );
    for pass in 0..PASSES {
        let frames: Vec<Vec<u8>> = order
            .iter()
            .map(|device| keys::response_frame(*device, Mode::Pool, RowIndex(pass), false))
            .collect();
        microbench.set_cases(frames.iter().map(Vec::as_slice));
        let name = if pass == 0 { "first response" } else { "response" };
        minimums.record(name, fastest_run(&mut microbench, Program::Gateway, devices, 1)?);
    }
    Ok(())
}
