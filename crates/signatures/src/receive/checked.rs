//! A message that passed all checks except the verification of its signature.

use std::sync::Arc;

use crate::key::PublicKey;
use crate::message::{Envelope, KeyId, MASK_NAME_BYTES, PayloadKind, Stamp};
use crate::ra::Digits;

/// Form, signer, layout, time and ranges of this message are valid, and the message was not accepted before. A lane verifies the
/// signature.
#[derive(Debug, Clone)]
pub struct Checked {
    key: Arc<PublicKey>,
    form: MessageForm,
    /// The complete message.
    bytes: Vec<u8>,
    /// For RA, the number of each component's value.
    digits: Option<Digits>,
}

/// Positions of the parts of a message, and the fields of its header.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageForm {
    stamp: Stamp,
    kind: PayloadKind,
    payload_bytes: usize,
    signature_bytes: usize,
}

impl From<&Envelope<'_>> for MessageForm {
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
    /// The caller guarantees that all parts of the message in `bytes` have been checked.
    pub(super) fn from_checked_parts(
        key: Arc<PublicKey>,
        form: MessageForm,
        digits: Option<Digits>,
        bytes: Vec<u8>,
    ) -> Self {
        Self {
            key,
            form,
            digits,
            bytes,
        }
    }

    /// The claimed signer's key.
    #[must_use]
    pub fn key(&self) -> &Arc<PublicKey> {
        &self.key
    }

    /// The claimed signer.
    #[must_use]
    pub fn signer(&self) -> KeyId {
        self.key.id()
    }

    /// Claimed time and priority.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.form.stamp
    }

    /// Type of the payload.
    #[must_use]
    pub fn kind(&self) -> PayloadKind {
        self.form.kind
    }

    /// The complete message.
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

    /// The signature; its numbers are in their ranges.
    #[must_use]
    pub fn signature(&self) -> &[u8] {
        self.bytes
            .len()
            .checked_sub(self.form.signature_bytes)
            .and_then(|start| self.bytes.get(start..))
            .unwrap_or_default()
    }

    /// For RA, the number of each component's value, and the mask name.
    #[must_use]
    pub fn rapid(&self) -> Option<(&Digits, &[u8; MASK_NAME_BYTES])> {
        let signature_start = self.bytes.len().checked_sub(self.form.signature_bytes)?;
        let name = self.bytes.get(..signature_start)?.last_chunk()?;
        Some((self.digits.as_ref()?, name))
    }

    /// The bytes that a plain scheme signs, in two parts.
    #[must_use]
    pub fn signed_bytes(&self) -> [&[u8]; 2] {
        Envelope::signed_part(&self.bytes, self.form.payload_bytes)
    }
}
