//! What a PROOF costs: in the kernel packet after packet, and in memory on one core with all lanes and with one.

use std::num::NonZero;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use linewarden_dataplane::DataPlane;
use linewarden_dataplane::host::{Engine, Host, Moment, ThreadState};
use linewarden_dataplane::xdp::proof_bench::{FRAME_BYTES, ProofBench};
use linewarden_forro::Backend;
use linewarden_protocol::attest::Round;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{LAP_PORT, PROOF_BYTES};

use super::Size;
use super::provers::{Fleet, open};
use crate::address::GATEWAY;
use crate::bench::{BenchError, Row, keys};
use crate::clock::monotonic_ns;
use crate::netns::NetNs;

/// Provers of the bar, ns a PROOF.
const XDP_BAR: (u32, f64) = (10_000, 300.0);
/// As many as the paper's switch holds, and what its figures are compared with.
const IN_MEMORY: u32 = 20_000;
/// PROOFs that are made ahead.
const AHEAD: u32 = 1_000_000;
/// With AVX-512, on one core, ns a PROOF.
const SIMD_BAR_NS: f64 = 25.0;

/// `xdp.*`: in the kernel.
///
/// # Errors
/// Those of the programs.
pub fn kernel(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    NetNs::new()?.run(|| packet_after_packet(size, rows))?
}

fn packet_after_packet(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    for provers in [XDP_BAR.0.min(size.provers), size.provers] {
        let mut fleet = Fleet::new(provers);
        let mut bench = ProofBench::load(&fleet.config(), GATEWAY.mac.0)?;
        fleet.install(bench.provers())?;
        let mut costs = Costs::new();
        // Made ahead as far as memory goes: what is made between two passes takes the provers' place in the caches.
        let passes: Vec<u32> = (0..2 * size.runs).collect();
        let ahead = (AHEAD / provers).max(1);
        for made in passes.chunks(ahead as usize) {
            let rounds: Vec<_> = made.iter().map(|_| frames_of_next(&mut fleet)).collect();
            for (number, (round, frames)) in made.iter().zip(rounds) {
                open(bench.provers(), round)?;
                bench.lay_out(frames.iter());
                // The harness's program is not attached: the kernel sleeps, and the pass after it begins with cold caches.
                if *number >= size.runs {
                    costs.harness = costs.harness.min(bench.harness()?);
                    costs.cold = costs.cold.min(bench.pass()?);
                } else {
                    costs.warm = costs.warm.min(bench.pass()?);
                }
            }
        }
        let is_bar = provers == XDP_BAR.0;
        let name = if is_bar {
            String::new()
        } else {
            format!(".{provers}")
        };
        let bar = is_bar.then_some(XDP_BAR.1);
        rows.push(Row::lower(format!("xdp.proof_ns{name}"), costs.warm, "ns", bar));
        rows.push(Row::fact(format!("xdp.proof_cold_ns{name}"), costs.cold, "ns"));
        rows.push(Row::fact(
            format!("xdp.proof_harness_ns{name}"),
            costs.harness,
            "ns",
        ));
    }
    Ok(())
}

/// Of a pass, ns a PROOF, the least.
struct Costs {
    warm: f64,
    /// After the CPU has slept.
    cold: f64,
    harness: f64,
}

impl Costs {
    fn new() -> Self {
        let [warm, cold, harness] = [f64::MAX; 3];
        Self { warm, cold, harness }
    }
}

