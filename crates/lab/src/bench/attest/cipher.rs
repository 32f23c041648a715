//! Ciphers in the data plane, with programs that are run repeatedly by `BPF_PROG_TEST_RUN`.

use linewarden_dataplane::xdp::bench::cipher::{
    Aead, AeadInput, AeadOperation, Cipher, CipherBench, Program, STEPS, TAG_BYTES, Width,
};
use linewarden_protocol::frame::builder::FrameBuilder;

use super::Size;
use super::paced::{PAYLOAD_BYTES, WIRE_BYTES};
use crate::address::{DeviceAddress, Family, GATEWAY};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, keys};

/// Payload sizes, bytes; the AEADs append a tag.
pub const PAYLOADS: [usize; 5] = [64, 256, 512, 1024, 1408];
/// Maximum number of times that the programs are reloaded; see `micro`.
const LOADS: u32 = 10;
/// Steps of a quarter round of Forró; each step depends on the previous step (`bpf/lw_forro.h`).
const FORRO_QUARTER_STEPS: f64 = 12.0;

/// A datagram from a device to the gateway with a payload of `payload_bytes` bytes.
#[must_use]
pub fn frame(payload_bytes: usize) -> Vec<u8> {
    let from = DeviceAddress::new(0).endpoint(Family::V4, keys::PORT);
    let to = GATEWAY.endpoint(Family::V4, keys::PORT);
    FrameBuilder::new(from, to).udp(&vec![0x5a; payload_bytes])
}

/// A measurement: one program on one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    program: Program,
    payload_bytes: usize,
    min_ns: f64,
}

/// All measurements.
struct Cases(Vec<Case>);

impl Cases {
    fn all() -> Self {
        let mut cases = Vec::new();
        let mut add = |program, payload_bytes| {
            cases.push(Case {
                program,
                payload_bytes,
                min_ns: f64::MAX,
            });
        };
        let ciphers = || [None].into_iter().chain(Cipher::ALL.map(Some));
        add(Program::Empty, PAYLOADS[0]);
        add(Program::Steps, PAYLOADS[0]);
        for cipher in ciphers() {
            for width in Width::ALL {
                add(Program::Blocks(cipher, width), PAYLOADS[0]);
            }
        }
        for payload_bytes in PAYLOADS {
            for cipher in ciphers() {
                add(Program::Answer(cipher), payload_bytes);
            }
            add(Program::Poly1305, payload_bytes + TAG_BYTES);
            for aead in Aead::ALL {
                add(
                    Program::Aead(aead, AeadOperation::Seal),
                    payload_bytes + TAG_BYTES,
                );
                add(
                    Program::Aead(aead, AeadOperation::Both),
                    payload_bytes + TAG_BYTES,
                );
            }
        }
        Self(cases)
    }

    fn programs(&self) -> Vec<Program> {
        let mut programs = Vec::new();
        for case in &self.0 {
            if !programs.contains(&case.program) {
                programs.push(case.program);
            }
        }
        programs
    }

    fn time(&mut self, programs: &CipherBench, repeat: u32, runs: u32) -> Result<(), BenchError> {
        for case in &mut self.0 {
            let frame = frame(case.payload_bytes);
            let ns = programs.time(case.program, &frame, repeat, runs)?;
            case.min_ns = case.min_ns.min(ns);
        }
        Ok(())
    }

    fn ns(&self, program: Program, payload_bytes: usize) -> f64 {
        let matches = |case: &&Case| case.program == program && case.payload_bytes == payload_bytes;
        self.0.iter().find(matches).map_or(f64::NAN, |case| case.min_ns)
    }
}

/// Measures the time per block and per packet, and the size of each program.
///
/// # Errors
/// A program could not be loaded or run.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut cases = Cases::all();
    let programs = cases.programs();
    let mut last = None;
    let loads = LOADS.min(size.runs);
    for load in 0..loads {
        progress(
            "ciphers: loading and running programs",
            Some((load.into(), loads.into())),
        );
        let loaded_programs = load_all(&programs)?;
        cases.time(&loaded_programs, size.repeat, size.runs.div_ceil(loads))?;
        last = Some(loaded_programs);
    }
    blocks(&cases, rows);
    packets(&cases, rows);
    aeads(&cases, rows);
    match last {
        Some(loaded_programs) => resources(&loaded_programs, rows),
        None => Ok(()),
    }
}

/// Loads the programs with an arbitrary key and nonce, on which no measured time depends.
fn load_all(programs: &[Program]) -> Result<CipherBench, BenchError> {
    let loaded = CipherBench::load(programs)?;
    loaded.set_matrix(std::array::from_fn(|index| {
        0x9e37_79b9_u32.wrapping_mul(index as u32 + 1)
    }))?;
    loaded.set_aead(&AeadInput {
        key: [7; 32],
        nonce: [9; 24],
        aad: vec![1; 12],
    })?;
    Ok(loaded)
}

