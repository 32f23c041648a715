//! The public key of Rapid Authentication, and verification one message at a time.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use linewarden_arithmetic::Backend;
use linewarden_arithmetic::rsa::{self, Element, RsaError, RsaPublic};
use sha2::{Digest as _, Sha256};

use super::GROUP_SIZE;
use super::hash::{HASH_BYTES_MAX, PAD_BYTES, Prefixes};
use super::layout::{COMPONENTS_MAX, Digits, Layout};
use crate::message::MASK_NAME_BYTES;

/// e, as encoded in the pad.
const EXPONENT: u32 = 65_537;

/// The public key: a modulus, a layout, and the pad that binds both.
///
/// Hashes of components are the same in all messages: the hashes of valid messages' components are cached, up to a
/// [limit](RaPublic::set_cache_limit). Forged messages fill no memory.
pub struct RaPublic {
    rsa: RsaPublic,
    layout: Layout,
    random: [u8; PAD_BYTES],
    pad: [u8; PAD_BYTES],
    prefixes: Prefixes,
    /// Cached hashes, one for each row of the layout.
    components: Box<[OnceLock<rsa::Table>]>,
    /// Remaining capacity of the cache, in rows.
    free_cache_rows: AtomicUsize,
    /// See [`RaPublic::average_missing`], in units of `1 / MISSING_SCALE` component.
    missing_average: AtomicU32,
}

