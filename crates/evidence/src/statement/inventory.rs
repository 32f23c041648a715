//! The entries from which the digests in a statement were computed.

use std::collections::BTreeMap;

use super::VerifiedStatement;
use crate::encoding::{DecodeError, Encoded, Entry, Object};
use crate::lthash::{DigestKind, LtHash};

/// Start of an inventory file.
const MAGIC: &[u8] = b"linewarden evidence inventory 1\n";
/// Maximum length of an inventory, bytes: millions of entries.
pub const INVENTORY_BYTES_MAX: usize = 1 << 30;

/// The entries of a data plane: the text `linewarden evidence inventory 1` with its end of line, then each entry's
/// encoding with its length `u32` in front. An inventory is not signed: [`Inventory::prove`] verifies it with a
/// statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    objects: BTreeMap<Object, Vec<Encoded>>,
}

/// Why an inventory is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    /// Longer than the maximum.
    #[error("inventory too long: {0} bytes, the maximum is {INVENTORY_BYTES_MAX}")]
    TooLong(usize),
    /// Another type of file, or truncated.
    #[error("invalid inventory at byte {0}: truncated, damaged or another type of file")]
    InvalidFormat(usize),
    /// An invalid entry.
    #[error("invalid inventory entry {number}: {error}")]
    InvalidEntry {
        /// Number of the entry, from 0.
        number: usize,
        /// The cause.
        error: DecodeError,
    },
    /// Two entries with the same identity.
    #[error("duplicate entry of {object} in the inventory: {entry}")]
    DuplicateEntry {
        /// The object of the entries.
        object: Object,
        /// The name of the entries.
        entry: String,
    },
    /// The statement was signed over other entries.
    #[error("entries of {0} do not match the statement; request both at once")]
    NotSigned(Object),
    /// The statement does not list the object.
    #[error("entries of {0} rejected: the statement does not list this object")]
    UnknownObject(Object),
}

impl Inventory {
    /// Collects encodings from [`crate::state::MeasuredState::entries`] and [`crate::state::ArrayCheck::each_cell`].
    ///
    /// # Errors
    /// An invalid entry, or two entries with the same identity.
    pub fn new<'a>(encodings: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, InventoryError> {
        let mut objects: BTreeMap<Object, BTreeMap<_, _>> = BTreeMap::new();
        for (number, encoding) in encodings.into_iter().enumerate() {
            let entry =
                Entry::decode(encoding).map_err(|error| InventoryError::InvalidEntry { number, error })?;
            let Encoded { identity, content } = entry.encode_parts();
            let object = entry.object();
            let entries = objects.entry(object).or_default();
            if entries.insert(identity, content).is_some() {
                return Err(InventoryError::DuplicateEntry {
                    object: entry.object(),
                    entry: entry.entry_name(),
                });
            }
        }
        let listed = |entries: BTreeMap<_, _>| {
            let encoded = |(identity, content)| Encoded { identity, content };
            entries.into_iter().map(encoded).collect()
        };
        Ok(Self {
            objects: objects
                .into_iter()
                .map(|(object, entries)| (object, listed(entries)))
                .collect(),
        })
    }

    /// The inventory in file format.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for entry in self.objects.values().flatten().map(Encoded::to_bytes) {
            bytes.extend(u32::try_from(entry.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend(entry);
        }
        bytes
    }

    /// Parses an inventory.
    ///
    /// # Errors
    /// The file is too long or invalid, or one of the errors of [`Self::new`] occurs.
    pub fn read(bytes: &[u8]) -> Result<Self, InventoryError> {
        if bytes.len() > INVENTORY_BYTES_MAX {
            return Err(InventoryError::TooLong(bytes.len()));
        }
        let invalid_format = |rest: &[u8]| InventoryError::InvalidFormat(bytes.len() - rest.len());
        let mut rest = bytes
            .strip_prefix(MAGIC)
            .ok_or(InventoryError::InvalidFormat(0))?;
        let mut encodings = Vec::new();
        while let Some((length, following)) = rest.split_first_chunk::<4>() {
            let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
            let (encoding, following) = following
                .split_at_checked(length)
                .ok_or_else(|| invalid_format(rest))?;
            encodings.push(encoding);
            rest = following;
        }
        match rest {
            [] => Self::new(encodings),
            _ => Err(invalid_format(rest)),
        }
    }

    /// Verifies the inventory with a statement: the entries of each object must have the digest that the statement
    /// lists. Objects without entries in the inventory are proven only if they are empty.
    ///
    /// # Errors
    /// Entries that the data plane did not sign.
    pub fn prove(self, evidence: &VerifiedStatement) -> Result<ProvenEntries, InventoryError> {
        let mut remaining = self.objects;
        let mut entries = BTreeMap::new();
        for signed in evidence.objects() {
            let object = &signed.object;
            let listed = match remaining.remove(object) {
                Some(listed) => listed,
                None if signed.entries == 0 => Vec::new(),
                None => continue,
            };
            if hash(&listed).digest(DigestKind::Object) != signed.digest {
                return Err(InventoryError::NotSigned(object.clone()));
            }
            entries.insert(object.clone(), listed);
        }
        match remaining.into_keys().next() {
            Some(object) => Err(InventoryError::UnknownObject(object)),
            None => Ok(ProvenEntries { entries }),
        }
    }

    /// The entries by object.
    pub(crate) fn into_objects(self) -> BTreeMap<Object, Vec<Encoded>> {
        self.objects
    }
}

/// The set hash of entries, which must be distinct.
pub(crate) fn hash(entries: &[Encoded]) -> LtHash {
    let mut hash = LtHash::EMPTY;
    for entry in entries {
        LtHash::exchange(&mut [&mut hash], None, Some(&entry.to_bytes()));
    }
    hash
}

/// Entries proven by a statement. Created only by [`Inventory::prove`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenEntries {
    entries: BTreeMap<Object, Vec<Encoded>>,
}

impl ProvenEntries {
    /// The entries of an object, sorted by identity; `None` if the entries are not proven.
    #[must_use]
    pub fn entries(&self, object: &Object) -> Option<&[Encoded]> {
        self.entries.get(object).map(Vec::as_slice)
    }
}
