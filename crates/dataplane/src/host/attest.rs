//! PROOFs (LAP/1 3.2.1), checked many at a time: what `xdp/bpf/lw_attest.h` does one by one.
//!
//! A PROOF goes through all cheap checks when it is seen and is then set aside; at the end of a batch the blocks of all that
//! were set aside are computed side by side, by as many lanes as the CPU has ([`matching_blocks`]). So of a prover's
//! PROOFs in one batch all are hashed: a wrong one counts as wrong although a right one is beside it.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use linewarden_forro::{Backend, Inputs, R14, matching_blocks};
use linewarden_protocol::ids::RoundNumber;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{HEADER_BYTES, MAGIC, PROOF_BYTES, VERSION, message_type};
use zerocopy::FromBytes as _;

use super::engine::{Engine, Moment, Origin, ThreadState};
use crate::config::Config;
use crate::event::EVENT_BYTES;
use crate::layout::{ProverLine, Round};
use crate::store::provers::{ProverGeometry, ProverRegions, is_proved, key_words, mark_of, proved_word};

/// Proofs that are set aside at most: a batch.
pub(super) const PROOFS: usize = Inputs::ROOM;

/// Of a PROOF: the block.
pub(super) type Block = [u8; 64];
/// Of as many as a batch has.
pub(super) const NONE_GIVEN: [&Block; PROOFS] = [&[0; 64]; PROOFS];

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
pub(super) struct Message {
    _h0: u64,
    pub(super) device_id: u64,
    pub(super) r: u64,
    pub(super) nonce: u64,
}

/// What the checks of PROOFs need.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) regions: Arc<ProverRegions>,
    pub(super) geometry: ProverGeometry,
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

    /// Has what a PROOF will be compared with on its way from memory, if it is of the round that `number` may be.
    #[inline]
    pub(super) fn prefetch(&self, id: u64, number: u8) {
        let lane = self
            .round(number.into())
            .map_or(0, |round| round.key_lane.load(Relaxed));
        let place = self.geometry.likely_place(id);
        self.regions.prefetch(&self.geometry, place, lane);
    }

    fn round(&self, number: u32) -> Option<&Round> {
        let lanes = &self.regions.rounds.first()?.lane;
        lanes.get(number as usize & 1)
    }

    /// The round that a PROOF names, if it is open.
    fn open_round(&self, message: &Message) -> Result<Seen, Verdict> {
        let r = u64::from_be_bytes(message.r.to_ne_bytes());
        if (r >> 32) as u32 != self.gateway_id {
            return Err(Verdict::DropGateway);
        }
        let number = r as u32;
        let round = self.round(number).ok_or(Verdict::DropRound)?;
        if !round.is(message.r, message.nonce) {
            return Err(Verdict::DropRound);
        }
        let seen = Seen {
            wire: [message.r, message.nonce],
            key_lane: round.key_lane.load(Acquire) & 1,
            // Of the number that was asked for.
            mark: mark_of(RoundNumber(number)),
            elapsed_shift: round.elapsed_shift.load(Acquire) & 63,
            started_ns: round.started_ns.load(Acquire),
            until_ns: round.until_ns.load(Acquire),
        };
        // Nor has another one taken its place while this was read.
        let is_still = round.is(message.r, message.nonce);
        is_still.then_some(seen).ok_or(Verdict::DropRound)
    }
}

/// A round as a batch has found it; all zero: none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// r and nonce as loaded from a message.
    pub(super) wire: [u64; 2],
    pub(super) key_lane: u32,
    pub(super) mark: u32,
    elapsed_shift: u32,
    started_ns: u64,
    pub(super) until_ns: u64,
}

impl Seen {
    /// Counter and nonce of its proofs.
    pub(super) fn asked(&self) -> (u64, [u8; 8]) {
        let [r, nonce] = self.wire;
        (u64::from_be_bytes(r.to_ne_bytes()), nonce.to_ne_bytes())
    }
}

/// The messages of a batch, of up to [`PROOFS`].
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
pub(super) struct Claim {
    /// The prover's word as it was.
    pub(super) before: u32,
    /// Of the prover.
    pub(super) place: u32,
    /// Its number in the batch.
    pub(super) at: u16,
    /// Of its round.
    pub(super) lane: u8,
    pub(super) is_alternate: bool,
}

/// PROOFs that were set aside, and what their blocks are computed from.
pub(super) struct Proofs {
    claims: [Claim; PROOFS],
    pub(super) inputs: Box<Inputs>,
    pub(super) count: usize,
    /// The rounds of those, by lane.
    seen: [Seen; 2],
}

impl Default for Proofs {
    fn default() -> Self {
        Self {
            claims: [Claim::default(); PROOFS],
            inputs: Box::default(),
            count: 0,
            seen: [Seen::default(); 2],
        }
    }
}

impl std::fmt::Debug for Proofs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proofs({})", self.count)
    }
}

