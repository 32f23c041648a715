//! The checks of `classic-iot` and `classic-uav` on datagrams: the mirror of `bpf/lw_classic.h`.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use linewarden_protocol::classic::message_type;
use linewarden_protocol::classic::rng::SplitMix64;
use linewarden_protocol::verdict::Verdict;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::{ClassicCrp, ClassicState};
use super::{Classic, ClassicProfile, crc_tables, store_crps};
use crate::error::DataPlaneError;
use crate::store::Region;

/// Flag of an expected hash, so that hash 0 differs from no hash.
const PENDING: u64 = 1 << 32;

/// A message whose response is `WORDS` × 8 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Message<const WORDS: usize> {
    kind: u8,
    challenge1: [u8; 4],
    challenge2: [u8; 4],
    rn: [[u8; 8]; WORDS],
    hash: U32,
    identifier: U32,
    process_time_ns: U64,
}

/// CRPs, expected hashes, and the tables of the hash. Threads may share the verifier.
#[derive(Debug)]
pub struct ClassicVerifier {
    is_uav: bool,
    /// Size of a response in words of 8 bytes.
    words: usize,
    identifiers: u32,
    /// CRPs per identifier.
    rows: u32,
    crps: Region<ClassicCrp>,
    states: Region<ClassicState>,
    crc: Box<[[u32; 256]; 16]>,
}

impl ClassicVerifier {
    /// Allocates memory for the CRPs and expected hashes.
    ///
    /// # Errors
    /// The settings are invalid, or no memory is available.
    pub fn new(classic: &Classic) -> Result<Self, DataPlaneError> {
        classic.check()?;
        let memory_error = |error| DataPlaneError::kernel("allocating memory for the CRPs", error);
        let (rows, identifiers) = (classic.rows(), classic.crps.len());
        let crps = Region::anonymous(rows * identifiers).map_err(memory_error)?;
        store_crps(&crps, classic);
        Ok(Self {
            is_uav: classic.profile == ClassicProfile::Uav,
            words: classic.response_bytes / 8,
            identifiers: u32::try_from(identifiers).unwrap_or(u32::MAX),
            rows: u32::try_from(rows).unwrap_or(u32::MAX),
            states: Region::anonymous(identifiers).map_err(memory_error)?,
            crps,
            crc: Box::new(crc_tables()),
        })
    }

    /// Handles the payload of a datagram to the port of the profile. If the verdict is a reply, the payload now
    /// contains it. `rng` is the generator of the calling thread: see [`super::rng_state`].
    pub fn handle(&self, rng: &mut SplitMix64, payload: &mut [u8]) -> Verdict {
        match self.words {
            1 => self.handle_sized::<1>(rng, payload),
            2 => self.handle_sized::<2>(rng, payload),
            _ => self.handle_sized::<4>(rng, payload),
        }
    }

    fn handle_sized<const WORDS: usize>(&self, rng: &mut SplitMix64, payload: &mut [u8]) -> Verdict {
        let Ok(message) = Message::<WORDS>::mut_from_bytes(payload) else {
            return Verdict::DropClassicMalformed;
        };
        if message.kind != message_type::REQ && message.kind != message_type::RESP {
            return Verdict::DropClassicMalformed;
        }
        let index = message.identifier.get().wrapping_sub(1);
        let state = self
            .states
            .get(index as usize)
            .filter(|_| index < self.identifiers);
        let Some(state) = state else {
            return Verdict::DropClassicUnknown;
        };
        if message.kind == message_type::REQ {
            self.request(rng, index, state, message)
                .unwrap_or(Verdict::DropClassicUnknown)
        } else {
            accept(state, message)
        }
    }

