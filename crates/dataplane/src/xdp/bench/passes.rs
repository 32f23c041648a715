//! Passes of a bench program over frames in its maps (`struct lw_case` and `struct lw_bench` of `bpf/bench_*.bpf.c`).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::{Object, ProgramInput, ProgramMut};

use crate::error::DataPlaneError;
use crate::layout::Shared;
use crate::links::LOOPBACK;
use crate::store::Region;
use crate::xdp::config;
use crate::xdp::test_run::test_context;

/// `struct lw_bench`.
#[derive(Debug)]
#[repr(C)]
struct State {
    next: AtomicU64,
    count: AtomicU64,
}
// SAFETY: repr(C), atomics only, valid when zero.
unsafe impl Shared for State {}

/// `struct lw_case` with `WORDS` words.
#[derive(Debug)]
#[repr(C)]
struct Case<const WORDS: usize> {
    word: [AtomicU64; WORDS],
}
// SAFETY: as above.
unsafe impl<const WORDS: usize> Shared for Case<WORDS> {}

/// The frames of a pass. For each run, up to `8 * WORDS` bytes of a frame, from byte `FIRST` on, are copied into the
/// packet. The bytes before `FIRST` are equal in all runs: they come from the first frame.
pub(crate) struct Passes<const WORDS: usize, const FIRST: usize> {
    cases: Region<Case<WORDS>>,
    state: Region<State>,
    /// The packet at the start of a pass.
    packet: Vec<u8>,
}

impl<const WORDS: usize, const FIRST: usize> Passes<WORDS, FIRST> {
    /// Maps the arrays of a loaded object, with space for `frames` frames.
    pub(crate) fn map(object: &Object, frames: u32) -> Result<Self, DataPlaneError> {
        Ok(Self {
            cases: config::region(object, "cases", frames)?,
            state: config::region(object, "bench", 1)?,
            packet: Vec::new(),
        })
    }

    /// Sets the frames of a pass.
    pub(crate) fn lay_out<'a, const BYTES: usize>(&mut self, frames: impl Iterator<Item = &'a [u8; BYTES]>) {
        const {
            assert!(
                FIRST < BYTES && BYTES <= FIRST + 8 * WORDS,
                "a frame fits into a case"
            )
        };
        let mut count = 0;
        for (case, frame) in self.cases.iter().zip(frames) {
            if count == 0 {
                self.packet = frame.to_vec();
            }
            let words = frame.get(FIRST..).unwrap_or_default().chunks(8).map(|bytes| {
                let mut word = [0; 8];
                word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                u64::from_ne_bytes(word)
            });
            let pairs = case.word.iter().zip(words);
            pairs.for_each(|(cell, word)| cell.store(word, Relaxed));
            count += 1;
        }
        if let Some(state) = self.state.first() {
            state.next.store(0, Relaxed);
            state.count.store(count, Relaxed);
        }
    }

    /// Runs a program once per frame. Returns the number of runs, and ns per run.
    pub(crate) fn run(&self, program: &ProgramMut<'_>) -> Result<(u32, f64), DataPlaneError> {
        let count = self.state.first().map_or(0, |state| state.count.load(Relaxed));
        let repeat = u32::try_from(count).unwrap_or(u32::MAX);
        // Some programs make the packet longer.
        let mut out = vec![0u8; self.packet.len() + 128];
        let mut context = test_context(self.packet.len(), LOOPBACK);
        let input = ProgramInput {
            data_in: Some(&self.packet),
            data_out: Some(&mut out),
            context_in: Some(&mut context),
            repeat,
            ..Default::default()
        };
        let output = program
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        Ok((repeat, output.duration.as_nanos() as f64))
    }
}
