//! Ciphers in the data plane, one program run after the other (`BPF_PROG_TEST_RUN`).

use linewarden_dataplane::xdp::cipher_bench::{
    Act, Aead, AeadInput, Cipher, CipherBench, Program, STEPS, TAG_BYTES, Width,
};
use linewarden_protocol::frame::builder::FrameBuilder;

use super::Size;
use super::paced::{PAYLOAD_BYTES, WIRE_BYTES};
use crate::address::{DeviceAddress, Family, GATEWAY};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, keys};

/// Payloads, bytes; those of the AEADs are followed by a tag.
pub const PAYLOADS: [usize; 5] = [64, 256, 512, 1024, 1408];
/// How often the programs are loaded anew at most; see `micro`.
const LOADS: u32 = 10;
/// Steps of a quarter round of Forró, each of which waits for the one before it (`bpf/lw_forro.h`).
const FORRO_QUARTER_STEPS: f64 = 12.0;

/// A datagram of a device to the gateway with so many bytes of payload.
#[must_use]
pub fn frame(payload_bytes: usize) -> Vec<u8> {
    let from = DeviceAddress::new(0).endpoint(Family::V4, keys::PORT);
    let to = GATEWAY.endpoint(Family::V4, keys::PORT);
    FrameBuilder::new(from, to).udp(&vec![0x5a; payload_bytes])
}

/// What is timed: a program on a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    program: Program,
    payload_bytes: usize,
    least_ns: f64,
}

/// All cases, and what they came to.
struct Cases(Vec<Case>);

impl Cases {
    fn all() -> Self {
        let mut cases = Vec::new();
        let mut add = |program, payload_bytes| {
            cases.push(Case {
                program,
                payload_bytes,
                least_ns: f64::MAX,
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
                add(Program::Aead(aead, Act::Seal), payload_bytes + TAG_BYTES);
                add(Program::Aead(aead, Act::Both), payload_bytes + TAG_BYTES);
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

    fn time(&mut self, bench: &CipherBench, repeat: u32, runs: u32) -> Result<(), BenchError> {
        for case in &mut self.0 {
            let frame = frame(case.payload_bytes);
            let ns = bench.time(case.program, &frame, repeat, runs)?;
            case.least_ns = case.least_ns.min(ns);
        }
        Ok(())
    }

    fn ns(&self, program: Program, payload_bytes: usize) -> f64 {
        let is_it = |case: &&Case| case.program == program && case.payload_bytes == payload_bytes;
        self.0.iter().find(is_it).map_or(f64::NAN, |case| case.least_ns)
    }
}

/// Costs of blocks and packets, and what the kernel says of each program.
///
/// # Errors
/// Those of the programs.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let mut cases = Cases::all();
    let programs = cases.programs();
    let mut last = None;
    let loads = LOADS.min(size.runs);
    for load in 0..loads {
        progress("ciphers: loading and running", Some((load.into(), loads.into())));
        let bench = load_all(&programs)?;
        cases.time(&bench, size.repeat, size.runs.div_ceil(loads))?;
        last = Some(bench);
    }
    blocks(&cases, rows);
    packets(&cases, rows);
    aeads(&cases, rows);
    match last {
        Some(bench) => resources(&bench, rows),
        None => Ok(()),
    }
}

/// With a key and a nonce of no meaning: nothing that is timed depends on them.
fn load_all(programs: &[Program]) -> Result<CipherBench, BenchError> {
    let bench = CipherBench::load(programs)?;
    bench.set_matrix(std::array::from_fn(|at| {
        0x9e37_79b9_u32.wrapping_mul(at as u32 + 1)
    }))?;
    bench.set_aead(&AeadInput {
        key: [7; 32],
        nonce: [9; 24],
        aad: vec![1; 12],
    })?;
    Ok(bench)
}

fn blocks(cases: &Cases, rows: &mut Vec<Row>) {
    let of = |program| cases.ns(program, PAYLOADS[0]);
    let empty = of(Program::Empty);
    let step = (of(Program::Steps) - empty) / f64::from(STEPS);
    rows.push(Row::fact("cipher.empty_ns", empty, "ns"));
    rows.push(Row::fact("cipher.step_ns", step, "ns"));
    for cipher in [None].into_iter().chain(Cipher::ALL.map(Some)) {
        let name = cipher.map_or("none", Cipher::name);
        for width in Width::ALL {
            let blocks = width.blocks();
            let ns = (of(Program::Blocks(cipher, width)) - empty) / blocks as f64;
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
            let all = cases.ns(Program::Answer(Some(cipher)), payload);
            let own = all - cases.ns(Program::Answer(None), payload);
            push_packet(&format!("cipher.{}.{payload}", cipher.name()), own, all, rows);
        }
    }
}

fn aeads(cases: &Cases, rows: &mut Vec<Row>) {
    for payload in PAYLOADS {
        let with_tag = payload + TAG_BYTES;
        let answer = cases.ns(Program::Answer(None), payload);
        let poly = cases.ns(Program::Poly1305, with_tag) - answer;
        rows.push(Row::lower(
            format!("cipher.poly1305.{payload}.packet_ns"),
            poly,
            "ns",
            None,
        ));
        for aead in Aead::ALL {
            let sealed = cases.ns(Program::Aead(aead, Act::Seal), with_tag);
            let both = cases.ns(Program::Aead(aead, Act::Both), with_tag);
            let name = format!("cipher.aead.{}.{payload}", aead.name());
            push_packet(&name, sealed - answer, sealed, rows);
            rows.push(Row::lower(format!("{name}.open_ns"), both - sealed, "ns", None));
        }
    }
}

/// What a packet costs without what sending it back does, and how many a second one core does, with that and with what the
/// kernel's loop costs.
fn push_packet(name: &str, own: f64, all: f64, rows: &mut Vec<Row>) {
    rows.push(Row::lower(format!("{name}.packet_ns"), own, "ns", None));
    rows.push(Row::higher(
        format!("{name}.packets_per_s"),
        1e9 / all,
        "packets/s",
        None,
    ));
}

fn resources(bench: &CipherBench, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let streams = Cipher::ALL.map(|cipher| (cipher.name().to_owned(), Program::Answer(Some(cipher))));
    let aeads = Aead::ALL.map(|aead| (format!("aead.{}", aead.name()), Program::Aead(aead, Act::Seal)));
    let none = ("none".to_owned(), Program::Answer(None));
    for (name, program) in [none].into_iter().chain(streams).chain(aeads) {
        let facts = bench.facts(program)?;
        let figures = [
            ("insns", facts.instructions as f64, "instructions"),
            ("jited_bytes", facts.jited_bytes as f64, "B"),
            ("verified_insns", f64::from(facts.verified), "instructions"),
            ("stack_bytes", f64::from(facts.stack_bytes), "B"),
        ];
        for (figure, value, unit) in figures {
            rows.push(Row::fact(format!("cipher.{name}.{figure}"), value, unit));
        }
    }
    rows.push(Row::fact("cipher.map_bytes", bench.map_bytes()? as f64, "B"));
    Ok(())
}
