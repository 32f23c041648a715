//! Signing messages with one key: with masks while there are some, and without them when not.

use std::fmt;

use crate::key::{PrivateKey, PrivateKeyError, PublicKey};
use crate::message::{MASK_NAME_BYTES, PayloadKind, Stamp, Unsigned};
use crate::ra::{Mask, Table};
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

/// A key at work, with what it has prepared.
pub struct Signer {
    key: PrivateKey,
    table: Option<Table>,
    file: Option<MaskFile>,
    pool: Vec<Mask>,
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
            key,
            table,
            file,
            pool: Vec::new(),
        }
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &PublicKey {
        self.key.public()
    }

    /// Masks that are left, in memory and in the file.
    #[must_use]
    pub fn masks(&self) -> u64 {
        let in_file = self.file.as_ref().map_or(0, MaskFile::remaining);
        in_file.saturating_add(self.pool.len() as u64)
    }

    /// Adds masks that were made just now, and are in no file.
    pub fn refill(&mut self, masks: impl IntoIterator<Item = Mask>) {
        self.pool.extend(masks);
    }

    /// Makes so many masks of fresh random names; none with a plain key.
    ///
    /// # Errors
    /// No random bytes, or a result does not check.
    pub fn make_masks(&self, count: usize) -> Result<Vec<Mask>, SignError> {
        let Some(ra) = self.key.ra() else {
            return Ok(Vec::new());
        };
        let names = std::iter::repeat_with(fresh_name)
            .take(count)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(ra.masks(&names).map_err(PrivateKeyError::from)?)
    }

    /// Signs a message.
    ///
    /// # Errors
    /// A payload that this key does not sign, no random bytes, a file of masks that cannot be used.
    pub fn sign(
        &mut self,
        stamp: Stamp,
        kind: PayloadKind,
        payload: &[u8],
    ) -> Result<(Vec<u8>, Way), SignError> {
        let public = self.key.public();
        let unsigned = Unsigned {
            scheme: public.scheme(),
            key_id: public.id(),
            stamp,
            kind,
            payload,
        };
        let draft = unsigned.encode().ok_or(SignError::Long(payload.len()))?;
        let Some(ra) = self.key.ra() else {
            crate::receive::plain_shape(kind, payload).map_err(SignError::Payload)?;
            let signed = self.key.sign_plainly(draft)?;
            return signed.map(|bytes| (bytes, Way::Plain)).ok_or(SignError::NoTable);
        };
        let layout = ra.public().layout();
        let digits = layout.digits(stamp, kind, payload).map_err(SignError::Payload)?;
        let table = self.table.as_ref().ok_or(SignError::NoTable)?;
        if let Some(mask) = next_mask(&mut self.pool, self.file.as_mut())? {
            let name = *mask.name();
            let signature = table.sign(mask, &digits).map_err(PrivateKeyError::from)?;
            return Ok((draft.with_mask(&name, &signature), Way::Masked));
        }
        let name = fresh_name()?;
        let signature = ra.sign(&name, &digits).map_err(PrivateKeyError::from)?;
        Ok((draft.with_mask(&name, &signature), Way::Dry))
    }
}

fn next_mask(pool: &mut Vec<Mask>, file: Option<&mut MaskFile>) -> Result<Option<Mask>, MaskFileError> {
    if pool.is_empty()
        && let Some(block) = file.map(MaskFile::take_block).transpose()?.flatten()
    {
        pool.extend(block);
    }
    Ok(pool.pop())
}

/// 256 bits of the operating system's: no two are the same.
pub(crate) fn fresh_name() -> Result<[u8; MASK_NAME_BYTES], SignError> {
    let mut name = [0; MASK_NAME_BYTES];
    getrandom::fill(&mut name).map_err(SignError::Entropy)?;
    Ok(name)
}
