//! Tickets: messages between a device and the controller, encrypted end to end (LAP/1 1.7).
//!
//! The gateway that relays a ticket knows `auth_key` and the session key, but never a [`RowKey`]. So the gateway can
//! neither read nor forge messages sealed under a [`TicketRoot`]. A request additionally proves to the gateway, under
//! the session key, that the request comes from the holder of the session. No I/O and no heap: the caller owns buffers,
//! sockets and randomness.

mod body;
mod evidence;
mod outcome;
mod pair_response;

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
    EnrollmentState, NewRow, ROW_BYTES, ROWS_PER_MESSAGE, STATE_BYTES, TicketRequest, write_key, write_rows,
};

pub use evidence::{CHUNK_ACK_BYTES, CHUNK_BYTES_MAX, ChunkAck, EVIDENCE_BYTES_MAX, EvidenceChunk, ReportId};
pub use outcome::Outcome;
pub use pair_response::{PAIR_RESPONSE_BYTES, PairResponse};

/// First two bytes of every ticket: "LT".
pub const MAGIC: u16 = 0x4C54;
/// Version of the format.
pub const VERSION: u8 = 1;
/// Length of the header in bytes. The header is authenticated but not encrypted.
pub const HEADER_BYTES: usize = 64;
/// Length of a sealed message without its body: header, AEAD nonce, AEAD tag.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + AEAD_NONCE_BYTES + AEAD_TAG_BYTES;
/// Maximum length of a message in bytes: with DATA's header it fits every link with an MTU of 1,280 bytes.
pub const MESSAGE_BYTES_MAX: usize = 1_176;
/// Length of the part of a request that its gateway checks: serial number and proof.
pub const RELAY_AUTH_BYTES: usize = 8 + PROOF_BYTES;
/// Maximum length of a body in bytes.
pub const BODY_BYTES_MAX: usize = MESSAGE_BYTES_MAX - OVERHEAD_BYTES - RELAY_AUTH_BYTES;

/// A buffer for the longest body.
pub type BodyBuffer = [u8; BODY_BYTES_MAX];

const AEAD_NONCE_BYTES: usize = 24;
const AEAD_TAG_BYTES: usize = 16;
const PROOF_BYTES: usize = 16;
/// Start of the associated data.
const LABEL: &[u8; 14] = b"lap1 ticket v1";

/// The gateway's UDP port for tickets, unless another port is configured: LAP's port plus 2 (docs/protocols.md 1.7).
/// `None` if the sum is not a port.
#[must_use]
pub fn ticket_port(lap_port: u16) -> Option<u16> {
    lap_port.checked_add(2)
}

/// The subject of a message, `kind u8` of the header. A response has the kind of its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Queries the enrollment state of the device. Changes nothing.
    Status = 1,
    /// New rows of a pool.
    Rows = 2,
    /// A new key of a key-mode device.
    Key = 3,
    /// A key for a pair with another device. Does not change the enrollment of the device.
    Pair = 4,
    /// A chunk of evidence about the device's configuration. Does not change the enrollment of the device.
    Evidence = 5,
}

impl Kind {
    /// All kinds, by number.
    pub const ALL: &'static [Self] = &[Self::Status, Self::Rows, Self::Key, Self::Pair, Self::Evidence];

    /// The kind of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| *kind as u8 == number)
    }
}

/// The direction of a message, `direction u8` of the header; a message does not open in the other direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Direction {
    /// Device to controller.
    Up = 1,
    /// Controller to device.
    Down = 2,
}

/// The key shared by a device and the controller for one session.
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

/// The session of a ticket: all inputs of its key except the row key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TicketSession {
    /// The suite of the device.
    pub suite: Suite,
    /// The device.
    pub device: DeviceId,
    /// The gateway of the session.
    pub gateway: GatewayId,
    /// The row that opened the session; in key mode the number in the RESPONSE.
    pub idx: RowIndex,
    /// Tag of the RESPONSE that opened the session.
    pub response_tag: [u8; 16],
}

