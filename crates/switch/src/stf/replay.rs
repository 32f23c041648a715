//! Packet tests as benchmark traffic: prepares a switch for a test, or traces the processing of each packet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::run::{RunError, Runner};
use super::{Command, Test};
use crate::serve::DigestMessage;
use crate::switch::Switch;

/// Trace of one packet of a test.
#[derive(Debug, Clone, PartialEq)]
pub struct PacketTrace {
    /// Frame.
    pub frame: Vec<u8>,
    /// Ingress port.
    pub port: u32,
    /// Processing time, including the copy of sent packets.
    pub elapsed: Duration,
    /// Number of resubmitted and recirculated passes of the packet and its copies.
    pub extra_passes: u32,
    /// Sent packets with their ports.
    pub sent: Vec<(u32, Vec<u8>)>,
    /// Emitted digests.
    pub digests: Vec<DigestMessage>,
}

/// Runs a test and returns the resulting switch.
///
/// # Errors
/// A command failed; the sent packets are not checked.
pub fn prepare_switch(json: &[u8], test: &Test) -> Result<Switch, RunError> {
    let mut runner = Runner::new(json)?;
    for statement in &test.statements {
        runner.execute(statement)?;
    }
    Ok(runner.switch)
}

/// Runs a test and traces all its packets, in order.
///
/// # Errors
/// A command or an expectation failed.
pub fn trace_packets(json: &[u8], test: &Test) -> Result<Vec<PacketTrace>, RunError> {
    let mut runner = Runner::new(json)?;
    let mut traces = Vec::new();
    for statement in &test.statements {
        let Command::Packet { port, bytes } = &statement.command else {
            runner.execute(statement)?;
            continue;
        };
        let (digests_before, passes_before) = (runner.output.digests.len(), runner.output.extra_passes);
        let sent_before: BTreeMap<u32, usize> = runner
            .output
            .sent
            .iter()
            .map(|(port, frames)| (*port, frames.len()))
            .collect();
        let start = Instant::now();
        runner.execute(statement)?;
        let elapsed = start.elapsed();
        let sent = runner.output.sent.iter().flat_map(|(port, frames)| {
            let count_before = sent_before.get(port).copied().unwrap_or(0);
            frames
                .iter()
                .skip(count_before)
                .map(|frame| (*port, frame.clone()))
        });
        traces.push(PacketTrace {
            frame: bytes.clone(),
            port: *port,
            elapsed,
            extra_passes: runner.output.extra_passes - passes_before,
            sent: sent.collect(),
            digests: runner
                .output
                .digests
                .get(digests_before..)
                .unwrap_or_default()
                .to_vec(),
        });
    }
    runner.check(test)?;
    Ok(traces)
}
