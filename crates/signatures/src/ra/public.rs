//! The public key of Rapid Authentication, and verification one message at a time.

use std::fmt;
use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

use super::hash::{HASH_BYTES_MAX, Prefixes};
use super::layout::{COMPONENTS_MAX, Digits, Layout};
use crate::arith::rsa::{self, Element, RsaPublic};
use crate::message::MASK_NAME_BYTES;

/// Bytes of the pad P.
pub const PAD_BYTES: usize = 32;
/// e, as the pad has it.
const EXPONENT: u32 = 65_537;

/// The public key: a modulus, a layout, and the pad that binds them to each other.
///
/// The hashes of components are the same in all messages: each is computed when it is first needed, and kept.
pub struct RaPublic {
    rsa: RsaPublic,
    layout: Layout,
    random: [u8; PAD_BYTES],
    pad: [u8; PAD_BYTES],
    prefixes: Prefixes,
    /// By row of the layout, a number each.
    components: Box<[OnceLock<rsa::Table>]>,
}

impl fmt::Debug for RaPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaPublic")
            .field("pad", &hex::encode(self.pad))
            .finish_non_exhaustive()
    }
}

/// The unreduced hash of a mask's name.
#[derive(Clone, Copy)]
pub(crate) struct MaskHash {
    bytes: [u8; HASH_BYTES_MAX],
    length: usize,
}

impl MaskHash {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl RaPublic {
    /// The key over this modulus, for messages of this layout; `random` was drawn when the key was made.
    #[must_use]
    pub fn new(rsa: RsaPublic, layout: Layout, random: [u8; PAD_BYTES]) -> Self {
        let layout_bytes = layout.encode();
        let pad: [u8; PAD_BYTES] = Sha256::new()
            .chain_update(b"ra")
            .chain_update(rsa.as_bytes())
            .chain_update(EXPONENT.to_be_bytes())
            // A layout has at most 2^17 values of 512 bytes.
            .chain_update((layout_bytes.len() as u32).to_be_bytes())
            .chain_update(&layout_bytes)
            .chain_update(random)
            .finalize()
            .into();
        let rows = layout.rows();
        Self {
            rsa,
            layout,
            random,
            pad,
            prefixes: Prefixes::new(&pad),
            components: std::iter::repeat_with(OnceLock::new).take(rows).collect(),
        }
    }

    /// The modulus.
    #[must_use]
    pub fn rsa(&self) -> &RsaPublic {
        &self.rsa
    }

    /// What messages are made of.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What was drawn for the pad.
    #[must_use]
    pub fn random(&self) -> &[u8; PAD_BYTES] {
        &self.random
    }

    /// P, which every hash begins with: `SHA-256("ra" | n | e | layout | random)`.
    #[must_use]
    pub fn pad(&self) -> &[u8; PAD_BYTES] {
        &self.pad
    }

    /// `H(2 | P | r)`, not reduced yet.
    pub(crate) fn mask_hash(&self, name: &[u8; MASK_NAME_BYTES]) -> MaskHash {
        let mut hash = MaskHash {
            bytes: [0; HASH_BYTES_MAX],
            length: self.rsa.size().wide_bytes(),
        };
        if let Some(bytes) = hash.bytes.get_mut(..hash.length) {
            self.prefixes.mask(name, bytes);
        }
        hash
    }

    /// `H(1 | P | j | v)` of a row of the layout, not reduced yet; `None` beyond the last row.
    pub(crate) fn component_bytes(&self, row: usize) -> Option<Vec<u8>> {
        let (component, value) = self.layout.row(row)?;
        let mut wide = vec![0; self.rsa.size().wide_bytes()];
        self.prefixes.component(component, value.as_bytes(), &mut wide);
        Some(wide)
    }

    /// The same as a factor of products.
    pub(crate) fn component(&self, row: usize) -> Option<Element<'_>> {
        let place = self.components.get(row)?;
        let number = place.get_or_init(|| {
            let mut number = rsa::Table::new(self.rsa.size(), 1);
            // It is of the key's size, and no longer than a wide number.
            let _ = self
                .component_bytes(row)
                .map(|wide| number.set(0, &self.rsa, &wide));
            number
        });
        number.get(0)
    }

    /// The factors that a message's components are.
    pub(crate) fn factors(&self, digits: &Digits) -> Option<Factors<'_>> {
        let mut factors = Factors {
            elements: [self.component(0)?; COMPONENTS_MAX],
            count: 0,
        };
        for row in self.layout.rows_of(digits) {
            *factors.elements.get_mut(factors.count)? = self.component(row)?;
            factors.count += 1;
        }
        Some(factors)
    }

    /// Whether `signature`, as many bytes as the modulus has, is this key's over these components with the mask of this name.
    #[must_use]
    pub fn verify(&self, name: &[u8; MASK_NAME_BYTES], digits: &Digits, signature: &[u8]) -> bool {
        let Some(factors) = self.factors(digits) else {
            return false;
        };
        let hash = self.mask_hash(name);
        self.rsa
            .check(signature, hash.as_bytes(), factors.as_slice())
            .unwrap_or(false)
    }
}

/// The factors of one product.
pub(crate) struct Factors<'a> {
    pub(super) elements: [Element<'a>; COMPONENTS_MAX],
    pub(super) count: usize,
}

impl<'a> Factors<'a> {
    pub(crate) fn as_slice(&self) -> &[Element<'a>] {
        self.elements.get(..self.count).unwrap_or_default()
    }
}
