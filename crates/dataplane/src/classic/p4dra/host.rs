//! `p4dra-classic` (LAP/1 3.1.2), verified in batches. `bpf/lw_p4dra.h` verifies one frame at a time.
//!
//! As with PROOFs, the cheap checks run first, and the blocks of all frames that pass them are computed in parallel.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use linewarden_forro::{Backend, Inputs, Matrix, R14, matching_blocks};
use linewarden_protocol::classic::p4dra::{self, Message, Proof, ProverId, Round, operation};
use linewarden_protocol::frame::{Mac, header};
use linewarden_protocol::verdict::{Disposition, Verdict};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::settings::P4dra;
use super::{P4draControl, P4draRegions};
use crate::classic::layout::P4draProverCell;
use crate::error::DataPlaneError;

/// Maximum number of frames in a batch.
const BATCH_FRAMES: usize = Inputs::BLOCKS_MAX;
/// Bytes kept of a frame: the longest message and its reply fit.
const FRAME_BYTES: usize = 192;

/// Offset of the payload. VLAN tags are not visible here.
const PAYLOAD_AT: usize = size_of::<header::Ethernet>();
/// Range of `d` in a reply.
const ID: std::ops::Range<usize> = PAYLOAD_AT + 17..PAYLOAD_AT + 33;
/// Range of the proof in a reply.
const PROOF: std::ops::Range<usize> = PAYLOAD_AT + 33..PAYLOAD_AT + 97;

/// Verifies frames in memory. Threads may share the value.
#[derive(Debug)]
pub struct P4draHost {
    control: P4draControl,
    ether_type: u16,
    controller: Mac,
    /// The vector code that computes blocks.
    backend: Backend,
}

/// A frame whose proof must be compared with a block.
#[derive(Clone, Copy, Debug)]
struct PendingReply {
    /// Index in the batch.
    index: usize,
    /// Place of the prover.
    place: usize,
    /// Count of the round.
    round_count: u64,
    /// The prover's verdict word as it was read.
    before: u64,
    proof: Proof,
}

/// Frames that are verified together.
pub struct P4draBatch {
    frames: Box<[[u8; FRAME_BYTES]]>,
    /// Wire lengths of the received frames. If a reply has replaced a frame, this is the length of the reply.
    lengths: [usize; BATCH_FRAMES],
    verdicts: [Verdict; BATCH_FRAMES],
    pending: Vec<PendingReply>,
    /// Inputs of the pending proofs.
    inputs: Box<Inputs>,
    frame_count: usize,
}

impl std::fmt::Debug for P4draBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "P4draBatch({})", self.frame_count)
    }
}

impl Default for P4draBatch {
    fn default() -> Self {
        Self {
            frames: vec![[0; FRAME_BYTES]; BATCH_FRAMES].into_boxed_slice(),
            lengths: [0; BATCH_FRAMES],
            verdicts: [Verdict::PassForeign; BATCH_FRAMES],
            pending: Vec::with_capacity(BATCH_FRAMES),
            inputs: Box::default(),
            frame_count: 0,
        }
    }
}

impl P4draBatch {
    /// Replaces the content of the batch with the first of these frames. Returns the number of frames that fit.
    pub fn fill(&mut self, frames: &[impl AsRef<[u8]>]) -> usize {
        let cells = self.frames.iter_mut().zip(&mut self.lengths);
        self.frame_count = frames.len().min(BATCH_FRAMES);
        for ((cell, length), frame) in cells.zip(frames) {
            let frame = frame.as_ref();
            *length = frame.len();
            cell.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
        }
        self.frame_count
    }

    /// Verdict of each frame, and the frame or the reply that replaced it.
    pub fn results(&self) -> impl Iterator<Item = (Verdict, &[u8])> {
        let frames = self.frames.iter().zip(&self.lengths).zip(&self.verdicts);
        frames.take(self.frame_count).map(|((frame, length), verdict)| {
            let bytes = frame.get(..*length).unwrap_or(frame);
            (*verdict, bytes)
        })
    }

    /// The stored part of the frame, and whether that is the whole frame.
    fn frame(&self, index: usize) -> Option<(&[u8], bool)> {
        let (frame, length) = (self.frames.get(index)?, *self.lengths.get(index)?);
        match frame.get(..length) {
            Some(full_frame) => Some((full_frame, true)),
            None => Some((frame, false)),
        }
    }
}

impl P4draHost {
    /// Allocates memory for the provers. `seed` is the seed of the hash that selects their places.
    ///
    /// # Errors
    /// The settings are invalid, or no memory is available.
    pub fn new(p4dra: &P4dra, seed: [u64; 2]) -> Result<Self, DataPlaneError> {
        Self::with_lanes(p4dra, seed, Backend::widest())
    }

    /// As [`P4draHost::new`], with the vector code `lanes` instead of the widest that the CPU supports.
    ///
    /// # Errors
    /// As [`P4draHost::new`].
    pub fn with_lanes(p4dra: &P4dra, seed: [u64; 2], lanes: Backend) -> Result<Self, DataPlaneError> {
        let table = p4dra.check(seed)?;
        let regions = P4draRegions::anonymous(table.len())
            .map_err(|error| DataPlaneError::kernel("allocating memory for the provers", error))?;
        Ok(Self {
            control: P4draControl::new(p4dra, seed, &table, regions),
            ether_type: p4dra.ether_type,
            controller: p4dra.controller,
            backend: lanes,
        })
    }

    /// The rounds.
    pub fn control(&mut self) -> &mut P4draControl {
        &mut self.control
    }

    fn regions(&self) -> &P4draRegions {
        &self.control.regions
    }

