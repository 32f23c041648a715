//! Tickets: messages between a device and the controller, sealed end to end past the gateway (LAP/1 1.7).
//!
//! The gateway in between knows `auth_key` and the session's key, but never a [`RowKey`]; so it can neither read nor
//! forge what is sealed under a [`TicketRoot`]. A question shows the gateway besides, under the session's key, that it
//! comes from the holder of its session. No I/O and no heap: the caller owns buffers, sockets and randomness.

mod body;
mod evidence;
mod paired;

use core::fmt;

use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{AeadInOut as _, Key, KeyInit as _, Tag, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::ids::{DeviceId, GatewayId, RowIndex, SessionId, Suite};
use crate::keys::{RowKey, SessionKey, halves};
use crate::prf::{f_padded, label};
use crate::tag;

pub use body::{
    Ask, Bodies, NewRow, Outcome, ROW_BYTES, ROWS_PER_MESSAGE, STATE_BYTES, State, write_key, write_rows,
};

pub use evidence::{EVIDENCE_BYTES_MAX, PIECE_BYTES_MAX, Piece, ReportId, TAKEN_BYTES, Taken};
pub use paired::{PAIRED_BYTES, Paired};

/// First two bytes of every ticket: "LT".
pub const MAGIC: u16 = 0x4C54;
/// Version of the form.
pub const VERSION: u8 = 1;
/// Bytes of the head, which travels in the clear and is authenticated.
pub const HEAD_BYTES: usize = 64;
/// Bytes that a sealed message has beside its body: head, AEAD nonce, AEAD tag.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + AEAD_NONCE_BYTES + AEAD_TAG_BYTES;
/// The longest message: with DATA's header it fits every link of 1,280 bytes.
pub const MESSAGE_BYTES_MAX: usize = 1_176;
/// What a question has besides, for the gateway that carries it: serial number and proof.
pub const CARRIAGE_BYTES: usize = 8 + PROOF_BYTES;
/// The longest body.
pub const BODY_BYTES_MAX: usize = MESSAGE_BYTES_MAX - OVERHEAD_BYTES - CARRIAGE_BYTES;

const AEAD_NONCE_BYTES: usize = 24;
const AEAD_TAG_BYTES: usize = 16;
const PROOF_BYTES: usize = 16;
/// Begins the associated data.
const LABEL: &[u8; 14] = b"lap1 ticket v1";

/// UDP port of a gateway's desk, where tickets are taken, unless another is named: LAP's plus 2, as the next one is the
/// classic profiles'.
#[must_use]
pub fn desk_port(lap_port: u16) -> Option<u16> {
    lap_port.checked_add(2)
}

/// What a message is about, `kind u8` of the head. An answer has its question's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// How the device's enrolment stands. Changes nothing.
    Status = 1,
    /// New rows of a pool.
    Rows = 2,
    /// A new key of a key-mode device.
    Key = 3,
    /// A key for a pair with another device. Changes nothing of the device's.
    Pair = 4,
    /// A piece of what the device knows about its own configuration. Changes nothing of the device's enrolment.
    Evidence = 5,
}

impl Kind {
    /// All of them, by number.
    pub const ALL: &'static [Self] = &[Self::Status, Self::Rows, Self::Key, Self::Pair, Self::Evidence];

    /// The kind of that number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| *kind as u8 == number)
    }
}

/// Which way a message goes, `direction u8` of the head; none opens as one of the other way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Direction {
    /// Device to controller.
    Up = 1,
    /// Controller to device.
    Down = 2,
}

/// The key between a device and the controller for the length of one session.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct TicketRoot([u8; 32]);

impl fmt::Debug for TicketRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketRoot(..)")
    }
}

impl PartialEq for TicketRoot {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}
impl Eq for TicketRoot {}

