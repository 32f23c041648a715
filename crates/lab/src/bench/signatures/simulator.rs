//! The scheduler in virtual time: policies by what they bear at equal latency, and traffic of the road and of the grid.
//!
//! The lanes are two processors at the rates that were measured on this machine just before, and one that stands in for an accelerator:
//! 300 us to begin a batch, and the rate of three processors, so that it is sooner done than both from some batch on: the thesis' tau. The
//! same core decides as in the real engine.

use linewarden_signatures::lane::{Eight, OneByOne};
use linewarden_signatures::scheduler::engine::{Lane, Throttled, measure};
use linewarden_signatures::scheduler::model::Line;
use linewarden_signatures::scheduler::{Class, Config, LaneKind, LaneSpec, Priority, Span};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::simulator::trace::Record;
use linewarden_signatures::simulator::traffic::{Bursts, Crossroads, Flood, Grid, Stretch, merge};
use linewarden_signatures::simulator::{Contender, Demand, Plan, Report, SimLane, calibrated_tau, capacity};

use super::Size;
use super::keys::{broken, plain_messages};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

const CLASS: Class = Class::P256_VERIFY;
/// Of all that is random.
const SEED: u64 = 7;
const STAND_IN_OVERHEAD: Span = Span::from_micros(300);
/// Processors that do as much as it does.
const STAND_IN_PROCESSORS: f64 = 3.0;
/// What a processor's slice costs besides its jobs.
const CPU_OVERHEAD: Span = Span::from_micros(2);

/// Measures the processor, and simulates.
///
/// # Errors
/// A message that is lost in the simulation.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    progress("simulator: rate of a processor", None);
    let rate = rate()?;
    rows.push(Row::fact("sim.processor_per_s", rate, "/s"));
    let plan = plan(rate);
    let tau = *calibrated_tau(&plan.lanes).of(CLASS);
    rows.push(Row::fact("sim.tau", tau as f64, "messages"));
    let scene = Scene {
        plan,
        processor_per_s: rate,
        capacity_per_s: (2.0 + STAND_IN_PROCESSORS) * rate,
        seconds: size.trace_ms as f64 / 1e3,
    };
    scene.policies(progress, rows)?;
    progress("simulator: crossroads, grid, floods", None);
    scene.traffic(rows)
}

fn rate() -> Result<f64, BenchError> {
    let messages = plain_messages(Scheme::EcdsaP256, 8, 512)?;
    let mut lane: Box<dyn Lane<_>> = match Eight::widest() {
        Some(eight) => Box::new(eight),
        None => Box::new(OneByOne::default()),
    };
    let some = |count: usize| messages.iter().take(count).cloned().collect();
    let line = measure(&mut *lane, CLASS, &[8, 64, 512], 5, some).map_err(broken)?;
    Ok(line.rate())
}

fn plan(rate: f64) -> Plan {
    let processor = |name: &str| {
        let spec = LaneSpec::new(name, LaneKind::Cpu).with_grain(8);
        SimLane::new(spec.with(CLASS, Line::new(CPU_OVERHEAD, rate)))
    };
    let stand_in = LaneSpec::new(Throttled::NAME, LaneKind::Accelerator)
        .with_batch_max(16_384)
        .with(CLASS, Line::new(STAND_IN_OVERHEAD, STAND_IN_PROCESSORS * rate));
    let lanes = vec![
        processor("processor 0"),
        processor("processor 1"),
        SimLane::new(stand_in),
    ];
    Plan::new(Config::default(), lanes, SEED)
}

/// A trace for a factor.
type Trace<'a> = &'a dyn Fn(f64) -> Vec<Record>;

struct Scene {
    plan: Plan,
    processor_per_s: f64,
    /// Of all lanes together.
    capacity_per_s: f64,
    seconds: f64,
}

impl Scene {
    fn stretch(&self, first_source: u64) -> Stretch {
        Stretch {
            seconds: self.seconds,
            class: CLASS,
            first_source,
            seed: SEED,
        }
    }

    fn stream(&self, per_s: f64) -> Bursts {
        Bursts {
            sources: 500,
            per_s,
            burst: 0,
            bursts_per_s: 0.0,
            burst_s: 0.0,
            priority: Priority::URGENT,
        }
    }

    fn run(&self, trace: &[Record]) -> Result<Report, BenchError> {
        self.plan
            .run(trace, Contender::Adaptive.policy(&self.plan.lanes))
            .map_err(broken)
    }

