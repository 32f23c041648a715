//! The scheduler in virtual time: the load that each policy sustains within the same latency limit, and traffic of
//! roads and of power grids.
//!
//! The lanes are two CPUs, with the rate that was just measured on this machine, and a simulated accelerator, which
//! needs 300 us to begin a batch and then has the rate of three CPUs. So the accelerator is faster than both CPUs for
//! batches above a certain size, the thesis' tau. The simulator runs the scheduling code of the real engine.

use linewarden_signatures::lane::{BatchLane, SingleLane};
use linewarden_signatures::scheduler::engine::{Lane, ThrottledLane, measure};
use linewarden_signatures::scheduler::model::CostModel;
use linewarden_signatures::scheduler::{Class, Config, LaneKind, LaneSpec, Priority, Span};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::simulator::trace::Record;
use linewarden_signatures::simulator::traffic::{Bursts, Crossroads, Flood, Grid, TrafficParameters, merge};
use linewarden_signatures::simulator::{
    PolicyKind, Report, ScaledTraffic, SimLane, Simulation, calibrated_tau, capacity,
};

use super::Size;
use super::keys::{invalid_measurement, plain_messages};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

const CLASS: Class = Class::P256_VERIFY;
/// Seed of the random traffic.
const SEED: u64 = 7;
const ACCELERATOR_OVERHEAD: Span = Span::from_micros(300);
/// Number of CPUs with the same rate as the simulated accelerator.
const ACCELERATOR_CPUS: f64 = 3.0;
/// Overhead per batch of a CPU.
const CPU_OVERHEAD: Span = Span::from_micros(2);

/// Adds the rows of this part.
///
/// # Errors
/// The simulation lost a message.
pub fn rows(size: &Size, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    progress("simulator: measuring the rate of a CPU", None);
    let rate = rate()?;
    rows.push(Row::fact("sim.cpu_per_s", rate, "/s"));
    let simulation = simulation(rate);
    let tau = *calibrated_tau(&simulation.lanes).of(CLASS);
    rows.push(Row::fact("sim.tau", tau as f64, "messages"));
    let scenario = Scenario {
        simulation,
        cpu_per_s: rate,
        capacity_per_s: (2.0 + ACCELERATOR_CPUS) * rate,
        seconds: size.trace_ms as f64 / 1e3,
    };
    scenario.add_policy_rows(progress, rows)?;
    progress("simulator: crossroads, power grid, floods", None);
    scenario.add_traffic_rows(rows)
}

fn rate() -> Result<f64, BenchError> {
    let messages = plain_messages(Scheme::EcdsaP256, 8, 512)?;
    let mut lane: Box<dyn Lane<_>> = match BatchLane::widest() {
        Some(lane) => Box::new(lane),
        None => Box::new(SingleLane::default()),
    };
    let jobs = |count: usize| messages.iter().take(count).cloned().collect();
    let model = measure(&mut *lane, CLASS, &[8, 64, 512], 5, jobs).map_err(invalid_measurement)?;
    Ok(model.rate())
}

fn simulation(rate: f64) -> Simulation {
    let cpu = |name: &str| {
        let spec = LaneSpec::new(name, LaneKind::Cpu).with_grain(8);
        SimLane::new(spec.with_class(CLASS, CostModel::new(CPU_OVERHEAD, rate)))
    };
    let accelerator = LaneSpec::new(ThrottledLane::NAME, LaneKind::Accelerator)
        .with_batch_max(16_384)
        .with_class(
            CLASS,
            CostModel::new(ACCELERATOR_OVERHEAD, ACCELERATOR_CPUS * rate),
        );
    let lanes = vec![cpu("cpu 0"), cpu("cpu 1"), SimLane::new(accelerator)];
    Simulation::new(Config::default(), lanes, SEED)
}

/// Creates the trace of a load, given as a factor of the capacity.
type Trace<'a> = &'a dyn Fn(f64) -> Vec<Record>;

struct Scenario {
    simulation: Simulation,
    cpu_per_s: f64,
    /// Rate of all lanes together.
    capacity_per_s: f64,
    seconds: f64,
}

