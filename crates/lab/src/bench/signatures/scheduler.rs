//! The real engine with real signatures: what immediate messages feel of the rest, and what two lanes do against one.
//!
//! The lanes are one processor, and what stands in for an accelerator: a second processor that is slowed down to an overhead and
//! a part of its rate, as its name says. An accelerator takes no processor's time: where there are two processors, the first is the lane's
//! alone, and the stand-in and the sender have the last. Messages are ECDSA P-256, of which AVX2 takes longer for eight than a slice is meant to be, and
//! RSA-2048, of which eight fit in a slice.
//!
//! Policies are compared where the accelerator is the faster of the two from some batch on, or else there would be no tau to calibrate: the
//! processor verifies one at a time there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use linewarden_signatures::lane::{Eight, OneByOne};
use linewarden_signatures::receive::Checked;
use linewarden_signatures::scheduler::engine::{
    Done, Ending, Engine, Lane, LaneLost, Sink, Snapshot, Throttled, measure,
};
use linewarden_signatures::scheduler::model::Line;
use linewarden_signatures::scheduler::{
    Class, Config, Dropped, Job, LaneKind, LaneSpec, Meta, Outcome, PerClass, Priority, QuotaLimits, Rate,
    Source, Span,
};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::simulator::{Contender, SimLane, calibrated_tau};

use super::Size;
use super::keys::{broken, plain_messages};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Better, Pending, Report, Row};
use crate::napi::pin_task;

/// Messages that there are; they come again and again, without fingerprints.
const MESSAGES: usize = 1_024;
/// Immediate messages per second.
const IMMEDIATE_PER_S: f64 = 200.0;
/// What the stand-in for an accelerator takes to begin a batch.
const STAND_IN_OVERHEAD: Span = Span::from_micros(500);
/// Runs; of rates the middle one counts, of what messages feel the best.
const RUNS: usize = 3;
/// Runs that are tried for those: one in which the machine lost more of its speed than the load leaves does not count.
const TRIES: usize = 2 * RUNS;
/// Why there is no figure, if none of them counts.
const TOO_SLOW: &str =
    "messages were shed in every run: the machine was slower than when its rates were measured";

/// Measures.
///
/// # Errors
/// An engine that loses a message.
pub fn rows(size: &Size, progress: Progress<'_>, report: &mut Report) -> Result<(), BenchError> {
    progress("scheduler: messages", None);
    let p256 = Bench::new(size, (Scheme::EcdsaP256, Class::P256_VERIFY), Pair::Slower)?;
    let rows = &mut report.rows;
    rows.push(Row::fact("sched.cpu_lane_per_s", p256.line.rate(), "/s"));
    progress("scheduler: throughput", None);
    let rounds = p256.throughputs()?;
    let of = |what: &dyn Fn(&Throughput) -> f64| middle(rounds.iter().map(what).collect());
    let both = of(&|round| round.both)?;
    rows.push(Row::fact("sched.throughput.cpu", of(&|round| round.cpu)?, "/s"));
    rows.push(Row::fact(
        "sched.throughput.stand_in",
        of(&|round| round.stand_in)?,
        "/s",
    ));
    rows.push(Row::fact("sched.throughput.both", both, "/s"));
    rows.push(Row::higher(
        "sched.throughput_over_best_single",
        of(&|round| round.both / round.cpu.max(round.stand_in))?,
        "ratio",
        Some(1.0),
    ));
    progress("scheduler: immediate messages", None);
    p256.immediates("sched", both, report)?;
    let of_rsa = (Scheme::RsaPss2048, Class::RSA_VERIFY);
    let rsa = Bench::new(size, of_rsa, Pair::Slower)?;
    rsa.immediates("sched.rsa2048", rsa.of_both()?, report)?;
    let faster = Bench::new(size, of_rsa, Pair::Faster)?;
    faster.policies(faster.of_both()?, progress, report)
}

/// A processor, and what stands in for an accelerator beside it.
#[derive(Clone, Copy)]
enum Pair {
    /// Both with the widest vectors; the stand-in has half of the rate.
    Slower,
    /// The processor verifies one at a time; the stand-in with the widest vectors has four fifths of their rate.
    Faster,
}

