//! `p4dra-classic` (LAP/1 3.1.2), many frames at a time: what `xdp/bpf/lw_p4dra.h` does one by one.
//!
//! As with PROOFs, the cheap checks come first, and the blocks of all that pass them are computed side by side.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use linewarden_forro::{Backend, Inputs, Matrix, R14, matching_blocks};
use linewarden_protocol::classic::p4dra::{self, Message, Proof, ProverId, Round, operation};
use linewarden_protocol::frame::{Mac, header};
use linewarden_protocol::verdict::{Disposition, Verdict};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::engine::{Engine, ThreadState};
use crate::config::{Config, P4dra};
use crate::layout::P4draProver;
use crate::p4dra::P4draRegions;

/// Frames that are judged together at most.
pub(super) const FRAMES: usize = Inputs::ROOM;
/// Bytes kept of a frame: all of the longest, and of its reply.
pub(super) const FRAME_BYTES: usize = 192;

/// Where the payload begins: VLAN tags are not seen here.
const AT: usize = size_of::<header::Ethernet>();
/// Where d lies in a reply.
const ID: std::ops::Range<usize> = AT + 17..AT + 33;
/// Where the proof of a reply begins and ends.
const PROOF: std::ops::Range<usize> = AT + 33..AT + 97;

/// What the checks need.
#[derive(Debug)]
pub(super) struct Verifier {
    regions: Arc<P4draRegions>,
    seed: [u64; 2],
    ether_type: u16,
    controller: Mac,
    pub(super) lanes: Backend,
}

/// A frame whose proof is to be compared with a block.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Its number in the batch.
    at: usize,
    /// Of the prover.
    place: usize,
    count: u64,
    /// The prover's word as it was.
    before: u64,
    proof: Proof,
}

/// Frames that are judged together.
pub struct P4draBatch {
    pub(super) frames: Box<[[u8; FRAME_BYTES]]>,
    /// Real lengths; of a reply its own.
    lengths: [usize; FRAMES],
    verdicts: [Verdict; FRAMES],
    claims: Vec<Claim>,
    /// Of the claims.
    inputs: Box<Inputs>,
    count: usize,
}

impl std::fmt::Debug for P4draBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "P4draBatch({})", self.count)
    }
}

impl Default for P4draBatch {
    fn default() -> Self {
        Self {
            frames: vec![[0; FRAME_BYTES]; FRAMES].into_boxed_slice(),
            lengths: [0; FRAMES],
            verdicts: [Verdict::PassForeign; FRAMES],
            claims: Vec::with_capacity(FRAMES),
            inputs: Box::default(),
            count: 0,
        }
    }
}

impl P4draBatch {
    /// Takes frames in the place of those that it has; how many fitted.
    pub fn fill(&mut self, frames: &[impl AsRef<[u8]>]) -> usize {
        let places = self.frames.iter_mut().zip(&mut self.lengths);
        self.count = frames.len().min(FRAMES);
        for ((place, length), frame) in places.zip(frames) {
            let frame = frame.as_ref();
            *length = frame.len();
            place.iter_mut().zip(frame).for_each(|(to, from)| *to = *from);
        }
        self.count
    }

    /// The frames that it has are these of [`Self::frames`], of those lengths.
    pub(super) fn received(&mut self, lengths: impl Iterator<Item = usize>) {
        self.count = 0;
        for (place, length) in self.lengths.iter_mut().zip(lengths) {
            *place = length;
            self.count += 1;
        }
    }

    /// Verdicts by frame, with what each has become.
    pub fn judged(&self) -> impl Iterator<Item = (Verdict, &[u8])> {
        let frames = self.frames.iter().zip(&self.lengths).zip(&self.verdicts);
        frames.take(self.count).map(|((frame, length), verdict)| {
            let held = frame.get(..*length).unwrap_or(frame);
            (*verdict, held)
        })
    }

    /// What is held of the frame, and whether that is all.
    fn frame(&self, at: usize) -> Option<(&[u8], bool)> {
        let (frame, length) = (self.frames.get(at)?, *self.lengths.get(at)?);
        match frame.get(..length) {
            Some(whole) => Some((whole, true)),
            None => Some((frame, false)),
        }
    }
}

impl Verifier {
    pub(super) fn new(config: &Config, p4dra: &P4dra, regions: Arc<P4draRegions>) -> Self {
        Self {
            regions,
            seed: config.geometry.hash_seed,
            ether_type: p4dra.ether_type,
            controller: p4dra.controller,
            lanes: Backend::widest(),
        }
    }

