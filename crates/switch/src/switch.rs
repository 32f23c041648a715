//! Switch with one program: forwarding state for the control plane, workers for packets.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

pub use crate::settings::{ConfiguredItem, DROP_PORT, Settings};

use crate::calculations::Calculation;
use crate::engine::{self, Engine, Sink};
use crate::evidence::{Attester, EvidenceError, EvidenceSettings, Rescan, WorkerAttester};
use crate::exec::{CoreErrors, Environment, RandomSource};
use crate::executable::Executable;
use crate::externs::Externs;
use crate::forwarding::{Forwarding, ForwardingChange, ForwardingError, ForwardingOp};
use crate::load::LoadError;
use crate::lower::LowerError;
use crate::tables::{Batch, BatchError, HashSeed, Publisher, Reader, Snapshot, WriterSnapshot};
use crate::{load, lower, setup};

/// Error of installing a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The JSON is malformed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The program cannot run.
    #[error(transparent)]
    Lower(#[from] LowerError),
}

/// Switch.
#[derive(Debug)]
pub struct Switch {
    executable: Arc<Executable>,
    publisher: Publisher<Forwarding>,
    externs: Arc<Externs>,
    calculations: Arc<[Calculation]>,
    errors: CoreErrors,
    settings: Settings,
    attester: Option<Arc<Attester>>,
}

impl Switch {
    /// Creates a switch for a program that p4c compiled for BMv2.
    ///
    /// # Errors
    /// The program is malformed or cannot run.
    pub fn new(json: &[u8], settings: Settings, seed: &HashSeed) -> Result<Self, ProgramError> {
        let program = load::load(json)?;
        let calculations = setup::calculations(&program)?.into();
        let forwarding = setup::forwarding(&program, seed)?;
        let externs = Arc::new(Externs::of(&program));
        let errors = CoreErrors::of(&program);
        let executable = Arc::new(lower::lower(program)?);
        Ok(Self {
            executable,
            publisher: Publisher::new(forwarding),
            externs,
            calculations,
            errors,
            settings,
            attester: None,
        })
    }

    /// Starts the measurement of the program for evidence; packets carry evidence after the next [`Slot::run`]. The
    /// sequence numbers of evidence continue from those of the switch `predecessor`.
    ///
    /// # Errors
    /// Active state cannot be encoded, or the settings do not match the program.
    pub fn start_attestation(
        &mut self,
        settings: EvidenceSettings,
        predecessor: Option<&Self>,
    ) -> Result<&Arc<Attester>, EvidenceError> {
        let predecessor = predecessor.and_then(|switch| switch.attester.as_deref());
        let forwarding = self.publisher.current();
        let attester = Attester::new(
            settings,
            &self.executable,
            &self.externs,
            &forwarding,
            &self.settings,
            predecessor,
        )?;
        Ok(self.attester.insert(Arc::new(attester)))
    }

    /// Attester, if the measurement has been started.
    #[must_use]
    pub fn attester(&self) -> Option<&Arc<Attester>> {
        self.attester.as_ref()
    }

    /// Compares all memory with the measurement; `None` if nothing is measured. A difference disables evidence
    /// permanently.
    ///
    /// # Errors
    /// Active state cannot be encoded.
    pub fn rescan(&self) -> Result<Option<Rescan>, EvidenceError> {
        let rescan = |attester: &Arc<Attester>| attester.rescan(&self.publisher.reader(), &self.settings);
        self.attester.as_ref().map(rescan).transpose()
    }

    /// Program in executable form.
    #[must_use]
    pub fn executable(&self) -> &Arc<Executable> {
        &self.executable
    }

    /// Externs.
    #[must_use]
    pub fn externs(&self) -> &Arc<Externs> {
        &self.externs
    }

    /// Current forwarding state.
    #[must_use]
    pub fn forwarding(&self) -> WriterSnapshot<'_, Forwarding> {
        self.publisher.current()
    }

    /// Applies one operation.
    ///
    /// # Errors
    /// The operation was rejected; the state is unchanged.
    pub fn change(&mut self, op: ForwardingOp) -> Result<ForwardingChange, ForwardingError> {
        let mut batch = self.publisher.begin();
        let change = batch.apply(op)?;
        commit(batch, self.attester.as_deref(), &[], || ());
        Ok(change)
    }

    /// Applies all operations atomically, or none.
    ///
    /// # Errors
    /// The first rejected operation.
    pub fn change_all(
        &mut self,
        ops: impl IntoIterator<Item = ForwardingOp>,
    ) -> Result<(), BatchError<ForwardingError>> {
        let mut batch = self.publisher.begin();
        for (index, op) in ops.into_iter().enumerate() {
            batch.apply(op).map_err(|error| BatchError { index, error })?;
        }
        commit(batch, self.attester.as_deref(), &[], || ());
        Ok(())
    }

    /// Applies dependent operations atomically; if `work` fails, no operation is applied. `work` returns its result, the
    /// configured items that change, and a closure with all writes outside of the forwarding state. These writes are applied
    /// and measured in the same step.
    ///
    /// # Errors
    /// The error of `work`.
    pub fn change_with<T, E, S: FnOnce()>(
        &mut self,
        work: impl FnOnce(&mut Batch<'_, Forwarding>) -> Result<(T, Vec<ConfiguredItem>, S), E>,
    ) -> Result<T, E> {
        let mut batch = self.publisher.begin();
        let (result, configured_items, write_cells) = work(&mut batch)?;
        commit(batch, self.attester.as_deref(), &configured_items, write_cells);
        Ok(result)
    }

    /// Creates a worker for this switch.
    #[must_use]
    pub fn worker(&self) -> Worker {
        let slot = Slot::default();
        slot.run(self);
        slot.worker()
    }

    fn active(&self) -> ActiveSwitch {
        ActiveSwitch {
            executable: Arc::clone(&self.executable),
            reader: self.publisher.reader(),
            externs: Arc::clone(&self.externs),
            calculations: Arc::clone(&self.calculations),
            errors: self.errors,
            settings: self.settings,
            attester: self.attester.clone(),
        }
    }
}

