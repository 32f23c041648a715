//! Any number of PROOFs at once, as they lie in memory.
//!
//! Most messages of a batch are alike: of one round, of provers that live at home, have a key and have not proven. What is alike
//! is looked up once ([`Usual`]), and such a message costs a few comparisons beside its block; whatever is not as usual goes
//! through [`Verifier::take`] as messages from a socket do, which says what it is.

use std::sync::atomic::Ordering::Acquire;

use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::PROOF_BYTES;
use zerocopy::FromBytes as _;

use super::attest::{
    Block, Claim, Message, Messages, NONE_GIVEN, PROOFS, Proofs, Seen, Verifier, block_of, is_proof, lane_of,
    proved_cell,
};
use super::engine::{Engine, Moment, Origin, ThreadState, why_neither};
use crate::layout::ProverLine;
use crate::store::prefetch;
use crate::store::provers::{is_proved, key_words};

/// Proofs that lie in memory, of no known sender.
struct Bulk<'a>(&'a [[u8; PROOF_BYTES]]);

impl Messages for Bulk<'_> {
    #[inline]
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
        let Some(verifier) = &self.provers else {
            return thread
                .stats
                .count_many(Verdict::DropUnsupportedType, proofs.len() as u64);
        };
        let mut places = [0; PROOFS];
        let (first, _) = proofs.split_at(proofs.len().min(PROOFS));
        let usual = Usual::of(verifier, &mut thread.proofs, now, first);
        for (place, message) in places.iter_mut().zip(first) {
            *place = verifier.ask_for(usual.as_ref(), message);
        }
        let mut given = NONE_GIVEN;
        for (number, batch) in proofs.chunks(PROOFS).enumerate() {
            let ahead = proofs.get((number + 1) * PROOFS..).unwrap_or_default();
            verifier.take_batch(thread, now, batch, ahead, &mut places, &mut given);
            self.settle_given(thread, now, &Bulk(batch), &given);
        }
    }
}

/// What most messages of a batch have in common with the first of them that is of an open round.
struct Usual<'a> {
    round: Seen,
    /// Of the round.
    lane: usize,
    /// Of its period.
    lines: &'a [ProverLine],
}

impl<'a> Usual<'a> {
    /// A batch begins. `None`: none of its messages is of a round that is open.
    fn of(
        verifier: &'a Verifier,
        proofs: &mut Proofs,
        now: Moment,
        batch: &[[u8; PROOF_BYTES]],
    ) -> Option<Self> {
        proofs.begin();
        let (round, lane) = batch.iter().find_map(|message| {
            let (message, _) = Message::read_from_prefix(message).ok()?;
            let lane = lane_of(&message);
            Some((*proofs.round(verifier, &message, lane).ok()?, lane))
        })?;
        let (r, nonce) = round.asked();
        proofs.inputs.share(r, &nonce);
        (now.monotonic_ns <= round.until_ns).then(|| Self {
            round,
            lane,
            lines: verifier.regions.lines_of(&verifier.geometry, round.key_lane),
        })
    }

    /// The prover's line and its place, if it is at home.
    #[inline]
    fn find(&self, id: u64, likely: u32) -> Option<(&ProverLine, u32)> {
        let is_here = |place: u32| {
            let line = self.lines.get(place as usize)?;
            (line.device_id.load(Acquire) == id).then_some((line, place))
        };
        is_here(likely).or_else(|| is_here(likely ^ 1))
    }

    /// Sets a message aside; `false`: it is not as usual, and nothing has happened.
    #[inline]
    fn take(&self, proofs: &mut Proofs, at: usize, message: &[u8; PROOF_BYTES], likely: u32) -> bool {
        let Ok((words, _)) = Message::read_from_prefix(message) else {
            return false;
        };
        if !message.first_chunk().is_some_and(is_proof) || self.round.wire != [words.r, words.nonce] {
            return false;
        }
        let Some((line, place)) = self.find(words.device_id, likely) else {
            return false;
        };
        let Some(word) = proved_cell(line, self.lane) else {
            return false;
        };
        let before = word.load(Acquire);
        let Some(key) = key_words(&line.key).filter(|_| !is_proved(before, self.round.mark)) else {
            return false;
        };
        let claim = Claim {
            before,
            place,
            at: at as u16,
            lane: self.lane as u8,
            is_alternate: false,
        };
        proofs.push_shared(claim, &key)
    }
}

impl Verifier {
    /// All checks of a batch but keys and blocks. Messages of the next one are asked for, and their places put where those of this
    /// one were; `given` becomes the blocks of what was set aside.
    #[inline]
    fn take_batch<'m>(
        &self,
        thread: &mut ThreadState,
        now: Moment,
        batch: &'m [[u8; PROOF_BYTES]],
        ahead: &[[u8; PROOF_BYTES]],
        places: &mut [u32; PROOFS],
        given: &mut [&'m Block; PROOFS],
    ) {
        let usual = Usual::of(self, &mut thread.proofs, now, batch);
        let mut ahead = ahead.iter();
        for ((at, message), place) in batch.iter().enumerate().zip(places) {
            let here = *place;
            // One by one: of many at once a CPU drops what it has no place for.
            if let Some(next) = ahead.next() {
                *place = self.ask_for(usual.as_ref(), next);
            }
            if let (Some(place), Some(block)) = (given.get_mut(thread.proofs.count), block_of(message)) {
                *place = block;
            }
            let is_taken = usual
                .as_ref()
                .is_some_and(|usual| usual.take(&mut thread.proofs, at, message, here));
            if !is_taken {
                self.take_other(thread, now, at, message, here);
            }
        }
    }

    /// Has what a PROOF will be compared with on its way from memory. Returns its place.
    #[inline]
    fn ask_for(&self, usual: Option<&Usual<'_>>, message: &[u8; PROOF_BYTES]) -> u32 {
        let Ok((words, _)) = Message::read_from_prefix(message) else {
            return 0;
        };
        let place = self.geometry.likely_place(words.device_id);
        let line = usual.and_then(|usual| usual.lines.get(place as usize));
        line.into_iter().for_each(prefetch);
        place
    }

    /// What is not as usual.
    #[cold]
    #[inline(never)]
    fn take_other(
        &self,
        thread: &mut ThreadState,
        now: Moment,
        at: usize,
        message: &[u8; PROOF_BYTES],
        likely: u32,
    ) {
        let is_whole = message.first_chunk().is_some_and(is_proof);
        let taken = match is_whole {
            true => self.take(&mut thread.proofs, now, message, likely),
            false => Err(why_neither(message, message.len())),
        };
        match taken {
            Ok(()) => thread.proofs.came_as(at),
            Err(reason) => thread.stats.count(reason),
        }
    }
}
