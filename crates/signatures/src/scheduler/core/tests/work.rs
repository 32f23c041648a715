//! Who gets which work, and when.

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
fn immediate_jobs_go_to_the_processor_at_once_and_others_in_slices() {
    let mut rig = Rig::pair();
    rig.submit_many(1, 8);
    assert_eq!(rig.on(CPU).len(), 8, "an idle processor takes a slice");
    rig.submit_many(4, 10);
    assert!(rig.on(GPU).is_empty(), "not more than tau");
    let late = rig.submit([meta(0, 1)]);
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(rig.on(CPU), late, "before all others, and alone");
    rig.submit_many(7, 1);
    assert_eq!(rig.on(GPU).len(), 11, "more than tau: all");
}

#[test]
fn a_reserved_processor_waits_for_immediate_jobs_unless_nobody_else_works() {
    let reserved = LaneSpec {
        kind: LaneKind::Reserved,
        ..cpu()
    };
    let mut rig = Rig::new(Config::default(), vec![cpu(), gpu(), reserved], tau(10));
    rig.submit_many(1, 30);
    let third = LaneId(2);
    assert!(rig.on(third).is_empty());
    let immediate = rig.submit_many(0, 1);
    assert_eq!(rig.on(third), immediate);
    rig.finish(third, Outcome::Accepted);
    let back = rig.on(CPU);
    rig.lose(GPU);
    rig.lose(CPU);
    assert_eq!(rig.on(third), back, "what was lost");
}

#[test]
fn many_immediate_jobs_do_not_starve_others() {
    let mut config = Config {
        immediate_in_a_row: 5,
        ..Config::default()
    };
    config.quotas.strangers.burst = 100_000;
    let mut rig = Rig::new(config, vec![cpu()], tau(10));
    rig.submit_many(0, 8);
    let [other] = rig.submit_many(7, 1)[..] else {
        panic!()
    };
    let mut batches = 0;
    while !rig.left.contains_key(&other) {
        rig.submit((0..16).map(|at| meta(0, 1_000 + 16 * batches + at)));
        rig.finish(CPU, Outcome::Accepted);
        batches += 1;
    }
    assert_eq!(batches, 6);
}

#[test]
fn a_short_queue_never_waits_for_ever() {
    let policies: [Box<dyn Policy>; 3] = [
        tau(1_000_000),
        Box::new(FixedBatch::new(1_000)),
        Box::new(DelayBounded::new(1_000, Span::MAX)),
    ];
    for policy in policies {
        let mut rig = Rig::new(Config::default(), vec![gpu()], policy);
        let only = LaneId(0);
        let begin = rig.now;
        rig.submit_many(3, 2);
        assert!(rig.on(only).is_empty());
        rig.ring();
        assert_eq!(
            (rig.on(only).len(), rig.now.since(begin)),
            (2, Config::default().wait_max)
        );
        assert_eq!(rig.core.counters().waits_ended, 1);
    }
}

#[test]
fn a_delay_is_the_policys_own() {
    let policy = Box::new(DelayBounded::new(100, Span::from_micros(700)));
    let mut rig = Rig::new(Config::default(), vec![gpu()], policy);
    let begin = rig.now;
    rig.submit_many(3, 2);
    rig.pass(Span::from_micros(200));
    rig.submit_many(3, 3);
    rig.ring();
    assert_eq!(
        (rig.on(LaneId(0)).len(), rig.now.since(begin)),
        (5, Span::from_micros(700))
    );
    rig.submit_many(3, 250);
    rig.finish(LaneId(0), Outcome::Accepted);
    assert_eq!(rig.on(LaneId(0)).len(), 100);
}

#[test]
fn the_core_says_from_how_many_on_it_wants_to_know() {
    let mut rig = Rig::pair();
    let both = Attention {
        immediate: Some(CPU),
        other: Some((CPU, 1)),
    };
    assert_eq!(rig.core.attention(), both);
    rig.submit_many(1, 1);
    assert_eq!(
        rig.core.attention(),
        Attention {
            immediate: None,
            other: Some((GPU, 11))
        }
    );
    rig.submit_many(1, 4);
    assert_eq!(
        rig.core.attention(),
        Attention {
            immediate: None,
            other: Some((GPU, 7))
        }
    );
    rig.submit_many(1, 7);
    assert_eq!(rig.core.attention(), Attention::default(), "both work");
    rig.lose(CPU);
    rig.finish(GPU, Outcome::Accepted);
    assert_eq!(rig.core.attention(), Attention::default(), "what was lost");
    rig.finish(GPU, Outcome::Accepted);
    assert_eq!(
        rig.core.attention(),
        Attention {
            immediate: Some(GPU),
            other: Some((GPU, 1))
        }
    );
}

#[test]
fn batches_are_of_one_class_and_the_most_urgent_one_is_first() {
    let other = Class::RSA_VERIFY;
    let line = Line::new(Span::ZERO, 100e3);
    let mut rig = Rig::new(
        Config::default(),
        vec![cpu().with(other, line), gpu().with(other, line)],
        tau(2),
    );
    rig.submit_many(1, 8);
    rig.submit((0..20).map(|at| Meta {
        class: if at % 2 == 0 { CLASS } else { other },
        ..meta(2 + at as u8 % 2, at)
    }));
    assert!(rig.on(GPU).iter().all(|job| job % 2 == 0));
    assert_eq!(rig.on(GPU).len(), 10);
    rig.finish(CPU, Outcome::Accepted);
    assert!(rig.on(CPU).iter().all(|job| job % 2 == 1));
}

