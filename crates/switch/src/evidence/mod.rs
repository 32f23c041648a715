//! Evidence of this switch: an incremental measurement of the program and its state.
//!
//! ```text
//!  control plane ── ForwardingChange ──► Attester ◄── dirty cells ── packets' register writes
//!                                           │
//!            statement on request ◄─────────┼────► WorkerAttester (per worker) ──► packets, program's registers
//! ```
//!
//! The program cannot forge evidence: the switch stamps packets after the deparser and drops frames that the program
//! creates with the Ethernet type of evidence. The register array with the digests ignores writes.

mod canonical;
mod describe;
mod error;
mod rescan;
mod worker_attester;

pub use self::canonical::digest;
pub use self::describe::DescribeError;
pub use self::error::EvidenceError;
pub use self::rescan::Rescan;
pub use self::worker_attester::WorkerAttester;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linewarden_evidence::encoding::{Class, Object};
use linewarden_evidence::inband::EvidenceKey;
use linewarden_evidence::keys::Signer;
use linewarden_evidence::state::{ArrayCheck, ArrayId, MeasuredState, Snapshot, Stability};
use linewarden_evidence::statement::{DataPlaneKind, Inventory, Nonce, Statement};
use linewarden_evidence::{BootCount, Digest, SwitchId};

use self::describe::{Describer, Step};
use crate::changed_arrays::ChangedArrays;
use crate::executable::Executable;
use crate::externs::{Cells, Externs, is_digest_register};
use crate::forwarding::Forwarding;
use crate::program::ids::RegisterId;
use crate::settings::{ConfiguredItem, Settings};
use crate::tables::{Batch, Reader, Snapshot as PublishedState};

/// Identity of the switch in evidence, for the lifetime of the process.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Switch id.
    pub switch: SwitchId,
    /// Boot counter; must differ at each start.
    pub boot_count: BootCount,
    /// Number of the last packet with evidence, shared by all programs and workers since the start.
    packet_counter: Arc<AtomicU64>,
    /// Number of packets dropped because a program had produced data that resembles evidence.
    forged_packets: Arc<AtomicU64>,
}

impl Identity {
    /// Creates the identity for this start of the switch.
    #[must_use]
    pub fn new(switch: SwitchId, boot_count: BootCount) -> Self {
        Self {
            switch,
            boot_count,
            packet_counter: Arc::default(),
            forged_packets: Arc::default(),
        }
    }

    /// Number of packets dropped since the start because a program had produced data that resembles evidence.
    #[must_use]
    pub fn forged_packets(&self) -> u64 {
        self.forged_packets.load(Ordering::Relaxed)
    }
}

/// Carrier of evidence in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Hop-by-hop option in IPv6 packets; other packets carry no evidence.
    Option,
    /// Separate frame for each packet, sent to this port.
    Clone {
        /// Port.
        port: u32,
    },
}

/// In-band evidence.
#[derive(Clone, Debug)]
pub struct InBand {
    /// Carrier.
    pub carrier: Carrier,
    /// Key for the tags.
    pub key: EvidenceKey,
}

/// Settings of evidence.
#[derive(Clone, Debug)]
pub struct EvidenceSettings {
    /// Identity of the switch.
    pub identity: Identity,
    /// In-band evidence, if enabled.
    pub in_band: Option<InBand>,
    /// CPU port. Packets to this port start with a packet-in header; they carry no evidence and are not inspected.
    pub cpu_port: Option<u32>,
    /// Register arrays whose values are not relevant for attestation: statements contain separate digests of them, and
    /// no other digest includes them.
    pub volatile_registers: BTreeSet<String>,
}

/// Attester: measures one program with its active state and creates evidence.
#[derive(Debug)]
pub struct Attester {
    settings: EvidenceSettings,
    executable: Arc<Executable>,
    externs: Arc<Externs>,
    changed_arrays: Arc<ChangedArrays>,
    /// Register array that publishes the digests to the program.
    digest_register: Option<RegisterId>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    measured: MeasuredState,
    /// Array ids by register array; `None` for arrays that are not measured.
    arrays: Vec<Option<ArrayId>>,
    /// Version of the measured forwarding state.
    version: u64,
    /// Reason why the measurement failed; `None` while the measurement is correct.
    failure: Option<String>,
}

