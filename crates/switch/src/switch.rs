//! A switch with one program: what the control plane changes and what packets run through.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::calculations::Calculation;
use crate::engine::{Batch, Engine, Sink};
use crate::exec::{CoreErrors, RandomSource, World};
use crate::externs::Externs;
use crate::forwarding::{Forwarding, ForwardingChange, ForwardingError, ForwardingOp};
use crate::load::LoadError;
use crate::lower::{Executable, LowerError};
use crate::tables::{BatchError, Current, HashSeed, Publisher, Reader};
use crate::{load, lower, setup, tables};

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
        })
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
        batch.commit();
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
        self.publisher.all_or_nothing(ops)
    }

    /// Makes changes that depend on each other, visible together; none if `work` fails.
    ///
    /// # Errors
    /// What `work` fails with.
    pub fn change_with<T, E>(
        &mut self,
        work: impl FnOnce(&mut tables::Batch<'_, Forwarding>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut batch = self.publisher.begin();
        let done = work(&mut batch)?;
        batch.commit();
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
        }
    }
}

/// Takes packets through a switch.
#[derive(Debug)]
pub struct Worker {
    slot: Slot,
    engine: Engine,
}

impl Worker {
    /// Runs `with` over a batch: all its packets see the same program and the same tables. It must not wait for anything:
    /// a change of the tables may wait for its end.
    pub fn batch<T>(&mut self, now_us: u64, with: impl FnOnce(&mut Taking<'_>) -> T) -> T {
        let live = self.slot.0.load();
        let Some(live) = live.as_ref() else {
            return with(&mut Taking { through: None });
        };
        let forwarding = live.reader.snapshot();
        let world = World {
            executable: &live.executable,
            forwarding: &forwarding,
            externs: &live.externs,
            calculations: &live.calculations,
            errors: live.errors,
            drop_port: live.settings.drop_port,
            now_us,
        };
        let batch = Batch {
            world,
            queues: live.settings.queues,
        };
        with(&mut Taking {
            through: Some((&mut self.engine, batch)),
        })
    }
}

/// A worker within a batch.
pub struct Taking<'a> {
    through: Option<(&'a mut Engine, Batch<'a>)>,
}

impl Taking<'_> {
    /// Takes one packet through the switch, to completion.
    pub fn packet(&mut self, port: u32, frame: &[u8], random: &mut dyn RandomSource, sink: &mut dyn Sink) {
        match &mut self.through {
            Some((engine, batch)) => engine.process(batch, random, port, frame, sink),
            None => sink.dropped(),
        }
    }
}
