//! One datagram in, one verdict out, the reply in place: what `xdp/bpf/lw_lap.h` does, over the same memory.
//!
//! Everything shared is an atomic. All loads of a line that another thread may be rewriting are Acquire, so that the
//! commit word can be read once more after them and tell whether they belong together (a sequence lock whose counter
//! is the commit word); on x86 that costs nothing.

use std::sync::Arc;
use std::time::Instant;

use linewarden_protocol::classic::rng::SplitMix64;
use linewarden_protocol::frame::Meta;
use linewarden_protocol::time::Now;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message, PROOF_BYTES, message_type};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::attest::{Proofs, Single, Verifier};
use super::bindings::{Bindings, mac_word};
use super::classic::Classic;
use super::lap::Outcome;
use super::p4dra;
use super::slow::SlowPath;
use super::stats::Stats;
use crate::classic::rng_state;
use crate::config::Config;
use crate::event::EVENT_BYTES;
use crate::handling::TIMED_OF;
use crate::layout::{HOME_WAYS, Line};
use crate::p4dra::P4draRegions;
use crate::rate::RateWindow;
use crate::store::provers::ProverRegions;
use crate::store::shed::{Doorman, Stranger};
use crate::store::{Geometry, InForce, Regions, prefetch, table, wire_word};

/// Bytes kept of a datagram: all that any message needs that is served. A short buffer keeps a whole batch in the
/// first-level cache.
pub(super) const BUFFER_BYTES: usize = 128;
const _: () = assert!(PROOF_BYTES <= BUFFER_BYTES);

/// A LAP/1 message of 64 B as eight words, as loaded.
pub(super) type Words = [u64; MESSAGE_BYTES / 8];

/// The moment at which a batch is handled. Coarse: read once for up to 64 datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// CLOCK_MONOTONIC, or its coarse reading, ns.
    pub monotonic_ns: u64,
    /// CLOCK_BOOTTIME, ns.
    pub boot_ns: u64,
}

impl Moment {
    /// CLOCK_BOOTTIME, whole seconds.
    #[must_use]
    pub fn boot_s(self) -> u32 {
        u32::try_from(self.boot_ns / 1_000_000_000).unwrap_or(u32::MAX)
    }
}

impl From<Now> for Moment {
    fn from(now: Now) -> Self {
        Self {
            monotonic_ns: now.monotonic_ms.saturating_mul(1_000_000),
            boot_ns: now.boot_ms.saturating_mul(1_000_000),
        }
    }
}

/// Where a datagram came from, in the words that lines and sessions hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) ingress: u32,
    pub(super) vlans: [u16; 2],
    /// As on the wire.
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

/// Where the sender's MAC address comes from; words as [`mac_word`] makes them. Asked only for messages that passed
/// all cheaper checks.
pub(super) trait MacSource {
    /// Of the sender of a BOUND RESPONSE; `None` when it is not known.
    fn bound(&mut self, origin: &Origin, now: Moment) -> Option<u64>;
    /// Looks again, because `stale` did not fit; `None` when that gives nothing else.
    fn refreshed(&mut self, origin: &Origin, now: Moment, stale: u64) -> Option<u64>;
    /// What a session without BOUND is stored and compared with.
    fn unbound(&mut self) -> u64;
}

/// The MAC address is known from the frame.
struct FromFrame(u64);

impl MacSource for FromFrame {
    fn bound(&mut self, _: &Origin, _: Moment) -> Option<u64> {
        Some(self.0)
    }
    fn refreshed(&mut self, _: &Origin, _: Moment, _: u64) -> Option<u64> {
        None
    }
    fn unbound(&mut self) -> u64 {
        self.0
    }
}

/// What one thread keeps for itself.
#[derive(Debug)]
pub struct ThreadState {
    pub(super) stats: Arc<Stats>,
    pub(super) naks: RateWindow,
    pub(super) alarms: RateWindow,
    pub(super) door: Doorman,
    pub(super) proofs: Proofs,
    /// For the classic profiles.
    pub(super) rng: SplitMix64,
    /// So many RESPONSEs came.
    pub(super) responses: u64,
}

