//! Keys, and the derivation of each key from the previous key (LAP/1 1.1, 1.2).
//!
//! `R → RowKey → AuthKey → SessionKey`: a gateway only gets `AuthKey`s derived for its own id. So a thief of an
//! `AuthKey` can neither act as another gateway nor compute `R`.

use core::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use crate::prf::{f, idx_gateway, label};

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Zeroize, ZeroizeOnDrop)]
        pub struct $name([u8; 16]);

        impl $name {
            /// Imports the 16 bytes of a key made elsewhere (a registry, a line of a data plane).
            #[must_use]
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The 16 bytes; do not log them.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.ct_eq(&other.0).into()
            }
        }
        impl Eq for $name {}
    };
}

key!(
    /// The key of one error-corrected response, stored by the enrollment; gateways never get it.
    RowKey
);
key!(
    /// The key of one row (or one key-mode device) at one gateway.
    AuthKey
);
key!(
    /// The key that both sides share after one accepted RESPONSE.
    SessionKey
);

impl RowKey {
    /// Derives the key of row `idx` from the error-corrected response `r` (pool mode).
    ///
    /// `helper_digest` is SHA-256 of the public helper data: with modified helper data the key does not match.
    #[must_use]
    pub fn for_row(
        r: &[u8],
        helper_digest: &[u8; 32],
        suite: Suite,
        device: DeviceId,
        idx: RowIndex,
    ) -> Self {
        let info: [&[u8]; 4] = [
            b"lap1 row",
            &[suite.number()],
            &device.0.to_be_bytes(),
            &idx.0.to_be_bytes(),
        ];
        Self(hkdf16(r, helper_digest, &info))
    }

    /// Derives the one key of a key-mode device from its error-corrected response `r`.
    #[must_use]
    pub fn for_device(r: &[u8], helper_digest: &[u8; 32], suite: Suite, device: DeviceId) -> Self {
        let info: [&[u8]; 3] = [b"lap1 device", &[suite.number()], &device.0.to_be_bytes()];
        Self(hkdf16(r, helper_digest, &info))
    }
}

impl AuthKey {
    /// `auth_key = F(row_key, L(1) | idx | gateway_id)`; in key mode `idx` enters as 0.
    #[must_use]
    pub fn derive(row_key: &RowKey, suite: Suite, mode: Mode, idx: RowIndex, gateway: GatewayId) -> Self {
        let idx = match mode {
            Mode::Pool => idx,
            Mode::Key => RowIndex(0),
        };
        Self(f(
            row_key.as_bytes(),
            &[label(1, suite), idx_gateway(idx, gateway)],
        ))
    }
}

impl SessionKey {
    /// `session_key = F(auth_key, L(2) | RESPONSE.tag)`.
    #[must_use]
    pub fn derive(auth_key: &AuthKey, suite: Suite, response_tag: &[u8; 16]) -> Self {
        let [low, high] = halves(response_tag);
        Self(f(auth_key.as_bytes(), &[label(2, suite), low, high]))
    }
}

/// A 16-byte string as two words.
#[must_use]
pub fn halves(bytes: &[u8; 16]) -> [[u8; 8]; 2] {
    let mut out = [[0u8; 8]; 2];
    out[0].copy_from_slice(&bytes[..8]);
    out[1].copy_from_slice(&bytes[8..]);
    out
}

fn hkdf16(ikm: &[u8], salt: &[u8; 32], info: &[&[u8]]) -> [u8; 16] {
    let mut okm = [0u8; 16];
    // RFC 5869 limits the output to 255 hashes; 16 bytes are always within this limit.
    let expanded = Hkdf::<Sha256>::new(Some(salt), ikm).expand_multi_info(info, &mut okm);
    debug_assert!(expanded.is_ok());
    okm
}
