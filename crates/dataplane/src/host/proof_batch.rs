//! A batch of PROOFs: the checks of a PROOF, and the PROOFs whose blocks are computed together.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use linewarden_forro::{Backend, Inputs};
use linewarden_protocol::ids::RoundNumber;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::PROOF_BYTES;
use zerocopy::FromBytes as _;

use super::origin::Origin;
use crate::config::Config;
use crate::layout::{ProverLine, Round};
use crate::store::provers::{ProverGeometry, ProverRegions, is_proved, key_words, proved_word, round_bits};
use crate::timestamps::Timestamps;

/// Maximum number of proofs in a batch.
pub(super) const BATCH_PROOFS: usize = Inputs::BLOCKS_MAX;

/// The 64-byte block at the end of a PROOF.
pub(super) type Block = [u8; 64];

/// Placeholder blocks for a whole batch.
pub(super) const NO_BLOCKS: [&Block; BATCH_PROOFS] = [&[0; 64]; BATCH_PROOFS];

/// The first four words of a PROOF, loaded natively.
#[derive(zerocopy::FromBytes)]
#[repr(C)]
pub(super) struct ProofHeader {
    _h0: u64,
    pub(super) device_id: u64,
    pub(super) r: u64,
    pub(super) nonce: u64,
}

/// Data for the checks of PROOFs.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) regions: Arc<ProverRegions>,
    pub(super) geometry: ProverGeometry,
    gateway_id: u32,
    /// The vector code that computes blocks.
    pub(super) backend: Backend,
}

impl Verifier {
    pub(super) fn new(config: &Config, regions: Arc<ProverRegions>) -> Self {
        Self {
            regions,
            geometry: config.prover_geometry(),
            gateway_id: config.gateway_id.0,
            backend: Backend::widest(),
        }
    }

    /// Prefetches the line of a prover. `number_byte`: the last byte of the round number in the PROOF.
    #[inline]
    pub(super) fn prefetch(&self, id: u64, number_byte: u8) {
        let lane = self
            .round(number_byte.into())
            .map_or(0, |round| round.key_lane.load(Relaxed));
        let place = self.geometry.likely_place(id);
        self.regions.prefetch(&self.geometry, place, lane);
    }

    fn round(&self, number: u32) -> Option<&Round> {
        let lanes = &self.regions.rounds.first()?.lane;
        lanes.get(number as usize & 1)
    }

    /// The round that a PROOF names, if it is open.
    fn open_round(&self, message: &ProofHeader) -> Result<RoundSnapshot, Verdict> {
        let r = u64::from_be_bytes(message.r.to_ne_bytes());
        if (r >> 32) as u32 != self.gateway_id {
            return Err(Verdict::DropGateway);
        }
        let number = r as u32;
        let round = self.round(number).ok_or(Verdict::DropRound)?;
        if !round.matches(message.r, message.nonce) {
            return Err(Verdict::DropRound);
        }
        let snapshot = RoundSnapshot {
            wire: [message.r, message.nonce],
            key_lane: round.key_lane.load(Acquire) & 1,
            // The bits are computed from the number in the message, because the round may be replaced during the read.
            round_bits: round_bits(RoundNumber(number)),
            elapsed_shift: round.elapsed_shift.load(Acquire) & 63,
            started_ns: round.started_ns.load(Acquire),
            until_ns: round.until_ns.load(Acquire),
        };
        // The snapshot is valid only if the round was not replaced during the read.
        let is_unchanged = round.matches(message.r, message.nonce);
        is_unchanged.then_some(snapshot).ok_or(Verdict::DropRound)
    }
}

/// A round as first read in a batch. All fields are zero if no round was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundSnapshot {
    /// r and nonce as loaded from a message.
    pub(super) wire: [u64; 2],
    pub(super) key_lane: u32,
    pub(super) round_bits: u32,
    elapsed_shift: u32,
    started_ns: u64,
    pub(super) until_ns: u64,
}

impl RoundSnapshot {
    /// Counter and nonce of the proofs of this round.
    pub(super) fn counter_and_nonce(&self) -> (u64, [u8; 8]) {
        let [r, nonce] = self.wire;
        (u64::from_be_bytes(r.to_ne_bytes()), nonce.to_ne_bytes())
    }
}

/// The messages of a batch, at most [`BATCH_PROOFS`].
pub(super) trait Messages {
    fn payload(&self, index: usize) -> Option<&[u8]>;
    fn origin(&self, index: usize) -> Option<Origin>;
}

