//! Pairs: two devices that exchange messages under a key from the controller (LAP/1 1.7.5). No I/O and no heap.
//!
//! ```text
//!   initiator                                responder
//!   HELLO   (nonce_i)        ──────────────►            authenticated by the key of the pair
//!           ◄──────────────── WELCOME (nonce_r)         by a key from both nonces: proves that the responder is active
//!   DATA 1                   ──────────────►            by the second such key: proves that the initiator is active
//! ```
//! The keys, one for each direction, are derived from the pair's key, both nonces, and the ids of initiator and
//! responder. A message that is reflected, of another pair, of another handshake or of the other role does not open.

mod association;

use core::fmt;

use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{AeadInOut as _, Key, KeyInit as _, Tag, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use sha2::Sha256;
use zerocopy::byteorder::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::ids::DeviceId;
use crate::window::Window;

pub use association::{Association, Path, Random};

/// First two bytes of every message: "LP".
pub const MAGIC: u16 = 0x4C50;
/// Version of the format.
pub const VERSION: u8 = 1;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 32;
/// Length of HELLO and WELCOME: header, nonce, tag.
pub const HANDSHAKE_BYTES: usize = HEADER_BYTES + NONCE_BYTES + TAG_BYTES;
/// Length of a DATA message without its payload.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;

const NONCE_BYTES: usize = 16;
const TAG_BYTES: usize = 16;

/// The role of a device in a pair, assigned by the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Role {
    /// Sends HELLO.
    Initiator = 1,
    /// Replies with WELCOME.
    Responder = 2,
}

impl Role {
    /// The role of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Initiator),
            2 => Some(Self::Responder),
            _ => None,
        }
    }

    /// The role of the peer.
    #[must_use]
    pub fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// The key and the id of a pair, which the controller sends to both devices.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Pairing {
    /// Random; identifies the key.
    pub id: [u8; 16],
    /// `K_AB`.
    pub key: [u8; 32],
}

impl fmt::Debug for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pairing(..)")
    }
}

/// One side of a pair.
#[derive(Clone, Debug)]
pub struct Side {
    /// The pair.
    pub pairing: Pairing,
    /// The role of this side.
    pub role: Role,
    /// This device.
    pub own: DeviceId,
    /// The peer device.
    pub peer: DeviceId,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Hello = 1,
    Welcome = 2,
    Data = 3,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U16,
    version: u8,
    kind: u8,
    role: u8,
    reserved: [u8; 3],
    pair_id: [u8; 16],
    seq: U64,
}
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// Why a message was rejected or could not be sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PairError {
    /// Wrong format, another pair, kind or role, or the message does not open.
    #[error("message rejected: not of this pair, or altered")]
    Unrecognized,
    /// The number of the message was received before, or is too old.
    #[error("message rejected: its number was received before")]
    Replayed,
    /// No room, or no number left.
    #[error("message not sealed: no room, or no number left")]
    CannotSeal,
}

/// The keys of one handshake, one for each direction.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
struct Keys {
    from_initiator: [u8; 32],
    from_responder: [u8; 32],
}

impl Keys {
    fn for_sending(&self, role: Role) -> &[u8; 32] {
        match role {
            Role::Initiator => &self.from_initiator,
            Role::Responder => &self.from_responder,
        }
    }
}

impl Side {
    fn header(&self, kind: Kind, role: Role, seq: u64) -> Header {
        Header {
            magic: U16::new(MAGIC),
            version: VERSION,
            kind: kind as u8,
            role: role as u8,
            reserved: [0; 3],
            pair_id: self.pairing.id,
            seq: U64::new(seq),
        }
    }

    /// Derives keys with HKDF; the info is `"lap1 pair" | purpose | id of the initiator | id of the responder`.
    fn derive(&self, purpose: u8, salt: &[u8], okm: &mut [u8]) {
        let (initiator, responder) = match self.role {
            Role::Initiator => (self.own, self.peer),
            Role::Responder => (self.peer, self.own),
        };
        let info: [&[u8]; 4] = [
            b"lap1 pair",
            &[purpose],
            &initiator.0.to_be_bytes(),
            &responder.0.to_be_bytes(),
        ];
        // RFC 5869 limits the output to 255 hashes; these are two hashes.
        let expanded = Hkdf::<Sha256>::new(Some(salt), &self.pairing.key).expand_multi_info(&info, okm);
        debug_assert!(expanded.is_ok());
    }

    /// The key of a HELLO. Only the initiator sends a HELLO, so the responder's key is unused.
    fn hello_key(&self) -> Keys {
        let mut key = [0; 32];
        self.derive(1, &self.pairing.id, &mut key);
        Keys {
            from_initiator: key,
            from_responder: [0; 32],
        }
    }

