//! Signing messages with one key: with masks while there are some, and without them when not.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::key::{PrivateKey, PrivateKeyError, PublicKey};
use crate::message::{Draft, MASK_NAME_BYTES, PayloadKind, Priority, Stamp, TimeMs, Unsigned};
use crate::ra::{Digits, Mask, RaPrivate, Table};
use crate::refusal::Refusal;
use crate::store::{MaskFile, MaskFileError};

/// How a message was signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By a plain scheme.
    Plain,
    /// By RA, with a mask and products.
    Masked,
    /// By RA, at the price of an RSA signature, for there was no mask.
    Dry,
}

/// Why a message was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The payload is not what this key signs.
    #[error("this key does not sign such a payload: {0}")]
    Payload(Refusal),
    /// The payload is longer than a message can be.
    #[error("a payload of {0} bytes is longer than {max}", max = crate::message::PAYLOAD_BYTES_MAX)]
    Long(usize),
    /// The key did not sign.
    #[error(transparent)]
    Key(#[from] PrivateKeyError),
    /// The file of masks cannot be used.
    #[error(transparent)]
    Masks(#[from] MaskFileError),
    /// Without a mask, a random number is needed.
    #[error("no random bytes: {0}")]
    Entropy(getrandom::Error),
    /// RA needs its table.
    #[error("the key's table is missing")]
    NoTable,
}

/// A mask's name, and the signature that was made with it.
pub(crate) type NamedSignature = ([u8; MASK_NAME_BYTES], Vec<u8>);

/// A message to sign, of a form that the key signs.
#[derive(Debug, Clone)]
pub struct ToSign {
    draft: Draft,
    /// With RA.
    digits: Option<Digits>,
}

/// A signed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The whole message.
    pub bytes: Vec<u8>,
    /// How it was signed.
    pub way: Way,
}

/// A key at work, with what it has prepared. Several threads may sign with it.
pub struct Signer {
    key: Arc<PrivateKey>,
    table: Option<Table>,
    /// Locked before the pool, and not while a mask is taken out of that: a block waits for the disk.
    file: Mutex<Option<MaskFile>>,
    /// Masks that were never used, and are in no file any more.
    pool: Mutex<Vec<Mask>>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({:?})", self.key)
    }
}

impl Signer {
    /// Signs with this key; RA with its table, and with masks out of the file, if there is one.
    #[must_use]
    pub fn new(key: PrivateKey, table: Option<Table>, file: Option<MaskFile>) -> Self {
        Self {
            key: Arc::new(key),
            table,
            file: Mutex::new(file),
            pool: Mutex::default(),
        }
    }

    /// Signs something that nobody gets: the library's first random number takes a tenth of a second.
    pub(crate) fn warm_up(&self) {
        let public = self.key.public();
        let nothing = Unsigned {
            scheme: public.scheme(),
            key_id: public.id(),
            stamp: Stamp {
                time: TimeMs::since_2020(0),
                priority: Priority::IMMEDIATE,
            },
            kind: PayloadKind::Opaque,
            payload: &[],
        };
        if let Some(draft) = nothing.encode() {
            let _ = self.key.sign_plainly(draft);
        }
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &PublicKey {
        self.key.public()
    }

    /// For a device that makes masks of it.
    pub(crate) fn key(&self) -> &Arc<PrivateKey> {
        &self.key
    }

    /// Masks that are left, in memory and in the file.
    #[must_use]
    pub fn masks(&self) -> u64 {
        self.in_file().saturating_add(self.pool().len() as u64)
    }

    /// Masks that are left in the file.
    #[must_use]
    pub fn in_file(&self) -> u64 {
        self.file().as_ref().map_or(0, MaskFile::remaining)
    }

    /// Makes so many masks of fresh random names, for as long as this process lives; none with a plain key.
    ///
    /// # Errors
    /// No random bytes, or a result does not check.
    pub fn refill(&self, count: usize) -> Result<usize, SignError> {
        let Some(ra) = self.key.ra() else {
            return Ok(0);
        };
        let names = std::iter::repeat_with(fresh_name).take(count);
        let masks = ra.masks(&names.collect::<Result<Vec<_>, _>>()?);
        let masks = masks.map_err(PrivateKeyError::from)?;
        let made = masks.len();
        self.add_masks(masks);
        Ok(made)
    }

    /// Adds masks of this key that were made elsewhere just now, and are in no file.
    pub fn add_masks(&self, masks: impl IntoIterator<Item = Mask>) {
        self.pool().extend(masks);
    }

    /// What a device needs to sign this message, with RA.
    pub(crate) fn ready_for<'a>(&'a self, message: &'a ToSign) -> Option<(&'a Table, &'a Digits)> {
        self.table.as_ref().zip(message.digits.as_ref())
    }

    /// Takes a message apart.
    ///
    /// # Errors
    /// A payload that this key does not sign.
    pub fn prepare(&self, stamp: Stamp, kind: PayloadKind, payload: &[u8]) -> Result<ToSign, SignError> {
        let public = self.key.public();
        let unsigned = Unsigned {
            scheme: public.scheme(),
            key_id: public.id(),
            stamp,
            kind,
            payload,
        };
        let draft = unsigned.encode().ok_or(SignError::Long(payload.len()))?;
        let digits = match public.ra() {
            Some(ra) => Some(ra.layout().digits(stamp, kind, payload)),
            None => {
                crate::receive::plain_shape(kind, payload).map_err(SignError::Payload)?;
                None
            }
        };
        let digits = digits.transpose().map_err(SignError::Payload)?;
        Ok(ToSign { draft, digits })
    }

