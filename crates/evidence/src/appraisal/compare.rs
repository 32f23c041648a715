//! Comparison of a statement with reference values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::reference::{Reference, ReferenceError, decode_entry};
use crate::encoding::{Class, Encoded, Entry, Object};
use crate::ids::SwitchId;
use crate::lthash::{Digest, DigestKind, LtHash};
use crate::state::{ObjectDigest, Snapshot};
use crate::statement::{DataPlaneKind, ProvenEntries, VerifiedStatement};

/// The result of comparing a data plane with its reference values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appraisal {
    pub(super) reference: String,
    pub(super) kind: DataPlaneKind,
    pub(super) snapshot: Snapshot,
    pub(super) nonce: [u8; 32],
    differences: Vec<Difference>,
}

/// A difference from the reference values. `Display` prints one line, and one further line for each differing entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The statement is about another data plane than the reference values.
    Switch {
        /// In the reference values.
        expected: SwitchId,
        /// In the statement.
        found: SwitchId,
    },
    /// The data plane is of another type.
    Kind {
        /// In the reference values.
        expected: DataPlaneKind,
        /// In the statement.
        found: DataPlaneKind,
    },
    /// The data plane runs another program.
    Program {
        /// In the reference values.
        expected: Digest,
        /// In the statement.
        found: Digest,
    },
    /// An object with another content, a missing object, or an unexpected one.
    Object {
        /// The object.
        object: Object,
        /// In the reference values, if present.
        expected: Option<Digest>,
        /// In the statement, if present.
        found: Option<Digest>,
        /// The entries that differ, if both sides' entries are known.
        entries: Option<Vec<EntryChange>>,
    },
    /// The data plane excludes this register array from the registers' digest, although the reference values include the
    /// array.
    NowVolatile(Object),
    /// All objects of this class match, but the digest over all of them differs: the signer is not the measuring process.
    ClassDigest(Class),
}

/// An entry that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChange {
    /// In the reference values; `None` if the entry is unexpected.
    pub expected: Option<Entry>,
    /// In the data plane; `None` if the entry is missing.
    pub found: Option<Entry>,
}

/// Compares the statement of a data plane with its reference values. `proven` contains the data plane's entries, if
/// available.
///
/// # Errors
/// The reference values contradict themselves, which cannot happen for values read from a file.
pub fn appraise(
    evidence: &VerifiedStatement,
    reference: &Reference,
    proven: Option<&ProvenEntries>,
) -> Result<Appraisal, ReferenceError> {
    let snapshot = *evidence.snapshot();
    let mut differences = Vec::new();
    if let Some(expected) = reference.switch.filter(|&switch| switch != snapshot.switch) {
        let found = snapshot.switch;
        differences.push(Difference::Switch { expected, found });
    }
    if reference.kind != evidence.kind() {
        let (expected, found) = (reference.kind, evidence.kind());
        differences.push(Difference::Kind { expected, found });
    }
    if reference.program != snapshot.digests.program {
        let (expected, found) = (reference.program, snapshot.digests.program);
        differences.push(Difference::Program { expected, found });
    }
    let reference_entries = reference.entries()?;
    differences.extend(object_differences(
        evidence,
        reference,
        &reference_entries,
        proven,
    ));
    differences.extend(class_differences(evidence, reference, &differences));
    Ok(Appraisal {
        reference: reference.name.clone(),
        kind: evidence.kind(),
        snapshot,
        nonce: evidence.nonce().0,
        differences,
    })
}

fn object_differences(
    evidence: &VerifiedStatement,
    reference: &Reference,
    reference_entries: &BTreeMap<Object, Vec<Encoded>>,
    proven: Option<&ProvenEntries>,
) -> Vec<Difference> {
    let expected: BTreeMap<_, _> = reference
        .objects
        .iter()
        .map(|listed| (&listed.object, listed))
        .collect();
    let found: BTreeMap<&Object, &ObjectDigest> = evidence
        .objects()
        .iter()
        .map(|signed| (&signed.object, signed))
        .collect();
    let objects: BTreeSet<_> = expected.keys().chain(found.keys()).copied().collect();
    let mut differences = Vec::new();
    for object in objects {
        let (expected, found) = (expected.get(object), found.get(object));
        if expected.is_some_and(|expected| expected.is_volatile) {
            continue;
        }
        let (expected, is_newly_excluded) = (
            expected.map(|expected| expected.digest),
            expected.is_some() && found.is_some_and(|found| found.is_volatile),
        );
        let found = found.map(|found| found.digest);
        if expected != found {
            differences.push(Difference::Object {
                object: object.clone(),
                expected,
                found,
                entries: entry_changes(
                    known_entries(reference_entries.get(object).map(Vec::as_slice), expected),
                    known_entries(proven.and_then(|proven| proven.entries(object)), found),
                ),
            });
        }
        if is_newly_excluded {
            differences.push(Difference::NowVolatile(object.clone()));
        }
    }
    differences
}