impl Pair {
    /// What the processor's lane is.
    fn processor(self) -> Box<dyn Lane<Checked>> {
        match self {
            Self::Slower => widest(),
            Self::Faster => Box::new(OneByOne::default()),
        }
    }

    /// The part of the widest vectors' rate that the stand-in has.
    fn part(self) -> f64 {
        match self {
            Self::Slower => 0.5,
            Self::Faster => 0.8,
        }
    }
}

type OneLane = (LaneSpec, Box<dyn Lane<Checked>>);

struct Bench {
    class: Class,
    pair: Pair,
    messages: Vec<Checked>,
    /// The processor's.
    line: Line,
    stand_in: Line,
    length: Duration,
    processors: Option<[usize; 2]>,
    /// Runs that did not count.
    overloaded: AtomicU64,
}

/// Counts what comes back.
#[derive(Default)]
struct Counter {
    done: AtomicUsize,
    wrong: AtomicU64,
}

impl Sink<Checked> for Counter {
    fn done(&self, done: Done<'_, Checked>) {
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
    stand_in: f64,
    both: f64,
}

fn middle(mut values: Vec<f64>) -> Result<f64, BenchError> {
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len() / 2).copied();
    middle.ok_or_else(|| broken("nothing was run"))
}

/// What immediate messages felt.
struct Felt {
    p50_us: f64,
    p99_us: f64,
    rest_p99_us: f64,
    rest_per_s: f64,
}

pub(super) fn widest() -> Box<dyn Lane<Checked>> {
    match Eight::widest() {
        Some(eight) => Box::new(eight),
        None => Box::new(OneByOne::default()),
    }
}

/// A lane whose thread stays on one processor, from its first batch on.
pub(super) struct Pinned(pub(super) Box<dyn Lane<Checked>>, pub(super) Option<usize>);

impl Lane<Checked> for Pinned {
    fn run(
        &mut self,
        class: Class,
        jobs: &mut [Checked],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), LaneLost> {
        if let Some(processor) = self.1.take() {
            stay_on(processor);
        }
        self.0.run(class, jobs, outcomes)
    }
}

/// The first and the last processor, if there are two.
pub(super) fn processors() -> Option<[usize; 2]> {
    let count = std::thread::available_parallelism().ok()?.get();
    (count > 1).then(|| [0, count - 1])
}

/// Keeps this thread on a processor. Where that is not allowed it moves as before, which costs no more than precision.
pub(super) fn stay_on(processor: usize) {
    let _ = pin_task(0, processor);
}

/// Does what a sender does, on the last processor.
fn aside<T: Send>(work: impl FnOnce() -> Result<T, BenchError> + Send) -> Result<T, BenchError> {
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            if let Some([_, last]) = processors() {
                stay_on(last);
            }
            work()
        });
        sender
            .join()
            .unwrap_or_else(|_| Err(broken("the sender panicked")))
    })
}

impl Bench {
    fn new(size: &Size, (scheme, class): (Scheme, Class), pair: Pair) -> Result<Self, BenchError> {
        let messages = plain_messages(scheme, size.signers, MESSAGES)?;
        let some = |count: usize| messages.iter().cycle().take(count).cloned().collect();
        let measured = |mut lane: Box<dyn Lane<Checked>>| {
            measure(&mut *lane, class, &[8, 64, 512], 5, some).map_err(broken)
        };
        let rate = pair.part() * measured(widest())?.rate();
        Ok(Self {
            class,
            pair,
            line: measured(pair.processor())?,
            stand_in: Line::new(STAND_IN_OVERHEAD, rate),
            messages,
            length: Duration::from_millis(size.engine_ms),
            processors: processors(),
            overloaded: AtomicU64::new(0),
        })
    }

    fn processor(&self) -> OneLane {
        let spec = LaneSpec::new("processor", LaneKind::Cpu)
            .with(self.class, self.line)
            .with_grain(8);
        (
            spec,
            Box::new(Pinned(
                self.pair.processor(),
                self.processors.map(|[first, _]| first),
            )),
        )
    }

    fn stand_in(&self) -> OneLane {
        let lines = PerClass::from_fn(|class| (class == self.class).then_some(self.stand_in));
        let pinned = Pinned(widest(), self.processors.map(|[_, last]| last));
        let lane = Throttled::new(pinned, lines);
        (lane.spec().with_batch_max(4_096), Box::new(lane))
    }

