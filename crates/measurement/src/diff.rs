//! What has changed between two configurations.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::configuration::Configuration;
use crate::digest::{Digest, HashAlgorithm};
use crate::eventlog::{Replayed, ReplayedEvent};
use crate::files::{FileEntry, FilePath};
use crate::pcr::{PcrIndex, PcrSelection};

/// All that differs: empty exactly if the configurations are equal. `Display` gives a line for each change, serde the same as
/// JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The banks, if they are not the same: then values of one PCR cannot be compared, and all are told.
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
    /// Before.
    pub old: T,
    /// After.
    pub new: T,
}

/// A PCR with another value, or one that only one of the configurations has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PcrChange {
    /// Which.
    pub pcr: PcrIndex,
    /// The values; nothing where the PCR is not selected.
    #[serde(flatten)]
    pub value: Change<Option<Digest>>,
    /// The first event of this PCR that differs, where the logs tell it: [`Difference::with_events`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_event: Option<Box<Change<Option<ReplayedEvent>>>>,
}

/// A path at which something else is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileChange {
    /// Where.
    pub path: FilePath,
    /// In what respect.
    pub what: FileChangeKind,
    /// The entries; nothing where the path is not measured.
    #[serde(flatten)]
    pub entry: Change<Option<FileEntry>>,
}

/// In what respect a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChangeKind {
    /// It is there now.
    New,
    /// It is no longer there.
    Gone,
    /// Its content, its link's text, its device.
    Content,
    /// Its mode and nothing else.
    Mode,
    /// Both.
    ContentAndMode,
    /// It is of another kind, as a link in a file's place.
    Kind,
    /// It is absent as before, but only one of the configurations says so: the list of paths has changed.
    Listed,
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

    /// Adds to each changed PCR the first event in which the logs differ, which digests alone decide. Both must replay to the PCRs
    /// of the configuration that they belong to; what they say of others is not told.
    #[must_use]
    pub fn with_events(mut self, old: &Replayed, new: &Replayed) -> Self {
        for change in &mut self.pcrs {
            change.first_event = first_difference(change.pcr, old, new).map(Box::new);
        }
        self
    }

    /// Whether nothing differs.
    pub const fn is_empty(&self) -> bool {
        self.banks.is_none() && self.pcrs.is_empty() && self.files.is_empty()
    }
}

fn pcr_changes(old: &Configuration, new: &Configuration) -> Vec<PcrChange> {
    let selections = [old.pcrs().selection(), new.pcrs().selection()];
    let both: PcrSelection = selections.into_iter().flat_map(PcrSelection::iter).collect();
    both.iter()
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

fn first_difference(pcr: PcrIndex, old: &Replayed, new: &Replayed) -> Option<Change<Option<ReplayedEvent>>> {
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
            what: kind_of_change(old, new)?,
            entry: Change {
                old: old.cloned(),
                new: new.cloned(),
            },
        })
    };
    paths.into_iter().filter_map(change).collect()
}

fn kind_of_change(old: Option<&FileEntry>, new: Option<&FileEntry>) -> Option<FileChangeKind> {
    let is_there = |entry: Option<&FileEntry>| entry.is_some_and(|entry| *entry != FileEntry::Absent);
    match (old, new) {
        (old, new) if old == new => None,
        (old, new) if !is_there(old) && !is_there(new) => Some(FileChangeKind::Listed),
        (old, _) if !is_there(old) => Some(FileChangeKind::New),
        (_, new) if !is_there(new) => Some(FileChangeKind::Gone),
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
            return writeln!(f, "nothing has changed");
        }
        if let Some(Change { old, new }) = self.banks {
            writeln!(f, "bank {old} is now {new}")?;
        }
        self.pcrs.iter().try_for_each(|change| write!(f, "{change}"))?;
        self.files.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

/// One line, and one for each side of the first event that differs.
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
        for (side, event) in [("was", &first.old), ("is", &first.new)] {
            match event {
                Some(event) => writeln!(f, "    {side} {event}")?,
                None => writeln!(f, "    {side} no further event")?,
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
        match (self.what, old, new) {
            (FileChangeKind::New, _, Some(new)) => write!(f, "new, {new}"),
            (FileChangeKind::Gone, Some(old), _) => write!(f, "gone, was {old}"),
            (FileChangeKind::Mode, ..) => write!(f, "mode {} is now {}", mode(old), mode(new)),
            (FileChangeKind::Listed, None, _) => f.write_str("now measured, absent"),
            (FileChangeKind::Listed, ..) => f.write_str("no longer measured, was absent"),
            (_, Some(old), Some(new)) => write!(f, "{old} is now {new}"),
            // No comparison gives these.
            _ => f.write_str("changed"),
        }
    }
}
