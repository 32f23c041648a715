//! The authentication of the default content.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::packet::Invariants;
use super::{Counter, Tag};
use crate::ids::{BootCount, SwitchId};
use crate::state::Snapshot;

/// Prefix of every tag input; it separates tags from key derivation.
const LABEL: [u8; 8] = *b"evidence";

/// The secret shared by the appraiser and all switches and gateways of one network. The key of a switch for one start
/// is derived from this secret. An attacker with this secret can forge the packet evidence of every switch.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct MasterKey([u8; 16]);

/// The key of one switch for one start.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EvidenceKey([u8; 16]);

impl MasterKey {
    /// A key from 16 random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// `F(master, switch id u64 | boot count u64)`, where F is SipHash-2-4 with 128 bits of output.
    #[must_use]
    pub fn key(&self, switch: SwitchId, boot_count: BootCount) -> EvidenceKey {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&switch.0.to_be_bytes());
        hasher.write(&boot_count.0.to_be_bytes());
        EvidenceKey(hasher.finish128().as_bytes())
    }
}

impl EvidenceKey {
    /// A key from its 16 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The halves for SipHash.
    pub(super) fn halves(&self) -> (u64, u64) {
        let (low, high) = self.0.split_at(8);
        let word = |half: &[u8]| half.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (word(low), word(high))
    }
}

/// Length of the tag input that is the same for every packet of one state.
const PREFIX_BYTES: usize = 8 + 3 * 32 + 8 + 8;

/// The tag input that is the same for every packet of one state.
pub(super) fn prefix(snapshot: &Snapshot) -> [u8; PREFIX_BYTES] {
    let digests = &snapshot.digests;
    let (switch, sequence) = (snapshot.switch.0.to_be_bytes(), snapshot.sequence.0.to_be_bytes());
    let parts: [&[u8]; 6] = [
        &LABEL,
        &digests.registers.0,
        &digests.tables.0,
        &digests.program.0,
        &switch,
        &sequence,
    ];
    let mut bytes = [0; PREFIX_BYTES];
    let input = parts.into_iter().flatten();
    bytes.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
    bytes
}

/// The SipHash state after the input that is the same for every packet of one state.
#[derive(Clone, Copy)]
pub(super) struct Midstate(SipHasher24);

impl Midstate {
    pub fn new(key: &EvidenceKey, snapshot: &Snapshot) -> Self {
        let mut hasher = SipHasher24::new_with_key(&key.0);
        hasher.write(&prefix(snapshot));
        Self(hasher)
    }

    pub fn tag(&self, counter: Counter, invariants: &Invariants) -> Tag {
        let mut hasher = self.0;
        // The input is written word by word: for byte slices, the hasher must also handle incomplete words.
        hasher.write_u64(counter.0.to_be());
        for word in invariants.0.as_chunks().0 {
            hasher.write_u64(u64::from_ne_bytes(*word));
        }
        hasher.finish128().as_bytes()
    }
}

macro_rules! redacted_debug {
    ($($secret:ident)*) => {$(
        impl std::fmt::Debug for $secret {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($secret), "(..)"))
            }
        }
    )*};
}

redacted_debug!(MasterKey EvidenceKey Midstate);
