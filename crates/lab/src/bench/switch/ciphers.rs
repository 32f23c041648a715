//! Forró and ChaCha in P4, block after block in memory on one core: a frame with 64 bytes of text is decrypted and leaves.

use linewarden_switch::switch::Switch;

use super::Size;
use super::memory::{self, Output};
use super::programs::Programs;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// How much of a cipher a pass does: as a switching chip has to share it out, and what a switch in software can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// A quarter round in ingress and one in egress: the papers' sequential programs.
    QuarterRound,
    /// A round in each: the paper's parallel program of ChaCha.
    Round,
    /// Everything: nothing recirculates.
    OnePass,
}

impl Share {
    const ALL: [Self; 3] = [Self::QuarterRound, Self::Round, Self::OnePass];

    /// As in the names of programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QuarterRound => "quarter-round",
            Self::Round => "round",
            Self::OnePass => "one-pass",
        }
    }
}

/// A cipher and its numbers of rounds.
pub const CIPHERS: [(&str, [u8; 3]); 2] = [("forro", [6, 10, 14]), ("chacha", [8, 12, 20])];

/// One cipher in one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// `forro` or `chacha`.
    pub cipher: &'static str,
    /// Its rounds.
    pub rounds: u8,
    /// What a pass does.
    pub share: Share,
}

impl Variant {
    /// All, share by share.
    pub fn all() -> impl Iterator<Item = Self> {
        let of = |share| {
            CIPHERS.into_iter().flat_map(move |(cipher, rounds)| {
                rounds.into_iter().map(move |rounds| Self {
                    cipher,
                    rounds,
                    share,
                })
            })
        };
        Share::ALL.into_iter().flat_map(of)
    }

    /// The first part of its rows' names.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{}.{}", self.cipher, self.rounds, self.share.name())
    }

    /// A switch that decrypts with it: what comes in at port 0 leaves by port 1.
    ///
    /// # Errors
    /// Those of the program.
    pub fn switch(&self, programs: &Programs) -> Result<Switch, BenchError> {
        let words: String = (0..8).map(|word| format!(", k{word}:{word}")).collect();
        let commands = format!(
            "add keys meta.port:0 use_key(output:{}, rounds:{}, switch_number:1{words})",
            super::router::OUTPUT,
            self.rounds
        );
        programs.switch(
            &format!("cipher-{}-{}", self.cipher, self.share.name()),
            &commands,
        )
    }
}

/// Ethernet type of the programs' frames.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
/// What is asked for, and what a frame says when it was done.
const DECRYPT: u8 = 2;
const PLAIN: u8 = 3;
/// Operation, counter and nonce.
const HEADER_BYTES: usize = 20;
/// Bytes of a block, and of a frame's text.
const TEXT_BYTES: usize = 64;
/// What such a packet takes of a wire, bytes: headers, frame check sequence, preamble and gap included.
pub const WIRE_BYTES: usize = 14 + HEADER_BYTES + TEXT_BYTES + 4 + 20;

/// A frame to be decrypted, counter and nonce 0.
#[must_use]
pub fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0xff, 1, 2, 0, 0, 0, 0, 1];
    frame.extend(ETHER_TYPE);
    frame.push(DECRYPT);
    frame.extend([0; HEADER_BYTES - 1]);
    frame.extend([0x5a; TEXT_BYTES]);
    frame
}

/// How often a frame recirculates, after it was seen that it is decrypted.
///
/// # Errors
/// A frame that comes out otherwise.
pub fn recirculations(switch: &Switch) -> Result<u64, BenchError> {
    let mut output = Output::default();
    memory::pass(&mut switch.worker(), &[frame()], 1, &mut output);
    let is_plain = output.last().get(14) == Some(&PLAIN) && output.last().len() == frame().len();
    if output.sent != 1 || !is_plain {
        return Err(BenchError::Contradiction("a frame was not decrypted".to_owned()));
    }
    Ok(output.again)
}

/// Blocks, and recirculations.
///
/// # Errors
/// Those of the programs.
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
        let again = recirculations(&switch)?;
        let mut worker = switch.worker();
        let mut least = f64::MAX;
        for _ in 0..size.runs {
            least = least.min(memory::ns_per_packet(&mut worker, &frames, size.blocks)?);
        }
        rows.push(Row::lower(format!("p4.{name}.block_ns"), least, "ns", None));
        let again_name = format!("p4.{name}.recirculations");
        rows.push(Row::fact(again_name, again as f64, "per packet"));
    }
    Ok(())
}
