//! Signing messages with one key: with masks while masks are available, otherwise without masks.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::key::{PrivateKey, PrivateKeyError, PublicKey};
use crate::message::{Draft, MASK_NAME_BYTES, PayloadKind, Priority, Stamp, TimeMs, UnsignedMessage};
use crate::ra::{Digits, Mask, RaPrivate, Table};
use crate::refusal::Refusal;
use crate::store::{MaskFile, MaskFileError};

/// How a message was signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigningMethod {
    /// With a plain scheme.
    Plain,
    /// With RA, a mask and modular products.
    Masked,
    /// With RA at the cost of an RSA signature, since no mask was available.
    Unmasked,
}

/// Why signing failed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The payload does not match the key's layout.
    #[error("payload does not match the layout of the key: {0}")]
    Payload(Refusal),
    /// The payload exceeds the maximum length.
    #[error("payload of {0} bytes exceeds the limit of {max} bytes", max = crate::message::PAYLOAD_BYTES_MAX)]
    PayloadTooLong(usize),
    /// Signing with the key failed.
    #[error(transparent)]
    Key(#[from] PrivateKeyError),
    /// The mask file cannot be used.
    #[error(transparent)]
    Masks(#[from] MaskFileError),
    /// The name of a new mask, or of an unmasked signature, requires random bytes.
    #[error("getting random bytes failed: {0}")]
    Entropy(getrandom::Error),
    /// RA requires the table of the key.
    #[error("signing failed: the table of the key is missing")]
    NoTable,
}

/// A mask name, and the signature made with that mask.
pub(crate) type NamedSignature = ([u8; MASK_NAME_BYTES], Vec<u8>);

/// A message that the key can sign.
#[derive(Debug, Clone)]
pub struct PreparedMessage {
    draft: Draft,
    /// For RA, the number of each component's value.
    digits: Option<Digits>,
}

/// A signed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The complete message.
    pub bytes: Vec<u8>,
    /// How the message was signed.
    pub method: SigningMethod,
}

/// A key with its table and masks. Several threads may use one signer.
pub struct Signer {
    key: Arc<PrivateKey>,
    table: Option<Table>,
    /// A thread that needs both locks takes this lock before the lock of the pool. If the pool has enough masks, a
    /// thread does not take this lock: another thread may hold the lock while that thread waits for the disk.
    file: Mutex<Option<MaskFile>>,
    /// Unused masks that are no longer in any file.
    pool: Mutex<Vec<Mask>>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({:?})", self.key)
    }
}

impl Signer {
    /// Signs with this key. RA requires the key's table, and uses the masks of `file` if there is a file.
    #[must_use]
    pub fn new(key: PrivateKey, table: Option<Table>, file: Option<MaskFile>) -> Self {
        Self {
            key: Arc::new(key),
            table,
            file: Mutex::new(file),
            pool: Mutex::default(),
        }
    }

    /// Makes and discards a signature, since the library's first random number takes a tenth of a second. The first
    /// message then does not wait for this random number.
    pub(crate) fn warm_up(&self) {
        let public = self.key.public();
        let message = UnsignedMessage {
            scheme: public.scheme(),
            key_id: public.id(),
            stamp: Stamp {
                time: TimeMs::since_2020(0),
                priority: Priority::IMMEDIATE,
            },
            kind: PayloadKind::Opaque,
            payload: &[],
        };
        if let Some(draft) = message.encode() {
            let _ = self.key.sign_plain(draft);
        }
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &PublicKey {
        self.key.public()
    }

    /// The private key, for a device that makes masks.
    pub(crate) fn key(&self) -> &Arc<PrivateKey> {
        &self.key
    }

    /// Masks available in memory and in the file.
    #[must_use]
    pub fn masks(&self) -> u64 {
        self.masks_in_file().saturating_add(self.pool().len() as u64)
    }

    /// Masks available in the file.
    #[must_use]
    pub fn masks_in_file(&self) -> u64 {
        self.file().as_ref().map_or(0, MaskFile::remaining)
    }

    /// Makes masks with new random names, adds the masks to the pool in memory, and returns their number; 0 for a plain
    /// key.
    ///
    /// # Errors
    /// No random bytes, or the check of a result failed.
    pub fn refill(&self, count: usize) -> Result<usize, SignError> {
        let Some(ra) = self.key.ra() else {
            return Ok(0);
        };
        let names = std::iter::repeat_with(new_mask_name).take(count);
        let masks = ra.masks(&names.collect::<Result<Vec<_>, _>>()?);
        let masks = masks.map_err(PrivateKeyError::from)?;
        let made = masks.len();
        self.add_masks(masks);
        Ok(made)
    }

    /// Adds new masks of this key that were made elsewhere and are in no file.
    pub fn add_masks(&self, masks: impl IntoIterator<Item = Mask>) {
        self.pool().extend(masks);
    }

    /// The table and components for signing this message on a device, for RA.
    pub(crate) fn table_and_digits<'a>(
        &'a self,
        message: &'a PreparedMessage,
    ) -> Option<(&'a Table, &'a Digits)> {
        self.table.as_ref().zip(message.digits.as_ref())
    }

    /// Checks a payload and encodes its message.
    ///
    /// # Errors
    /// A payload that this key does not sign.
    pub fn prepare(
        &self,
        stamp: Stamp,
        kind: PayloadKind,
        payload: &[u8],
    ) -> Result<PreparedMessage, SignError> {
        let public = self.key.public();
        let unsigned = UnsignedMessage {
            scheme: public.scheme(),
            key_id: public.id(),
            stamp,
            kind,
            payload,
        };
        let draft = unsigned
            .encode()
            .ok_or(SignError::PayloadTooLong(payload.len()))?;
        let digits = match public.ra() {
            Some(ra) => Some(ra.layout().digits(stamp, kind, payload)),
            None => {
                crate::receive::check_plain_payload(kind, payload).map_err(SignError::Payload)?;
                None
            }
        };
        let digits = digits.transpose().map_err(SignError::Payload)?;
        Ok(PreparedMessage { draft, digits })
    }