/// The entries of an object, if they are known: `entries`, or an empty list if the object is empty.
fn known_entries(entries: Option<&[Encoded]>, digest: Option<Digest>) -> Option<&[Encoded]> {
    let is_empty = digest.is_none_or(|digest| digest == LtHash::EMPTY.digest(DigestKind::Object));
    entries.or(is_empty.then_some(&[]))
}

/// The differences between two lists of entries, if both are known.
fn entry_changes(expected: Option<&[Encoded]>, found: Option<&[Encoded]>) -> Option<Vec<EntryChange>> {
    let by_identity = |entries: &[Encoded]| -> BTreeMap<Box<[u8]>, Encoded> {
        let entries = entries.iter();
        entries
            .map(|entry| (entry.identity.clone(), entry.clone()))
            .collect()
    };
    let (expected, found) = (by_identity(expected?), by_identity(found?));
    let identities: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let entry = |entries: &BTreeMap<_, Encoded>, identity| {
        entries.get(identity).and_then(|entry| decode_entry(entry).ok())
    };
    let changed = identities.into_iter().map(|identity| EntryChange {
        expected: entry(&expected, identity),
        found: entry(&found, identity),
    });
    Some(changed.filter(|change| change.expected != change.found).collect())
}

/// Differences of the tables digest and of the registers digest that no difference of an object explains.
fn class_differences(
    evidence: &VerifiedStatement,
    reference: &Reference,
    object_differences: &[Difference],
) -> Vec<Difference> {
    let digests = evidence.snapshot().digests;
    let differs = |class: Class| {
        let is_register = class == Class::Register;
        let is_reported = object_differences.iter().any(|difference| match difference {
            Difference::Object { object, .. } | Difference::NowVolatile(object) => {
                (object.class == Class::Register) == is_register
            }
            _ => false,
        });
        // If the reference values accept any content of an object, the class digest cannot be compared. The exception: the
        // data plane excludes the object from this digest, and did so when the reference values were created.
        let is_excluded = |object: &Object| {
            let found = evidence.objects().iter().find(|found| found.object == *object);
            found.is_some_and(|found| found.is_volatile)
        };
        let is_incomparable = reference.objects.iter().any(|listed| {
            (listed.object.class == Class::Register) == is_register
                && listed.is_volatile
                && !(listed.is_excluded && is_excluded(&listed.object))
        });
        let equal = match is_register {
            true => digests.registers == reference.registers,
            false => digests.tables == reference.tables,
        };
        !is_reported && !is_incomparable && !equal
    };
    [Class::Table, Class::Register]
        .into_iter()
        .filter(|&class| differs(class))
        .map(Difference::ClassDigest)
        .collect()
}

impl Appraisal {
    /// All differences: empty if the data plane matches the reference values.
    #[must_use]
    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// Whether the data plane matches the reference values.
    #[must_use]
    pub const fn is_affirmed(&self) -> bool {
        self.differences.is_empty()
    }

    /// The state in the statement.
    #[must_use]
    pub const fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl fmt::Display for Appraisal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_affirmed() {
            return writeln!(f, "no differences");
        }
        self.differences
            .iter()
            .try_for_each(|difference| writeln!(f, "{difference}"))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch { expected, found } => write!(f, "data plane {found}, not {expected}"),
            Self::Kind { expected, found } => {
                write!(f, "a data plane of kind {}, not {}", found.name(), expected.name())
            }
            Self::Program { expected, found } => write!(f, "program: {expected} is now {found}"),
            Self::NowVolatile(object) => write!(f, "{object}: now excluded from the registers' digest as volatile"),
            Self::ClassDigest(Class::Register) => f.write_str(
                "registers: the digest over all arrays differs, although each array matches: do not trust this \
                 data plane's measurements",
            ),
            Self::ClassDigest(_) => f.write_str(
                "tables: the digest over all objects differs, although each object matches: do not trust this data \
                 plane's measurements",
            ),
            Self::Object {
                object,
                expected,
                found,
                entries,
            } => {
                match (expected, found) {
                    (Some(_), None) => write!(f, "{object}: missing")?,
                    (None, _) => write!(f, "{object}: unexpected")?,
                    (Some(_), Some(_)) => write!(f, "{object}: differs")?,
                }
                match entries {
                    None => f.write_str(" (entries unknown: inventories of both sides are required)"),
                    Some(entries) => entries.iter().try_for_each(|change| write!(f, "\n    {change}")),
                }
            }
        }
    }
}

impl fmt::Display for EntryChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.expected, &self.found) {
            (Some(expected), Some(found)) => {
                write!(
                    f,
                    "{}: {} is now {}",
                    found.entry_name(),
                    expected.content_text(),
                    found.content_text()
                )
            }
            (None, Some(found)) => write!(f, "{}: added, {}", found.entry_name(), found.content_text()),
            (Some(expected), None) => write!(
                f,
                "{}: removed, was {}",
                expected.entry_name(),
                expected.content_text()
            ),
            // Comparisons never produce this case.
            (None, None) => f.write_str("nothing"),
        }
    }
}