/// Which session a ticket belongs to: everything that its key is made from beside the row key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Of the device.
    pub suite: Suite,
    /// The device.
    pub device: DeviceId,
    /// The gateway that holds the session.
    pub gateway: GatewayId,
    /// The row that opened it; in key mode the number that the RESPONSE carried.
    pub idx: RowIndex,
    /// Tag of the RESPONSE that opened it.
    pub response_tag: [u8; 16],
}

impl Opening {
    /// The session's id; `None` for a tag that opens none.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        let [id, _] = halves(&self.response_tag);
        SessionId::from_wire(id)
    }
}

impl TicketRoot {
    /// `HKDF-SHA-256(row_key, RESPONSE.tag, "lap1 ticket" | suite | device_id | idx | gateway_id)`, 32 bytes.
    #[must_use]
    pub fn derive(row_key: &RowKey, opening: &Opening) -> Self {
        let info: [&[u8]; 5] = [
            b"lap1 ticket",
            &[opening.suite.number()],
            &opening.device.0.to_be_bytes(),
            &opening.idx.0.to_be_bytes(),
            &opening.gateway.0.to_be_bytes(),
        ];
        let mut root = Self([0; 32]);
        // RFC 5869 bounds the output by 255 hashes; one is within it.
        let expanded = Hkdf::<Sha256>::new(Some(&opening.response_tag), row_key.as_bytes())
            .expand_multi_info(&info, &mut root.0);
        debug_assert!(expanded.is_ok());
        root
    }

    /// The 32 bytes, for test vectors; do not log them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&Key::from(self.0))
    }
}

/// The head, in the clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHead {
    magic: U16,
    version: u8,
    kind: u8,
    suite: u8,
    direction: u8,
    length: U16,
    device_id: U64,
    gateway_id: U32,
    idx: U32,
    response_tag: [u8; 16],
    number: U64,
    nonce: [u8; 16],
}
const _: () = assert!(size_of::<WireHead>() == HEAD_BYTES);

/// What the head of a ticket says. Nothing of it is proved before the ticket is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What it is about.
    pub kind: Kind,
    /// Which way it goes.
    pub direction: Direction,
    /// Whose session.
    pub opening: Opening,
    /// Above every number that the controller has accepted of this device; an answer has its question's.
    pub number: u64,
    /// Random, of the one who asks; an answer has its question's.
    pub nonce: [u8; 16],
}

impl Head {
    /// The head of the answer to a question with this head.
    #[must_use]
    pub fn answer(&self) -> Self {
        Self {
            direction: Direction::Down,
            ..*self
        }
    }

    fn to_wire(self, length: u16) -> WireHead {
        let opening = &self.opening;
        WireHead {
            magic: U16::new(MAGIC),
            version: VERSION,
            kind: self.kind as u8,
            suite: opening.suite.number(),
            direction: self.direction as u8,
            length: U16::new(length),
            device_id: U64::new(opening.device.0),
            gateway_id: U32::new(opening.gateway.0),
            idx: U32::new(opening.idx.0),
            response_tag: opening.response_tag,
            number: U64::new(self.number),
            nonce: self.nonce,
        }
    }

    fn from_wire(wire: &WireHead) -> Option<Self> {
        let direction = match wire.direction {
            1 => Direction::Up,
            2 => Direction::Down,
            _ => return None,
        };
        if wire.magic.get() != MAGIC || wire.version != VERSION || wire.device_id.get() == 0 {
            return None;
        }
        let opening = Opening {
            suite: Suite::from_number(wire.suite)?,
            device: DeviceId(wire.device_id.get()),
            gateway: GatewayId(wire.gateway_id.get()),
            idx: RowIndex(wire.idx.get()),
            response_tag: wire.response_tag,
        };
        opening.session()?;
        Some(Self {
            kind: Kind::from_number(wire.kind)?,
            direction,
            opening,
            number: wire.number.get(),
            nonce: wire.nonce,
        })
    }
}

