//! The bytes of a signed message.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 2 | `LS` |
//! | 2 | 1 | version, 1 |
//! | 3 | 1 | [`Scheme`] |
//! | 4 | 8 | [`KeyId`] |
//! | 12 | 6 | [`Stamp`], big-endian, topmost 4 bits zero |
//! | 18 | 1 | [`PayloadKind`] |
//! | 19 | 2 | length of the payload, big-endian |
//! | 21 | ≤ 1,024 | payload |
//! | | 32 | the mask's name `r`, with the two RA schemes only |
//! | | 64, 256 or 384 | signature, with the length that the scheme defines |
//!
//! No bytes may follow. A plain scheme signs [`Envelope::signed_bytes`], all bytes before the signature, after a prefix that no other
//! protocol uses. RA signs the stamp and the payload, component by component; the pad of the key binds scheme, signer and kind.

use super::{KEY_ID_BYTES, KeyId, Stamp};
use crate::refusal::Refusal;
use crate::scheme::Scheme;

const MAGIC: &[u8; 2] = b"LS";
const VERSION: u8 = 1;
/// The first three bytes of every message.
pub(crate) const MAGIC_AND_VERSION: u32 = (MAGIC[0] as u32) << 16 | (MAGIC[1] as u32) << 8 | VERSION as u32;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 21;
/// Bytes of a mask's name.
pub const MASK_NAME_BYTES: usize = 32;
/// The longest payload: such a message fits any link with an MTU of 1,500.
pub const PAYLOAD_BYTES_MAX: usize = 1024;
/// Upper bound of the length of a message. RA, which has the longest signatures, has shorter payloads.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX + MASK_NAME_BYTES + 384;
/// Prefix of the bytes that a plain scheme signs.
const SIGNED_PREFIX: &[u8] = b"linewarden signed message 1\0";

/// Type of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PayloadKind {
    /// Opaque bytes.
    Opaque = 0,
    /// A basic safety message of SAE J2735, part I, in UPER: 37 bytes.
    Bsm = 1,
    /// Numbers that select sub-messages of a layout.
    Submessages = 2,
}

impl PayloadKind {
    const ALL: [Self; 3] = [Self::Opaque, Self::Bsm, Self::Submessages];

    /// The name of this type in files and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opaque => "opaque",
            Self::Bsm => "bsm",
            Self::Submessages => "submessages",
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// Header and payload of a message before signing.
#[derive(Debug, Clone, Copy)]
pub struct UnsignedMessage<'a> {
    /// The scheme.
    pub scheme: Scheme,
    /// The signer.
    pub key_id: KeyId,
    /// Time and priority.
    pub stamp: Stamp,
    /// Type of the payload.
    pub kind: PayloadKind,
    /// At most [`PAYLOAD_BYTES_MAX`] bytes.
    pub payload: &'a [u8],
}

/// An encoded message without a signature.
#[derive(Debug, Clone)]
pub struct Draft(Vec<u8>);

impl UnsignedMessage<'_> {
    /// Encodes the message up to its signature; for RA up to the mask name. `None` if the payload is too long.
    #[must_use]
    pub fn encode(&self) -> Option<Draft> {
        if self.payload.len() > PAYLOAD_BYTES_MAX {
            return None;
        }
        let length = u16::try_from(self.payload.len()).ok()?;
        let mut bytes = Vec::with_capacity(
            HEADER_BYTES + self.payload.len() + MASK_NAME_BYTES + self.scheme.signature_bytes(),
        );
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[VERSION, self.scheme.number()]);
        bytes.extend_from_slice(&self.key_id.0);
        bytes.extend(self.stamp.bits().to_be_bytes().into_iter().skip(2));
        bytes.push(self.kind.number());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(self.payload);
        Some(Draft(bytes))
    }
}

impl Draft {
    /// The bytes that a plain scheme signs.
    #[must_use]
    pub fn to_sign(&self) -> Vec<u8> {
        [SIGNED_PREFIX, &self.0].concat()
    }

    /// Appends the signature of a plain scheme.
    #[must_use]
    pub fn with_signature(mut self, signature: &[u8]) -> Vec<u8> {
        self.0.extend_from_slice(signature);
        self.0
    }

