//! The measured state of a running data plane, updated with every change.
//!
//! [`MeasuredState`] has the digest of the program, a set hash for each table, register array and other object, and
//! two sums of set hashes: *tables* (all objects except registers) and *registers* (the arrays that are not
//! volatile). Settings of the control plane are stored as entries, so that no entry is added twice and the inventory
//! can be exported. Register cells are not stored, because packets write them constantly. The owner of an array's
//! memory records in [`DirtyCells`] the value of a cell before its first change, and [`MeasuredState::fold`] replaces
//! the old values by the current values when evidence is created.
//!
//! ```
//! use linewarden_evidence::encoding::{Action, ActionRef, DefaultAction};
//! use linewarden_evidence::state::{DirtyCells, MeasuredState, Stability, program_digest};
//! use linewarden_evidence::{BootCount, SwitchId};
//!
//! let mut measured = MeasuredState::new(SwitchId(7), BootCount(1), program_digest(b"the executable form"));
//! let drop = Action { name: "drop".to_owned(), data: Vec::new() };
//! let default = DefaultAction { table: "acl".to_owned(), is_const: false, action: Some(ActionRef::Action(drop)) };
//! measured.put(&default.into())?;
//! let flows = measured.declare_array("flows", 16, 4, Stability::Static)?;
//!
//! let mut memory = [0u16; 4];
//! let mut dirty = DirtyCells::new(16, 4);
//! let before = measured.snapshot();
//! dirty.mark(2, &memory[2].to_be_bytes());
//! memory[2] = 500;
//! measured.fold(flows, &mut dirty, |index, out| out.copy_from_slice(&memory[index as usize].to_be_bytes()))?;
//! let after = measured.snapshot();
//! assert_eq!(before.digests.tables, after.digests.tables);
//! assert_ne!(before.digests.registers, after.digests.registers);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dirty;
mod entry_store;
mod error;
mod registers;

use sha2::{Digest as _, Sha256};

pub use dirty::DirtyCells;
pub use entry_store::{EntryDrift, ObjectDigest, PutOutcome};
pub use error::StateError;
pub use registers::{ArrayCheck, ArrayDrift, ArrayId, Stability};

use entry_store::EntryStore;
use registers::Registers;

use crate::encoding::{BpfProgram, Encoded, Entry, Object};
use crate::ids::{BootCount, Sequence, SwitchId};
use crate::lthash::{Digest, DigestKind};

/// The digest of a P4 program: SHA-256 of its canonical executable form.
#[must_use]
pub fn program_digest(canonical: &[u8]) -> Digest {
    Digest(Sha256::digest(canonical).into())
}

/// The digest of a set of loaded eBPF programs: SHA-256 of their encodings in increasing order, each with its length
/// `u32` in front.
#[must_use]
pub fn bpf_digest(programs: impl IntoIterator<Item = BpfProgram>) -> Digest {
    let mut encoded: Vec<_> = programs
        .into_iter()
        .map(|program| Entry::from(program).encode())
        .collect();
    encoded.sort();
    let mut hash = Sha256::new();
    for program in encoded {
        hash.update(u32::try_from(program.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(program);
    }
    Digest(hash.finalize().into())
}

/// The three digests of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digests {
    /// The digest of the program.
    pub program: Digest,
    /// The digest of all tables and related objects.
    pub tables: Digest,
    /// The digest of all register arrays that are not volatile.
    pub registers: Digest,
}

/// A state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The data plane.
    pub switch: SwitchId,
    /// The start of the data plane.
    pub boot_count: BootCount,
    /// The number of the state.
    pub sequence: Sequence,
    /// The digests.
    pub digests: Digests,
}

/// Errors in the hashes themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashDrift {
    /// Objects whose hash does not match their entries.
    pub objects: Vec<Object>,
    /// Whether the digests of tables and registers match the hashes of their parts.
    pub are_sums_valid: bool,
}

/// Number of low bits of a state number, which count the states of one program: enough for years of changes.
const PROGRAM_SHIFT: u32 = 40;

/// The measured state of a running data plane.
#[derive(Clone, Debug)]
pub struct MeasuredState {
    switch: SwitchId,
    boot_count: BootCount,
    program: Digest,
    sequence: Sequence,
    entry_store: EntryStore,
    registers: Registers,
    /// Cached digests of the two sums.
    tables_digest: Option<Digest>,
    registers_digest: Option<Digest>,
}

impl MeasuredState {
    /// A data plane that runs `program`, without entries.
    #[must_use]
    pub fn new(switch: SwitchId, boot_count: BootCount, program: Digest) -> Self {
        Self {
            switch,
            boot_count,
            program,
            sequence: Sequence(0),
            entry_store: EntryStore::default(),
            registers: Registers::default(),
            tables_digest: None,
            registers_digest: None,
        }
    }

    /// The state after a change of the program, without entries. The state numbers continue at the next multiple of 2^40,
    /// because the previous program may still be measured for a while, which uses up further numbers.
    #[must_use]
    pub fn successor(&self, program: Digest) -> Self {
        let sequence = (self.sequence.0 >> PROGRAM_SHIFT).wrapping_add(1) << PROGRAM_SHIFT;
        Self {
            sequence: Sequence(sequence),
            ..Self::new(self.switch, self.boot_count, program)
        }
    }

