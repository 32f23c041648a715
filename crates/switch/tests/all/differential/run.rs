//! Runs a case in the reference interpreter and in the switch, and compares the results.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

use linewarden_switch::calculations::Calculation;
use linewarden_switch::engine::{Batch, Engine, Sink};
use linewarden_switch::exec::{CoreErrors, Environment, Fault, RandomSource};
use linewarden_switch::executable::Executable;
use linewarden_switch::externs::Externs;
use linewarden_switch::forwarding::Forwarding;
use linewarden_switch::lower::lower;
use linewarden_switch::meter::Rate;
use linewarden_switch::program::Program;
use linewarden_switch::program::ids::{CounterId, MeterId, RegisterId};
use linewarden_switch::reference::{DropReason, Reference, ReferenceConfig};
use linewarden_switch::setup;
use linewarden_switch::tables::Replicated;
use num_bigint::BigUint;

use super::case::{self, Case, InputPacket};

/// Result of one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketOutcome {
    sent: Vec<(u32, Vec<u8>)>,
    digests: Vec<(u32, Vec<Vec<u8>>)>,
    faults: BTreeMap<&'static str, u64>,
    dropped: u64,
}

/// State that packets change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalState {
    registers: Vec<Vec<BigUint>>,
    counters: Vec<Vec<(u64, u64)>>,
    entries: Vec<Vec<(u64, u64)>>,
}

/// All compared results of a run.
pub type Observation = (Vec<PacketOutcome>, FinalState);

struct State {
    forwarding: Forwarding,
    externs: Externs,
    calculations: Vec<Calculation>,
}

impl State {
    fn of(case: &Case) -> Self {
        let program = &case.program;
        let mut forwarding = case::initial_forwarding(program).unwrap();
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

    fn final_state(&self, program: &Program) -> FinalState {
        let registers = (0..program.registers.len() as u32).map(RegisterId).map(|id| {
            let registers = self.externs.registers(id).unwrap();
            (0..registers.len() as u64)
                .map(|index| registers.get(index).unwrap())
                .collect()
        });
        let counters = (0..program.counters.len() as u32).map(CounterId).map(|id| {
            (0..self.externs.counter_count(id) as u64)
                .map(|index| self.externs.counter(id, index).unwrap().get())
                .collect()
        });
        let entries = self.forwarding.tables().tables().map(|(_, table)| {
            let states = table.iter().filter_map(|entry| entry.state());
            states.map(|state| state.counts()).collect()
        });
        FinalState {
            registers: registers.collect(),
            counters: counters.collect(),
            entries: entries.collect(),
        }
    }
}

/// Random numbers that are the same in each run.
#[derive(Default)]
struct RepeatableRandom(u64);

impl RandomSource for RepeatableRandom {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        match (high - low).checked_add(1) {
            Some(count) => low + self.0 % count,
            None => self.0,
        }
    }
}

/// Runs the case in the reference interpreter.
pub fn run_in_reference(case: &Case) -> Observation {
    let state = State::of(case);
    let reference = Reference {
        program: &case.program,
        forwarding: &state.forwarding,
        externs: &state.externs,
        calculations: &state.calculations,
        config: ReferenceConfig::default(),
    };
    let mut numbers = RepeatableRandom::default();
    let mut outcome_of = |arrival: &InputPacket| {
        let mut random = |low, high| numbers.between(low, high);
        let outcome = reference.process(arrival.now_us, arrival.port, &arrival.frame, &mut random);
        let mut packet_outcome = PacketOutcome {
            sent: outcome.sent,
            digests: outcome.digests,
            ..PacketOutcome::default()
        };
        for (reason, count) in outcome.dropped {
            let fault = match reason {
                DropReason::Ingress | DropReason::Egress => {
                    packet_outcome.dropped += count;
                    continue;
                }
                DropReason::Priority | DropReason::QueueFull => "queue",
                DropReason::CopyLimit => "copies",
                DropReason::Assertion => "assertion",
                DropReason::StepLimit => "steps",
                DropReason::PassLimit => "passes",
            };
            *packet_outcome.faults.entry(fault).or_default() += count;
        }
        packet_outcome
    };
    let outcomes = case.packets.iter().map(&mut outcome_of).collect();
    (outcomes, state.final_state(&case.program))
}

impl Sink for PacketOutcome {
    fn send(&mut self, port: u32, headers: &[u8], payload: &[u8]) {
        self.sent.push((port, [headers, payload].concat()));
    }

    fn digest(&mut self, number: u32, values: Vec<Vec<u8>>) {
        self.digests.push((number, values));
    }