impl Proofs {
    /// A batch begins: rounds are looked up anew.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.seen = [Seen::default(); 2];
    }

    /// The round of a message, as the batch has found it first: whoever is asked in one that opens meanwhile is asked again.
    #[inline]
    pub(super) fn round(
        &mut self,
        verifier: &Verifier,
        message: &Message,
        lane: usize,
    ) -> Result<&Seen, Verdict> {
        let seen = self.seen.get_mut(lane).ok_or(Verdict::DropRound)?;
        let is_none = seen.wire == [0; 2];
        if is_none || seen.wire != [message.r, message.nonce] {
            // Which of the checks it is that fails.
            let found = verifier.open_round(message)?;
            if !is_none {
                return Err(Verdict::DropRound);
            }
            *seen = found;
        }
        Ok(seen)
    }

    /// Sets a claim aside, to be checked under that key; `false`: there is no room.
    #[inline]
    fn push(&mut self, claim: Claim, key: &[u64; 4]) -> bool {
        let Some(round) = self.seen.get(usize::from(claim.lane)) else {
            return false;
        };
        let (r, nonce) = round.asked();
        self.inputs.ask(self.count, r, &nonce);
        self.push_shared(claim, key)
    }

    /// Likewise, a claim of the round that the inputs share.
    #[inline]
    pub(super) fn push_shared(&mut self, claim: Claim, key: &[u64; 4]) -> bool {
        let Some(place) = self.claims.get_mut(self.count) else {
            return false;
        };
        *place = claim;
        self.inputs.set_key(self.count, key);
        self.count += 1;
        true
    }

    /// The blocks that the messages of the first claims end with.
    fn given<'m>(&self, count: usize, messages: &'m impl Messages) -> [&'m Block; PROOFS] {
        let mut given = NONE_GIVEN;
        for (given, claim) in given.iter_mut().zip(self.claims.iter().take(count)) {
            if let Some(block) = messages.payload(claim.at.into()).and_then(block_of) {
                *given = block;
            }
        }
        given
    }

    /// The last one that was set aside is that message of the batch.
    pub(super) fn came_as(&mut self, at: usize) {
        let last = self.count.checked_sub(1);
        if let Some(claim) = last.and_then(|last| self.claims.get_mut(last)) {
            claim.at = at as u16;
        }
    }
}

/// What a PROOF ends with.
#[inline]
pub(super) fn block_of(payload: &[u8]) -> Option<&Block> {
    payload
        .get(PROOF_BYTES - size_of::<Block>()..PROOF_BYTES)?
        .as_array()
}

/// Lane of the round that a message names.
#[inline]
pub(super) fn lane_of(message: &Message) -> usize {
    let [.., last] = message.r.to_ne_bytes();
    usize::from(last & 1)
}

/// Whether a prover is ok in the rounds of a lane.
#[inline]
pub(super) fn proved_cell(line: &ProverLine, lane: usize) -> Option<&AtomicU32> {
    line.proved.get(lane)
}

impl Engine {
    /// All checks of a PROOF but key and block; what passes is set aside.
    pub(super) fn take_proof(
        &self,
        thread: &mut ThreadState,
        now: Moment,
        payload: &[u8],
    ) -> Result<(), Verdict> {
        let verifier = self.provers.as_ref().ok_or(Verdict::DropUnsupportedType)?;
        let message = payload.first_chunk().ok_or(Verdict::DropLength)?;
        let (words, _) = Message::read_from_prefix(message).map_err(|_| Verdict::DropLength)?;
        let place = verifier.geometry.likely_place(words.device_id);
        verifier.take(&mut thread.proofs, now, message, place)
    }

    /// Judges what was set aside, and counts. Returns the verdict on the last.
    pub(super) fn settle(&self, thread: &mut ThreadState, now: Moment, messages: &impl Messages) -> Verdict {
        let given = thread.proofs.given(thread.proofs.count, messages);
        self.settle_given(thread, now, messages, &given)
    }

