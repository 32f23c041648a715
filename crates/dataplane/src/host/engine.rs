//! Processes one datagram: returns one verdict and writes the reply in place. `xdp/bpf/lw_lap.h` does the same on the
//! same memory.
//!
//! Everything shared is atomic. All loads of a line that another thread may be rewriting are Acquire. The commit word
//! is read a second time after these loads to detect a change (a sequence lock whose counter is the commit word). On
//! x86 an Acquire load costs no more than a plain load.

use std::sync::Arc;
use std::time::Instant;

use linewarden_protocol::classic::rng::SplitMix64;
use linewarden_protocol::frame::Meta;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message, PROOF_BYTES, message_type};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::attest::{ProofBatch, SingleMessage, Verifier};
use super::bindings::{Bindings, mac_word};
use super::classic::Classic;
use super::lap::Outcome;
use super::p4dra;
use super::slow_path::SlowPath;
use super::stats::Stats;
use crate::classic::rng_state;
use crate::config::Config;
use crate::event::EVENT_BYTES;
use crate::handling_time::SAMPLE_INTERVAL;
use crate::layout::{HOME_WAYS, Line};
use crate::p4dra::P4draRegions;
use crate::rate::RateWindow;
use crate::store::load_shedder::{LoadShedder, UnknownSender};
use crate::store::provers::ProverRegions;
use crate::store::{ActiveSettings, Geometry, Regions, prefetch, table, wire_word};

/// Bytes kept of a datagram: enough for every message that is served. A short buffer keeps a whole batch in the
/// first-level cache.
pub(super) const BUFFER_BYTES: usize = 128;
const _: () = assert!(PROOF_BYTES <= BUFFER_BYTES);

/// A LAP/1 message of 64 B as eight words, loaded natively.
pub(super) type Words = [u64; MESSAGE_BYTES / 8];

/// The time at which a batch is handled. Coarse: read once for up to 64 datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// CLOCK_MONOTONIC, or its coarse reading, ns.
    pub monotonic_ns: u64,
    /// CLOCK_BOOTTIME, ns.
    pub boot_ns: u64,
}

impl Timestamps {
    /// CLOCK_BOOTTIME, whole seconds.
    #[must_use]
    pub fn boot_s(self) -> u32 {
        u32::try_from(self.boot_ns / 1_000_000_000).unwrap_or(u32::MAX)
    }
}

impl From<Now> for Timestamps {
    fn from(now: Now) -> Self {
        Self {
            monotonic_ns: now.monotonic_ms.saturating_mul(1_000_000),
            boot_ns: now.boot_ms.saturating_mul(1_000_000),
        }
    }
}

/// The origin of a datagram, in the format of lines and sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) ingress: u32,
    pub(super) vlans: [u16; 2],
    /// UDP port, in wire order.
    pub(super) port: u16,
    pub(super) addr: [u64; 2],
}

impl Origin {
    pub(super) fn of(meta: &Meta) -> Self {
        Self {
            ingress: meta.ingress,
            vlans: meta.vlans,
            port: meta.src_port.to_be(),
            addr: linewarden_protocol::keys::halves(&meta.src_ip).map(wire_word),
        }
    }
}

/// Source of the sender's MAC address; words in the format of [`mac_word`]. Queried only for messages that passed all
/// cheaper checks.
pub(super) trait MacSource {
    /// MAC address of the sender of a BOUND RESPONSE; `None` if unknown.
    fn sender_mac(&mut self, origin: &Origin, now: Timestamps) -> Option<u64>;
    /// Queries the source again, because `stale` did not match. `None` if there is no other result.
    fn refreshed_mac(&mut self, origin: &Origin, now: Timestamps, stale: u64) -> Option<u64>;
    /// The MAC address that is stored in a session without BOUND and compared with it.
    fn unbound_mac(&mut self) -> u64;
}

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

