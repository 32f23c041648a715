//! Reference values: the expected state of a data plane.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::encoding::{DecodeError, Encoded, Entry, Object};
use crate::ids::SwitchId;
use crate::keys::{KeyError, PublicKey, Signer};
use crate::lthash::{Digest, DigestKind};
use crate::state::Digests;
use crate::statement::{DataPlaneKind, Inventory, InventoryError, ProvenEntries, VerifiedStatement, hash};

/// Maximum length of a file, bytes.
pub const REFERENCE_BYTES_MAX: usize = 1 << 30;
/// The signature covers this prefix, then the hashed bytes. No statement begins with this prefix, so the signature of a
/// statement is never valid for reference values.
const SIGNATURE_PREFIX: &[u8] = b"linewarden reference values 1\0";

/// The expected state of a data plane. Its file is JSON: `{"reference": {...}, "sha256": "...", "signature": "..."}`.
/// The hash covers `reference` in compact form. The optional signature covers `linewarden reference values 1`, a zero
/// byte and the hashed bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    version: Version,
    /// A display name; the name of the policy in results.
    pub name: String,
    /// The only data plane to which the values apply; `None`: they apply to any data plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchId>,
    /// The type of the data plane.
    pub kind: DataPlaneKind,
    /// The program.
    #[serde(with = "hexadecimal")]
    pub program: Digest,
    /// All tables.
    #[serde(with = "hexadecimal")]
    pub tables: Digest,
    /// All register arrays that the data plane does not declare volatile.
    #[serde(with = "hexadecimal")]
    pub registers: Digest,
    /// All objects of the data plane.
    pub objects: Vec<ReferenceObject>,
    /// Encodings of entries, in hexadecimal: for each object, all of its entries or none. With these encodings, single
    /// entries can be compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    entries: Vec<String>,
}

/// The expected state of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceObject {
    /// The object.
    pub object: Object,
    /// The digest of the object.
    #[serde(with = "hexadecimal")]
    pub digest: Digest,
    /// Whether any content is accepted, as for an array that counts packets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_volatile: bool,
    /// Whether the data plane itself excludes the object from the registers' digest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_excluded: bool,
}

/// The format version of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
struct Version;

impl TryFrom<u8> for Version {
    type Error = String;

