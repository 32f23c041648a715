//! The time to verify a PROOF: in the kernel, and in memory on one core with vector instructions and without.

use std::num::NonZero;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Engine, Host, ThreadState, Timestamps};
use linewarden_dataplane::xdp::bench::proof::{FRAME_BYTES, ProofBench};
use linewarden_dataplane::{Attestation, Telemetry as _};
use linewarden_forro::Backend;
use linewarden_protocol::attest::Round;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{LAP_PORT, PROOF_BYTES};

use super::Size;
use super::provers::{ProverFleet, open_round};
use crate::address::GATEWAY;
use crate::bench::{BenchError, Row, keys};
use crate::clock::monotonic_ns;
use crate::netns::NetNs;

/// Number of provers for the target, and the target, ns per PROOF.
const XDP_TARGET: (u32, f64) = (10_000, 300.0);
/// Number of provers in memory: the capacity of the switch in the P4DRA paper.
const IN_MEMORY_PROVERS: u32 = 20_000;
/// PROOFs that are created in advance.
const PREPARED_PROOFS: u32 = 1_000_000;
/// Target with AVX-512 on one core, ns per PROOF.
const SIMD_TARGET_NS: f64 = 25.0;

/// Measures the rows `xdp.*`: verification in the kernel.
///
/// # Errors
/// A program could not be loaded or run.
pub fn kernel(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    NetNs::new()?.run(|| packet_after_packet(size, rows))?
}

fn packet_after_packet(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    for provers in [XDP_TARGET.0.min(size.provers), size.provers] {
        let mut fleet = ProverFleet::new(provers);
        let mut proof_bench = ProofBench::load(&fleet.config(), GATEWAY.mac.0)?;
        fleet.install(proof_bench.provers())?;
        let mut costs = Costs::new();
        // PROOFs are created in advance as far as memory permits: their creation between two passes would evict the
        // provers' data from the caches.
        let passes: Vec<u32> = (0..2 * size.runs).collect();
        let chunk_rounds = (PREPARED_PROOFS / provers).max(1);
        for chunk in passes.chunks(chunk_rounds as usize) {
            let rounds: Vec<_> = chunk.iter().map(|_| next_round_frames(&mut fleet)).collect();
            for (number, (round, frames)) in chunk.iter().zip(rounds) {
                open_round(proof_bench.provers(), round)?;
                proof_bench.lay_out(frames.iter());
                // The harness's program is not attached: the kernel sleeps before it runs, and the next pass begins
                // with cold caches.
                if *number >= size.runs {
                    costs.harness = costs.harness.min(proof_bench.harness()?);
                    costs.cold = costs.cold.min(proof_bench.pass()?);
                } else {
                    costs.warm = costs.warm.min(proof_bench.pass()?);
                }
            }
        }
        let has_target = provers == XDP_TARGET.0;
        let name = if has_target {
            String::new()
        } else {
            format!(".{provers}")
        };
        let target = has_target.then_some(XDP_TARGET.1);
        rows.push(Row::lower(
            format!("xdp.proof_ns{name}"),
            costs.warm,
            "ns",
            target,
        ));
        rows.push(Row::fact(format!("xdp.proof_cold_ns{name}"), costs.cold, "ns"));
        rows.push(Row::fact(
            format!("xdp.proof_harness_ns{name}"),
            costs.harness,
            "ns",
        ));
    }
    Ok(())
}

/// Minimum times of a pass, ns per PROOF.
struct Costs {
    warm: f64,
    /// Cost after the CPU has slept.
    cold: f64,
    harness: f64,
}

impl Costs {
    fn new() -> Self {
        let [warm, cold, harness] = [f64::MAX; 3];
        Self { warm, cold, harness }
    }
}

