//! Rate as a function of recirculations per packet and recirculation ports: the model that the P4DRA paper leaves to future
//! work, compared with measurements.
//!
//! *The software switch.* A worker processes all passes of a packet, so a recirculation port is a worker on its own core. If
//! the first pass with all fixed cost of a packet takes a, and each recirculation b, then P workers process P / (a + b R)
//! packets of R recirculations per second at any input rate. a and b are fitted to the measurements with one worker (least
//! squares of the relative error, both at least zero) and must predict the rate with two workers.
//!
//! *A switching chip.* P ports process C passes per second each. Recirculated and new packets share these passes, and
//! packets that find no room are dropped. If a share q of the packets passes at each of R recirculations, an input rate
//! I requests I (1 + q + ... + q^(R-1)) passes and gets P C passes: I (q + q^2 + ... + q^R) = P C, and the output rate
//! is I q^R. Up to I = P C / R all packets pass (q = 1); above that the output decreases ([`chip_output`]): the paper's
//! Figure 10.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use linewarden_switch::switch::Switch;

use super::Size;
use super::ciphers::{self, PassWork, Variant};
use super::memory::{self, Output};
use super::programs::Programs;
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row, io};
use crate::napi::pin_task;

/// The programs: a cipher and the part of the cipher that one pass computes.
pub fn programs() -> impl Iterator<Item = (&'static str, PassWork)> {
    let with_pass_work = |pass_work| ciphers::CIPHERS.map(|(cipher, _)| (cipher, pass_work));
    [PassWork::QuarterRound, PassWork::Round]
        .into_iter()
        .flat_map(with_pass_work)
}

/// One measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    recirculations: f64,
    ports: usize,
    ns: f64,
}

/// The fixed cost of a packet and the cost of each recirculation, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Fixed cost: the first pass and all work that is done once.
    pub fixed_ns: f64,
    /// Cost of one recirculation.
    pub recirculation_ns: f64,
}

impl Cost {
    /// Rate with this number of ports, packets/s.
    #[must_use]
    pub fn rate(self, recirculations: f64, ports: f64) -> f64 {
        ports * 1e9 / (self.fixed_ns + self.recirculation_ns * recirculations)
    }

    /// Fits the costs to points of one port: least squares of the relative error, both costs at least zero.
    fn fit(points: &[Point]) -> Option<Self> {
        let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
            points
                .iter()
                .map(|point| term(point.recirculations, point.ns))
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
        let unconstrained = Self {
            fixed_ns: (wn * wrr - wrn * wr) / determinant,
            recirculation_ns: (w * wrn - wr * wn) / determinant,
        };
        // Noise can make one of the two costs negative; the best valid fit then sets it to zero.
        Some(match unconstrained {
            Self { fixed_ns: fixed, .. } if fixed < 0.0 => Self {
                fixed_ns: 0.0,
                recirculation_ns: wrn / wrr,
            },
            Self {
                recirculation_ns: recirculation,
                ..
            } if recirculation < 0.0 => Self {
                fixed_ns: wn / w,
                recirculation_ns: 0.0,
            },
            unconstrained => unconstrained,
        })
    }
}

/// Output rate of a switching chip for an input rate, both relative to the capacity of one recirculation port.
#[must_use]
pub fn chip_output(input: f64, recirculations: u32, ports: f64) -> f64 {
    let requested = |q: f64| {
        (1..=recirculations)
            .map(|power| q.powi(power.cast_signed()))
            .sum::<f64>()
            * input
    };
    if requested(1.0) <= ports {
        return input;
    }
    // The requested passes grow with q: bisection.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if requested(middle) < ports {
            low = middle;
        } else {
            high = middle;
        }
    }
    input * f64::powi(low, recirculations.cast_signed())
}

/// Measures the rows `ports.*`.
///
/// # Errors
/// An error of a program, or a worker cannot be pinned.
pub fn rows(
    size: &Size,
    p4: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut max_deviation = 0.0_f64;
    for (cipher, pass_work) in programs() {
        let program = format!("{cipher}.{}", pass_work.name());
        progress(&format!("rate by recirculations: {program}"), None);
        let points = points(cipher, pass_work, processors.min(2), p4, size)?;
        let single_port: Vec<_> = points.iter().copied().filter(|point| point.ports == 1).collect();
        let cost = Cost::fit(&single_port);
        let cost = cost.ok_or_else(|| {
            BenchError::InvalidMeasurement(format!("the program {program} never recirculates"))
        })?;
        rows.push(Row::fact(format!("ports.{program}.once_ns"), cost.fixed_ns, "ns"));
        rows.push(Row::fact(
            format!("ports.{program}.again_ns"),
            cost.recirculation_ns,
            "ns",
        ));
        for point in points {
            let measured = point.ports as f64 * 1e9 / point.ns;
            let computed = cost.rate(point.recirculations, point.ports as f64);
            max_deviation = max_deviation.max((measured / computed - 1.0).abs());
            let name = format!("ports.{program}.{}x{}", point.recirculations, point.ports);
            rows.push(Row::fact(format!("{name}.measured"), measured, "packets/s"));
            rows.push(Row::fact(format!("{name}.computed"), computed, "packets/s"));
        }
    }
    rows.push(Row::lower("ports.max_deviation", max_deviation, "ratio", None));
    Ok(())
}

