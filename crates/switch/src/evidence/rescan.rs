//! Compares what lies in memory with what was measured.

use std::collections::BTreeMap;
use std::fmt;

use linewarden_evidence::encoding::{Entry, Object};
use linewarden_evidence::state::{ArrayDrift, EntryDrift, HashDrift, Measured};

use super::{Attester, EvidenceError};
use crate::forwarding::Forwarding;
use crate::switch::Settings;
use crate::tables::Reader;

/// What a rescan has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescan {
    /// Entries that are not as they were measured.
    pub entries: Vec<EntryDrift>,
    /// Register arrays that are not.
    pub arrays: Vec<(String, ArrayDrift)>,
    /// What is wrong with the hashes themselves.
    pub hashes: HashDrift,
}

impl Rescan {
    /// Whether memory is what was measured.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let HashDrift {
            objects,
            are_sums_right,
        } = &self.hashes;
        self.entries.is_empty() && self.arrays.is_empty() && objects.is_empty() && *are_sums_right
    }
}

/// What differs first, by name: what is in it may be secret.
impl fmt::Display for Rescan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(drift) = self.entries.first() {
            let entry = drift.found.as_ref().or(drift.measured.as_ref());
            let object = entry.map_or_else(String::new, |entry| entry.object().to_string());
            return write!(f, "an entry of {object} in memory is not what was measured");
        }
        match self.arrays.first() {
            Some((name, _)) => write!(f, "register array {name} in memory is not what was measured"),
            None if self.is_clean() => f.write_str("memory is what was measured"),
            None => f.write_str("the hashes of what was measured are damaged"),
        }
    }
}

impl Attester {
    /// Reads all memory again and compares. If it is not what was measured, no evidence is given from here on.
    ///
    /// # Errors
    /// Something in force has no encoding.
    pub(crate) fn rescan(
        &self,
        reader: &Reader<Forwarding>,
        settings: &Settings,
    ) -> Result<Rescan, EvidenceError> {
        let describer = self.describer();
        let (entries, hashes, copies) = {
            let mut state = self.state();
            let copies = self.fold_and_copy(&mut state, &|_| true)?;
            let forwarding = reader.snapshot();
            let found = describer.all(&forwarding, &self.externs, settings)?;
            let entries = compare(&state.measured, found);
            (entries, state.measured.rescan_hashes(), copies)
        };
        let mut arrays = Vec::new();
        for copy in &copies {
            let drift = copy.check.compare(|index, out| copy.cells.write(index, out));
            let array = self.executable.program.registers.get(copy.id.index());
            arrays.extend(array.zip(drift).map(|(array, drift)| (array.name.clone(), drift)));
        }
        let rescan = Rescan {
            entries,
            arrays,
            hashes,
        };
        if !rescan.is_clean() {
            self.state().damage(&rescan);
            self.touched.ask();
        }
        Ok(rescan)
    }
}

/// The entries that differ, object by object: those of objects that are in memory, and those that were only measured.
fn compare(measured: &Measured, found: Vec<Entry>) -> Vec<EntryDrift> {
    let mut by_object: BTreeMap<Object, Vec<Entry>> = BTreeMap::new();
    for entry in found {
        by_object.entry(entry.object()).or_default().push(entry);
    }
    for object in measured.objects() {
        by_object.entry(object.object).or_default();
    }
    by_object
        .into_iter()
        .flat_map(|(object, entries)| measured.rescan_object(&object, entries))
        .collect()
}
