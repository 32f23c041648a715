//! The real scheduler with real signatures: latency of immediate messages under load, and throughput of two lanes
//! compared with one.
//!
//! The lanes are one CPU and a simulated accelerator: a second CPU that is throttled to an overhead per batch and a share of its
//! rate. A real accelerator needs no CPU time. With two CPUs, only the CPU lane uses the first CPU; the simulated accelerator and
//! the sender share the last CPU. The messages are signed with ECDSA P-256, where eight messages take longer with AVX2 than the
//! intended length of a time slice, and with RSA-2048, where eight messages fit into a slice.
//!
//! The comparison of policies requires an accelerator that is faster than the CPU for batches above a certain size,
//! tau. Therefore, the CPU verifies one message at a time in that comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use linewarden_signatures::lane::{BatchLane, SingleLane};
use linewarden_signatures::receive::Checked;
use linewarden_signatures::scheduler::engine::{
    BatchResult, Engine, Lane, LaneLost, ShutdownMode, Sink, Snapshot, ThrottledLane, measure,
};
use linewarden_signatures::scheduler::model::CostModel;
use linewarden_signatures::scheduler::{
    Class, Config, Dropped, Job, LaneKind, LaneSpec, Meta, Outcome, PerClass, Priority, QuotaLimits, Rate,
    Source, Span,
};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::simulator::{PolicyKind, SimLane, calibrated_tau};

use super::Size;
use super::keys::{invalid_measurement, plain_messages};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Better, Pending, Report, Row};
use crate::napi::pin_task;

/// Different messages, which are sent repeatedly; duplicates are not filtered here.
const MESSAGES: usize = 1_024;
/// Immediate messages per second.
const IMMEDIATE_PER_S: f64 = 200.0;
/// Overhead per batch of the simulated accelerator.
const ACCELERATOR_OVERHEAD: Span = Span::from_micros(500);
/// Number of runs; the results are the median rate and the best latency.
const RUNS: usize = 3;
/// Maximum number of attempts: a run in which the machine was too slow for the load is repeated.
const ATTEMPTS: usize = 2 * RUNS;
/// Reason for a pending value if the machine was too slow in all attempts.
const TOO_SLOW: &str =
    "messages were dropped in every run because the machine was slower than when its rates were measured";

/// Adds the rows of this part.
///
/// # Errors
/// The scheduler lost a message.
pub fn rows(size: &Size, progress: Progress<'_>, report: &mut Report) -> Result<(), BenchError> {
    progress("scheduler: creating messages", None);
    let p256 = Bench::new(
        size,
        (Scheme::EcdsaP256, Class::P256_VERIFY),
        LanePair::SlowAccelerator,
    )?;
    let rows = &mut report.rows;
    rows.push(Row::fact("sched.cpu_lane_per_s", p256.cpu_model.rate(), "/s"));
    progress("scheduler: throughput", None);
    let rounds = p256.throughputs()?;
    let median_of = |rate: &dyn Fn(&Throughput) -> f64| median(rounds.iter().map(rate).collect());
    let combined_per_s = median_of(&|round| round.both)?;
    rows.push(Row::fact(
        "sched.throughput.cpu",
        median_of(&|round| round.cpu)?,
        "/s",
    ));
    rows.push(Row::fact(
        "sched.throughput.simulated_accelerator",
        median_of(&|round| round.accelerator)?,
        "/s",
    ));
    rows.push(Row::fact("sched.throughput.both", combined_per_s, "/s"));
    rows.push(Row::higher(
        "sched.throughput_over_best_single",
        median_of(&|round| round.both / round.cpu.max(round.accelerator))?,
        "ratio",
        Some(1.0),
    ));
    progress("scheduler: immediate messages", None);
    p256.add_immediate_rows("sched", combined_per_s, report)?;
    let rsa_verification = (Scheme::RsaPss2048, Class::RSA_VERIFY);
    let rsa = Bench::new(size, rsa_verification, LanePair::SlowAccelerator)?;
    rsa.add_immediate_rows("sched.rsa2048", rsa.combined_throughput()?, report)?;
    let faster = Bench::new(size, rsa_verification, LanePair::FastAccelerator)?;
    faster.add_policy_rows(faster.combined_throughput()?, progress, report)
}