    /// Likewise, with the blocks of what was set aside at hand.
    #[inline]
    pub(super) fn settle_given<'m>(
        &self,
        thread: &mut ThreadState,
        now: Moment,
        messages: &'m impl Messages,
        given: &[&'m Block; PROOFS],
    ) -> Verdict {
        let mut last = Verdict::DropProof;
        let Some(verifier) = &self.provers else {
            return last;
        };
        // Of whom the current configuration does not explain the proof, the alternate one may.
        let mut again;
        let mut given = given;
        while thread.proofs.count > 0 {
            let count = std::mem::take(&mut thread.proofs.count);
            let of_claims = given.get(..count).unwrap_or_default();
            let right = matching_blocks::<R14>(verifier.lanes, &thread.proofs.inputs, of_claims);
            let outcomes = verifier.outcomes(&thread.proofs, now);
            let mut proven = 0;
            for index in 0..count {
                let Some(claim) = thread.proofs.claims.get(index).copied() else {
                    continue;
                };
                if right >> index & 1 == 1 {
                    let outcome = outcomes.get(usize::from(claim.lane));
                    last = outcome.map_or(Verdict::DropRound, |outcome| outcome.accept(&claim));
                } else if !claim.is_alternate && verifier.try_alternate(&mut thread.proofs, &claim) {
                    continue;
                } else {
                    last = Verdict::DropProof;
                    self.report_wrong_proof(thread, now, &claim, messages);
                }
                match last {
                    Verdict::ProofOk => proven += 1,
                    other => thread.stats.count(other),
                }
            }
            thread.stats.count_many(Verdict::ProofOk, proven);
            if thread.proofs.count > 0 {
                again = thread.proofs.given(thread.proofs.count, messages);
                given = &again;
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
        let (Some(payload), Some(from)) = (
            messages.payload(claim.at.into()),
            messages.origin(claim.at.into()),
        ) else {
            return;
        };
        let word = |at: usize| payload.get(at..at + 8)?.try_into().ok();
        let (id, r) = (word(8), word(16).map_or(0, u64::from_be_bytes));
        let words: [u64; EVENT_BYTES / 8] = [
            u64::from(EVENT_WRONG_PROOF),
            id.map_or(0, u64::from_ne_bytes),
            0,
            from.addr[0],
            from.addr[1],
            u64::from(from.ingress) << 32 | r & 0xffff_ffff,
        ];
        thread.stats.report(&words);
    }
}

/// What becomes of who has proven in a round, now.
struct Outcome<'a> {
    /// Of its period.
    lines: &'a [ProverLine],
    /// The word of who has proven the current configuration, and of who has the alternate one.
    after: [u32; 2],
}

impl Outcome<'_> {
    /// Of several threads with one proof one wins.
    #[inline]
    fn accept(&self, claim: &Claim) -> Verdict {
        let line = self.lines.get(claim.place as usize);
        let Some(word) = line.and_then(|line| proved_cell(line, claim.lane.into())) else {
            return Verdict::DropUnknownProver;
        };
        let [current, alternate] = self.after;
        let after = if claim.is_alternate { alternate } else { current };
        match word.compare_exchange(claim.before, after, AcqRel, Acquire) {
            Ok(_) => Verdict::ProofOk,
            Err(_) => Verdict::DropProved,
        }
    }
}

impl Verifier {
    /// All checks of a PROOF of the prover that is likely at `place`, but key and block; what passes is set aside.
    #[inline]
    pub(super) fn take(
        &self,
        proofs: &mut Proofs,
        now: Moment,
        message: &[u8; PROOF_BYTES],
        place: u32,
    ) -> Result<(), Verdict> {
        let (message, _) = Message::read_from_prefix(message).map_err(|_| Verdict::DropLength)?;
        let lane = lane_of(&message);
        let round = proofs.round(self, &message, lane)?;
        if now.monotonic_ns > round.until_ns {
            return Err(Verdict::DropLate);
        }
        let (key_lane, mark) = (round.key_lane, round.mark);
        let found = self
            .regions
            .find(&self.geometry, message.device_id, place, key_lane);
        let (line, place) = found.ok_or(Verdict::DropUnknownProver)?;
        let word = proved_cell(line, lane).ok_or(Verdict::DropUnknownProver)?;
        let before = word.load(Acquire);
        // Or in a later round of this lane, which has opened since the round was looked at.
        if is_proved(before, mark) {
            return Err(Verdict::DropProved);
        }
        let key = key_words(&line.key).ok_or(Verdict::DropNoKey)?;
        let claim = Claim {
            before,
            place,
            at: 0,
            lane: lane as u8,
            is_alternate: false,
        };
        // A batch has no more than there is room for.
        let is_aside = proofs.push(claim, &key);
        is_aside.then_some(()).ok_or(Verdict::DropShed)
    }

    /// What becomes of who has proven, by the lane of the round.
    fn outcomes(&self, proofs: &Proofs, now: Moment) -> [Outcome<'_>; 2] {
        proofs.seen.each_ref().map(|round| {
            let elapsed = now.monotonic_ns.saturating_sub(round.started_ns) >> round.elapsed_shift;
            Outcome {
                lines: self.regions.lines_of(&self.geometry, round.key_lane),
                after: [false, true].map(|is_alternate| proved_word(round.mark, is_alternate, elapsed)),
            }
        })
    }

    /// Sets the claim aside once more, under the other key, if there is one. What has been looked at makes room.
    #[cold]
    fn try_alternate(&self, proofs: &mut Proofs, claim: &Claim) -> bool {
        let claim = Claim {
            is_alternate: true,
            ..*claim
        };
        let key_lane = proofs
            .seen
            .get(usize::from(claim.lane))
            .map_or(0, |round| round.key_lane);
        let line = self.regions.line(&self.geometry, claim.place, key_lane);
        let slot = line.map_or(usize::MAX, |line| line.slot.load(Acquire) as usize);
        let other = self
            .regions
            .alternates
            .get(slot.saturating_mul(2) | key_lane as usize);
        let key = other.and_then(|other| key_words(&other.word));
        key.is_some_and(|key| proofs.push(claim, &key))
    }
}
