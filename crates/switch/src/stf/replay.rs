//! Packet tests as traffic: what they set up, and what each of their packets costs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::run::{RunError, Runner};
use super::{Command, Test};
use crate::serve::Told;
use crate::switch::Switch;

/// What became of one packet of a test.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// The frame.
    pub frame: Vec<u8>,
    /// The port that it came in by.
    pub port: u32,
    /// How long the switch took, copying what left into memory of its own included.
    pub elapsed: Duration,
    /// How often it, or a copy, was resubmitted or recirculated.
    pub again: u32,
    /// Ports that something left by, and what.
    pub sent: Vec<(u32, Vec<u8>)>,
    /// Digests that it told.
    pub digests: Vec<Told>,
}

/// A switch as a test leaves it.
///
/// # Errors
/// A command that could not be carried out; what packets come out is not looked at.
pub fn prepare(json: &[u8], test: &Test) -> Result<Switch, RunError> {
    let mut runner = Runner::new(json)?;
    for statement in &test.statements {
        runner.carry_out(statement)?;
    }
    Ok(runner.switch)
}

/// Runs a test and tells of all its packets, in their order.
///
/// # Errors
/// What did not go as the test says.
pub fn passages(json: &[u8], test: &Test) -> Result<Vec<Passage>, RunError> {
    let mut runner = Runner::new(json)?;
    let mut passages = Vec::new();
    for statement in &test.statements {
        let Command::Packet { port, bytes } = &statement.command else {
            runner.carry_out(statement)?;
            continue;
        };
        let (told, again) = (runner.record.digests.len(), runner.record.again);
        let before: BTreeMap<u32, usize> = runner
            .record
            .sent
            .iter()
            .map(|(port, frames)| (*port, frames.len()))
            .collect();
        let start = Instant::now();
        runner.carry_out(statement)?;
        let elapsed = start.elapsed();
        let sent = runner.record.sent.iter().flat_map(|(port, frames)| {
            let known = before.get(port).copied().unwrap_or(0);
            frames.iter().skip(known).map(|frame| (*port, frame.clone()))
        });
        passages.push(Passage {
            frame: bytes.clone(),
            port: *port,
            elapsed,
            again: runner.record.again - again,
            sent: sent.collect(),
            digests: runner.record.digests.get(told..).unwrap_or_default().to_vec(),
        });
    }
    runner.check(test)?;
    Ok(passages)
}
