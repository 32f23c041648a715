//! Differences between two configurations.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::configuration::Configuration;
use crate::digest::{Digest, HashAlgorithm};
use crate::eventlog::{ReplayedEvent, ReplayedLog};
use crate::files::{FileEntry, FilePath};
use crate::pcr::{PcrIndex, PcrSelection};

/// All differences: empty exactly if the configurations are equal. `Display` prints a line for each change, and
/// serde serializes the changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The banks, if they differ: then PCR values cannot be compared, and all of them are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banks: Option<Change<HashAlgorithm>>,
    /// Changed PCRs, by index.
    pub pcrs: Vec<PcrChange>,
    /// Changed files, by path.
    pub files: Vec<FileChange>,
}

/// Two values that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Change<T> {
    /// The value before the change.
    pub old: T,
    /// The value after the change.
    pub new: T,
}

/// A PCR with another value, or a PCR that is selected in only one of the configurations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PcrChange {
    /// The PCR.
    pub pcr: PcrIndex,
    /// The values; `None` if the PCR is not selected.
    #[serde(flatten)]
    pub value: Change<Option<Digest>>,
    /// The first event of this PCR that differs, if the logs show it: [`Difference::with_events`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_event: Option<Box<Change<Option<ReplayedEvent>>>>,
}

/// A path with another entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// The path.
    pub path: FilePath,
    /// The type of the change.
    pub change: FileChangeKind,
    /// The entries; `None` if the path is not measured.
    #[serde(flatten)]
    pub entry: Change<Option<FileEntry>>,
}

/// The type of a file change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChangeKind {
    /// The file was added.
    Added,
    /// The file was removed.
    Removed,
    /// The content, the link target or the device number has changed, but not the mode.
    Content,
    /// Only the mode has changed.
    Mode,
    /// Content and mode have changed.
    ContentAndMode,
    /// The type of the entry has changed, for example from a file to a link.
    Kind,
    /// The path is absent, and only one of the configurations lists it: the list of paths has changed.
    ListingChanged,
}

impl Difference {
    /// Compares two configurations.
    pub fn between(old: &Configuration, new: &Configuration) -> Self {
        let (old_bank, new_bank) = (old.pcrs().bank(), new.pcrs().bank());
        Self {
            banks: (old_bank != new_bank).then_some(Change {
                old: old_bank,
                new: new_bank,
            }),
            pcrs: pcr_changes(old, new),
            files: file_changes(old, new),
        }
    }

    /// Adds to each changed PCR the first event in which the logs differ; only digests are compared. Each log must
    /// replay to the PCRs of its configuration; events of other PCRs are ignored.
    #[must_use]
    pub fn with_events(mut self, old: &ReplayedLog, new: &ReplayedLog) -> Self {
        for change in &mut self.pcrs {
            change.first_event = first_difference(change.pcr, old, new).map(Box::new);
        }
        self
    }

    /// Whether there is no difference.
    pub const fn is_empty(&self) -> bool {
        self.banks.is_none() && self.pcrs.is_empty() && self.files.is_empty()
    }
}

fn pcr_changes(old: &Configuration, new: &Configuration) -> Vec<PcrChange> {
    let selections = [old.pcrs().selection(), new.pcrs().selection()];
    let selected: PcrSelection = selections.into_iter().flat_map(PcrSelection::iter).collect();
    selected
        .iter()
        .map(|pcr| PcrChange {
            pcr,
            value: Change {
                old: old.pcrs().get(pcr).copied(),
                new: new.pcrs().get(pcr).copied(),
            },
            first_event: None,
        })
        .filter(|change| change.value.old != change.value.new)
        .collect()
}