/// A batch of one message.
pub(super) struct SingleMessage<'a> {
    pub(super) payload: &'a [u8],
    pub(super) from: Origin,
}

impl Messages for SingleMessage<'_> {
    fn payload(&self, _: usize) -> Option<&[u8]> {
        Some(self.payload)
    }
    fn origin(&self, _: usize) -> Option<Origin> {
        Some(self.from)
    }
}

/// A PROOF that waits for the check of its block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingProof {
    /// The prover's verdict word as it was read.
    pub(super) before: u32,
    /// Place of the prover.
    pub(super) place: u32,
    /// Index in the batch.
    pub(super) index: u16,
    /// Lane of the round.
    pub(super) lane: u8,
    pub(super) is_alternate: bool,
}

/// The PROOFs that wait for the check of their blocks, and the inputs of these blocks.
pub(super) struct ProofBatch {
    pub(super) pending: [PendingProof; BATCH_PROOFS],
    pub(super) inputs: Box<Inputs>,
    pub(super) count: usize,
    /// The rounds of these PROOFs, by lane.
    rounds: [RoundSnapshot; 2],
}

impl Default for ProofBatch {
    fn default() -> Self {
        Self {
            pending: [PendingProof::default(); BATCH_PROOFS],
            inputs: Box::default(),
            count: 0,
            rounds: [RoundSnapshot::default(); 2],
        }
    }
}

impl std::fmt::Debug for ProofBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proofs({})", self.count)
    }
}

impl ProofBatch {
    /// Starts a batch: forgets the rounds of the previous batch.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.rounds = [RoundSnapshot::default(); 2];
    }

    /// The round of a message, as first read in this batch. A PROOF of a round that opens during the batch is dropped;
    /// its device receives another request.
    #[inline]
    pub(super) fn round(
        &mut self,
        verifier: &Verifier,
        message: &ProofHeader,
        lane: usize,
    ) -> Result<&RoundSnapshot, Verdict> {
        let snapshot = self.rounds.get_mut(lane).ok_or(Verdict::DropRound)?;
        let is_none = snapshot.wire == [0; 2];
        if is_none || snapshot.wire != [message.r, message.nonce] {
            // The round is read even if the batch has another round of this lane, to return the verdict of the first
            // failed check.
            let opened = verifier.open_round(message)?;
            if !is_none {
                return Err(Verdict::DropRound);
            }
            *snapshot = opened;
        }
        Ok(snapshot)
    }

    /// Queues a PROOF for verification under `key`. Returns `false` if the batch is full.
    #[inline]
    fn push(&mut self, pending: PendingProof, key: &[u64; 4]) -> bool {
        let Some(round) = self.rounds.get(usize::from(pending.lane)) else {
            return false;
        };
        let (r, nonce) = round.counter_and_nonce();
        self.inputs.set_counter_and_nonce(self.count, r, &nonce);
        self.push_shared(pending, key)
    }

    /// As [`Self::push`], for a PROOF of the round that all inputs share.
    #[inline]
    pub(super) fn push_shared(&mut self, pending: PendingProof, key: &[u64; 4]) -> bool {
        let Some(entry) = self.pending.get_mut(self.count) else {
            return false;
        };
        *entry = pending;
        self.inputs.set_key(self.count, key);
        self.count += 1;
        true
    }

    /// The blocks of the first `count` queued PROOFs, from their messages.
    pub(super) fn blocks<'m>(&self, count: usize, messages: &'m impl Messages) -> [&'m Block; BATCH_PROOFS] {
        let mut expected = NO_BLOCKS;
        for (expected, pending) in expected.iter_mut().zip(self.pending.iter().take(count)) {
            if let Some(block) = messages.payload(pending.index.into()).and_then(block_of) {
                *expected = block;
            }
        }
        expected
    }

    /// Records the index in the batch of the message that was queued last.
    pub(super) fn set_last_index(&mut self, index: usize) {
        let last = self.count.checked_sub(1);
        if let Some(pending) = last.and_then(|last| self.pending.get_mut(last)) {
            pending.index = index as u16;
        }
    }
}

/// The block at the end of a PROOF.
#[inline]
pub(super) fn block_of(payload: &[u8]) -> Option<&Block> {
    payload
        .get(PROOF_BYTES - size_of::<Block>()..PROOF_BYTES)?
        .as_array()
}