    fn fault(&mut self, fault: Fault) {
        let fault = match fault {
            Fault::FuelExhausted => "steps",
            Fault::Assertion => "assertion",
            Fault::PassLimit => "passes",
            Fault::QueueFull => "queue",
            Fault::CopyLimit => "copies",
        };
        *self.faults.entry(fault).or_default() += 1;
    }

    fn dropped(&mut self) {
        self.dropped += 1;
    }
}

/// Runs the case in the switch.
pub fn run_in_switch(case: &Case, executable: &Executable) -> Observation {
    let state = State::of(case);
    let mut engine = Engine::default();
    let mut numbers = RepeatableRandom::default();
    let mut outcome_of = |arrival: &InputPacket| {
        let batch = Batch {
            environment: Environment {
                executable,
                forwarding: &state.forwarding,
                externs: &state.externs,
                calculations: &state.calculations,
                errors: CoreErrors::of(&case.program),
                drop_port: ReferenceConfig::default().drop_port,
                now_us: arrival.now_us,
            },
            priority_queues: u64::from(ReferenceConfig::default().priority_queues),
        };
        let mut packet_outcome = PacketOutcome::default();
        engine.process(
            &batch,
            &mut numbers,
            arrival.port,
            &arrival.frame,
            &mut packet_outcome,
        );
        packet_outcome
    };
    let outcomes = case.packets.iter().map(&mut outcome_of).collect();
    (outcomes, state.final_state(&case.program))
}

/// Result of a case.
pub enum Comparison {
    /// Both results are equal.
    Same,
    /// The case cannot run.
    Unrunnable,
    /// The results differ.
    Different(String),
}

/// Runs a case in the reference interpreter and in the switch.
pub fn compare(case: &Case) -> Comparison {
    let Ok(executable) = lower(case.program.clone()) else {
        return Comparison::Unrunnable;
    };
    let expected = run_in_reference(case);
    if expected != run_in_reference(case) {
        return Comparison::Different("two runs in the reference interpreter differ".into());
    }
    let run = || run_in_switch(case, &executable);
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Err(_) => Comparison::Different("the switch panics".into()),
        Ok(actual) if actual == expected => Comparison::Same,
        Ok(actual) => Comparison::Different(differences(case, &expected, &actual)),
    }
}

fn differences(case: &Case, expected: &Observation, actual: &Observation) -> String {
    let mut text = String::new();
    for (index, (expected, actual)) in expected.0.iter().zip(&actual.0).enumerate() {
        if expected == actual {
            continue;
        }
        let _ = writeln!(text, "packet {index}:");
        add_difference(
            &mut text,
            "sent",
            &packets(&expected.sent),
            &packets(&actual.sent),
        );
        add_difference(&mut text, "faults", &expected.faults, &actual.faults);
        add_difference(&mut text, "dropped", &expected.dropped, &actual.dropped);
        if expected.digests.len() != actual.digests.len() {
            add_difference(
                &mut text,
                "digests",
                &expected.digests.len(),
                &actual.digests.len(),
            );
        }
        for ((number, expected), (_, actual)) in expected.digests.iter().zip(&actual.digests) {
            let digest = case
                .program
                .digests
                .iter()
                .find(|digest| digest.json_id == *number);
            for ((expected, actual), field) in expected.iter().zip(actual).zip(&digest.unwrap().fields) {
                let header = &case.program.headers[field.header.index()].name;
                let name = format!("digest: {header} field {}", field.field);
                add_difference(&mut text, &name, &hex::encode(expected), &hex::encode(actual));
            }
        }
    }
    for (index, (expected, actual)) in expected.1.registers.iter().zip(&actual.1.registers).enumerate() {
        for (cell, (expected, actual)) in expected.iter().zip(actual).enumerate() {
            add_difference(&mut text, &format!("register {index}[{cell}]"), expected, actual);
        }
    }
    add_difference(&mut text, "counters", &expected.1.counters, &actual.1.counters);
    add_difference(&mut text, "entries", &expected.1.entries, &actual.1.entries);
    text
}

fn packets(sent: &[(u32, Vec<u8>)]) -> Vec<String> {
    sent.iter()
        .map(|(port, bytes)| format!("{port}: {}", hex::encode(bytes)))
        .collect()
}

/// Appends the two values if they differ.
fn add_difference<T: Debug + PartialEq + ?Sized>(text: &mut String, name: &str, expected: &T, actual: &T) {
    if expected != actual {
        let _ = writeln!(
            text,
            "  {name}\n    reference {expected:?}\n    switch    {actual:?}"
        );
    }
}

impl PacketOutcome {
    /// Number of packets dropped for this reason.
    pub fn fault(&self, fault: &str) -> u64 {
        self.faults.get(fault).copied().unwrap_or(0)
    }

    /// Number of sent packets.
    pub fn packets(&self) -> usize {
        self.sent.len()
    }
}
