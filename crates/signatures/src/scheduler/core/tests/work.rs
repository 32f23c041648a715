//! Assignment of work to lanes, and its timing.

use super::super::super::job::{Meta, ORDINARY_WORK};
use super::super::super::masks::MaskLimits;
use super::super::super::policy::{DelayBounded, FixedBatch};
use super::super::*;
use super::rig::*;

pub fn mask_limits() -> MaskLimits {
    MaskLimits {
        sign: Class::RA_SIGN,
        plain: Class::RSA_SIGN,
        refill: Class::MASK_REFILL,
        low: 10,
        high: 40,
        stock: 0,
        slice: Span::from_millis(16),
    }
}

#[test]
fn immediate_jobs_go_to_a_cpu_lane_at_once_and_other_jobs_in_slices() {
    let mut rig = Rig::pair();
    rig.submit_many(1, 8);
    assert_eq!(rig.batch_on(CPU).len(), 8, "an idle CPU lane takes a slice");
    rig.submit_many(4, 10);
    assert!(rig.batch_on(GPU).is_empty(), "not more than tau");
    let immediate = rig.submit([meta(0, 1)]);
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(rig.batch_on(CPU), immediate, "before all others, and alone");
    rig.submit_many(7, 1);
    assert_eq!(rig.batch_on(GPU).len(), 11, "more than tau: all");
}

#[test]
fn a_reserved_cpu_lane_waits_for_immediate_jobs_unless_no_other_lane_works() {
    let reserved = LaneSpec {
        kind: LaneKind::Reserved,
        ..cpu()
    };
    let mut rig = Rig::new(Config::default(), vec![cpu(), gpu(), reserved], tau(10));
    rig.submit_many(1, 30);
    let reserved_lane = LaneId(2);
    assert!(rig.batch_on(reserved_lane).is_empty());
    let immediate = rig.submit_many(0, 1);
    assert_eq!(rig.batch_on(reserved_lane), immediate);
    rig.finish(reserved_lane, Outcome::Accepted);
    let lost_jobs = rig.batch_on(CPU);
    rig.lose(GPU);
    rig.lose(CPU);
    assert_eq!(rig.batch_on(reserved_lane), lost_jobs, "jobs of the lost batch");
}

#[test]
fn many_immediate_jobs_do_not_starve_others() {
    let mut config = Config {
        immediate_in_a_row: 5,
        ..Config::default()
    };
    config.quotas.unknown_senders.burst = 100_000;
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    rig.submit_many(0, 8);
    let [other_job] = rig.submit_many(7, 1)[..] else {
        panic!()
    };
    let mut batches = 0;
    while !rig.departures.contains_key(&other_job) {
        rig.submit((0..16).map(|index| meta(0, 1_000 + 16 * batches + index)));
        rig.finish(CPU, Outcome::Accepted);
        batches += 1;
    }
    assert_eq!(batches, 6);
}

#[test]
fn a_short_queue_never_waits_forever() {
    let policies: [Box<dyn Policy>; 3] = [
        tau(1_000_000),
        Box::new(FixedBatch::new(1_000)),
        Box::new(DelayBounded::new(1_000, Span::MAX)),
    ];
    for policy in policies {
        let mut rig = Rig::new(Config::default(), vec![gpu()], policy);
        let lane = LaneId(0);
        let begin = rig.now;
        rig.submit_many(3, 2);
        assert!(rig.batch_on(lane).is_empty());
        rig.trigger_timer();
        assert_eq!(
            (rig.batch_on(lane).len(), rig.now.saturating_since(begin)),
            (2, Config::default().wait_max)
        );
        assert_eq!(rig.core.counters().waits_timed_out, 1);
    }
}

#[test]
fn a_delay_follows_the_policy() {
    let policy = Box::new(DelayBounded::new(100, Span::from_micros(700)));
    let mut rig = Rig::new(Config::default(), vec![gpu()], policy);
    let begin = rig.now;
    rig.submit_many(3, 2);
    rig.advance_time(Span::from_micros(200));
    rig.submit_many(3, 3);
    rig.trigger_timer();
    assert_eq!(
        (rig.batch_on(LaneId(0)).len(), rig.now.saturating_since(begin)),
        (5, Span::from_micros(700))
    );
    rig.submit_many(3, 250);
    rig.finish(LaneId(0), Outcome::Accepted);
    assert_eq!(rig.batch_on(LaneId(0)).len(), 100);
}

