//! Execution of a write batch: forwarding state and cells change together; an error rolls back the change.
//!
//! Writes of cells (registers, counters, meters, idle timeouts) are checked immediately but applied last, right before
//! the forwarding state of the batch becomes visible. So a failed batch changes no cell.

use std::collections::BTreeSet;
use std::sync::Arc;

use linewarden_p4runtime::entity::Update;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::target::Atomicity;
use num_bigint::BigUint;

use super::binding::Binding;
use super::controller_state::{ControllerState, EntryId};
use crate::externs::Externs;
use crate::forwarding::{Forwarding, ForwardingChange, ForwardingError, ForwardingOp};
use crate::meter::Meter;
use crate::program::Program;
use crate::program::ids::{CounterId, MeterId, RegisterId};
use crate::settings::ConfiguredItem;
use crate::switch::Switch;
use crate::tables::{Batch, EntryState, ProfileError, TableError, TableSetError};

/// Result of one update.
pub(super) type UpdateResult = Result<(), EntityError>;

/// Program with a P4Info and the controllers' state.
#[derive(Debug)]
pub(super) struct ControlledProgram {
    pub(super) switch: Switch,
    pub(super) binding: Binding,
    pub(super) controller_state: ControllerState,
}

/// Deferred write of a cell.
#[derive(Debug)]
pub(super) enum CellWrite {
    /// Index of the cell, then packets and bytes.
    Counter(CounterId, u64, (u64, u64)),
    /// Index of the cell, then the new meter.
    Meter(MeterId, u64, Meter),
    /// Index of the cell, then the new value.
    Register(RegisterId, u64, BigUint),
    /// Packets and bytes.
    EntryCounts(Arc<EntryState>, (u64, u64)),
    EntryMeter(EntryId, Arc<EntryState>, Meter),
    /// Current time and idle timeout, ms.
    EntryTimeout(EntryId, Arc<EntryState>, (u64, u64)),
}

impl CellWrite {
    /// Returns the item that the write configures, and 0 for rates or 1 for an idle timeout; `None` for a write of
    /// counts or of a register.
    fn property(&self) -> Option<(ConfiguredItem, u8)> {
        match self {
            Self::Meter(id, index, _) => Some((ConfiguredItem::Meter(*id, *index), 0)),
            Self::EntryMeter((table, entry), ..) => Some((ConfiguredItem::Entry(*table, *entry), 0)),
            Self::EntryTimeout((table, entry), ..) => Some((ConfiguredItem::Entry(*table, *entry), 1)),
            Self::Counter(..) | Self::Register(..) | Self::EntryCounts(..) => None,
        }
    }

    fn configured_item(&self) -> Option<ConfiguredItem> {
        self.property().map(|(item, _)| item)
    }

    fn apply(self, externs: &Externs) {
        match self {
            Self::Counter(id, index, (packets, bytes)) => {
                if let Some(cell) = externs.counter(id, index) {
                    cell.set(packets, bytes);
                }
            }
            Self::Meter(id, index, meter) => {
                if let Some(mut cell) = externs.meter(id, index) {
                    *cell = meter;
                }
            }
            Self::Register(id, index, value) => {
                if let Some(mut array) = externs.registers(id) {
                    array.set(index, &value);
                }
            }
            Self::EntryCounts(state, (packets, bytes)) => state.set_counts(packets, bytes),
            Self::EntryMeter(_, state, meter) => state.meter(|cell| *cell = meter),
            Self::EntryTimeout(_, state, (now_ms, timeout_ms)) => state.set_timeout(now_ms, timeout_ms),
        }
    }
}

/// Batch in execution.
pub(super) struct BatchWriter<'a, 'b> {
    pub(super) batch: &'a mut Batch<'b, Forwarding>,
    pub(super) binding: &'a Binding,
    pub(super) controller_state: &'a mut ControllerState,
    pub(super) program: &'a Program,
    pub(super) externs: &'a Externs,
    pub(super) cell_writes: Vec<CellWrite>,
    pub(super) now_ms: u64,
}