/// Snapshot of a register array: its measurement and its cells.
struct ArrayCopy {
    id: RegisterId,
    check: ArrayCheck,
    cells: Cells,
}

impl Attester {
    /// Measures the current state. From now on every change of the forwarding state must use
    /// [`Self::commit`], and register arrays track their writes.
    ///
    /// # Errors
    /// Active state cannot be encoded, or the settings do not match the program.
    pub(crate) fn new(
        settings: EvidenceSettings,
        executable: &Arc<Executable>,
        externs: &Arc<Externs>,
        forwarding: &PublishedState<Forwarding>,
        switch: &Settings,
        predecessor: Option<&Self>,
    ) -> Result<Self, EvidenceError> {
        let program = &executable.program;
        let exists = |name: &String| program.registers.iter().any(|array| array.name == *name);
        if let Some(name) = settings.volatile_registers.iter().find(|name| !exists(name)) {
            return Err(EvidenceError::UnknownRegister(name.clone()));
        }
        let digest = digest(executable)?;
        let mut measured = match predecessor {
            Some(predecessor) => predecessor.state().measured.successor(digest),
            None => MeasuredState::new(settings.identity.switch, settings.identity.boot_count, digest),
        };
        let describer = Describer { program };
        for entry in describer.all_entries(forwarding, externs, switch)? {
            measured.put(&entry)?;
        }
        let changed_arrays = Arc::new(ChangedArrays::new(program.registers.len()));
        let mut arrays = Vec::with_capacity(program.registers.len());
        for (id, registers) in (0u32..).map(RegisterId).zip(&program.registers) {
            if is_digest_register(&registers.name) {
                arrays.push(None);
                continue;
            }
            let stability = match settings.volatile_registers.contains(&registers.name) {
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
                cells.track(&changed_arrays, id);
            }
        }
        let register_index = program
            .registers
            .iter()
            .position(|array| is_digest_register(&array.name));
        Ok(Self {
            settings,
            executable: Arc::clone(executable),
            externs: Arc::clone(externs),
            changed_arrays,
            digest_register: register_index
                .and_then(|index| u32::try_from(index).ok())
                .map(RegisterId),
            state: Mutex::new(State {
                measured,
                arrays,
                version: forwarding.version(),
                failure: None,
            }),
        })
    }

