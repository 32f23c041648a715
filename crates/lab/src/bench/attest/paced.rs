//! Output rate of a program that encrypts 64 bytes of every packet, by input rate, up to and beyond saturation. This
//! corresponds to figure 10 of the P4DRA paper (`docs/experiments.md`), in which the input reaches 40 Gbit/s and a
//! switch recirculates packets; here, one core does the work behind a veth.

use std::time::Duration;

use linewarden_dataplane::xdp::bench::cipher::{Cipher, CipherBench, Program};

use super::{Size, cipher};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};
use crate::napi::NapiThreads;
use crate::pace::{PacedRun, Pacer, best_of};
use crate::topology::{Lab, Topology};

/// The CPU of the measured program; the sender uses the last CPU.
const CPU: usize = 0;
/// Frames that the queues of a veth hold, in both directions.
const RING_FRAMES: u64 = 512;
/// Payload, bytes: one block, as in the paper.
pub const PAYLOAD_BYTES: usize = 64;
/// Bytes of a measured packet on a wire, with headers, frame check sequence, preamble and gap.
pub const WIRE_BYTES: usize = PAYLOAD_BYTES + 14 + 20 + 8 + 4 + 20;

/// The programs by name; `none` only sends packets back.
pub const PROGRAMS: [(&str, Option<Cipher>); 7] = [
    ("none", None),
    ("forro6", Some(Cipher::Forro6)),
    ("forro10", Some(Cipher::Forro10)),
    ("forro14", Some(Cipher::Forro14)),
    ("chacha8", Some(Cipher::Chacha8)),
    ("chacha12", Some(Cipher::Chacha12)),
    ("chacha20", Some(Cipher::Chacha20)),
];

/// Adds the rows of this part.
///
/// # Errors
/// The lab could not be set up, no packet came out, or more packets came out than went in.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let programs = PROGRAMS.map(|(_, cipher)| Program::Answer(cipher));
    let cipher_bench = CipherBench::load(&programs)?;
    let lab = Lab::build(&Topology {
        ipv6: false,
        device_host: false,
        devices_end_accepts_xdp: false,
        ..Topology::default()
    })?;
    let mut pacer = Pacer::attach(&lab)?;
    for ((name, _), program) in PROGRAMS.iter().zip(programs) {
        progress(&format!("output by input rate: {name}"), None);
        let index = lab.gateway_devices_end.index;
        let _attached = lab.gateway.run(|| cipher_bench.attach(program, index))??;
        let mut max_per_s = 0.0_f64;
        for rate in size.rates {
            let best = best_at_rate(&lab, &mut pacer, *rate, size)?;
            max_per_s = max_per_s.max(best.received_per_s());
            let row = |figure: &str| format!("cipher.rate.{name}.{}k.{figure}", rate / 1000);
            rows.push(Row::fact(row("in"), best.sent_per_s(), "packets/s"));
            rows.push(Row::fact(row("out"), best.received_per_s(), "packets/s"));
        }
        rows.push(Row::higher(
            format!("cipher.rate.{name}.max"),
            max_per_s,
            "packets/s",
            None,
        ));
    }
    Ok(())
}

fn best_at_rate(lab: &Lab, pacer: &mut Pacer<'_>, rate: u64, size: &Size) -> Result<PacedRun, BenchError> {
    let best = best_of(size.paced_runs, || run_at_rate(lab, pacer, rate, size.paced_ms))?;
    // Frames that were queued when the run began may come out during the run.
    if best.received == 0 || best.received > best.sent + RING_FRAMES {
        let error = format!(
            "{} packets were sent and {} were received",
            best.sent, best.received
        );
        return Err(BenchError::InvalidMeasurement(error));
    }
    Ok(best)
}

fn run_at_rate(lab: &Lab, pacer: &mut Pacer<'_>, rate: u64, length_ms: u64) -> Result<PacedRun, BenchError> {
    let receiver = NapiThreads::enable(&lab.gateway, &lab.gateway_devices_end.name)?;
    receiver.pin(&[CPU])?;
    receiver.set_fifo_priority()?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        let error = "sender and program need two CPUs";
        return Err(BenchError::InvalidMeasurement(error.to_owned()));
    }
    let frame = cipher::frame(PAYLOAD_BYTES);
    Ok(pacer.run(&frame, rate, Duration::from_millis(length_ms), cpus - 1)?)
}
