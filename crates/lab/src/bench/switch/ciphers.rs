//! The cost of Forró and ChaCha in P4 per block, in memory on one core: the switch decrypts and forwards frames with 64
//! bytes of text.

use linewarden_switch::switch::Switch;

use super::Size;
use super::memory::{self, Output};
use super::programs::Programs;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// The part of a cipher that one pass of a packet computes. A switching chip must divide a cipher among several passes;
/// a software switch can compute a cipher in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassWork {
    /// A quarter round in ingress and one in egress, as in the P4DRA paper's programs of Forró and ChaCha.
    QuarterRound,
    /// A round in ingress and one in egress, as in the P4DRA paper's parallel program of ChaCha.
    Round,
    /// The whole cipher: no packet recirculates.
    OnePass,
}

impl PassWork {
    const ALL: [Self; 3] = [Self::QuarterRound, Self::Round, Self::OnePass];

    /// Name in the names of programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QuarterRound => "quarter-round",
            Self::Round => "round",
            Self::OnePass => "one-pass",
        }
    }
}

/// The ciphers with their numbers of rounds.
pub const CIPHERS: [(&str, [u8; 3]); 2] = [("forro", [6, 10, 14]), ("chacha", [8, 12, 20])];

/// One cipher in one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// `forro` or `chacha`.
    pub cipher: &'static str,
    /// Number of rounds.
    pub rounds: u8,
    /// The part that one pass computes.
    pub pass_work: PassWork,
}

impl Variant {
    /// All variants, ordered by the work per pass.
    pub fn all() -> impl Iterator<Item = Self> {
        let with_pass_work = |pass_work| {
            CIPHERS.into_iter().flat_map(move |(cipher, rounds)| {
                rounds.into_iter().map(move |rounds| Self {
                    cipher,
                    rounds,
                    pass_work,
                })
            })
        };
        PassWork::ALL.into_iter().flat_map(with_pass_work)
    }

    /// The prefix of the variant's row names.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{}.{}", self.cipher, self.rounds, self.pass_work.name())
    }

    /// A switch that decrypts packets from port 0 and sends them to port 1.
    ///
    /// # Errors
    /// The program could not be loaded or run.
    pub fn switch(&self, programs: &Programs) -> Result<Switch, BenchError> {
        let key_arguments: String = (0..8).map(|word| format!(", k{word}:{word}")).collect();
        let commands = format!(
            "add keys meta.port:0 use_key(output:{}, rounds:{}, switch_number:1{key_arguments})",
            super::router::OUTPUT,
            self.rounds
        );
        programs.switch(
            &format!("cipher-{}-{}", self.cipher, self.pass_work.name()),
            &commands,
        )
    }
}

/// Ethernet type of the programs' frames.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
/// Operation in a frame to decrypt.
const OPERATION_DECRYPT: u8 = 2;
/// Operation in a decrypted frame.
const OPERATION_DECRYPTED: u8 = 3;
/// Operation, counter and nonce.
const HEADER_BYTES: usize = 20;
/// Bytes of a block, and of a frame's text.
const TEXT_BYTES: usize = 64;
/// Bytes of a cipher packet on the wire, including headers, frame check sequence, preamble and gap.
pub const WIRE_BYTES: usize = 14 + HEADER_BYTES + TEXT_BYTES + 4 + 20;

/// A frame to decrypt, with counter and nonce 0.
#[must_use]
pub fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0xff, 1, 2, 0, 0, 0, 0, 1];
    frame.extend(ETHER_TYPE);
    frame.push(OPERATION_DECRYPT);
    frame.extend([0; HEADER_BYTES - 1]);
    frame.extend([0x5a; TEXT_BYTES]);
    frame
}

/// Checks that a frame is decrypted and returns how often it recirculates.
///
/// # Errors
/// The frame was not decrypted.
pub fn recirculations(switch: &Switch) -> Result<u64, BenchError> {
    let mut output = Output::default();
    memory::run_packets(&mut switch.worker(), &[frame()], 1, &mut output);
    let is_plain =
        output.last().get(14) == Some(&OPERATION_DECRYPTED) && output.last().len() == frame().len();
    if output.sent != 1 || !is_plain {
        return Err(BenchError::InvalidMeasurement(
            "the switch did not decrypt a frame".to_owned(),
        ));
    }
    Ok(output.recirculated)
}

/// Adds the rows of the cost per block and of recirculations.
///
/// # Errors
/// A program could not be loaded or run.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let frames = [frame()];
    for variant in Variant::all() {
        let name = variant.name();
        progress(&format!("{name} in P4"), None);
        let switch = variant.switch(programs)?;
        let recirculation_count = recirculations(&switch)?;
        let mut worker = switch.worker();
        let mut min_ns = f64::MAX;
        for _ in 0..size.runs {
            min_ns = min_ns.min(memory::ns_per_packet(&mut worker, &frames, size.blocks)?);
        }
        rows.push(Row::lower(format!("p4.{name}.block_ns"), min_ns, "ns", None));
        let recirculations_name = format!("p4.{name}.recirculations");
        rows.push(Row::fact(
            recirculations_name,
            recirculation_count as f64,
            "per packet",
        ));
    }
    Ok(())
}
