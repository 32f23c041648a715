//! Messages on the wire (LAP/1 1.3): fixed layouts, and one parser that rejects everything else.
//!
//! Every message except DATA and PROOF is [`MESSAGE_BYTES`] long, so a reply is never longer than its request.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{DeviceId, Suite};
use crate::verdict::Verdict;

/// UDP port of LAP/1.
pub const LAP_PORT: u16 = 20550;
/// UDP port of a device for the ATTEST_REQUESTs of gateways (LAP/1 3.2).
pub const ATTEST_PORT: u16 = 20554;
/// First two bytes of every message: "LW".
pub const MAGIC: u16 = 0x4C57;
/// Protocol version.
pub const VERSION: u8 = 1;
/// Size of every message except DATA and PROOF, bytes.
pub const MESSAGE_BYTES: usize = 64;
/// Size of the header, bytes.
pub const HEADER_BYTES: usize = 16;
/// Size of a DATA message without its payload, bytes.
pub const DATA_HEADER_BYTES: usize = 56;
/// Size of a PROOF, bytes.
pub const PROOF_BYTES: usize = 96;
/// Flag of a RESPONSE whose tag covers the sender's MAC address.
pub const FLAG_BOUND: u8 = 0x01;

/// Message types, `type u8` of the header.
pub mod message_type {
    /// Device to gateway.
    pub const REQUEST: u8 = 1;
    /// Gateway to device.
    pub const CHALLENGE: u8 = 2;
    /// Device to gateway.
    pub const RESPONSE: u8 = 3;
    /// Gateway to device.
    pub const ACK: u8 = 4;
    /// Gateway to device, untagged, for display only.
    pub const NAK: u8 = 5;
    /// Sealed datagram from the device.
    pub const DATA_UP: u8 = 6;
    /// Sealed datagram to the device.
    pub const DATA_DOWN: u8 = 7;
    /// Gateway to device.
    pub const ATTEST_REQUEST: u8 = 16;
    /// Device to gateway.
    pub const PROOF: u8 = 17;
}

macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident, $bytes:expr, { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

wire_struct!(
    /// The header of every message.
    Header, HEADER_BYTES, {
        /// [`MAGIC`].
        magic: U16,
        /// [`VERSION`].
        version: u8,
        /// One of [`message_type`].
        kind: u8,
        /// Cipher suite.
        suite: u8,
        /// [`FLAG_BOUND`] in a RESPONSE, else 0.
        flags: u8,
        /// UDP length − 8.
        length: U16,
        /// The device that sends or receives the message.
        device_id: U64,
    }
);
wire_struct!(
    /// Type 1.
    Request, MESSAGE_BYTES, {
        /// Header.
        header: Header,
        /// New for each handshake, from a CSPRNG.
        nonce: [u8; 16],
        /// Zero; makes the request as long as its reply.
        reserved: [u8; 32],
    }
);
wire_struct!(
    /// Type 2.
    Challenge, MESSAGE_BYTES, {
        /// Header.
        header: Header,
        /// Row that the gateway offers.
        idx: U32,
        /// The gateway.
        gateway_id: U32,
        /// Seed that the device expands to its PUF's challenge; zero in key mode.
        challenge: [u8; 8],
        /// The gateway's freshness value.
        fresh: [u8; 8],
        /// The first half of the REQUEST's nonce.
        nonce_echo: [u8; 8],
        /// Over header, device, nonce, idx, gateway, challenge, fresh.
        tag: [u8; 16],
    }
);
wire_struct!(
    /// Type 3.
    Response, MESSAGE_BYTES, {
        /// Header.
        header: Header,
        /// The REQUEST's nonce.
        nonce: [u8; 16],
        /// As in the CHALLENGE.
        idx: U32,
        /// As in the CHALLENGE.
        gateway_id: U32,
        /// As in the CHALLENGE.
        fresh: [u8; 8],
        /// Over header, device, nonce, idx, gateway, fresh, loc.
        tag: [u8; 16],
    }
);
wire_struct!(
    /// Type 4.
    Ack, MESSAGE_BYTES, {
        /// Header.
        header: Header,
        /// Row that was spent.
        idx: U32,
        /// The session lifetime in seconds, from the acceptance.
        session_lifetime_s: U32,
        /// The session, `RESPONSE.tag[0:8]`.
        session_id: [u8; 8],
        /// Over header, idx ‖ session_lifetime_s, session_id, seen_ip, under the session key.
        tag: [u8; 16],
        /// Source address of the RESPONSE as the gateway saw it; IPv4 as ::ffff:a.b.c.d.
        seen_ip: [u8; 16],
    }
);
wire_struct!(
    /// Type 5: for display only.
    Nak, MESSAGE_BYTES, {
        /// Header.
        header: Header,
        /// The row that could not be offered.
        idx: U32,
        /// One of [`nak_reason`].
        reason: u8,
        /// Zero.
        reserved: [u8; 43],
    }
);
wire_struct!(
    /// Types 6 and 7 before the payload.
    Data, DATA_HEADER_BYTES, {
        /// Header.
        header: Header,
        /// The session.
        session_id: [u8; 8],
        /// From 1, increasing; the high half is zero.
        seq: U64,
        /// Upwards the destination port behind the gate, downwards the UDP destination port set by the service.
        port: U16,
        /// Zero.
        reserved: [u8; 6],
        /// Over header, seq, ports, peer address, payload.
        tag: [u8; 16],
    }
);
wire_struct!(
    /// Type 16 (LAP/1 3.2).
    AttestRequest, MESSAGE_BYTES, {
        /// Header.
        header: Header,
        /// The gateway that sends the request.
        gateway_id: U32,
        /// The gateway's round.
        round: U32,
        /// The nonce of the round, published when the round begins.
        nonce: [u8; 8],
        /// The period to prove.
        period: U64,
        /// The salt of the period, published when the period begins.
        salt: [u8; 8],
        /// Over header, device, gateway ‖ round, nonce, period, salt.
        tag: [u8; 16],
    }
);
wire_struct!(
    /// Type 17 (LAP/1 3.2).
    Proof, PROOF_BYTES, {
        /// Header.
        header: Header,
        /// As in the ATTEST_REQUEST.
        gateway_id: U32,
        /// As in the ATTEST_REQUEST.
        round: U32,
        /// As in the ATTEST_REQUEST.
        nonce: [u8; 8],
        /// One block of Forró14.
        proof: [u8; 64],
    }
);

/// Reasons in a NAK. A device displays them and never acts on them.
pub mod nak_reason {
    /// The gateway holds no row of this device now.
    pub const NO_ROWS: u8 = 1;
    /// The gateway is stopping.
    pub const STOPPING: u8 = 2;
}

impl Header {
    /// A header of this version for a 64-byte message.
    #[must_use]
    pub fn new(kind: u8, suite: Suite, flags: u8, device: DeviceId) -> Self {
        Self::with_length(kind, suite, flags, device, MESSAGE_BYTES as u16)
    }

    /// A header of this version for a message of `length` bytes.
    #[must_use]
    pub fn with_length(kind: u8, suite: Suite, flags: u8, device: DeviceId, length: u16) -> Self {
        Self {
            magic: U16::new(MAGIC),
            version: VERSION,
            kind,
            suite: suite.number(),
            flags,
            length: U16::new(length),
            device_id: U64::new(device.0),
        }
    }

    /// `H0`: the first 8 bytes, the start of every tag input.
    #[must_use]
    pub fn h0(&self) -> [u8; 8] {
        let [magic0, magic1] = self.magic.to_bytes();
        let [length0, length1] = self.length.to_bytes();
        [
            magic0,
            magic1,
            self.version,
            self.kind,
            self.suite,
            self.flags,
            length0,
            length1,
        ]
    }

    /// The device id in the header.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        DeviceId(self.device_id.get())
    }
}

