//! What waits for which key, what is never answered, and what a flood costs. Requests in a session: tests/attest.

use linewarden_protocol::attest::{AttestationKey, PeriodKey, Round};
use linewarden_protocol::ids::RoundNumber;
use linewarden_protocol::wire::PROOF_BYTES;
use zerocopy::IntoBytes as _;

use super::*;

const DEVICE: DeviceId = DeviceId(0xd1);
const HOME: GatewayId = GatewayId(7);
const H: ConfigurationHash = ConfigurationHash([3; 32]);

fn k() -> AttestationKey {
    AttestationKey::from_bytes([0x42; 32])
}

fn from(gateway: GatewayId) -> SocketAddr {
    SocketAddr::new([192, 0, 2, gateway.0 as u8].into(), 20_550)
}

fn round(gateway: GatewayId, period: u64, number: u32) -> Round {
    Round {
        gateway,
        number: RoundNumber(number),
        nonce: [number as u8; 8],
        start: PeriodStart {
            period: Period(period),
            salt: [period as u8; 8],
        },
    }
}

fn k2(start: &PeriodStart) -> PeriodKey {
    k().for_period(DEVICE, start, &H)
}

/// What the gateway expects.
fn proof(round: &Round) -> Vec<u8> {
    let proof = k2(&round.start).for_gateway(round.gateway).prove(round);
    let message = round.answer(DEVICE, proof).as_bytes().to_vec();
    assert_eq!(message.len(), PROOF_BYTES);
    message
}

struct Bench {
    answers: Answers,
    now_ms: u64,
}

impl Bench {
    /// In period 5.
    fn new() -> Self {
        Self {
            answers: Answers::new(DEVICE, Period(5), GatewayPolicy::ANY, RequestKeys::new([], true)),
            now_ms: 100_000,
        }
    }

    /// A request comes, with its right tag.
    fn ask(&mut self, round: &Round) -> Option<Reply> {
        let key = k().for_requests(DEVICE, round.gateway, round.start.period);
        let message = round.request_without_session(DEVICE, &key);
        let from = from(round.gateway);
        self.answers.receive(message.as_bytes(), from, None, self.now_ms)
    }

    /// Makes all request keys that are wanted.
    fn make_keys(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some(Wanted::RequestKey(gateway, period)) = self.answers.next(self.now_ms) {
            let key = k().for_requests(DEVICE, gateway, period);
            replies.extend(self.answers.key_made((gateway, period), key));
        }
        replies
    }

    fn make_period(&mut self, start: PeriodStart, took_ms: u64) -> Vec<Reply> {
        self.answers
            .period_made(start, k2(&start), H, took_ms, self.now_ms)
    }

    fn refused(&self, why: &str) -> u64 {
        self.answers.refusals().get(why).copied().unwrap_or_default()
    }
}

#[test]
fn a_request_waits_for_its_key_and_its_period_and_is_answered_where_it_came_from() {
    let mut bench = Bench::new();
    let first = round(HOME, 5, 1);
    assert!(bench.ask(&first).is_none());
    assert_eq!(
        bench.answers.next(bench.now_ms),
        Some(Wanted::RequestKey(HOME, Period(5)))
    );
    assert!(bench.make_keys().is_empty());
    assert_eq!(
        bench.answers.next(bench.now_ms),
        Some(Wanted::Period(first.start))
    );
    let replies = bench.make_period(first.start, 10);
    let [reply] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!((reply.to, &reply.proof), (from(HOME), &proof(&first)));
    let told = First {
        gateway: HOME,
        period: Period(5),
        h: H,
    };
    assert_eq!(reply.first, Some(told));
    // Of the next rounds nothing has to be made.
    let second = round(HOME, 5, 2);
    let reply = bench.ask(&second).unwrap();
    assert_eq!((reply.proof, reply.first), (proof(&second), None));
    assert_eq!(bench.answers.next(bench.now_ms), None);
    // Another gateway in the same period needs its own request key and nothing else.
    let other = round(GatewayId(8), 5, 9);
    assert!(bench.ask(&other).is_none());
    let replies = bench.make_keys();
    assert_eq!(replies[0].proof, proof(&other));
    assert_eq!(replies[0].first.unwrap().gateway, GatewayId(8));
    assert_eq!(bench.answers.refusals(), &Refusals::new());
}