/// State of one thread.
#[derive(Debug)]
pub struct ThreadState {
    pub(super) stats: Arc<Stats>,
    pub(super) naks: RateWindow,
    pub(super) alarms: RateWindow,
    pub(super) shedder: LoadShedder,
    pub(super) proofs: ProofBatch,
    /// Random numbers for the classic profiles.
    pub(super) rng: SplitMix64,
    /// Number of RESPONSEs received.
    pub(super) responses: u64,
}

/// The packet path that all threads of a [`super::Host`] share.
#[derive(Debug)]
pub struct Engine {
    pub(super) regions: Arc<Regions>,
    /// `None`: PROOFs are not served.
    pub(super) provers: Option<Verifier>,
    pub(super) geometry: Geometry,
    pub(super) ring: u32,
    pub(super) gateway_id: u32,
    pub(super) slow_path: SlowPath,
    pub(super) classic: Option<Classic>,
    /// `None`: `p4dra-classic` is not served.
    pub(super) p4dra: Option<p4dra::Verifier>,
    classic_seed: u64,
}

impl Engine {
    pub(super) fn new(
        config: &Config,
        regions: Arc<Regions>,
        provers: Option<Arc<ProverRegions>>,
        p4dra: Option<Arc<P4draRegions>>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            regions,
            provers: provers.map(|provers| Verifier::new(config, provers)),
            geometry: config.geometry.clone(),
            ring: config.geometry.ring,
            gateway_id: config.gateway_id.0,
            slow_path: SlowPath::new()?,
            classic: config.classic.as_ref().map(Classic::new).transpose()?,
            p4dra: config
                .p4dra
                .as_ref()
                .zip(p4dra)
                .map(|(p4dra_config, regions)| p4dra::Verifier::new(config, p4dra_config, regions)),
            classic_seed: config.classic.as_ref().map_or(0, |classic| classic.seed),
        })
    }

    /// `index` numbers the threads; the random numbers of the classic profiles depend on it.
    pub(super) fn thread_state(&self, index: usize, stats: Arc<Stats>) -> ThreadState {
        ThreadState {
            stats,
            naks: RateWindow::default(),
            alarms: RateWindow::default(),
            shedder: LoadShedder::default(),
            proofs: ProofBatch::default(),
            rng: SplitMix64::from_state(rng_state(self.classic_seed, index as u64)),
            responses: 0,
        }
    }

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

    /// Handles a datagram to the classic port and counts its verdict.
    pub fn process_classic(&self, thread: &mut ThreadState, payload: &mut [u8]) -> Verdict {
        let verdict = match &self.classic {
            Some(classic) => classic.handle(&mut thread.rng, payload),
            None => Verdict::PassForeign,
        };
        thread.stats.count(verdict);
        verdict
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

    /// The device's line and its place.
    #[inline]
    pub(super) fn find_device(&self, id: u64) -> Option<(&Line, u32)> {
        self.regions.find(&self.geometry, id)
    }

    /// Decides whether a message of a device that is not installed takes the slow path.
    #[cold]
    pub(super) fn admit_unknown(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        sender: &UnknownSender,
    ) -> Verdict {
        let (regions, geometry) = (&self.regions, &self.geometry);
        let miss_per_s = self.live().miss_per_s;
        if miss_per_s == 0 || !regions.may_be_enrolled(geometry, sender.id) {
            return Verdict::DropUnknownDevice;
        }
        let shedder = &mut thread.shedder;
        match shedder.admits(regions, geometry, sender, now.monotonic_ns, miss_per_s) {
            true => Verdict::SlowPath,
            false => Verdict::DropShed,
        }
    }

    /// Reports an event that user space must handle, and wakes user space.
    pub(super) fn report(&self, thread: &ThreadState, event: &[u64; EVENT_BYTES / 8]) {
        thread.stats.report(event);
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Some(control) = self.regions.control.first() {
            self.slow_path.wake(&control.listening);
        }
    }

    /// The active settings. The settings that apply to one message are read once.
    pub(super) fn live(&self) -> ActiveSettings {
        self.regions
            .control
            .first()
            .map(ActiveSettings::read)
            .unwrap_or_default()
    }

    pub(super) fn by_address(&self) -> Bindings<'_> {
        self.bindings(&self.regions.by_address)
    }

    pub(super) fn by_mac(&self) -> Bindings<'_> {
        self.bindings(&self.regions.by_mac)
    }

    fn bindings<'a>(&'a self, table: &'a [crate::layout::Bucket]) -> Bindings<'a> {
        Bindings {
            table,
            mask: self.geometry.bucket_mask(),
            seed: self.geometry.hash_seed,
            regions: &self.regions,
        }
    }
}