impl Scenario {
    fn traffic_parameters(&self, first_source: u64) -> TrafficParameters {
        TrafficParameters {
            duration_s: self.seconds,
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
        self.simulation
            .run(trace, PolicyKind::Adaptive.policy(&self.simulation.lanes))
            .map_err(invalid_measurement)
    }

    /// Adds the largest load that each policy sustains with the 99th percentile below a limit: a low, a medium and a
    /// burst limit.
    fn add_policy_rows(&self, progress: Progress<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        let steady = |factor: f64| {
            self.stream(factor * self.capacity_per_s)
                .trace(self.traffic_parameters(0))
        };
        let bursty = |factor: f64| {
            let bursts = Bursts {
                burst: (factor * self.capacity_per_s * 0.02) as u64,
                bursts_per_s: 10.0,
                burst_s: 1e-3,
                ..self.stream(0.15 * self.capacity_per_s)
            };
            bursts.trace(self.traffic_parameters(0))
        };
        // The limits scale with the time per message.
        let time_of_messages = |count: f64| Span::from_secs_f64(count / self.cpu_per_s);
        let loads: [(&str, Trace<'_>, Span, f64); 3] = [
            ("low", &steady, ACCELERATOR_OVERHEAD + time_of_messages(24.0), 1.0),
            (
                "medium",
                &steady,
                ACCELERATOR_OVERHEAD + time_of_messages(150.0),
                1.0,
            ),
            (
                "burst",
                &bursty,
                ACCELERATOR_OVERHEAD + time_of_messages(1_500.0),
                4.0,
            ),
        ];
        for (load, trace, p99_max, factor_max) in loads {
            let traffic = ScaledTraffic {
                trace,
                p99_max,
                factor_max,
            };
            let mut load_factors = Vec::new();
            for policy in PolicyKind::ALL {
                progress(
                    "simulator: policies",
                    Some((load_factors.len() as u64, PolicyKind::ALL.len() as u64)),
                );
                let factor = capacity(&self.simulation, &traffic, policy).map_err(invalid_measurement)?;
                rows.push(Row::fact(
                    format!("sim.sustained.{load}.{}", policy.name().replace(' ', "_")),
                    factor,
                    "of the lanes' rate",
                ));
                load_factors.push((policy, factor));
            }
            let factor_of = |policy_name| {
                load_factors
                    .iter()
                    .find(|(policy, _)| *policy == policy_name)
                    .map_or(0.0, |(_, factor)| *factor)
            };
            let (adaptive, thesis) = (factor_of(PolicyKind::Adaptive), factor_of(PolicyKind::FixedTau));
            if thesis == 0.0 {
                return Err(invalid_measurement(format!(
                    "the policy with a fixed tau sustains no {load} load, so no ratio can be computed"
                )));
            }
            let name = format!("sched.adaptive_over_fixed_tau.{load}");
            rows.push(Row::higher(name, adaptive / thesis, "ratio", Some(1.0)));
        }
        Ok(())
    }

    fn add_traffic_rows(&self, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        let vehicles = (0.6 * self.capacity_per_s / Crossroads::PER_S) as u64;
        let crossroads = Crossroads {
            vehicles,
            immediate: 1e-3,
        }
        .trace(self.traffic_parameters(0));
        let grid = |per_s: f64| {
            let units = (0.6 * self.capacity_per_s / per_s) as u64;
            Grid {
                units,
                per_s,
                spread_s: 2e-4,
            }
            .trace(self.traffic_parameters(0))
        };
        // Half of the load is steady; the other half comes in ten bursts per second, of one millisecond each.
        let half_per_s = 0.3 * self.capacity_per_s;
        let bursts = Bursts {
            burst: (half_per_s / 10.0) as u64,
            bursts_per_s: 10.0,
            burst_s: 1e-3,
            ..self.stream(half_per_s)
        };
        let bursts = bursts.trace(self.traffic_parameters(0));
        let legitimate = || {
            let vehicles = vehicles * 2 / 15;
            Crossroads {
                vehicles,
                immediate: 0.02,
            }
            .trace(self.traffic_parameters(0))
        };
        // Nine of ten messages are invalid; the flood begins after half of the time.
        let flood = |priority| {
            let flood = Flood {
                sources: 1 << 40,
                per_s: 9.0 * 0.08 * self.capacity_per_s,
                priority,
            };
            let half = self.seconds / 2.0;
            let mut flood = flood.trace(TrafficParameters {
                duration_s: half,
                ..self.traffic_parameters(1 << 32)
            });
            flood
                .iter_mut()
                .for_each(|record| record.arrival_us += (half * 1e6) as u64);
            merge([legitimate(), flood])
        };
        rows.push(Row::fact("sim.crossroads.vehicles", vehicles as f64, "vehicles"));
        for (name, trace) in [
            ("crossroads", crossroads),
            ("bursts", bursts),
            ("grid_120", grid(120.0)),
            ("grid_2000", grid(2_000.0)),
            ("legitimate_alone", legitimate()),
            ("invalid_flood", flood(Priority::URGENT)),
            ("false_immediates", flood(Priority::IMMEDIATE)),
        ] {
            let report = self.run(&trace)?;
            let microseconds = |span: Span| span.as_secs_f64() * 1e6;
            let immediate = report.valid.quantile(Priority::IMMEDIATE, 0.99);
            if immediate > Span::ZERO {
                rows.push(Row::fact(
                    format!("sim.{name}.p0_p99_us"),
                    microseconds(immediate),
                    "us",
                ));
            }
            let others = report
                .valid
                .quantile_of_others(0.99)
                .map_err(invalid_measurement)?;
            rows.push(Row::fact(
                format!("sim.{name}.p99_us"),
                microseconds(others),
                "us",
            ));
            rows.push(Row::fact(
                format!("sim.{name}.good_per_s"),
                report.goodput(),
                "/s",
            ));
            rows.push(Row::fact(
                format!("sim.{name}.late"),
                100.0 * report.deadline_miss_ratio(),
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