/// Lane of the round that a message names.
#[inline]
pub(super) fn lane_of(message: &ProofHeader) -> usize {
    let [.., last] = message.r.to_ne_bytes();
    usize::from(last & 1)
}

/// The prover's verdict word for the rounds of a lane.
#[inline]
pub(super) fn proved_cell(line: &ProverLine, lane: usize) -> Option<&AtomicU32> {
    line.proved.get(lane)
}

/// The new verdict words of provers with a valid proof.
pub(super) struct VerdictWords<'a> {
    /// The lines of the round's period.
    lines: &'a [ProverLine],
    /// The new verdict words: for the current configuration, and for the alternate configuration.
    after: [u32; 2],
}

impl VerdictWords<'_> {
    /// Records a valid proof. If several threads verify the same proof, only one of them succeeds.
    #[inline]
    pub(super) fn accept(&self, pending: &PendingProof) -> Verdict {
        let line = self.lines.get(pending.place as usize);
        let Some(word) = line.and_then(|line| proved_cell(line, pending.lane.into())) else {
            return Verdict::DropUnknownProver;
        };
        let [current, alternate] = self.after;
        let after = if pending.is_alternate { alternate } else { current };
        match word.compare_exchange(pending.before, after, AcqRel, Acquire) {
            Ok(_) => Verdict::ProofOk,
            Err(_) => Verdict::DropProved,
        }
    }
}

impl Verifier {
    /// All checks of a PROOF except key and block, for the prover that is probably at `place`. A PROOF that passes is
    /// queued.
    #[inline]
    pub(super) fn check(
        &self,
        proofs: &mut ProofBatch,
        now: Timestamps,
        message: &[u8; PROOF_BYTES],
        place: u32,
    ) -> Result<(), Verdict> {
        let (message, _) = ProofHeader::read_from_prefix(message).map_err(|_| Verdict::DropLength)?;
        let lane = lane_of(&message);
        let round = proofs.round(self, &message, lane)?;
        if now.monotonic_ns > round.until_ns {
            return Err(Verdict::DropLate);
        }
        let (key_lane, number_bits) = (round.key_lane, round.round_bits);
        let prover = self
            .regions
            .find(&self.geometry, message.device_id, place, key_lane);
        let (line, place) = prover.ok_or(Verdict::DropUnknownProver)?;
        let word = proved_cell(line, lane).ok_or(Verdict::DropUnknownProver)?;
        let before = word.load(Acquire);
        // A verdict in a later round of this lane, which opened after the round was read, counts too.
        if is_proved(before, number_bits) {
            return Err(Verdict::DropProved);
        }
        let key = key_words(&line.key).ok_or(Verdict::DropNoKey)?;
        let pending = PendingProof {
            before,
            place,
            index: 0,
            lane: lane as u8,
            is_alternate: false,
        };
        // A batch is never larger than the queue.
        let is_queued = proofs.push(pending, &key);
        is_queued.then_some(()).ok_or(Verdict::DropShed)
    }

    /// The new verdict words, by lane of the round.
    pub(super) fn verdict_words(&self, proofs: &ProofBatch, now: Timestamps) -> [VerdictWords<'_>; 2] {
        proofs.rounds.each_ref().map(|round| {
            let elapsed = now.monotonic_ns.saturating_sub(round.started_ns) >> round.elapsed_shift;
            VerdictWords {
                lines: self.regions.lines_of(&self.geometry, round.key_lane),
                after: [false, true].map(|is_alternate| proved_word(round.round_bits, is_alternate, elapsed)),
            }
        })
    }

    /// Queues the PROOF a second time, under the prover's alternate key, if the prover has one. The queue has room,
    /// because its entries were processed.
    #[cold]
    pub(super) fn try_alternate(&self, proofs: &mut ProofBatch, pending: &PendingProof) -> bool {
        let pending = PendingProof {
            is_alternate: true,
            ..*pending
        };
        let key_lane = proofs
            .rounds
            .get(usize::from(pending.lane))
            .map_or(0, |round| round.key_lane);
        let line = self.regions.line(&self.geometry, pending.place, key_lane);
        let slot = line.map_or(usize::MAX, |line| line.slot.load(Acquire) as usize);
        let alternate = self
            .regions
            .alternates
            .get(slot.saturating_mul(2) | key_lane as usize);
        let key = alternate.and_then(|alternate| key_words(&alternate.word));
        key.is_some_and(|key| proofs.push(pending, &key))
    }
}