fn blocks(cases: &Cases, rows: &mut Vec<Row>) {
    let time_of = |program| cases.ns(program, PAYLOADS[0]);
    let empty = time_of(Program::Empty);
    let step = (time_of(Program::Steps) - empty) / f64::from(STEPS);
    rows.push(Row::fact("cipher.empty_ns", empty, "ns"));
    rows.push(Row::fact("cipher.step_ns", step, "ns"));
    for cipher in [None].into_iter().chain(Cipher::ALL.map(Some)) {
        let name = cipher.map_or("none", Cipher::name);
        for width in Width::ALL {
            let blocks = width.blocks();
            let ns = (time_of(Program::Blocks(cipher, width)) - empty) / blocks as f64;
            let row = format!("cipher.{name}.x{blocks}.block_ns");
            rows.push(match cipher {
                Some(_) => Row::lower(row, ns, "ns", None),
                None => Row::fact(row, ns, "ns"),
            });
        }
    }
    for (name, quarter_rounds) in [("forro6", 24.0), ("forro10", 40.0), ("forro14", 56.0)] {
        let floor = quarter_rounds * FORRO_QUARTER_STEPS * step;
        rows.push(Row::fact(format!("cipher.{name}.x1.floor_ns"), floor, "ns"));
    }
}

fn packets(cases: &Cases, rows: &mut Vec<Row>) {
    rows.push(Row::fact(
        "cipher.answer_ns",
        cases.ns(Program::Answer(None), PAYLOADS[0]),
        "ns",
    ));
    let per_gbit = 1e9 / (8.0 * WIRE_BYTES as f64);
    for cipher in Cipher::ALL {
        let smallest = cases.ns(Program::Answer(Some(cipher)), PAYLOAD_BYTES);
        rows.push(Row::lower(
            format!("cipher.{}.core_per_gbit", cipher.name()),
            smallest * per_gbit / 1e9,
            "share of a core",
            None,
        ));
        for payload in PAYLOADS {
            let round_trip_ns = cases.ns(Program::Answer(Some(cipher)), payload);
            let cipher_ns = round_trip_ns - cases.ns(Program::Answer(None), payload);
            push_packet(
                &format!("cipher.{}.{payload}", cipher.name()),
                cipher_ns,
                round_trip_ns,
                rows,
            );
        }
    }
}

fn aeads(cases: &Cases, rows: &mut Vec<Row>) {
    for payload in PAYLOADS {
        let with_tag = payload + TAG_BYTES;
        let base = cases.ns(Program::Answer(None), payload);
        let poly = cases.ns(Program::Poly1305, with_tag) - base;
        rows.push(Row::lower(
            format!("cipher.poly1305.{payload}.packet_ns"),
            poly,
            "ns",
            None,
        ));
        for aead in Aead::ALL {
            let sealed = cases.ns(Program::Aead(aead, AeadOperation::Seal), with_tag);
            let seal_and_open = cases.ns(Program::Aead(aead, AeadOperation::Both), with_tag);
            let name = format!("cipher.aead.{}.{payload}", aead.name());
            push_packet(&name, sealed - base, sealed, rows);
            rows.push(Row::lower(
                format!("{name}.open_ns"),
                seal_and_open - sealed,
                "ns",
                None,
            ));
        }
    }
}

/// Adds the time per packet, without the time to send the packet back, and the packets per second of one core.
/// `round_trip_ns` includes the time to send the packet back and the overhead of the repeat loop of `BPF_PROG_TEST_RUN`.
fn push_packet(name: &str, packet_ns: f64, round_trip_ns: f64, rows: &mut Vec<Row>) {
    rows.push(Row::lower(format!("{name}.packet_ns"), packet_ns, "ns", None));
    rows.push(Row::higher(
        format!("{name}.packets_per_s"),
        1e9 / round_trip_ns,
        "packets/s",
        None,
    ));
}

fn resources(programs: &CipherBench, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let streams = Cipher::ALL.map(|cipher| (cipher.name().to_owned(), Program::Answer(Some(cipher))));
    let aeads = Aead::ALL.map(|aead| {
        (
            format!("aead.{}", aead.name()),
            Program::Aead(aead, AeadOperation::Seal),
        )
    });
    let none = ("none".to_owned(), Program::Answer(None));
    for (name, program) in [none].into_iter().chain(streams).chain(aeads) {
        let stats = programs.stats(program)?;
        let figures = [
            ("insns", stats.instructions as f64, "instructions"),
            ("jited_bytes", stats.jited_bytes as f64, "B"),
            ("verified_insns", f64::from(stats.verified), "instructions"),
            ("stack_bytes", f64::from(stats.stack_bytes), "B"),
        ];
        for (figure, value, unit) in figures {
            rows.push(Row::fact(format!("cipher.{name}.{figure}"), value, unit));
        }
    }
    rows.push(Row::fact("cipher.map_bytes", programs.map_bytes()? as f64, "B"));
    Ok(())
}
