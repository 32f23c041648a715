//! Authenticates plain-text columns: write access without the master key, or a flipped bit, cannot lift a revocation
//! or lower a mark unnoticed.
//!
//! HMAC-SHA-256, truncated to 16 bytes, over a fixed encoding of every field. It does not detect that a row, or the
//! whole database, was restored to an earlier state.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use linewarden_protocol::ids::DeviceId;

use crate::device::{DeviceInfo, Quarantine, Status};
use crate::row::mode_to_column;

/// Length of the stored MAC, bytes.
pub(crate) const MAC_BYTES: usize = 16;
const LABEL: &[u8] = b"linewarden registry table device v1";

/// Splits a 64-bit field into two of 32 bits.
pub(crate) fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

/// Computes and verifies the MACs of one registry.
pub(crate) struct RecordMac {
    keyed: Hmac<Sha256>,
}

impl RecordMac {
    /// Takes a key of SHA-256's block length, which HMAC uses unchanged.
    pub(crate) fn new(key: &Zeroizing<[u8; 64]>) -> Self {
        Self {
            keyed: Hmac::new((&**key).into()),
        }
    }

    /// The MAC of a device record.
    pub(crate) fn code(&self, info: &DeviceInfo) -> [u8; MAC_BYTES] {
        let code = self.absorb(info).finalize().into_bytes();
        // SHA-256 has 32 bytes, so the default is never used.
        code.first_chunk().copied().unwrap_or_default()
    }

    /// Whether `code` is the MAC of the record, compared in constant time.
    pub(crate) fn verifies(&self, info: &DeviceInfo, code: &[u8]) -> bool {
        code.len() == MAC_BYTES && self.absorb(info).verify_truncated_left(code).is_ok()
    }

    /// The MAC of a row of numbers about a device, in the table of `label`.
    pub(crate) fn code_of(&self, label: &[u8], device: DeviceId, fields: &[u32]) -> [u8; MAC_BYTES] {
        let code = self.absorb_fields(label, device, fields).finalize().into_bytes();
        // SHA-256 has 32 bytes, so the default is never used.
        code.first_chunk().copied().unwrap_or_default()
    }

    /// Whether `code` is the MAC of the row, compared in constant time.
    pub(crate) fn verifies_of(&self, label: &[u8], device: DeviceId, fields: &[u32], code: &[u8]) -> bool {
        let mac = self.absorb_fields(label, device, fields);
        code.len() == MAC_BYTES && mac.verify_truncated_left(code).is_ok()
    }

    /// Starts the MAC of a row of columns of any type, in the table of `label`.
    pub(crate) fn row(&self, label: &[u8]) -> RowCode {
        let mut mac = self.keyed.clone();
        mac.update(label);
        RowCode(mac)
    }

    /// Every table has its own label and number of fields.
    fn absorb_fields(&self, label: &[u8], device: DeviceId, fields: &[u32]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        mac.update(label);
        mac.update(&device.0.to_be_bytes());
        fields.iter().for_each(|field| mac.update(&field.to_be_bytes()));
        mac
    }

    fn absorb(&self, info: &DeviceInfo) -> Hmac<Sha256> {
        let (revoked_at_s, reason) = match &info.status {
            Status::Active => (0, None),
            Status::Revoked { at_s, reason } => (*at_s, Some(reason.as_str())),
        };
        let mut mac = self.keyed.clone();
        mac.update(LABEL);
        mac.update(&info.device.0.to_be_bytes());
        mac.update(&mode_to_column(info.mode).to_be_bytes());
        mac.update(&[info.suite.number(), u8::from(reason.is_some())]);
        mac.update(&revoked_at_s.to_be_bytes());
        mac.update(&info.enrolled_at_s.to_be_bytes());
        mac.update(&info.first_idx.0.to_be_bytes());
        mac.update(&info.rows_total.to_be_bytes());
        mac.update(&info.idx_floor.0.to_be_bytes());
        mac.update(&info.floor_version.to_be_bytes());
        mac.update(&info.epoch.to_be_bytes());
        mac.update(&info.revision.0.to_be_bytes());
        for text in [
            info.name.as_str(),
            info.puf_profile.as_str(),
            reason.unwrap_or_default(),
        ] {
            // The length prefix prevents text from moving to the next field.
            mac.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            mac.update(text.as_bytes());
        }
        // The fields before have a fixed or prefixed length, so the optional quarantine is unambiguous.
        if let Some(Quarantine { at_s, reason }) = &info.quarantine {
            mac.update(b"quarantine");
            mac.update(&at_s.to_be_bytes());
            mac.update(reason.as_bytes());
        }
        mac
    }
}

/// A MAC over the columns of a row in their order. Each column is encoded with its type and, if necessary, its
/// length, so that no value can move to the next column.
pub(crate) struct RowCode(Hmac<Sha256>);

impl RowCode {
    pub(crate) fn number(mut self, value: i64) -> Self {
        self.0.update(&[1]);
        self.0.update(&value.to_be_bytes());
        self
    }

    pub(crate) fn bytes(mut self, value: &[u8]) -> Self {
        self.0.update(&[2]);
        self.0
            .update(&u64::try_from(value.len()).unwrap_or(u64::MAX).to_be_bytes());
        self.0.update(value);
        self
    }

    pub(crate) fn number_or_null(mut self, value: Option<i64>) -> Self {
        match value {
            Some(value) => self.number(value),
            None => {
                self.0.update(&[0]);
                self
            }
        }
    }

    pub(crate) fn bytes_or_null(mut self, value: Option<&[u8]>) -> Self {
        match value {
            Some(value) => self.bytes(value),
            None => {
                self.0.update(&[0]);
                self
            }
        }
    }

    /// The MAC.
    pub(crate) fn finish(self) -> Vec<u8> {
        let code = self.0.finalize().into_bytes();
        // SHA-256 has 32 bytes.
        code.iter().copied().take(MAC_BYTES).collect()
    }

    /// Whether the MAC is this one, compared in constant time.
    pub(crate) fn matches(self, code: &[u8]) -> bool {
        code.len() == MAC_BYTES && self.0.verify_truncated_left(code).is_ok()
    }
}