    fn session_keys(&self, nonce_i: &[u8; NONCE_BYTES], nonce_r: &[u8; NONCE_BYTES]) -> Keys {
        let mut salt = [0; 2 * NONCE_BYTES];
        let (front, back) = salt.split_at_mut(NONCE_BYTES);
        front.copy_from_slice(nonce_i);
        back.copy_from_slice(nonce_r);
        let mut okm = [0; 64];
        self.derive(2, &salt, &mut okm);
        let mut keys = Keys {
            from_initiator: [0; 32],
            from_responder: [0; 32],
        };
        let (front, back) = okm.split_at(32);
        keys.from_initiator.copy_from_slice(front);
        keys.from_responder.copy_from_slice(back);
        okm.zeroize();
        keys
    }

    /// The HELLO of an initiator; the nonce is random.
    #[must_use]
    pub fn hello(&self, nonce_i: &[u8; NONCE_BYTES]) -> [u8; HANDSHAKE_BYTES] {
        let head = self.header(Kind::Hello, Role::Initiator, 0);
        handshake(&self.hello_key().from_initiator, &head, nonce_i)
    }

    /// The responder's reply to a HELLO, with a random nonce, and the offered session.
    ///
    /// # Errors
    /// [`PairError::Unrecognized`].
    pub fn welcome(
        &self,
        message: &[u8],
        nonce_r: &[u8; NONCE_BYTES],
    ) -> Result<([u8; HANDSHAKE_BYTES], Session), PairError> {
        if self.role != Role::Responder {
            return Err(PairError::Unrecognized);
        }
        let head = self.header(Kind::Hello, Role::Initiator, 0);
        let nonce_i = open_handshake(|_| self.hello_key().from_initiator, &head, message)?;
        let keys = self.session_keys(&nonce_i, nonce_r);
        let head = self.header(Kind::Welcome, Role::Responder, 0);
        let reply = handshake(&keys.from_responder, &head, nonce_r);
        Ok((reply, Session::new(self, keys)))
    }

    /// The initiator's session, from the reply to its HELLO with `nonce_i`.
    ///
    /// # Errors
    /// [`PairError::Unrecognized`].
    pub fn accept_welcome(&self, nonce_i: &[u8; NONCE_BYTES], message: &[u8]) -> Result<Session, PairError> {
        if self.role != Role::Initiator {
            return Err(PairError::Unrecognized);
        }
        let head = self.header(Kind::Welcome, Role::Responder, 0);
        let keys = |nonce_r: &[u8; NONCE_BYTES]| self.session_keys(nonce_i, nonce_r);
        let nonce_r = open_handshake(|nonce_r| keys(nonce_r).from_responder, &head, message)?;
        Ok(Session::new(self, keys(&nonce_r)))
    }
}

/// Whether a message of this pair is a HELLO, by its header.
#[must_use]
fn is_hello(message: &[u8]) -> bool {
    Header::ref_from_prefix(message).is_ok_and(|(head, _)| head.kind == Kind::Hello as u8)
}

/// The pair id in the header of a message.
#[must_use]
pub fn pair_id(message: &[u8]) -> Option<[u8; 16]> {
    let (head, _) = Header::ref_from_prefix(message).ok()?;
    (head.magic.get() == MAGIC && head.version == VERSION).then_some(head.pair_id)
}

/// The result of a handshake: a key and message numbers for each direction.
pub struct Session {
    header: Header,
    role: Role,
    keys: Keys,
    /// The last number used.
    last_sent: u32,
    window: Window,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Session({:?}, sent {}, {:?})",
            self.role, self.last_sent, self.window
        )
    }
}

impl Session {
    fn new(side: &Side, keys: Keys) -> Self {
        Self {
            header: side.header(Kind::Data, side.role, 0),
            role: side.role,
            keys,
            last_sent: 0,
            window: Window::new(0),
        }
    }

    /// Seals a payload, which may be empty; returns the length of the message in `out`.
    ///
    /// # Errors
    /// [`PairError::CannotSeal`].
    pub fn seal(&mut self, payload: &[u8], out: &mut [u8]) -> Result<usize, PairError> {
        let length = OVERHEAD_BYTES + payload.len();
        let out = out.get_mut(..length).ok_or(PairError::CannotSeal)?;
        let seq = self.last_sent.checked_add(1).ok_or(PairError::CannotSeal)?;
        let head = Header {
            seq: U64::new(seq.into()),
            ..self.header
        };
        let (front, rest) = out.split_at_mut(HEADER_BYTES);
        let (body, tag) = rest.split_at_mut(payload.len());
        front.copy_from_slice(head.as_bytes());
        body.copy_from_slice(payload);
        let result = cipher(self.keys.for_sending(self.role)).encrypt_inout_detached(
            &nonce(seq),
            head.as_bytes(),
            InOutBuf::from(&mut *body),
        );
        match result {
            Ok(aead_tag) => tag.copy_from_slice(&aead_tag),
            Err(_) => {
                body.zeroize();
                return Err(PairError::CannotSeal);
            }
        }
        self.last_sent = seq;
        Ok(length)
    }