/// Measures the rows `simd.*`: verification in memory, on one core.
///
/// # Errors
/// A PROOF was not accepted.
pub fn memory(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut costs = Vec::new();
    for lanes in Backend::available() {
        let cost = in_memory(IN_MEMORY_PROVERS.min(size.provers), size.runs, lanes, 1)?;
        rows.push(Row::fact(format!("host.proof_ns.{}", lanes.name()), cost, "ns"));
        costs.push(cost);
    }
    let (Some(scalar), Some(simd)) = (costs.first(), costs.last()) else {
        return Ok(());
    };
    // Targets for the widest vector instructions; there is none without vector instructions.
    let targets = match Backend::widest().name() {
        "avx512" => (Some(SIMD_TARGET_NS), Some(6.0)),
        "avx2" => (None, Some(3.0)),
        _ => (None, None),
    };
    rows.push(Row::lower("simd.proof_ns", *simd, "ns", targets.0));
    rows.push(Row::higher(
        "simd_over_scalar.proof_rate",
        scalar / simd,
        "ratio",
        targets.1,
    ));
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let cost = in_memory(
        IN_MEMORY_PROVERS.min(size.provers),
        size.runs,
        Backend::widest(),
        cores,
    )?;
    rows.push(Row::fact("simd.all_cores.proof_ns", cost, "ns"));
    rows.push(Row::fact("simd.all_cores", cores as f64, "cores"));
    let round_ms = simd * f64::from(IN_MEMORY_PROVERS) / 1e6;
    rows.push(Row::fact(
        format!("simd.all_ms.{IN_MEMORY_PROVERS}"),
        round_ms,
        "ms",
    ));
    Ok(())
}

/// Creates the next round and the frames of its PROOFs.
pub(super) fn next_round_frames(fleet: &mut ProverFleet) -> (Round, Vec<[u8; FRAME_BYTES]>) {
    let round = fleet.next_round();
    let frame = |message: &[u8; PROOF_BYTES]| {
        let frame = keys::frame(0, LAP_PORT, message);
        frame.try_into().unwrap_or([0; FRAME_BYTES])
    };
    (round, fleet.proofs(&round).iter().map(frame).collect())
}

/// Time per PROOF, ns, if all PROOFs of a fleet are in memory and `cores` threads share them: from the first thread's
/// start to the last thread's end.
pub(super) fn in_memory(provers: u32, runs: u32, lanes: Backend, cores: usize) -> Result<f64, BenchError> {
    let mut fleet = ProverFleet::new(provers);
    let mut host = Host::with_lanes(&fleet.config(), lanes)?;
    let engine = host.engine();
    let mut threads: Vec<ThreadState> = (0..cores).map(|_| host.thread_state()).collect();
    let not_supported =
        || BenchError::InvalidMeasurement("the data plane does not support attestation".to_owned());
    fleet.install(Attestation::provers(&mut host).ok_or_else(not_supported)?)?;
    let mut min_ns = f64::MAX;
    let mut received = vec![[0; PROOF_BYTES]; provers as usize];
    let rounds: Vec<_> = (0..runs)
        .map(|_| {
            let round = fleet.next_round();
            (round, fleet.proofs(&round))
        })
        .collect();
    for (round, proofs) in rounds {
        open_round(Attestation::provers(&mut host).ok_or_else(not_supported)?, round)?;
        // The PROOFs are in the cache, as after a receive call.
        received.copy_from_slice(&proofs);
        let before = host.counters()?;
        let now = Timestamps::from(Now::default().plus_ms(monotonic_ns() / 1_000_000));
        let duration = process_proofs(&engine, &mut threads, now, &received);
        min_ns = min_ns.min(duration.as_nanos() as f64 / proofs.len() as f64);
        let counted: Vec<_> = host.counters()?.since(&before).nonzero().collect();
        if counted != [(Verdict::ProofOk, proofs.len() as u64)] {
            let error = format!("PROOFs not accepted ({}): {counted:?}", lanes.name());
            return Err(BenchError::InvalidMeasurement(error));
        }
    }
    Ok(min_ns)
}

fn process_proofs(
    engine: &Engine,
    threads: &mut [ThreadState],
    now: Timestamps,
    proofs: &[[u8; PROOF_BYTES]],
) -> Duration {
    if let [thread] = threads {
        let start = Instant::now();
        engine.process_proofs(thread, now, proofs);
        return start.elapsed();
    }
    let part_len = proofs.len().div_ceil(threads.len().max(1)).max(1);
    let parts: Vec<_> = proofs.chunks(part_len).collect();
    let barrier = Barrier::new(parts.len());
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let work = |(thread, part)| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let start = Instant::now();
                engine.process_proofs(thread, now, part);
                (start, Instant::now())
            })
        };
        let handles: Vec<_> = threads.iter_mut().zip(parts).map(work).collect();
        handles
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    let start = times.iter().map(|(start, _)| *start).min();
    let end = times.iter().map(|(_, end)| *end).max();
    start.zip(end).map_or(Duration::MAX, |(start, end)| end - start)
}