    fn try_from(version: u8) -> Result<Self, Self::Error> {
        match version {
            1 => Ok(Self),
            other => Err(format!(
                "unsupported version {other} of reference values, expected 1"
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

/// Why reference values are rejected.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// The file is longer than the maximum.
    #[error("reference values too long: {0} bytes, the maximum is {REFERENCE_BYTES_MAX}")]
    TooLong(usize),
    /// Invalid JSON.
    #[error("invalid reference values: {0}")]
    InvalidJson(#[from] serde_json::Error),
    /// The file is damaged, or was edited manually.
    #[error("reference values damaged or edited: their SHA-256 is {found}, the file states {stated}")]
    HashMismatch {
        /// The hash in the file.
        stated: Digest,
        /// The computed hash.
        found: Digest,
    },
    /// The signature is missing, but a key was given.
    #[error("reference values rejected: they are not signed, but a verification key is configured")]
    Unsigned,
    /// The values were signed by another key, or changed.
    #[error(
        "signature of the reference values does not verify with this key: they were signed by another key, or changed"
    )]
    InvalidSignature,
    /// Signing failed.
    #[error(transparent)]
    SigningFailed(#[from] KeyError),
    /// A duplicate object.
    #[error("invalid reference values: duplicate {0}")]
    DuplicateObject(Object),
    /// The text of an entry is not hexadecimal.
    #[error("invalid entry {number} of the reference values: {reason}")]
    InvalidEntry {
        /// Number of the entry, from 0.
        number: usize,
        /// The cause.
        reason: String,
    },
    /// An entry is invalid, or occurs twice.
    #[error("invalid entries of the reference values: {0}")]
    InvalidEntries(#[from] InventoryError),
    /// Entries of an unlisted object, or entries that do not match the object's digest.
    #[error("invalid reference values: the entries of {0} do not match its digest")]
    Inconsistent(Object),
}

impl Reference {
    /// The reference values for the current state of a data plane. `proven` provides entries for detailed
    /// comparisons. `is_volatile` selects objects whose content is not compared, in addition to the objects that the
    /// data plane itself declares volatile.
    #[must_use]
    pub fn from_statement(
        name: &str,
        evidence: &VerifiedStatement,
        proven: Option<&ProvenEntries>,
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
                is_excluded: signed.is_volatile,
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
            entries: entries.map(|entry| hex::encode(entry.to_bytes())).collect(),
            objects,
        }
    }

    /// The full digests of a data plane in the expected state; packets carry the first 16 bytes of each digest.
    #[must_use]
    pub const fn digests(&self) -> Digests {
        Digests {
            program: self.program,
            tables: self.tables,
            registers: self.registers,
        }
    }

    /// Writes the file, signed if a signer is given.
    ///
    /// # Errors
    /// Signing failed.
    pub fn to_file(&self, signer: Option<&mut dyn Signer>) -> Result<Vec<u8>, ReferenceError> {
        let hashed = serde_json::to_vec(self)?;
        let signature = match signer {
            Some(signer) => Some(hex::encode(signer.sign(&[SIGNATURE_PREFIX, &hashed].concat())?)),
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

    /// Reads a file. If `key` is given, the signature of the file must verify with this key.
    ///
    /// # Errors
    /// The file is too long or damaged, its signature is missing or does not verify, or the file contradicts itself.
    pub fn read(bytes: &[u8], key: Option<&PublicKey>) -> Result<Self, ReferenceError> {
        if bytes.len() > REFERENCE_BYTES_MAX {
            return Err(ReferenceError::TooLong(bytes.len()));
        }
        let File {
            reference,
            sha256,
            signature,
        } = serde_json::from_slice(bytes)?;
        let hashed_bytes = serde_json::to_vec(&reference)?;
        let computed = Digest(Sha256::digest(&hashed_bytes).into());
        if computed != sha256 {
            return Err(ReferenceError::HashMismatch {
                stated: sha256,
                found: computed,
            });
        }
        if let Some(key) = key {
            let signature = signature.ok_or(ReferenceError::Unsigned)?;
            let signature = hex::decode(signature).map_err(|_| ReferenceError::InvalidSignature)?;
            if !key.verifies(&[SIGNATURE_PREFIX, &hashed_bytes].concat(), &signature) {
                return Err(ReferenceError::InvalidSignature);
            }
        }
        reference.entries()?;
        Ok(reference)
    }

    /// The known entries, by object. An object without known entries is not in the map.
    pub(super) fn entries(&self) -> Result<BTreeMap<Object, Vec<Encoded>>, ReferenceError> {
        let mut listed_objects = BTreeSet::new();
        for listed in &self.objects {
            if !listed_objects.insert(&listed.object) {
                return Err(ReferenceError::DuplicateObject(listed.object.clone()));
            }
        }
        let refuse = |number, reason: String| ReferenceError::InvalidEntry { number, reason };
        let encodings: Result<Vec<_>, _> = self
            .entries
            .iter()
            .enumerate()
            .map(|(number, text)| hex::decode(text).map_err(|error| refuse(number, error.to_string())))
            .collect();
        let encodings = encodings?;
        let inventory = Inventory::new(encodings.iter().map(Vec::as_slice))?;
        let mut remaining = inventory.into_objects();
        let mut entries = BTreeMap::new();
        for ReferenceObject { object, digest, .. } in &self.objects {
            let Some(listed) = remaining.remove(object) else {
                continue;
            };
            if hash(&listed).digest(DigestKind::Object) != *digest {
                return Err(ReferenceError::Inconsistent(object.clone()));
            }
            entries.insert(object.clone(), listed);
        }
        match remaining.into_keys().next() {
            Some(object) => Err(ReferenceError::Inconsistent(object)),
            None => Ok(entries),
        }
    }
}

/// Decodes an entry that was checked when the file was read.
pub(super) fn decode_entry(entry: &Encoded) -> Result<Entry, DecodeError> {
    Entry::decode(&entry.to_bytes())
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
