//! The entries behind a statement's digests.

use std::collections::BTreeMap;

use super::Evidence;
use crate::encoding::{DecodeError, Encoded, Entry, Object};
use crate::lthash::{DigestKind, LtHash};

/// What a file with an inventory begins with.
const MAGIC: &[u8] = b"linewarden evidence inventory 1\n";
/// The longest inventory, bytes: millions of entries.
pub const INVENTORY_BYTES_MAX: usize = 1 << 30;

/// Entries, as a data plane lists them: the text `linewarden evidence inventory 1` with its end of line, then each entry's encoding with
/// its length `u32` in front. Not signed: [`Inventory::prove`] holds it against a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    objects: BTreeMap<Object, Vec<Encoded>>,
}

/// Why an inventory is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    /// Longer than any is.
    #[error("an inventory of {0} bytes; none is longer than {INVENTORY_BYTES_MAX}")]
    TooLong(usize),
    /// Another file, or one that is cut off.
    #[error("no inventory: byte {0}: it is cut off or damaged, or is another file")]
    Form(usize),
    /// An entry that is none.
    #[error("the inventory's entry {number}: {error}")]
    Entry {
        /// Which, from 0.
        number: usize,
        /// Why.
        error: DecodeError,
    },
    /// Two entries of which only one can be in force.
    #[error("the inventory has two entries for {object}, {which}")]
    Twice {
        /// What they belong to.
        object: Object,
        /// Which entry they are.
        which: String,
    },
    /// The data plane has signed something else.
    #[error("the entries of {0} are not those that the statement was signed over: ask for both at once")]
    Differs(Object),
    /// The statement does not speak of it.
    #[error("the inventory has entries of {0}, of which the statement says nothing")]
    Unknown(Object),
}

impl Inventory {
    /// Takes encodings together, as [`crate::state::Measured::entries`] and [`crate::state::ArrayCheck::each_cell`] give them.
    ///
    /// # Errors
    /// What is no entry, or two that exclude each other.
    pub fn new<'a>(encodings: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, InventoryError> {
        let mut objects: BTreeMap<Object, BTreeMap<_, _>> = BTreeMap::new();
        for (number, encoding) in encodings.into_iter().enumerate() {
            let entry = Entry::decode(encoding).map_err(|error| InventoryError::Entry { number, error })?;
            let Encoded { identity, content } = entry.encode_parts();
            let object = entry.object();
            let entries = objects.entry(object).or_default();
            if entries.insert(identity, content).is_some() {
                return Err(InventoryError::Twice {
                    object: entry.object(),
                    which: entry.which(),
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

    /// Writes it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for entry in self.objects.values().flatten().map(Encoded::whole) {
            bytes.extend(u32::try_from(entry.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend(entry);
        }
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// As [`Self::new`], and what is no inventory.
    pub fn read(bytes: &[u8]) -> Result<Self, InventoryError> {
        if bytes.len() > INVENTORY_BYTES_MAX {
            return Err(InventoryError::TooLong(bytes.len()));
        }
        let at = |rest: &[u8]| InventoryError::Form(bytes.len() - rest.len());
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(InventoryError::Form(0))?;
        let mut encodings = Vec::new();
        while let Some((length, following)) = rest.split_first_chunk::<4>() {
            let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
            let (encoding, following) = following.split_at_checked(length).ok_or_else(|| at(rest))?;
            encodings.push(encoding);
            rest = following;
        }
        match rest {
            [] => Self::new(encodings),
            _ => Err(at(rest)),
        }
    }

    /// Holds it against a statement: each object that it has entries of must have exactly these. Objects that it has none of are
    /// not spoken of, unless they have no entries.
    ///
    /// # Errors
    /// Entries that the data plane did not sign.
    pub fn prove(self, evidence: &Evidence) -> Result<Proven, InventoryError> {
        let mut given = self.objects;
        let mut entries = BTreeMap::new();
        for signed in evidence.objects() {
            let object = &signed.object;
            let listed = match given.remove(object) {
                Some(listed) => listed,
                None if signed.entries == 0 => Vec::new(),
                None => continue,
            };
            if hash(&listed).digest(DigestKind::Object) != signed.digest {
                return Err(InventoryError::Differs(object.clone()));
            }
            entries.insert(object.clone(), listed);
        }
        match given.into_keys().next() {
            Some(object) => Err(InventoryError::Unknown(object)),
            None => Ok(Proven { entries }),
        }
    }

    /// Object by object.
    pub(crate) fn into_objects(self) -> BTreeMap<Object, Vec<Encoded>> {
        self.objects
    }
}

/// The set hash of entries, which must be distinct.
pub(crate) fn hash(entries: &[Encoded]) -> LtHash {
    let mut hash = LtHash::EMPTY;
    for entry in entries {
        LtHash::exchange(&mut [&mut hash], None, Some(&entry.whole()));
    }
    hash
}

/// Entries that a statement proves. Made by [`Inventory::prove`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    entries: BTreeMap<Object, Vec<Encoded>>,
}

impl Proven {
    /// The entries of an object, by their identities; nothing if the inventory did not speak of it.
    #[must_use]
    pub fn entries(&self, object: &Object) -> Option<&[Encoded]> {
        self.entries.get(object).map(Vec::as_slice)
    }
}
