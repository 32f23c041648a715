//! Authenticates what stands open in the file, so that nobody without the master key can lift a revocation or lower a mark
//! in the file, nor a flipped bit do so by chance.
//!
//! HMAC-SHA-256, cut to 16 bytes, over a fixed encoding of every field. It does not see that a whole row, or the
//! whole file, was put back as it was earlier.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use linewarden_protocol::ids::DeviceId;

use crate::device::{DeviceInfo, Quarantine, Status};
use crate::row::mode_to_column;

/// Bytes of the stored code.
pub(crate) const MAC_BYTES: usize = 16;
const LABEL: &[u8] = b"linewarden registry table device v1";

/// A 64-bit field as two of 32 bits.
pub(crate) fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

/// Makes and checks the codes of one registry.
pub(crate) struct RecordMac {
    keyed: Hmac<Sha256>,
}

impl RecordMac {
    /// Takes a key of SHA-256's block length, which HMAC uses as it is.
    pub(crate) fn new(key: &Zeroizing<[u8; 64]>) -> Self {
        Self {
            keyed: Hmac::new((&**key).into()),
        }
    }

    /// The code of a record.
    pub(crate) fn code(&self, info: &DeviceInfo) -> [u8; MAC_BYTES] {
        let code = self.absorb(info).finalize().into_bytes();
        // SHA-256 has 32 bytes; a zero code verifies nothing.
        code.first_chunk().copied().unwrap_or_default()
    }

    /// Whether `code` is that of the record; takes the same time wherever they differ.
    pub(crate) fn verifies(&self, info: &DeviceInfo, code: &[u8]) -> bool {
        code.len() == MAC_BYTES && self.absorb(info).verify_truncated_left(code).is_ok()
    }

    /// The code of a row of numbers about a device, in the table that `label` names.
    pub(crate) fn code_of(&self, label: &[u8], device: DeviceId, fields: &[u32]) -> [u8; MAC_BYTES] {
        let code = self.absorb_fields(label, device, fields).finalize().into_bytes();
        // SHA-256 has 32 bytes; a zero code verifies nothing.
        code.first_chunk().copied().unwrap_or_default()
    }

    /// Whether `code` is that of the row; takes the same time wherever they differ.
    pub(crate) fn verifies_of(&self, label: &[u8], device: DeviceId, fields: &[u32], code: &[u8]) -> bool {
        let mac = self.absorb_fields(label, device, fields);
        code.len() == MAC_BYTES && mac.verify_truncated_left(code).is_ok()
    }

    /// The code of a row of columns of any kind, in the table that `label` names.
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
            // With its length, or text could move from one field to the next.
            mac.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            mac.update(text.as_bytes());
        }
        // What comes before says where it ends, and codes of before there were quarantines stay what they are.
        if let Some(Quarantine { at_s, reason }) = &info.quarantine {
            mac.update(b"quarantine");
            mac.update(&at_s.to_be_bytes());
            mac.update(reason.as_bytes());
        }
        mac
    }
}

/// A code in the making, over the columns of a row in their order. Each goes in with its kind and, where it needs one, its
/// length, so that nothing can move from one column to the next.
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

    /// The code.
    pub(crate) fn finish(self) -> Vec<u8> {
        let code = self.0.finalize().into_bytes();
        // SHA-256 has 32 bytes.
        code.iter().copied().take(MAC_BYTES).collect()
    }

    /// Whether it is this one; takes the same time wherever they differ.
    pub(crate) fn is(self, code: &[u8]) -> bool {
        code.len() == MAC_BYTES && self.0.verify_truncated_left(code).is_ok()
    }
}
