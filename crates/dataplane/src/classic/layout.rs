//! Memory that packet paths and user space share: the mirror of `bpf/lw_classic_layout.h`, field by field.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::layout::Shared;

/// State of one identifier.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ClassicState {
    /// `1 << 32 | CRC-32` of the expected RESP; 0: no challenge is outstanding.
    pub(super) expected: AtomicU64,
    /// `classic-iot`: the CRP for the next REQ.
    pub(super) next: AtomicU32,
    /// Zero.
    pub(super) _pad: AtomicU32,
}

/// One CRP, in wire order.
#[repr(C)]
pub(super) struct ClassicCrp {
    /// Challenge.
    pub(super) challenge: AtomicU32,
    /// The CRC register after the response, so that each packet hashes only RN.
    pub(super) crc: AtomicU32,
    /// Response, left-aligned.
    pub(super) response: [AtomicU64; 4],
}

/// A prover of `p4dra-classic`.
#[repr(C, align(64))]
pub(super) struct P4draProverCell {
    /// 0: the place is empty.
    pub(super) used: AtomicU64,
    /// Identifier, in wire order.
    pub(super) id: [AtomicU64; 2],
    /// By lane of the round: the count of the round in which the prover is ok; 0: none.
    pub(super) proved: [AtomicU64; 2],
    /// Zero.
    pub(super) _pad: [AtomicU64; 3],
    /// Template of its proofs, without r and n.
    pub(super) matrix: [AtomicU32; 16],
}

/// A round of `p4dra-classic`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct P4draRound {
    /// Ordinal number of this round, from 1; 0: no round, or the other fields are being changed.
    pub(super) count: AtomicU64,
    /// `r`, in wire order.
    pub(super) r: AtomicU64,
    /// `n`, in wire order.
    pub(super) n: AtomicU64,
    /// Zero.
    pub(super) _pad: AtomicU64,
}

/// The newest round with an even count and the newest with an odd one, by lane.
#[derive(Debug)]
#[repr(C)]
pub(super) struct P4draRounds {
    /// The lane of even counts, then the lane of odd counts.
    pub(super) lane: [P4draRound; 2],
}

/// Number of adjacent places where a prover of `p4dra-classic` may be stored; the prover's hash selects the first
/// place.
pub(super) const P4DRA_PROBES: usize = 16;

impl fmt::Debug for ClassicCrp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClassicCrp(..)")
    }
}

impl fmt::Debug for P4draProverCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("P4draProverCell(..)")
    }
}

macro_rules! shared {
    ($($name:ident $bytes:literal),+ $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        // SAFETY: repr(C), atomics only, and zero is a valid atomic integer.
        unsafe impl Shared for $name {}
    )+};
}
shared!(ClassicState 16, ClassicCrp 40, P4draProverCell 128, P4draRound 32, P4draRounds 64);
