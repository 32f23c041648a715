//! Carrying out a batch: forwarding state as one change, cells with it, and all of it taken back where it has to be.
//!
//! Cells (registers, counters, meters, times to live) are judged at once and set last: right before the forwarding state
//! that the same batch has made becomes visible. So a batch that fails has set none.

use std::collections::BTreeSet;
use std::sync::Arc;

use linewarden_p4runtime::entity::Update;
use linewarden_p4runtime::error::EntityError;
use linewarden_p4runtime::target::Atomicity;
use num_bigint::BigUint;

use super::binding::Binding;
use super::book::Book;
use crate::externs::Externs;
use crate::forwarding::{Forwarding, ForwardingChange, ForwardingError, ForwardingOp};
use crate::meter::Meter;
use crate::program::Program;
use crate::program::ids::{CounterId, MeterId, RegisterId, TableId};
use crate::switch::{Configured, Switch};
use crate::tables::{Batch, EntryHandle, EntryState, ProfileError, TableError, TableSetError};

/// What becomes of one update.
pub(super) type Written = Result<(), EntityError>;

/// A program that controllers can name things of, and what they wrote.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) switch: Switch,
    pub(super) binding: Binding,
    pub(super) book: Book,
}

/// Where an entry is.
type Place = (TableId, EntryHandle);

/// A cell that is to be set.
#[derive(Debug)]
pub(super) enum Effect {
    Counter(CounterId, u64, (u64, u64)),
    Meter(MeterId, u64, Meter),
    Register(RegisterId, u64, BigUint),
    EntryCounts(Arc<EntryState>, (u64, u64)),
    EntryMeter(Place, Arc<EntryState>, Meter),
    /// Milliseconds: now, and the time to live.
    EntryTimeout(Place, Arc<EntryState>, (u64, u64)),
}

impl Effect {
    /// What it configures, beside counts and values, and which property of that.
    fn property(&self) -> Option<(Configured, u8)> {
        match self {
            Self::Meter(id, index, _) => Some((Configured::Meter(*id, *index), 0)),
            Self::EntryMeter((table, entry), ..) => Some((Configured::Entry(*table, *entry), 0)),
            Self::EntryTimeout((table, entry), ..) => Some((Configured::Entry(*table, *entry), 1)),
            Self::Counter(..) | Self::Register(..) | Self::EntryCounts(..) => None,
        }
    }

    fn configures(&self) -> Option<Configured> {
        self.property().map(|(what, _)| what)
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

/// A batch as it is being carried out.
pub(super) struct Writing<'a, 'b> {
    pub(super) batch: &'a mut Batch<'b, Forwarding>,
    pub(super) binding: &'a Binding,
    pub(super) book: &'a mut Book,
    pub(super) program: &'a Program,
    pub(super) externs: &'a Externs,
    pub(super) effects: Vec<Effect>,
    pub(super) now_ms: u64,
}

impl Running {
    /// Carries out updates; one result for each.
    pub(super) fn write(
        &mut self,
        updates: &[Update],
        atomicity: Atomicity,
        now_ms: u64,
    ) -> Result<Vec<Written>, EntityError> {
        let results = match atomicity {
            Atomicity::ContinueOnError => Ok(self.write_each(updates, now_ms)),
            Atomicity::RollbackOnError => self.write_all(updates, false, now_ms),
            Atomicity::DataplaneAtomic => self.write_all(updates, true, now_ms),
        };
        self.book.settle();
        results
    }

    /// As many as it takes to come to cells, then those; and so on.
    fn write_each(&mut self, updates: &[Update], now_ms: u64) -> Vec<Written> {
        let mut results = Vec::with_capacity(updates.len());
        while let Some(rest) = updates.get(results.len()..)
            && !rest.is_empty()
        {
            self.writing(now_ms, |writing| {
                for update in rest {
                    results.push(writing.one(update));
                    if !writing.effects.is_empty() {
                        break;
                    }
                }
                Ok::<(), std::convert::Infallible>(())
            })
            .unwrap_or_else(|never| match never {});
        }
        results
    }

    /// All, or none.
    fn write_all(
        &mut self,
        updates: &[Update],
        at_once: bool,
        now_ms: u64,
    ) -> Result<Vec<Written>, EntityError> {
        let mark = self.book.mark();
        let done = self.writing(now_ms, |writing| {
            for (place, update) in updates.iter().enumerate() {
                writing.one(update).map_err(|error| (Some(place), error))?;
            }
            // A single cell has no steps to be seen.
            if at_once && !writing.effects.is_empty() && !(updates.len() == 1 && writing.effects.len() == 1) {
                let error = EntityError::unimplemented(
                    "registers, counters, meters and times to live are not changed in one step with anything \
                     else: use ROLLBACK_ON_ERROR",
                );
                return Err((None, error));
            }
            Ok(())
        });
        let mut results = vec![Ok(()); updates.len()];
        match done {
            Ok(()) => return Ok(results),
            Err((None, error)) => {
                self.book.undo_to(mark);
                return Err(error);
            }
            Err((Some(place), error)) => {
                self.book.undo_to(mark);
                if let Some(result) = results.get_mut(place) {
                    *result = Err(error);
                }
            }
        }
        Ok(results)
    }

    /// One change of the forwarding state, and the cells that go with it; nothing if `work` fails.
    fn writing<T, E>(
        &mut self,
        now_ms: u64,
        work: impl FnOnce(&mut Writing<'_, '_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let executable = Arc::clone(self.switch.executable());
        let externs = Arc::clone(self.switch.externs());
        let (binding, book) = (&self.binding, &mut self.book);
        self.switch.change_with(|batch| {
            let mut writing = Writing {
                batch,
                binding,
                book,
                program: &executable.program,
                externs: &externs,
                effects: Vec::new(),
                now_ms,
            };
            let done = work(&mut writing)?;
            let effects = last_of_each(writing.effects);
            let configured = effects.iter().filter_map(Effect::configures).collect();
            let set = || effects.into_iter().for_each(|effect| effect.apply(&externs));
            Ok((done, configured, set))
        })
    }
}

/// Of what is configured twice, only the last: what a batch sets and takes back has never been in force.
fn last_of_each(effects: Vec<Effect>) -> Vec<Effect> {
    // A program's arrays of meters are set cell by cell, in order, some hundred thousand at once: a tree takes them as they come.
    let mut seen = BTreeSet::new();
    let mut kept = effects;
    kept.reverse();
    kept.retain(|effect| effect.property().is_none_or(|what| seen.insert(what)));
    kept.reverse();
    kept
}

impl Writing<'_, '_> {
    /// One update, whole or not at all.
    fn one(&mut self, update: &Update) -> Written {
        let (changes, mark, effects) = (self.batch.changes().len(), self.book.mark(), self.effects.len());
        let result = self.update(update);
        if result.is_err() {
            self.batch.undo_to(changes);
            self.book.undo_to(mark);
            self.effects.truncate(effects);
        }
        result
    }

    fn update(&mut self, update: &Update) -> Written {
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

    /// Changes the forwarding state.
    pub(super) fn change(&mut self, op: ForwardingOp) -> Result<ForwardingChange, EntityError> {
        self.batch.apply(op).map_err(refused)
    }
}

/// What P4Runtime calls it.
pub(super) fn refused(error: ForwardingError) -> EntityError {
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

/// What this switch has nothing for.
pub(super) fn bound<T>(found: Option<T>) -> Result<T, EntityError> {
    found.ok_or_else(|| EntityError::invalid("the program has no such element"))
}
