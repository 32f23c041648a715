//! Processes one datagram: returns one verdict and writes the reply in place. `xdp/bpf/lw_lap.h` does the same on the
//! same memory.

use std::time::Instant;

use linewarden_protocol::frame::Meta;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::message_type;
use zerocopy::IntoBytes as _;

use super::bindings::mac_word;
use super::engine::{Engine, ThreadState};
use super::lap::Outcome;
use super::message::{MessageKind, Words};
use super::origin::{MacSource, Origin};
use super::proof_batch::SingleMessage;
use crate::handling_time::SAMPLE_INTERVAL;
use crate::layout::HOME_WAYS;
use crate::store::{prefetch, table};
use crate::timestamps::Timestamps;

/// The MAC address is known from the frame.
struct FrameMac(u64);

impl MacSource for FrameMac {
    fn sender_mac(&mut self, _: &Origin, _: Timestamps) -> Option<u64> {
        Some(self.0)
    }
    fn refreshed_mac(&mut self, _: &Origin, _: Timestamps, _: u64) -> Option<u64> {
        None
    }
    fn unbound_mac(&mut self) -> u64 {
        self.0
    }
}

impl Engine {
    /// Handles a datagram to the LAP port whose sender's MAC address is known, and counts its verdict. If the verdict
    /// is a reply, the payload now contains it.
    pub fn process(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        meta: &Meta,
        payload: &mut [u8],
    ) -> Verdict {
        let length = payload.len();
        let mut macs = FrameMac(mac_word(meta.src_mac));
        let from = Origin::of(meta);
        thread.proofs.begin();
        let verdict = self.handle_lap(thread, now, &from, &mut macs, payload, length);
        verdict.unwrap_or_else(|| self.verify_pending(thread, now, &SingleMessage { payload, from }))
    }

    /// Handles a LAP datagram of `length` bytes, of which `payload` contains at least the first [`BUFFER_BYTES`].
    /// `None`: a PROOF, whose verdict [`Engine::verify_pending`] determines.
    #[inline]
    pub(super) fn handle_lap(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        from: &Origin,
        macs: &mut impl MacSource,
        payload: &mut [u8],
        length: usize,
    ) -> Option<Verdict> {
        let outcome = match MessageKind::of(payload, length) {
            MessageKind::Proof => match self.check_proof(thread, now, payload) {
                Ok(()) => return None,
                Err(reason) => Err(reason),
            },
            MessageKind::Request(message) => self.handle_request(thread, now, from, &message),
            MessageKind::Response(message) => self.handle_timed_response(thread, now, from, macs, &message),
            MessageKind::Other(reason) => Err(reason),
        };
        let verdict = match outcome {
            Ok((verdict, reply)) => {
                payload.copy_from_slice(reply.as_bytes());
                verdict
            }
            Err(reason) => reason,
        };
        thread.stats.count(verdict);
        Some(verdict)
    }

    /// Handles a RESPONSE and measures the time for one in [`SAMPLE_INTERVAL`].
    #[inline]
    fn handle_timed_response(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        from: &Origin,
        macs: &mut impl MacSource,
        message: &Words,
    ) -> Outcome {
        let is_timed = thread.responses.is_multiple_of(SAMPLE_INTERVAL);
        thread.responses = thread.responses.wrapping_add(1);
        let start = is_timed.then(Instant::now);
        let outcome = self.handle_response(thread, now, from, macs, message);
        if let (Some(start), Ok((Verdict::ReplyAck, _))) = (start, &outcome) {
            thread.stats.record_handling_time(start.elapsed());
        }
        outcome
    }

    /// Prefetches the home of the device that a message names, so that the memory accesses of a batch overlap.
    #[inline]
    pub(super) fn prefetch(&self, payload: &[u8]) {
        let Some([_, _, _, kind, _, _, _, _, id @ .., _, _, _, _, _, _, _, number]) =
            payload.first_chunk::<24>()
        else {
            return;
        };
        let id = u64::from_ne_bytes(*id);
        if let (Some(verifier), &message_type::PROOF) = (&self.provers, kind) {
            verifier.prefetch(id, *number);
            return;
        }
        let hash = table::hash(self.geometry.hash_seed, id, 0);
        let first = self.geometry.home(hash) as usize * HOME_WAYS;
        let lines = self
            .regions
            .lines
            .get(first..first + HOME_WAYS)
            .unwrap_or_default();
        lines.iter().for_each(prefetch);
    }
}
