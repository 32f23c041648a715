//! PROOFs (LAP/1 3.2.1), checked many at a time: what `xdp/bpf/lw_attest.h` does one by one.
//!
//! A PROOF goes through all cheap checks when it is seen and is then set aside; at the end of a batch the blocks of all that
//! were set aside are computed side by side, by as many lanes as the CPU has ([`linewarden_forro::blocks`]). So of a prover's
//! PROOFs in one batch all are hashed: a wrong one counts as wrong although a right one is beside it.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use linewarden_forro::{Backend, Matrix, R14, blocks};
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{HEADER_BYTES, MAGIC, PROOF_BYTES, VERSION, message_type};
use zerocopy::FromBytes as _;

use super::engine::{Engine, Moment, Origin, ThreadState};
use crate::config::Config;
use crate::event::EVENT_BYTES;
use crate::layout::{KeyCells, Round};
use crate::store::provers::{ProverGeometry, ProverRegions, proved_word};

/// Proofs that are set aside at most: a batch.
pub(super) const PROOFS: usize = 64;

/// LW_EVENT_WRONG_PROOF.
const EVENT_WRONG_PROOF: u32 = 5;

/// The first 8 bytes of a PROOF of suite 1.
const H0: [u8; 8] = {
    let [magic_high, magic_low] = MAGIC.to_be_bytes();
    let [length_high, length_low] = (PROOF_BYTES as u16).to_be_bytes();
    [
        magic_high,
        magic_low,
        VERSION,
        message_type::PROOF,
        1,
        0,
        length_high,
        length_low,
    ]
};

/// Whether a payload of [`PROOF_BYTES`] is a PROOF, by its header.
pub(super) fn is_proof(header: &[u8; HEADER_BYTES]) -> bool {
    header.starts_with(&H0) && !header.ends_with(&[0; 8])
}

/// A PROOF as words, as loaded.
#[derive(zerocopy::FromBytes)]
#[repr(C)]
struct Message {
    _h0: u64,
    device_id: u64,
    r: u64,
    nonce: u64,
}

/// What the checks of PROOFs need.
#[derive(Debug)]
pub(super) struct Verifier {
    regions: Arc<ProverRegions>,
    geometry: ProverGeometry,
    gateway_id: u32,
    pub(super) lanes: Backend,
}

impl Verifier {
    pub(super) fn new(config: &Config, regions: Arc<ProverRegions>) -> Self {
        Self {
            regions,
            geometry: config.prover_geometry(),
            gateway_id: config.gateway_id.0,
            lanes: Backend::widest(),
        }
    }

    pub(super) fn prefetch(&self, id: u64) {
        self.regions.prefetch(&self.geometry, id);
    }

    fn round(&self, number: u32) -> Option<&Round> {
        let lanes = &self.regions.rounds.first()?.lane;
        lanes.get(number as usize & 1)
    }
}

/// The messages of a batch.
pub(super) trait Messages {
    fn payload(&self, at: usize) -> Option<&[u8]>;
    fn origin(&self, at: usize) -> Option<Origin>;
}

/// A batch of one.
pub(super) struct Single<'a> {
    pub(super) payload: &'a [u8],
    pub(super) from: Origin,
}

impl Messages for Single<'_> {
    fn payload(&self, _: usize) -> Option<&[u8]> {
        Some(self.payload)
    }
    fn origin(&self, _: usize) -> Option<Origin> {
        Some(self.from)
    }
}

/// A PROOF that was set aside.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    /// Its number in the batch.
    at: usize,
    /// Of the prover.
    place: u32,
    /// Of the round.
    number: u32,
    /// The prover's word as it was.
    before: u64,
    is_alternate: bool,
    /// Known when its block is computed.
    has_key: bool,
}

/// PROOFs that were set aside.
pub(super) struct Proofs {
    claims: [Claim; PROOFS],
    matrices: Box<[Matrix]>,
    blocks: Box<[[u8; 64]]>,
    count: usize,
}

impl Default for Proofs {
    fn default() -> Self {
        let zero = || Matrix::from_words([0; 16]);
        Self {
            claims: [Claim::default(); PROOFS],
            matrices: std::iter::repeat_with(zero).take(PROOFS).collect(),
            blocks: vec![[0; 64]; PROOFS].into_boxed_slice(),
            count: 0,
        }
    }
}

impl std::fmt::Debug for Proofs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proofs({})", self.count)
    }
}

impl Proofs {
    /// Sets a claim aside; `false`: there is no room.
    #[inline]
    fn push(&mut self, claim: Claim) -> bool {
        let Some(place) = self.claims.get_mut(self.count) else {
            return false;
        };
        *place = claim;
        self.count += 1;
        true
    }