impl TicketSession {
    /// The session id; `None` if the tag cannot open a session.
    #[must_use]
    pub fn session_id(&self) -> Option<SessionId> {
        let [id, _] = halves(&self.response_tag);
        SessionId::from_wire(id)
    }
}

impl TicketRoot {
    /// `HKDF-SHA-256(row_key, RESPONSE.tag, "lap1 ticket" | suite | device_id | idx | gateway_id)`, 32 bytes.
    #[must_use]
    pub fn derive(row_key: &RowKey, session: &TicketSession) -> Self {
        let info: [&[u8]; 5] = [
            b"lap1 ticket",
            &[session.suite.number()],
            &session.device.0.to_be_bytes(),
            &session.idx.0.to_be_bytes(),
            &session.gateway.0.to_be_bytes(),
        ];
        let mut root = Self([0; 32]);
        // RFC 5869 limits the output to 255 hashes; this is one hash.
        let expanded = Hkdf::<Sha256>::new(Some(&session.response_tag), row_key.as_bytes())
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

/// The header, not encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHeader {
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
const _: () = assert!(size_of::<WireHeader>() == HEADER_BYTES);

/// The header of a ticket. It is not authenticated before the ticket is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TicketHeader {
    /// The subject of the ticket.
    pub kind: Kind,
    /// The direction of the message.
    pub direction: Direction,
    /// The session of the message.
    pub session: TicketSession,
    /// Above every number that the controller has accepted from this device; a response has the number of its
    /// request.
    pub number: u64,
    /// Random, chosen by the sender of the request; a response has the nonce of its request.
    pub nonce: [u8; 16],
}

impl TicketHeader {
    /// The header of the response to a request with this header.
    #[must_use]
    pub fn response_header(&self) -> Self {
        Self {
            direction: Direction::Down,
            ..*self
        }
    }

    fn to_wire(self, length: u16) -> WireHeader {
        let session = &self.session;
        WireHeader {
            magic: U16::new(MAGIC),
            version: VERSION,
            kind: self.kind as u8,
            suite: session.suite.number(),
            direction: self.direction as u8,
            length: U16::new(length),
            device_id: U64::new(session.device.0),
            gateway_id: U32::new(session.gateway.0),
            idx: U32::new(session.idx.0),
            response_tag: session.response_tag,
            number: U64::new(self.number),
            nonce: self.nonce,
        }
    }

    fn from_wire(wire: &WireHeader) -> Option<Self> {
        let direction = match wire.direction {
            1 => Direction::Up,
            2 => Direction::Down,
            _ => return None,
        };
        if wire.magic.get() != MAGIC || wire.version != VERSION || wire.device_id.get() == 0 {
            return None;
        }
        let session = TicketSession {
            suite: Suite::from_number(wire.suite)?,
            device: DeviceId(wire.device_id.get()),
            gateway: GatewayId(wire.gateway_id.get()),
            idx: RowIndex(wire.idx.get()),
            response_tag: wire.response_tag,
        };
        session.session_id()?;
        Some(Self {
            kind: Kind::from_number(wire.kind)?,
            direction,
            session,
            number: wire.number.get(),
            nonce: wire.nonce,
        })
    }
}

/// Why a ticket was rejected or could not be sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TicketError {
    /// Not in this format.
    #[error("message rejected: not a ticket of version 1")]
    Malformed,
    /// The AEAD's tag does not verify: the ticket is altered, reflected, or of another session or device.
    #[error("ticket rejected: it is altered, or of another session or device")]
    NotAuthentic,
    /// The buffer or the format has no room for the body.
    #[error("ticket not sealed: no room for a body of {bytes} B")]
    TooLong {
        /// The length of the body.
        bytes: usize,
    },
}

/// The proof to a gateway that a request comes from the holder of the session (LAP/1 1.7.2).
#[derive(Clone, Copy, Debug)]
pub struct RelayAuth<'a> {
    /// The key of the session in the header.
    pub key: &'a SessionKey,
    /// The serial number of the request, above the serial number of each earlier request in this session.
    pub serial: u64,
}

