//! What a running data plane is measured to be, kept up to date with every change.
//!
//! [`Measured`] has the program's digest and a set hash for each table, register array and other object, with two sums over them:
//! *tables* (all that is no register) and *registers* (the arrays that are not volatile). What the control plane sets goes in as
//! entries and is kept, so that no entry is ever added twice and the inventory can be told. Registers are not kept: packets write
//! them all the time. Whoever owns their memory remembers in [`DirtyCells`] what a cell held when it first changed, and
//! [`Measured::fold`] takes the old values out and puts the present ones in when evidence is made.
//!
//! ```
//! use linewarden_evidence::encoding::{Action, ActionRef, DefaultAction};
//! use linewarden_evidence::state::{DirtyCells, Measured, Stability, program_digest};
//! use linewarden_evidence::{BootCount, SwitchId};
//!
//! let mut measured = Measured::new(SwitchId(7), BootCount(1), program_digest(b"the executable form"));
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
mod ledger;
mod registers;

use sha2::{Digest as _, Sha256};

pub use dirty::DirtyCells;
pub use ledger::{EntryDrift, Put};
pub use registers::{ArrayCheck, ArrayId, Stability};

use ledger::Ledger;
use registers::Registers;

use crate::encoding::{BpfProgram, Encoded, Entry, Object};
use crate::ids::{BootCount, Sequence, SwitchId};
use crate::lthash::{Digest, DigestKind};

/// The digest of a P4 program: SHA-256 of the canonical executable form that runs.
#[must_use]
pub fn program_digest(canonical: &[u8]) -> Digest {
    Digest(Sha256::digest(canonical).into())
}

/// The digest of a set of loaded eBPF programs: SHA-256 of their encodings in increasing order, each with its length `u32` in front.
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

/// Why a change cannot be measured. The data plane's own mistake in all cases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Registers are measured by their arrays.
    #[error("a register cell was put as an entry: declare its array and fold its changes")]
    Register,
    /// An array of this name is declared already.
    #[error("the register array {0:?} is declared twice")]
    Twice(String),
    /// No such array, or another width.
    #[error("register array {0}: not declared, or its cells have another width")]
    Array(usize),
}

/// The three digests of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digests {
    /// Of the program.
    pub program: Digest,
    /// Of all tables and what belongs to them.
    pub tables: Digest,
    /// Of all register arrays that are not volatile.
    pub registers: Digest,
}

/// A state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whose.
    pub switch: SwitchId,
    /// Since which start.
    pub boot_count: BootCount,
    /// The state's number.
    pub sequence: Sequence,
    /// What it is.
    pub digests: Digests,
}

/// The digest of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectDigest {
    /// Which.
    pub object: Object,
    /// Of its entries, or of its cells that are not zero.
    pub digest: Digest,
    /// How many those are.
    pub entries: u64,
    /// Whether it is a register array that is left out of the registers' digest.
    pub is_volatile: bool,
}

/// A register array whose memory is not what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayDrift {
    /// By the changes that were folded.
    pub measured: Digest,
    /// By the memory.
    pub found: Digest,
}

/// What is wrong with the hashes themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashDrift {
    /// Objects whose hash is not that of their entries.
    pub objects: Vec<Object>,
    /// Whether the digests of tables and registers are over their parts' hashes.
    pub are_sums_right: bool,
}

/// The numbers of a program's states: enough for years of changes.
const PROGRAM_SHIFT: u32 = 40;

/// What a running data plane is measured to be.
#[derive(Clone, Debug)]
pub struct Measured {
    switch: SwitchId,
    boot_count: BootCount,
    program: Digest,
    sequence: Sequence,
    ledger: Ledger,
    registers: Registers,
    /// Digests of the two sums, while they hold.
    tables_digest: Option<Digest>,
    registers_digest: Option<Digest>,
}

impl Measured {
    /// A data plane that runs `program`, with nothing set yet.
    #[must_use]
    pub fn new(switch: SwitchId, boot_count: BootCount, program: Digest) -> Self {
        Self {
            switch,
            boot_count,
            program,
            sequence: Sequence(0),
            ledger: Ledger::default(),
            registers: Registers::default(),
            tables_digest: None,
            registers_digest: None,
        }
    }

    /// Another program runs, with nothing set yet. The one before may still be measured for a while: the numbers of the states go on
    /// at the next multiple of 2^40.
    #[must_use]
    pub fn successor(&self, program: Digest) -> Self {
        let sequence = (self.sequence.0 >> PROGRAM_SHIFT).wrapping_add(1) << PROGRAM_SHIFT;
        Self {
            sequence: Sequence(sequence),
            ..Self::new(self.switch, self.boot_count, program)
        }
    }

