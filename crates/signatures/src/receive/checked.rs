//! A message whose form is right: all but its equation has been checked.

use std::sync::Arc;

use crate::key::PublicKey;
use crate::message::{Envelope, KeyId, MASK_NAME_BYTES, PayloadKind, Stamp};
use crate::ra::Digits;

/// Form, signer, layout, time and ranges of this message are right, and it was not accepted before. Whether it is its signer's, a lane
/// finds out.
#[derive(Debug, Clone)]
pub struct Checked {
    key: Arc<PublicKey>,
    form: Form,
    /// The whole message.
    bytes: Vec<u8>,
    /// With RA.
    digits: Option<Digits>,
}

/// Where the parts of a message are, and what its header says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    stamp: Stamp,
    kind: PayloadKind,
    payload_bytes: usize,
    signature_bytes: usize,
}

impl From<&Envelope<'_>> for Form {
    fn from(envelope: &Envelope<'_>) -> Self {
        Self {
            stamp: envelope.stamp,
            kind: envelope.kind,
            payload_bytes: envelope.payload.len(),
            signature_bytes: envelope.signature.len(),
        }
    }
}

impl Checked {
    /// To be called where all of it has been checked, of the message that `bytes` are.
    pub(super) fn assertion(key: Arc<PublicKey>, form: Form, digits: Option<Digits>, bytes: Vec<u8>) -> Self {
        Self {
            key,
            form,
            digits,
            bytes,
        }
    }

    /// Whose signature it says it has.
    #[must_use]
    pub fn key(&self) -> &Arc<PublicKey> {
        &self.key
    }

    /// The signer's name.
    #[must_use]
    pub fn signer(&self) -> KeyId {
        self.key.id()
    }

    /// When it says it was signed, and how urgent it says it is.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.form.stamp
    }

    /// What the payload is.
    #[must_use]
    pub fn kind(&self) -> PayloadKind {
        self.form.kind
    }

    /// The message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes
            .get(crate::message::HEADER_BYTES..)
            .and_then(|rest| rest.get(..self.form.payload_bytes))
            .unwrap_or_default()
    }

    /// The signature: below n, or with its numbers in their ranges.
    #[must_use]
    pub fn signature(&self) -> &[u8] {
        self.bytes
            .len()
            .checked_sub(self.form.signature_bytes)
            .and_then(|start| self.bytes.get(start..))
            .unwrap_or_default()
    }

    /// The components' numbers and the mask's name, with RA.
    #[must_use]
    pub fn rapid(&self) -> Option<(&Digits, &[u8; MASK_NAME_BYTES])> {
        let before = self.bytes.len().checked_sub(self.form.signature_bytes)?;
        let name = self.bytes.get(..before)?.last_chunk()?;
        Some((self.digits.as_ref()?, name))
    }

    /// What a plain scheme has signed, in two parts.
    #[must_use]
    pub fn signed_bytes(&self) -> [&[u8]; 2] {
        Envelope::signed_part(&self.bytes, self.form.payload_bytes)
    }
}