/// A request's proof for its gateway: `F(session_key, L(3), all bytes before the proof)`.
fn proof(key: &SessionKey, suite: Suite, proven_bytes: &[u8]) -> [u8; PROOF_BYTES] {
    f_padded(key.as_bytes(), &[label(3, suite)], proven_bytes)
}

/// The part of a request that its gateway checks.
#[derive(Clone, Copy, Debug)]
struct RelayProof<'a> {
    serial: u64,
    proven_bytes: &'a [u8],
    proof: [u8; PROOF_BYTES],
}

/// A ticket in a valid format; nothing in it is authenticated.
#[derive(Clone, Copy, Debug)]
pub struct SealedTicket<'a> {
    header: TicketHeader,
    /// Present in requests.
    relay_proof: Option<RelayProof<'a>>,
    associated_data: [u8; LABEL.len() + HEADER_BYTES],
    nonce: [u8; AEAD_NONCE_BYTES],
    body: &'a [u8],
    tag: [u8; AEAD_TAG_BYTES],
}

impl<'a> SealedTicket<'a> {
    /// Parses a datagram: the header fields in their order, the exact length.
    ///
    /// # Errors
    /// [`TicketError::Malformed`].
    pub fn parse(message: &'a [u8]) -> Result<Self, TicketError> {
        let read = || {
            let (wire, rest) = WireHeader::ref_from_prefix(message).ok()?;
            let fits = usize::from(wire.length.get()) == message.len() && message.len() <= MESSAGE_BYTES_MAX;
            let head = TicketHeader::from_wire(wire).filter(|_| fits)?;
            let (nonce, rest) = rest.split_first_chunk()?;
            let (relay_proof, rest) = match head.direction {
                Direction::Down => (None, rest),
                Direction::Up => {
                    let (proven_bytes, proof) = message.split_last_chunk()?;
                    let (rest, _) = rest.split_last_chunk::<PROOF_BYTES>()?;
                    let (rest, serial) = rest.split_last_chunk()?;
                    let serial = u64::from_be_bytes(*serial);
                    let proof = *proof;
                    (
                        Some(RelayProof {
                            serial,
                            proven_bytes,
                            proof,
                        }),
                        rest,
                    )
                }
            };
            let (body, tag) = rest.split_last_chunk()?;
            Some(Self {
                header: head,
                relay_proof,
                associated_data: associated_data(wire),
                nonce: *nonce,
                body,
                tag: *tag,
            })
        };
        read().ok_or(TicketError::Malformed)
    }

    /// The header, not authenticated.
    #[must_use]
    pub fn header(&self) -> &TicketHeader {
        &self.header
    }

    /// The serial number of a request from the holder of the session with this key; `None` if the proof does not
    /// verify or the message is not a request.
    #[must_use]
    pub fn verified_serial(&self, key: &SessionKey) -> Option<u64> {
        let relay_proof = self.relay_proof.as_ref()?;
        let expected = proof(key, self.header.session.suite, relay_proof.proven_bytes);
        tag::verify(&expected, &relay_proof.proof).map(|_| relay_proof.serial)
    }

    /// Decrypts the ticket into `buffer`, and returns the body.
    ///
    /// # Errors
    /// [`TicketError::NotAuthentic`]; `buffer` is wiped.
    pub fn open<'r>(
        &self,
        root: &TicketRoot,
        buffer: &'r mut PlaintextBuffer,
    ) -> Result<&'r [u8], TicketError> {
        let length = self.body.len();
        let plain = buffer.0.get_mut(..length).ok_or(TicketError::Malformed)?;
        plain.copy_from_slice(self.body);
        let result = root.cipher().decrypt_inout_detached(
            &XNonce::from(self.nonce),
            &self.associated_data,
            InOutBuf::from(&mut *plain),
            &Tag::from(self.tag),
        );
        if result.is_err() {
            plain.zeroize();
            return Err(TicketError::NotAuthentic);
        }
        Ok(plain)
    }
}

