//! Reference values: what a data plane is to run.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::encoding::{DecodeError, Encoded, Entry, Object};
use crate::ids::SwitchId;
use crate::keys::{KeyError, PublicKey, Signer};
use crate::lthash::{Digest, DigestKind};
use crate::state::Digests;
use crate::statement::{Evidence, Inventory, InventoryError, Kind, Proven, hash};

/// The longest file, bytes.
pub const REFERENCE_BYTES_MAX: usize = 1 << 30;
/// What a signature of a file is over, before the bytes that are hashed: no statement begins so.
const SIGNED: &[u8] = b"linewarden reference values 1\0";

/// What a data plane is to run. Its file is JSON: `{"reference": {...}, "sha256": "...", "signature": "..."}`; the hash is over `reference` as
/// it is written without blanks, the signature, which may be left out, over `linewarden reference values 1`, a zero byte and the
/// same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    version: Version,
    /// For a person to read; a file's policy in results.
    pub name: String,
    /// The one data plane that it is for; any if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchId>,
    /// Of which kind it is to be.
    pub kind: Kind,
    /// The program.
    #[serde(with = "hexadecimal")]
    pub program: Digest,
    /// All tables.
    #[serde(with = "hexadecimal")]
    pub tables: Digest,
    /// All register arrays that the data plane does not call volatile.
    #[serde(with = "hexadecimal")]
    pub registers: Digest,
    /// Its objects.
    pub objects: Vec<ReferenceObject>,
    /// Encodings of entries, in hexadecimal: all of an object's or none of them. With them a difference can be told entry by entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    entries: Vec<String>,
}

/// What one object is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceObject {
    /// Which.
    pub object: Object,
    /// Its digest.
    #[serde(with = "hexadecimal")]
    pub digest: Digest,
    /// Whether it may be anything, as an array that counts packets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_volatile: bool,
    /// Whether the data plane itself leaves it out of the registers' digest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_left_out: bool,
}

/// The form of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
struct Version;

impl TryFrom<u8> for Version {
    type Error = String;

    fn try_from(version: u8) -> Result<Self, Self::Error> {
        match version {
            1 => Ok(Self),
            other => Err(format!(
                "version {other} of reference values is not known, only 1"
            )),
        }
    }
}

impl From<Version> for u8 {
    fn from(_: Version) -> Self {
        1
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    reference: Reference,
    #[serde(with = "hexadecimal")]
    sha256: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

/// Why reference values are refused.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// Longer than any is.
    #[error("reference values of {0} bytes; none are longer than {REFERENCE_BYTES_MAX}")]
    TooLong(usize),
    /// No such file.
    #[error("no reference values: {0}")]
    Json(#[from] serde_json::Error),
    /// Damaged, or edited by hand.
    #[error(
        "the reference values are damaged or were edited: their SHA-256 is {found}, and the file says {said}"
    )]
    Hash {
        /// What the file says.
        said: Digest,
        /// What it is.
        found: Digest,
    },
    /// A signature is demanded.
    #[error("the reference values are not signed, and a key is given that should have signed them")]
    Unsigned,
    /// Somebody else's, or changed.
    #[error(
        "the reference values' signature is not that of this key: they are somebody else's, or were changed"
    )]
    Signature,
    /// They could not be signed.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An object twice.
    #[error("the reference values name {0} twice")]
    Twice(Object),
    /// An entry that is none.
    #[error("the reference values' entry {number}: {why}")]
    Entry {
        /// Which, from 0.
        number: usize,
        /// Why.
        why: String,
    },
    /// Entries that are no set.
    #[error("the reference values' entries: {0}")]
    Entries(#[from] InventoryError),
    /// Entries of an object that they do not name, or not those that its digest is of.
    #[error("the reference values' entries of {0} are not those that its digest is of")]
    Inconsistent(Object),
}