/// The verifier that all threads of a [`super::Host`] run.
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
                .map(|(served, regions)| p4dra::Verifier::new(config, served, regions)),
            classic_seed: config.classic.as_ref().map_or(0, |classic| classic.seed),
        })
    }

    /// `index` numbers the threads; the random numbers of the classic profiles depend on it.
    pub(super) fn thread_state(&self, index: usize, stats: Arc<Stats>) -> ThreadState {
        ThreadState {
            stats,
            naks: RateWindow::default(),
            alarms: RateWindow::default(),
            door: Doorman::default(),
            proofs: Proofs::default(),
            rng: SplitMix64::from_state(rng_state(self.classic_seed, index as u64)),
            responses: 0,
        }
    }

    /// Handles a datagram to the LAP port, whose sender's MAC address is known, and counts its verdict. When that is
    /// a reply the payload has become it.
    pub fn process(&self, thread: &mut ThreadState, now: Moment, meta: &Meta, payload: &mut [u8]) -> Verdict {
        let length = payload.len();
        let mut macs = FromFrame(mac_word(meta.src_mac));
        let from = Origin::of(meta);
        thread.proofs.begin();
        let verdict = self.lap(thread, now, &from, &mut macs, payload, length);
        verdict.unwrap_or_else(|| self.settle(thread, now, &Single { payload, from }))
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

    /// Handles a LAP datagram of `length` bytes, of which `payload` holds at least the first [`BUFFER_BYTES`]. `None`: a PROOF,
    /// whose verdict [`Engine::settle`] gives.
    #[inline]
    pub(super) fn lap(
        &self,
        thread: &mut ThreadState,
        now: Moment,
        from: &Origin,
        macs: &mut impl MacSource,
        payload: &mut [u8],
        length: usize,
    ) -> Option<Verdict> {
        let outcome = match Kind::of(payload, length) {
            Kind::Proof => match self.take_proof(thread, now, payload) {
                Ok(()) => return None,
                Err(reason) => Err(reason),
            },
            Kind::Request(message) => self.request(thread, now, from, &message),
            Kind::Response(message) => self.timed_response(thread, now, from, macs, &message),
            Kind::Neither(reason) => Err(reason),
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

    /// Judges a RESPONSE; of one in [`TIMED_OF`] it is counted how long that took.
    #[inline]
    fn timed_response(
        &self,
        thread: &mut ThreadState,
        now: Moment,
        from: &Origin,
        macs: &mut impl MacSource,
        message: &Words,
    ) -> Outcome {
        let is_timed = thread.responses.is_multiple_of(TIMED_OF);
        thread.responses = thread.responses.wrapping_add(1);
        let began = is_timed.then(Instant::now);
        let outcome = self.response(thread, now, from, macs, message);
        if let (Some(began), Ok((Verdict::ReplyAck, _))) = (began, &outcome) {
            thread.stats.handled(began.elapsed());
        }
        outcome
    }

    /// Has the home of the device that a message names on its way from memory: the ways of a whole batch overlap.
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

    /// Of a message whose device is not here: whether it takes the slow path.
    #[cold]
    pub(super) fn unknown(&self, thread: &mut ThreadState, now: Moment, stranger: &Stranger) -> Verdict {
        let (regions, geometry) = (&self.regions, &self.geometry);
        let miss_per_s = self.live().miss_per_s;
        if miss_per_s == 0 || !regions.may_be_enrolled(geometry, stranger.id) {
            return Verdict::DropUnknownDevice;
        }
        let door = &mut thread.door;
        match door.admits(regions, geometry, stranger, now.monotonic_ns, miss_per_s) {
            true => Verdict::SlowPath,
            false => Verdict::DropShed,
        }
    }

    /// Reports what user space must act on, and wakes it.
    pub(super) fn report(&self, thread: &ThreadState, event: &[u64; EVENT_BYTES / 8]) {
        thread.stats.report(event);
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Some(control) = self.regions.control.first() {
            self.slow_path.ring(&control.listening);
        }
    }

    /// The settings in force. What one message is judged by is read once.
    pub(super) fn live(&self) -> InForce {
        self.regions
            .control
            .first()
            .map(InForce::read)
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

/// What a payload is, by its first word; only what is neither goes through the parser.
enum Kind {
    Request(Words),
    Response(Words),
    Proof,
    Neither(Verdict),
}

impl Kind {
    fn of(payload: &[u8], length: usize) -> Self {
        if length == PROOF_BYTES && payload.first_chunk().is_some_and(super::attest::is_proof) {
            return Self::Proof;
        }
        let whole = Words::read_from_bytes(payload)
            .ok()
            .filter(|_| length == MESSAGE_BYTES);
        if let Some(message) = whole {
            let [h0, device_id, ..] = message;
            let [_, _, _, _, reserved @ ..] = message;
            if device_id != 0 && h0 == super::lap::H0_REQUEST && reserved == [0; 4] {
                return Self::Request(message);
            }
            if device_id != 0 && h0 & !super::lap::H0_BOUND_BIT == super::lap::H0_RESPONSE {
                return Self::Response(message);
            }
        }
        Self::Neither(why_neither(payload, length))
    }
}

/// The parser's reason to drop. Of a datagram longer than the buffer only the beginning is there: the parser then
/// gets that with a length field which is as right or wrong as the real one.
#[cold]
pub(super) fn why_neither(payload: &[u8], length: usize) -> Verdict {
    let mut cut = [0u8; BUFFER_BYTES];
    let mut message = payload;
    if let (true, Some(cut)) = (length > payload.len(), cut.get_mut(..payload.len())) {
        cut.copy_from_slice(payload);
        if let Some(field @ &mut [high, low]) = cut.get_mut(6..8) {
            let is_right = usize::from(u16::from_be_bytes([high, low])) == length;
            let wanted = if is_right {
                payload.len()
            } else {
                payload.len() ^ 1
            };
            field.copy_from_slice(&u16::try_from(wanted).unwrap_or_default().to_be_bytes());
        }
        message = cut;
    }
    match wire::parse(message) {
        Err(reason) => reason,
        Ok(Message::DataUp(..)) => Verdict::DropNotSealed,
        Ok(_) => Verdict::DropDirection,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linewarden_protocol::ids::{DeviceId, Suite};
    use linewarden_protocol::wire::{Header, message_type};

    fn datagram(kind: u8, length: usize, claimed: u16) -> Vec<u8> {
        let header = Header::with_length(kind, Suite::SipHash128, 0, DeviceId(5), claimed);
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(length, 0);
        bytes
    }

    #[test]
    fn a_datagram_that_is_cut_off_is_judged_as_the_whole_would_be() {
        for kind in [
            message_type::REQUEST,
            message_type::DATA_UP,
            message_type::DATA_DOWN,
            9,
        ] {
            for length in [64, 127, 128, 129, 1400] {
                for claimed in [64, 128, 129, 1400, length as u16] {
                    let whole = datagram(kind, length, claimed);
                    let cut = &whole[..length.min(BUFFER_BYTES)];
                    if kind == message_type::REQUEST && length == 64 && claimed == 64 {
                        continue;
                    }
                    assert_eq!(
                        why_neither(cut, length),
                        why_neither(&whole, length),
                        "{kind} {length} {claimed}"
                    );
                }
            }
        }
    }
}
