use super::traffic::{Bursts, Crossroads, Flood, Grid, TrafficParameters, merge};
use super::*;
use crate::scheduler::policy::{Policy, PolicyDecision, PolicyInput};
use crate::scheduler::testing::seeds;
use crate::scheduler::{Class, Config, LaneKind, MaskLimits, PerPriority, Priority, ShedReason, Span, Time};

const CLASS: Class = Class::P256_VERIFY;

fn two_cpu_lanes_and(accelerator: SimLane) -> Simulation {
    let lanes = vec![
        cpu("processor 0", LaneKind::Cpu),
        cpu("processor 1", LaneKind::Cpu),
        accelerator,
    ];
    Simulation::new(Config::default(), lanes, 1)
}

fn small_accelerator() -> SimLane {
    emulated_accelerator(Span::from_micros(300), 1.0)
}

fn parameters(seconds: f64, first_source: u64) -> TrafficParameters {
    TrafficParameters {
        duration_s: seconds,
        class: CLASS,
        first_source,
        seed: 7,
    }
}

fn stream(per_s: f64) -> Bursts {
    Bursts {
        sources: 500,
        per_s,
        burst: 0,
        bursts_per_s: 0.0,
        burst_s: 0.0,
        priority: Priority::URGENT,
    }
}

fn run(plan: &Simulation, trace: &[trace::Record], policy_kind: PolicyKind) -> Report {
    plan.run(trace, policy_kind.policy(&plan.lanes)).unwrap()
}

fn p99(report: &Report) -> f64 {
    report.valid.quantile_of_others(0.99).unwrap().as_secs_f64()
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let crossroads = Crossroads {
        vehicles: 3_000,
        immediate: 0.01,
    }
    .trace(parameters(0.5, 0));
    let flood = Flood {
        sources: 50,
        per_s: 40_000.0,
        priority: Priority::new(3),
    }
    .trace(parameters(0.5, 9_000));
    let trace = merge([crossroads, flood]);
    let plan = two_cpu_lanes_and(small_accelerator().with_outage(at_ms(100), at_ms(200)));
    for policy_kind in PolicyKind::ALL {
        let (first, second) = (run(&plan, &trace, policy_kind), run(&plan, &trace, policy_kind));
        assert_eq!(first, second);
        let different = run(
            &Simulation {
                seed: 2,
                ..plan.clone()
            },
            &trace,
            policy_kind,
        );
        assert_ne!(first.digest, different.digest);
    }
}

