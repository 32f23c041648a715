//! The cost of the eBPF verifier per packet on one CPU.
//!
//! Every value is the verifier's cost above a harness that copies the message into the packet (`xdp.harness_ns`, which
//! includes the kernel's test loop).
//!
//! | part | packets |
//! |---|---|
//! | [`hot`] | one device with a live session, repeated; with lower bounds |
//! | [`random`] | many devices with sparse ids, each once, in random order |
//! | [`classic`] | the classic profiles, which are the protocols of the IoT and UAV papers |
//! | [`memory`] | none: the machine's memory latency |

pub mod classic;
pub mod hot;
pub mod memory;
pub mod random;

use linewarden_dataplane::xdp::bench::micro::{Microbench, Program};

use super::{BenchError, freshness};

/// How many times the programs are loaded. The kernel places a program at a random address each time (a hardening
/// measure), and cache-set conflicts at an address cost up to a fifth. The minimum is therefore taken over several
/// addresses.
const LOADS: u32 = 10;

/// The minimum of several runs, ns, by name.
#[derive(Debug, Default)]
pub(in crate::bench) struct Minimums(Vec<(String, f64)>);

impl Minimums {
    pub(in crate::bench) fn record(&mut self, name: &str, ns: f64) {
        match self.0.iter_mut().find(|(recorded, _)| recorded == name) {
            Some((_, minimum)) => *minimum = minimum.min(ns),
            None => self.0.push((name.to_owned(), ns)),
        }
    }

    /// The minimum; NaN, which meets no target, if nothing was recorded.
    fn get(&self, name: &str) -> f64 {
        self.0
            .iter()
            .find(|(recorded, _)| recorded == name)
            .map_or(f64::NAN, |(_, minimum)| *minimum)
    }

    /// The minimum without the cost of the harness.
    pub(in crate::bench) fn above_harness(&self, harness: &str, name: &str) -> f64 {
        self.get(name) - self.get(harness)
    }
}

/// Runs a program `runs` times over `repeat` packets; returns the minimum, ns per packet.
pub(in crate::bench) fn fastest_run(
    microbench: &mut Microbench,
    program: Program,
    repeat: u32,
    runs: u32,
) -> Result<f64, BenchError> {
    let mut best = f64::MAX;
    for _ in 0..runs {
        freshness::refresh(microbench.store());
        best = best.min(microbench.run(program, repeat)?);
        microbench.discard_events()?;
    }
    Ok(best)
}
