//! A switch with one program: what the control plane changes and what packets run through.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::calculations::Calculation;
use crate::engine::{self, Engine, Sink};
use crate::evidence::{Attester, EvidenceError, EvidenceSettings, Marker, Rescan};
use crate::exec::{CoreErrors, RandomSource, World};
use crate::externs::Externs;
use crate::forwarding::{Forwarding, ForwardingChange, ForwardingError, ForwardingOp};
use crate::load::LoadError;
use crate::lower::{Executable, LowerError};
use crate::program::ids::{MeterId, TableId};
use crate::tables::{Batch, BatchError, Current, EntryHandle, HashSeed, Publisher, Reader, Snapshot};
use crate::{load, lower, setup};

/// The port that means "drop", unless something else is asked for.
pub const DROP_PORT: u32 = 511;

/// Why a program cannot be installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The JSON is malformed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It cannot be run.
    #[error(transparent)]
    Lower(#[from] LowerError),
}

/// What is configured beside the forwarding state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Configured {
    /// The rates of a meter of an array.
    Meter(MeterId, u64),
    /// An entry's own meter, or its idle timeout.
    Entry(TableId, EntryHandle),
}

/// How a switch behaves beside its program.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The port that means "drop".
    pub drop_port: u32,
    /// Priority queues of a port.
    pub queues: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            drop_port: DROP_PORT,
            queues: 1,
        }
    }
}

