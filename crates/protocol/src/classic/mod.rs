//! The classic profiles: the protocol of the IoT paper and of the UAV paper (docs/experiments.md names both), for
//! measurement only.
//!
//! **Insecure by design** (CRC-32 has no key, the verifier proves nothing, identifiers are plain numbers): no gateway
//! serves the profiles, and no PUF that LAP/1 uses may be used with them. This implementation avoids the errors of the published verifier
//! that are not part of its design: responses have their full width, an identifier without a challenge has no expected
//! hash, an expected hash is valid for one success, and a message with a wrong hash is dropped.
//!
//! ```text
//! device                                verifier
//!   REQ(id)                     ──►       picks C (or C1, C2), draws RN
//!                               ◄──     CH(C1, C2, RN' = RN xor R), expects H(R… | RN)
//!   RN = RN' xor R
//!   RESP(H(R… | RN))            ──►       equal?
//!                               ◄──     ACK
//! ```
//!
//! With two challenges the mask is `R1 or R2`, as in the UAV paper. `H` is CRC-32.
//!
//! [`p4dra`] is the protocol of the P4DRA paper (docs/experiments.md): attestation over raw Ethernet.

pub mod crc32;
pub mod device;
pub mod gateway;
pub mod p4dra;
pub mod rng;
pub mod verifier;

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// UDP port of the classic profiles, when they are served.
pub const CLASSIC_PORT: u16 = 20551;
/// The longest response, bytes.
pub const RESPONSE_BYTES_MAX: usize = 32;
/// The longest message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 57;

/// Message types.
pub mod message_type {
    /// Device to verifier.
    pub const REQ: u8 = 0;
    /// Verifier to device.
    pub const CH: u8 = 1;
    /// Device to verifier.
    pub const RESP: u8 = 2;
    /// Verifier to device.
    pub const ACK: u8 = 3;
}

/// The published exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// One challenge-response pair per exchange, each used once.
    Iot,
    /// Two pairs per exchange, picked at random, with reuse.
    Uav,
}

/// Size of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseBits {
    /// 64 bit: messages of 33 bytes.
    B64,
    /// 128 bit: messages of 41 bytes.
    B128,
    /// 256 bit: messages of 57 bytes.
    B256,
}

impl ResponseBits {
    /// All sizes.
    pub const ALL: [Self; 3] = [Self::B64, Self::B128, Self::B256];

    /// Bytes of a response.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::B64 => 8,
            Self::B128 => 16,
            Self::B256 => 32,
        }
    }

    /// Bytes of a message.
    #[must_use]
    pub fn message_bytes(self) -> usize {
        size_of::<Head>() + self.bytes() + size_of::<Tail>()
    }
}

/// A response, or a random number of the same size. The first [`ResponseBits::bytes`] bytes are used; the other bytes
/// are zero.
pub type Block = [u8; RESPONSE_BYTES_MAX];

/// A message of either side (docs/protocols.md 2), all fields big-endian on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// One of [`message_type`].
    pub kind: u8,
    /// First challenge.
    pub challenge1: u32,
    /// Second challenge; 0 in [`Profile::Iot`].
    pub challenge2: u32,
    /// The random number, masked in a CH.
    pub rn: Block,
    /// The device's hash, in a RESP and its ACK.
    pub hash: u32,
    /// The device, from 1.
    pub identifier: u32,
    /// Processing time of the verifier in ns; this implementation writes 0.
    pub process_time_ns: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    challenge1: U32,
    challenge2: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Tail {
    hash: U32,
    identifier: U32,
    process_time_ns: U64,
}

const _: () = assert!(size_of::<Head>() + RESPONSE_BYTES_MAX + size_of::<Tail>() == MESSAGE_BYTES_MAX);

impl Message {
    /// A message with only its type and identifier.
    #[must_use]
    pub fn new(kind: u8, identifier: u32) -> Self {
        Self {
            kind,
            challenge1: 0,
            challenge2: 0,
            rn: [0; RESPONSE_BYTES_MAX],
            hash: 0,
            identifier,
            process_time_ns: 0,
        }
    }

    /// Parses a payload; `None` unless the payload has the length of a message of this size.
    #[must_use]
    pub fn parse(bits: ResponseBits, payload: &[u8]) -> Option<Self> {
        if payload.len() != bits.message_bytes() {
            return None;
        }
        let (head, rest) = Head::ref_from_prefix(payload).ok()?;
        let (number, rest) = rest.split_at_checked(bits.bytes())?;
        let tail = Tail::ref_from_bytes(rest).ok()?;
        let mut rn = [0; RESPONSE_BYTES_MAX];
        rn.get_mut(..bits.bytes())?.copy_from_slice(number);
        Some(Self {
            kind: head.kind,
            challenge1: head.challenge1.get(),
            challenge2: head.challenge2.get(),
            rn,
            hash: tail.hash.get(),
            identifier: tail.identifier.get(),
            process_time_ns: tail.process_time_ns.get(),
        })
    }

    /// Writes the message to a payload; `None` and no change unless the payload has the length of a message of this
    /// size.
    #[must_use]
    pub fn write(&self, bits: ResponseBits, payload: &mut [u8]) -> Option<()> {
        if payload.len() != bits.message_bytes() {
            return None;
        }
        let head = Head {
            kind: self.kind,
            challenge1: U32::new(self.challenge1),
            challenge2: U32::new(self.challenge2),
        };
        let tail = Tail {
            hash: U32::new(self.hash),
            identifier: U32::new(self.identifier),
            process_time_ns: U64::new(self.process_time_ns),
        };
        let (first, rest) = payload.split_at_mut_checked(size_of::<Head>())?;
        let (number, last) = rest.split_at_mut_checked(bits.bytes())?;
        first.copy_from_slice(head.as_bytes());
        number.copy_from_slice(self.rn.get(..bits.bytes())?);
        last.copy_from_slice(tail.as_bytes());
        Some(())
    }
}

/// The mask of the random number: `R`, or `R1 or R2`.
#[must_use]
pub fn mask(r1: &Block, r2: Option<&Block>) -> Block {
    let zero = [0; RESPONSE_BYTES_MAX];
    let second = r2.unwrap_or(&zero);
    let mut out = *r1;
    out.iter_mut().zip(second).for_each(|(a, b)| *a |= b);
    out
}

/// `rn xor mask`: masks and unmasks.
#[must_use]
pub fn xor(rn: &Block, mask: &Block) -> Block {
    let mut out = *rn;
    out.iter_mut().zip(mask).for_each(|(a, b)| *a ^= b);
    out
}

/// `H(R1 | R2 | RN)`, or `H(R | RN)`, over the bytes in wire order.
#[must_use]
pub fn hash(bits: ResponseBits, r1: &Block, r2: Option<&Block>, rn: &Block) -> u32 {
    let mut crc = crc32::Crc32::new();
    for block in [Some(r1), r2, Some(rn)].into_iter().flatten() {
        crc = crc.update(block.get(..bits.bytes()).unwrap_or_default());
    }
    crc.finish()
}
