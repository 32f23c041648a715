//! The cost of the sealed gate per packet.

use linewarden_dataplane::xdp::bench::sealed::SealedBench;
use linewarden_dataplane::{Config, Gate};

use super::Size;
use crate::bench::{BenchError, Row, keys};

/// Payloads, bytes.
const PAYLOADS: [usize; 3] = [64, 512, 1300];
/// Target for the smallest payload, ns.
const TARGET_NS: f64 = 170.0;
/// How many times the programs are loaded; see `micro`.
const LOADS: u32 = 10;

/// Measures the cost to open a datagram upstream and to seal a datagram downstream, and the cost per additional byte.
///
/// # Errors
/// A program could not be loaded or run.
pub fn rows(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let config = Config {
        gate: Gate::Sealed,
        ..keys::config(16, 2)
    };
    let (mut up, mut down) = ([f64::MAX; PAYLOADS.len()], [f64::MAX; PAYLOADS.len()]);
    let mut harness = f64::MAX;
    for _ in 0..LOADS {
        let sealed_bench = SealedBench::load(&config)?;
        let runs = size.runs.div_ceil(LOADS);
        for ((payload, up), down) in PAYLOADS.iter().zip(&mut up).zip(&mut down) {
            let cost = sealed_bench.cost(*payload, 100_000, runs)?;
            *up = up.min(cost.up);
            *down = down.min(cost.down);
            let [harness_up, _] = cost.harness;
            harness = harness.min(harness_up);
        }
    }
    rows.push(Row::fact("sealed.harness_ns", harness, "ns"));
    for ((payload, up), down) in PAYLOADS.iter().zip(up).zip(down) {
        let target = (*payload == 64).then_some(TARGET_NS);
        rows.push(Row::lower(
            format!("sealed.packet_ns.{payload}"),
            up,
            "ns",
            target,
        ));
        rows.push(Row::lower(format!("sealed.down_ns.{payload}"), down, "ns", None));
    }
    let ([first_ns, _, last_ns], [first_bytes, _, last_bytes]) = (up, PAYLOADS);
    let per_byte = (last_ns - first_ns) / (last_bytes - first_bytes) as f64;
    rows.push(Row::fact("sealed.ns_per_byte", per_byte, "ns"));
    Ok(())
}
