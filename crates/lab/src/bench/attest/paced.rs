//! What comes out of a program that encrypts 64 bytes in every packet, by what goes in, past what it can do: Figure 10 of
//! the paper, where input reaches 40 Gbit/s and a switch recirculates; here one core does the work, behind a veth.

use std::time::Duration;

use linewarden_dataplane::xdp::cipher_bench::{Cipher, CipherBench, Program};

use super::{Size, cipher};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};
use crate::napi::NapiThreads;
use crate::pace::{Paced, Pacer, best_of};
use crate::topology::{Lab, Topology};

/// Processor of the program that is measured; the sender has the last one.
const CPU: usize = 0;
/// Frames that wait at an end of a veth at most, on their way there and back.
const RING_FRAMES: u64 = 512;
/// Payload, bytes: one block, as in the paper.
pub const PAYLOAD_BYTES: usize = 64;
/// What such a packet takes of a wire, bytes: headers, frame check sequence, preamble and gap included.
pub const WIRE_BYTES: usize = PAYLOAD_BYTES + 14 + 20 + 8 + 4 + 20;

/// A program's runs, by name: that without a cipher only sends packets back.
pub const PROGRAMS: [(&str, Option<Cipher>); 7] = [
    ("none", None),
    ("forro6", Some(Cipher::Forro6)),
    ("forro10", Some(Cipher::Forro10)),
    ("forro14", Some(Cipher::Forro14)),
    ("chacha8", Some(Cipher::Chacha8)),
    ("chacha12", Some(Cipher::Chacha12)),
    ("chacha20", Some(Cipher::Chacha20)),
];

/// Input and output rates.
///
/// # Errors
/// Those of the lab; an output that nothing was put in for.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let programs = PROGRAMS.map(|(_, cipher)| Program::Answer(cipher));
    let bench = CipherBench::load(&programs)?;
    let lab = Lab::build(&Topology {
        ipv6: false,
        device_host: false,
        devices_end_accepts_xdp: false,
        ..Topology::default()
    })?;
    let mut pacer = Pacer::attach(&lab)?;
    for ((name, _), program) in PROGRAMS.iter().zip(programs) {
        progress(&format!("output by input, {name}"), None);
        let index = lab.gateway_devices_end.index;
        let _attached = lab.gateway.run(|| bench.attach(program, index))??;
        let mut most = 0.0_f64;
        for rate in size.rates {
            let best = best_at_rate(&lab, &mut pacer, *rate, size)?;
            most = most.max(best.received_per_s());
            let row = |figure: &str| format!("cipher.rate.{name}.{}k.{figure}", rate / 1000);
            rows.push(Row::fact(row("in"), best.sent_per_s(), "packets/s"));
            rows.push(Row::fact(row("out"), best.received_per_s(), "packets/s"));
        }
        rows.push(Row::higher(
            format!("cipher.rate.{name}.most"),
            most,
            "packets/s",
            None,
        ));
    }
    Ok(())
}

fn best_at_rate(lab: &Lab, pacer: &mut Pacer<'_>, rate: u64, size: &Size) -> Result<Paced, BenchError> {
    let best = best_of(size.paced_runs, || at_rate(lab, pacer, rate, size.paced_ms))?;
    // What was in the ring when a run began may come out in it.
    if best.received == 0 || best.received > best.sent + RING_FRAMES {
        let text = format!("{} packets came out of {}", best.received, best.sent);
        return Err(BenchError::Contradiction(text));
    }
    Ok(best)
}

fn at_rate(lab: &Lab, pacer: &mut Pacer<'_>, rate: u64, length_ms: u64) -> Result<Paced, BenchError> {
    let receiver = NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name)?;
    receiver.pin(&[CPU])?;
    receiver.run_first()?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        let text = "sender and program need a processor each";
        return Err(BenchError::Contradiction(text.to_owned()));
    }
    let frame = cipher::frame(PAYLOAD_BYTES);
    Ok(pacer.run(&frame, rate, Duration::from_millis(length_ms), processors - 1)?)
}