    /// Signs messages: for RA each with a mask while masks are available, then without.
    ///
    /// # Errors
    /// No random bytes, an unusable mask file, or a failure of the library. No message is signed then, and masks taken
    /// for the messages are lost.
    pub fn sign(&self, messages: &[&PreparedMessage]) -> Result<Vec<Signed>, SignError> {
        self.sign_with(messages, sign_products)
    }

    /// Like [`Signer::sign`], but `products` makes the signatures from the table, the masks and the messages'
    /// components, in the order of the messages.
    ///
    /// # Errors
    /// As for [`Signer::sign`], and the errors of `products`.
    pub(crate) fn sign_with<E: From<SignError>>(
        &self,
        messages: &[&PreparedMessage],
        products: impl FnOnce(&Table, Vec<Mask>, &[&Digits]) -> Result<Vec<NamedSignature>, E>,
    ) -> Result<Vec<Signed>, E> {
        let Some(ra) = self.key.ra() else {
            let signed = messages.iter().map(|message| self.sign_plain(message));
            return Ok(signed.collect::<Result<_, _>>()?);
        };
        let table = self.table.as_ref().ok_or(SignError::NoTable)?;
        let masks = self.take_masks(messages.len()).map_err(SignError::from)?;
        let (masked, unmasked) = messages.split_at_checked(masks.len()).unwrap_or((messages, &[]));
        let digits = masked.iter().map(|message| message.digits());
        let digits = digits.collect::<Result<Vec<_>, _>>()?;
        let signatures = match masked {
            [] => Vec::new(),
            _ => products(table, masks, &digits)?,
        };
        let finish = |(message, (name, signature)): (&&PreparedMessage, NamedSignature)| Signed {
            bytes: message.draft.clone().with_mask(&name, &signature),
            method: SigningMethod::Masked,
        };
        let mut signed: Vec<_> = masked.iter().zip(signatures).map(finish).collect();
        signed.extend(sign_unmasked(ra, unmasked)?);
        Ok(signed)
    }

    /// Like [`Signer::sign`], but RA signs without masks and keeps the available masks.
    ///
    /// # Errors
    /// As for [`Signer::sign`].
    pub fn sign_without_masks(&self, messages: &[&PreparedMessage]) -> Result<Vec<Signed>, SignError> {
        match self.key.ra() {
            None => self.sign(messages),
            Some(ra) => sign_unmasked(ra, messages),
        }
    }

    fn sign_plain(&self, message: &PreparedMessage) -> Result<Signed, SignError> {
        let signed = self.key.sign_plain(message.draft.clone())?;
        let bytes = signed.ok_or(SignError::NoTable)?;
        let method = SigningMethod::Plain;
        Ok(Signed { bytes, method })
    }

    /// Takes up to `count` masks from the pool. Moves blocks of masks from the file to the pool while the pool has too
    /// few masks.
    fn take_masks(&self, count: usize) -> Result<Vec<Mask>, MaskFileError> {
        let take = |masks: &mut Vec<Mask>| masks.split_off(masks.len().saturating_sub(count));
        loop {
            let mut pool = self.pool();
            if pool.len() >= count {
                return Ok(take(&mut pool));
            }
            drop(pool);
            let mut file = self.file();
            // Another thread may have added a block while this thread waited for the lock.
            if self.pool().len() >= count {
                continue;
            }
            match file.as_mut().map(MaskFile::take_block).transpose()?.flatten() {
                Some(block) => self.pool().extend(block),
                None => return Ok(take(&mut self.pool())),
            }
        }
    }

    /// Ignores poisoning: a panic leaves each mask either used or unused.
    fn pool(&self) -> MutexGuard<'_, Vec<Mask>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self) -> MutexGuard<'_, Option<MaskFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PreparedMessage {
    fn digits(&self) -> Result<&Digits, SignError> {
        self.digits.as_ref().ok_or(SignError::NoTable)
    }
}

fn sign_unmasked(ra: &RaPrivate, messages: &[&PreparedMessage]) -> Result<Vec<Signed>, SignError> {
    let named = messages
        .iter()
        .map(|message| Ok((new_mask_name()?, message.digits()?)));
    let named = named.collect::<Result<Vec<_>, SignError>>()?;
    let signatures = ra.sign_all(&named).map_err(PrivateKeyError::from)?;
    let finished = messages.iter().zip(named.iter().zip(signatures));
    let finished = finished.map(|(message, ((name, _), signature))| Signed {
        bytes: message.draft.clone().with_mask(name, &signature),
        method: SigningMethod::Unmasked,
    });
    Ok(finished.collect())
}

/// Signs on this CPU.
fn sign_products(
    table: &Table,
    masks: Vec<Mask>,
    digits: &[&Digits],
) -> Result<Vec<NamedSignature>, SignError> {
    let names: Vec<_> = masks.iter().map(|mask| *mask.name()).collect();
    let jobs = masks.into_iter().zip(digits.iter().copied()).collect();
    let signatures = table.sign_all(jobs).map_err(PrivateKeyError::from)?;
    Ok(names.into_iter().zip(signatures).collect())
}

/// A new mask name: 256 random bits of the operating system, unique in practice.
pub(crate) fn new_mask_name() -> Result<[u8; MASK_NAME_BYTES], SignError> {
    let mut name = [0; MASK_NAME_BYTES];
    getrandom::fill(&mut name).map_err(SignError::Entropy)?;
    Ok(name)
}
