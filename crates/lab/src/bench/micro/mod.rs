//! The eBPF verifier packet after packet on one CPU.
//!
//! Every figure is what the verifier adds to a harness that lays the message into the packet (`xdp.harness_ns`, which
//! holds the kernel's own loop too).
//!
//! | part | what comes |
//! |---|---|
//! | [`hot`] | one device over and over, its session live; beside floors |
//! | [`random`] | many devices with sparse ids, each once, in random order |
//! | [`classic`] | the papers' own protocol |
//! | [`memory`] | no packets: the machine |

pub mod classic;
pub mod hot;
pub mod memory;
pub mod random;

use linewarden_dataplane::xdp::microbench::{Microbench, Program};

use super::{BenchError, wait};

/// How often the programs are loaded anew. The kernel puts a program at a random address each time (a precaution of
/// its own), and what lies on the same cache sets there costs up to a fifth: so the place is part of what a minimum is
/// taken over.
const LOADS: u32 = 10;

/// The least of several runs, ns, by name.
#[derive(Debug, Default)]
pub(in crate::bench) struct Least(Vec<(String, f64)>);

impl Least {
    pub(in crate::bench) fn note(&mut self, name: &str, ns: f64) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, least)) => *least = least.min(ns),
            None => self.0.push((name.to_owned(), ns)),
        }
    }

    /// Not a number if nothing was noted, which reaches no bar.
    fn of(&self, name: &str) -> f64 {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map_or(f64::NAN, |(_, least)| *least)
    }

    /// What is left without the harness.
    pub(in crate::bench) fn above(&self, harness: &str, name: &str) -> f64 {
        self.of(name) - self.of(harness)
    }
}

pub(in crate::bench) fn best(
    bench: &mut Microbench,
    program: Program,
    repeat: u32,
    runs: u32,
) -> Result<f64, BenchError> {
    let mut best = f64::MAX;
    for _ in 0..runs {
        wait::keep_fresh(bench.store());
        best = best.min(bench.run(program, repeat)?);
        bench.discard_events()?;
    }
    Ok(best)
}
