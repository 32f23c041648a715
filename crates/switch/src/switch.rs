//! A switch with one program: what the control plane changes and what packets run through.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use linewarden_evidence::encoding::MeterCell;

use crate::calculations::Calculation;
use crate::engine::{Batch, Engine, Sink};
use crate::evidence::{
    Attester, Describe, DescribeError, EvidenceError, EvidenceSettings, Marker, Rescan, Step,
};
use crate::exec::{CoreErrors, RandomSource, World};
use crate::externs::Externs;
use crate::forwarding::{Forwarding, ForwardingChange, ForwardingError, ForwardingOp};
use crate::load::LoadError;
use crate::lower::{Executable, LowerError};
use crate::meter::{Meter, MeterError, Rate};
use crate::program::ids::{MeterId, TableId};
use crate::tables::{
    BatchError, Current, Entry, EntryHandle, HashSeed, Publisher, Reader, Snapshot, TableError, TableSpec,
};
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

/// Why a setting beside the forwarding state is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigureError {
    /// No such meter array.
    #[error("the program has no meter {0:?}")]
    NoMeter(MeterId),
    /// The array is shorter.
    #[error("meter {meter} has no cell {index}")]
    NoMeterCell {
        /// The array.
        meter: String,
        /// The cell that was asked for.
        index: u64,
    },
    /// No such table.
    #[error("the program has no table {0:?}")]
    NoTable(TableId),
    /// The table's entries have no such thing.
    #[error("entries of table {table} have no place for {what}")]
    Without {
        /// The table.
        table: String,
        /// What they lack.
        what: &'static str,
    },
    /// By the table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// By the meter.
    #[error(transparent)]
    Meter(#[from] MeterError),
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

    /// From now on measures what runs here, and gives evidence of it. `before` is the program that ran until now, whose
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
        commit(batch, self.attester.as_deref());
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
        commit(batch, self.attester.as_deref());
        Ok(())
    }

    /// Sets the rates of a meter, the lowest first; without rates it says green to everything.
    ///
    /// # Errors
    /// No such meter, or rates that it does not take; nothing has changed then.
    pub fn set_meter(&mut self, id: MeterId, index: u64, rates: &[Rate]) -> Result<(), ConfigureError> {
        let array = self.executable.program.meters.get(id.index());
        let array = array.ok_or(ConfigureError::NoMeter(id))?;
        let meter = self.externs.meter(id, index);
        let mut meter = meter.ok_or_else(|| ConfigureError::NoMeterCell {
            meter: array.name.clone(),
            index,
        })?;
        set_rates(&mut meter, array.rates, rates)?;
        drop(meter);
        self.measure(|describe| describe.meter_step(id, MeterCell::Index(index), rates));
        Ok(())
    }

    /// Sets the rates of an entry's own meter.
    ///
    /// # Errors
    /// No such entry, no meter, or rates that it does not take; nothing has changed then.
    pub fn set_direct_meter(
        &mut self,
        table: TableId,
        entry: EntryHandle,
        rates: &[Rate],
    ) -> Result<(), ConfigureError> {
        let forwarding = self.publisher.current();
        let (spec, entry) = entry_of(&forwarding, table, entry)?;
        let tables = &self.executable.program.tables;
        let of_table = tables.get(table.index()).and_then(|table| table.direct_meter);
        let without = || ConfigureError::Without {
            table: spec.name.clone(),
            what: "a meter",
        };
        let (id, _) = of_table.ok_or_else(without)?;
        let state = entry.state().ok_or_else(without)?;
        let array = self.executable.program.meters.get(id.index());
        let count = array.ok_or(ConfigureError::NoMeter(id))?.rates;
        state.meter(|meter| set_rates(meter, count, rates))?;
        self.measure(|describe| describe.direct_meter_step(id, &spec.key, entry, rates));
        Ok(())
    }

    /// Sets after how long without a hit an entry is told to be idle, from now on; 0 is never. `now_ms` is on the clock of
    /// the workers' batches.
    ///
    /// # Errors
    /// No such entry, or no timeouts in its table; nothing has changed then.
    pub fn set_idle_timeout(
        &mut self,
        table: TableId,
        entry: EntryHandle,
        now_ms: u64,
        timeout_ms: u64,
    ) -> Result<(), ConfigureError> {
        let forwarding = self.publisher.current();
        let (spec, entry) = entry_of(&forwarding, table, entry)?;
        let state = entry.state().ok_or_else(|| ConfigureError::Without {
            table: spec.name.clone(),
            what: "timeouts",
        })?;
        state.set_timeout(now_ms, timeout_ms);
        self.measure(|describe| describe.entry(table, &spec.key, entry).map(Step::Put));
        Ok(())
    }

    fn measure(&self, step: impl FnOnce(Describe<'_>) -> Result<Step, DescribeError>) {
        if let Some(attester) = &self.attester {
            attester.take(step);
        }
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

fn commit(batch: crate::tables::Batch<'_, Forwarding>, attester: Option<&Attester>) {
    match attester {
        Some(attester) => attester.commit(batch),
        None => {
            batch.commit();
        }
    }
}

fn set_rates(meter: &mut Meter, count: u32, rates: &[Rate]) -> Result<(), MeterError> {
    if rates.is_empty() {
        meter.reset();
        return Ok(());
    }
    meter.set_rates(count as usize, rates)
}

fn entry_of(
    forwarding: &Forwarding,
    table: TableId,
    entry: EntryHandle,
) -> Result<(&TableSpec, &Entry), ConfigureError> {
    let table = forwarding
        .tables()
        .table(table)
        .ok_or(ConfigureError::NoTable(table))?;
    Ok((table.spec(), table.get(entry)?))
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
        let batch = Batch {
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
    through: Option<(&'a mut Engine, Batch<'a>, Option<&'a mut Marker>)>,
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
