//! `p4dra-classic` (LAP/1 3.1): attestation bit-compatible with the published P4DRA, for comparison and interoperation only.
//!
//! **Insecure by design.** Nothing but k is secret to a request, nobody is authenticated to a device, half of h is bound only if
//! r and n are not the sender's to choose, and nobody has analysed Forró with d and h in the place of its constants
//! (`linewarden-forro` says more): off unless configured, and never with a key that `attest/2` uses. What the published code
//! got wrong beyond its design is not repeated here: what its switch sends itself is not taken from outside, r and n are
//! the verifier's own and compared before anything is computed, and a prover that nobody knows proves nothing.
//!
//! ```text
//! verifier                               prover
//!   1 REQUEST(r, n)             ──►
//!                               ◄──     2 REPLY(r, n, d, P), P = block of k, r ^ h, n ^ h, d ^ h
//!   V = P?  4 VERIFIED(r, n, d, V, P)  ──►  controller
//! ```
//!
//! Raw Ethernet frames. A value is a byte string; on the wire the bytes of each 32-bit word of it are reversed.

pub mod prover;
#[cfg(feature = "alloc")]
pub mod verifier;

use core::fmt;

use linewarden_forro::{Matrix, R14};

use crate::attest::{AttestationKey, ConfigurationHash};
use crate::frame::Mac;

/// Ethernet type of the published tools. It is assigned to nobody.
pub const ETHER_TYPE: u16 = 0x1234;
/// MAC address of the controller in the published tools.
pub const CONTROLLER: Mac = [0x08, 0, 0, 0, 0x01, 0x01];
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 64;
/// The longest message, bytes behind the Ethernet type.
pub const MESSAGE_BYTES_MAX: usize = 162;
/// What a message may be that is shorter than the shortest Ethernet frame: padded so far, bytes.
pub const PADDED_BYTES: usize = 46;

/// First byte of a message.
pub mod operation {
    /// Controller to verifier.
    pub const START: u8 = 0;
    /// Verifier to prover.
    pub const REQUEST: u8 = 1;
    /// Prover to verifier.
    pub const REPLY: u8 = 2;
    /// Inside the published switch.
    pub const CALCULATING: u8 = 3;
    /// Inside the published switch, then verifier to controller.
    pub const VERIFIED: u8 = 4;
    /// Controller to prover, inside a secure channel only.
    pub const SETUP: u8 = 5;
}

/// Bytes of a message of that operation behind the Ethernet type; `None`: there is no such operation.
#[must_use]
pub const fn bytes_of(operation: u8) -> Option<usize> {
    match operation {
        operation::START | operation::REQUEST => Some(17),
        operation::REPLY => Some(97),
        operation::CALCULATING => Some(162),
        operation::VERIFIED => Some(161),
        operation::SETUP => Some(65),
        _ => None,
    }
}

/// A proof, or the block that it is compared with.
pub type Proof = [u8; PROOF_BYTES];

/// `d`: which prover.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProverId(pub [u8; 16]);

impl fmt::Display for ProverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ProverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProverId({self})")
    }
}

/// What is asked. Both values are used once, by one verifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// `r`, where Forró has its counter.
    pub r: [u8; 8],
    /// `n`, where Forró has its nonce.
    pub n: [u8; 8],
}

/// A message. Values are byte strings, not as on the wire.
#[derive(Clone, Debug)]
pub enum Message {
    /// Begin a round.
    Start(Round),
    /// Prove yourself.
    Request(Round),
    /// A proof.
    Reply(Round, ProverId, Proof),
    /// A block under way: quarter rounds done, the words, the proof that it will be compared with.
    Calculating(Round, ProverId, u8, [u32; 16], Proof),
    /// The block, and the proof that it was compared with.
    Verified(Round, ProverId, Proof, Proof),
    /// The key of a prover, in the clear.
    Setup(AttestationKey, ProverId),
}

/// Reverses the bytes of each 32-bit word.
#[must_use]
pub fn sw<const BYTES: usize>(mut bytes: [u8; BYTES]) -> [u8; BYTES] {
    bytes
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .for_each(|word| word.reverse());
    bytes
}

/// Takes fields from the front of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (field, rest) = self.0.split_first_chunk::<BYTES>()?;
        self.0 = rest;
        Some(*field)
    }

    fn value<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        self.bytes().map(sw)
    }

    fn id(&mut self) -> Option<ProverId> {
        self.value().map(ProverId)
    }
}