fn first_difference(
    pcr: PcrIndex,
    old: &ReplayedLog,
    new: &ReplayedLog,
) -> Option<Change<Option<ReplayedEvent>>> {
    let mut old = old.events().iter().filter(|event| event.pcr == pcr);
    let mut new = new.events().iter().filter(|event| event.pcr == pcr);
    loop {
        match (old.next(), new.next()) {
            (None, None) => return None,
            (Some(old), Some(new)) if old.digest == new.digest => {}
            (old, new) => {
                return Some(Change {
                    old: old.cloned(),
                    new: new.cloned(),
                });
            }
        }
    }
}

fn file_changes(old: &Configuration, new: &Configuration) -> Vec<FileChange> {
    let paths: BTreeSet<_> = old.files().keys().chain(new.files().keys()).collect();
    let change = |path: &FilePath| {
        let (old, new) = (old.files().get(path), new.files().get(path));
        Some(FileChange {
            path: path.clone(),
            change: file_change_kind(old, new)?,
            entry: Change {
                old: old.cloned(),
                new: new.cloned(),
            },
        })
    };
    paths.into_iter().filter_map(change).collect()
}

fn file_change_kind(old: Option<&FileEntry>, new: Option<&FileEntry>) -> Option<FileChangeKind> {
    let is_present = |entry: Option<&FileEntry>| entry.is_some_and(|entry| *entry != FileEntry::Absent);
    match (old, new) {
        (old, new) if old == new => None,
        (old, new) if !is_present(old) && !is_present(new) => Some(FileChangeKind::ListingChanged),
        (old, _) if !is_present(old) => Some(FileChangeKind::Added),
        (_, new) if !is_present(new) => Some(FileChangeKind::Removed),
        (Some(old), Some(new)) => Some(match (old.same_content(new), old.mode() == new.mode()) {
            (None, _) => FileChangeKind::Kind,
            (Some(true), _) => FileChangeKind::Mode,
            (Some(false), true) => FileChangeKind::Content,
            (Some(false), false) => FileChangeKind::ContentAndMode,
        }),
        (None, _) | (_, None) => None,
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "no differences");
        }
        if let Some(Change { old, new }) = self.banks {
            writeln!(f, "bank {old} is now {new}")?;
        }
        self.pcrs.iter().try_for_each(|change| write!(f, "{change}"))?;
        self.files.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

/// Prints a line for the values, and one line each for the old and the new version of the first event that differs.
impl fmt::Display for PcrChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pcr = self.pcr;
        match self.value {
            Change {
                old: Some(old),
                new: Some(new),
            } => writeln!(f, "PCR {pcr}: {old} is now {new}")?,
            Change {
                old: None,
                new: Some(new),
            } => writeln!(f, "PCR {pcr}: now measured, {new}")?,
            Change { old, new: _ } => {
                let old = old.map(|value| value.to_string()).unwrap_or_default();
                writeln!(f, "PCR {pcr}: no longer measured, was {old}")?;
            }
        }
        let Some(first) = &self.first_event else {
            return Ok(());
        };
        for (verb, event) in [("was", &first.old), ("is", &first.new)] {
            match event {
                Some(event) => writeln!(f, "    {verb} {event}")?,
                None => writeln!(f, "    {verb} no further event")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        let (old, new) = (self.entry.old.as_ref(), self.entry.new.as_ref());
        let mode = |entry: Option<&FileEntry>| {
            entry
                .and_then(FileEntry::mode)
                .map_or_else(String::new, |mode| mode.to_string())
        };
        match (self.change, old, new) {
            (FileChangeKind::Added, _, Some(new)) => write!(f, "added, {new}"),
            (FileChangeKind::Removed, Some(old), _) => write!(f, "removed, was {old}"),
            (FileChangeKind::Mode, ..) => write!(f, "mode {} is now {}", mode(old), mode(new)),
            (FileChangeKind::ListingChanged, None, _) => f.write_str("now measured, absent"),
            (FileChangeKind::ListingChanged, ..) => f.write_str("no longer measured, was absent"),
            (_, Some(old), Some(new)) => write!(f, "{old} is now {new}"),
            // Comparisons never produce these cases.
            _ => f.write_str("changed"),
        }
    }
}
