//! Runs a case by the plain interpreter and as the switch runs it, and compares.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

use linewarden_switch::calculations::Calculation;
use linewarden_switch::engine::{Batch, Engine, Sink};
use linewarden_switch::exec::{CoreErrors, Fault, RandomSource, World};
use linewarden_switch::externs::Externs;
use linewarden_switch::forwarding::Forwarding;
use linewarden_switch::lower::{Executable, lower};
use linewarden_switch::meter::Rate;
use linewarden_switch::program::Program;
use linewarden_switch::program::ids::{CounterId, MeterId, RegisterId};
use linewarden_switch::reference::{DropReason, Reference, ReferenceConfig};
use linewarden_switch::setup;
use linewarden_switch::tables::Replicated;
use num_bigint::BigUint;

use super::case::{self, Arrival, Case};

/// What became of a packet, as both tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    sent: Vec<(u32, Vec<u8>)>,
    digests: Vec<(u32, Vec<Vec<u8>>)>,
    faults: BTreeMap<&'static str, u64>,
    dropped: u64,
}

/// What packets changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    registers: Vec<Vec<BigUint>>,
    counters: Vec<Vec<(u64, u64)>>,
    entries: Vec<Vec<(u64, u64)>>,
}

/// Everything that both are compared by.
pub type Observed = (Vec<Seen>, Left);

struct State {
    forwarding: Forwarding,
    externs: Externs,
    calculations: Vec<Calculation>,
}

impl State {
    fn of(case: &Case) -> Self {
        let program = &case.program;
        let mut forwarding = case::initial(program).unwrap();
        for op in &case.ops {
            forwarding.apply(op.clone()).unwrap();
        }
        let state = Self {
            externs: Externs::of(program),
            calculations: setup::calculations(program).unwrap(),
            forwarding,
        };
        if let Some(rate) = case.rates {
            state.set_rates(program, rate);
        }
        state
    }

    fn set_rates(&self, program: &Program, rate: Rate) {
        for (id, array) in (0..).map(MeterId).zip(&program.meters) {
            let rates = vec![rate; array.rates as usize];
            for cell in 0..u64::from(array.size) {
                let mut meter = self.externs.meter(id, cell).unwrap();
                meter.set_rates(array.rates as usize, &rates).unwrap();
            }
        }
        for (_, table) in self.forwarding.tables().tables() {
            for state in table.iter().filter_map(|entry| entry.state()) {
                state.meter(|meter| meter.set_rates(2, &[rate; 2])).unwrap();
            }
        }
    }

    fn left(&self, program: &Program) -> Left {
        let registers = (0..program.registers.len() as u32).map(RegisterId).map(|id| {
            let registers = self.externs.registers(id).unwrap();
            (0..registers.len() as u64)
                .map(|at| registers.get(at).unwrap())
                .collect()
        });
        let counters = (0..program.counters.len() as u32).map(CounterId).map(|id| {
            (0..self.externs.counters(id) as u64)
                .map(|at| self.externs.counter(id, at).unwrap().get())
                .collect()
        });
        let entries = self.forwarding.tables().tables().map(|(_, table)| {
            let states = table.iter().filter_map(|entry| entry.state());
            states.map(|state| state.counts()).collect()
        });
        Left {
            registers: registers.collect(),
            counters: counters.collect(),
            entries: entries.collect(),
        }
    }
}

/// The same numbers for both.
#[derive(Default)]
struct Numbers(u64);

impl RandomSource for Numbers {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        match (high - low).checked_add(1) {
            Some(count) => low + self.0 % count,
            None => self.0,
        }
    }
}

/// By the plain interpreter.
pub fn by_reference(case: &Case) -> Observed {
    let state = State::of(case);
    let reference = Reference {
        program: &case.program,
        forwarding: &state.forwarding,
        externs: &state.externs,
        calculations: &state.calculations,
        config: ReferenceConfig::default(),
    };
    let mut numbers = Numbers::default();
    let mut one = |arrival: &Arrival| {
        let mut random = |low, high| numbers.between(low, high);
        let outcome = reference.process(arrival.now_us, arrival.port, &arrival.frame, &mut random);
        let mut seen = Seen {
            sent: outcome.sent,
            digests: outcome.digests,
            ..Seen::default()
        };
        for (reason, count) in outcome.dropped {
            let fault = match reason {
                DropReason::Ingress | DropReason::Egress => {
                    seen.dropped += count;
                    continue;
                }
                DropReason::Priority | DropReason::Waiting => "queue",
                DropReason::Copies => "copies",
                DropReason::Assertion => "assertion",
                DropReason::Steps => "steps",
                DropReason::Passes => "passes",
            };
            *seen.faults.entry(fault).or_default() += count;
        }
        seen
    };
    let seen = case.packets.iter().map(&mut one).collect();
    (seen, state.left(&case.program))
}

