//! PROOFs (LAP/1 3.2.1), verified in batches. `xdp/bpf/lw_attest.h` verifies at most two PROOFs at a time.
//!
//! A PROOF passes the cheap checks when it arrives and is then queued. At the end of a batch the blocks of all queued
//! PROOFs are computed in parallel, in as many lanes as the CPU has ([`matching_blocks`]). All PROOFs of one prover
//! in a batch are hashed, so an invalid PROOF is counted as wrong even if a valid PROOF of this prover precedes it.

use linewarden_forro::{R14, matching_blocks};
use linewarden_protocol::verdict::Verdict;
use zerocopy::FromBytes as _;

use super::engine::{Engine, ThreadState};
use super::proof_batch::{BATCH_PROOFS, Block, Messages, PendingProof, ProofHeader};
use crate::event::EVENT_BYTES;
use crate::timestamps::Timestamps;

/// The event kind LW_EVENT_WRONG_PROOF in `xdp/bpf/lw_layout.h`.
const EVENT_WRONG_PROOF: u32 = 5;

impl Engine {
    /// All checks of a PROOF except key and block. A PROOF that passes is queued.
    pub(super) fn check_proof(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        payload: &[u8],
    ) -> Result<(), Verdict> {
        let verifier = self.provers.as_ref().ok_or(Verdict::DropUnsupportedType)?;
        let message = payload.first_chunk().ok_or(Verdict::DropLength)?;
        let (words, _) = ProofHeader::read_from_prefix(message).map_err(|_| Verdict::DropLength)?;
        let place = verifier.geometry.likely_place(words.device_id);
        verifier.check(&mut thread.proofs, now, message, place)
    }

    /// Verifies the queued PROOFs and counts the verdicts. Returns the last verdict.
    pub(super) fn verify_pending(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        messages: &impl Messages,
    ) -> Verdict {
        let expected = thread.proofs.blocks(thread.proofs.count, messages);
        self.verify_pending_blocks(thread, now, messages, &expected)
    }

    /// As [`Self::verify_pending`], with the blocks of the queued PROOFs.
    #[inline]
    pub(super) fn verify_pending_blocks<'m>(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        messages: &'m impl Messages,
        expected: &[&'m Block; BATCH_PROOFS],
    ) -> Verdict {
        let mut last = Verdict::DropProof;
        let Some(verifier) = &self.provers else {
            return last;
        };
        // A proof that does not match the current configuration is checked with the alternate one.
        let mut alternate_blocks;
        let mut expected = expected;
        while thread.proofs.count > 0 {
            let count = std::mem::take(&mut thread.proofs.count);
            let pending_blocks = expected.get(..count).unwrap_or_default();
            let match_bits = matching_blocks::<R14>(verifier.backend, &thread.proofs.inputs, pending_blocks);
            let verdict_words = verifier.verdict_words(&thread.proofs, now);
            let mut proven_count = 0;
            for index in 0..count {
                let Some(pending) = thread.proofs.pending.get(index).copied() else {
                    continue;
                };
                if match_bits >> index & 1 == 1 {
                    let words = verdict_words.get(usize::from(pending.lane));
                    last = words.map_or(Verdict::DropRound, |words| words.accept(&pending));
                } else if !pending.is_alternate && verifier.try_alternate(&mut thread.proofs, &pending) {
                    continue;
                } else {
                    last = Verdict::DropProof;
                    self.report_wrong_proof(thread, now, &pending, messages);
                }
                match last {
                    Verdict::ProofOk => proven_count += 1,
                    verdict => thread.stats.count(verdict),
                }
            }
            thread.stats.count_many(Verdict::ProofOk, proven_count);
            if thread.proofs.count > 0 {
                alternate_blocks = thread.proofs.blocks(thread.proofs.count, messages);
                expected = &alternate_blocks;
            }
        }
        last
    }

    #[cold]
    fn report_wrong_proof(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        pending: &PendingProof,
        messages: &impl Messages,
    ) {
        if !thread.alarms.allows(now.monotonic_ns, self.live().alarm_per_s) {
            return;
        }
        let (Some(payload), Some(from)) = (
            messages.payload(pending.index.into()),
            messages.origin(pending.index.into()),
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