impl Message {
    /// Reads what stands behind the Ethernet type: exactly the operation's length, or, of one that is shorter than the shortest
    /// frame, with padding up to that. `None`: it is none.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let operation = *payload.first()?;
        let bytes = bytes_of(operation)?;
        let is_padded = (bytes..=PADDED_BYTES).contains(&payload.len());
        if payload.len() != bytes && !is_padded {
            return None;
        }
        let mut fields = Fields(payload.get(1..)?);
        let round = Round {
            r: fields.value()?,
            n: fields.value()?,
        };
        Some(match operation {
            operation::START => Self::Start(round),
            operation::REQUEST => Self::Request(round),
            operation::REPLY => Self::Reply(round, fields.id()?, fields.value()?),
            operation::CALCULATING => {
                let (id, [done]) = (fields.id()?, fields.bytes()?);
                let state: [u8; 64] = fields.bytes()?;
                let mut words = [0; 16];
                for (word, bytes) in words.iter_mut().zip(state.as_chunks::<4>().0) {
                    *word = u32::from_be_bytes(*bytes);
                }
                Self::Calculating(round, id, done, words, fields.value()?)
            }
            operation::VERIFIED => Self::Verified(round, fields.id()?, fields.value()?, fields.value()?),
            _ => Self::Setup(AttestationKey::from_bytes(fields.value()?), fields.id()?),
        })
    }

    /// First byte.
    #[must_use]
    pub fn operation(&self) -> u8 {
        match self {
            Self::Start(_) => operation::START,
            Self::Request(_) => operation::REQUEST,
            Self::Reply(..) => operation::REPLY,
            Self::Calculating(..) => operation::CALCULATING,
            Self::Verified(..) => operation::VERIFIED,
            Self::Setup(..) => operation::SETUP,
        }
    }

    /// Writes it at the front of `out`, unpadded; how long it is. `None`: it does not fit.
    #[must_use]
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        let bytes = bytes_of(self.operation())?;
        let mut rest = out.get_mut(..bytes)?;
        put(&mut rest, [self.operation()])?;
        let round = match self {
            Self::Start(round) | Self::Request(round) => *round,
            Self::Reply(round, ..) | Self::Calculating(round, ..) | Self::Verified(round, ..) => *round,
            Self::Setup(..) => Round { r: [0; 8], n: [0; 8] },
        };
        put(&mut rest, sw(round.r))?;
        put(&mut rest, sw(round.n))?;
        match self {
            Self::Start(_) | Self::Request(_) => {}
            Self::Reply(_, id, proof) => {
                put(&mut rest, sw(id.0))?;
                put(&mut rest, sw(*proof))?;
            }
            Self::Calculating(_, id, done, words, proof) => {
                put(&mut rest, sw(id.0))?;
                put(&mut rest, [*done])?;
                words
                    .iter()
                    .try_for_each(|word| put(&mut rest, word.to_be_bytes()))?;
                put(&mut rest, sw(*proof))?;
            }
            Self::Verified(_, id, block, proof) => {
                put(&mut rest, sw(id.0))?;
                put(&mut rest, sw(*block))?;
                put(&mut rest, sw(*proof))?;
            }
            Self::Setup(key, id) => {
                put(&mut rest, sw(*key.as_bytes()))?;
                put(&mut rest, sw(id.0))?;
            }
        }
        rest.is_empty().then_some(bytes)
    }
}

/// Puts a field at the front of what is left.
fn put<const BYTES: usize>(rest: &mut &mut [u8], field: [u8; BYTES]) -> Option<()> {
    let (place, behind) = core::mem::take(rest).split_first_chunk_mut::<BYTES>()?;
    *place = field;
    *rest = behind;
    Some(())
}

/// The words that a prover's proofs are computed from, but for r and n.
#[derive(Clone)]
pub struct Template([u32; 16]);

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Template(..)")
    }
}

/// Little-endian words.
fn words<const WORDS: usize>(bytes: &[u8]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

impl Template {
    /// Of a prover that runs h.
    #[must_use]
    pub fn new(key: &AttestationKey, id: &ProverId, h: &ConfigurationHash) -> Self {
        let [k0, k1, k2, k3, k4, k5, k6, k7] = words(key.as_bytes());
        let [d0, d1, d2, d3] = words(&id.0);
        let [h0, h1, h2, h3, h4, h5, h6, h7] = words(&h.0);
        Self([
            k0,
            k1,
            k2,
            k3,
            h0,
            h1,
            d0 ^ h2,
            d1 ^ h3,
            k4,
            k5,
            k6,
            k7,
            h4,
            h5,
            d2 ^ h6,
            d3 ^ h7,
        ])
    }

    /// The words; they hold the key.
    #[must_use]
    pub fn words(&self) -> &[u32; 16] {
        &self.0
    }

    /// The matrix of a round.
    #[must_use]
    pub fn matrix(&self, round: &Round) -> Matrix {
        matrix(self.0, round)
    }

    /// The proof in a round.
    #[must_use]
    pub fn proof(&self, round: &Round) -> Proof {
        self.matrix(round).block::<R14>()
    }
}

/// The matrix of a round from a template's words.
#[must_use]
pub fn matrix(mut template: [u32; 16], round: &Round) -> Matrix {
    let ([r0, r1], [n0, n1]) = (words(&round.r), words(&round.n));
    let [_, _, _, _, v4, v5, _, _, _, _, _, _, v12, v13, _, _] = &mut template;
    *v4 ^= r0;
    *v5 ^= r1;
    *v12 ^= n0;
    *v13 ^= n1;
    Matrix::from_words(template)
}