/// Units of [`RaPublic::missing_average`] for one component.
const MISSING_SCALE: u32 = 16;

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
    /// The key with this modulus, for messages of this layout. `random` has the random bytes that were drawn when the
    /// key was made.
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
            free_cache_rows: AtomicUsize::new(rows),
            missing_average: AtomicU32::new(0),
        }
    }

    /// The modulus.
    #[must_use]
    pub fn rsa(&self) -> &RsaPublic {
        &self.rsa
    }

    /// The layout of messages.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The random bytes of the pad.
    #[must_use]
    pub fn random(&self) -> &[u8; PAD_BYTES] {
        &self.random
    }

    /// P, which is part of every hash: `SHA-256("ra" | n | e | layout | random)`.
    #[must_use]
    pub fn pad(&self) -> &[u8; PAD_BYTES] {
        &self.pad
    }

    /// `H(2 | P | r)`, unreduced.
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

    /// `H(1 | P | j | v)` of a row of the layout, unreduced; `None` beyond the last row.
    pub(crate) fn component_bytes(&self, row: usize) -> Option<Vec<u8>> {
        let (component, value) = self.layout.row(row)?;
        let mut wide = vec![0; self.rsa.size().wide_bytes()];
        self.prefixes.component(component, value.as_bytes(), &mut wide);
        Some(wide)
    }

    /// Limits the cached hashes to this number of bytes, including those cached already. By default, all rows may be cached.
    pub fn set_cache_limit(&self, bytes: usize) {
        let rows = bytes / rsa::Table::single_entry_bytes(self.rsa.size());
        self.free_cache_rows
            .store(rows.saturating_sub(self.cached_rows()), Ordering::Relaxed);
    }

    /// The hashes of a message's components, from the cache or computed. `None` for digits of another layout.
    pub(crate) fn components(&self, digits: &Digits) -> Option<Components<'_>> {
        let mut components = Components {
            public: self,
            rows: [(0, None); COMPONENTS_MAX],
            count: 0,
            computed: rsa::Table::new(self.rsa.size(), 0),
        };
        for row in self.layout.rows_of(digits) {
            *components.rows.get_mut(components.count)? = (row, self.cached(row));
            components.count += 1;
        }
        let missing: Vec<usize> = components.missing().collect();
        components.computed = rsa::Table::new(self.rsa.size(), missing.len());
        for (index, rows) in missing.chunks(GROUP_SIZE).enumerate() {
            let hashes = rows.iter().map(|row| self.component_bytes(*row));
            let hashes = hashes.collect::<Option<Vec<_>>>()?;
            self.set_group(&mut components.computed, GROUP_SIZE * index, &hashes)
                .ok()?;
        }
        Some(components)
    }

    /// Writes up to eight hashes into a table, from index `first` on.
    fn set_group(&self, table: &mut rsa::Table, first: usize, hashes: &[Vec<u8>]) -> Result<(), RsaError> {
        /// From this number of hashes on, a batch of eight takes less time than single operations.
        const BATCH_MIN: usize = 2;
        match Backend::widest().filter(|_| hashes.len() >= BATCH_MIN) {
            Some(backend) => {
                let number = |index| hashes.get(index).map_or(&[][..], Vec::as_slice);
                table.set_batch(backend, first, &self.rsa, std::array::from_fn(number))
            }
            None => (first..)
                .zip(hashes)
                .try_for_each(|(index, hash)| table.set(index, &self.rsa, hash)),
        }
    }

    /// Number of a message's components whose hashes are not cached.
    pub(crate) fn missing(&self, digits: &Digits) -> usize {
        let rows = self.layout.rows_of(digits);
        rows.filter(|row| self.cached(*row).is_none()).count()
    }

    /// Recent average number of components that were computed for valid messages.
    pub(crate) fn average_missing(&self) -> usize {
        (self.missing_average.load(Ordering::Relaxed) / MISSING_SCALE) as usize
    }

    /// Records how many components were computed for a valid message.
    fn record_missing(&self, count: usize) {
        let average = self.missing_average.load(Ordering::Relaxed);
        // Moves the average by an eighth of the difference, rounded up in magnitude. A message has at most 64 components.
        let target = count as u32 * MISSING_SCALE;
        let new_average = if target > average {
            average + (target - average).div_ceil(8)
        } else {
            average - (average - target).div_ceil(8)
        };
        if new_average != average {
            self.missing_average.store(new_average, Ordering::Relaxed);
        }
    }

    fn cached(&self, row: usize) -> Option<Element<'_>> {
        self.components.get(row)?.get()?.get(0)
    }

    /// Caches a component's hash, if there is room.
    fn cache(&self, row: usize, hash: Element<'_>) {
        let one_less = |rows: usize| rows.checked_sub(1);
        let Some(cell) = self.components.get(row) else {
            return;
        };
        if self
            .free_cache_rows
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
            && cell.set(rsa::Table::single(hash)).is_err()
        {
            // Another lane has already cached the hash.
            self.free_cache_rows.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of hashes in the cache.
    #[must_use]
    pub fn cached_rows(&self) -> usize {
        self.components.iter().filter(|cell| cell.get().is_some()).count()
    }

    /// Whether `signature`, which is as long as the modulus, is this key's signature over these components with the
    /// mask of this name.
    #[must_use]
    pub fn verify(&self, name: &[u8; MASK_NAME_BYTES], digits: &Digits, signature: &[u8]) -> bool {
        let Some(components) = self.components(digits) else {
            return false;
        };
        let Some(factors) = components.factors() else {
            return false;
        };
        let hash = self.mask_hash(name);
        let result = self.rsa.check(signature, hash.as_bytes(), factors.as_slice());
        let is_valid = result.unwrap_or(false);
        if is_valid {
            components.cache_computed();
        }
        is_valid
    }
}

/// The hashes of one message's components.
pub(crate) struct Components<'a> {
    public: &'a RaPublic,
    /// Rows of the layout, and the hashes of these rows that were cached when this value was created.
    rows: [(usize, Option<Element<'a>>); COMPONENTS_MAX],
    count: usize,
    /// The computed hashes, in order.
    computed: rsa::Table,
}

impl Components<'_> {
    fn rows(&self) -> &[(usize, Option<Element<'_>>)] {
        self.rows.get(..self.count).unwrap_or_default()
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        self.rows()
            .iter()
            .filter_map(|(row, cached_hash)| cached_hash.is_none().then_some(*row))
    }

    /// The hashes as factors of a product.
    pub(crate) fn factors(&self) -> Option<Factors<'_>> {
        let mut computed = (0..).map_while(|index| self.computed.get(index));
        let mut elements = self
            .rows()
            .iter()
            .map(|(_, cached_hash)| cached_hash.or_else(|| computed.next()));
        let mut factors = Factors {
            elements: [elements.next()??; COMPONENTS_MAX],
            count: self.count,
        };
        for (slot, element) in factors.elements.iter_mut().skip(1).zip(elements) {
            *slot = element?;
        }
        Some(factors)
    }

    /// Caches the computed hashes. Call this only for a valid message.
    pub(crate) fn cache_computed(&self) {
        self.public.record_missing(self.missing().count());
        for (index, row) in self.missing().enumerate() {
            if let Some(hash) = self.computed.get(index) {
                self.public.cache(row, hash);
            }
        }
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