/// A message that is no ticket, or one that does not open: altered, reflected, of another session or device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TicketError {
    /// Not of this form.
    #[error("not a ticket of version 1")]
    Malformed,
    /// The AEAD's tag does not verify.
    #[error("the ticket does not open")]
    NotAuthentic,
    /// The buffer or the form has no room for it.
    #[error("a body of {bytes} B does not fit")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// What shows a gateway that a question comes from the holder of its session (LAP/1 1.7.2).
#[derive(Clone, Copy, Debug)]
pub struct Carriage<'a> {
    /// Of the session that the head names.
    pub key: &'a SessionKey,
    /// Above that of each question before in this session.
    pub serial: u64,
}

/// A question's proof for its gateway: `F(session_key, L(3), all bytes before it)`.
fn proof(key: &SessionKey, suite: Suite, before: &[u8]) -> [u8; PROOF_BYTES] {
    f_padded(key.as_bytes(), &[label(3, suite)], before)
}

/// What a question says to its gateway.
#[derive(Clone, Copy, Debug)]
struct Carried<'a> {
    serial: u64,
    before: &'a [u8],
    proof: [u8; PROOF_BYTES],
}

/// A ticket whose form is right; nothing in it is authenticated.
#[derive(Clone, Copy, Debug)]
pub struct Sealed<'a> {
    head: Head,
    /// Of a question.
    carried: Option<Carried<'a>>,
    associated: [u8; LABEL.len() + HEAD_BYTES],
    nonce: [u8; AEAD_NONCE_BYTES],
    body: &'a [u8],
    tag: [u8; AEAD_TAG_BYTES],
}

impl<'a> Sealed<'a> {
    /// Reads a datagram: the head's fields in their order, the length exact.
    ///
    /// # Errors
    /// [`TicketError::Malformed`].
    pub fn parse(message: &'a [u8]) -> Result<Self, TicketError> {
        let read = || {
            let (wire, rest) = WireHead::ref_from_prefix(message).ok()?;
            let fits = usize::from(wire.length.get()) == message.len() && message.len() <= MESSAGE_BYTES_MAX;
            let head = Head::from_wire(wire).filter(|_| fits)?;
            let (nonce, rest) = rest.split_first_chunk()?;
            let (carried, rest) = match head.direction {
                Direction::Down => (None, rest),
                Direction::Up => {
                    let (before, proof) = message.split_last_chunk()?;
                    let (rest, _) = rest.split_last_chunk::<PROOF_BYTES>()?;
                    let (rest, serial) = rest.split_last_chunk()?;
                    let serial = u64::from_be_bytes(*serial);
                    let proof = *proof;
                    (
                        Some(Carried {
                            serial,
                            before,
                            proof,
                        }),
                        rest,
                    )
                }
            };
            let (body, tag) = rest.split_last_chunk()?;
            Some(Self {
                head,
                carried,
                associated: associated(wire),
                nonce: *nonce,
                body,
                tag: *tag,
            })
        };
        read().ok_or(TicketError::Malformed)
    }

    /// What it claims.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The serial number of a question that comes from the holder of the session with that key; `None`: it does not, or is
    /// no question.
    #[must_use]
    pub fn proven_serial(&self, key: &SessionKey) -> Option<u64> {
        let carried = self.carried.as_ref()?;
        let expected = proof(key, self.head.opening.suite, carried.before);
        tag::verify(&expected, &carried.proof).map(|_| carried.serial)
    }

    /// Opens it into `room`, which holds the body then and nothing else.
    ///
    /// # Errors
    /// [`TicketError::NotAuthentic`]; `room` is wiped then.
    pub fn open<'r>(&self, root: &TicketRoot, room: &'r mut Room) -> Result<&'r [u8], TicketError> {
        let length = self.body.len();
        let plain = room.0.get_mut(..length).ok_or(TicketError::Malformed)?;
        plain.copy_from_slice(self.body);
        let opened = root.cipher().decrypt_inout_detached(
            &XNonce::from(self.nonce),
            &self.associated,
            InOutBuf::from(&mut *plain),
            &Tag::from(self.tag),
        );
        if opened.is_err() {
            plain.zeroize();
            return Err(TicketError::NotAuthentic);
        }
        Ok(plain)
    }
}