    /// The last one that was set aside is that message of the batch.
    pub(super) fn came_as(&mut self, at: usize) {
        if let Some(claim) = self
            .count
            .checked_sub(1)
            .and_then(|last| self.claims.get_mut(last))
        {
            claim.at = at;
        }
    }
}

/// All of it before the answer: a comparison byte by byte, as a library makes it to be sure, would cost several blocks.
#[inline]
fn is_equal(block: &[u8; 64], given: &[u8; 64]) -> bool {
    let pairs = block.as_chunks::<8>().0.iter().zip(given.as_chunks::<8>().0);
    let differs = pairs.fold(0, |differs, (a, b)| {
        differs | (u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b))
    });
    std::hint::black_box(differs) == 0
}

#[inline]
fn has_key([first, ..]: &KeyCells) -> bool {
    first.load(Acquire) != 0
}

#[inline]
fn key_bytes(cells: &KeyCells) -> [u8; 32] {
    let mut key = [0; 32];
    for (bytes, cell) in key.as_chunks_mut::<8>().0.iter_mut().zip(cells) {
        *bytes = cell.load(Acquire).to_ne_bytes();
    }
    key
}

/// Proofs that lie in memory, of no known sender.
struct Bulk<'a>(&'a [[u8; PROOF_BYTES]]);

impl Messages for Bulk<'_> {
    fn payload(&self, at: usize) -> Option<&[u8]> {
        self.0.get(at).map(|message| &message[..])
    }
    fn origin(&self, _: usize) -> Option<Origin> {
        None
    }
}

impl Engine {
    /// Judges any number of PROOFs, and counts. Of wrong ones nothing is reported, for nobody is known to have sent them.
    pub fn process_proofs(&self, thread: &mut ThreadState, now: Moment, proofs: &[[u8; PROOF_BYTES]]) {
        let prefetch = |batch: Option<&[[u8; PROOF_BYTES]]>| {
            batch.into_iter().flatten().for_each(|one| self.prefetch(one))
        };
        let mut batches = proofs.chunks(PROOFS);
        prefetch(batches.clone().next());
        while let Some(batch) = batches.next() {
            for (at, message) in batch.iter().enumerate() {
                let is_whole = message.first_chunk().is_some_and(is_proof);
                let taken = match is_whole {
                    true => self.take_proof(thread, now, message),
                    false => Err(super::engine::why_neither(message, message.len())),
                };
                match taken {
                    Ok(()) => thread.proofs.came_as(at),
                    Err(reason) => thread.stats.count(reason),
                }
            }
            // On their way while blocks are computed.
            prefetch(batches.clone().next());
            self.settle(thread, now, &Bulk(batch));
        }
    }

    /// All checks of a PROOF but key and block; what passes is set aside.
    pub(super) fn take_proof(
        &self,
        thread: &mut ThreadState,
        now: Moment,
        payload: &[u8],
    ) -> Result<(), Verdict> {
        let verifier = self.provers.as_ref().ok_or(Verdict::DropUnsupportedType)?;
        let (message, _) = Message::read_from_prefix(payload).map_err(|_| Verdict::DropLength)?;
        let r = u64::from_be_bytes(message.r.to_ne_bytes());
        if (r >> 32) as u32 != verifier.gateway_id {
            return Err(Verdict::DropGateway);
        }
        let number = r as u32;
        let round = verifier.round(number).ok_or(Verdict::DropRound)?;
        if !round.is(message.r, message.nonce) {
            return Err(Verdict::DropRound);
        }
        if now.monotonic_ns > round.until_ns.load(Acquire) {
            return Err(Verdict::DropLate);
        }
        let found = verifier.regions.find(&verifier.geometry, message.device_id);
        let (home, way, place) = found.ok_or(Verdict::DropUnknownProver)?;
        let lane = number as usize & 1;
        let word = home.proved.get(way).and_then(|lanes| lanes.get(lane));
        let before = word.map_or(0, |word| word.load(Acquire));
        if before >> 32 == u64::from(number) {
            return Err(Verdict::DropProved);
        }
        let claim = Claim {
            at: 0,
            place,
            number,
            before,
            is_alternate: false,
            has_key: false,
        };
        // A batch has no more than there is room for.
        thread.proofs.push(claim).then_some(()).ok_or(Verdict::DropShed)
    }

