//! Many devices in random order: every one of them costs trips to memory.

use linewarden_dataplane::DataPlaneError;
use linewarden_dataplane::xdp::microbench::{Microbench, Program};
use linewarden_protocol::ids::{Mode, RowIndex};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::{Least, best};
use crate::address::GATEWAY;
use crate::bench::{BenchError, Row, Scale, keys};
use crate::fleet::device_id;

/// Rows of a device beside the one in its line.
const RING: u32 = 8;
/// Passes over all devices with one load: one in which every RESPONSE is its device's first, then renewals, which are
/// what a hot device's are. A row is good once, so the ring bounds them.
const PASSES: u32 = 6;

/// REQUESTs; first RESPONSEs; RESPONSEs that renew a live session, as in the hot figure.
///
/// # Errors
/// Those of the programs.
pub fn rows(scale: &Scale, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut order: Vec<u32> = (0..scale.random_devices).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    let mut least = Least::default();
    for _ in 0..scale.runs.div_ceil(PASSES - 1) {
        passes(&order, &mut least)?;
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
    let ns = |name| least.above("harness", name);
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

fn passes(order: &[u32], least: &mut Least) -> Result<(), BenchError> {
    let devices = order.len() as u32;
    let mut bench = Microbench::load(&keys::config(devices, RING), GATEWAY.mac.0, devices, false)?;
    for device in 0..devices {
        let rows = keys::rows(device, Mode::Pool, RowIndex(0), RING + 1);
        bench
            .store()
            .install(device_id(device), Mode::Pool, RowIndex(0), &rows, None)
            .map_err(DataPlaneError::from)?;
    }
    let frames: Vec<Vec<u8>> = order.iter().map(|device| keys::request_frame(*device)).collect();
    bench.set_cases(frames.iter().map(Vec::as_slice));
    least.note("harness", best(&mut bench, Program::Harness, devices, PASSES)?);
    least.note("request", best(&mut bench, Program::Gateway, devices, PASSES)?);
    for pass in 0..PASSES {
        let frames: Vec<Vec<u8>> = order
            .iter()
            .map(|device| keys::response_frame(*device, Mode::Pool, RowIndex(pass), false))
            .collect();
        bench.set_cases(frames.iter().map(Vec::as_slice));
        let name = if pass == 0 { "first response" } else { "response" };
        least.note(name, best(&mut bench, Program::Gateway, devices, 1)?);
    }
    Ok(())
}