impl ControlledProgram {
    /// Applies updates; returns one result for each update.
    pub(super) fn write(
        &mut self,
        updates: &[Update],
        atomicity: Atomicity,
        now_ms: u64,
    ) -> Result<Vec<UpdateResult>, EntityError> {
        let results = match atomicity {
            Atomicity::ContinueOnError => Ok(self.write_each(updates, now_ms)),
            Atomicity::RollbackOnError => self.write_all(updates, false, now_ms),
            Atomicity::DataplaneAtomic => self.write_all(updates, true, now_ms),
        };
        self.controller_state.commit();
        results
    }

    /// Applies updates one by one. Consecutive updates up to and including the next cell write form one change.
    fn write_each(&mut self, updates: &[Update], now_ms: u64) -> Vec<UpdateResult> {
        let mut results = Vec::with_capacity(updates.len());
        while let Some(remaining) = updates.get(results.len()..)
            && !remaining.is_empty()
        {
            self.with_writer(now_ms, |writer| {
                for update in remaining {
                    results.push(writer.apply_update(update));
                    if !writer.cell_writes.is_empty() {
                        break;
                    }
                }
                Ok::<(), std::convert::Infallible>(())
            })
            .unwrap_or_else(|never| match never {});
        }
        results
    }

    /// Applies all updates or none.
    fn write_all(
        &mut self,
        updates: &[Update],
        is_atomic: bool,
        now_ms: u64,
    ) -> Result<Vec<UpdateResult>, EntityError> {
        let checkpoint = self.controller_state.checkpoint();
        let result = self.with_writer(now_ms, |writer| {
            for (index, update) in updates.iter().enumerate() {
                writer
                    .apply_update(update)
                    .map_err(|error| (Some(index), error))?;
            }
            // A single update with one cell write has no intermediate state, so the update is atomic.
            if is_atomic
                && !writer.cell_writes.is_empty()
                && !(updates.len() == 1 && writer.cell_writes.len() == 1)
            {
                let error = EntityError::unimplemented(
                    "DATAPLANE_ATOMIC is not supported for registers, counters, meters and idle timeouts \
                     together with other updates: use ROLLBACK_ON_ERROR",
                );
                return Err((None, error));
            }
            Ok(())
        });
        let mut results = vec![Ok(()); updates.len()];
        match result {
            Ok(()) => return Ok(results),
            Err((None, error)) => {
                self.controller_state.roll_back(checkpoint);
                return Err(error);
            }
            Err((Some(index), error)) => {
                self.controller_state.roll_back(checkpoint);
                if let Some(result) = results.get_mut(index) {
                    *result = Err(error);
                }
            }
        }
        Ok(results)
    }

    /// Applies one change of the forwarding state with its cell writes. If `work` fails, nothing changes.
    fn with_writer<T, E>(
        &mut self,
        now_ms: u64,
        work: impl FnOnce(&mut BatchWriter<'_, '_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let executable = Arc::clone(self.switch.executable());
        let externs = Arc::clone(self.switch.externs());
        let (binding, controller_state) = (&self.binding, &mut self.controller_state);
        self.switch.change_with(|batch| {
            let mut writer = BatchWriter {
                batch,
                binding,
                controller_state,
                program: &executable.program,
                externs: &externs,
                cell_writes: Vec::new(),
                now_ms,
            };
            let result = work(&mut writer)?;
            let cell_writes = last_write_per_property(writer.cell_writes);
            let configured_items = cell_writes
                .iter()
                .filter_map(CellWrite::configured_item)
                .collect();
            let apply_cell_writes = || {
                cell_writes
                    .into_iter()
                    .for_each(|cell_write| cell_write.apply(&externs))
            };
            Ok((result, configured_items, apply_cell_writes))
        })
    }
}

/// Keeps only the last write of each configured property: earlier values do not become active.
fn last_write_per_property(mut cell_writes: Vec<CellWrite>) -> Vec<CellWrite> {
    // Controllers set meter arrays cell by cell in ascending order, about 100,000 cells in one batch. A tree is fast for
    // ascending keys.
    let mut seen = BTreeSet::new();
    cell_writes.reverse();
    cell_writes.retain(|cell_write| cell_write.property().is_none_or(|item| seen.insert(item)));
    cell_writes.reverse();
    cell_writes
}

impl BatchWriter<'_, '_> {
    /// Applies one update completely or not at all.
    fn apply_update(&mut self, update: &Update) -> UpdateResult {
        let (change_count, checkpoint, cell_writes) = (
            self.batch.changes().len(),
            self.controller_state.checkpoint(),
            self.cell_writes.len(),
        );
        let result = self.update(update);
        if result.is_err() {
            self.batch.undo_to(change_count);
            self.controller_state.roll_back(checkpoint);
            self.cell_writes.truncate(cell_writes);
        }
        result
    }

