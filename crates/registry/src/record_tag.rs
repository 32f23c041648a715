//! Authenticates the plain-text columns of a record by a tag. A party that can write to the database but lacks the
//! master key cannot lift a revocation or lower a mark unnoticed; a flipped bit is detected too.
//!
//! The tag is HMAC-SHA-256 over a fixed encoding of every field, truncated to 16 bytes. The tag does not reveal that a
//! record, or the whole database, was restored to an earlier state.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use linewarden_protocol::ids::DeviceId;

use crate::conversion::mode_to_column;
use crate::device::{DeviceInfo, Quarantine, Status};

/// Length of a stored tag, bytes.
pub(crate) const TAG_BYTES: usize = 16;
const LABEL: &[u8] = b"linewarden registry table device v1";

/// Splits a 64-bit number into its upper and lower 32 bits.
pub(crate) fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

/// Computes and verifies the tags of the records of one registry.
pub(crate) struct RecordAuthenticator {
    /// HMAC with the key set, before any data; cloned for each tag.
    keyed: Hmac<Sha256>,
}

impl RecordAuthenticator {
    /// Creates the authenticator. The key has SHA-256's block length, so HMAC uses the key unchanged.
    pub(crate) fn new(key: &Zeroizing<[u8; 64]>) -> Self {
        Self {
            keyed: Hmac::new((&**key).into()),
        }
    }

    /// The tag of a device record.
    pub(crate) fn tag(&self, info: &DeviceInfo) -> [u8; TAG_BYTES] {
        let full_tag = self.absorb(info).finalize().into_bytes();
        // The output of SHA-256 has 32 bytes, so the default is never used.
        full_tag.first_chunk().copied().unwrap_or_default()
    }

    /// Whether `tag` is the tag of the device record, compared in constant time.
    pub(crate) fn verifies(&self, info: &DeviceInfo, tag: &[u8]) -> bool {
        tag.len() == TAG_BYTES && self.absorb(info).verify_truncated_left(tag).is_ok()
    }

    /// The tag of a record about a device that consists of numbers only, in the table of `label`.
    pub(crate) fn tag_of_fields(&self, label: &[u8], device: DeviceId, fields: &[u32]) -> [u8; TAG_BYTES] {
        let full_tag = self.absorb_fields(label, device, fields).finalize().into_bytes();
        // The output of SHA-256 has 32 bytes, so the default is never used.
        full_tag.first_chunk().copied().unwrap_or_default()
    }

    /// Whether [`Self::tag_of_fields`] returns `tag`, compared in constant time.
    pub(crate) fn verifies_fields(&self, label: &[u8], device: DeviceId, fields: &[u32], tag: &[u8]) -> bool {
        let hmac = self.absorb_fields(label, device, fields);
        tag.len() == TAG_BYTES && hmac.verify_truncated_left(tag).is_ok()
    }

    /// Begins the tag of a record with columns of any type, in the table of `label`.
    pub(crate) fn begin(&self, label: &[u8]) -> TagBuilder {
        let mut hmac = self.keyed.clone();
        hmac.update(label);
        TagBuilder(hmac)
    }

    /// HMAC over the label, the device id and the fields. Every table has its own label and number of fields.
    fn absorb_fields(&self, label: &[u8], device: DeviceId, fields: &[u32]) -> Hmac<Sha256> {
        let mut hmac = self.keyed.clone();
        hmac.update(label);
        hmac.update(&device.0.to_be_bytes());
        fields.iter().for_each(|field| hmac.update(&field.to_be_bytes()));
        hmac
    }

    /// HMAC over a device record.
    fn absorb(&self, info: &DeviceInfo) -> Hmac<Sha256> {
        let (revoked_at_s, reason) = match &info.status {
            Status::Active => (0, None),
            Status::Revoked { at_s, reason } => (*at_s, Some(reason.as_str())),
        };
        let mut hmac = self.keyed.clone();
        hmac.update(LABEL);
        hmac.update(&info.device.0.to_be_bytes());
        hmac.update(&mode_to_column(info.mode).to_be_bytes());
        hmac.update(&[info.suite.number(), u8::from(reason.is_some())]);
        hmac.update(&revoked_at_s.to_be_bytes());
        hmac.update(&info.enrolled_at_s.to_be_bytes());
        hmac.update(&info.first_idx.0.to_be_bytes());
        hmac.update(&info.rows_total.to_be_bytes());
        hmac.update(&info.idx_floor.0.to_be_bytes());
        hmac.update(&info.floor_version.to_be_bytes());
        hmac.update(&info.epoch.to_be_bytes());
        hmac.update(&info.revision.0.to_be_bytes());
        for text in [
            info.name.as_str(),
            info.puf_profile.as_str(),
            reason.unwrap_or_default(),
        ] {
            // The length prefix prevents that characters move from one text to the next unnoticed.
            hmac.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            hmac.update(text.as_bytes());
        }
        // All preceding fields have a fixed or prefixed length, so the optional quarantine is unambiguous.
        if let Some(Quarantine { at_s, reason }) = &info.quarantine {
            hmac.update(b"quarantine");
            hmac.update(&at_s.to_be_bytes());
            hmac.update(reason.as_bytes());
        }
        hmac
    }
}

/// Builds the tag of a record from its columns, in their order. Each column is encoded with its type and, if
/// necessary, its length, so that no part of a value can move to the next column unnoticed.
pub(crate) struct TagBuilder(Hmac<Sha256>);

impl TagBuilder {
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

    /// The tag.
    pub(crate) fn finish(self) -> Vec<u8> {
        let full_tag = self.0.finalize().into_bytes();
        full_tag.iter().copied().take(TAG_BYTES).collect()
    }

    /// Whether the record has this tag, compared in constant time.
    pub(crate) fn matches(self, tag: &[u8]) -> bool {
        tag.len() == TAG_BYTES && self.0.verify_truncated_left(tag).is_ok()
    }
}