/// The speeds of the CPU lane and of the simulated accelerator.
#[derive(Clone, Copy)]
enum LanePair {
    /// Both lanes use the widest vector instructions; the accelerator has half of the CPU's rate.
    SlowAccelerator,
    /// The CPU verifies one message at a time; the accelerator has four fifths of the rate of the widest vector instructions.
    FastAccelerator,
}

impl LanePair {
    /// The CPU lane.
    fn cpu_lane(self) -> Box<dyn Lane<Checked>> {
        match self {
            Self::SlowAccelerator => widest_lane(),
            Self::FastAccelerator => Box::new(SingleLane::default()),
        }
    }

    /// The accelerator's rate as a share of the rate of the widest vector instructions.
    fn accelerator_share(self) -> f64 {
        match self {
            Self::SlowAccelerator => 0.5,
            Self::FastAccelerator => 0.8,
        }
    }
}

type OneLane = (LaneSpec, Box<dyn Lane<Checked>>);

struct Bench {
    class: Class,
    pair: LanePair,
    messages: Vec<Checked>,
    /// Cost model of the CPU lane.
    cpu_model: CostModel,
    /// Cost model of the simulated accelerator.
    accelerator_model: CostModel,
    length: Duration,
    cpus: Option<[usize; 2]>,
    /// Number of runs in which the machine was too slow for the load.
    overloaded_runs: AtomicU64,
}

/// Counts the results.
#[derive(Default)]
struct Counter {
    /// Messages with an outcome, and dropped messages.
    done: AtomicUsize,
    /// Messages with another outcome than [`Outcome::Accepted`].
    wrong: AtomicU64,
}

impl Sink<Checked> for Counter {
    fn done(&self, done: BatchResult<'_, Checked>) {
        let wrong = done
            .outcomes
            .iter()
            .filter(|outcome| **outcome != Outcome::Accepted);
        self.wrong.fetch_add(wrong.count() as u64, Ordering::Relaxed);
        self.done.fetch_add(done.payloads.len(), Ordering::Relaxed);
        done.payloads.clear();
    }

    fn dropped(&self, dropped: &mut Vec<Dropped<Checked>>) {
        self.done.fetch_add(dropped.len(), Ordering::Relaxed);
        dropped.clear();
    }
}

/// Messages per second.
struct Throughput {
    cpu: f64,
    accelerator: f64,
    both: f64,
}

fn median(mut values: Vec<f64>) -> Result<f64, BenchError> {
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len() / 2).copied();
    middle.ok_or_else(|| invalid_measurement("no run was completed"))
}

/// Latencies of immediate messages and of all other messages.
struct ImmediateLatency {
    p50_us: f64,
    p99_us: f64,
    rest_p99_us: f64,
    rest_per_s: f64,
}

pub(super) fn widest_lane() -> Box<dyn Lane<Checked>> {
    match BatchLane::widest() {
        Some(lane) => Box::new(lane),
        None => Box::new(SingleLane::default()),
    }
}

/// A lane whose thread is pinned to a CPU on its first batch.
pub(super) struct PinnedLane(pub(super) Box<dyn Lane<Checked>>, pub(super) Option<usize>);

impl Lane<Checked> for PinnedLane {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        if let Some(cpu) = self.1.take() {
            pin_current_thread(cpu);
        }
        self.0.run(class, jobs, outcomes)
    }
}

/// The first and the last CPU if there are at least two.
pub(super) fn first_and_last_cpu() -> Option<[usize; 2]> {
    let count = std::thread::available_parallelism().ok()?.get();
    (count > 1).then(|| [0, count - 1])
}

/// Pins this thread to a CPU. If that is not allowed, the thread is not pinned, and the measurement is less precise.
pub(super) fn pin_current_thread(cpu: usize) {
    let _ = pin_task(0, cpu);
}