#[test]
fn the_ledger_detects_lost_and_duplicate_results() {
    let trace = stream(10_000.0).trace(parameters(0.1, 0));
    for (fault, expected) in [
        (InjectedFault::LoseResult, "never left"),
        (InjectedFault::DuplicateResult, "left twice"),
    ] {
        let plan = Simulation {
            injected_fault: Some(fault),
            ..two_cpu_lanes_and(small_accelerator())
        };
        let error = plan
            .run(&trace, PolicyKind::Adaptive.policy(&plan.lanes))
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_trace_gives_the_same_run_after_writing_and_reading() {
    let trace = Grid {
        units: 40,
        per_s: 120.0,
        spread_s: 1e-3,
    }
    .trace(parameters(0.5, 0));
    let mut text = Vec::new();
    trace::write(&trace, &mut text).unwrap();
    let read = trace::read(text.as_slice()).unwrap();
    let plan = two_cpu_lanes_and(h200());
    assert_eq!(
        run(&plan, &trace, PolicyKind::Adaptive),
        run(&plan, &read, PolicyKind::Adaptive)
    );
}

fn at_ms(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

/// Compares throughput at equal 99th percentiles; fixed tau is the policy of the thesis "Hardware accelerated authentication", calibrated
/// for these lanes.
fn compare_capacity(name: &str, plan: &Simulation, demand: &ScaledTraffic<'_>) -> f64 {
    let [fixed, adaptive] = [PolicyKind::FixedTau, PolicyKind::Adaptive]
        .map(|policy_kind| capacity(plan, demand, policy_kind).unwrap());
    println!("{name}: capacity with fixed tau {fixed:.3}, with adaptive {adaptive:.3}");
    assert!(fixed > 0.0, "{name}: the bound is too strict to compare");
    assert!(
        adaptive >= fixed,
        "{name}: capacity with fixed tau {fixed}, with adaptive {adaptive}"
    );
    adaptive / fixed
}

#[test]
fn adaptive_has_the_capacity_of_fixed_tau_at_low_medium_and_burst_load() {
    for (name, accelerator, p99_max) in [
        (
            "H200",
            h200(),
            [
                Span::from_micros(400),
                Span::from_micros(1_500),
                Span::from_micros(2_500),
            ],
        ),
        (
            "stand-in",
            small_accelerator(),
            [
                Span::from_micros(300),
                Span::from_micros(2_000),
                Span::from_millis(20),
            ],
        ),
    ] {
        let plan = two_cpu_lanes_and(accelerator);
        let steady = |factor: f64| stream(factor * 300e3).trace(parameters(0.15, 0));
        let bursty = |factor: f64| {
            let bursts = Bursts {
                burst: (factor * 6_000.0) as u64,
                bursts_per_s: 10.0,
                burst_s: 1e-3,
                ..stream(40e3)
            };
            bursts.trace(parameters(0.2, 0))
        };
        let [low, medium, burst] = p99_max;
        for (load, trace, p99_max, factor_max) in [
            ("low", &steady as &dyn Fn(f64) -> _, low, 1.0),
            ("medium", &steady, medium, 1.0),
            ("burst", &bursty, burst, 2.0),
        ] {
            compare_capacity(
                &format!("{name}, {load}"),
                &plan,
                &ScaledTraffic {
                    trace,
                    p99_max,
                    factor_max,
                },
            );
        }
    }
}

#[test]
fn adaptive_is_no_later_than_fixed_tau_under_every_traffic() {
    let crossroads = Crossroads {
        vehicles: 12_000,
        immediate: 1e-3,
    }
    .trace(parameters(0.4, 0));
    let grid = Grid {
        units: 100,
        per_s: 1_200.0,
        spread_s: 2e-4,
    }
    .trace(parameters(0.4, 0));
    let burst = Bursts {
        burst: 3_000,
        bursts_per_s: 10.0,
        burst_s: 1e-3,
        ..stream(60e3)
    }
    .trace(parameters(0.4, 0));
    for (name, trace) in [("crossroads", crossroads), ("grid", grid), ("burst", burst)] {
        for accelerator in [
            h200(),
            small_accelerator(),
            emulated_accelerator(Span::from_millis(1), 3.0),
        ] {
            let plan = two_cpu_lanes_and(accelerator);
            let reports = compare(&plan, &trace).unwrap();
            println!("{name}\n{}", table(&reports));
            let [fixed, .., adaptive] = reports.as_slice() else {
                panic!()
            };
            // Histograms are exact to one percent.
            assert!(
                p99(adaptive) <= p99(fixed) * 1.02,
                "{name}: {} against {}",
                p99(adaptive),
                p99(fixed)
            );
        }
    }
}

#[test]
fn adaptive_recognizes_a_wrongly_calibrated_lane() {
    // Tau was calibrated for an accelerator five times as fast.
    let calibrated = two_cpu_lanes_and(h200());
    let tau = PolicyKind::FixedTau.policy(&calibrated.lanes);
    let plan = two_cpu_lanes_and(h200().slowed_by(5.0));
    let trace = stream(100e3).trace(parameters(0.5, 0));
    let fixed = plan.run(&trace, tau).unwrap();
    let adaptive = run(&plan, &trace, PolicyKind::Adaptive);
    assert!(
        p99(&adaptive) <= p99(&fixed),
        "{} against {}",
        adaptive.text(),
        fixed.text()
    );
}

#[test]
fn both_lanes_together_exceed_the_better_lane() {
    let trace = stream(1e6).trace(parameters(0.2, 0));
    let throughput_of = |plan: &Simulation| run(plan, &trace, PolicyKind::Adaptive).throughput();
    let mut both = two_cpu_lanes_and(small_accelerator());
    both.config.queue.capacity = 4_096;
    let mut processors = both.clone();
    processors.lanes.truncate(2);
    let mut accelerator = both.clone();
    accelerator.lanes.drain(..2);
    let (both, processors, accelerator) = (
        throughput_of(&both),
        throughput_of(&processors),
        throughput_of(&accelerator),
    );
    assert!(
        both > 0.95 * (processors + accelerator),
        "{both} of {processors} and {accelerator}"
    );
}

#[test]
fn load_of_other_messages_hardly_delays_immediate_ones() {
    let immediate = Bursts {
        priority: Priority::IMMEDIATE,
        ..stream(200.0)
    }
    .trace(parameters(2.0, 0));
    let plan = two_cpu_lanes_and(small_accelerator());
    let p0_p99 = |load: f64| {
        let others = stream(load * 190e3).trace(parameters(2.0, 1_000));
        let report = run(&plan, &merge([immediate.clone(), others]), PolicyKind::Adaptive);
        assert_eq!(report.counters.demoted, 0);
        report.valid.quantile(Priority::IMMEDIATE, 0.99).as_secs_f64()
    };
    let (idle, loaded) = (p0_p99(0.001), p0_p99(0.95));
    // At most one slice precedes the message.
    assert!(loaded <= idle + 130e-6, "{idle} s idle, {loaded} s loaded");
}

/// Runs the traffic of genuine vehicles alone, and with a flood that begins after 0.2 s. Returns both reports.
fn under_flood(plan: &Simulation, flood: Flood) -> (Report, Report) {
    let genuine = Crossroads {
        vehicles: 2_000,
        immediate: 0.02,
    }
    .trace(parameters(1.0, 0));
    let mut flood = flood.trace(parameters(0.8, 1 << 32));
    flood.iter_mut().for_each(|record| record.arrival_us += 200_000);
    let baseline = run(plan, &genuine, PolicyKind::Adaptive);
    let flooded = run(plan, &merge([genuine, flood]), PolicyKind::Adaptive);
    (baseline, flooded)
}

#[test]
fn false_immediates_of_one_source_do_not_delay_others() {
    let plan = two_cpu_lanes_and(h200());
    let flood = Flood {
        sources: 1,
        per_s: 200_000.0,
        priority: Priority::IMMEDIATE,
    };
    let (baseline, flooded) = under_flood(&plan, flood);
    println!("{}{}", baseline.text(), flooded.text());
    let [before, after] =
        [&baseline, &flooded].map(|report| report.valid.quantile(Priority::IMMEDIATE, 0.99));
    assert!(
        after <= before + plan.config.slice.times(3),
        "{before:?} became {after:?}"
    );
    assert!(flooded.counters.demoted > 100_000);
    assert_eq!(
        flooded.valid.missed_deadlines(Priority::IMMEDIATE),
        baseline.valid.missed_deadlines(Priority::IMMEDIATE)
    );
}

#[test]
fn false_immediates_of_invented_sources_do_not_delay_known_ones() {
    let plan = two_cpu_lanes_and(h200());
    let flood = Flood {
        sources: 1 << 40,
        per_s: 200_000.0,
        priority: Priority::IMMEDIATE,
    };
    let (baseline, flooded) = under_flood(&plan, flood);
    let [before, after] =
        [&baseline, &flooded].map(|report| report.valid.quantile(Priority::IMMEDIATE, 0.99));
    assert!(
        after <= before + plan.config.slice.times(3),
        "{before:?} became {after:?}"
    );
}

#[test]
fn nine_tenths_of_invalid_messages_cost_little_goodput_below_capacity() {
    let plan = two_cpu_lanes_and(h200());
    let flood = Flood {
        sources: 1 << 40,
        per_s: 180_000.0,
        priority: Priority::URGENT,
    };
    let (baseline, flooded) = under_flood(&plan, flood);
    assert!(
        flooded.goodput() > 0.99 * baseline.goodput(),
        "{} of {}",
        flooded.goodput(),
        baseline.goodput()
    );
    assert_eq!(flooded.counters.rejected, flooded.invalid.count(Priority::URGENT));
}

#[test]
fn a_flood_beyond_capacity_is_shed_by_source() {
    // Without an accelerator, ten flooding sources offer three times the capacity of the CPU lanes.
    let mut plan = two_cpu_lanes_and(small_accelerator());
    plan.lanes.truncate(2);
    plan.config.queue.capacity = 4_000;
    plan.config.queue.share_max = 200;
    plan.budgets = PerPriority::from_fn(|_| Budget {
        deadline: Span::from_millis(50),
        expires: Span::MAX,
    });
    let (baseline, flooded) = under_flood(
        &plan,
        Flood {
            sources: 10,
            per_s: 400_000.0,
            priority: Priority::URGENT,
        },
    );
    assert!(
        flooded.goodput() > 0.98 * baseline.goodput(),
        "{} of {}",
        flooded.goodput(),
        baseline.goodput()
    );
    assert!(flooded.counters.shed.of(ShedReason::SourceShare) > 100_000);
    assert_eq!(flooded.counters.shed.of(ShedReason::QueueFull), 0);
}

#[test]
fn overload_sheds_jobs_and_the_others_meet_their_deadlines() {
    let mut plan = two_cpu_lanes_and(small_accelerator());
    plan.config.queue.capacity = 800;
    let report = run(
        &plan,
        &stream(600e3).trace(parameters(0.5, 0)),
        PolicyKind::Adaptive,
    );
    assert!(report.counters.shed.of(ShedReason::QueueFull) > 100_000);
    assert_eq!(report.deadline_miss_ratio(), 0.0, "{}", report.text());
    assert!(report.goodput() > 170e3, "{}", report.text());
}

#[test]
fn a_lost_accelerator_costs_time_and_no_message() {
    let plan = two_cpu_lanes_and(h200().with_outage(at_ms(101), at_ms(350)));
    let trace = stream(180e3).trace(parameters(0.6, 0));
    let report = run(&plan, &trace, PolicyKind::Adaptive);
    assert!(report.counters.returned > 0 && report.counters.lanes_lost == 1);
    assert_eq!(report.counters.probes, 2, "after 100 and 300 ms");
    assert_eq!(
        report.counters.done() + report.counters.shed.total(),
        report.offered
    );
    assert!(report.counters.accepted > 90_000);
}

#[test]
fn masks_are_refilled_while_the_accelerator_is_idle() {
    let mut plan = two_cpu_lanes_and(h200());
    plan.config.masks = Some(MaskLimits {
        sign: Class::RA_SIGN,
        plain: Class::RSA_SIGN,
        refill: Class::MASK_REFILL,
        low: 2_000,
        high: 10_000,
        stock: 0,
        slice: Span::from_millis(8),
    });
    let sign = TrafficParameters {
        class: Class::RA_SIGN,
        ..parameters(1.0, 0)
    };
    let signing = run(&plan, &stream(20e3).trace(sign), PolicyKind::Adaptive);
    let Counts { plain, made } = counts(&signing);
    assert!(plain < 400, "only at the start: {plain}");
    assert!((signing.counters.accepted..signing.counters.accepted + 10_001).contains(&(made + plain)));
    plan.lanes.truncate(2);
    let without_masks = run(&plan, &stream(20e3).trace(sign), PolicyKind::Adaptive);
    assert_eq!(
        counts(&without_masks).plain,
        without_masks.counters.accepted,
        "no lane makes masks"
    );
}

struct Counts {
    plain: u64,
    made: u64,
}

fn counts(report: &Report) -> Counts {
    Counts {
        plain: report.counters.signed_unmasked,
        made: report.counters.masks_made,
    }
}

/// A policy that never starts a batch.
struct WaitForeverPolicy;

impl Policy for WaitForeverPolicy {
    fn name(&self) -> &'static str {
        "never"
    }

    fn choose(&mut self, _: &PolicyInput) -> PolicyDecision {
        PolicyDecision::Wait {
            until: Time::NEVER,
            additional_jobs: usize::MAX,
        }
    }
}

#[test]
fn no_policy_can_delay_work_indefinitely() {
    let mut plan = two_cpu_lanes_and(h200());
    plan.lanes.drain(..2);
    let report = plan
        .run(
            &stream(5_000.0).trace(parameters(0.2, 0)),
            Box::new(WaitForeverPolicy),
        )
        .unwrap();
    assert!(report.counters.waits_timed_out > 50);
    let longest = plan.config.wait_max + Span::from_millis(3);
    assert!(
        report.valid.quantile(Priority::URGENT, 1.0) < longest,
        "{}",
        report.text()
    );
}

#[test]
fn random_outages_lose_no_message() {
    seeds(12, |seed, choices| {
        let mut accelerator = small_accelerator();
        let mut begin = 0;
        for _ in 0..choices.below(5) {
            let from = begin + choices.below(100);
            begin = from + 1 + choices.below(60);
            accelerator = accelerator.with_outage(at_ms(from), at_ms(begin));
        }
        let plan = Simulation {
            seed,
            ..two_cpu_lanes_and(accelerator)
        };
        let trace = Bursts {
            burst: 2_000,
            bursts_per_s: 20.0,
            burst_s: 1e-3,
            ..stream(80e3)
        };
        let trace = trace.trace(TrafficParameters {
            seed,
            ..parameters(0.2, 0)
        });
        for policy_kind in PolicyKind::ALL {
            let report = run(&plan, &trace, policy_kind);
            assert_eq!(
                report.counters.done() + report.counters.shed.total(),
                report.offered
            );
        }
    });
}

#[test]
fn reports_have_all_results() {
    let plan = two_cpu_lanes_and(h200());
    let flood = Flood {
        sources: 9,
        per_s: 3_000.0,
        priority: Priority::new(4),
    }
    .trace(parameters(0.1, 1_000));
    let trace = merge([stream(50e3).trace(parameters(0.1, 0)), flood]);
    let text = run(&plan, &trace, PolicyKind::Adaptive).text();
    for part in [
        "adaptive: ",
        "priority 1 valid",
        "priority 4 invalid",
        "lane H200 (derived rates)",
        "rejected",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_eq!(table(&compare(&plan, &trace).unwrap()).lines().count(), 5);
}
