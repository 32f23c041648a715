//! Messages of LAP/1 and proofs of `attest/2` through the P4 verifiers: the packets of their packet tests, one after the other,
//! each the least of the runs; reading the clock and copying what leaves into new memory included.

use std::time::Duration;

use linewarden_protocol::frame;
use linewarden_protocol::wire::{self, Message};
use linewarden_switch::stf::replay::Passage;

use super::Size;
use super::programs::Programs;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// `lap.*` and `p4dra.*`.
///
/// # Errors
/// Those of the programs; tests without such messages.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    progress("LAP/1 in P4", None);
    let handshakes = least(programs, "lap", "handshakes", size.runs)?;
    let request = mean(&handshakes, |passage| {
        matches!(lap(&passage.frame), Some(Message::Request(_)))
            && matches!(answer(passage), Some(Message::Challenge(_)))
    })?;
    let response = mean(&handshakes, |passage| {
        matches!(lap(&passage.frame), Some(Message::Response(_)))
            && matches!(answer(passage), Some(Message::Ack(_)))
    })?;
    let both = f64::midpoint(request.ns, response.ns);
    rows.extend([
        Row::lower("lap.ns_per_message", both, "ns", None),
        Row::lower("lap.request_ns", request.ns, "ns", None),
        Row::lower("lap.response_ns", response.ns, "ns", None),
    ]);
    for (program, name) in [
        ("p4dra-recirculating", "p4dra"),
        ("p4dra-one-pass", "p4dra.one_pass"),
    ] {
        progress("proofs in P4", None);
        let proofs = least(programs, program, "proofs", size.runs)?;
        let proven = mean(&proofs, |passage| {
            matches!(lap(&passage.frame), Some(Message::Proof(_))) && is_proven_at_once(passage)
        })?;
        let again_name = format!("{name}.recirculations");
        rows.push(Row::lower(format!("{name}.ns_per_proof"), proven.ns, "ns", None));
        rows.push(Row::fact(again_name, proven.again, "per proof"));
    }
    Ok(())
}

/// Each packet of a test with the least time that it took.
fn least(programs: &Programs, program: &str, test: &str, runs: u32) -> Result<Vec<Passage>, BenchError> {
    let mut least = programs.passages(program, test)?;
    for _ in 1..runs {
        let run = programs.passages(program, test)?;
        for (known, now) in least.iter_mut().zip(run) {
            known.elapsed = known.elapsed.min(now.elapsed);
        }
    }
    Ok(least)
}

struct Mean {
    ns: f64,
    again: f64,
}

fn mean(passages: &[Passage], of: impl Fn(&Passage) -> bool) -> Result<Mean, BenchError> {
    let meant: Vec<&Passage> = passages.iter().filter(|passage| of(passage)).collect();
    if meant.is_empty() {
        let text = "a packet test has no message of that kind";
        return Err(BenchError::Contradiction(text.to_owned()));
    }
    let count = meant.len() as f64;
    let elapsed: Duration = meant.iter().map(|passage| passage.elapsed).sum();
    let again: u32 = meant.iter().map(|passage| passage.again).sum();
    Ok(Mean {
        ns: elapsed.as_nanos() as f64 / count,
        again: f64::from(again) / count,
    })
}

/// The LAP/1 message in a frame.
fn lap(bytes: &[u8]) -> Option<Message<'_>> {
    let (_, udp) = frame::parse(bytes).ok()?.datagram()?;
    let is_ours = [udp.src_port, udp.dst_port].contains(&wire::LAP_PORT);
    let payload = bytes.get(udp.payload()).filter(|_| is_ours)?;
    wire::parse(payload).ok()
}

fn answer(passage: &Passage) -> Option<Message<'_>> {
    let (_, sent) = passage.sent.first()?;
    lap(sent)
}

/// Whether the proof was right under the first key that was tried. The digest says prover, round, whether it was the alternate
/// key, and when.
fn is_proven_at_once(passage: &Passage) -> bool {
    let alternate = passage
        .digests
        .iter()
        .find_map(|(_, values)| match values.as_slice() {
            [_, _, alternate, _] => Some(alternate.as_slice()),
            _ => None,
        });
    alternate == Some(&[0])
}