    fn update(&mut self, update: &Update) -> UpdateResult {
        match update {
            Update::TableEntry(change) => self.entry(change),
            Update::DefaultEntry(entry) => self.default_entry(entry),
            Update::Member(change) => self.member(change),
            Update::Group(change) => self.group(change),
            Update::Counter { id, index, data } => self.counter(*id, *index, *data),
            Update::DirectCounter { entry, data } => self.direct_counter(entry, *data),
            Update::Meter {
                id,
                index,
                config,
                reset_counters,
            } => self.meter(*id, *index, *config, *reset_counters),
            Update::DirectMeter {
                entry,
                config,
                reset_counters,
            } => self.direct_meter(entry, *config, *reset_counters),
            Update::Register { id, index, data } => self.register(*id, *index, data),
            Update::MulticastGroup(change) => self.multicast_group(change),
            Update::CloneSession(change) => self.clone_session(change),
            Update::ValueSet { id, members } => self.value_set(*id, members),
            Update::Digest(change) => self.digest(change),
        }
    }

    /// Applies an operation on the forwarding state.
    pub(super) fn apply_op(&mut self, op: ForwardingOp) -> Result<ForwardingChange, EntityError> {
        self.batch.apply(op).map_err(to_entity_error)
    }
}

/// Converts an error of the forwarding state to a P4Runtime error.
pub(super) fn to_entity_error(error: ForwardingError) -> EntityError {
    let message = error.to_string();
    let ForwardingError::Tables(error) = error else {
        return EntityError::invalid(message);
    };
    match error {
        TableSetError::Table(error) => match error {
            TableError::AlreadyExists { .. } => EntityError::already_exists(message),
            TableError::Full { .. } => EntityError::exhausted(message),
            TableError::NotFound { .. } => EntityError::not_found(message),
            TableError::Immutable { .. } => EntityError::denied(message),
            TableError::NoKey { .. } | TableError::WrongTarget { .. } => EntityError::invalid(message),
        },
        TableSetError::Profile(error) => match error {
            ProfileError::NoMember { .. } | ProfileError::NoGroup { .. } => EntityError::not_found(message),
            ProfileError::MemberInUse { .. } | ProfileError::GroupInUse { .. } => {
                EntityError::precondition(message)
            }
            ProfileError::Full { .. } => EntityError::exhausted(message),
            ProfileError::AlreadyInGroup { .. }
            | ProfileError::NotInGroup { .. }
            | ProfileError::ZeroWeight { .. }
            | ProfileError::NotSelector { .. } => EntityError::invalid(message),
        },
        TableSetError::EmptyGroup { .. } => EntityError::precondition(message),
        TableSetError::NoTable(_) | TableSetError::NoProfile(_) => EntityError::invalid(message),
    }
}

/// Requires that a P4Info element has a counterpart in the program.
pub(super) fn require_bound<T>(element: Option<T>) -> Result<T, EntityError> {
    element.ok_or_else(|| EntityError::invalid("element not found in the program"))
}