fn commit(
    batch: Batch<'_, Forwarding>,
    attester: Option<&Attester>,
    configured_items: &[ConfiguredItem],
    write_cells: impl FnOnce(),
) {
    match attester {
        Some(attester) => attester.commit(batch, configured_items, write_cells),
        None => {
            write_cells();
            batch.commit();
        }
    }
}

/// Parts of a switch that process packets.
#[derive(Debug)]
struct ActiveSwitch {
    executable: Arc<Executable>,
    reader: Reader<Forwarding>,
    externs: Arc<Externs>,
    calculations: Arc<[Calculation]>,
    errors: CoreErrors,
    settings: Settings,
    attester: Option<Arc<Attester>>,
}

/// Slot with the current switch for workers. Replacing the switch is one atomic store: a started batch finishes with the
/// previous program.
#[derive(Clone, Debug, Default)]
pub struct Slot(Arc<ArcSwapOption<ActiveSwitch>>);

impl Slot {
    /// Makes workers process packets with this switch, starting with their next batch.
    pub fn run(&self, switch: &Switch) {
        self.0.store(Some(Arc::new(switch.active())));
    }

    /// Creates a worker for the current switch of this slot. Several workers may run in parallel on different threads.
    /// Without a switch all packets are dropped.
    #[must_use]
    pub fn worker(&self) -> Worker {
        Worker {
            slot: self.clone(),
            engine: Engine::default(),
            worker_attester: None,
        }
    }
}

/// Worker: processes packets.
#[derive(Debug)]
pub struct Worker {
    slot: Slot,
    engine: Engine,
    worker_attester: Option<WorkerAttester>,
}

impl Worker {
    /// Runs `process` as one batch: all packets see the same program and forwarding state. `process` must not block because
    /// table updates may wait for the end of the batch.
    pub fn batch<T>(&mut self, now_us: u64, process: impl FnOnce(&mut WorkerBatch<'_>) -> T) -> T {
        let active = self.slot.0.load();
        let Some(active) = active.as_ref() else {
            return process(&mut WorkerBatch { execution: None });
        };
        let forwarding = begin(active, &mut self.worker_attester);
        let environment = Environment {
            executable: &active.executable,
            forwarding: &forwarding,
            externs: &active.externs,
            calculations: &active.calculations,
            errors: active.errors,
            drop_port: active.settings.drop_port,
            now_us,
        };
        let batch = engine::Batch {
            environment,
            priority_queues: active.settings.priority_queues,
        };
        process(&mut WorkerBatch {
            execution: Some((&mut self.engine, batch, self.worker_attester.as_mut())),
        })
    }
}

/// Returns the forwarding state for a batch. If evidence is enabled, updates the worker's attester to the same state.
fn begin(active: &ActiveSwitch, worker_attester: &mut Option<WorkerAttester>) -> Snapshot<Forwarding> {
    let Some(attester) = &active.attester else {
        *worker_attester = None;
        return active.reader.snapshot();
    };
    match worker_attester
        .as_mut()
        .filter(|worker_attester| worker_attester.belongs_to(attester))
    {
        Some(worker_attester) => worker_attester.begin(&active.reader),
        None => {
            let (new_attester, forwarding) = WorkerAttester::new(attester, &active.reader);
            *worker_attester = Some(new_attester);
            forwarding
        }
    }
}

/// Worker during a batch.
pub struct WorkerBatch<'a> {
    execution: Option<(&'a mut Engine, engine::Batch<'a>, Option<&'a mut WorkerAttester>)>,
}

impl WorkerBatch<'_> {
    /// Processes one packet to completion.
    pub fn packet(&mut self, port: u32, frame: &[u8], random: &mut dyn RandomSource, sink: &mut dyn Sink) {
        match &mut self.execution {
            Some((engine, batch, None)) => engine.process(batch, random, port, frame, sink),
            Some((engine, batch, Some(worker_attester))) => {
                worker_attester.before_packet();
                engine.process(
                    batch,
                    random,
                    port,
                    frame,
                    &mut worker_attester.attesting_sink(frame, sink),
                );
            }
            None => sink.dropped(),
        }
    }
}
