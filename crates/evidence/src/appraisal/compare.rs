//! Compares a statement with reference values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::reference::{Reference, ReferenceError, decoded};
use crate::encoding::{Class, Encoded, Entry, Object};
use crate::ids::SwitchId;
use crate::lthash::{Digest, DigestKind, LtHash};
use crate::state::{ObjectDigest, Snapshot};
use crate::statement::{Evidence, Kind, Proven};

/// How a data plane stands against its reference values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appraisal {
    pub(super) reference: String,
    pub(super) kind: Kind,
    pub(super) snapshot: Snapshot,
    pub(super) nonce: [u8; 32],
    differences: Vec<Difference>,
}

/// Something that is not as it should be. `Display` gives a line, and one more for each entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It is another data plane.
    Switch {
        /// By the reference values.
        expected: SwitchId,
        /// By the statement.
        found: SwitchId,
    },
    /// It is of another kind.
    Kind {
        /// By the reference values.
        expected: Kind,
        /// By the statement.
        found: Kind,
    },
    /// It runs another program.
    Program {
        /// By the reference values.
        expected: Digest,
        /// By the statement.
        found: Digest,
    },
    /// An object has another content, is not there, or should not be there.
    Object {
        /// Which.
        object: Object,
        /// By the reference values, if they have it.
        expected: Option<Digest>,
        /// By the statement, if the data plane has it.
        found: Option<Digest>,
        /// Entry by entry, where both sides are known; else nothing.
        entries: Option<Vec<EntryChange>>,
    },
    /// The data plane leaves a register array out of the registers' digest that should be in it.
    NowVolatile(Object),
    /// All objects are as they should be, and the digest over them is not: what signs is not what measures.
    Sum(Class),
}

/// An entry that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryChange {
    /// By the reference values; nothing if it should not be there.
    pub expected: Option<Entry>,
    /// In the data plane; nothing if it is not there.
    pub found: Option<Entry>,
}

/// Compares what a data plane has signed with what it is to be. `proven` are its entries, if it has sent them.
///
/// # Errors
/// The reference values say two things at once, which those that were read from a file do not.
pub fn appraise(
    evidence: &Evidence,
    reference: &Reference,
    proven: Option<&Proven>,
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
    let known = reference.entries()?;
    differences.extend(object_differences(evidence, reference, &known, proven));
    differences.extend(sum_differences(evidence, reference, &differences));
    Ok(Appraisal {
        reference: reference.name.clone(),
        kind: evidence.kind(),
        snapshot,
        nonce: evidence.nonce().0,
        differences,
    })
}

fn object_differences(
    evidence: &Evidence,
    reference: &Reference,
    known: &BTreeMap<Object, Vec<Encoded>>,
    proven: Option<&Proven>,
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
        let (expected, is_hidden) = (
            expected.map(|expected| expected.digest),
            expected.is_some() && found.is_some_and(|found| found.is_volatile),
        );
        let found = found.map(|found| found.digest);
        if expected != found {
            differences.push(Difference::Object {
                object: object.clone(),
                expected,
                found,
                entries: changes(
                    listed(known.get(object).map(Vec::as_slice), expected),
                    listed(proven.and_then(|proven| proven.entries(object)), found),
                ),
            });
        }
        if is_hidden {
            differences.push(Difference::NowVolatile(object.clone()));
        }
    }
    differences
}

/// The entries of an object as far as they are known: those that are given, and none where there are none.
fn listed(given: Option<&[Encoded]>, digest: Option<Digest>) -> Option<&[Encoded]> {
    let is_empty = digest.is_none_or(|digest| digest == LtHash::EMPTY.digest(DigestKind::Object));
    given.or(is_empty.then_some(&[]))
}

/// What differs between two lists of entries, if both are known.
fn changes(expected: Option<&[Encoded]>, found: Option<&[Encoded]>) -> Option<Vec<EntryChange>> {
    let by_identity = |entries: &[Encoded]| -> BTreeMap<Box<[u8]>, Encoded> {
        let entries = entries.iter();
        entries
            .map(|entry| (entry.identity.clone(), entry.clone()))
            .collect()
    };
    let (expected, found) = (by_identity(expected?), by_identity(found?));
    let identities: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let entry = |of: &BTreeMap<_, Encoded>, identity| of.get(identity).and_then(|entry| decoded(entry).ok());
    let changed = identities.into_iter().map(|identity| EntryChange {
        expected: entry(&expected, identity),
        found: entry(&found, identity),
    });
    Some(changed.filter(|change| change.expected != change.found).collect())
}

/// The two sums, where nothing below them says already that they must differ.
fn sum_differences(evidence: &Evidence, reference: &Reference, before: &[Difference]) -> Vec<Difference> {
    let digests = evidence.snapshot().digests;
    let differs = |class: Class| {
        let is_register = class == Class::Register;
        let is_told = before.iter().any(|difference| match difference {
            Difference::Object { object, .. } | Difference::NowVolatile(object) => {
                (object.class == Class::Register) == is_register
            }
            _ => false,
        });
        // What may be anything leaves its sum open, unless it is in neither side's.
        let left_out = |object: &Object| {
            let found = evidence.objects().iter().find(|found| found.object == *object);
            found.is_some_and(|found| found.is_volatile)
        };
        let is_open = reference.objects.iter().any(|listed| {
            (listed.object.class == Class::Register) == is_register
                && listed.is_volatile
                && !(listed.is_left_out && left_out(&listed.object))
        });
        let equal = match is_register {
            true => digests.registers == reference.registers,
            false => digests.tables == reference.tables,
        };
        !is_told && !is_open && !equal
    };
    [Class::Table, Class::Register]
        .into_iter()
        .filter(|&class| differs(class))
        .map(Difference::Sum)
        .collect()
}

impl Appraisal {
    /// All that differs: nothing if the data plane is what it should be.
    #[must_use]
    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// Whether it is what it should be.
    #[must_use]
    pub const fn is_affirmed(&self) -> bool {
        self.differences.is_empty()
    }

    /// In which state it was.
    #[must_use]
    pub const fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl fmt::Display for Appraisal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_affirmed() {
            return writeln!(f, "nothing differs");
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
            Self::NowVolatile(object) => write!(f, "{object}: now left out of the registers' digest as volatile"),
            Self::Sum(Class::Register) => f.write_str(
                "registers: the digest over all arrays differs, though each array is as it should be: do not trust this \
                 data plane's measurements",
            ),
            Self::Sum(_) => f.write_str(
                "tables: the digest over all objects differs, though each is as it should be: do not trust this data \
                 plane's measurements",
            ),
            Self::Object {
                object,
                expected,
                found,
                entries,
            } => {
                match (expected, found) {
                    (Some(_), None) => write!(f, "{object}: not there")?,
                    (None, _) => write!(f, "{object}: should not be there")?,
                    (Some(_), Some(_)) => write!(f, "{object}: differs")?,
                }
                match entries {
                    None => f.write_str(" (which entries is not known: both sides' inventories are needed)"),
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
                    found.which(),
                    expected.what(),
                    found.what()
                )
            }
            (None, Some(found)) => write!(f, "{}: added, {}", found.which(), found.what()),
            (Some(expected), None) => write!(f, "{}: gone, was {}", expected.which(), expected.what()),
            // No comparison gives it.
            (None, None) => f.write_str("nothing"),
        }
    }
}