#[test]
fn wake_conditions_contain_the_number_of_arrivals_that_wakes_a_lane() {
    let mut rig = Rig::pair();
    let expected = WakeConditions {
        immediate: Some(CPU),
        other: Some((CPU, 1)),
    };
    assert_eq!(rig.core.wake_conditions(), expected);
    rig.submit_many(1, 1);
    assert_eq!(
        rig.core.wake_conditions(),
        WakeConditions {
            immediate: None,
            other: Some((GPU, 11))
        }
    );
    rig.submit_many(1, 4);
    assert_eq!(
        rig.core.wake_conditions(),
        WakeConditions {
            immediate: None,
            other: Some((GPU, 7))
        }
    );
    rig.submit_many(1, 7);
    assert_eq!(
        rig.core.wake_conditions(),
        WakeConditions::default(),
        "both lanes are busy"
    );
    rig.lose(CPU);
    rig.finish(GPU, Outcome::Accepted);
    assert_eq!(
        rig.core.wake_conditions(),
        WakeConditions::default(),
        "the GPU lane has the job of the lost batch"
    );
    rig.finish(GPU, Outcome::Accepted);
    assert_eq!(
        rig.core.wake_conditions(),
        WakeConditions {
            immediate: Some(GPU),
            other: Some((GPU, 1))
        }
    );
}

#[test]
fn batches_have_one_class_and_the_most_urgent_class_is_first() {
    let other_class = Class::RSA_VERIFY;
    let cost_model = CostModel::new(Span::ZERO, 100e3);
    let mut rig = Rig::new(
        Config::default(),
        vec![
            cpu().with_class(other_class, cost_model),
            gpu().with_class(other_class, cost_model),
        ],
        tau(2),
    );
    rig.submit_many(1, 8);
    rig.submit((0..20).map(|index| Meta {
        class: if index % 2 == 0 { CLASS } else { other_class },
        ..meta(2 + index as u8 % 2, index)
    }));
    assert!(rig.batch_on(GPU).iter().all(|job| job % 2 == 0));
    assert_eq!(rig.batch_on(GPU).len(), 10);
    rig.finish(CPU, Outcome::Accepted);
    assert!(rig.batch_on(CPU).iter().all(|job| job % 2 == 1));
}

#[test]
fn idle_lanes_make_masks_and_jobs_without_a_mask_are_signed_without() {
    let masks = mask_limits();
    let cost_model = |jobs_per_ms: f64| CostModel::new(Span::ZERO, jobs_per_ms * 1e3);
    let signer = LaneSpec::new("cpu", LaneKind::Cpu)
        .with_class(masks.sign, cost_model(100.0))
        .with_class(masks.plain, cost_model(10.0));
    let mask_maker = gpu().with_class(masks.refill, cost_model(1.0)).with_refill();
    let config = Config {
        masks: Some(masks),
        ..Config::default()
    };
    let mut rig = Rig::new(config, vec![signer, mask_maker], tau(10));
    let sign = |rig: &mut Rig, count| {
        let jobs = rig.submit((0..count).map(|index| Meta {
            class: masks.sign,
            ..meta(1, index)
        }));
        let Some(LaneTask::Run(batch)) = rig.tasks.get(&CPU) else {
            panic!("not signing")
        };
        (jobs.len(), batch.len(), batch.class)
    };
    assert!(
        matches!(rig.tasks[&GPU], LaneTask::Refill(16)),
        "limited by the slice"
    );
    assert_eq!(sign(&mut rig, 1), (1, 1, masks.plain), "the pool is empty");
    assert_eq!(rig.core.counters().signed_unmasked, 1);
    rig.finish(CPU, Outcome::Accepted);

    rig.submit_many(1, 50);
    assert!(
        matches!(rig.tasks[&GPU], LaneTask::Refill(16)),
        "a started refill is completed"
    );
    rig.finish(GPU, Outcome::Accepted);
    assert_eq!(rig.batch_on(GPU).len(), 50, "but jobs take precedence");
    rig.finish(GPU, Outcome::Accepted);
    rig.finish(GPU, Outcome::Accepted);
    assert!(
        matches!(rig.tasks[&GPU], LaneTask::Refill(8)),
        "refill up to the high mark"
    );
    rig.finish(GPU, Outcome::Accepted);
    assert!(!rig.tasks.contains_key(&GPU), "no refill above the high mark");
    assert_eq!(rig.core.mask_stock(), 40);

    assert_eq!(sign(&mut rig, 10), (10, 10, masks.sign));
    rig.finish(CPU, Outcome::Accepted);
    assert!(!rig.tasks.contains_key(&GPU), "30 masks suffice");
    for stock in [20, 10, 0] {
        sign(&mut rig, 10);
        rig.finish(CPU, Outcome::Accepted);
        assert_eq!(rig.core.mask_stock(), stock);
    }
    assert_eq!(sign(&mut rig, 4), (4, 1, masks.plain));
    rig.lose(GPU);
    rig.event(Event::MaskStock(2)).unwrap();
    rig.finish(CPU, Outcome::Accepted);
    assert!(
        matches!(&rig.tasks[&CPU], LaneTask::Run(batch) if batch.class == masks.sign && batch.len() == 2)
    );
    rig.finish_all();
    assert_eq!(rig.core.counters().signed_unmasked, 3);
}

