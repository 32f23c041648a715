//! A switch with one program: what the control plane changes and what packets run through.

use std::sync::Arc;

use crate::calculations::Calculation;
use crate::engine::{Batch, Engine, Sink};
use crate::exec::{CoreErrors, RandomSource, World};
use crate::externs::Externs;
use crate::forwarding::{Forwarding, ForwardingChange, ForwardingError, ForwardingOp};
use crate::load::LoadError;
use crate::lower::{Executable, LowerError};
use crate::tables::{BatchError, HashSeed, Publisher, Snapshot};
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
    calculations: Vec<Calculation>,
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
        let calculations = setup::calculations(&program)?;
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
    pub fn forwarding(&self) -> Snapshot<Forwarding> {
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

    /// Takes packets through the switch, all by the same tables.
    pub fn process<'p>(
        &self,
        engine: &mut Engine,
        random: &mut dyn RandomSource,
        now_us: u64,
        packets: impl IntoIterator<Item = (u32, &'p [u8])>,
        sink: &mut dyn Sink,
    ) {
        let forwarding = self.publisher.current();
        let world = World {
            executable: &self.executable,
            forwarding: &forwarding,
            externs: &self.externs,
            calculations: &self.calculations,
            errors: self.errors,
            drop_port: self.settings.drop_port,
            now_us,
        };
        let batch = Batch {
            world,
            queues: self.settings.queues,
        };
        for (port, frame) in packets {
            engine.process(&batch, random, port, frame, sink);
        }
    }
}