    /// A processor, the accelerator, or both.
    fn engine(
        &self,
        [cpu, accelerator]: [bool; 2],
        contender: Contender,
        sink: Arc<Counter>,
    ) -> Result<Engine<Checked>, BenchError> {
        let mut lanes = Vec::new();
        lanes.extend(cpu.then(|| self.processor()));
        lanes.extend(accelerator.then(|| self.stand_in()));
        let specs: Vec<_> = lanes.iter().map(|(spec, _)| SimLane::new(spec.clone())).collect();
        Engine::start(config(), contender.policy(&specs), lanes, sink).map_err(broken)
    }

    fn job(&self, number: usize, priority: Priority, engine: &Engine<Checked>) -> Option<Job<Checked>> {
        let payload = self.messages.get(number % self.messages.len())?.clone();
        let source = Source(number as u64 % 64);
        let meta = Meta::new(self.class, priority, source, engine.now());
        Some(Job { meta, payload })
    }

    /// Each lane alone and both, in turns: a machine that slows down does so for all.
    fn throughputs(&self) -> Result<Vec<Throughput>, BenchError> {
        let round = |_| {
            Ok(Throughput {
                cpu: self.throughput([true, false])?,
                stand_in: self.throughput([false, true])?,
                both: self.throughput([true, true])?,
            })
        };
        (0..RUNS).map(round).collect()
    }

    /// What both lanes do together, the middle one of some runs.
    fn of_both(&self) -> Result<f64, BenchError> {
        let rates = (0..RUNS).map(|_| self.throughput([true, true]));
        middle(rates.collect::<Result<_, _>>()?)
    }

    /// The thesis' tau for these lanes, messages.
    fn tau(&self) -> usize {
        let lanes = [self.processor().0, self.stand_in().0].map(SimLane::new);
        *calibrated_tau(&lanes).of(self.class)
    }

    /// Messages per second of an engine that always has enough of them.
    fn throughput(&self, lanes: [bool; 2]) -> Result<f64, BenchError> {
        aside(|| self.throughput_once(lanes))
    }