    /// Judges what was set aside, and counts. Returns the verdict on the last.
    pub(super) fn settle(&self, thread: &mut ThreadState, now: Moment, messages: &impl Messages) -> Verdict {
        let mut last = Verdict::DropProof;
        let Some(verifier) = &self.provers else {
            return last;
        };
        // Of whom the current configuration does not explain the proof, the alternate one may.
        while thread.proofs.count > 0 {
            let count = verifier.compute(&mut thread.proofs);
            for index in 0..count {
                let (Some(claim), Some(block)) = (
                    thread.proofs.claims.get(index).copied(),
                    thread.proofs.blocks.get(index),
                ) else {
                    continue;
                };
                let payload = messages.payload(claim.at).unwrap_or_default();
                let given = payload.get(PROOF_BYTES - 64..PROOF_BYTES);
                if !claim.has_key {
                    last = Verdict::DropNoKey;
                } else if given
                    .and_then(<[u8]>::as_array)
                    .is_some_and(|given| is_equal(block, given))
                {
                    last = verifier.accept(&claim, now);
                } else if !claim.is_alternate && verifier.try_alternate(&mut thread.proofs, &claim) {
                    continue;
                } else {
                    last = Verdict::DropProof;
                    self.report_wrong_proof(thread, now, &claim, messages);
                }
                thread.stats.count(last);
            }
        }
        last
    }

    #[cold]
    fn report_wrong_proof(
        &self,
        thread: &mut ThreadState,
        now: Moment,
        claim: &Claim,
        messages: &impl Messages,
    ) {
        if !thread.alarms.allows(now.monotonic_ns, self.live().alarm_per_s) {
            return;
        }
        let (Some(payload), Some(from)) = (messages.payload(claim.at), messages.origin(claim.at)) else {
            return;
        };
        let id = payload.get(8..16).and_then(|id| id.try_into().ok());
        let words: [u64; EVENT_BYTES / 8] = [
            u64::from(EVENT_WRONG_PROOF),
            id.map_or(0, u64::from_ne_bytes),
            0,
            from.addr[0],
            from.addr[1],
            u64::from(from.ingress) << 32 | u64::from(claim.number),
        ];
        thread.stats.report(&words);
    }
}

impl Verifier {
    /// The blocks of all that is set aside, which then is not any more: how many.
    fn compute(&self, proofs: &mut Proofs) -> usize {
        let count = std::mem::take(&mut proofs.count);
        for (claim, matrix) in proofs.claims.iter_mut().zip(&mut proofs.matrices).take(count) {
            let (Some(round), Some(key)) = (self.round(claim.number), self.key(claim)) else {
                claim.has_key = false;
                continue;
            };
            claim.has_key = has_key(key);
            let r = u64::from(self.gateway_id) << 32 | u64::from(claim.number);
            matrix.set(&key_bytes(key), r, &round.nonce.load(Relaxed).to_ne_bytes());
        }
        let Proofs {
            matrices,
            blocks: out,
            ..
        } = proofs;
        if let (Some(matrices), Some(out)) = (matrices.get(..count), out.get_mut(..count)) {
            blocks::<R14>(self.lanes, matrices, out);
        }
        count
    }

    /// Of several threads with one proof one wins.
    fn accept(&self, claim: &Claim, now: Moment) -> Verdict {
        let lane = claim.number as usize & 1;
        let word = self
            .regions
            .home(claim.place)
            .and_then(|(home, way)| home.proved.get(way)?.get(lane));
        let (Some(word), Some(round)) = (word, self.round(claim.number)) else {
            return Verdict::DropUnknownProver;
        };
        let elapsed_ns = now.monotonic_ns.saturating_sub(round.started_ns.load(Acquire));
        let after = proved_word(claim.number, claim.is_alternate, elapsed_ns);
        match word.compare_exchange(claim.before, after, AcqRel, Acquire) {
            Ok(_) => Verdict::ProofOk,
            Err(_) => Verdict::DropProved,
        }
    }

    /// Sets the claim aside once more, under the other key, if there is one. What has been looked at makes room.
    fn try_alternate(&self, proofs: &mut Proofs, claim: &Claim) -> bool {
        let claim = Claim {
            is_alternate: true,
            ..*claim
        };
        self.key(&claim).is_some_and(has_key) && proofs.push(claim)
    }

    /// The key that a claim is checked under.
    fn key(&self, claim: &Claim) -> Option<&KeyCells> {
        let (home, way) = self.regions.home(claim.place)?;
        let lane = self.round(claim.number)?.key_lane.load(Acquire) as usize & 1;
        if !claim.is_alternate {
            return home.key.get(lane)?.get(way);
        }
        let slot = home.slot.get(way)?.load(Acquire) as usize;
        Some(&self.regions.alternates.get(slot * 2 + lane)?.word)
    }
}
