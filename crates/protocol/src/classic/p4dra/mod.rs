//! `p4dra-classic` (LAP/1 3.1): attestation bit-compatible with the published P4DRA, for measurement
//! only.
//!
//! **Insecure by design.** Only k is secret in a request, the device does not authenticate the gateway, half of h is
//! bound only if the prover cannot choose r and n, and Forró with d and h in place of its constants has no published
//! analysis (see `linewarden-forro`). The profile is off unless configured, and never uses a key of `attest/2`. This
//! implementation avoids the errors of the published code that are not part of its design: messages that a switch sends
//! only to itself are rejected if they arrive from outside, the verifier chooses r and n and compares them before any
//! computation, and an unknown prover cannot prove anything.
//!
//! ```text
//! verifier                               prover
//!   1 REQUEST(r, n)             ──►
//!                               ◄──     2 REPLY(r, n, d, P), P = block of k, r ^ h, n ^ h, d ^ h
//!   V = P?  4 VERIFIED(r, n, d, V, P)  ──►  controller
//! ```
//!
//! Messages are raw Ethernet frames. A value is a byte string; on the wire the bytes of each 32-bit word are reversed.

pub mod prover;
pub mod verifier;

use core::fmt;

use linewarden_forro::{Matrix, R14};

use crate::attest::{AttestationKey, ConfigurationHash};
use crate::frame::Mac;

/// Ethernet type of the published tools. IEEE has not assigned it.
pub const ETHER_TYPE: u16 = 0x1234;
/// MAC address of the controller in the published tools.
pub const CONTROLLER: Mac = [0x08, 0, 0, 0, 0x01, 0x01];
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 64;
/// Length of the longest message after the Ethernet type, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 162;
/// Minimum payload of an Ethernet frame in bytes; shorter messages may be padded to this length.
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
    /// Controller to prover, only inside a secure channel.
    pub const SETUP: u8 = 5;
}

/// Length of a message of this operation after the Ethernet type, in bytes; `None` if the operation does not exist.
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

/// A proof, or the block that the verifier compares with a proof.
pub type Proof = [u8; PROOF_BYTES];

/// `d`: identifies the prover.
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

/// The values of a request. The verifier uses both values once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// `r`, at the position of Forró's counter.
    pub r: [u8; 8],
    /// `n`, at the position of Forró's nonce.
    pub n: [u8; 8],
}

/// A message. Values are byte strings, not in wire order.
#[derive(Clone, Debug)]
pub enum Message {
    /// Starts a round.
    Start(Round),
    /// Requests a proof.
    Request(Round),
    /// A proof.
    Reply(Round, ProverId, Proof),
    /// A block in progress: quarter rounds done, the words, the proof to compare with.
    Calculating(Round, ProverId, u8, [u32; 16], Proof),
    /// The block, and the proof that was compared with it.
    Verified(Round, ProverId, Proof, Proof),
    /// The key of a prover, in the clear.
    Setup(AttestationKey, ProverId),
}

/// Reverses the bytes of each 32-bit word.
#[must_use]
pub fn swap_word_bytes<const BYTES: usize>(mut bytes: [u8; BYTES]) -> [u8; BYTES] {
    bytes
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .for_each(|word| word.reverse());
    bytes
}

/// Reads fields from the front of a message.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (field, rest) = self.0.split_first_chunk::<BYTES>()?;
        self.0 = rest;
        Some(*field)
    }

    fn value<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        self.bytes().map(swap_word_bytes)
    }

    fn id(&mut self) -> Option<ProverId> {
        self.value().map(ProverId)
    }
}

impl Message {
    /// Parses the bytes after the Ethernet type. Their number must be the length of the operation; bytes after a message
    /// are allowed up to a total of [`PADDED_BYTES`]. `None` if the bytes are not a message.
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
                let (id, [quarter_rounds]) = (fields.id()?, fields.bytes()?);
                let state: [u8; 64] = fields.bytes()?;
                let mut words = [0; 16];
                for (word, bytes) in words.iter_mut().zip(state.as_chunks::<4>().0) {
                    *word = u32::from_be_bytes(*bytes);
                }
                Self::Calculating(round, id, quarter_rounds, words, fields.value()?)
            }
            operation::VERIFIED => Self::Verified(round, fields.id()?, fields.value()?, fields.value()?),
            _ => Self::Setup(AttestationKey::from_bytes(fields.value()?), fields.id()?),
        })
    }

    /// The first byte of the message, a constant of [`operation`].
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

    /// Writes the message to the front of `out`, unpadded, and returns its length. `None` if `out` is too short.
    #[must_use]
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        let bytes = bytes_of(self.operation())?;
        let mut rest = out.get_mut(..bytes)?;
        put_field(&mut rest, [self.operation()])?;
        let round = match self {
            Self::Start(round) | Self::Request(round) => *round,
            Self::Reply(round, ..) | Self::Calculating(round, ..) | Self::Verified(round, ..) => *round,
            Self::Setup(..) => Round { r: [0; 8], n: [0; 8] },
        };
        put_field(&mut rest, swap_word_bytes(round.r))?;
        put_field(&mut rest, swap_word_bytes(round.n))?;
        match self {
            Self::Start(_) | Self::Request(_) => {}
            Self::Reply(_, id, proof) => {
                put_field(&mut rest, swap_word_bytes(id.0))?;
                put_field(&mut rest, swap_word_bytes(*proof))?;
            }
            Self::Calculating(_, id, quarter_rounds, words, proof) => {
                put_field(&mut rest, swap_word_bytes(id.0))?;
                put_field(&mut rest, [*quarter_rounds])?;
                words
                    .iter()
                    .try_for_each(|word| put_field(&mut rest, word.to_be_bytes()))?;
                put_field(&mut rest, swap_word_bytes(*proof))?;
            }
            Self::Verified(_, id, block, proof) => {
                put_field(&mut rest, swap_word_bytes(id.0))?;
                put_field(&mut rest, swap_word_bytes(*block))?;
                put_field(&mut rest, swap_word_bytes(*proof))?;
            }
            Self::Setup(key, id) => {
                put_field(&mut rest, swap_word_bytes(*key.as_bytes()))?;
                put_field(&mut rest, swap_word_bytes(id.0))?;
            }
        }
        rest.is_empty().then_some(bytes)
    }
}

/// Writes a field to the front of the remaining buffer.
fn put_field<const BYTES: usize>(rest: &mut &mut [u8], field: [u8; BYTES]) -> Option<()> {
    let (target, remaining) = core::mem::take(rest).split_first_chunk_mut::<BYTES>()?;
    *target = field;
    *rest = remaining;
    Some(())
}

/// The words from which a prover computes its proofs, without r and n.
#[derive(Clone)]
pub struct Template([u32; 16]);

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Template(..)")
    }
}

/// Reads bytes as little-endian words.
fn words<const WORDS: usize>(bytes: &[u8]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

impl Template {
    /// The template of a prover with configuration h.
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

    /// The words. They contain the key.
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