    fn throughput_once(&self, lanes: [bool; 2]) -> Result<f64, BenchError> {
        let sink = Arc::new(Counter::default());
        let engine = self.engine(lanes, Contender::Adaptive, Arc::clone(&sink))?;
        let submitter = engine.submitter();
        let begin = Instant::now();
        let (mut sent, mut jobs) = (0, Vec::new());
        while begin.elapsed() < self.length {
            let done = sink.done.load(Ordering::Relaxed);
            while sent < done + QUEUED {
                jobs.extend(
                    (sent..sent + 256).filter_map(|number| self.job(number, Priority::URGENT, &engine)),
                );
                sent += 256;
                submitter.submit(&mut jobs).map_err(broken)?;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let (done, passed) = (sink.done.load(Ordering::Relaxed), begin.elapsed());
        let shed = finish(engine, &sink, sent)?.counters.shed.total();
        if shed != 0 {
            return Err(broken(format!(
                "{shed} messages were shed, of which fewer waited than the queue holds"
            )));
        }
        Ok(done as f64 / passed.as_secs_f64())
    }

    /// What each policy makes of the same load: 70 % of what both lanes do under the adaptive one.
    fn policies(&self, both: f64, progress: Progress<'_>, report: &mut Report) -> Result<(), BenchError> {
        let tau = self.tau() as f64;
        report.rows.push(Row::fact("sched.engine.tau", tau, "messages"));
        for (number, contender) in (0..).zip(Contender::ALL) {
            progress("scheduler: policies", Some((number, Contender::ALL.len() as u64)));
            let policy = contender.name().replace(' ', "_");
            let name = format!("sched.engine.{policy}.p99_us");
            match self.best(0.7 * both, contender, |felt| felt.rest_p99_us)? {
                Some(felt) => report.rows.push(Row::lower(name, felt.rest_p99_us, "us", None)),
                None => report
                    .pending
                    .push(Pending::new(name, "us", Better::Lower, None, TOO_SLOW)),
            }
        }
        Ok(())
    }

    /// The rows of immediate messages, alone and beside 95 % of what both lanes do.
    fn immediates(&self, name: &str, both: f64, report: &mut Report) -> Result<(), BenchError> {
        let felt = |rest_per_s| self.best(rest_per_s, Contender::Adaptive, |felt| felt.p99_us);
        let ratio = format!("{name}.p0_p99_over_idle");
        let felt = (felt(0.0)?, felt(0.95 * both)?);
        let overloaded = self.overloaded.load(Ordering::Relaxed) as f64;
        report.rows.push(Row::lower(
            format!("{name}.runs_overloaded"),
            overloaded,
            "runs",
            None,
        ));
        let (Some(idle), Some(loaded)) = felt else {
            let pending = Pending::new(ratio, "ratio", Better::Lower, Some(3.0), TOO_SLOW);
            report.pending.push(pending);
            return Ok(());
        };
        let rows = &mut report.rows;
        for (load, felt) in [("idle", &idle), ("loaded", &loaded)] {
            rows.push(Row::fact(format!("{name}.p0_p50_us.{load}"), felt.p50_us, "us"));
            rows.push(Row::fact(format!("{name}.p0_p99_us.{load}"), felt.p99_us, "us"));
        }
        rows.push(Row::fact(format!("{name}.rest_p99_us"), loaded.rest_p99_us, "us"));
        rows.push(Row::fact(format!("{name}.rest_per_s"), loaded.rest_per_s, "/s"));
        rows.push(Row::lower(ratio, loaded.p99_us / idle.p99_us, "ratio", Some(3.0)));
        Ok(())
    }

    /// Of the runs that count the one in which this is least.
    fn best(
        &self,
        rest_per_s: f64,
        contender: Contender,
        what: impl Fn(&Felt) -> f64,
    ) -> Result<Option<Felt>, BenchError> {
        let tries = (0..TRIES).map(|_| aside(|| self.run(rest_per_s, contender)));
        let counting = tries.filter_map(Result::transpose).take(RUNS);
        let runs: Vec<Felt> = counting.collect::<Result<_, _>>()?;
        Ok(runs.into_iter().min_by(|a, b| what(a).total_cmp(&what(b))))
    }

    /// Immediate messages at a steady rate, beside others at another; nothing if that was more than the machine did.
    fn run(&self, rest_per_s: f64, contender: Contender) -> Result<Option<Felt>, BenchError> {
        let sink = Arc::new(Counter::default());
        let engine = self.engine([true, true], contender, Arc::clone(&sink))?;
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
            submitter.submit(&mut jobs).map_err(broken)?;
            std::thread::sleep(Duration::from_micros(300));
        }
        let passed = begin.elapsed().as_secs_f64();
        let snapshot = finish(engine, &sink, immediate + rest)?;
        if snapshot.counters.shed.total() != 0 {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let micros = |span: Span| span.as_secs_f64() * 1e6;
        let quantile = |part| micros(snapshot.latencies.quantile(Priority::IMMEDIATE, part));
        Ok(Some(Felt {
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            rest_p99_us: micros(snapshot.latencies.quantile_of_others(0.99).map_err(broken)?),
            rest_per_s: rest as f64 / passed,
        }))
    }
}

/// Messages that wait in a saturated engine.
const QUEUED: usize = 8_192;

/// Quotas that let all immediate messages be immediate: what is measured is the scheduler.
fn config() -> Config {
    let rate = Rate {
        burst: 1_000,
        interval: Span::from_micros(100),
    };
    let defaults = Config::default();
    Config {
        quotas: QuotaLimits {
            source: rate,
            strangers: rate,
            ..defaults.quotas
        },
        ..defaults
    }
}

/// Ends an engine; all that was handed in has come back once, done rightly or shed.
fn finish(engine: Engine<Checked>, sink: &Counter, sent: usize) -> Result<Snapshot, BenchError> {
    let (left, snapshot) = engine.shut_down(Ending::Finish).map_err(broken)?;
    let done = sink.done.load(Ordering::Relaxed);
    let wrong = sink.wrong.load(Ordering::Relaxed);
    let demoted = snapshot.counters.demoted;
    match left.is_empty() && done == sent && wrong == 0 && demoted == 0 {
        true => Ok(snapshot),
        false => Err(broken(format!(
            "{sent} messages were handed in, {done} came back, {wrong} of them wrong, {demoted} demoted"
        ))),
    }
}
