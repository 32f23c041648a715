//! Evidence of this switch: what it is measured to run, kept up to date change by change.
//!
//! ```text
//!  control plane ── ForwardingChange ──► Attester ◄── dirty cells ── packets' register writes
//!                                           │
//!            statement on request ◄─────────┼─────────► Marker (one a worker) ──► packets, program's registers
//! ```
//!
//! Out of the program's reach: what leaves is stamped behind the deparser, frames of evidence's Ethernet type that the
//! program makes are dropped, and the register array in which a program may read the digests takes no writes.

mod canonical;
mod describe;
mod marker;
mod rescan;
mod touched;

pub use self::canonical::digest;
pub use self::describe::DescribeError;
pub use self::marker::Marker;
pub use self::rescan::Rescan;
pub use self::touched::Touched;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_evidence::encoding::{Class, Object};
use linewarden_evidence::inband::{EvidenceKey, Form};
use linewarden_evidence::keys::Signer;
use linewarden_evidence::state::{ArrayCheck, ArrayId, Measured, Snapshot, Stability, StateError};
use linewarden_evidence::statement::{Inventory, InventoryError, Kind, Nonce, Statement, StatementError};
use linewarden_evidence::{BootCount, Digest, SwitchId};

use self::describe::{Describer, Step};
use crate::externs::{Cells, Externs};
use crate::forwarding::Forwarding;
use crate::lower::Executable;
use crate::program::ids::RegisterId;
use crate::switch::{Configured, Settings};
use crate::tables::{Batch, Reader, Snapshot as InForce};

/// The last part of the name of the register array in which a program may read the digests: registers, tables and
/// program in the cells 0, 1 and 2, each cut to the cells' width from its front.
pub const DIGESTS_REGISTER: &str = "linewarden_evidence";

/// Why there is no evidence.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// Something in force has no encoding.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// The program's own form cannot be written.
    #[error("the program's executable form cannot be written: {0}")]
    Program(String),
    /// The measurement contradicts itself.
    #[error(transparent)]
    State(#[from] StateError),
    /// A register array is to be left out that the program does not have.
    #[error("the program has no register array {0:?} that could be volatile")]
    NoArray(String),
    /// Memory is not what was measured.
    #[error("no evidence is given any more: {0}")]
    Damaged(String),
    /// It cannot be signed.
    #[error(transparent)]
    Statement(#[from] StatementError),
    /// There is more than an inventory can hold.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
}

/// Who gives evidence, for as long as the process lives.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The switch.
    pub switch: SwitchId,
    /// Its start; never the same twice.
    pub boot_count: BootCount,
    /// The number of the last packet that carried evidence: one for all programs and workers of this start.
    counter: Arc<AtomicU64>,
    /// Packets that were dropped because a program had made what looks like evidence.
    forged: Arc<AtomicU64>,
}

impl Identity {
    /// Of this start of a switch.
    #[must_use]
    pub fn new(switch: SwitchId, boot_count: BootCount) -> Self {
        Self {
            switch,
            boot_count,
            counter: Arc::default(),
            forged: Arc::default(),
        }
    }

    /// Packets that were dropped, since the start, because a program had made what looks like evidence.
    #[must_use]
    pub fn forged(&self) -> u64 {
        self.forged.load(Ordering::Relaxed)
    }
}

/// How packets carry evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// As a hop-by-hop option of IPv6 packets; others leave without.
    Option,
    /// In a frame of its own for each packet, sent by this port.
    Clone {
        /// The port.
        port: u32,
    },
}

/// Evidence in packets.
#[derive(Clone, Debug)]
pub struct InBand {
    /// What carries it.
    pub carrier: Carrier,
    /// What it says.
    pub form: Form,
    /// Makes the tags of the default content.
    pub key: EvidenceKey,
}

/// What is asked of evidence.
#[derive(Clone, Debug)]
pub struct EvidenceSettings {
    /// Who gives it.
    pub identity: Identity,
    /// Whether packets carry it, and how.
    pub in_band: Option<InBand>,
    /// The port to the controller: what goes there begins with a header of the program's, carries nothing and is not looked at.
    pub cpu_port: Option<u32>,
    /// Register arrays whose values tell nothing of the switch: they stand in statements with digests of their own and
    /// count for no other.
    pub volatile: BTreeSet<String>,
}

/// Measures one program with all that is in force, and makes evidence of it.
#[derive(Debug)]
pub struct Attester {
    settings: EvidenceSettings,
    executable: Arc<Executable>,
    externs: Arc<Externs>,
    touched: Arc<Touched>,
    /// Where the program reads the digests.
    shown: Option<RegisterId>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    measured: Measured,
    /// By register array; none for those that are not measured.
    arrays: Vec<Option<ArrayId>>,
    /// Of the forwarding state that is measured.
    version: u64,
    /// Why the measurement is no longer believed.
    damaged: Option<String>,
}

