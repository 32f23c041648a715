//! Incremental hashes of sets: LtHash with 1,024 words of 16 bits over BLAKE3's extendable output.
//!
//! The hash of a set is the sum of its elements' expansions, word by word modulo 2¹⁶. Elements are added and removed
//! in any order, at a cost independent of the size of the set. Finding two different sets of *distinct* elements with
//! the same sum is as hard as a problem of short lattice vectors, estimated at 200 bits and more (Lewi, Kim, Maykov, Weis:
//! "Securing Update Propagation with Homomorphic Hashing", 2019). 65,536 copies of one element sum to zero, so no
//! element may be in a set twice: [`crate::state`] ensures that.
//!
//! An element's expansion is 2,048 bytes of BLAKE3 in keyed mode, read as little-endian words. The key is the text
//! `linewarden evidence element 1`, padded with zeros to 32 bytes.
//!
//! The [`Digest`] represents a state. The 2,048 bytes, words little-endian, are distributed to eight leaves in groups
//! of four bytes: leaf l gets the groups l, l + 8, l + 16, ... Each leaf is hashed by BLAKE3 keyed with `linewarden
//! evidence leaf 1`, and the eight hashes together by BLAKE3 keyed with the text of the digest's kind
//! ([`DigestKind`]).

mod lanes;

use std::fmt;

use lanes::Block;

/// Words of a state.
pub const WORDS: usize = 1024;
/// Bytes of a state, and of an element's expansion.
pub const STATE_BYTES: usize = 2 * WORDS;

/// A public key of BLAKE3's keyed mode: a text, padded with zeros. The key separates domains and is not secret.
const fn domain(text: &str) -> [u8; 32] {
    let mut key = [0; 32];
    let (head, _) = key.split_at_mut(text.len());
    head.copy_from_slice(text.as_bytes());
    key
}

const ELEMENT: [u8; 32] = domain("linewarden evidence element 1");
const LEAF: [u8; 32] = domain("linewarden evidence leaf 1");

/// A 32-byte digest of a program, of a set of entries, or of one object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Length of a digest in packets.
    pub const SHORT_BYTES: usize = 16;

    /// The first 16 bytes, the form in packets.
    #[must_use]
    pub fn short(&self) -> [u8; Self::SHORT_BYTES] {
        let mut short = [0; Self::SHORT_BYTES];
        short.copy_from_slice(self.0.split_at(Self::SHORT_BYTES).0);
        short
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// The kind of a digest, so that digests of different kinds cannot be confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestKind {
    /// All tables and related objects.
    Tables,
    /// All register arrays except volatile arrays.
    Registers,
    /// One table, array or other object.
    Object,
}

impl DigestKind {
    /// The BLAKE3 key of the digests: `linewarden evidence tables 1` and the like, padded with zeros to 32 bytes.
    const fn key(self) -> [u8; 32] {
        match self {
            Self::Tables => domain("linewarden evidence tables 1"),
            Self::Registers => domain("linewarden evidence registers 1"),
            Self::Object => domain("linewarden evidence object 1"),
        }
    }
}

/// The expansion of one element, to be added to any number of states: the hash of the set with only this element.
#[derive(Clone)]
pub struct Expansion(LtHash);

impl Expansion {
    /// Expands an element's encoding.
    #[must_use]
    pub fn of(element: &[u8]) -> Self {
        let mut expansion = Self(LtHash::EMPTY);
        expansion.set(element);
        expansion
    }

    /// Replaces the expansion by that of another element.
    pub fn set(&mut self, element: &[u8]) {
        self.0 = LtHash::EMPTY;
        if let Some(block) = Block::of(element) {
            return lanes::exchange(&ELEMENT, None, Some(&block), &mut [&mut self.0]);
        }
        let mut bytes = [0; STATE_BYTES];
        let mut hasher = blake3::Hasher::new_keyed(&ELEMENT);
        hasher.update(element);
        hasher.finalize_xof().fill(&mut bytes);
        for (word, bytes) in self.0.0.iter_mut().zip(bytes.as_chunks().0) {
            *word = u16::from_le_bytes(*bytes);
        }
    }
}

impl fmt::Debug for Expansion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Expansion(..)")
    }
}

/// The hash of a set.
#[derive(Clone, PartialEq, Eq)]
#[repr(align(64))]
pub struct LtHash([u16; WORDS]);

impl LtHash {
    /// The hash of the empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Adds an element that is not in the set.
    pub fn add(&mut self, element: &Expansion) {
        self.add_all(&element.0);
    }

    /// Removes an element that is in the set.
    pub fn remove(&mut self, element: &Expansion) {
        self.remove_all(&element.0);
    }

    /// Removes the element with the encoding `old` from all `sets` and adds the element with the encoding `new`. If `old`
    /// or `new` is `None`, nothing is removed or added. Faster than [`Self::remove`] and [`Self::add`].
    pub fn exchange(sets: &mut [&mut Self], old: Option<&[u8]>, new: Option<&[u8]>) {
        let (old_block, new_block) = (old.and_then(Block::of), new.and_then(Block::of));
        if old_block.is_some() == old.is_some() && new_block.is_some() == new.is_some() {
            return lanes::exchange(&ELEMENT, old_block.as_ref(), new_block.as_ref(), sets);
        }
        let (old, new) = (old.map(Expansion::of), new.map(Expansion::of));
        for set in sets {
            old.iter().for_each(|old| set.remove(old));
            new.iter().for_each(|new| set.add(new));
        }
    }

    /// Adds all elements of another set, which must be disjoint from this set.
    pub fn add_all(&mut self, other: &Self) {
        for (word, added) in self.0.iter_mut().zip(other.0) {
            *word = word.wrapping_add(added);
        }
    }

    /// Removes all elements of another set, which must be a subset.
    pub fn remove_all(&mut self, other: &Self) {
        for (word, removed) in self.0.iter_mut().zip(other.0) {
            *word = word.wrapping_sub(removed);
        }
    }

    /// The state, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        for (out, word) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *out = word.to_le_bytes();
        }
        bytes
    }

    /// The digest of the state.
    #[must_use]
    pub fn digest(&self, kind: DigestKind) -> Digest {
        let leaves = lanes::hashes(&LEAF, &self.0);
        Digest(*blake3::keyed_hash(&kind.key(), &leaves).as_bytes())
    }
}

impl Default for LtHash {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for LtHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LtHash({})", self.digest(DigestKind::Object))
    }
}
