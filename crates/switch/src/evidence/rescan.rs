//! Comparison of memory with the measurement.

use std::collections::BTreeMap;
use std::fmt;

use linewarden_evidence::encoding::{Entry, Object};
use linewarden_evidence::state::{ArrayDrift, EntryDrift, HashDrift, MeasuredState};

use super::Attester;
use super::error::EvidenceError;
use crate::forwarding::Forwarding;
use crate::settings::Settings;
use crate::tables::Reader;

/// Result of a rescan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescan {
    /// Entries that differ from the measurement.
    pub entries: Vec<EntryDrift>,
    /// Register arrays that differ from the measurement.
    pub arrays: Vec<(String, ArrayDrift)>,
    /// Damage of the hashes themselves.
    pub hashes: HashDrift,
}

impl Rescan {
    /// Whether memory equals the measurement.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let HashDrift {
            objects,
            are_sums_valid,
        } = &self.hashes;
        self.entries.is_empty() && self.arrays.is_empty() && objects.is_empty() && *are_sums_valid
    }
}

/// Names the first difference without its content, which may be secret.
impl fmt::Display for Rescan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(drift) = self.entries.first() {
            let entry = drift.in_memory.as_ref().or(drift.measured.as_ref());
            let object = entry.map_or_else(String::new, |entry| entry.object().to_string());
            return write!(f, "an entry of {object} in memory differs from the measurement");
        }
        match self.arrays.first() {
            Some((name, _)) => write!(f, "register array {name} in memory differs from the measurement"),
            None if self.is_clean() => f.write_str("memory equals the measurement"),
            None => f.write_str("hashes of the measurement are damaged"),
        }
    }
}

impl Attester {
    /// Compares all memory with the measurement. A difference disables evidence permanently.
    ///
    /// # Errors
    /// Active state cannot be encoded.
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
            let in_memory = describer.all_entries(&forwarding, &self.externs, settings)?;
            let entries = compare(&state.measured, in_memory);
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
            self.state().set_failure(&rescan);
            self.changed_arrays.notify();
        }
        Ok(rescan)
    }
}

/// Returns all entries that differ, also those of objects that only the memory or only the measurement contains.
fn compare(measured: &MeasuredState, in_memory: Vec<Entry>) -> Vec<EntryDrift> {
    let mut by_object: BTreeMap<Object, Vec<Entry>> = BTreeMap::new();
    for entry in in_memory {
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