    /// All checks except the comparison of the block.
    fn check(
        &self,
        index: usize,
        frame: &[u8],
        is_complete: bool,
    ) -> Result<(PendingReply, Matrix), Verdict> {
        let (ethernet, payload) =
            header::Ethernet::ref_from_prefix(frame).map_err(|_| Verdict::PassForeign)?;
        if ethernet.ether_type.get() != self.ether_type {
            return Err(Verdict::PassForeign);
        }
        let ([dst, ..], [src, ..]) = (ethernet.dst, ethernet.src);
        if (dst | src) & 1 == 1 {
            return Err(Verdict::DropUnanswerable);
        }
        let message = Message::parse(payload).filter(|_| is_complete);
        let Message::Reply(round, id, proof) = message.ok_or(Verdict::DropP4draMalformed)? else {
            return Err(Verdict::DropP4draOperation);
        };
        let round_count = self.regions().count(&round).ok_or(Verdict::DropP4draRound)?;
        let (place, prover) = self
            .regions()
            .find(&id, self.control.seed)
            .ok_or(Verdict::DropP4draProver)?;
        let before = verdict_word(prover, round_count).map_or(0, |word| word.load(Acquire));
        if before == round_count {
            return Err(Verdict::DropP4draProved);
        }
        let pending = PendingReply {
            index,
            place,
            round_count,
            before,
            proof,
        };
        Ok((pending, matrix(prover, &round)))
    }

    /// Prefetches the prover of a frame that may be a reply, so that the memory accesses of a batch overlap.
    fn prefetch(&self, frame: &[u8]) {
        if let Some(id) = frame.get(ID).and_then(|id| id.try_into().ok()) {
            self.regions()
                .prefetch(&ProverId(p4dra::swap_word_bytes(id)), self.control.seed);
        }
    }

    /// Records a valid proof. If several threads verify the same proof, only one of them succeeds.
    fn accept(&self, pending: &PendingReply) -> Verdict {
        let prover = self.regions().provers.get(pending.place);
        let word = prover.and_then(|prover| verdict_word(prover, pending.round_count));
        let result =
            word.map(|word| word.compare_exchange(pending.before, pending.round_count, AcqRel, Acquire));
        match result {
            Some(Ok(_)) => Verdict::ReplyP4draVerified,
            _ => Verdict::DropP4draProved,
        }
    }

    /// Turns a frame into its reply. The frame already contains the proof, which equals the block.
    fn write_verified(&self, frame: &mut [u8; FRAME_BYTES]) -> usize {
        if let Ok((ethernet, _)) = header::Ethernet::mut_from_prefix(frame.as_mut_bytes()) {
            ethernet.src = ethernet.dst;
            ethernet.dst = self.controller;
        }
        if let Some(cell) = frame.get_mut(PAYLOAD_AT) {
            *cell = operation::VERIFIED;
        }
        frame.copy_within(PROOF, PROOF.end);
        PROOF.end + PROOF.len()
    }
}

const _: () = assert!(PROOF.end + 64 <= FRAME_BYTES && PAYLOAD_AT + p4dra::MESSAGE_BYTES_MAX <= FRAME_BYTES);

/// The prover's verdict word for the lane of the round with this count.
fn verdict_word(prover: &P4draProverCell, round_count: u64) -> Option<&std::sync::atomic::AtomicU64> {
    prover.proved.get(usize::from(round_count & 1 == 1))
}

fn matrix(prover: &P4draProverCell, round: &Round) -> Matrix {
    let mut template = [0; 16];
    for (word, cell) in template.iter_mut().zip(&prover.matrix) {
        *word = cell.load(Relaxed);
    }
    p4dra::matrix(template, round)
}

impl P4draHost {
    /// Verifies the frames of a batch. A frame that is answered is replaced by its reply.
    pub fn process(&self, batch: &mut P4draBatch) {
        batch.pending.clear();
        let frames = batch.frames.iter().take(batch.frame_count);
        frames.for_each(|frame| self.prefetch(frame));
        for index in 0..batch.frame_count {
            let Some((frame, is_complete)) = batch.frame(index) else {
                continue;
            };
            let verdict = match self.check(index, frame, is_complete) {
                Ok((pending, matrix)) => {
                    batch.inputs.set_matrix(batch.pending.len(), &matrix);
                    batch.pending.push(pending);
                    continue;
                }
                Err(reason) => reason,
            };
            if let Some(cell) = batch.verdicts.get_mut(index) {
                *cell = verdict;
            }
        }
        self.verify_pending(batch);
    }

    fn verify_pending(&self, batch: &mut P4draBatch) {
        let mut expected: [&Proof; BATCH_FRAMES] = [&[0; 64]; BATCH_FRAMES];
        for (expected, pending) in expected.iter_mut().zip(&batch.pending) {
            *expected = &pending.proof;
        }
        let expected = expected.get(..batch.pending.len()).unwrap_or_default();
        let match_bits = matching_blocks::<R14>(self.backend, &batch.inputs, expected);
        for (index, pending) in batch.pending.iter().enumerate() {
            let verdict = match match_bits >> index & 1 {
                1 => self.accept(pending),
                _ => Verdict::DropP4draProof,
            };
            let cells = (
                batch.verdicts.get_mut(pending.index),
                batch.frames.get_mut(pending.index),
                batch.lengths.get_mut(pending.index),
            );
            let (Some(verdict_cell), Some(frame), Some(length)) = cells else {
                continue;
            };
            *verdict_cell = verdict;
            if verdict.disposition() == Disposition::Reply {
                *length = self.write_verified(frame);
            }
        }
    }
}