    /// Reserves a number for a state that the data plane assembles from parts of different measured states. The
    /// current state gets the number after the reserved number.
    pub fn reserve_sequence(&mut self) -> Sequence {
        let reserved = Sequence(self.sequence.0.wrapping_add(1));
        self.sequence = Sequence(reserved.0.wrapping_add(1));
        reserved
    }

    /// Adds an entry, or replaces the entry with the same identity.
    ///
    /// # Errors
    /// A register cell.
    pub fn put(&mut self, entry: &Entry) -> Result<PutOutcome, StateError> {
        if matches!(entry, Entry::RegisterCell(_)) {
            return Err(StateError::RegisterAsEntry);
        }
        let outcome = self.entry_store.put(entry.object(), entry.encode_parts());
        if outcome != PutOutcome::Unchanged {
            self.tables_changed();
        }
        Ok(outcome)
    }

    /// Removes the entry with the same identity; returns whether it existed.
    ///
    /// # Errors
    /// A register cell.
    pub fn remove(&mut self, entry: &Entry) -> Result<bool, StateError> {
        if matches!(entry, Entry::RegisterCell(_)) {
            return Err(StateError::RegisterAsEntry);
        }
        let was_present = self
            .entry_store
            .remove(&entry.object(), &entry.encode_parts().identity);
        if was_present {
            self.tables_changed();
        }
        Ok(was_present)
    }

    /// Removes all entries of an object, including the default action of a table, as when a table is cleared; returns
    /// their number.
    pub fn clear(&mut self, object: &Object) -> usize {
        let removed = self.entry_store.clear(object);
        if removed > 0 {
            self.tables_changed();
        }
        removed
    }

    fn tables_changed(&mut self) {
        self.sequence.0 = self.sequence.0.wrapping_add(1);
        self.tables_digest = None;
    }

    /// Declares a register array of `size` cells of `width` bits, all zero.
    ///
    /// # Errors
    /// An array of this name exists.
    pub fn declare_array(
        &mut self,
        name: &str,
        width: u32,
        size: u32,
        stability: Stability,
    ) -> Result<ArrayId, StateError> {
        self.sequence.0 = self.sequence.0.wrapping_add(1);
        self.registers.declare(name, width, size, stability)
    }

    /// Applies the changes of an array since the last call. `read` writes a cell's value into its argument,
    /// big-endian, in as many bytes as the width requires, with zeros above the width. Returns the number of changed
    /// cells.
    ///
    /// # Errors
    /// The array does not exist, or its cells have another width; then nothing is applied.
    pub fn fold(
        &mut self,
        array: ArrayId,
        dirty: &mut DirtyCells,
        read: impl FnMut(u32, &mut [u8]),
    ) -> Result<usize, StateError> {
        let (changed, is_attested) = self.registers.fold(array, dirty, read)?;
        if changed > 0 {
            self.sequence.0 = self.sequence.0.wrapping_add(1);
            if is_attested {
                self.registers_digest = None;
            }
        }
        Ok(changed)
    }

    /// The current state; dirty cells still count with their old values.
    pub fn snapshot(&mut self) -> Snapshot {
        let (entry_store, registers) = (&self.entry_store, &self.registers);
        let tables = *self
            .tables_digest
            .get_or_insert_with(|| entry_store.sum().digest(DigestKind::Tables));
        let registers = *self
            .registers_digest
            .get_or_insert_with(|| registers.sum().digest(DigestKind::Registers));
        Snapshot {
            switch: self.switch,
            boot_count: self.boot_count,
            sequence: self.sequence,
            digests: Digests {
                program: self.program,
                tables,
                registers,
            },
        }
    }

    /// The digests of all objects, in their order: every register array, and the other objects with entries.
    #[must_use]
    pub fn objects(&self) -> Vec<ObjectDigest> {
        let mut objects = self.registers.objects();
        objects.extend(self.entry_store.objects());
        objects.sort_by(|a, b| a.object.cmp(&b.object));
        objects
    }

    /// All active entries except register cells, in the order of their objects.
    pub fn entries(&self) -> impl Iterator<Item = Encoded> {
        self.entries_of(|_| true)
    }

    /// The active entries of some objects.
    pub fn entries_of(&self, is_listed: impl Fn(&Object) -> bool) -> impl Iterator<Item = Encoded> {
        self.entry_store.entries_of(is_listed)
    }

    /// Compares an object's entries in the memory of the data plane with the measurement.
    pub fn rescan_object(&self, object: &Object, found: impl IntoIterator<Item = Entry>) -> Vec<EntryDrift> {
        self.entry_store.compare(object, found)
    }

    /// Checks the hashes themselves, whose memory may be corrupted: the objects whose hash does not match their
    /// entries, and whether both sums match their parts. [`Self::check_array`] checks register arrays.
    #[must_use]
    pub fn rescan_hashes(&self) -> HashDrift {
        HashDrift {
            objects: self.entry_store.damaged_objects().collect(),
            are_sums_valid: self.entry_store.is_sum_valid() && self.registers.is_sum_valid(),
        }
    }

    /// The current measurement of an array: the encodings of its cells, and a comparison with a copy of its memory.
    /// The caller must fold the dirty cells immediately before copying the memory, under one lock. The comparison itself
    /// needs no lock.
    ///
    /// # Errors
    /// The array does not exist.
    pub fn check_array(&self, array: ArrayId) -> Result<ArrayCheck, StateError> {
        self.registers.check(array)
    }
}