impl Sink for Seen {
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]) {
        self.sent.push((port, [headers, payload].concat()));
    }

    fn digest(&mut self, number: u32, values: Vec<Vec<u8>>) {
        self.digests.push((number, values));
    }

    fn fault(&mut self, fault: Fault) {
        let fault = match fault {
            Fault::Fuel => "steps",
            Fault::Assertion => "assertion",
            Fault::Passes => "passes",
            Fault::Queue => "queue",
            Fault::Copies => "copies",
        };
        *self.faults.entry(fault).or_default() += 1;
    }

    fn dropped(&mut self) {
        self.dropped += 1;
    }
}

/// As the switch runs it.
pub fn by_engine(case: &Case, executable: &Executable) -> Observed {
    let state = State::of(case);
    let mut engine = Engine::default();
    let mut numbers = Numbers::default();
    let mut one = |arrival: &Arrival| {
        let batch = Batch {
            world: World {
                executable,
                forwarding: &state.forwarding,
                externs: &state.externs,
                calculations: &state.calculations,
                errors: CoreErrors::of(&case.program),
                drop_port: ReferenceConfig::default().drop_port,
                now_us: arrival.now_us,
            },
            queues: u64::from(ReferenceConfig::default().priority_queues),
        };
        let mut seen = Seen::default();
        engine.process(&batch, &mut numbers, arrival.port, &arrival.frame, &mut seen);
        seen
    };
    let seen = case.packets.iter().map(&mut one).collect();
    (seen, state.left(&case.program))
}

/// How a case went.
pub enum Verdict {
    /// Both agree.
    Same,
    /// It cannot be run.
    Refused,
    /// They do not agree.
    Different(String),
}

/// Runs a case both ways.
pub fn compare(case: &Case) -> Verdict {
    let Ok(executable) = lower(case.program.clone()) else {
        return Verdict::Refused;
    };
    let wanted = by_reference(case);
    if wanted != by_reference(case) {
        return Verdict::Different("the reference does not do the same twice".into());
    }
    let run = || by_engine(case, &executable);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Err(_) => Verdict::Different("the switch panics".into()),
        Ok(got) if got == wanted => Verdict::Same,
        Ok(got) => Verdict::Different(differences(case, &wanted, &got)),
    }
}

fn differences(case: &Case, wanted: &Observed, got: &Observed) -> String {
    let mut text = String::new();
    for (at, (wanted, got)) in wanted.0.iter().zip(&got.0).enumerate() {
        if wanted == got {
            continue;
        }
        let _ = writeln!(text, "packet {at}:");
        line(&mut text, "sent", &packets(&wanted.sent), &packets(&got.sent));
        line(&mut text, "faults", &wanted.faults, &got.faults);
        line(&mut text, "dropped", &wanted.dropped, &got.dropped);
        if wanted.digests.len() != got.digests.len() {
            line(&mut text, "digests", &wanted.digests.len(), &got.digests.len());
        }
        for ((number, wanted), (_, got)) in wanted.digests.iter().zip(&got.digests) {
            let digest = case
                .program
                .digests
                .iter()
                .find(|digest| digest.json_id == *number);
            for ((wanted, got), field) in wanted.iter().zip(got).zip(&digest.unwrap().fields) {
                let header = &case.program.headers[field.header.index()].name;
                let name = format!("digest: {header} field {}", field.field);
                line(&mut text, &name, &hex::encode(wanted), &hex::encode(got));
            }
        }
    }
    for (at, (wanted, got)) in wanted.1.registers.iter().zip(&got.1.registers).enumerate() {
        for (cell, (wanted, got)) in wanted.iter().zip(got).enumerate() {
            line(&mut text, &format!("register {at}[{cell}]"), wanted, got);
        }
    }
    line(&mut text, "counters", &wanted.1.counters, &got.1.counters);
    line(&mut text, "entries", &wanted.1.entries, &got.1.entries);
    text
}

fn packets(sent: &[(u32, Vec<u8>)]) -> Vec<String> {
    sent.iter()
        .map(|(port, bytes)| format!("{port}: {}", hex::encode(bytes)))
        .collect()
}

fn line<T: Debug + PartialEq + ?Sized>(text: &mut String, name: &str, wanted: &T, got: &T) {
    if wanted != got {
        let _ = writeln!(text, "  {name}\n    reference {wanted:?}\n    switch    {got:?}");
    }
}

impl Seen {
    /// How many packets were dropped for this reason.
    pub fn fault(&self, fault: &str) -> u64 {
        self.faults.get(fault).copied().unwrap_or(0)
    }

    /// How many packets were sent.
    pub fn packets(&self) -> usize {
        self.sent.len()
    }
}