#[test]
fn of_several_requests_of_a_new_period_only_the_newest_is_answered() {
    let mut bench = Bench::new();
    for number in 1..=3 {
        bench.ask(&round(HOME, 6, number));
        bench.make_keys();
    }
    let start = round(HOME, 6, 1).start;
    let replies = bench.make_period(start, 10);
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0].proof, proof(&round(HOME, 6, 3)));
    assert_eq!(bench.answers.period(), Period(6));
}

#[test]
fn what_a_later_round_has_overtaken_is_not_answered() {
    let mut bench = Bench::new();
    bench.ask(&round(HOME, 5, 1));
    bench.make_keys();
    bench.make_period(round(HOME, 5, 1).start, 10);
    // The next period's request waits, a later round of this one is answered.
    assert!(bench.ask(&round(HOME, 6, 2)).is_none());
    bench.make_keys();
    assert_eq!(
        bench.ask(&round(HOME, 5, 3)).unwrap().proof,
        proof(&round(HOME, 5, 3))
    );
    assert!(bench.make_period(round(HOME, 6, 2).start, 10).is_empty());
    assert_eq!(bench.refused("round_over"), 1);
    assert_eq!(
        bench.ask(&round(HOME, 6, 4)).unwrap().proof,
        proof(&round(HOME, 6, 4))
    );
}

#[test]
fn after_a_failure_nothing_is_answered_until_an_attempt_succeeds() {
    let mut bench = Bench::new();
    let start = round(HOME, 5, 1).start;
    for (number, pause_ms) in [1_000, 2_000, 4_000].into_iter().enumerate() {
        assert!(bench.ask(&round(HOME, 5, number as u32 + 1)).is_none());
        bench.make_keys();
        assert_eq!(bench.answers.next(bench.now_ms), Some(Wanted::Period(start)));
        let retry = bench.answers.period_failed(start, false, bench.now_ms);
        assert_eq!(retry, Some(pause_ms));
        bench.now_ms += pause_ms - 1;
        assert_eq!(bench.answers.next(bench.now_ms), None);
        assert_eq!(bench.answers.deadline(), Some(bench.now_ms + 1));
        bench.now_ms += 1;
    }
    assert_eq!(bench.answers.next(bench.now_ms), Some(Wanted::Period(start)));
    let replies = bench.make_period(start, 10);
    assert_eq!(replies[0].proof, proof(&round(HOME, 5, 3)));
}

#[test]
fn a_request_that_has_waited_for_a_minute_is_forgotten() {
    let mut bench = Bench::new();
    bench.ask(&round(HOME, 5, 1));
    bench.now_ms += WAIT_MS_MAX;
    assert_eq!(bench.answers.next(bench.now_ms), None);
    bench.ask(&round(HOME, 5, 2));
    bench.make_keys();
    bench.now_ms += WAIT_MS_MAX;
    assert_eq!(bench.answers.next(bench.now_ms), None);
    assert!(bench.make_period(round(HOME, 5, 2).start, 0).is_empty());
}

#[test]
fn in_a_period_whose_measurement_is_no_good_nothing_is_proven() {
    let mut bench = Bench::new();
    let bad = round(HOME, 5, 1).start;
    bench.ask(&round(HOME, 5, 1));
    bench.make_keys();
    assert_eq!(bench.answers.period_failed(bad, true, bench.now_ms), None);
    for number in 2..5 {
        assert!(bench.ask(&round(HOME, 5, number)).is_none());
    }
    assert_eq!(bench.answers.next(bench.now_ms), None);
    assert_eq!(bench.refused(NOT_MEASURED), 4);
    // The next period is another chance.
    bench.ask(&round(HOME, 6, 5));
    bench.make_keys();
    let start = round(HOME, 6, 5).start;
    assert_eq!(bench.answers.next(bench.now_ms), Some(Wanted::Period(start)));
}