/// A buffer for the body of one ticket, wiped when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct PlaintextBuffer([u8; BODY_BYTES_MAX]);

impl Default for PlaintextBuffer {
    fn default() -> Self {
        Self([0; BODY_BYTES_MAX])
    }
}

/// Seals a request into `out`; returns the length of the message. `aead_nonce` is 24 random bytes, never used before
/// under this root.
///
/// # Errors
/// [`TicketError::TooLong`].
pub fn seal_request(
    root: &TicketRoot,
    head: &TicketHeader,
    relay_auth: &RelayAuth<'_>,
    aead_nonce: [u8; AEAD_NONCE_BYTES],
    body: &[u8],
    out: &mut [u8],
) -> Result<usize, TicketError> {
    let head = TicketHeader {
        direction: Direction::Up,
        ..*head
    };
    let length = seal(root, &head, aead_nonce, body, RELAY_AUTH_BYTES, out)?;
    let too_long = TicketError::TooLong { bytes: body.len() };
    let message = out.get_mut(..length).ok_or(too_long)?;
    let (proven_bytes, proof_bytes) = message.split_last_chunk_mut().ok_or(too_long)?;
    let (_, serial) = proven_bytes.split_last_chunk_mut().ok_or(too_long)?;
    *serial = relay_auth.serial.to_be_bytes();
    *proof_bytes = proof(relay_auth.key, head.session.suite, proven_bytes);
    Ok(length)
}

/// Seals the response to a request with this header into `out`; returns the length of the message. `aead_nonce` is 24
/// random bytes, never used before under this root.
///
/// # Errors
/// [`TicketError::TooLong`].
pub fn seal_response(
    root: &TicketRoot,
    request: &TicketHeader,
    aead_nonce: [u8; AEAD_NONCE_BYTES],
    body: &[u8],
    out: &mut [u8],
) -> Result<usize, TicketError> {
    seal(root, &request.response_header(), aead_nonce, body, 0, out)
}

/// Seals `body` into `out`, and reserves `reserved_bytes` after it.
fn seal(
    root: &TicketRoot,
    head: &TicketHeader,
    aead_nonce: [u8; AEAD_NONCE_BYTES],
    body: &[u8],
    reserved_bytes: usize,
    out: &mut [u8],
) -> Result<usize, TicketError> {
    let too_long = TicketError::TooLong { bytes: body.len() };
    let length = OVERHEAD_BYTES + body.len() + reserved_bytes;
    let out = out
        .get_mut(..length)
        .filter(|_| body.len() <= BODY_BYTES_MAX)
        .ok_or(too_long)?;
    let wire = head.to_wire(u16::try_from(length).map_err(|_| too_long)?);
    let (front, rest) = out.split_at_mut(HEADER_BYTES);
    let (nonce, rest) = rest.split_at_mut(AEAD_NONCE_BYTES);
    let (sealed, rest) = rest.split_at_mut(body.len());
    let (tag, _) = rest.split_first_chunk_mut().ok_or(too_long)?;
    front.copy_from_slice(wire.as_bytes());
    nonce.copy_from_slice(&aead_nonce);
    sealed.copy_from_slice(body);
    let result = root.cipher().encrypt_inout_detached(
        &XNonce::from(aead_nonce),
        &associated_data(&wire),
        InOutBuf::from(&mut *sealed),
    );
    match result {
        Ok(aead_tag) => {
            *tag = aead_tag.into();
            Ok(length)
        }
        // The encryption fails only for a body of 256 GiB or more.
        Err(_) => {
            sealed.zeroize();
            Err(too_long)
        }
    }
}

fn associated_data(head: &WireHeader) -> [u8; LABEL.len() + HEADER_BYTES] {
    let mut bytes = [0u8; LABEL.len() + HEADER_BYTES];
    let (label, rest) = bytes.split_at_mut(LABEL.len());
    label.copy_from_slice(LABEL);
    rest.copy_from_slice(head.as_bytes());
    bytes
}

#[cfg(test)]
mod tests;
