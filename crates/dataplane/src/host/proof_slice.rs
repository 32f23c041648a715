//! Verifies any number of PROOFs in memory.
//!
//! Most messages of a batch belong to the same round and to provers that are in their home, have a key and have no
//! verdict yet. The common data is looked up once ([`CommonCase`]), so that such a message costs a few comparisons in
//! addition to its block. All other messages go through [`Verifier::check`], like messages from a socket, which
//! determines their verdict.

use std::sync::atomic::Ordering::Acquire;

use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::PROOF_BYTES;
use zerocopy::FromBytes as _;

use super::engine::{Engine, ThreadState};
use super::message::{drop_reason, is_proof};
use super::origin::Origin;
use super::proof_batch::{
    BATCH_PROOFS, Block, Messages, NO_BLOCKS, PendingProof, ProofBatch, ProofHeader, RoundSnapshot, Verifier,
    block_of, lane_of, proved_cell,
};
use crate::layout::ProverLine;
use crate::store::prefetch;
use crate::store::provers::{is_proved, key_words};
use crate::timestamps::Timestamps;

/// Proofs in memory, without a sender.
struct ProofSlice<'a>(&'a [[u8; PROOF_BYTES]]);

impl Messages for ProofSlice<'_> {
    #[inline]
    fn payload(&self, index: usize) -> Option<&[u8]> {
        self.0.get(index).map(|message| &message[..])
    }
    fn origin(&self, _: usize) -> Option<Origin> {
        None
    }
}

impl Engine {
    /// Verifies any number of PROOFs and counts the verdicts. Wrong proofs are not reported, because their sender is
    /// unknown.
    pub fn process_proofs(&self, thread: &mut ThreadState, now: Timestamps, proofs: &[[u8; PROOF_BYTES]]) {
        let Some(verifier) = &self.provers else {
            return thread
                .stats
                .count_many(Verdict::DropUnsupportedType, proofs.len() as u64);
        };
        let mut places = [0; BATCH_PROOFS];
        let (first_batch, _) = proofs.split_at(proofs.len().min(BATCH_PROOFS));
        let common = CommonCase::of(verifier, &mut thread.proofs, now, first_batch);
        for (place, message) in places.iter_mut().zip(first_batch) {
            *place = verifier.prefetch_line(common.as_ref(), message);
        }
        let mut expected = NO_BLOCKS;
        for (number, batch) in proofs.chunks(BATCH_PROOFS).enumerate() {
            let next_proofs = proofs.get((number + 1) * BATCH_PROOFS..).unwrap_or_default();
            verifier.check_batch(thread, now, batch, next_proofs, &mut places, &mut expected);
            self.verify_pending_blocks(thread, now, &ProofSlice(batch), &expected);
        }
    }
}

/// Data that most messages of a batch share with the first message of the batch that belongs to an open round.
struct CommonCase<'a> {
    round: RoundSnapshot,
    /// Lane of the round.
    lane: usize,
    /// Lines of the round's period.
    lines: &'a [ProverLine],
}

impl<'a> CommonCase<'a> {
    /// Starts a batch. `None`: no message of the batch belongs to an open round, or the deadline of this round has passed.
    fn of(
        verifier: &'a Verifier,
        proofs: &mut ProofBatch,
        now: Timestamps,
        batch: &[[u8; PROOF_BYTES]],
    ) -> Option<Self> {
        proofs.begin();
        let (round, lane) = batch.iter().find_map(|message| {
            let (message, _) = ProofHeader::read_from_prefix(message).ok()?;
            let lane = lane_of(&message);
            Some((*proofs.round(verifier, &message, lane).ok()?, lane))
        })?;
        let (r, nonce) = round.counter_and_nonce();
        proofs.inputs.set_shared_counter_and_nonce(r, &nonce);
        (now.monotonic_ns <= round.until_ns).then(|| Self {
            round,
            lane,
            lines: verifier.regions.lines_of(&verifier.geometry, round.key_lane),
        })
    }