    /// Picks CRPs and stores H(R… | RN). Writes the reply: the challenges, and RN xor R or, with two CRPs, RN xor (R1 OR R2).
    /// `None`: no CRP is left.
    fn request<const WORDS: usize>(
        &self,
        rng: &mut SplitMix64,
        index: u32,
        state: &ClassicState,
        message: &mut Message<WORDS>,
    ) -> Option<Verdict> {
        let (crp1, crp2) = self.pick(rng, index, state)?;
        let first = response::<WORDS>(crp1);
        let second = crp2.map(response::<WORDS>);
        let rn = [0; WORDS].map(|_: u64| rng.draw().to_be());
        // The hash of the first response is stored with the CRP.
        let mut crc = crp1.crc.load(Relaxed);
        for block in second.iter().chain([&rn]) {
            crc = self.hash(crc, block);
        }
        state.expected.swap(PENDING | u64::from(!crc), AcqRel);
        message.kind = message_type::CH;
        message.challenge1 = crp1.challenge.load(Relaxed).to_ne_bytes();
        message.challenge2 = crp2.map_or(0, |crp2| crp2.challenge.load(Relaxed)).to_ne_bytes();
        let masks = first
            .iter()
            .zip(second.unwrap_or([0; WORDS]))
            .map(|(r1, r2)| r1 | r2);
        for ((cell, word), mask) in message.rn.iter_mut().zip(rn).zip(masks) {
            *cell = (word ^ mask).to_ne_bytes();
        }
        message.hash = U32::ZERO;
        message.process_time_ns = U64::ZERO;
        Some(Verdict::ReplyClassicChallenge)
    }

    fn pick(
        &self,
        rng: &mut SplitMix64,
        index: u32,
        state: &ClassicState,
    ) -> Option<(&ClassicCrp, Option<&ClassicCrp>)> {
        if self.is_uav {
            let draw = rng.draw();
            let half = u64::from(self.rows / 2);
            let first = ((draw & 0xffff_ffff) * half) >> 32;
            let second = half + (((draw >> 32) * half) >> 32);
            return Some((self.crp(index, first)?, Some(self.crp(index, second)?)));
        }
        // Checked before the increment, so that the counter cannot wrap.
        if state.next.load(Relaxed) >= self.rows {
            return None;
        }
        let row = state.next.fetch_add(1, Relaxed);
        let crp = self.crp(index, u64::from(row)).filter(|_| row < self.rows)?;
        Some((crp, None))
    }

    fn crp(&self, index: u32, row: u64) -> Option<&ClassicCrp> {
        let crp_index = u64::from(index) * u64::from(self.rows) + row;
        self.crps.get(usize::try_from(crp_index).ok()?)
    }

    /// Adds whole words to a CRC-32, sixteen bytes at a time (slicing-by-16).
    fn hash<const WORDS: usize>(&self, crc: u32, words: &[u64; WORDS]) -> u32 {
        words.chunks(2).fold(crc, |crc, pair| match *pair {
            [a, b] => self.slices::<8>(a ^ u64::from(crc)) ^ self.slices::<0>(b),
            [a] => self.slices::<0>(a ^ u64::from(crc)),
            _ => crc,
        })
    }

    /// The contribution of a word to the CRC if `AHEAD` bytes come after the word.
    fn slices<const AHEAD: usize>(&self, word: u64) -> u32 {
        let tables = self.crc.iter().skip(AHEAD).take(8).rev();
        tables.zip(word.to_le_bytes()).fold(0, |crc, (table, byte)| {
            crc ^ table.get(usize::from(byte)).copied().unwrap_or_default()
        })
    }
}

fn response<const WORDS: usize>(crp: &ClassicCrp) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, cell) in words.iter_mut().zip(&crp.response) {
        *word = cell.load(Relaxed);
    }
    words
}

/// Accepts a message with the expected hash, at most one time. If no hash is expected (the state is 0), no message is accepted.
fn accept<const WORDS: usize>(state: &ClassicState, message: &mut Message<WORDS>) -> Verdict {
    let expected = PENDING | u64::from(message.hash.get());
    if state.expected.load(Acquire) != expected
        || state
            .expected
            .compare_exchange(expected, 0, AcqRel, Acquire)
            .is_err()
    {
        return Verdict::DropClassicHash;
    }
    message.kind = message_type::ACK;
    message.process_time_ns = U64::ZERO;
    Verdict::ReplyClassicAck
}