    /// Signs messages: with RA each with a mask while there are some, then without.
    ///
    /// # Errors
    /// No random bytes, a file of masks that cannot be used, a library that does not sign. Nothing is signed then; masks that were
    /// taken for it are gone.
    pub fn sign(&self, messages: &[&ToSign]) -> Result<Vec<Signed>, SignError> {
        self.sign_by(messages, products)
    }

    /// The same, where something else may make signatures of a table, masks and components, in their order.
    ///
    /// # Errors
    /// As for [`Signer::sign`], and what that says.
    pub(crate) fn sign_by<E: From<SignError>>(
        &self,
        messages: &[&ToSign],
        products: impl FnOnce(&Table, Vec<Mask>, &[&Digits]) -> Result<Vec<NamedSignature>, E>,
    ) -> Result<Vec<Signed>, E> {
        let Some(ra) = self.key.ra() else {
            let signed = messages.iter().map(|message| self.sign_plainly(message));
            return Ok(signed.collect::<Result<_, _>>()?);
        };
        let table = self.table.as_ref().ok_or(SignError::NoTable)?;
        let masks = self.take_masks(messages.len()).map_err(SignError::from)?;
        let (masked, dry) = messages.split_at_checked(masks.len()).unwrap_or((messages, &[]));
        let digits = masked.iter().map(|message| message.digits());
        let digits = digits.collect::<Result<Vec<_>, _>>()?;
        let signatures = match masked {
            [] => Vec::new(),
            _ => products(table, masks, &digits)?,
        };
        let finish = |(message, (name, signature)): (&&ToSign, NamedSignature)| Signed {
            bytes: message.draft.clone().with_mask(&name, &signature),
            way: Way::Masked,
        };
        let mut signed: Vec<_> = masked.iter().zip(signatures).map(finish).collect();
        signed.extend(sign_dry(ra, dry)?);
        Ok(signed)
    }

    /// The same, but that RA signs without masks, and leaves those that there are.
    ///
    /// # Errors
    /// As for [`Signer::sign`].
    pub fn sign_without_masks(&self, messages: &[&ToSign]) -> Result<Vec<Signed>, SignError> {
        match self.key.ra() {
            None => self.sign(messages),
            Some(ra) => sign_dry(ra, messages),
        }
    }

    fn sign_plainly(&self, message: &ToSign) -> Result<Signed, SignError> {
        let signed = self.key.sign_plainly(message.draft.clone())?;
        let bytes = signed.ok_or(SignError::NoTable)?;
        let way = Way::Plain;
        Ok(Signed { bytes, way })
    }

    /// So many, or all that there are.
    fn take_masks(&self, count: usize) -> Result<Vec<Mask>, MaskFileError> {
        let take = |masks: &mut Vec<Mask>| masks.split_off(masks.len().saturating_sub(count));
        loop {
            let mut pool = self.pool();
            if pool.len() >= count {
                return Ok(take(&mut pool));
            }
            drop(pool);
            let mut file = self.file();
            // Another thread has brought a block while this one waited for it.
            if self.pool().len() >= count {
                continue;
            }
            match file.as_mut().map(MaskFile::take_block).transpose()?.flatten() {
                Some(block) => self.pool().extend(block),
                None => return Ok(take(&mut self.pool())),
            }
        }
    }

    /// A thread that panicked has left masks that are used or unused, none in between.
    fn pool(&self) -> MutexGuard<'_, Vec<Mask>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self) -> MutexGuard<'_, Option<MaskFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToSign {
    fn digits(&self) -> Result<&Digits, SignError> {
        self.digits.as_ref().ok_or(SignError::NoTable)
    }
}

fn sign_dry(ra: &RaPrivate, messages: &[&ToSign]) -> Result<Vec<Signed>, SignError> {
    let named = messages
        .iter()
        .map(|message| Ok((fresh_name()?, message.digits()?)));
    let named = named.collect::<Result<Vec<_>, SignError>>()?;
    let signatures = ra.sign_all(&named).map_err(PrivateKeyError::from)?;
    let finished = messages.iter().zip(named.iter().zip(signatures));
    let finished = finished.map(|(message, ((name, _), signature))| Signed {
        bytes: message.draft.clone().with_mask(name, &signature),
        way: Way::Dry,
    });
    Ok(finished.collect())
}

/// By this processor.
fn products(table: &Table, masks: Vec<Mask>, digits: &[&Digits]) -> Result<Vec<NamedSignature>, SignError> {
    let names: Vec<_> = masks.iter().map(|mask| *mask.name()).collect();
    let work = masks.into_iter().zip(digits.iter().copied()).collect();
    let signatures = table.sign_all(work).map_err(PrivateKeyError::from)?;
    Ok(names.into_iter().zip(signatures).collect())
}

/// 256 bits of the operating system's: no two are the same.
pub(crate) fn fresh_name() -> Result<[u8; MASK_NAME_BYTES], SignError> {
    let mut name = [0; MASK_NAME_BYTES];
    getrandom::fill(&mut name).map_err(SignError::Entropy)?;
    Ok(name)
}
