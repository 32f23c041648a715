//! Rate as a function of recirculations per packet and recirculation ports: the model that the paper of P4DRA leaves to future
//! work, beside what is measured.
//!
//! *This switch.* A worker takes a packet through all of its passes, so a recirculation port is a worker on a core of its own. If
//! the first pass with all that a packet costs once takes a, and each recirculation b, then P workers let P / (a + b R) packets
//! of R recirculations a second through, whatever comes in. a and b are found from what one worker does (least squares over the
//! relative error, neither below zero), and must then tell what two do.
//!
//! *A switching chip.* P ports let C passes a second each through. Packets that come back share these with those that come in,
//! and what finds no room is dropped, whichever it was. If q of the packets get through at each of R recirculations, an input of
//! I asks for I (1 + q + ... + q^(R-1)) passes and gets P C of them: I (q + q^2 + ... + q^R) = P C, and I q^R come out. Up to
//! I = P C / R everything does (q = 1); beyond that less and less ([`chip`]): the paper's Figure 10.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use linewarden_switch::switch::Switch;

use super::Size;
use super::ciphers::{self, Share, Variant};
use super::memory::{self, Output};
use super::programs::Programs;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};
use crate::napi::pin_task;

/// The programs: a cipher and what a pass does of it.
pub fn programs() -> impl Iterator<Item = (&'static str, Share)> {
    let of = |share| ciphers::CIPHERS.map(|(cipher, _)| (cipher, share));
    [Share::QuarterRound, Share::Round].into_iter().flat_map(of)
}

/// What is measured at one point.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    recirculations: f64,
    ports: usize,
    ns: f64,
}

/// What a packet costs once, and for each recirculation, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The first pass, and everything else that is done once.
    pub once: f64,
    /// A recirculation.
    pub again: f64,
}

impl Cost {
    /// Packets a second through so many ports.
    #[must_use]
    pub fn rate(self, recirculations: f64, ports: f64) -> f64 {
        ports * 1e9 / (self.once + self.again * recirculations)
    }

    /// From points of one port: the least squares of the relative error, by costs that are not below zero.
    fn of(points: &[Point]) -> Option<Self> {
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            points
                .iter()
                .map(|point| of(point.recirculations, point.ns))
                .sum()
        };
        // Weights 1 / ns^2 make errors relative.
        let (w, wr, wrr) = (
            sum(&|_, ns| 1.0 / (ns * ns)),
            sum(&|r, ns| r / (ns * ns)),
            sum(&|r, ns| r * r / (ns * ns)),
        );
        let (wn, wrn) = (sum(&|_, ns| 1.0 / ns), sum(&|r, ns| r / ns));
        let determinant = w * wrr - wr * wr;
        if determinant.abs() <= f64::EPSILON * w * wrr {
            return None;
        }
        let free = Self {
            once: (wn * wrr - wrn * wr) / determinant,
            again: (w * wrn - wr * wn) / determinant,
        };
        // Noise can make one of two costs negative: the best that is allowed then has it at zero.
        Some(match free {
            Self { once, .. } if once < 0.0 => Self {
                once: 0.0,
                again: wrn / wrr,
            },
            Self { again, .. } if again < 0.0 => Self {
                once: wn / w,
                again: 0.0,
            },
            free => free,
        })
    }
}

/// What comes out of a switching chip, in shares of what one recirculation port lets through, by what comes in, likewise.
#[must_use]
pub fn chip(input: f64, recirculations: u32, ports: f64) -> f64 {
    let asked = |q: f64| {
        (1..=recirculations)
            .map(|power| q.powi(power.cast_signed()))
            .sum::<f64>()
            * input
    };
    if asked(1.0) <= ports {
        return input;
    }
    // What is asked for grows with q: halve the interval until it is as good as nothing.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if asked(middle) < ports {
            low = middle;
        } else {
            high = middle;
        }
    }
    input * f64::powi(low, recirculations.cast_signed())
}

/// `ports.*`
///
/// # Errors
/// Those of the programs; workers that cannot be pinned.
pub fn rows(
    size: &Size,
    p4: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut worst = 0.0_f64;
    for (cipher, share) in programs() {
        let program = format!("{cipher}.{}", share.name());
        progress(&format!("rate by recirculations, {program}"), None);
        let points = points(cipher, share, processors.min(2), p4, size)?;
        let of_one: Vec<_> = points.iter().copied().filter(|point| point.ports == 1).collect();
        let cost = Cost::of(&of_one);
        let cost = cost.ok_or_else(|| BenchError::Contradiction(format!("{program} never recirculates")))?;
        rows.push(Row::fact(format!("ports.{program}.once_ns"), cost.once, "ns"));
        rows.push(Row::fact(format!("ports.{program}.again_ns"), cost.again, "ns"));
        for point in points {
            let measured = point.ports as f64 * 1e9 / point.ns;
            let computed = cost.rate(point.recirculations, point.ports as f64);
            worst = worst.max((measured / computed - 1.0).abs());
            let name = format!("ports.{program}.{}x{}", point.recirculations, point.ports);
            rows.push(Row::fact(format!("{name}.measured"), measured, "packets/s"));
            rows.push(Row::fact(format!("{name}.computed"), computed, "packets/s"));
        }
    }
    rows.push(Row::lower("ports.off_by_most", worst, "ratio", None));
    Ok(())
}

