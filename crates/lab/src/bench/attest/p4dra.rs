//! What a reply of `p4dra-classic` costs, to compare `attest/2` with: in the kernel packet after packet, and in memory on one core.

use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Host, P4draBatch};
use linewarden_dataplane::xdp::p4dra_bench::{FRAME_BYTES, P4draBench};
use linewarden_dataplane::{Config, DataPlane, P4dra, P4draControl, P4draProver};
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

/// As many as the paper's switch holds.
const PROVERS: u32 = 20_000;
/// Replies that are judged side by side.
const SIDE_BY_SIDE: usize = 64;

type Frame = [u8; FRAME_BYTES];

/// `p4dra_classic.*`: the same provers in the kernel and in memory.
///
/// # Errors
/// Those of the programs; a reply that was not verified.
pub fn rows(size: &Size, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut fleet = Fleet::new(PROVERS.min(size.provers));
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

/// Provers, and what their replies are made from.
struct Fleet {
    config: Config,
    templates: Vec<(ProverId, Template)>,
    rounds: u64,
}

impl Fleet {
    /// So many, the same every time.
    fn new(provers: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(provers));
        let provers: Vec<P4draProver> = (0..provers)
            .map(|_| P4draProver {
                id: ProverId(rng.random()),
                key: AttestationKey::from_bytes(rng.random()),
                h: ConfigurationHash(rng.random()),
            })
            .collect();
        let template = |prover: &P4draProver| {
            let template = Template::new(&prover.key, &prover.id, &prover.h);
            (prover.id, template)
        };
        Self {
            templates: provers.iter().map(template).collect(),
            config: Config {
                p4dra: Some(P4dra {
                    ether_type: ETHER_TYPE,
                    controller: CONTROLLER,
                    interfaces: Vec::new(),
                    provers,
                }),
                ..keys::config(16, 2)
            },
            rounds: 0,
        }
    }

    /// The next rounds, and the replies of all in them. Made ahead: what is made between two passes takes the provers' place in the
    /// caches.
    fn rounds(&mut self, count: u32) -> Vec<(Round, Vec<Frame>)> {
        (0..count)
            .map(|_| {
                self.rounds += 1;
                let round = Round {
                    r: self.rounds.to_be_bytes(),
                    n: self.rounds.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(),
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
    let mut frame = [0; FRAME_BYTES];
    let head = GATEWAY
        .mac
        .0
        .into_iter()
        .chain(from)
        .chain(ETHER_TYPE.to_be_bytes());
    frame.iter_mut().zip(head).for_each(|(to, byte)| *to = byte);
    // One that did not fit would not be verified, which is told.
    let _ = frame.get_mut(14..).and_then(|payload| message.write(payload));
    frame
}

fn open(control: &mut P4draControl, round: Round) -> Result<(), BenchError> {
    match control.open_round(round) {
        true => Ok(()),
        false => Err(BenchError::Contradiction("a round is open already".to_owned())),
    }
}

/// In the kernel: ns a reply, the least of the passes, and ns that the harness takes of it.
fn packet_after_packet(fleet: &mut Fleet, runs: u32) -> Result<(f64, f64), BenchError> {
    let mut bench = P4draBench::load(&fleet.config, GATEWAY.mac.0)?;
    let mut least = f64::MAX;
    for (round, frames) in fleet.rounds(runs) {
        open(bench.control(), round)?;
        bench.lay_out(frames.iter());
        least = least.min(bench.pass()?);
    }
    // Last, for its program is not attached: the kernel sleeps before it.
    let costs: Vec<f64> = (0..runs).map(|_| bench.harness()).collect::<Result<_, _>>()?;
    Ok((least, costs.into_iter().fold(f64::MAX, f64::min)))
}

/// In memory, all lanes, on one core: ns a reply, from where a receive has put it to what it has become.
fn in_memory(fleet: &mut Fleet, runs: u32) -> Result<f64, BenchError> {
    let mut host = Host::new(&fleet.config)?;
    let (engine, mut thread) = (host.engine(), host.thread_state());
    let mut batch = P4draBatch::default();
    let mut least = f64::MAX;
    for (round, frames) in fleet.rounds(runs) {
        let off = || BenchError::Contradiction("p4dra-classic is off".to_owned());
        open(DataPlane::p4dra(&mut host).ok_or_else(off)?, round)?;
        let before = host.counters()?;
        let mut took = Duration::ZERO;
        for some in frames.chunks(SIDE_BY_SIDE) {
            batch.fill(some);
            let start = Instant::now();
            engine.process_p4dra(&mut thread, &mut batch);
            took += start.elapsed();
        }
        least = least.min(took.as_nanos() as f64 / frames.len() as f64);
        let counted: Vec<_> = host.counters()?.since(&before).nonzero().collect();
        if counted != [(Verdict::ReplyP4draVerified, frames.len() as u64)] {
            return Err(BenchError::Contradiction(format!("{counted:?}")));
        }
    }
    Ok(least)
}