    /// A number for a state that is not measured here, but made of this one's parts by the data plane.
    pub fn skip(&mut self) -> Sequence {
        let skipped = Sequence(self.sequence.0.wrapping_add(1));
        self.sequence = Sequence(skipped.0.wrapping_add(1));
        skipped
    }

    /// An entry is in force now, in place of one with the same identity if there is one.
    ///
    /// # Errors
    /// A register cell.
    pub fn put(&mut self, entry: &Entry) -> Result<Put, StateError> {
        if matches!(entry, Entry::RegisterCell(_)) {
            return Err(StateError::Register);
        }
        let put = self.ledger.put(entry.object(), entry.encode_parts());
        if put != Put::Same {
            self.tables_changed();
        }
        Ok(put)
    }

    /// The entry with this one's identity is no longer in force. Whether there was one.
    ///
    /// # Errors
    /// A register cell.
    pub fn remove(&mut self, entry: &Entry) -> Result<bool, StateError> {
        if matches!(entry, Entry::RegisterCell(_)) {
            return Err(StateError::Register);
        }
        let was_there = self
            .ledger
            .remove(&entry.object(), &entry.encode_parts().identity);
        if was_there {
            self.tables_changed();
        }
        Ok(was_there)
    }

    /// Nothing of this object is in force any more, as when a table is cleared. How many entries that were; a table's
    /// default action is one.
    pub fn clear(&mut self, object: &Object) -> usize {
        let removed = self.ledger.clear(object);
        if removed > 0 {
            self.tables_changed();
        }
        removed
    }

    fn tables_changed(&mut self) {
        self.sequence.0 = self.sequence.0.wrapping_add(1);
        self.tables_digest = None;
    }

    /// A register array of `size` cells of `width` bits, all zero.
    ///
    /// # Errors
    /// There is one of this name.
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

    /// Takes up what has changed in an array since the last time; `read` writes a cell's value into its argument, big-endian
    /// in as many bytes as the width needs, zeros above the width. How many cells have another value.
    ///
    /// # Errors
    /// No such array, or the cells' width is not the array's; then nothing is taken up.
    pub fn fold(
        &mut self,
        array: ArrayId,
        dirty: &mut DirtyCells,
        read: impl FnMut(u32, &mut [u8]),
    ) -> Result<usize, StateError> {
        let (changed, counts) = self.registers.fold(array, dirty, read)?;
        if changed > 0 {
            self.sequence.0 = self.sequence.0.wrapping_add(1);
            if counts {
                self.registers_digest = None;
            }
        }
        Ok(changed)
    }

    /// The state as it is now; cells that are dirty still count with their old values.
    pub fn snapshot(&mut self) -> Snapshot {
        let (ledger, registers) = (&self.ledger, &self.registers);
        let tables = *self
            .tables_digest
            .get_or_insert_with(|| ledger.sum().digest(DigestKind::Tables));
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

    /// The digests of all objects, in their order: every register array, and of the rest those that have entries.
    #[must_use]
    pub fn objects(&self) -> Vec<ObjectDigest> {
        let mut objects = self.registers.objects();
        objects.extend(self.ledger.objects());
        objects.sort_by(|a, b| a.object.cmp(&b.object));
        objects
    }

    /// All entries that are in force, object by object. Register cells are not among them.
    pub fn entries(&self) -> impl Iterator<Item = Encoded> {
        self.entries_of(|_| true)
    }

    /// Likewise of some objects.
    pub fn entries_of(&self, is_listed: impl Fn(&Object) -> bool) -> impl Iterator<Item = Encoded> {
        self.ledger.entries_of(is_listed)
    }

    /// Compares an object's entries, as they lie in the data plane's memory, with what was measured.
    pub fn rescan_object(&self, object: &Object, found: impl IntoIterator<Item = Entry>) -> Vec<EntryDrift> {
        self.ledger.compare(object, found)
    }

    /// Checks the hashes themselves, whose memory may be damaged as any other: the objects whose hash is not that of their entries, and
    /// whether both sums are those of their parts. Register arrays are checked by [`Self::check_array`].
    #[must_use]
    pub fn rescan_hashes(&self) -> HashDrift {
        HashDrift {
            objects: self.ledger.damaged().collect(),
            are_sums_right: self.ledger.is_summed() && self.registers.is_summed(),
        }
    }

    /// An array as it is measured now: its cells' encodings, and whether a copy of its memory is what was measured. Dirty cells must have
    /// been folded when the copy is made; the work itself needs nobody to wait.
    ///
    /// # Errors
    /// No such array.
    pub fn check_array(&self, array: ArrayId) -> Result<ArrayCheck, StateError> {
        self.registers.check(array)
    }
}
