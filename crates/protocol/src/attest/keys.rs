//! Attestation keys: `k → k2 → kg`, and the keys for ATTEST_REQUESTs outside a session (LAP/1 3.2).
//!
//! Each key made from k is the HMAC of a message, because k may be in a TPM (`TPM2_HMAC`), which computes nothing else
//! with k. This module defines the messages. [`AttestationKey`] implements the TPM's operation in software.

use core::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use linewarden_forro::{Matrix, R14};
use sha2::Sha256;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::round::{PeriodStart, Round};
use crate::ids::{DeviceId, GatewayId, Period};

macro_rules! key {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Zeroize, ZeroizeOnDrop)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Imports the bytes of a key that was made elsewhere.
            #[must_use]
            pub fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// The bytes; do not log them.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}

key!(
    /// `k`: shared by the controller and the key store of the device.
    AttestationKey, 32
);
key!(
    /// `k2`: proves one configuration in one period.
    PeriodKey, 32
);
key!(
    /// `kg`: proves the configuration to one gateway.
    ProofKey, 32
);
key!(
    /// Authenticates ATTEST_REQUESTs to a device that has no session.
    RequestKey, 16
);

/// h: the hash of a device's configuration (LAP/1 3.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigurationHash(pub [u8; 32]);

impl fmt::Display for ConfigurationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ConfigurationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigurationHash({self})")
    }
}

const PERIOD_LABEL: &[u8; 11] = b"lap1 attest";
const REQUEST_LABEL: &[u8; 11] = b"lap1 attreq";
const GATEWAY_LABEL: &[u8; 2] = b"gw";

/// Length of [`period_message`] in bytes.
pub const PERIOD_MESSAGE_BYTES: usize = 11 + 8 + 8 + 8 + 32;
/// Length of [`request_message`] in bytes.
pub const REQUEST_MESSAGE_BYTES: usize = 11 + 8 + 4 + 8;

/// The HMAC input of `k2`: `"lap1 attest" | device_id | period | salt | h`.
#[must_use]
pub fn period_message(
    device: DeviceId,
    start: &PeriodStart,
    h: &ConfigurationHash,
) -> [u8; PERIOD_MESSAGE_BYTES] {
    concat_parts([
        PERIOD_LABEL,
        &device.0.to_be_bytes(),
        &start.period.0.to_be_bytes(),
        &start.salt,
        &h.0,
    ])
}

/// The HMAC input of a request key: `"lap1 attreq" | device_id | gateway_id | period`. The key is the first half of
/// the HMAC.
#[must_use]
pub fn request_message(device: DeviceId, gateway: GatewayId, period: Period) -> [u8; REQUEST_MESSAGE_BYTES] {
    concat_parts([
        REQUEST_LABEL,
        &device.0.to_be_bytes(),
        &gateway.0.to_be_bytes(),
        &period.0.to_be_bytes(),
    ])
}

/// Concatenates the parts. The parts fill the array; a test checks the sum of their lengths.
fn concat_parts<const PARTS: usize, const BYTES: usize>(parts: [&[u8]; PARTS]) -> [u8; BYTES] {
    let mut bytes_out = [0; BYTES];
    let bytes = parts.into_iter().flatten();
    bytes_out.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    bytes_out
}

fn hmac(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    // HMAC accepts keys of any length, so this key is always valid.
    let Ok(mut state) = Hmac::<Sha256>::new_from_slice(key) else {
        return [0; 32];
    };
    state.update(message);
    state.finalize().into_bytes().into()
}

impl AttestationKey {
    /// HMAC-SHA-256 under k, the only operation on k.
    #[must_use]
    pub fn hmac(&self, message: &[u8]) -> [u8; 32] {
        hmac(&self.0, message)
    }

    /// The key of a period in which the device has configuration h.
    #[must_use]
    pub fn for_period(&self, device: DeviceId, start: &PeriodStart, h: &ConfigurationHash) -> PeriodKey {
        PeriodKey(self.hmac(&period_message(device, start, h)))
    }

    /// The key with which a gateway authenticates its requests in a period when there is no session.
    #[must_use]
    pub fn for_requests(&self, device: DeviceId, gateway: GatewayId, period: Period) -> RequestKey {
        RequestKey::from_hmac(&self.hmac(&request_message(device, gateway, period)))
    }
}

impl RequestKey {
    /// Derives the key from the HMAC of [`request_message`].
    #[must_use]
    pub fn from_hmac(hmac: &[u8; 32]) -> Self {
        let mut key = [0; 16];
        key.iter_mut().zip(hmac).for_each(|(to, byte)| *to = *byte);
        Self(key)
    }
}

impl PeriodKey {
    /// The key given to a gateway: `HMAC(k2, "gw" | gateway_id)`.
    #[must_use]
    pub fn for_gateway(&self, gateway: GatewayId) -> ProofKey {
        let message: [u8; 6] = concat_parts([GATEWAY_LABEL, &gateway.0.to_be_bytes()]);
        ProofKey(hmac(&self.0, &message))
    }
}

impl ProofKey {
    /// The input of Forró's block function. [`linewarden_forro::blocks`] computes many proofs at once.
    ///
    /// The counter is `r`, as a number in wire order.
    #[must_use]
    pub fn matrix(&self, round: &Round) -> Matrix {
        Matrix::new(&self.0, round.forro_counter(), &round.nonce)
    }

    /// The proof of one round.
    #[must_use]
    pub fn prove(&self, round: &Round) -> [u8; 64] {
        self.matrix(round).block::<R14>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fill_the_messages() {
        let start = PeriodStart {
            period: Period(u64::MAX),
            salt: [0xff; 8],
        };
        let h = ConfigurationHash([0xff; 32]);
        let message = period_message(DeviceId(u64::MAX), &start, &h);
        assert!(message.starts_with(PERIOD_LABEL));
        assert_eq!(message[11..], [0xff; PERIOD_MESSAGE_BYTES - 11]);
        let message = request_message(DeviceId(u64::MAX), GatewayId(u32::MAX), Period(u64::MAX));
        assert!(message.starts_with(REQUEST_LABEL));
        assert_eq!(message[11..], [0xff; REQUEST_MESSAGE_BYTES - 11]);
    }
}