    /// How much of a growing load each policy bears with the 99th percentile below a bound: strict, wide, and under bursts.
    fn policies(&self, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        let steady = |factor: f64| self.stream(factor * self.capacity_per_s).trace(self.stretch(0));
        let bursty = |factor: f64| {
            let bursts = Bursts {
                burst: (factor * self.capacity_per_s * 0.02) as u64,
                bursts_per_s: 10.0,
                burst_s: 1e-3,
                ..self.stream(0.15 * self.capacity_per_s)
            };
            bursts.trace(self.stretch(0))
        };
        // Latencies scale with what a message costs.
        let of_messages = |count: f64| Span::from_secs_f64(count / self.processor_per_s);
        let loads: [(&str, Trace<'_>, Span, f64); 3] = [
            ("low", &steady, STAND_IN_OVERHEAD + of_messages(24.0), 1.0),
            ("medium", &steady, STAND_IN_OVERHEAD + of_messages(150.0), 1.0),
            ("burst", &bursty, STAND_IN_OVERHEAD + of_messages(1_500.0), 4.0),
        ];
        for (load, trace, p99_max, factor_max) in loads {
            let demand = Demand {
                trace,
                p99_max,
                factor_max,
            };
            let mut borne = Vec::new();
            for contender in Contender::ALL {
                progress(
                    "simulator: policies",
                    Some((borne.len() as u64, Contender::ALL.len() as u64)),
                );
                let factor = capacity(&self.plan, &demand, contender).map_err(broken)?;
                rows.push(Row::fact(
                    format!("sim.borne.{load}.{}", contender.name().replace(' ', "_")),
                    factor,
                    "of the lanes' rate",
                ));
                borne.push((contender, factor));
            }
            let of = |wanted| {
                borne
                    .iter()
                    .find(|(contender, _)| *contender == wanted)
                    .map_or(0.0, |(_, factor)| *factor)
            };
            let (ours, thesis) = (of(Contender::Adaptive), of(Contender::FixedTau));
            if thesis == 0.0 {
                return Err(broken(format!(
                    "under {load} load a fixed tau bears nothing, so nothing can be compared"
                )));
            }
            let name = format!("sched.adaptive_over_fixed_tau.{load}");
            rows.push(Row::higher(name, ours / thesis, "ratio", Some(1.0)));
        }
        Ok(())
    }

    fn traffic(&self, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        let vehicles = (0.6 * self.capacity_per_s / Crossroads::PER_S) as u64;
        let crossroads = Crossroads {
            vehicles,
            immediate: 1e-3,
        }
        .trace(self.stretch(0));
        let grid = |per_s: f64| {
            let units = (0.6 * self.capacity_per_s / per_s) as u64;
            Grid {
                units,
                per_s,
                spread_s: 2e-4,
            }
            .trace(self.stretch(0))
        };
        // Half as a stream, and ten times a second within a millisecond as much as half of a tenth of a second brings.
        let half_per_s = 0.3 * self.capacity_per_s;
        let bursts = Bursts {
            burst: (half_per_s / 10.0) as u64,
            bursts_per_s: 10.0,
            burst_s: 1e-3,
            ..self.stream(half_per_s)
        };
        let bursts = bursts.trace(self.stretch(0));
        let honest = || {
            let vehicles = vehicles * 2 / 15;
            Crossroads {
                vehicles,
                immediate: 0.02,
            }
            .trace(self.stretch(0))
        };
        // Nine of ten messages are garbage; it comes when the honest ones have been there for half of the time.
        let flood = |priority| {
            let flood = Flood {
                sources: 1 << 40,
                per_s: 9.0 * 0.08 * self.capacity_per_s,
                priority,
            };
            let half = self.seconds / 2.0;
            let mut flood = flood.trace(Stretch {
                seconds: half,
                ..self.stretch(1 << 32)
            });
            flood
                .iter_mut()
                .for_each(|record| record.arrival_us += (half * 1e6) as u64);
            merge([honest(), flood])
        };
        rows.push(Row::fact("sim.crossroads.vehicles", vehicles as f64, "vehicles"));
        for (name, trace) in [
            ("crossroads", crossroads),
            ("bursts", bursts),
            ("grid_120", grid(120.0)),
            ("grid_2000", grid(2_000.0)),
            ("honest_alone", honest()),
            ("invalid_flood", flood(Priority::URGENT)),
            ("false_immediates", flood(Priority::IMMEDIATE)),
        ] {
            let report = self.run(&trace)?;
            let micros = |span: Span| span.as_secs_f64() * 1e6;
            let immediate = report.valid.quantile(Priority::IMMEDIATE, 0.99);
            if immediate > Span::ZERO {
                rows.push(Row::fact(
                    format!("sim.{name}.p0_p99_us"),
                    micros(immediate),
                    "us",
                ));
            }
            let others = report.valid.quantile_of_others(0.99).map_err(broken)?;
            rows.push(Row::fact(format!("sim.{name}.p99_us"), micros(others), "us"));
            rows.push(Row::fact(
                format!("sim.{name}.good_per_s"),
                report.goodput(),
                "/s",
            ));
            rows.push(Row::fact(
                format!("sim.{name}.late"),
                100.0 * report.missed(),
                "%",
            ));
            rows.push(Row::fact(
                format!("sim.{name}.shed"),
                report.counters.shed.total() as f64,
                "messages",
            ));
        }
        Ok(())
    }
}