#[test]
fn between_two_measurements_it_rests_as_long_as_one_took() {
    let mut bench = Bench::new();
    bench.ask(&round(HOME, 5, 1));
    bench.make_keys();
    bench.make_period(round(HOME, 5, 1).start, 3_000);
    bench.ask(&round(HOME, 6, 2));
    bench.make_keys();
    bench.now_ms += 2_999;
    assert_eq!(bench.answers.next(bench.now_ms), None);
    bench.now_ms += 1;
    assert!(bench.answers.next(bench.now_ms).is_some());
}

#[test]
fn wrong_tags_lead_to_no_measurement_and_strangers_to_few_keys() {
    let mut bench = Bench::new();
    let mut keys = 0;
    for n in 0..1_000u32 {
        let forged = round(GatewayId(n % 900 + 1), 5, n + 1);
        let wrong = RequestKey::from_bytes([9; 16]);
        let message = forged.request_without_session(DEVICE, &wrong);
        let from = from(HOME);
        assert!(
            bench
                .answers
                .receive(message.as_bytes(), from, None, bench.now_ms)
                .is_none()
        );
        bench.now_ms += 1;
        while let Some(wanted) = bench.answers.next(bench.now_ms) {
            let Wanted::RequestKey(gateway, period) = wanted else {
                panic!("{wanted:?}");
            };
            keys += 1;
            let key = k().for_requests(DEVICE, gateway, period);
            assert!(bench.answers.key_made((gateway, period), key).is_empty());
        }
    }
    assert_eq!(keys, 5, "four at once, and another within the second");
    assert_eq!(bench.refused(LIMITED) + bench.refused("wrong_tag"), 1_000);
    assert_eq!(bench.answers.period(), Period(5));
}

#[test]
fn what_is_refused_without_a_key_costs_none() {
    let pinned = GatewayPolicy::pinned(&[HOME]).unwrap();
    let mut bench = Bench {
        answers: Answers::new(DEVICE, Period(500), pinned, RequestKeys::new([], true)),
        ..Bench::new()
    };
    bench.ask(&round(GatewayId(8), 500, 1));
    bench.ask(&round(HOME, 498, 1));
    bench.ask(&round(HOME, 500, 0));
    let from = from(HOME);
    bench.answers.receive(b"hello", from, None, bench.now_ms);
    assert_eq!(bench.answers.next(bench.now_ms), None);
    let expected = [
        (OTHER_GATEWAY, 1),
        ("malformed", 1),
        ("period_over", 1),
        ("round_zero", 1),
    ];
    let refusals: Vec<_> = bench
        .answers
        .refusals()
        .iter()
        .map(|(why, count)| (*why, *count))
        .collect();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(refusals, expected);
}

#[test]
fn a_key_that_cannot_be_made_is_tried_again_later() {
    let mut bench = Bench::new();
    bench.ask(&round(HOME, 5, 1));
    assert!(bench.answers.next(bench.now_ms).is_some());
    assert_eq!(bench.answers.key_failed(bench.now_ms), 1_000);
    assert_eq!(bench.answers.next(bench.now_ms), None);
    assert_eq!(bench.answers.deadline(), Some(bench.now_ms + 1_000));
    bench.now_ms += 1_000;
    assert_eq!(
        bench.answers.next(bench.now_ms),
        Some(Wanted::RequestKey(HOME, Period(5)))
    );
}

/// Whoever has recorded a request must not make the device authenticate as often as he likes.
#[test]
fn only_a_new_request_under_the_request_key_says_that_there_is_no_session() {
    let mut bench = Bench::new();
    bench.ask(&round(HOME, 5, 1));
    assert_eq!(
        bench.answers.take_stranger(),
        None,
        "its tag was not looked at yet"
    );
    bench.make_keys();
    assert_eq!(bench.answers.take_stranger(), Some(HOME));
    assert_eq!(bench.answers.take_stranger(), None);
    bench.make_period(round(HOME, 5, 1).start, 10);
    assert!(bench.ask(&round(HOME, 5, 1)).is_some(), "a copy gets its proof");
    assert_eq!(bench.answers.take_stranger(), None);
    assert!(bench.ask(&round(HOME, 5, 2)).is_some());
    assert_eq!(bench.answers.take_stranger(), Some(HOME));
    for number in [1, 2, 1, 2] {
        bench.ask(&round(HOME, 5, number));
        assert_eq!(bench.answers.take_stranger(), None, "copies in turns");
    }
}