/// The minimum time of a worker per packet while `ports` workers run concurrently, for every number of cipher rounds.
/// Every run measures all points, so a disturbance of the machine affects all points.
fn points(
    cipher: &str,
    pass_work: PassWork,
    ports: usize,
    p4: &Programs,
    size: &Size,
) -> Result<Vec<Point>, BenchError> {
    let mut switches = Vec::new();
    for variant in Variant::all().filter(|variant| (variant.cipher, variant.pass_work) == (cipher, pass_work))
    {
        let switch = variant.switch(p4)?;
        let recirculations = ciphers::recirculations(&switch)? as f64;
        switches.push((switch, recirculations));
    }
    let mut points: Vec<_> = switches
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
            let slowest = run_workers(switch, point.ports, size.blocks)?;
            point.ns = point.ns.min(slowest.as_nanos() as f64 / f64::from(size.blocks));
        }
    }
    Ok(points.into_iter().map(|(_, point)| point).collect())
}

/// The time of the slowest of `workers` workers for `packets` packets each.
fn run_workers(switch: &Switch, workers: usize, packets: u32) -> Result<Duration, BenchError> {
    let frames = [ciphers::frame()];
    let barrier = Barrier::new(workers);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|cpu| {
                scope.spawn({
                    let (frames, barrier) = (&frames, &barrier);
                    move || {
                        let pinned = pin_task(0, cpu);
                        let (mut worker, mut output) = (switch.worker(), Output::default());
                        barrier.wait();
                        let elapsed = memory::run_packets(&mut worker, frames, packets, &mut output);
                        pinned.map(|()| elapsed)
                    }
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        for worker in threads {
            match worker.join() {
                Ok(elapsed) => slowest = slowest.max(elapsed.map_err(io("pin a worker thread"))?),
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
    fn the_fit_reproduces_the_costs() {
        let cost = Cost {
            fixed_ns: 900.0,
            recirculation_ns: 350.0,
        };
        let points: Vec<_> = [3.0, 12.0, 28.0]
            .map(|recirculations| Point {
                recirculations,
                ports: 1,
                ns: 1e9 / cost.rate(recirculations, 1.0),
            })
            .to_vec();
        let found = Cost::fit(&points).expect("three points");
        assert!(
            (found.fixed_ns - 900.0).abs() < 1e-6 && (found.recirculation_ns - 350.0).abs() < 1e-6,
            "{found:?}"
        );
    }

    #[test]
    fn fitted_costs_are_never_negative() {
        let points = |ns: [f64; 2]| {
            let point = |(recirculations, ns)| Point {
                recirculations,
                ports: 1,
                ns,
            };
            [3.0, 12.0].into_iter().zip(ns).map(point).collect::<Vec<_>>()
        };
        let steep = Cost::fit(&points([100.0, 900.0])).expect("two points");
        assert!(
            steep.fixed_ns == 0.0 && steep.recirculation_ns > 33.0 && steep.recirculation_ns < 75.0,
            "{steep:?}"
        );
        let falling = Cost::fit(&points([900.0, 600.0])).expect("two points");
        assert!(
            falling.recirculation_ns == 0.0 && falling.fixed_ns > 600.0 && falling.fixed_ns < 900.0,
            "{falling:?}"
        );
    }

    #[test]
    fn a_chip_forwards_all_packets_up_to_saturation_and_fewer_above() {
        for (recirculations, ports) in [(3, 1.0), (28, 2.0)] {
            let full = ports / f64::from(recirculations);
            assert!((chip_output(full, recirculations, ports) - full).abs() < 1e-9);
            let beyond = [1.5, 2.0, 4.0].map(|factor| chip_output(full * factor, recirculations, ports));
            assert!(
                full > beyond[0] && beyond[0] > beyond[1] && beyond[1] > beyond[2],
                "{beyond:?}"
            );
        }
    }
}