    /// The prover's line and its place, if the prover is in its home.
    #[inline]
    fn find(&self, id: u64, likely_place: u32) -> Option<(&ProverLine, u32)> {
        let prover_at = |place: u32| {
            let line = self.lines.get(place as usize)?;
            (line.device_id.load(Acquire) == id).then_some((line, place))
        };
        prover_at(likely_place).or_else(|| prover_at(likely_place ^ 1))
    }

    /// Queues a message for verification. Returns `false`, without side effects, if the message is not the common case.
    #[inline]
    fn check(
        &self,
        proofs: &mut ProofBatch,
        index: usize,
        message: &[u8; PROOF_BYTES],
        likely_place: u32,
    ) -> bool {
        let Ok((words, _)) = ProofHeader::read_from_prefix(message) else {
            return false;
        };
        if !message.first_chunk().is_some_and(is_proof) || self.round.wire != [words.r, words.nonce] {
            return false;
        }
        let Some((line, place)) = self.find(words.device_id, likely_place) else {
            return false;
        };
        let Some(word) = proved_cell(line, self.lane) else {
            return false;
        };
        let before = word.load(Acquire);
        let Some(key) = key_words(&line.key).filter(|_| !is_proved(before, self.round.round_bits)) else {
            return false;
        };
        let pending = PendingProof {
            before,
            place,
            index: index as u16,
            lane: self.lane as u8,
            is_alternate: false,
        };
        proofs.push_shared(pending, &key)
    }
}

impl Verifier {
    /// All checks of a batch except keys and blocks. Prefetches the provers of the next batch and replaces `places`
    /// with the likely places of these provers. `expected` receives the blocks of the queued proofs.
    #[inline]
    fn check_batch<'m>(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        batch: &'m [[u8; PROOF_BYTES]],
        next_proofs: &[[u8; PROOF_BYTES]],
        places: &mut [u32; BATCH_PROOFS],
        expected: &mut [&'m Block; BATCH_PROOFS],
    ) {
        let common = CommonCase::of(self, &mut thread.proofs, now, batch);
        let mut next_proofs = next_proofs.iter();
        for ((index, message), place) in batch.iter().enumerate().zip(places) {
            let likely_place = *place;
            // One prefetch per message: a CPU discards prefetches that exceed its capacity.
            if let Some(next) = next_proofs.next() {
                *place = self.prefetch_line(common.as_ref(), next);
            }
            if let (Some(cell), Some(block)) = (expected.get_mut(thread.proofs.count), block_of(message)) {
                *cell = block;
            }
            let is_queued = common
                .as_ref()
                .is_some_and(|common| common.check(&mut thread.proofs, index, message, likely_place));
            if !is_queued {
                self.check_uncommon(thread, now, index, message, likely_place);
            }
        }
    }

    /// Prefetches the line of a PROOF's prover. Returns the likely place of the prover.
    #[inline]
    fn prefetch_line(&self, common: Option<&CommonCase<'_>>, message: &[u8; PROOF_BYTES]) -> u32 {
        let Ok((words, _)) = ProofHeader::read_from_prefix(message) else {
            return 0;
        };
        let place = self.geometry.likely_place(words.device_id);
        let line = common.and_then(|common| common.lines.get(place as usize));
        line.into_iter().for_each(prefetch);
        place
    }

    /// Handles a message that is not the common case.
    #[cold]
    #[inline(never)]
    fn check_uncommon(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        index: usize,
        message: &[u8; PROOF_BYTES],
        likely_place: u32,
    ) {
        let has_proof_header = message.first_chunk().is_some_and(is_proof);
        let result = match has_proof_header {
            true => self.check(&mut thread.proofs, now, message, likely_place),
            false => Err(drop_reason(message, message.len())),
        };
        match result {
            Ok(()) => thread.proofs.set_last_index(index),
            Err(reason) => thread.stats.count(reason),
        }
    }
}