/// A register array at one moment: as it is measured, and as it lies in memory.
struct ArrayCopy {
    id: RegisterId,
    check: ArrayCheck,
    cells: Cells,
}

impl Attester {
    /// Measures all that is there now. From here on every change of the forwarding state goes through
    /// [`Self::commit`], and register arrays tell of their writes.
    ///
    /// # Errors
    /// Something has no encoding, or the settings do not fit the program.
    pub(crate) fn new(
        settings: EvidenceSettings,
        executable: &Arc<Executable>,
        externs: &Arc<Externs>,
        forwarding: &InForce<Forwarding>,
        switch: &Settings,
        before: Option<&Self>,
    ) -> Result<Self, EvidenceError> {
        let program = &executable.program;
        let is_there = |name: &String| program.registers.iter().any(|array| array.name == *name);
        if let Some(name) = settings.volatile.iter().find(|name| !is_there(name)) {
            return Err(EvidenceError::NoArray(name.clone()));
        }
        let digest = digest(executable)?;
        let mut measured = match before {
            Some(before) => before.state().measured.successor(digest),
            None => Measured::new(settings.identity.switch, settings.identity.boot_count, digest),
        };
        let describer = Describer { program };
        for entry in describer.all(forwarding, externs, switch)? {
            measured.put(&entry)?;
        }
        let touched = Arc::new(Touched::new(program.registers.len()));
        let mut arrays = Vec::with_capacity(program.registers.len());
        for (id, registers) in (0u32..).map(RegisterId).zip(&program.registers) {
            if is_shown(&registers.name) {
                arrays.push(None);
                continue;
            }
            let stability = match settings.volatile.contains(&registers.name) {
                true => Stability::Volatile,
                false => Stability::Static,
            };
            arrays.push(Some(measured.declare_array(
                &registers.name,
                registers.bits,
                registers.size,
                stability,
            )?));
            if let Some(mut cells) = externs.registers(id) {
                cells.track(&touched, id);
            }
        }
        let shown = program.registers.iter().position(|array| is_shown(&array.name));
        Ok(Self {
            settings,
            executable: Arc::clone(executable),
            externs: Arc::clone(externs),
            touched,
            shown: shown.and_then(|at| u32::try_from(at).ok()).map(RegisterId),
            state: Mutex::new(State {
                measured,
                arrays,
                version: forwarding.version(),
                damaged: None,
            }),
        })
    }