    /// Appends the mask name and the signature of RA.
    #[must_use]
    pub fn with_mask(mut self, mask_name: &[u8; MASK_NAME_BYTES], signature: &[u8]) -> Vec<u8> {
        self.0.extend_from_slice(mask_name);
        self.0.extend_from_slice(signature);
        self.0
    }
}

/// A received message, parsed. No part of the message is verified.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// The claimed scheme.
    pub scheme: Scheme,
    /// The claimed signer.
    pub key_id: KeyId,
    /// Claimed time and priority.
    pub stamp: Stamp,
    /// Type of the payload.
    pub kind: PayloadKind,
    /// The payload.
    pub payload: &'a [u8],
    /// The mask name, for RA.
    pub mask_name: Option<&'a [u8; MASK_NAME_BYTES]>,
    /// The signature, as long as the scheme requires.
    pub signature: &'a [u8],
    before_signature: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// The signer that a datagram names, if the datagram is long enough for a header and begins with the magic and the version. The flood
    /// filter makes the same check.
    pub(crate) fn named_signer(bytes: &[u8]) -> Option<KeyId> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let (magic, header) = take::<2>(header).ok()?;
        let ([version, _], header) = take::<2>(header).ok()?;
        let (key_id, _) = take::<KEY_ID_BYTES>(header).ok()?;
        (magic == *MAGIC && version == VERSION).then_some(KeyId(key_id))
    }

    /// Parses a datagram.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], [`Refusal::UnsupportedVersion`], [`Refusal::UnknownScheme`] or [`Refusal::WrongLength`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(Refusal::Malformed)?;
        let (magic, header) = take::<2>(header)?;
        let ([version, scheme], header) = take::<2>(header)?;
        let (key_id, header) = take::<KEY_ID_BYTES>(header)?;
        let (stamp, header) = take::<6>(header)?;
        let ([kind], header) = take::<1>(header)?;
        let (payload_bytes, _) = take::<2>(header)?;
        if magic != *MAGIC {
            return Err(Refusal::Malformed);
        }
        if version != VERSION {
            return Err(Refusal::UnsupportedVersion);
        }
        let scheme = Scheme::from_number(scheme).ok_or(Refusal::UnknownScheme)?;
        let kind = PayloadKind::ALL.into_iter().find(|known| known.number() == kind);
        let stamp = stamp.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        let stamp = Stamp::from_bits(stamp).ok_or(Refusal::Malformed)?;
        let payload_bytes = usize::from(u16::from_be_bytes(payload_bytes));
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(Refusal::WrongLength);
        }
        let (payload, rest) = rest.split_at_checked(payload_bytes).ok_or(Refusal::WrongLength)?;
        let (mask_name, signature) = match scheme.is_rapid() {
            true => rest
                .split_first_chunk::<MASK_NAME_BYTES>()
                .map(|(name, signature)| (Some(name), signature))
                .ok_or(Refusal::WrongLength)?,
            false => (None, rest),
        };
        if signature.len() != scheme.signature_bytes() {
            return Err(Refusal::WrongLength);
        }
        Ok(Self {
            scheme,
            key_id: KeyId(key_id),
            stamp,
            kind: kind.ok_or(Refusal::Malformed)?,
            payload,
            mask_name,
            signature,
            before_signature: bytes.get(..HEADER_BYTES + payload_bytes).unwrap_or_default(),
        })
    }

    /// The bytes that a plain scheme signs.
    #[must_use]
    pub fn signed_bytes(&self) -> [&'a [u8]; 2] {
        [SIGNED_PREFIX, self.before_signature]
    }

    /// The bytes that a plain scheme signs, for an encoded message with this payload length.
    pub(crate) fn signed_part(message: &[u8], payload_bytes: usize) -> [&[u8]; 2] {
        let signed = message.get(..HEADER_BYTES + payload_bytes);
        [SIGNED_PREFIX, signed.unwrap_or_default()]
    }
}

/// Splits off the first N bytes.
fn take<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), Refusal> {
    bytes
        .split_first_chunk::<N>()
        .map(|(first, rest)| (*first, rest))
        .ok_or(Refusal::Malformed)
}

#[cfg(test)]
#[path = "envelope_tests.rs"]
mod tests;