/// Runs the work of a sender on the last CPU.
fn on_sender_thread<T: Send>(work: impl FnOnce() -> Result<T, BenchError> + Send) -> Result<T, BenchError> {
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            if let Some([_, last]) = first_and_last_cpu() {
                pin_current_thread(last);
            }
            work()
        });
        sender
            .join()
            .unwrap_or_else(|_| Err(invalid_measurement("the sender panicked")))
    })
}

impl Bench {
    fn new(size: &Size, (scheme, class): (Scheme, Class), pair: LanePair) -> Result<Self, BenchError> {
        let messages = plain_messages(scheme, size.signers, MESSAGES)?;
        let jobs = |count: usize| messages.iter().cycle().take(count).cloned().collect();
        let measured = |mut lane: Box<dyn Lane<Checked>>| {
            measure(&mut *lane, class, &[8, 64, 512], 5, jobs).map_err(invalid_measurement)
        };
        let rate = pair.accelerator_share() * measured(widest_lane())?.rate();
        Ok(Self {
            class,
            pair,
            cpu_model: measured(pair.cpu_lane())?,
            accelerator_model: CostModel::new(ACCELERATOR_OVERHEAD, rate),
            messages,
            length: Duration::from_millis(size.engine_ms),
            cpus: first_and_last_cpu(),
            overloaded_runs: AtomicU64::new(0),
        })
    }

    fn cpu_lane(&self) -> OneLane {
        let spec = LaneSpec::new("cpu", LaneKind::Cpu)
            .with_class(self.class, self.cpu_model)
            .with_grain(8);
        (
            spec,
            Box::new(PinnedLane(
                self.pair.cpu_lane(),
                self.cpus.map(|[first, _]| first),
            )),
        )
    }

    fn accelerator(&self) -> OneLane {
        let models = PerClass::from_fn(|class| (class == self.class).then_some(self.accelerator_model));
        let pinned = PinnedLane(widest_lane(), self.cpus.map(|[_, last]| last));
        let lane = ThrottledLane::new(pinned, models);
        (lane.spec().with_batch_max(4_096), Box::new(lane))
    }

    /// Starts an engine with the CPU, the accelerator, or both.
    fn engine(
        &self,
        [cpu, accelerator]: [bool; 2],
        policy_kind: PolicyKind,
        sink: Arc<Counter>,
    ) -> Result<Engine<Checked>, BenchError> {
        let mut lanes = Vec::new();
        lanes.extend(cpu.then(|| self.cpu_lane()));
        lanes.extend(accelerator.then(|| self.accelerator()));
        let specs: Vec<_> = lanes.iter().map(|(spec, _)| SimLane::new(spec.clone())).collect();
        Engine::start(config(), policy_kind.policy(&specs), lanes, sink).map_err(invalid_measurement)
    }

    fn job(&self, number: usize, priority: Priority, engine: &Engine<Checked>) -> Option<Job<Checked>> {
        let payload = self.messages.get(number % self.messages.len())?.clone();
        let source = Source(number as u64 % 64);
        let meta = Meta::new(self.class, priority, source, engine.now());
        Some(Job { meta, payload })
    }

    /// Throughput of each lane and of both lanes together, measured alternately, so that a slower machine affects all rates.
    fn throughputs(&self) -> Result<Vec<Throughput>, BenchError> {
        let round = |_| {
            Ok(Throughput {
                cpu: self.throughput([true, false])?,
                accelerator: self.throughput([false, true])?,
                both: self.throughput([true, true])?,
            })
        };
        (0..RUNS).map(round).collect()
    }

    /// Throughput of both lanes: the median of the runs.
    fn combined_throughput(&self) -> Result<f64, BenchError> {
        let rates = (0..RUNS).map(|_| self.throughput([true, true]));
        median(rates.collect::<Result<_, _>>()?)
    }

    /// The thesis' tau for these lanes: the batch size, in messages, from which the accelerator is faster.
    fn tau(&self) -> usize {
        let lanes = [self.cpu_lane().0, self.accelerator().0].map(SimLane::new);
        *calibrated_tau(&lanes).of(self.class)
    }