    /// Locks the state, even after a panic of another thread: a rescan detects whether the measurement is still correct.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describer(&self) -> Describer<'_> {
        Describer {
            program: &self.executable.program,
        }
    }

    /// Publishes a batch, applies its cell writes with `write_cells`, and measures the batch and the writes. The
    /// operation is atomic for evidence: no statement or stamp is created while active state is not measured.
    pub(crate) fn commit(
        &self,
        batch: Batch<'_, Forwarding>,
        configured_items: &[ConfiguredItem],
        write_cells: impl FnOnce(),
    ) {
        let describer = self.describer();
        let mut state = self.state();
        write_cells();
        let change_steps = batch
            .changes()
            .iter()
            .map(|change| describer.steps(change, batch.state()));
        let configuration_steps = configured_items
            .iter()
            .map(|item| describer.configuration_steps(*item, batch.state(), &self.externs));
        let steps: Result<Vec<Vec<Step>>, DescribeError> = change_steps.chain(configuration_steps).collect();
        match steps {
            Ok(steps) => state.apply_steps(steps.into_iter().flatten()),
            Err(error) => state.set_failure(&error),
        }
        state.version = batch.commit();
        drop(state);
        // Workers must update their snapshots even if the version of the forwarding state is unchanged.
        self.changed_arrays.notify();
    }

    /// Snapshot of the current state, including all register writes of packets.
    ///
    /// # Errors
    /// The measurement has failed.
    pub fn snapshot(&self) -> Result<Snapshot, EvidenceError> {
        let mut state = self.state();
        self.fold(&mut state);
        state.snapshot()
    }

    /// Measures the cells written since the last call.
    fn fold(&self, state: &mut State) {
        for id in self.changed_arrays.take() {
            let array = state.arrays.get(id.index()).copied().flatten();
            let (Some(array), Some(mut cells)) = (array, self.externs.registers(id)) else {
                continue;
            };
            if let Err(error) = cells.fold(&mut state.measured, array) {
                state.set_failure(&error);
            }
        }
    }

    /// Current forwarding state together with its measurement.
    fn current_state(&self, reader: &Reader<Forwarding>) -> (PublishedState<Forwarding>, Option<Snapshot>) {
        let mut state = self.state();
        self.fold(&mut state);
        (reader.snapshot(), state.snapshot().ok())
    }

    /// Snapshot for packets of a batch that runs with this version of the forwarding state. `tables` is the digest of the
    /// tables of this version. `None` after the measurement has failed.
    fn snapshot_for_batch(&self, version: u64, tables: Digest) -> Option<Snapshot> {
        let mut state = self.state();
        self.fold(&mut state);
        let mut snapshot = state.snapshot().ok()?;
        if state.version != version {
            // The measured tables are newer than the tables of this batch. The combination of the batch's tables with
            // the current registers gets its own sequence number.
            snapshot.digests.tables = tables;
            snapshot.sequence = state.measured.reserve_sequence();
        }
        Some(snapshot)
    }

    /// Creates a signed statement of the current state, and an inventory with which an appraiser finds differences. The
    /// inventory does not list the objects in `excluded`; if `excluded` is `None`, no inventory is created.
    ///
    /// # Errors
    /// The statement cannot be created, or the measurement has failed.
    pub fn statement(
        &self,
        nonce: Nonce,
        software_version: &str,
        excluded: Option<&BTreeSet<Object>>,
        signer: &mut dyn Signer,
    ) -> Result<(Vec<u8>, Option<Inventory>), EvidenceError> {
        let is_listed = |object: &Object| excluded.is_some_and(|excluded| !excluded.contains(object));
        let (statement, mut encodings, arrays) = {
            let mut state = self.state();
            let arrays = self.fold_and_copy(&mut state, &is_listed)?;
            let statement = Statement {
                kind: DataPlaneKind::P4,
                snapshot: state.snapshot()?,
                objects: state.measured.objects(),
                exclusions: Statement::EXCLUSIONS_P4.map(str::to_owned).to_vec(),
                software_version: software_version.to_owned(),
            };
            let entries = state
                .measured
                .entries_of(&is_listed)
                .map(|entry| entry.to_bytes());
            (statement, entries.collect::<Vec<_>>(), arrays)
        };
        for copy in &arrays {
            let push = |cell: &[u8]| encodings.push(cell.to_vec());
            copy.check
                .each_cell(|index, out| copy.cells.write(index, out), push);
        }
        let inventory = excluded
            .map(|_| Inventory::new(encodings.iter().map(Vec::as_slice)))
            .transpose()?;
        Ok((statement.sign(nonce, signer)?, inventory))
    }

    /// Measures all cells and copies the cells of the listed arrays. A packet can write to an array again after the array
    /// is copied; neither the measurement nor the copy contains that write.
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

    /// Settings of this attester.
    #[must_use]
    pub fn settings(&self) -> &EvidenceSettings {
        &self.settings
    }

    /// Counts a packet that is dropped because the program produced data that resembles evidence.
    fn count_forged(&self) {
        self.settings
            .identity
            .forged_packets
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Reserves the number of the next packet with evidence.
    fn next_counter(&self) -> linewarden_evidence::inband::Counter {
        let last = self
            .settings
            .identity
            .packet_counter
            .fetch_add(1, Ordering::Relaxed);
        linewarden_evidence::inband::Counter(last + 1)
    }
}

impl State {
    fn snapshot(&mut self) -> Result<Snapshot, EvidenceError> {
        match &self.failure {
            Some(reason) => Err(EvidenceError::MeasurementFailed(reason.clone())),
            None => Ok(self.measured.snapshot()),
        }
    }

    fn apply_steps(&mut self, steps: impl IntoIterator<Item = Step>) {
        for step in steps {
            let result = match &step {
                Step::Put(entry) => self.measured.put(entry).map(|_| ()),
                Step::Remove(entry) => self.measured.remove(entry).map(|_| ()),
            };
            if let Err(error) = result {
                self.set_failure(&error);
            }
        }
    }

    /// Records a failed measurement, which disables evidence: wrong evidence is worse than no evidence.
    fn set_failure(&mut self, error: &dyn std::fmt::Display) {
        self.failure.get_or_insert_with(|| error.to_string());
    }
}