#[test]
fn draining_does_not_wait_for_more_jobs() {
    let mut rig = Rig::pair();
    rig.submit_many(1, 10);
    rig.lose(CPU);
    rig.core.drain();
    rig.event(Event::Timer).unwrap();
    rig.finish_all();
    assert!(rig.core.is_done());
    assert_eq!(rig.core.next_timer(), Time::NEVER, "lost lanes are not probed");
}

#[test]
fn jobs_can_be_returned() {
    let mut rig = Rig::pair();
    rig.lose(CPU);
    rig.lose(GPU);
    rig.submit_many(0, 3);
    rig.submit_many(5, 4);
    let mut jobs = Vec::new();
    rig.core.return_jobs(&mut jobs);
    assert_eq!(
        jobs.iter().map(|job| job.payload).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5, 6]
    );
    assert!(rig.core.is_done() && rig.core.is_balanced());
    assert_eq!(rig.core.counters().unfinished, 7);
}

#[test]
fn slice_length_is_independent_of_the_job_duration() {
    let meta_with_work = |work, source| Meta {
        work: work * ORDINARY_WORK,
        ..meta(1, source)
    };
    let mut rig = Rig::new(Config::default(), vec![cpu()], tau(10));
    rig.submit_many(1, 1);
    rig.submit((100..108).map(|source| meta_with_work(3, source)));
    let [long, next] = rig.submit([meta_with_work(40, 50), meta_with_work(1, 51)])[..] else {
        panic!("two were submitted");
    };
    // Ten ordinary jobs per slice.
    for _ in 0..2 {
        rig.finish(CPU, Outcome::Accepted);
        assert_eq!(rig.batch_on(CPU).len(), 3, "nine ordinary jobs' work");
    }
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(rig.batch_on(CPU).len(), 2);
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(
        rig.batch_on(CPU),
        [long],
        "alone, since the job takes longer than a slice"
    );
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(rig.batch_on(CPU), [next]);
    // An immediate message of a known sender waits for at most one slice.
    rig.finish_all();
    rig.submit((200..300).map(|source| meta_with_work(3, source)));
    rig.submit([meta(0, 51)]);
    rig.finish(CPU, Outcome::Rejected);
    assert_eq!(rig.batch_on(CPU).len(), 1);
    assert_eq!(rig.core.counters().demoted, 0);
}

#[test]
fn known_and_unknown_senders_share_a_lane_three_to_one() {
    let mut rig = Rig::new(Config::default(), vec![cpu()], tau(10));
    rig.submit([meta(1, 1)]);
    rig.finish_all();
    let unknown = rig.submit((0..400).map(|number| meta(1, 100 + number % 4)));
    let known = rig.submit((0..400).map(|_| meta(7, 1)));
    let mut done_unknown = 0;
    for _ in 0..40 {
        done_unknown += rig
            .batch_on(CPU)
            .iter()
            .filter(|job| unknown.contains(job))
            .count();
        rig.finish(CPU, Outcome::Rejected);
    }
    let done = rig.departures.len() - 1;
    assert!(
        (done / 4).abs_diff(done_unknown) <= 16,
        "{done_unknown} of {done}"
    );
    assert!(known.iter().any(|job| rig.departures.contains_key(job)));
}
