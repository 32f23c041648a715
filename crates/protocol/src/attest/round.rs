//! An attestation round: the request that a gateway sends to all its provers.

use sha2::{Digest as _, Sha256};
use zerocopy::byteorder::big_endian::{U32, U64};

use super::keys::RequestKey;
use crate::ids::{DeviceId, GatewayId, Period, RoundNumber, Suite};
use crate::keys::SessionKey;
use crate::tag;
use crate::wire::{AttestRequest, Header, PROOF_BYTES, Proof, message_type};

/// A period and its salt, as announced to devices at the start of the period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeriodStart {
    /// The period.
    pub period: Period,
    /// Random. Without the salt the keys of the period cannot be computed in advance.
    pub salt: [u8; 8],
}

const QUOTE_LABEL: &[u8; 10] = b"lap1 quote";

/// The nonce of a TPM quote in a period: SHA-256 of `"lap1 quote" | device_id | period | salt`.
///
/// The quote needs no request of its own: the salt is published at the start of the period and makes the quote fresh.
#[must_use]
pub fn quote_nonce(device: DeviceId, start: &PeriodStart) -> [u8; 32] {
    Sha256::new()
        .chain_update(QUOTE_LABEL)
        .chain_update(device.0.to_be_bytes())
        .chain_update(start.period.0.to_be_bytes())
        .chain_update(start.salt)
        .finalize()
        .into()
}

/// One attestation round of one gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// The gateway that sends the requests.
    pub gateway: GatewayId,
    /// Increases with each round of the gateway, never repeats, and is never 0.
    pub number: RoundNumber,
    /// Random; published when the round begins.
    pub nonce: [u8; 8],
    /// The period to prove.
    pub start: PeriodStart,
}

impl Round {
    /// `r`: gateway_id ‖ round, the counter of the Forró block.
    #[must_use]
    pub fn forro_counter(&self) -> u64 {
        u64::from(self.gateway.0) << 32 | u64::from(self.number.0)
    }

    /// The ATTEST_REQUEST for a device with a session.
    #[must_use]
    pub fn request(&self, device: DeviceId, key: &SessionKey) -> AttestRequest {
        self.tagged_request(device, key.as_bytes())
    }

    /// The ATTEST_REQUEST for a device without a session.
    #[must_use]
    pub fn request_without_session(&self, device: DeviceId, key: &RequestKey) -> AttestRequest {
        self.tagged_request(device, key.as_bytes())
    }

    fn tagged_request(&self, device: DeviceId, key: &[u8; 16]) -> AttestRequest {
        let header = Header::new(message_type::ATTEST_REQUEST, Suite::SipHash128, 0, device);
        let mut message = AttestRequest {
            header,
            gateway_id: U32::new(self.gateway.0),
            round: U32::new(self.number.0),
            nonce: self.nonce,
            period: U64::new(self.start.period.0),
            salt: self.start.salt,
            tag: [0; 16],
        };
        message.tag = tag::attest_request(key, &message);
        message
    }

    /// The PROOF message.
    #[must_use]
    pub fn proof_message(&self, device: DeviceId, proof: [u8; 64]) -> Proof {
        let length = PROOF_BYTES as u16;
        Proof {
            header: Header::with_length(message_type::PROOF, Suite::SipHash128, 0, device, length),
            gateway_id: U32::new(self.gateway.0),
            round: U32::new(self.number.0),
            nonce: self.nonce,
            proof,
        }
    }
}

impl From<&AttestRequest> for Round {
    fn from(message: &AttestRequest) -> Self {
        Self {
            gateway: GatewayId(message.gateway_id.get()),
            number: RoundNumber(message.round.get()),
            nonce: message.nonce,
            start: PeriodStart {
                period: Period(message.period.get()),
                salt: message.salt,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quote_nonce_is_the_hash_in_the_specification() {
        let start = PeriodStart {
            period: Period(0x1112_1314_1516_1718),
            salt: *b"saltsalt",
        };
        let device = DeviceId(0x0102_0304_0506_0708);
        let text = b"lap1 quote\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x18saltsalt";
        let expected: [u8; 32] = Sha256::digest(text).into();
        assert_eq!(quote_nonce(device, &start), expected);
    }
}
