//! The checks before and after a lane: cheap checks first, and no record of unverified messages.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::checked::{Checked, MessageForm};
use super::replay::{MessageName, ReplayMemory};
use super::signers::Signers;
use super::window::Window;
use crate::bsm;
use crate::key::{Material, PublicKey};
use crate::message::{Envelope, KeyId, PayloadKind, Stamp, TimeMs};
use crate::range;
use crate::refusal::Refusal;
use crate::store::Revocations;

/// Default memory budget for precomputed data of signers: the hashed components of some 400 signers of RA over 2,048 bits who use all
/// values, or the tables of 40,000 signers of Ed25519.
pub const KEY_MEMORY_DEFAULT_BYTES: usize = 1 << 30;

/// A valid, recent message that was accepted for the first time. Only [`Receiver::accept`] creates such a value.
#[derive(Debug)]
pub struct Verified(Checked);

impl Verified {
    /// The message.
    #[must_use]
    pub fn message(&self) -> &Checked {
        &self.0
    }

    /// The signer.
    #[must_use]
    pub fn signer(&self) -> KeyId {
        self.0.signer()
    }

    /// Type of the payload.
    #[must_use]
    pub fn kind(&self) -> PayloadKind {
        self.0.kind()
    }
}

/// Accepted signers, revoked signers, and recently accepted messages.
pub struct Receiver {
    signers: Signers,
    revoked: Revocations,
    window: Window,
    replays: ReplayMemory,
    /// Whether ECDSA signatures with s in the upper half are refused.
    p256_low_s: bool,
}

impl Receiver {
    /// Accepts messages of these signers. `replays` must be empty and made for `window`; the signers share `replays`.
    #[must_use]
    pub fn new(signers: Signers, revoked: Revocations, window: Window, replays: ReplayMemory) -> Self {
        signers.share_memory(KEY_MEMORY_DEFAULT_BYTES);
        Self {
            replays: replays.with_signers(signers.len()),
            signers,
            revoked,
            window,
            p256_low_s: false,
        }
    }

    /// Sets whether ECDSA signatures with s in the upper half are refused. By default, these signatures are accepted,
    /// since signers of other systems make them. Both forms of a signature count as one message: the second form is a
    /// replay.
    #[must_use]
    pub fn with_p256_low_s(self, p256_low_s: bool) -> Self {
        Self { p256_low_s, ..self }
    }

    /// Sets the shared memory budget for precomputed data of signers: hashed components of RA, and multiples of points.
    pub fn set_key_memory(&self, bytes: usize) {
        self.signers.share_memory(bytes);
    }

    /// Whether a signer with this key identifier is configured, revoked or not.
    pub(crate) fn has_signer(&self, key: KeyId) -> bool {
        self.signers.get(key).is_some()
    }

    /// The accepted signers, in no order.
    pub fn signers(&self) -> impl Iterator<Item = &Arc<PublicKey>> {
        self.signers.iter()
    }

    /// The revoked signers.
    #[must_use]
    pub fn revoked(&self) -> &Revocations {
        &self.revoked
    }

    /// Sets the list of revoked signers, and returns the previous list.
    pub fn set_revoked(&mut self, revoked: Revocations) -> Revocations {
        std::mem::replace(&mut self.revoked, revoked)
    }

    /// Remaining time until a message with this stamp becomes too old, ms; 0 if the message is already too old.
    #[must_use]
    pub fn remaining_validity_ms(&self, stamp: Stamp, now: TimeMs) -> u64 {
        let end = stamp.time.ms().saturating_add(self.window.age_ms_max.into());
        end.saturating_sub(now.ms())
    }

    /// Performs all checks of a datagram except the verification of its signature.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn screen(&self, bytes: Vec<u8>, now: TimeMs) -> Result<Checked, Refusal> {
        let envelope = Envelope::parse(&bytes)?;
        let key = self.signers.get(envelope.key_id).ok_or(Refusal::UnknownSigner)?;
        if key.scheme() != envelope.scheme {
            return Err(Refusal::KeySchemeMismatch);
        }
        if self.revoked.contains(key.id()) {
            return Err(Refusal::Revoked);
        }
        let digits = match key.material() {
            Material::Ra(ra) => Some(
                ra.layout()
                    .digits(envelope.stamp, envelope.kind, envelope.payload)?,
            ),
            _ => check_plain_payload(envelope.kind, envelope.payload).map(|()| None)?,
        };
        self.window.check(envelope.stamp, now)?;
        self.replays.check(envelope.stamp.time)?;
        if self.replays.contains(self.name(key, &envelope)) {
            return Err(Refusal::Replayed);
        }
        range::check(key, envelope.signature, self.p256_low_s)?;
        let form = MessageForm::from(&envelope);
        Ok(Checked::from_checked_parts(Arc::clone(key), form, digits, bytes))
    }

    /// Accepts a message if a lane has found its signature valid (`equation_holds`), and if it was not accepted before.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn accept(
        &mut self,
        checked: Checked,
        equation_holds: bool,
        now: TimeMs,
    ) -> Result<Verified, Refusal> {
        if !equation_holds {
            return Err(Refusal::WrongSignature);
        }
        // The checks of `screen` may be outdated if the message waited.
        if self.revoked.contains(checked.signer()) {
            return Err(Refusal::Revoked);
        }
        self.window.check(checked.stamp(), now)?;
        self.replays.forget_before(self.window.oldest(now));
        let name = match checked.rapid() {
            Some((_, mask)) => self.replays.name(checked.signer(), mask),
            None => self
                .replays
                .name(checked.signer(), &digest(checked.signed_bytes())),
        };
        self.replays.insert(checked.stamp().time, name)?;
        Ok(Verified(checked))
    }

    fn name(&self, key: &PublicKey, envelope: &Envelope<'_>) -> MessageName {
        match envelope.mask_name {
            Some(mask) => self.replays.name(key.id(), mask),
            None => self.replays.name(key.id(), &digest(envelope.signed_bytes())),
        }
    }
}

/// Checks the payload of a plain key, which has no layout. Any opaque bytes are valid, a basic safety message has a
/// fixed length, and sub-messages are refused.
pub(crate) fn check_plain_payload(kind: PayloadKind, payload: &[u8]) -> Result<(), Refusal> {
    match kind {
        PayloadKind::Opaque => Ok(()),
        PayloadKind::Bsm if payload.len() == bsm::MESSAGE_BYTES => Ok(()),
        PayloadKind::Bsm | PayloadKind::Submessages => Err(Refusal::WrongLayout),
    }
}

/// Identity of a message of a plain scheme among the messages of its signer. The identity does not include the
/// signature, so that two signatures of the same bytes count as one message.
fn digest(signed: [&[u8]; 2]) -> [u8; 32] {
    let [prefix, message] = signed;
    Sha256::new()
        .chain_update(prefix)
        .chain_update(message)
        .finalize()
        .into()
}
