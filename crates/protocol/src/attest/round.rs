//! A round: what a gateway asks all its provers at once.

use zerocopy::byteorder::big_endian::{U32, U64};

use super::keys::RequestKey;
use crate::ids::{DeviceId, GatewayId, Period, RoundNumber, Suite};
use crate::keys::SessionKey;
use crate::tag;
use crate::wire::{AttestRequest, Header, PROOF_BYTES, Proof, message_type};

/// A period as it is told to devices when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeriodStart {
    /// Which.
    pub period: Period,
    /// Random; nobody can make the period's keys before it is told.
    pub salt: [u8; 8],
}

/// One sweep of one gateway over its provers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// Who asks.
    pub gateway: GatewayId,
    /// Increasing at that gateway, never used twice, never 0.
    pub number: RoundNumber,
    /// Random; told when the round begins.
    pub nonce: [u8; 8],
    /// The period that is proven.
    pub start: PeriodStart,
}

impl Round {
    /// `r`: gateway_id ‖ round.
    #[must_use]
    pub fn r(&self) -> u64 {
        u64::from(self.gateway.0) << 32 | u64::from(self.number.0)
    }

    /// What the device is asked, in a session.
    #[must_use]
    pub fn request(&self, device: DeviceId, key: &SessionKey) -> AttestRequest {
        self.tagged(device, key.as_bytes())
    }

    /// What the device is asked, without a session.
    #[must_use]
    pub fn request_without_session(&self, device: DeviceId, key: &RequestKey) -> AttestRequest {
        self.tagged(device, key.as_bytes())
    }

    fn tagged(&self, device: DeviceId, key: &[u8; 16]) -> AttestRequest {
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
    pub fn answer(&self, device: DeviceId, proof: [u8; 64]) -> Proof {
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