    /// A thread that panicked has left a measurement that a rescan judges.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describer(&self) -> Describer<'_> {
        Describer {
            program: &self.executable.program,
        }
    }

    /// Makes a batch visible, sets what goes with it, and measures both, in one step as far as anybody sees who asks for
    /// evidence: nothing is in force that is not measured.
    pub(crate) fn commit(&self, batch: Batch<'_, Forwarding>, configured: &[Configured], set: impl FnOnce()) {
        let describer = self.describer();
        let mut state = self.state();
        set();
        let of_changes = batch
            .changes()
            .iter()
            .map(|change| describer.steps(change, batch.state()));
        let of_settings = configured
            .iter()
            .map(|what| describer.configured(*what, batch.state(), &self.externs));
        let steps: Result<Vec<Vec<Step>>, DescribeError> = of_changes.chain(of_settings).collect();
        match steps {
            Ok(steps) => state.take(steps.into_iter().flatten()),
            Err(error) => state.damage(&error),
        }
        state.version = batch.commit();
        drop(state);
        // Packets carry what is configured from now on, though the forwarding state's version may be the same.
        self.touched.ask();
    }

    /// The state as it is now, with all cells that packets have written.
    ///
    /// # Errors
    /// The measurement is not believed any more.
    pub fn snapshot(&self) -> Result<Snapshot, EvidenceError> {
        let mut state = self.state();
        self.fold(&mut state);
        state.snapshot()
    }

    /// Takes up the cells that were written since the last time.
    fn fold(&self, state: &mut State) {
        for id in self.touched.take() {
            let array = state.arrays.get(id.index()).copied().flatten();
            let (Some(array), Some(mut cells)) = (array, self.externs.registers(id)) else {
                continue;
            };
            if let Err(error) = cells.fold(&mut state.measured, array) {
                state.damage(&error);
            }
        }
    }

    /// The forwarding state that readers see together with its measurement.
    fn in_force(&self, reader: &Reader<Forwarding>) -> (InForce<Forwarding>, Option<Snapshot>) {
        let mut state = self.state();
        self.fold(&mut state);
        (reader.snapshot(), state.snapshot().ok())
    }

    /// The state as packets of a batch see it that runs with this version of the forwarding state, whose digest was `tables`.
    fn within_batch(&self, version: u64, tables: Digest) -> Option<Snapshot> {
        let mut state = self.state();
        self.fold(&mut state);
        let mut snapshot = state.snapshot().ok()?;
        if state.version != version {
            // The control plane is ahead of this batch. The mixture is a state of its own, and has a number of its own.
            snapshot.digests.tables = tables;
            snapshot.sequence = state.measured.skip();
        }
        Some(snapshot)
    }

    /// A signed statement of the state as it is now, and the inventory that lets an appraiser name what differs, but for the objects
    /// `without`; `None` makes no inventory.
    ///
    /// # Errors
    /// It cannot be made, or the measurement is not believed any more.
    pub fn statement(
        &self,
        nonce: Nonce,
        software_version: &str,
        without: Option<&BTreeSet<Object>>,
        signer: &mut dyn Signer,
    ) -> Result<(Vec<u8>, Option<Inventory>), EvidenceError> {
        let is_listed = |object: &Object| without.is_some_and(|without| !without.contains(object));
        let (statement, mut encodings, arrays) = {
            let mut state = self.state();
            let arrays = self.fold_and_copy(&mut state, &is_listed)?;
            let statement = Statement {
                kind: Kind::P4,
                snapshot: state.snapshot()?,
                objects: state.measured.objects(),
                left_out: Statement::LEFT_OUT_P4.map(str::to_owned).to_vec(),
                software_version: software_version.to_owned(),
            };
            let entries = state.measured.entries_of(&is_listed).map(|entry| entry.whole());
            (statement, entries.collect::<Vec<_>>(), arrays)
        };
        for copy in &arrays {
            let push = |cell: &[u8]| encodings.push(cell.to_vec());
            copy.check
                .each_cell(|index, out| copy.cells.write(index, out), push);
        }
        let inventory = without
            .map(|_| Inventory::new(encodings.iter().map(Vec::as_slice)))
            .transpose()?;
        Ok((statement.sign(nonce, signer)?, inventory))
    }

    /// Takes up all cells, and copies those of the arrays that are listed: packets that write go on as soon as their array is copied,
    /// and what they write is in neither.
    fn fold_and_copy(
        &self,
        state: &mut State,
        is_listed: &dyn Fn(&Object) -> bool,
    ) -> Result<Vec<ArrayCopy>, EvidenceError> {
        let mut copies = Vec::new();
        for (id, array) in (0u32..).map(RegisterId).zip(state.arrays.clone()) {
            let (Some(array), Some(mut cells)) = (array, self.externs.registers(id)) else {
                continue;
            };
            cells.fold(&mut state.measured, array)?;
            let object = self
                .executable
                .program
                .registers
                .get(id.index())
                .map(|array| Object {
                    class: Class::Register,
                    name: array.name.to_string(),
                });
            if object.as_ref().is_some_and(is_listed) {
                copies.push(ArrayCopy {
                    id,
                    check: state.measured.check_array(array)?,
                    cells: cells.cells().clone(),
                });
            }
        }
        Ok(copies)
    }

    /// What is asked of this evidence.
    #[must_use]
    pub fn settings(&self) -> &EvidenceSettings {
        &self.settings
    }

    /// A packet is dropped in which the program has made what looks like evidence.
    fn count_forged(&self) {
        self.settings.identity.forged.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of the next packet that carries evidence.
    fn count(&self) -> linewarden_evidence::inband::Counter {
        let last = self.settings.identity.counter.fetch_add(1, Ordering::Relaxed);
        linewarden_evidence::inband::Counter(last + 1)
    }
}

impl State {
    fn snapshot(&mut self) -> Result<Snapshot, EvidenceError> {
        match &self.damaged {
            Some(why) => Err(EvidenceError::Damaged(why.clone())),
            None => Ok(self.measured.snapshot()),
        }
    }

    fn take(&mut self, steps: impl IntoIterator<Item = Step>) {
        for step in steps {
            let taken = match &step {
                Step::Put(entry) => self.measured.put(entry).map(|_| ()),
                Step::Remove(entry) => self.measured.remove(entry).map(|_| ()),
            };
            if let Err(error) = taken {
                self.damage(&error);
            }
        }
    }

    /// Nothing is said any more: evidence that may be wrong is worse than none.
    fn damage(&mut self, why: &dyn std::fmt::Display) {
        self.damaged.get_or_insert_with(|| why.to_string());
    }
}

/// Whether a register array of this name shows the digests to the program.
#[must_use]
pub fn is_shown(name: &str) -> bool {
    name.rsplit('.').next() == Some(DIGESTS_REGISTER)
}
