//! The public key of Rapid Authentication, and verification one message at a time.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use linewarden_arithmetic::Backend;
use linewarden_arithmetic::rsa::{self, Element, Fault, RsaPublic};
use sha2::{Digest as _, Sha256};

use super::EIGHT;
use super::hash::{HASH_BYTES_MAX, Prefixes};
use super::layout::{COMPONENTS_MAX, Digits, Layout};
use crate::message::MASK_NAME_BYTES;

/// Bytes of the pad P.
pub const PAD_BYTES: usize = 32;
/// e, as the pad has it.
const EXPONENT: u32 = 65_537;

/// The public key: a modulus, a layout, and the pad that binds them to each other.
///
/// The hashes of components are the same in all messages: those of messages that held are kept, as many as there is
/// [room](RaPublic::keep_at_most) for. Who forges messages fills no memory.
pub struct RaPublic {
    rsa: RsaPublic,
    layout: Layout,
    random: [u8; PAD_BYTES],
    pad: [u8; PAD_BYTES],
    prefixes: Prefixes,
    /// By row of the layout, a number each.
    components: Box<[OnceLock<rsa::Table>]>,
    /// How many more are kept.
    room: AtomicUsize,
    /// See [`RaPublic::recently_missed`], in so many parts.
    missed: AtomicU32,
}

/// Parts of a component in [`RaPublic::missed`].
const MISSED_PARTS: u32 = 16;

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
            room: AtomicUsize::new(rows),
            missed: AtomicU32::new(0),
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

    /// Lets the hashes that are kept take so many bytes, those that are kept already among them. Without it, those of all rows may be kept.
    pub fn keep_at_most(&self, bytes: usize) {
        let rows = bytes / rsa::Table::bytes_of_one(self.rsa.size());
        self.room
            .store(rows.saturating_sub(self.kept_rows()), Ordering::Relaxed);
    }

    /// The hashes of a message's components: those that are kept, and the others computed. `None` for digits of another layout.
    pub(crate) fn components(&self, digits: &Digits) -> Option<Components<'_>> {
        let mut components = Components {
            public: self,
            rows: [(0, None); COMPONENTS_MAX],
            count: 0,
            computed: rsa::Table::new(self.rsa.size(), 0),
        };
        for row in self.layout.rows_of(digits) {
            *components.rows.get_mut(components.count)? = (row, self.kept(row));
            components.count += 1;
        }
        let missing: Vec<usize> = components.missing().collect();
        components.computed = rsa::Table::new(self.rsa.size(), missing.len());
        for (index, rows) in missing.chunks(EIGHT).enumerate() {
            let hashes = rows.iter().map(|row| self.component_bytes(*row));
            let hashes = hashes.collect::<Option<Vec<_>>>()?;
            self.set_some(&mut components.computed, EIGHT * index, &hashes)
                .ok()?;
        }
        Some(components)
    }

    /// Puts up to eight hashes into a table, from a place on.
    fn set_some(&self, table: &mut rsa::Table, first: usize, hashes: &[Vec<u8>]) -> Result<(), Fault> {
        /// From so many on, eight at a time take less time than as many one by one.
        const WORTH: usize = 2;
        match Backend::widest().filter(|_| hashes.len() >= WORTH) {
            Some(backend) => {
                let number = |index| hashes.get(index).map_or(&[][..], Vec::as_slice);
                table.set_eight(backend, first, &self.rsa, std::array::from_fn(number))
            }
            None => (first..)
                .zip(hashes)
                .try_for_each(|(place, hash)| table.set(place, &self.rsa, hash)),
        }
    }

    /// How many of a message's components have hashes that are not kept.
    pub(crate) fn missing(&self, digits: &Digits) -> usize {
        let rows = self.layout.rows_of(digits);
        rows.filter(|row| self.kept(*row).is_none()).count()
    }

    /// How many components of a message that held had to be computed lately, on average.
    pub(crate) fn recently_missed(&self) -> usize {
        (self.missed.load(Ordering::Relaxed) / MISSED_PARTS) as usize
    }

    /// Notes how many had to be computed for a message that held.
    fn has_missed(&self, count: usize) {
        let before = self.missed.load(Ordering::Relaxed);
        // An eighth of the way, rounded towards it. A message has at most 64 components.
        let toward = count as u32 * MISSED_PARTS;
        let after = if toward > before {
            before + (toward - before).div_ceil(8)
        } else {
            before - (before - toward).div_ceil(8)
        };
        if after != before {
            self.missed.store(after, Ordering::Relaxed);
        }
    }

    fn kept(&self, row: usize) -> Option<Element<'_>> {
        self.components.get(row)?.get()?.get(0)
    }

    /// Keeps a component's hash, if there is room.
    fn keep(&self, row: usize, hash: Element<'_>) {
        let one_less = |room: usize| room.checked_sub(1);
        let Some(place) = self.components.get(row) else {
            return;
        };
        if self
            .room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
            && place.set(rsa::Table::of(hash)).is_err()
        {
            // Another lane was faster.
            self.room.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many components' hashes are kept.
    #[must_use]
    pub fn kept_rows(&self) -> usize {
        self.components
            .iter()
            .filter(|place| place.get().is_some())
            .count()
    }

    /// Whether `signature`, as many bytes as the modulus has, is this key's over these components with the mask of this name.
    #[must_use]
    pub fn verify(&self, name: &[u8; MASK_NAME_BYTES], digits: &Digits, signature: &[u8]) -> bool {
        let Some(components) = self.components(digits) else {
            return false;
        };
        let Some(factors) = components.factors() else {
            return false;
        };
        let hash = self.mask_hash(name);
        let checked = self.rsa.check(signature, hash.as_bytes(), factors.as_slice());
        let holds = checked.unwrap_or(false);
        if holds {
            components.keep();
        }
        holds
    }
}

/// The hashes of one message's components.
pub(crate) struct Components<'a> {
    public: &'a RaPublic,
    /// Rows of the layout, and what was kept of them when this was made.
    rows: [(usize, Option<Element<'a>>); COMPONENTS_MAX],
    count: usize,
    /// The others, in their order.
    computed: rsa::Table,
}

impl Components<'_> {
    fn rows(&self) -> &[(usize, Option<Element<'_>>)] {
        self.rows.get(..self.count).unwrap_or_default()
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        self.rows()
            .iter()
            .filter_map(|(row, kept)| kept.is_none().then_some(*row))
    }

    /// As factors of a product.
    pub(crate) fn factors(&self) -> Option<Factors<'_>> {
        let mut computed = (0..).map_while(|index| self.computed.get(index));
        let mut elements = self
            .rows()
            .iter()
            .map(|(_, kept)| kept.or_else(|| computed.next()));
        let mut factors = Factors {
            elements: [elements.next()??; COMPONENTS_MAX],
            count: self.count,
        };
        for (place, element) in factors.elements.iter_mut().skip(1).zip(elements) {
            *place = element?;
        }
        Some(factors)
    }

    /// To be called when the message holds: keeps what had to be computed.
    pub(crate) fn keep(&self) {
        self.public.has_missed(self.missing().count());
        for (index, row) in self.missing().enumerate() {
            if let Some(hash) = self.computed.get(index) {
                self.public.keep(row, hash);
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