/// `simd.*`: in memory, on one core.
///
/// # Errors
/// A PROOF that was not accepted.
pub fn memory(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut costs = Vec::new();
    for lanes in Backend::available() {
        let cost = in_memory(IN_MEMORY.min(size.provers), size.runs, lanes, 1)?;
        rows.push(Row::fact(format!("host.proof_ns.{}", lanes.name()), cost, "ns"));
        costs.push(cost);
    }
    let (Some(scalar), Some(simd)) = (costs.first(), costs.last()) else {
        return Ok(());
    };
    // What the widest must reach; without vectors there is no bar.
    let bars = match Backend::widest().name() {
        "avx512" => (Some(SIMD_BAR_NS), Some(6.0)),
        "avx2" => (None, Some(3.0)),
        _ => (None, None),
    };
    rows.push(Row::lower("simd.proof_ns", *simd, "ns", bars.0));
    rows.push(Row::higher(
        "simd_over_scalar.proof_rate",
        scalar / simd,
        "ratio",
        bars.1,
    ));
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let cost = in_memory(IN_MEMORY.min(size.provers), size.runs, Backend::widest(), cores)?;
    rows.push(Row::fact("simd.all_cores.proof_ns", cost, "ns"));
    rows.push(Row::fact("simd.all_cores", cores as f64, "cores"));
    let all_ms = simd * f64::from(IN_MEMORY) / 1e6;
    rows.push(Row::fact(format!("simd.all_ms.{IN_MEMORY}"), all_ms, "ms"));
    Ok(())
}

/// The next round and the frames of its PROOFs.
pub(super) fn frames_of_next(fleet: &mut Fleet) -> (Round, Vec<[u8; FRAME_BYTES]>) {
    let round = fleet.next_round();
    let frame = |message: &[u8; PROOF_BYTES]| {
        let frame = keys::frame(0, LAP_PORT, message);
        frame.try_into().unwrap_or([0; FRAME_BYTES])
    };
    (round, fleet.proofs(&round).iter().map(frame).collect())
}

/// The PROOFs of a fleet, all at hand, shared out among so many threads: ns each, from the first to begin to the last to end.
pub(super) fn in_memory(provers: u32, runs: u32, lanes: Backend, cores: usize) -> Result<f64, BenchError> {
    let mut fleet = Fleet::new(provers);
    let mut host = Host::with_lanes(&fleet.config(), lanes)?;
    let engine = host.engine();
    let mut threads: Vec<ThreadState> = (0..cores).map(|_| host.thread_state()).collect();
    let no_room = || BenchError::Contradiction("the data plane attests nobody".to_owned());
    fleet.install(DataPlane::provers(&mut host).ok_or_else(no_room)?)?;
    let mut least = f64::MAX;
    let mut arrived = vec![[0; PROOF_BYTES]; provers as usize];
    let rounds: Vec<_> = (0..runs)
        .map(|_| {
            let round = fleet.next_round();
            (round, fleet.proofs(&round))
        })
        .collect();
    for (round, proofs) in rounds {
        open(DataPlane::provers(&mut host).ok_or_else(no_room)?, round)?;
        // As a receive leaves them: copied just now.
        arrived.copy_from_slice(&proofs);
        let before = host.counters()?;
        let now = Moment::from(Now::default().plus_ms(monotonic_ns() / 1_000_000));
        let took = judge(&engine, &mut threads, now, &arrived);
        least = least.min(took.as_nanos() as f64 / proofs.len() as f64);
        let counted: Vec<_> = host.counters()?.since(&before).nonzero().collect();
        if counted != [(Verdict::ProofOk, proofs.len() as u64)] {
            let text = format!("{}: {counted:?}", lanes.name());
            return Err(BenchError::Contradiction(text));
        }
    }
    Ok(least)
}

fn judge(
    engine: &Engine,
    threads: &mut [ThreadState],
    now: Moment,
    proofs: &[[u8; PROOF_BYTES]],
) -> Duration {
    if let [thread] = threads {
        let start = Instant::now();
        engine.process_proofs(thread, now, proofs);
        return start.elapsed();
    }
    let each = proofs.len().div_ceil(threads.len().max(1)).max(1);
    let parts: Vec<_> = proofs.chunks(each).collect();
    let together = Barrier::new(parts.len());
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let work = |(thread, part)| {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                let start = Instant::now();
                engine.process_proofs(thread, now, part);
                (start, Instant::now())
            })
        };
        let running: Vec<_> = threads.iter_mut().zip(parts).map(work).collect();
        running
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    let start = times.iter().map(|(start, _)| *start).min();
    let end = times.iter().map(|(_, end)| *end).max();
    start.zip(end).map_or(Duration::MAX, |(start, end)| end - start)
}