/// A message with a valid layout. It is not authenticated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Message<'a> {
    /// Type 1.
    Request(&'a Request),
    /// Type 2.
    Challenge(&'a Challenge),
    /// Type 3.
    Response(&'a Response),
    /// Type 4.
    Ack(&'a Ack),
    /// Type 5.
    Nak(&'a Nak),
    /// Type 6 and its payload.
    DataUp(&'a Data, &'a [u8]),
    /// Type 7 and its payload.
    DataDown(&'a Data, &'a [u8]),
    /// Type 16.
    AttestRequest(&'a AttestRequest),
    /// Type 17.
    Proof(&'a Proof),
}

/// Parses the payload of a UDP datagram to a LAP port of this host.
///
/// # Errors
/// The drop reason, checked in this order: length of the header, magic, version, type, suite, length field, flags,
/// device id, reserved fields. Every data plane keeps this order, so that counters agree.
pub fn parse(payload: &[u8]) -> Result<Message<'_>, Verdict> {
    let (header, _) = Header::ref_from_prefix(payload).map_err(|_| Verdict::DropLength)?;
    if header.magic.get() != MAGIC {
        return Err(Verdict::DropMagic);
    }
    if header.version != VERSION {
        return Err(Verdict::DropVersion);
    }
    match header.kind {
        message_type::REQUEST..=message_type::DATA_DOWN
        | message_type::ATTEST_REQUEST
        | message_type::PROOF => {}
        _ => return Err(Verdict::DropType),
    }
    if Suite::from_number(header.suite).is_none() {
        return Err(Verdict::DropSuite);
    }
    let length_fits = match header.kind {
        message_type::DATA_UP | message_type::DATA_DOWN => payload.len() >= DATA_HEADER_BYTES,
        message_type::PROOF => payload.len() == PROOF_BYTES,
        _ => payload.len() == MESSAGE_BYTES,
    };
    if !length_fits || usize::from(header.length.get()) != payload.len() {
        return Err(Verdict::DropLength);
    }
    let allowed_flags = if header.kind == message_type::RESPONSE {
        FLAG_BOUND
    } else {
        0
    };
    if header.flags & !allowed_flags != 0 {
        return Err(Verdict::DropFlags);
    }
    if header.device_id.get() == 0 {
        return Err(Verdict::DropDeviceZero);
    }
    parse_body(header.kind, payload)
}

fn parse_body(kind: u8, payload: &[u8]) -> Result<Message<'_>, Verdict> {
    fn body<T: FromBytes + KnownLayout + Immutable + Unaligned>(payload: &[u8]) -> Result<&T, Verdict> {
        T::ref_from_bytes(payload).map_err(|_| Verdict::DropLength)
    }
    let reserved = |bytes: &[u8]| {
        if bytes.iter().all(|b| *b == 0) {
            Ok(())
        } else {
            Err(Verdict::DropReserved)
        }
    };
    match kind {
        message_type::REQUEST => {
            let request: &Request = body(payload)?;
            reserved(&request.reserved)?;
            Ok(Message::Request(request))
        }
        message_type::CHALLENGE => body(payload).map(Message::Challenge),
        message_type::RESPONSE => body(payload).map(Message::Response),
        message_type::ACK => body(payload).map(Message::Ack),
        message_type::ATTEST_REQUEST => body(payload).map(Message::AttestRequest),
        message_type::PROOF => body(payload).map(Message::Proof),
        message_type::NAK => {
            let nak: &Nak = body(payload)?;
            reserved(&nak.reserved)?;
            Ok(Message::Nak(nak))
        }
        _ => {
            let (data, rest) = Data::ref_from_prefix(payload).map_err(|_| Verdict::DropLength)?;
            reserved(&data.reserved)?;
            Ok(if kind == message_type::DATA_UP {
                Message::DataUp(data, rest)
            } else {
                Message::DataDown(data, rest)
            })
        }
    }
}
