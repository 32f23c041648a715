//! The table of a key: signatures of all values of all components, for signing messages.

use std::fmt;
use std::sync::Arc;

use linewarden_arithmetic::rsa::{self, RsaError, product_batch};
use linewarden_arithmetic::{Backend, run_and_wipe_stack};
use zeroize::Zeroizing;

use super::GROUP_SIZE;
use super::layout::{COMPONENTS_MAX, Digits};
use super::mask::Mask;
use super::public::{Factors, RaPublic};

/// `Γ[j][v]`, by row of the layout. A secret: table and mask together sign messages.
pub struct Table {
    public: Arc<RaPublic>,
    rows: rsa::Table,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Table(..)")
    }
}

/// The bytes are not a table of this key, or are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("table has {found} bytes, expected {expected}, all numbers below the modulus of the key")]
pub struct TableMismatch {
    found: usize,
    expected: usize,
}

impl Table {
    /// A table of zeros.
    pub(super) fn empty(public: Arc<RaPublic>) -> Self {
        Self {
            rows: rsa::Table::new(public.rsa().size(), public.layout().rows()),
            public,
        }
    }

    pub(super) fn set(&mut self, row: usize, signature: &[u8]) -> Result<(), RsaError> {
        // Upper bound of the stack usage of setting a row.
        const STACK_BYTES: usize = 16 << 10;
        run_and_wipe_stack::<STACK_BYTES, _>(|| self.rows.set(row, self.public.rsa(), signature))
    }

    /// The rows in the file format: concatenated big-endian numbers.
    ///
    /// # Errors
    /// None is known: rows and key have the same size.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, RsaError> {
        let size = self.public.rsa().size().bytes();
        let mut one = vec![0; size];
        if let Some(last) = one.last_mut() {
            *last = 1;
        }
        let mut bytes = Zeroizing::new(vec![0; size * self.rows.len()]);
        for (row, bytes) in bytes.chunks_exact_mut(size).enumerate() {
            let element = self.rows.get(row).ok_or(RsaError::MixedSizes)?;
            self.public.rsa().product(bytes, &one, &[element])?;
        }
        Ok(bytes)
    }

    /// Reads the bytes that [`Table::to_bytes`] writes, for this key.
    ///
    /// # Errors
    /// Unexpected length, or a number that is not below the modulus.
    pub fn from_bytes(public: Arc<RaPublic>, bytes: &[u8]) -> Result<Self, TableMismatch> {
        let size = public.rsa().size().bytes();
        let mismatch = TableMismatch {
            found: bytes.len(),
            expected: public.layout().rows() * size,
        };
        if mismatch.found != mismatch.expected {
            return Err(mismatch);
        }
        let mut table = Self::empty(public);
        for (row, number) in bytes.chunks_exact(size).enumerate() {
            table.set(row, number).map_err(|_| mismatch)?;
        }
        Ok(table)
    }

    /// The rows in Montgomery form for the radix of single operations, least significant byte first, concatenated.
    pub(crate) fn montgomery_forms(&self) -> Zeroizing<Vec<u8>> {
        let size = self.public.rsa().size().bytes();
        let mut bytes = Zeroizing::new(vec![0; size * self.rows.len()]);
        for (row, bytes) in bytes.chunks_exact_mut(size).enumerate() {
            let form = self.rows.get(row);
            let form = form.map(|element| self.public.rsa().montgomery_form(bytes, element));
            debug_assert_eq!(form, Some(Ok(())), "rows are as long as the modulus");
        }
        bytes
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &Arc<RaPublic> {
        &self.public
    }

    /// Signs a message of these components with one modular product per component: `σ`, big-endian.
    ///
    /// # Errors
    /// Digits of another layout, or a mask of another key.
    pub fn sign(&self, mask: Mask, digits: &Digits) -> Result<Vec<u8>, RsaError> {
        let mut signature = vec![0; self.public.rsa().size().bytes()];
        let factors = self.factors(digits).ok_or(RsaError::MixedSizes)?;
        self.public
            .rsa()
            .product(&mut signature, mask.beta(), factors.as_slice())?;
        Ok(signature)
    }

    /// Signs several messages, each with its own mask: eight side by side if that is faster on this CPU.
    ///
    /// # Errors
    /// Digits of another layout, or a mask of another key; no message is signed then.
    pub fn sign_all(&self, messages: Vec<(Mask, &Digits)>) -> Result<Vec<Vec<u8>>, RsaError> {
        let mut signatures = vec![vec![0; self.public.rsa().size().bytes()]; messages.len()];
        for (messages, signatures) in messages.chunks(GROUP_SIZE).zip(signatures.chunks_mut(GROUP_SIZE)) {
            self.sign_group(messages, signatures)?;
        }
        Ok(signatures)
    }

    /// Signs up to eight messages.
    fn sign_group(&self, messages: &[(Mask, &Digits)], signatures: &mut [Vec<u8>]) -> Result<(), RsaError> {
        let key = self.public.rsa();
        let factors = messages.iter().map(|(_, digits)| self.factors(digits));
        let factors: Vec<_> = factors.collect::<Option<_>>().ok_or(RsaError::MixedSizes)?;
        let slices: Vec<_> = factors.iter().map(Factors::as_slice).collect();
        let masks: Vec<_> = messages.iter().map(|(mask, _)| mask.beta()).collect();
        if let (Some(backend), Ok(masks), Ok(factors), [a, b, c, d, e, f, g, h]) = (
            Backend::widest(),
            masks.as_slice().try_into(),
            slices.as_slice().try_into(),
            &mut *signatures,
        ) {
            let outputs = [a, b, c, d, e, f, g, h].map(Vec::as_mut_slice);
            return product_batch(backend, [key; GROUP_SIZE], masks, factors, outputs);
        }
        for ((signature, mask), factors) in signatures.iter_mut().zip(masks).zip(slices) {
            key.product(signature, mask, factors)?;
        }
        Ok(())
    }

    /// The factors of a message's signature, except the mask.
    pub(crate) fn factors(&self, digits: &Digits) -> Option<Factors<'_>> {
        let mut factors = Factors {
            elements: [self.rows.get(0)?; COMPONENTS_MAX],
            count: 0,
        };
        for row in self.public.layout().rows_of(digits) {
            *factors.elements.get_mut(factors.count)? = self.rows.get(row)?;
            factors.count += 1;
        }
        Some(factors)
    }
}
