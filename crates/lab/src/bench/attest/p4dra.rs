//! The time to verify a reply of `p4dra-classic`, in the kernel and in memory on one core, for comparison with `attest/2`.

use std::time::{Duration, Instant};

use linewarden_dataplane::classic::bench::{P4DRA_FRAME_BYTES, P4draBench};
use linewarden_dataplane::classic::p4dra::{P4dra, P4draBatch, P4draControl, P4draHost, P4draProver};
use linewarden_forro::{Backend, Matrix, R14, blocks};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::classic::p4dra::{CONTROLLER, ETHER_TYPE, Message, ProverId, Round, Template};
use linewarden_protocol::verdict::Verdict;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::Size;
use crate::address::{DeviceAddress, GATEWAY};
use crate::bench::{BenchError, Row, keys};
use crate::netns::NetNs;

/// The capacity of the switch in the P4DRA paper.
const PROVERS: u32 = 20_000;
/// Replies that are verified in parallel.
const BATCH_REPLIES: usize = 64;

type Frame = [u8; P4DRA_FRAME_BYTES];

/// Measures the rows `p4dra_classic.*`: the same provers in the kernel and in memory.
///
/// # Errors
/// A program could not be run, or a reply was not accepted.
pub fn rows(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut fleet = P4draFleet::new(PROVERS.min(size.provers));
    rows.push(Row::fact(
        "p4dra_classic.provers",
        fleet.templates.len() as f64,
        "provers",
    ));
    let (cost, harness) = NetNs::new()?.run(|| packet_after_packet(&mut fleet, size.runs))??;
    rows.push(Row::lower("p4dra_classic.xdp.proof_ns", cost, "ns", None));
    rows.push(Row::fact("p4dra_classic.xdp.harness_ns", harness, "ns"));
    let cost = in_memory(&mut fleet, size.runs)?;
    rows.push(Row::lower("p4dra_classic.simd.proof_ns", cost, "ns", None));
    Ok(())
}

/// Provers and the templates of their replies.
struct P4draFleet {
    p4dra: P4dra,
    templates: Vec<(ProverId, Template)>,
    last_round: u64,
}

impl P4draFleet {
    /// Creates `provers` provers; every run creates the same provers.
    fn new(provers: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(provers));
        let provers: Vec<P4draProver> = (0..provers)
            .map(|_| P4draProver {
                id: ProverId(rng.random()),
                key: AttestationKey::from_bytes(rng.random()),
                configuration_hash: ConfigurationHash(rng.random()),
            })
            .collect();
        let template = |prover: &P4draProver| {
            let template = Template::new(&prover.key, &prover.id, &prover.configuration_hash);
            (prover.id, template)
        };
        Self {
            templates: provers.iter().map(template).collect(),
            p4dra: P4dra {
                ether_type: ETHER_TYPE,
                controller: CONTROLLER,
                provers,
            },
            last_round: 0,
        }
    }

    /// The next rounds with the replies of all provers. The replies are created in advance: their creation between two
    /// passes would evict the provers' data from the caches.
    fn rounds(&mut self, count: u32) -> Vec<(Round, Vec<Frame>)> {
        (0..count)
            .map(|_| {
                self.last_round += 1;
                let round = Round {
                    r: self.last_round.to_be_bytes(),
                    n: self.last_round.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(),
                };
                (round, self.replies(&round))
            })
            .collect()
    }

    fn replies(&self, round: &Round) -> Vec<Frame> {
        let matrices: Vec<Matrix> = self
            .templates
            .iter()
            .map(|(_, template)| template.matrix(round))
            .collect();
        let mut proofs = vec![[0; 64]; matrices.len()];
        blocks::<R14>(Backend::widest(), &matrices, &mut proofs);
        let addresses = (0..).map(|device| DeviceAddress::new(device).mac().0);
        let replies = self.templates.iter().zip(proofs).zip(addresses);
        replies
            .map(|(((id, _), proof), from)| frame(from, &Message::Reply(*round, *id, proof)))
            .collect()
    }
}

fn frame(from: [u8; 6], message: &Message) -> Frame {
    let mut frame = [0; P4DRA_FRAME_BYTES];
    let head = GATEWAY
        .mac
        .0
        .into_iter()
        .chain(from)
        .chain(ETHER_TYPE.to_be_bytes());
    frame.iter_mut().zip(head).for_each(|(to, byte)| *to = byte);
    // If the message does not fit, the verifier rejects the frame, and the benchmark fails.
    let _ = frame.get_mut(14..).and_then(|payload| message.write(payload));
    frame
}

fn open(control: &mut P4draControl, round: Round) -> Result<(), BenchError> {
    match control.open_round(round) {
        true => Ok(()),
        false => Err(BenchError::InvalidMeasurement(
            "a round is already open".to_owned(),
        )),
    }
}

/// In the kernel: the minimum time per reply, and the time of the empty harness per reply, ns.
fn packet_after_packet(fleet: &mut P4draFleet, runs: u32) -> Result<(f64, f64), BenchError> {
    let mut p4dra_bench = P4draBench::load(&keys::config(16, 2), &fleet.p4dra, GATEWAY.mac.0)?;
    let mut min_ns = f64::MAX;
    for (round, frames) in fleet.rounds(runs) {
        let not_loaded = || BenchError::InvalidMeasurement("p4dra-classic is not loaded".to_owned());
        open(p4dra_bench.control().ok_or_else(not_loaded)?, round)?;
        p4dra_bench.lay_out(frames.iter());
        min_ns = min_ns.min(p4dra_bench.pass()?);
    }
    // The harness runs last: its program is not attached, and the kernel sleeps before it runs an unattached program.
    let costs: Vec<f64> = (0..runs)
        .map(|_| p4dra_bench.harness())
        .collect::<Result<_, _>>()?;
    Ok((min_ns, costs.into_iter().fold(f64::MAX, f64::min)))
}

/// In memory, with vector instructions, on one core: time per reply from the receive buffer to the verdict, ns.
fn in_memory(fleet: &mut P4draFleet, runs: u32) -> Result<f64, BenchError> {
    let mut host = P4draHost::new(&fleet.p4dra, keys::config(16, 2).geometry.hash_seed)?;
    let mut batch = P4draBatch::default();
    let mut min_ns = f64::MAX;
    for (round, frames) in fleet.rounds(runs) {
        open(host.control(), round)?;
        let mut duration = Duration::ZERO;
        for batch_frames in frames.chunks(BATCH_REPLIES) {
            batch.fill(batch_frames);
            let start = Instant::now();
            host.process(&mut batch);
            duration += start.elapsed();
            let refused = batch
                .results()
                .find(|(verdict, _)| *verdict != Verdict::ReplyP4draVerified);
            if let Some((verdict, _)) = refused {
                return Err(BenchError::InvalidMeasurement(format!(
                    "a reply was not accepted: {verdict}"
                )));
            }
        }
        min_ns = min_ns.min(duration.as_nanos() as f64 / frames.len() as f64);
    }
    Ok(min_ns)
}