/// The least time that a packet takes a worker while so many work side by side, for every number of rounds. All have their turn in
/// every run: what disturbs the machine for a while falls on no point alone.
fn points(
    cipher: &str,
    share: Share,
    ports: usize,
    p4: &Programs,
    size: &Size,
) -> Result<Vec<Point>, BenchError> {
    let mut measured = Vec::new();
    for variant in Variant::all().filter(|variant| (variant.cipher, variant.share) == (cipher, share)) {
        let switch = variant.switch(p4)?;
        let recirculations = ciphers::recirculations(&switch)? as f64;
        measured.push((switch, recirculations));
    }
    let mut points: Vec<_> = measured
        .into_iter()
        .flat_map(|(switch, recirculations)| {
            let switch = Arc::new(switch);
            (1..=ports).map(move |ports| {
                let point = Point {
                    recirculations,
                    ports,
                    ns: f64::MAX,
                };
                (Arc::clone(&switch), point)
            })
        })
        .collect();
    for _ in 0..size.runs {
        for (switch, point) in &mut points {
            let slowest = side_by_side(switch, point.ports, size.blocks)?;
            point.ns = point.ns.min(slowest.as_nanos() as f64 / f64::from(size.blocks));
        }
    }
    Ok(points.into_iter().map(|(_, point)| point).collect())
}

/// How long the slowest of so many workers takes for so many packets each.
fn side_by_side(switch: &Switch, workers: usize, packets: u32) -> Result<Duration, BenchError> {
    let frames = [ciphers::frame()];
    let together = Barrier::new(workers);
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers)
            .map(|cpu| {
                scope.spawn({
                    let (frames, together) = (&frames, &together);
                    move || {
                        let pinned = pin_task(0, cpu);
                        let (mut worker, mut output) = (switch.worker(), Output::default());
                        together.wait();
                        let elapsed = memory::pass(&mut worker, frames, packets, &mut output);
                        pinned.map(|()| elapsed)
                    }
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        for worker in started {
            match worker.join() {
                Ok(elapsed) => slowest = slowest.max(elapsed.map_err(io("a worker's processor"))?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(slowest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_found_again() {
        let cost = Cost {
            once: 900.0,
            again: 350.0,
        };
        let points: Vec<_> = [3.0, 12.0, 28.0]
            .map(|recirculations| Point {
                recirculations,
                ports: 1,
                ns: 1e9 / cost.rate(recirculations, 1.0),
            })
            .to_vec();
        let found = Cost::of(&points).expect("three points");
        assert!(
            (found.once - 900.0).abs() < 1e-6 && (found.again - 350.0).abs() < 1e-6,
            "{found:?}"
        );
    }

    #[test]
    fn no_cost_is_below_zero() {
        let points = |ns: [f64; 2]| {
            let point = |(recirculations, ns)| Point {
                recirculations,
                ports: 1,
                ns,
            };
            [3.0, 12.0].into_iter().zip(ns).map(point).collect::<Vec<_>>()
        };
        let steep = Cost::of(&points([100.0, 900.0])).expect("two points");
        assert!(
            steep.once == 0.0 && steep.again > 33.0 && steep.again < 75.0,
            "{steep:?}"
        );
        let falling = Cost::of(&points([900.0, 600.0])).expect("two points");
        assert!(
            falling.again == 0.0 && falling.once > 600.0 && falling.once < 900.0,
            "{falling:?}"
        );
    }

    #[test]
    fn a_chip_gives_everything_until_its_ports_are_full_and_less_afterwards() {
        for (recirculations, ports) in [(3, 1.0), (28, 2.0)] {
            let full = ports / f64::from(recirculations);
            assert!((chip(full, recirculations, ports) - full).abs() < 1e-9);
            let beyond = [1.5, 2.0, 4.0].map(|factor| chip(full * factor, recirculations, ports));
            assert!(
                full > beyond[0] && beyond[0] > beyond[1] && beyond[1] > beyond[2],
                "{beyond:?}"
            );
        }
    }
}