#[test]
fn masks_are_made_when_nothing_else_is_to_do_and_without_one_is_signed_plainly() {
    let masks = mask_limits();
    let ms = |jobs_per_ms: f64| Line::new(Span::ZERO, jobs_per_ms * 1e3);
    let signer = LaneSpec::new("cpu", LaneKind::Cpu)
        .with(masks.sign, ms(100.0))
        .with(masks.plain, ms(10.0));
    let maker = gpu().with(masks.refill, ms(1.0)).refilling();
    let config = Config {
        masks: Some(masks),
        ..Config::default()
    };
    let mut rig = Rig::new(config, vec![signer, maker], tau(10));
    let sign = |rig: &mut Rig, count| {
        let jobs = rig.submit((0..count).map(|at| Meta {
            class: masks.sign,
            ..meta(1, at)
        }));
        let Some(Start::Run(batch)) = rig.given.get(&CPU) else {
            panic!("not signing")
        };
        (jobs.len(), batch.len(), batch.class)
    };
    assert!(
        matches!(rig.given[&GPU], Start::Refill(16)),
        "a slice of what one takes"
    );
    assert_eq!(sign(&mut rig, 1), (1, 1, masks.plain), "the pool is dry");
    assert_eq!(rig.core.counters().signed_plainly, 1);
    rig.finish(CPU, Outcome::Accepted);

    rig.submit_many(1, 50);
    assert!(
        matches!(rig.given[&GPU], Start::Refill(16)),
        "what was begun is ended"
    );
    rig.finish(GPU, Outcome::Accepted);
    assert_eq!(rig.on(GPU).len(), 50, "but work goes first");
    rig.finish(GPU, Outcome::Accepted);
    rig.finish(GPU, Outcome::Accepted);
    assert!(matches!(rig.given[&GPU], Start::Refill(8)), "up to high");
    rig.finish(GPU, Outcome::Accepted);
    assert!(!rig.given.contains_key(&GPU), "and no further");
    assert_eq!(rig.core.mask_stock(), 40);

    assert_eq!(sign(&mut rig, 10), (10, 10, masks.sign));
    rig.finish(CPU, Outcome::Accepted);
    assert!(!rig.given.contains_key(&GPU), "30 are enough");
    for left in [20, 10, 0] {
        sign(&mut rig, 10);
        rig.finish(CPU, Outcome::Accepted);
        assert_eq!(rig.core.mask_stock(), left);
    }
    assert_eq!(sign(&mut rig, 4), (4, 1, masks.plain));
    rig.lose(GPU);
    rig.event(Event::MaskStock(2)).unwrap();
    rig.finish(CPU, Outcome::Accepted);
    assert!(matches!(&rig.given[&CPU], Start::Run(batch) if batch.class == masks.sign && batch.len() == 2));
    rig.finish_all();
    assert_eq!(rig.core.counters().signed_plainly, 3);
}

#[test]
fn what_is_drained_waits_for_nothing() {
    let mut rig = Rig::pair();
    rig.submit_many(1, 10);
    rig.lose(CPU);
    rig.core.drain();
    rig.event(Event::Timer).unwrap();
    rig.finish_all();
    assert!(rig.core.is_done());
    assert_eq!(rig.core.next_timer(), Time::NEVER, "lost lanes are let go");
}

#[test]
fn jobs_can_be_given_back() {
    let mut rig = Rig::pair();
    rig.lose(CPU);
    rig.lose(GPU);
    rig.submit_many(0, 3);
    rig.submit_many(5, 4);
    let mut jobs = Vec::new();
    rig.core.give_back(&mut jobs);
    assert_eq!(
        jobs.iter().map(|job| job.payload).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5, 6]
    );
    assert!(rig.core.is_done() && rig.core.is_balanced());
    assert_eq!(rig.core.counters().given_back, 7);
}

#[test]
fn a_slice_is_a_time_whatever_its_jobs_take() {
    let of = |work, source| Meta {
        work: work * ORDINARY_WORK,
        ..meta(1, source)
    };
    let mut rig = Rig::new(Config::default(), vec![cpu()], tau(10));
    rig.submit_many(1, 1);
    rig.submit((100..108).map(|source| of(3, source)));
    let [long, next] = rig.submit([of(40, 50), of(1, 51)])[..] else {
        panic!("two were submitted");
    };
    // Ten ordinary jobs a slice.
    for _ in 0..2 {
        rig.finish(CPU, Outcome::Accepted);
        assert_eq!(rig.on(CPU).len(), 3, "nine ordinary jobs' work");
    }
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(rig.on(CPU).len(), 2);
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(rig.on(CPU), [long], "alone, since it takes longer than a slice");
    rig.finish(CPU, Outcome::Accepted);
    assert_eq!(rig.on(CPU), [next]);
    // An immediate message of a known sender waits for no more than that.
    rig.finish_all();
    rig.submit((200..300).map(|source| of(3, source)));
    rig.submit([meta(0, 51)]);
    rig.finish(CPU, Outcome::Rejected);
    assert_eq!(rig.on(CPU).len(), 1);
    assert_eq!(rig.core.counters().demoted, 0);
}

#[test]
fn known_senders_and_strangers_share_a_lane_three_to_one() {
    let mut rig = Rig::new(Config::default(), vec![cpu()], tau(10));
    rig.submit([meta(1, 1)]);
    rig.finish_all();
    let strangers = rig.submit((0..400).map(|number| meta(1, 100 + number % 4)));
    let known = rig.submit((0..400).map(|_| meta(7, 1)));
    let mut of_strangers = 0;
    for _ in 0..40 {
        of_strangers += rig.on(CPU).iter().filter(|job| strangers.contains(job)).count();
        rig.finish(CPU, Outcome::Rejected);
    }
    let done = rig.left.len() - 1;
    assert!(
        (done / 4).abs_diff(of_strangers) <= 16,
        "{of_strangers} of {done}"
    );
    assert!(known.iter().any(|job| rig.left.contains_key(job)));
}
