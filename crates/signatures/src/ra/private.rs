//! The private key of Rapid Authentication, which makes masks and tables.

use std::fmt;
use std::sync::Arc;

use linewarden_arithmetic::Backend;
use linewarden_arithmetic::rsa::{self, RsaError, RsaPrivate};
use zeroize::Zeroizing;

use super::GROUP_SIZE;
use super::layout::Digits;
use super::mask::Mask;
use super::public::RaPublic;
use super::table::Table;
use crate::message::MASK_NAME_BYTES;

/// A private key, with its public key.
pub struct RaPrivate {
    public: Arc<RaPublic>,
    rsa: RsaPrivate,
}

impl fmt::Debug for RaPrivate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RaPrivate(..)")
    }
}

impl RaPrivate {
    /// The private key that belongs to a public key; `None` if the keys do not match.
    #[must_use]
    pub fn new(public: Arc<RaPublic>, rsa: RsaPrivate) -> Option<Self> {
        (rsa.public() == public.rsa()).then_some(Self { public, rsa })
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &Arc<RaPublic> {
        &self.public
    }

    /// The RSA private key.
    pub(crate) fn rsa(&self) -> &RsaPrivate {
        &self.rsa
    }

    /// Makes masks with these names, which must be random and unused.
    ///
    /// # Errors
    /// The check of a result failed; no mask is returned.
    pub fn masks(&self, names: &[[u8; MASK_NAME_BYTES]]) -> Result<Vec<Mask>, RsaError> {
        let hashes: Vec<_> = names.iter().map(|name| self.public.mask_hash(name)).collect();
        let numbers: Vec<&[u8]> = hashes.iter().map(super::public::MaskHash::as_bytes).collect();
        let signatures = self.signatures(&numbers)?;
        Ok(names
            .iter()
            .zip(signatures)
            .map(|(name, signature)| Mask::from_unused_parts(*name, signature))
            .collect())
    }

    /// Makes the table: a signature of each value of each component. `on_progress` receives the number of rows made so
    /// far, and returns whether to continue. Returns `None` if `on_progress` returned false.
    ///
    /// # Errors
    /// The check of a result failed.
    pub fn table(&self, mut on_progress: impl FnMut(usize) -> bool) -> Result<Option<Table>, RsaError> {
        let mut table = Table::empty(Arc::clone(&self.public));
        let rows = self.public.layout().rows();
        for first in (0..rows).step_by(GROUP_SIZE) {
            let group = first..(first + GROUP_SIZE).min(rows);
            let hashes: Vec<Vec<u8>> = group.filter_map(|row| self.public.component_bytes(row)).collect();
            let numbers: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
            for (index, signature) in self.signatures(&numbers)?.iter().enumerate() {
                table.set(first + index, signature)?;
            }
            if !on_progress(first + numbers.len()) {
                return Ok(None);
            }
        }
        Ok(Some(table))
    }

    /// Signs without a table and without a mask: `σ = (H(2 | P | r) · Π H(1 | P | j | m_j))^d`, the same signature as
    /// with table and mask, at the cost of an RSA signature. The signer uses this function when no masks are left. The
    /// name must be random and unused.
    ///
    /// # Errors
    /// The check of the result failed.
    pub fn sign(&self, name: &[u8; MASK_NAME_BYTES], digits: &Digits) -> Result<Vec<u8>, RsaError> {
        let mut signatures = self.sign_all(&[(*name, digits)])?;
        signatures.pop().ok_or(RsaError::MixedSizes)
    }

    /// Like [`RaPrivate::sign`], for many messages: eight at a time if that is faster on this CPU.
    ///
    /// # Errors
    /// The check of a result failed; no signature is returned.
    pub fn sign_all(&self, messages: &[([u8; MASK_NAME_BYTES], &Digits)]) -> Result<Vec<Vec<u8>>, RsaError> {
        let products = messages.iter().map(|(name, digits)| self.product(name, digits));
        let products = products.collect::<Result<Vec<_>, _>>()?;
        let products: Vec<&[u8]> = products.iter().map(Vec::as_slice).collect();
        let signatures = self.signatures(&products)?;
        Ok(signatures.iter().map(|signature| signature.to_vec()).collect())
    }

    /// `H(2 | P | r) · Π H(1 | P | j | m_j)`.
    fn product(&self, name: &[u8; MASK_NAME_BYTES], digits: &Digits) -> Result<Vec<u8>, RsaError> {
        let key = self.public.rsa();
        let mut mask = rsa::Table::new(key.size(), 1);
        mask.set(0, key, self.public.mask_hash(name).as_bytes())?;
        let components = self.public.components(digits).ok_or(RsaError::MixedSizes)?;
        let hashes = components.factors().ok_or(RsaError::MixedSizes)?;
        let factors: Vec<_> = mask
            .get(0)
            .into_iter()
            .chain(hashes.as_slice().iter().copied())
            .collect();
        let mut one = vec![0; key.size().bytes()];
        if let Some(last) = one.last_mut() {
            *last = 1;
        }
        let mut product = vec![0; one.len()];
        key.product(&mut product, &one, &factors)?;
        components.cache_computed();
        Ok(product)
    }

    /// `number^d` of each number, big-endian: eight at a time if that is faster on this CPU.
    fn signatures(&self, numbers: &[&[u8]]) -> Result<Vec<Zeroizing<Vec<u8>>>, RsaError> {
        let bytes = self.public.rsa().size().bytes();
        let mut out: Vec<_> = numbers.iter().map(|_| Zeroizing::new(vec![0; bytes])).collect();
        for (out, numbers) in out.chunks_mut(GROUP_SIZE).zip(numbers.chunks(GROUP_SIZE)) {
            match (
                Backend::widest(),
                <[&[u8]; GROUP_SIZE]>::try_from(numbers),
                &mut *out,
            ) {
                (Some(backend), Ok(numbers), [a, b, c, d, e, f, g, h]) => {
                    let out = [a, b, c, d, e, f, g, h].map(|out| out.as_mut_slice());
                    self.rsa.power_batch(backend, numbers, out)?;
                }
                _ => {
                    for (out, number) in out.iter_mut().zip(numbers) {
                        self.rsa.power(out, number)?;
                    }
                }
            }
        }
        Ok(out)
    }
}