    /// Opens a message of the peer in place; returns the payload. A copy of an opened message does not open.
    ///
    /// # Errors
    /// [`PairError::Unrecognized`], [`PairError::Replayed`].
    pub fn open<'m>(&mut self, message: &'m mut [u8]) -> Result<&'m [u8], PairError> {
        self.open_in_place(message)?;
        let end = message.len().saturating_sub(TAG_BYTES);
        message.get(HEADER_BYTES..end).ok_or(PairError::Unrecognized)
    }

    /// As [`Session::open`]; returns whether the message has the highest number so far. A message that does not open
    /// is unchanged: the AEAD verifies before it decrypts.
    fn open_in_place(&mut self, message: &mut [u8]) -> Result<bool, PairError> {
        let (front, rest) = message
            .split_first_chunk_mut::<HEADER_BYTES>()
            .ok_or(PairError::Unrecognized)?;
        let (body, tag) = rest
            .split_last_chunk_mut::<TAG_BYTES>()
            .ok_or(PairError::Unrecognized)?;
        let seq = Header::ref_from_bytes(front).map_or(0, |head| head.seq.get());
        let expected = Header {
            role: self.role.peer() as u8,
            seq: U64::new(seq),
            ..self.header
        };
        let seq = u32::try_from(seq).map_err(|_| PairError::Unrecognized)?;
        if front != expected.as_bytes() {
            return Err(PairError::Unrecognized);
        }
        let window = self.window.accept(seq).ok_or(PairError::Replayed)?;
        cipher(self.keys.for_sending(self.role.peer()))
            .decrypt_inout_detached(
                &nonce(seq),
                expected.as_bytes(),
                InOutBuf::from(&mut *body),
                &Tag::from(*tag),
            )
            .map_err(|_| PairError::Unrecognized)?;
        let is_newest = seq > self.window.top();
        self.window = window;
        Ok(is_newest)
    }
}

fn cipher(key: &[u8; 32]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&Key::from(*key))
}

/// `zero[16] | seq u64`: each key serves one direction of one handshake.
fn nonce(seq: u32) -> XNonce {
    let mut nonce = [0; 24];
    let (_, low) = nonce.split_at_mut(20);
    low.copy_from_slice(&seq.to_be_bytes());
    XNonce::from(nonce)
}

/// `header | nonce | tag`: the AEAD tag of an empty text, with the header as associated data and `nonce | zero[8]` as
/// its nonce. No DATA has this nonce, because message numbers are not 0.
fn handshake(key: &[u8; 32], head: &Header, nonce: &[u8; NONCE_BYTES]) -> [u8; HANDSHAKE_BYTES] {
    let mut message = [0; HANDSHAKE_BYTES];
    let (front, rest) = message.split_at_mut(HEADER_BYTES);
    let (middle, tag) = rest.split_at_mut(NONCE_BYTES);
    front.copy_from_slice(head.as_bytes());
    middle.copy_from_slice(nonce);
    tag.copy_from_slice(&handshake_tag(key, head, nonce));
    message
}

fn handshake_tag(key: &[u8; 32], head: &Header, nonce: &[u8; NONCE_BYTES]) -> [u8; TAG_BYTES] {
    let mut aead_nonce = [0; 24];
    let (front, _) = aead_nonce.split_at_mut(NONCE_BYTES);
    front.copy_from_slice(nonce);
    let result = cipher(key).encrypt_inout_detached(
        &XNonce::from(aead_nonce),
        head.as_bytes(),
        InOutBuf::from(&mut [][..]),
    );
    // An empty message always fits.
    result.map_or([0; TAG_BYTES], Into::into)
}

/// The nonce of a handshake message with this header, if its tag verifies under the key derived from the nonce.
fn open_handshake(
    key: impl FnOnce(&[u8; NONCE_BYTES]) -> [u8; 32],
    head: &Header,
    message: &[u8],
) -> Result<[u8; NONCE_BYTES], PairError> {
    let message: &[u8; HANDSHAKE_BYTES] = message.try_into().map_err(|_| PairError::Unrecognized)?;
    let (front, rest) = message.split_at(HEADER_BYTES);
    let (nonce, tag) = rest
        .split_first_chunk::<NONCE_BYTES>()
        .ok_or(PairError::Unrecognized)?;
    let tag: &[u8; TAG_BYTES] = tag.try_into().map_err(|_| PairError::Unrecognized)?;
    if front != head.as_bytes() {
        return Err(PairError::Unrecognized);
    }
    let mut key = key(nonce);
    let verified = crate::tag::verify(&handshake_tag(&key, head, nonce), tag);
    key.zeroize();
    verified.map(|_| *nonce).ok_or(PairError::Unrecognized)
}

#[cfg(test)]
mod tests;