    /// Messages per second of a saturated engine.
    fn throughput(&self, lanes: [bool; 2]) -> Result<f64, BenchError> {
        on_sender_thread(|| self.throughput_once(lanes))
    }

    fn throughput_once(&self, lanes: [bool; 2]) -> Result<f64, BenchError> {
        let sink = Arc::new(Counter::default());
        let engine = self.engine(lanes, PolicyKind::Adaptive, Arc::clone(&sink))?;
        let submitter = engine.submitter();
        let begin = Instant::now();
        let (mut sent, mut jobs) = (0, Vec::new());
        while begin.elapsed() < self.length {
            let done = sink.done.load(Ordering::Relaxed);
            while sent < done + QUEUED_MESSAGES {
                jobs.extend(
                    (sent..sent + 256).filter_map(|number| self.job(number, Priority::URGENT, &engine)),
                );
                sent += 256;
                submitter.submit(&mut jobs).map_err(invalid_measurement)?;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let (done, elapsed) = (sink.done.load(Ordering::Relaxed), begin.elapsed());
        let shed = finish(engine, &sink, sent)?.counters.shed.total();
        if shed != 0 {
            return Err(invalid_measurement(format!(
                "{shed} messages were dropped although the queue was not full"
            )));
        }
        Ok(done as f64 / elapsed.as_secs_f64())
    }

    /// Adds the latency with each policy under the same load: 70 % of the throughput of both lanes under the adaptive policy.
    fn add_policy_rows(
        &self,
        combined_per_s: f64,
        progress: Progress<'_>,
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let tau = self.tau() as f64;
        report.rows.push(Row::fact("sched.engine.tau", tau, "messages"));
        for (number, policy_kind) in (0..).zip(PolicyKind::ALL) {
            progress(
                "scheduler: policies",
                Some((number, PolicyKind::ALL.len() as u64)),
            );
            let policy = policy_kind.name().replace(' ', "_");
            let name = format!("sched.engine.{policy}.p99_us");
            match self.best_run(0.7 * combined_per_s, policy_kind, |latency| latency.rest_p99_us)? {
                Some(latency) => report
                    .rows
                    .push(Row::lower(name, latency.rest_p99_us, "us", None)),
                None => report
                    .pending
                    .push(Pending::new(name, "us", Better::Lower, None, TOO_SLOW)),
            }
        }
        Ok(())
    }

    /// Adds the rows for immediate messages, without other load and with a load of 95 % of the throughput of both lanes.
    fn add_immediate_rows(
        &self,
        name: &str,
        combined_per_s: f64,
        report: &mut Report,
    ) -> Result<(), BenchError> {
        let latency = |rest_per_s| self.best_run(rest_per_s, PolicyKind::Adaptive, |latency| latency.p99_us);
        let ratio = format!("{name}.p0_p99_over_idle");
        let latency = (latency(0.0)?, latency(0.95 * combined_per_s)?);
        let overloaded = self.overloaded_runs.load(Ordering::Relaxed) as f64;
        report.rows.push(Row::lower(
            format!("{name}.runs_overloaded"),
            overloaded,
            "runs",
            None,
        ));
        let (Some(idle), Some(loaded)) = latency else {
            let pending = Pending::new(ratio, "ratio", Better::Lower, Some(3.0), TOO_SLOW);
            report.pending.push(pending);
            return Ok(());
        };
        let rows = &mut report.rows;
        for (load, latency) in [("idle", &idle), ("loaded", &loaded)] {
            rows.push(Row::fact(
                format!("{name}.p0_p50_us.{load}"),
                latency.p50_us,
                "us",
            ));
            rows.push(Row::fact(
                format!("{name}.p0_p99_us.{load}"),
                latency.p99_us,
                "us",
            ));
        }
        rows.push(Row::fact(format!("{name}.rest_p99_us"), loaded.rest_p99_us, "us"));
        rows.push(Row::fact(format!("{name}.rest_per_s"), loaded.rest_per_s, "/s"));
        rows.push(Row::lower(ratio, loaded.p99_us / idle.p99_us, "ratio", Some(3.0)));
        Ok(())
    }

    /// Returns the run with the smallest `latency`, without overloaded runs.
    fn best_run(
        &self,
        rest_per_s: f64,
        policy_kind: PolicyKind,
        latency: impl Fn(&ImmediateLatency) -> f64,
    ) -> Result<Option<ImmediateLatency>, BenchError> {
        let attempts = (0..ATTEMPTS).map(|_| on_sender_thread(|| self.run(rest_per_s, policy_kind)));
        let valid_runs = attempts.filter_map(Result::transpose).take(RUNS);
        let runs: Vec<ImmediateLatency> = valid_runs.collect::<Result<_, _>>()?;
        Ok(runs.into_iter().min_by(|a, b| latency(a).total_cmp(&latency(b))))
    }

    /// Sends immediate messages at a fixed rate and other messages at `rest_per_s`. Returns `None` if the machine was
    /// too slow.
    fn run(&self, rest_per_s: f64, policy_kind: PolicyKind) -> Result<Option<ImmediateLatency>, BenchError> {
        let sink = Arc::new(Counter::default());
        let engine = self.engine([true, true], policy_kind, Arc::clone(&sink))?;
        let submitter = engine.submitter();
        let begin = Instant::now();
        let (mut immediate, mut rest, mut jobs) = (0, 0, Vec::new());
        while begin.elapsed() < self.length {
            let passed = begin.elapsed().as_secs_f64();
            while (immediate as f64) < passed * IMMEDIATE_PER_S {
                jobs.extend(self.job(immediate, Priority::IMMEDIATE, &engine));
                immediate += 1;
            }
            while (rest as f64) < passed * rest_per_s {
                jobs.extend(self.job(rest, Priority::URGENT, &engine));
                rest += 1;
            }
            submitter.submit(&mut jobs).map_err(invalid_measurement)?;
            std::thread::sleep(Duration::from_micros(300));
        }
        let passed = begin.elapsed().as_secs_f64();
        let snapshot = finish(engine, &sink, immediate + rest)?;
        if snapshot.counters.shed.total() != 0 {
            self.overloaded_runs.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let microseconds = |span: Span| span.as_secs_f64() * 1e6;
        let quantile = |fraction| microseconds(snapshot.latencies.quantile(Priority::IMMEDIATE, fraction));
        Ok(Some(ImmediateLatency {
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            rest_p99_us: microseconds(
                snapshot
                    .latencies
                    .quantile_of_others(0.99)
                    .map_err(invalid_measurement)?,
            ),
            rest_per_s: rest as f64 / passed,
        }))
    }
}

/// Messages in the queue of a saturated engine.
const QUEUED_MESSAGES: usize = 8_192;

/// A configuration whose quotas never limit immediate messages, so that only the scheduler is measured.
fn config() -> Config {
    let rate = Rate {
        burst: 1_000,
        interval: Span::from_micros(100),
    };
    let defaults = Config::default();
    Config {
        quotas: QuotaLimits {
            source: rate,
            unknown_senders: rate,
            ..defaults.quotas
        },
        ..defaults
    }
}

/// Stops an engine and checks that each message was returned exactly one time, verified correctly or dropped.
fn finish(engine: Engine<Checked>, sink: &Counter, sent: usize) -> Result<Snapshot, BenchError> {
    let (unfinished, snapshot) = engine
        .shut_down(ShutdownMode::CompleteJobs)
        .map_err(invalid_measurement)?;
    let done = sink.done.load(Ordering::Relaxed);
    let wrong = sink.wrong.load(Ordering::Relaxed);
    let demoted = snapshot.counters.demoted;
    match unfinished.is_empty() && done == sent && wrong == 0 && demoted == 0 {
        true => Ok(snapshot),
        false => Err(invalid_measurement(format!(
            "{sent} messages were submitted, {done} returned, {wrong} with a wrong result, {demoted} demoted"
        ))),
    }
}