/// A switch.
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
    /// Installs a program that p4c compiled for BMv2.
    ///
    /// # Errors
    /// What is wrong with it.
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

    /// From now on measures what runs here, and gives evidence of it; packets carry it from the next [`Slot::run`] on. `before` is the program that ran until now, whose
    /// numbers of states go on.
    ///
    /// # Errors
    /// Something in force has no encoding, or the settings do not fit the program.
    pub fn attest(
        &mut self,
        settings: EvidenceSettings,
        before: Option<&Self>,
    ) -> Result<&Arc<Attester>, EvidenceError> {
        let before = before.and_then(|switch| switch.attester.as_deref());
        let forwarding = self.publisher.current();
        let attester = Attester::new(
            settings,
            &self.executable,
            &self.externs,
            &forwarding,
            &self.settings,
            before,
        )?;
        Ok(self.attester.insert(Arc::new(attester)))
    }

    /// Who gives evidence of it.
    #[must_use]
    pub fn attester(&self) -> Option<&Arc<Attester>> {
        self.attester.as_ref()
    }

    /// Compares all memory with what was measured; nothing where nothing is measured. If they differ, no evidence is
    /// given any more.
    ///
    /// # Errors
    /// Something in force has no encoding.
    pub fn rescan(&self) -> Result<Option<Rescan>, EvidenceError> {
        let rescan = |attester: &Arc<Attester>| attester.rescan(&self.publisher.reader(), &self.settings);
        self.attester.as_ref().map(rescan).transpose()
    }

    /// The program as it runs.
    #[must_use]
    pub fn executable(&self) -> &Arc<Executable> {
        &self.executable
    }

    /// Registers, counters, meters.
    #[must_use]
    pub fn externs(&self) -> &Arc<Externs> {
        &self.externs
    }

    /// What packets see now.
    #[must_use]
    pub fn forwarding(&self) -> Current<'_, Forwarding> {
        self.publisher.current()
    }

    /// Makes one change.
    ///
    /// # Errors
    /// Why it cannot be made; nothing has changed then.
    pub fn change(&mut self, op: ForwardingOp) -> Result<ForwardingChange, ForwardingError> {
        let mut batch = self.publisher.begin();
        let change = batch.apply(op)?;
        commit(batch, self.attester.as_deref(), &[], || ());
        Ok(change)
    }

    /// Makes all of the changes, visible together, or none.
    ///
    /// # Errors
    /// The first that cannot be made.
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

    /// Makes changes that depend on each other, visible together; none if `work` fails. What is to be set beside the forwarding
    /// state `work` only hands over, so that it is set and measured in one step.
    ///
    /// # Errors
    /// What `work` fails with.
    pub fn change_with<T, E, S: FnOnce()>(
        &mut self,
        work: impl FnOnce(&mut Batch<'_, Forwarding>) -> Result<(T, Vec<Configured>, S), E>,
    ) -> Result<T, E> {
        let mut batch = self.publisher.begin();
        let (done, configured, set) = work(&mut batch)?;
        commit(batch, self.attester.as_deref(), &configured, set);
        Ok(done)
    }

    /// Somebody who takes packets through this switch.
    #[must_use]
    pub fn worker(&self) -> Worker {
        let slot = Slot::default();
        slot.run(self);
        slot.worker()
    }

    fn live(&self) -> Live {
        Live {
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
    configured: &[Configured],
    set: impl FnOnce(),
) {
    match attester {
        Some(attester) => attester.commit(batch, configured, set),
        None => {
            set();
            batch.commit();
        }
    }
}

/// What packets need of a switch.
#[derive(Debug)]
struct Live {
    executable: Arc<Executable>,
    reader: Reader<Forwarding>,
    externs: Arc<Externs>,
    calculations: Arc<[Calculation]>,
    errors: CoreErrors,
    settings: Settings,
    attester: Option<Arc<Attester>>,
}

/// The place where workers find the switch that packets go through now. Exchanging it is one store: a batch that has
/// begun is finished by the program before.
#[derive(Clone, Debug, Default)]
pub struct Slot(Arc<ArcSwapOption<Live>>);

impl Slot {
    /// From the next batch on, packets go through this switch.
    pub fn run(&self, switch: &Switch) {
        self.0.store(Some(Arc::new(switch.live())));
    }

    /// Somebody who takes packets through whatever runs here, on a thread of its own if need be. Several may work side
    /// by side. While nothing runs, all packets are dropped.
    #[must_use]
    pub fn worker(&self) -> Worker {
        Worker {
            slot: self.clone(),
            engine: Engine::default(),
            marker: None,
        }
    }
}

/// Takes packets through a switch.
#[derive(Debug)]
pub struct Worker {
    slot: Slot,
    engine: Engine,
    marker: Option<Marker>,
}

impl Worker {
    /// Runs `with` over a batch: all its packets see the same program and the same tables. It must not wait for anything:
    /// a change of the tables may wait for its end.
    pub fn batch<T>(&mut self, now_us: u64, with: impl FnOnce(&mut Taking<'_>) -> T) -> T {
        let live = self.slot.0.load();
        let Some(live) = live.as_ref() else {
            return with(&mut Taking { through: None });
        };
        let forwarding = begin(live, &mut self.marker);
        let world = World {
            executable: &live.executable,
            forwarding: &forwarding,
            externs: &live.externs,
            calculations: &live.calculations,
            errors: live.errors,
            drop_port: live.settings.drop_port,
            now_us,
        };
        let batch = engine::Batch {
            world,
            queues: live.settings.queues,
        };
        with(&mut Taking {
            through: Some((&mut self.engine, batch, self.marker.as_mut())),
        })
    }
}

/// The forwarding state for a batch; where evidence is given, with a marker that has measured the same.
fn begin(live: &Live, marker: &mut Option<Marker>) -> Snapshot<Forwarding> {
    let Some(attester) = &live.attester else {
        *marker = None;
        return live.reader.snapshot();
    };
    match marker.as_mut().filter(|marker| marker.is_of(attester)) {
        Some(marker) => marker.begin(&live.reader),
        None => {
            let (new, forwarding) = Marker::new(attester, &live.reader);
            *marker = Some(new);
            forwarding
        }
    }
}

/// A worker within a batch.
pub struct Taking<'a> {
    through: Option<(&'a mut Engine, engine::Batch<'a>, Option<&'a mut Marker>)>,
}

impl Taking<'_> {
    /// Takes one packet through the switch, to completion.
    pub fn packet(&mut self, port: u32, frame: &[u8], random: &mut dyn RandomSource, sink: &mut dyn Sink) {
        match &mut self.through {
            Some((engine, batch, None)) => engine.process(batch, random, port, frame, sink),
            Some((engine, batch, Some(marker))) => {
                marker.before_packet();
                engine.process(batch, random, port, frame, &mut marker.over(frame, sink));
            }
            None => sink.dropped(),
        }
    }
}
