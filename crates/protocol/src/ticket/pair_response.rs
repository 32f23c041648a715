//! The response to a request for a pair (LAP/1 1.7.5).

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::DeviceId;
use crate::pair::{Pairing, Role};

use super::TicketError;

/// Length of the response.
pub const PAIR_RESPONSE_BYTES: usize = 80;
/// Possible results of the request: there is a pair, or none.
const OUTCOMES: [u8; 2] = [1, 5];

/// A pair, as the controller sends it to one of its devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairResponse {
    /// The other device.
    pub peer: DeviceId,
    /// The key and this device's role; `None`: there is no such pair.
    pub pair: Option<(Pairing, Role)>,
    /// Lifetime of the key in seconds.
    pub lifetime_s: u32,
    /// The address of the peer's session if it is at the same gateway; else zero.
    pub addr: [u8; 16],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WirePairResponse {
    outcome: u8,
    role: u8,
    reserved: [u8; 2],
    lifetime_s: U32,
    peer: U64,
    pair_id: [u8; 16],
    key: [u8; 32],
    addr: [u8; 16],
}
const _: () = assert!(size_of::<WirePairResponse>() == PAIR_RESPONSE_BYTES);

impl PairResponse {
    /// The response in wire format; wipe the bytes after use.
    #[must_use]
    pub fn to_wire(&self) -> [u8; PAIR_RESPONSE_BYTES] {
        let [has_pair, no_pair] = OUTCOMES;
        let empty = WirePairResponse {
            outcome: no_pair,
            role: 0,
            reserved: [0; 2],
            lifetime_s: U32::new(0),
            peer: U64::new(self.peer.0),
            pair_id: [0; 16],
            key: [0; 32],
            addr: [0; 16],
        };
        let wire = match &self.pair {
            None => empty,
            Some((pairing, role)) => WirePairResponse {
                outcome: has_pair,
                role: *role as u8,
                lifetime_s: U32::new(self.lifetime_s),
                pair_id: pairing.id,
                key: pairing.key,
                addr: self.addr,
                ..empty
            },
        };
        let mut bytes = [0; PAIR_RESPONSE_BYTES];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Parses the body of a response.
    ///
    /// # Errors
    /// [`TicketError::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Self, TicketError> {
        let read = || {
            let wire = WirePairResponse::ref_from_bytes(body).ok()?;
            let peer = DeviceId(wire.peer.get());
            let [has_pair, no_pair] = OUTCOMES;
            let response = Self {
                peer,
                pair: match wire.outcome {
                    outcome if outcome == no_pair => None,
                    outcome if outcome == has_pair => {
                        let pairing = Pairing {
                            id: wire.pair_id,
                            key: wire.key,
                        };
                        Some((pairing, Role::from_number(wire.role)?))
                    }
                    _ => return None,
                },
                lifetime_s: wire.lifetime_s.get(),
                addr: wire.addr,
            };
            let is_usable = response
                .pair
                .as_ref()
                .is_none_or(|(pairing, _)| response.lifetime_s > 0 && pairing.key != [0; 32]);
            let is_canonical = response.pair.is_some() || response.to_wire() == *body;
            (peer.0 != 0 && wire.reserved == [0; 2] && is_usable && is_canonical).then_some(response)
        };
        read().ok_or(TicketError::Malformed)
    }
}
