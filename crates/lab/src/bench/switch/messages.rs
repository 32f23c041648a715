//! Messages of LAP/1 and proofs of `attest/2` through the P4 verifiers: the packets of their packet tests in sequence, each with
//! the minimum time of the runs. The time includes reading the clock and copying the output into new memory.

use std::time::Duration;

use linewarden_protocol::frame;
use linewarden_protocol::wire::{self, Message};
use linewarden_switch::stf::replay::PacketTrace;

use super::Size;
use super::programs::Programs;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// Measures the rows `lap.*` and `p4dra.*`.
///
/// # Errors
/// An error of a program, or a packet test without such messages.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    progress("LAP/1 messages in P4", None);
    let handshakes = fastest_passages(programs, "lap", "handshakes", size.runs)?;
    let request = mean(&handshakes, |trace| {
        matches!(lap_message(&trace.frame), Some(Message::Request(_)))
            && matches!(parse_reply(trace), Some(Message::Challenge(_)))
    })?;
    let response = mean(&handshakes, |trace| {
        matches!(lap_message(&trace.frame), Some(Message::Response(_)))
            && matches!(parse_reply(trace), Some(Message::Ack(_)))
    })?;
    let mean_ns = f64::midpoint(request.ns, response.ns);
    rows.extend([
        Row::lower("lap.ns_per_message", mean_ns, "ns", None),
        Row::lower("lap.request_ns", request.ns, "ns", None),
        Row::lower("lap.response_ns", response.ns, "ns", None),
    ]);
    for (program, name) in [
        ("p4dra-recirculating", "p4dra"),
        ("p4dra-one-pass", "p4dra.one_pass"),
    ] {
        progress("proofs in P4", None);
        let proofs = fastest_passages(programs, program, "proofs", size.runs)?;
        let proven = mean(&proofs, |trace| {
            matches!(lap_message(&trace.frame), Some(Message::Proof(_))) && is_proven_by_first_key(trace)
        })?;
        let recirculations_name = format!("{name}.recirculations");
        rows.push(Row::lower(format!("{name}.ns_per_proof"), proven.ns, "ns", None));
        rows.push(Row::fact(recirculations_name, proven.recirculations, "per proof"));
    }
    Ok(())
}

/// Each packet of a test with its minimum time.
fn fastest_passages(
    programs: &Programs,
    program: &str,
    test: &str,
    runs: u32,
) -> Result<Vec<PacketTrace>, BenchError> {
    let mut fastest = programs.traces(program, test)?;
    for _ in 1..runs {
        let run = programs.traces(program, test)?;
        for (trace, rerun) in fastest.iter_mut().zip(run) {
            trace.elapsed = trace.elapsed.min(rerun.elapsed);
        }
    }
    Ok(fastest)
}

struct Mean {
    ns: f64,
    recirculations: f64,
}

fn mean(traces: &[PacketTrace], is_selected: impl Fn(&PacketTrace) -> bool) -> Result<Mean, BenchError> {
    let selected: Vec<&PacketTrace> = traces.iter().filter(|trace| is_selected(trace)).collect();
    if selected.is_empty() {
        let text = "a packet test has no message of the measured kind";
        return Err(BenchError::InvalidMeasurement(text.to_owned()));
    }
    let count = selected.len() as f64;
    let elapsed: Duration = selected.iter().map(|trace| trace.elapsed).sum();
    let recirculations: u32 = selected.iter().map(|trace| trace.extra_passes).sum();
    Ok(Mean {
        ns: elapsed.as_nanos() as f64 / count,
        recirculations: f64::from(recirculations) / count,
    })
}

/// The LAP/1 message in a frame.
fn lap_message(bytes: &[u8]) -> Option<Message<'_>> {
    let (_, udp) = frame::parse(bytes).ok()?.datagram()?;
    let is_lap = [udp.src_port, udp.dst_port].contains(&wire::LAP_PORT);
    let payload = bytes.get(udp.payload()).filter(|_| is_lap)?;
    wire::parse(payload).ok()
}

fn parse_reply(trace: &PacketTrace) -> Option<Message<'_>> {
    let (_, reply) = trace.sent.first()?;
    lap_message(reply)
}

/// Whether the proof was valid under the first key. The digest contains prover, round, whether the alternate key was used, and
/// the time.
fn is_proven_by_first_key(trace: &PacketTrace) -> bool {
    let alternate = trace
        .digests
        .iter()
        .find_map(|(_, values)| match values.as_slice() {
            [_, _, alternate, _] => Some(alternate.as_slice()),
            _ => None,
        });
    alternate == Some(&[0])
}