impl Reference {
    /// What a data plane runs now, as what it is to run. `proven` brings entries to tell differences by; `is_volatile` chooses objects
    /// that may be anything, to which those are added that the data plane itself calls so.
    #[must_use]
    pub fn of(
        name: &str,
        evidence: &Evidence,
        proven: Option<&Proven>,
        is_volatile: impl Fn(&Object) -> bool,
    ) -> Self {
        let Digests {
            program,
            tables,
            registers,
        } = evidence.snapshot().digests;
        let objects: Vec<_> = evidence
            .objects()
            .iter()
            .map(|signed| ReferenceObject {
                object: signed.object.clone(),
                digest: signed.digest,
                is_volatile: signed.is_volatile || is_volatile(&signed.object),
                is_left_out: signed.is_volatile,
            })
            .collect();
        let listed = objects.iter().filter(|object| !object.is_volatile);
        let entries = listed
            .filter_map(|object| proven?.entries(&object.object))
            .flatten();
        Self {
            version: Version,
            name: name.to_owned(),
            switch: Some(evidence.snapshot().switch),
            kind: evidence.kind(),
            program,
            tables,
            registers,
            entries: entries.map(|entry| hex::encode(entry.whole())).collect(),
            objects,
        }
    }

    /// The digests that packets of such a data plane carry.
    #[must_use]
    pub const fn digests(&self) -> Digests {
        Digests {
            program: self.program,
            tables: self.tables,
            registers: self.registers,
        }
    }

    /// Writes the file, signed if there is somebody to sign it.
    ///
    /// # Errors
    /// It could not be signed.
    pub fn to_file(&self, signer: Option<&mut dyn Signer>) -> Result<Vec<u8>, ReferenceError> {
        let hashed = serde_json::to_vec(self)?;
        let signature = match signer {
            Some(signer) => Some(hex::encode(signer.sign(&[SIGNED, &hashed].concat())?)),
            None => None,
        };
        let file = File {
            reference: self.clone(),
            sha256: Digest(Sha256::digest(&hashed).into()),
            signature,
        };
        let mut bytes = serde_json::to_vec_pretty(&file)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads a file. With a key it must be signed by that.
    ///
    /// # Errors
    /// Whatever is damaged, not signed, or says two things at once.
    pub fn read(bytes: &[u8], key: Option<&PublicKey>) -> Result<Self, ReferenceError> {
        if bytes.len() > REFERENCE_BYTES_MAX {
            return Err(ReferenceError::TooLong(bytes.len()));
        }
        let File {
            reference,
            sha256,
            signature,
        } = serde_json::from_slice(bytes)?;
        let hashed = serde_json::to_vec(&reference)?;
        let found = Digest(Sha256::digest(&hashed).into());
        if found != sha256 {
            return Err(ReferenceError::Hash { said: sha256, found });
        }
        if let Some(key) = key {
            let signature = signature.ok_or(ReferenceError::Unsigned)?;
            let signature = hex::decode(signature).map_err(|_| ReferenceError::Signature)?;
            if !key.verifies(&[SIGNED, &hashed].concat(), &signature) {
                return Err(ReferenceError::Signature);
            }
        }
        reference.entries()?;
        Ok(reference)
    }

    /// The entries that it has, object by object; objects without entries have none.
    pub(super) fn entries(&self) -> Result<BTreeMap<Object, Vec<Encoded>>, ReferenceError> {
        let mut named = BTreeSet::new();
        for listed in &self.objects {
            if !named.insert(&listed.object) {
                return Err(ReferenceError::Twice(listed.object.clone()));
            }
        }
        let refuse = |number, why: String| ReferenceError::Entry { number, why };
        let encodings: Result<Vec<_>, _> = self
            .entries
            .iter()
            .enumerate()
            .map(|(number, text)| hex::decode(text).map_err(|error| refuse(number, error.to_string())))
            .collect();
        let encodings = encodings?;
        let inventory = Inventory::new(encodings.iter().map(Vec::as_slice))?;
        let mut given = inventory.into_objects();
        let mut entries = BTreeMap::new();
        for ReferenceObject { object, digest, .. } in &self.objects {
            let Some(listed) = given.remove(object) else {
                continue;
            };
            if hash(&listed).digest(DigestKind::Object) != *digest {
                return Err(ReferenceError::Inconsistent(object.clone()));
            }
            entries.insert(object.clone(), listed);
        }
        match given.into_keys().next() {
            Some(object) => Err(ReferenceError::Inconsistent(object)),
            None => Ok(entries),
        }
    }
}

/// An entry that was checked when it was read.
pub(super) fn decoded(entry: &Encoded) -> Result<Entry, DecodeError> {
    Entry::decode(&entry.whole())
}

/// Digests as text.
mod hexadecimal {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::lthash::Digest;

    pub fn serialize<S: Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(digest)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut digest = [0; 32];
        hex::decode_to_slice(&text, &mut digest).map_err(D::Error::custom)?;
        Ok(Digest(digest))
    }
}