/// Room for the body of one ticket, wiped when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Room([u8; BODY_BYTES_MAX]);

impl Default for Room {
    fn default() -> Self {
        Self([0; BODY_BYTES_MAX])
    }
}

/// Seals a question into `out`; returns the message's length. `aead_nonce` is 24 random bytes, never used before under
/// this root.
///
/// # Errors
/// [`TicketError::TooLong`].
pub fn seal_question(
    root: &TicketRoot,
    head: &Head,
    carriage: &Carriage<'_>,
    aead_nonce: [u8; AEAD_NONCE_BYTES],
    body: &[u8],
    out: &mut [u8],
) -> Result<usize, TicketError> {
    let head = Head {
        direction: Direction::Up,
        ..*head
    };
    let length = seal(root, &head, aead_nonce, body, CARRIAGE_BYTES, out)?;
    let too_long = TicketError::TooLong { bytes: body.len() };
    let message = out.get_mut(..length).ok_or(too_long)?;
    let (before, place) = message.split_last_chunk_mut().ok_or(too_long)?;
    let (_, serial) = before.split_last_chunk_mut().ok_or(too_long)?;
    *serial = carriage.serial.to_be_bytes();
    *place = proof(carriage.key, head.opening.suite, before);
    Ok(length)
}

/// Seals the answer to a question with this head into `out`; returns the message's length. `aead_nonce` as of a question.
///
/// # Errors
/// [`TicketError::TooLong`].
pub fn seal_answer(
    root: &TicketRoot,
    question: &Head,
    aead_nonce: [u8; AEAD_NONCE_BYTES],
    body: &[u8],
    out: &mut [u8],
) -> Result<usize, TicketError> {
    seal(root, &question.answer(), aead_nonce, body, 0, out)
}

/// Seals `body` into `out`, and leaves that many bytes behind it.
fn seal(
    root: &TicketRoot,
    head: &Head,
    aead_nonce: [u8; AEAD_NONCE_BYTES],
    body: &[u8],
    behind: usize,
    out: &mut [u8],
) -> Result<usize, TicketError> {
    let too_long = TicketError::TooLong { bytes: body.len() };
    let length = OVERHEAD_BYTES + body.len() + behind;
    let out = out
        .get_mut(..length)
        .filter(|_| body.len() <= BODY_BYTES_MAX)
        .ok_or(too_long)?;
    let wire = head.to_wire(u16::try_from(length).map_err(|_| too_long)?);
    let (front, rest) = out.split_at_mut(HEAD_BYTES);
    let (nonce, rest) = rest.split_at_mut(AEAD_NONCE_BYTES);
    let (sealed, rest) = rest.split_at_mut(body.len());
    let (tag, _) = rest.split_first_chunk_mut().ok_or(too_long)?;
    front.copy_from_slice(wire.as_bytes());
    nonce.copy_from_slice(&aead_nonce);
    sealed.copy_from_slice(body);
    let made = root.cipher().encrypt_inout_detached(
        &XNonce::from(aead_nonce),
        &associated(&wire),
        InOutBuf::from(&mut *sealed),
    );
    match made {
        Ok(made) => {
            *tag = made.into();
            Ok(length)
        }
        // Only a body of 256 GiB fails.
        Err(_) => {
            sealed.zeroize();
            Err(too_long)
        }
    }
}

fn associated(head: &WireHead) -> [u8; LABEL.len() + HEAD_BYTES] {
    let mut bytes = [0u8; LABEL.len() + HEAD_BYTES];
    let (label, rest) = bytes.split_at_mut(LABEL.len());
    label.copy_from_slice(LABEL);
    rest.copy_from_slice(head.as_bytes());
    bytes
}

#[cfg(test)]
mod tests;