/// Kind of a payload. Valid headers are recognized by comparing words; only payloads of other kinds go through the
/// parser.
enum MessageKind {
    Request(Words),
    Response(Words),
    Proof,
    Other(Verdict),
}

impl MessageKind {
    fn of(payload: &[u8], length: usize) -> Self {
        if length == PROOF_BYTES && payload.first_chunk().is_some_and(super::attest::is_proof) {
            return Self::Proof;
        }
        let words = Words::read_from_bytes(payload)
            .ok()
            .filter(|_| length == MESSAGE_BYTES);
        if let Some(message) = words {
            let [h0, device_id, ..] = message;
            let [_, _, _, _, reserved @ ..] = message;
            if device_id != 0 && h0 == super::lap::H0_REQUEST && reserved == [0; 4] {
                return Self::Request(message);
            }
            if device_id != 0 && h0 & !super::lap::H0_BOUND_BIT == super::lap::H0_RESPONSE {
                return Self::Response(message);
            }
        }
        Self::Other(drop_reason(payload, length))
    }
}

/// The parser's reason to drop. If the datagram is longer than the buffer, the parser receives its beginning with an
/// adjusted length field, which is correct if the original length field is correct.
#[cold]
pub(super) fn drop_reason(payload: &[u8], length: usize) -> Verdict {
    let mut truncated = [0u8; BUFFER_BYTES];
    let mut message = payload;
    if let (true, Some(truncated)) = (length > payload.len(), truncated.get_mut(..payload.len())) {
        truncated.copy_from_slice(payload);
        if let Some(field @ &mut [high, low]) = truncated.get_mut(6..8) {
            let is_correct = usize::from(u16::from_be_bytes([high, low])) == length;
            let field_value = if is_correct {
                payload.len()
            } else {
                payload.len() ^ 1
            };
            field.copy_from_slice(&u16::try_from(field_value).unwrap_or_default().to_be_bytes());
        }
        message = truncated;
    }
    match wire::parse(message) {
        Err(reason) => reason,
        Ok(Message::DataUp(..)) => Verdict::DropGateNotSealed,
        Ok(_) => Verdict::DropDirection,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linewarden_protocol::ids::{DeviceId, Suite};
    use linewarden_protocol::wire::{Header, message_type};

    fn datagram(kind: u8, length: usize, length_field: u16) -> Vec<u8> {
        let header = Header::with_length(kind, Suite::SipHash128, 0, DeviceId(5), length_field);
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(length, 0);
        bytes
    }

    #[test]
    fn a_truncated_datagram_gets_the_verdict_of_the_full_datagram() {
        for kind in [
            message_type::REQUEST,
            message_type::DATA_UP,
            message_type::DATA_DOWN,
            9,
        ] {
            for length in [64, 127, 128, 129, 1400] {
                for length_field in [64, 128, 129, 1400, length as u16] {
                    let full_datagram = datagram(kind, length, length_field);
                    let truncated = &full_datagram[..length.min(BUFFER_BYTES)];
                    if kind == message_type::REQUEST && length == 64 && length_field == 64 {
                        continue;
                    }
                    assert_eq!(
                        drop_reason(truncated, length),
                        drop_reason(&full_datagram, length),
                        "{kind} {length} {length_field}"
                    );
                }
            }
        }
    }
}