    /// All checks but the block.
    fn look(&self, at: usize, frame: &[u8], is_whole: bool) -> Result<(Claim, Matrix), Verdict> {
        let (ethernet, payload) =
            header::Ethernet::ref_from_prefix(frame).map_err(|_| Verdict::PassForeign)?;
        if ethernet.ether_type.get() != self.ether_type {
            return Err(Verdict::PassForeign);
        }
        let ([dst, ..], [src, ..]) = (ethernet.dst, ethernet.src);
        if (dst | src) & 1 == 1 {
            return Err(Verdict::DropUnanswerable);
        }
        let message = Message::parse(payload).filter(|_| is_whole);
        let Message::Reply(round, id, proof) = message.ok_or(Verdict::DropP4draMalformed)? else {
            return Err(Verdict::DropP4draOperation);
        };
        let count = self.regions.count(&round).ok_or(Verdict::DropP4draRound)?;
        let (place, prover) = self
            .regions
            .find(&id, self.seed)
            .ok_or(Verdict::DropP4draProver)?;
        let before = proved(prover, count).map_or(0, |word| word.load(Acquire));
        if before == count {
            return Err(Verdict::DropP4draProved);
        }
        let claim = Claim {
            at,
            place,
            count,
            before,
            proof,
        };
        Ok((claim, matrix(prover, &round)))
    }

    /// Of a frame that may be a reply: the ways of a whole batch to memory overlap.
    fn prefetch(&self, frame: &[u8]) {
        if let Some(id) = frame.get(ID).and_then(|id| id.try_into().ok()) {
            self.regions.prefetch(&ProverId(p4dra::sw(id)), self.seed);
        }
    }

    /// Of several threads with one proof one wins.
    fn accept(&self, claim: &Claim) -> Verdict {
        let prover = self.regions.provers.get(claim.place);
        let word = prover.and_then(|prover| proved(prover, claim.count));
        let swapped = word.map(|word| word.compare_exchange(claim.before, claim.count, AcqRel, Acquire));
        match swapped {
            Some(Ok(_)) => Verdict::ReplyP4draVerified,
            _ => Verdict::DropP4draProved,
        }
    }

    /// Makes the reply of a frame, of which the proof, which is the block, stands in it already.
    fn tell(&self, frame: &mut [u8; FRAME_BYTES]) -> usize {
        if let Ok((ethernet, _)) = header::Ethernet::mut_from_prefix(frame.as_mut_bytes()) {
            ethernet.src = ethernet.dst;
            ethernet.dst = self.controller;
        }
        if let Some(place) = frame.get_mut(AT) {
            *place = operation::VERIFIED;
        }
        frame.copy_within(PROOF, PROOF.end);
        PROOF.end + PROOF.len()
    }
}

const _: () = assert!(PROOF.end + 64 <= FRAME_BYTES && AT + p4dra::MESSAGE_BYTES_MAX <= FRAME_BYTES);

fn proved(prover: &P4draProver, count: u64) -> Option<&std::sync::atomic::AtomicU64> {
    prover.proved.get(usize::from(count & 1 == 1))
}

fn matrix(prover: &P4draProver, round: &Round) -> Matrix {
    let mut template = [0; 16];
    for (word, cell) in template.iter_mut().zip(&prover.matrix) {
        *word = cell.load(Relaxed);
    }
    p4dra::matrix(template, round)
}

impl Engine {
    /// Judges the frames of a batch, and counts. What is a reply has become it.
    pub fn process_p4dra(&self, thread: &mut ThreadState, batch: &mut P4draBatch) {
        let Some(verifier) = &self.p4dra else {
            batch.count = 0;
            return;
        };
        batch.claims.clear();
        let frames = batch.frames.iter().take(batch.count);
        frames.for_each(|frame| verifier.prefetch(frame));
        for at in 0..batch.count {
            let Some((frame, is_whole)) = batch.frame(at) else {
                continue;
            };
            let verdict = match verifier.look(at, frame, is_whole) {
                Ok((claim, matrix)) => {
                    batch.inputs.set_matrix(batch.claims.len(), &matrix);
                    batch.claims.push(claim);
                    continue;
                }
                Err(reason) => reason,
            };
            if let Some(place) = batch.verdicts.get_mut(at) {
                *place = verdict;
            }
        }
        verifier.settle(batch);
        for verdict in batch.verdicts.iter().take(batch.count) {
            thread.stats.count(*verdict);
        }
    }
}

impl Verifier {
    fn settle(&self, batch: &mut P4draBatch) {
        let mut given: [&Proof; FRAMES] = [&[0; 64]; FRAMES];
        for (given, claim) in given.iter_mut().zip(&batch.claims) {
            *given = &claim.proof;
        }
        let given = given.get(..batch.claims.len()).unwrap_or_default();
        let right = matching_blocks::<R14>(self.lanes, &batch.inputs, given);
        for (index, claim) in batch.claims.iter().enumerate() {
            let verdict = match right >> index & 1 {
                1 => self.accept(claim),
                _ => Verdict::DropP4draProof,
            };
            let places = (
                batch.verdicts.get_mut(claim.at),
                batch.frames.get_mut(claim.at),
                batch.lengths.get_mut(claim.at),
            );
            let (Some(place), Some(frame), Some(length)) = places else {
                continue;
            };
            *place = verdict;
            if verdict.disposition() == Disposition::Reply {
                *length = self.tell(frame);
            }
        }
    }
}
