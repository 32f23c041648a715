//! Tests of waiting requests, rejected requests and floods. Requests in a session: tests/all/attest.

use linewarden_protocol::attest::{AttestationKey, PeriodKey, Round};
use linewarden_protocol::ids::RoundNumber;
use linewarden_protocol::wire::PROOF_BYTES;
use zerocopy::IntoBytes as _;

use super::*;

const DEVICE: DeviceId = DeviceId(0xd1);
const GATEWAY: GatewayId = GatewayId(7);
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

/// The proof that the gateway expects.
fn proof(round: &Round) -> Vec<u8> {
    let proof = k2(&round.start).for_gateway(round.gateway).prove(round);
    let message = round.proof_message(DEVICE, proof).as_bytes().to_vec();
    assert_eq!(message.len(), PROOF_BYTES);
    message
}

struct Fixture {
    responder: Responder,
    now_ms: u64,
}

impl Fixture {
    /// A responder in period 5.
    fn new() -> Self {
        Self {
            responder: Responder::new(DEVICE, Period(5), GatewayPolicy::ANY, RequestKeys::new([], true)),
            now_ms: 100_000,
        }
    }

    /// Receives a request with a valid tag.
    fn send_request(&mut self, round: &Round) -> Option<ProofReply> {
        let key = k().for_requests(DEVICE, round.gateway, round.start.period);
        let message = round.request_without_session(DEVICE, &key);
        let from = from(round.gateway);
        self.responder
            .receive(message.as_bytes(), from, None, self.now_ms)
    }

    /// Makes all requested request keys.
    fn make_keys(&mut self) -> Vec<ProofReply> {
        let mut replies = Vec::new();
        while let Some(KeyJob::RequestKey(gateway, period)) = self.responder.next_job(self.now_ms) {
            let key = k().for_requests(DEVICE, gateway, period);
            replies.extend(self.responder.request_key_ready((gateway, period), key));
        }
        replies
    }

    fn make_period(&mut self, start: PeriodStart, measurement_ms: u64) -> Vec<ProofReply> {
        self.responder
            .period_key_ready(start, k2(&start), H, measurement_ms, self.now_ms)
    }

    fn refused(&self, reason: &str) -> u64 {
        self.responder
            .rejections()
            .get(reason)
            .copied()
            .unwrap_or_default()
    }
}

#[test]
fn a_request_waits_for_its_keys_and_the_proof_returns_to_its_sender() {
    let mut fixture = Fixture::new();
    let first = round(GATEWAY, 5, 1);
    assert!(fixture.send_request(&first).is_none());
    assert_eq!(
        fixture.responder.next_job(fixture.now_ms),
        Some(KeyJob::RequestKey(GATEWAY, Period(5)))
    );
    assert!(fixture.make_keys().is_empty());
    assert_eq!(
        fixture.responder.next_job(fixture.now_ms),
        Some(KeyJob::Period(first.start))
    );
    let replies = fixture.make_period(first.start, 10);
    let [reply] = &replies[..] else {
        panic!("{replies:?}")
    };
    assert_eq!((reply.to, &reply.proof), (from(GATEWAY), &proof(&first)));
    let first_proof = FirstProof {
        gateway: GATEWAY,
        period: Period(5),
        h: H,
    };
    assert_eq!(reply.first_proof, Some(first_proof));
    // Further rounds of the period need no key.
    let second = round(GATEWAY, 5, 2);
    let reply = fixture.send_request(&second).unwrap();
    assert_eq!((reply.proof, reply.first_proof), (proof(&second), None));
    assert_eq!(fixture.responder.next_job(fixture.now_ms), None);
    // Another gateway in the same period only needs its own request key.
    let other = round(GatewayId(8), 5, 9);
    assert!(fixture.send_request(&other).is_none());
    let replies = fixture.make_keys();
    assert_eq!(replies[0].proof, proof(&other));
    assert_eq!(replies[0].first_proof.unwrap().gateway, GatewayId(8));
    assert_eq!(fixture.responder.rejections(), &Rejections::new());
}

#[test]
fn only_the_newest_request_of_a_new_period_is_answered() {
    let mut fixture = Fixture::new();
    for number in 1..=3 {
        fixture.send_request(&round(GATEWAY, 6, number));
        fixture.make_keys();
    }
    let start = round(GATEWAY, 6, 1).start;
    let replies = fixture.make_period(start, 10);
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0].proof, proof(&round(GATEWAY, 6, 3)));
    assert_eq!(fixture.responder.period(), Period(6));
}

#[test]
fn a_request_older_than_an_answered_round_is_not_answered() {
    let mut fixture = Fixture::new();
    fixture.send_request(&round(GATEWAY, 5, 1));
    fixture.make_keys();
    fixture.make_period(round(GATEWAY, 5, 1).start, 10);
    // A request of the next period waits, and a later round of the present period is answered.
    assert!(fixture.send_request(&round(GATEWAY, 6, 2)).is_none());
    fixture.make_keys();
    assert_eq!(
        fixture.send_request(&round(GATEWAY, 5, 3)).unwrap().proof,
        proof(&round(GATEWAY, 5, 3))
    );
    assert!(fixture.make_period(round(GATEWAY, 6, 2).start, 10).is_empty());
    assert_eq!(fixture.refused("stale_round"), 1);
    assert_eq!(
        fixture.send_request(&round(GATEWAY, 6, 4)).unwrap().proof,
        proof(&round(GATEWAY, 6, 4))
    );
}

#[test]
fn after_a_failure_proofs_wait_for_a_successful_attempt() {
    let mut fixture = Fixture::new();
    let start = round(GATEWAY, 5, 1).start;
    // Half of the longest delay, because the random number is 0.
    for (number, pause_ms) in [500, 1_000, 2_000].into_iter().enumerate() {
        assert!(
            fixture
                .send_request(&round(GATEWAY, 5, number as u32 + 1))
                .is_none()
        );
        fixture.make_keys();
        assert_eq!(
            fixture.responder.next_job(fixture.now_ms),
            Some(KeyJob::Period(start))
        );
        let retry = fixture
            .responder
            .period_key_failed(start, false, fixture.now_ms, 0);
        assert_eq!(retry, Some(pause_ms));
        fixture.now_ms += pause_ms - 1;
        assert_eq!(fixture.responder.next_job(fixture.now_ms), None);
        assert_eq!(fixture.responder.deadline(), Some(fixture.now_ms + 1));
        fixture.now_ms += 1;
    }
    assert_eq!(
        fixture.responder.next_job(fixture.now_ms),
        Some(KeyJob::Period(start))
    );
    let replies = fixture.make_period(start, 10);
    assert_eq!(replies[0].proof, proof(&round(GATEWAY, 5, 3)));
}

#[test]
fn a_request_expires_after_a_minute() {
    let mut fixture = Fixture::new();
    fixture.send_request(&round(GATEWAY, 5, 1));
    fixture.now_ms += WAIT_MS_MAX;
    assert_eq!(fixture.responder.next_job(fixture.now_ms), None);
    fixture.send_request(&round(GATEWAY, 5, 2));
    fixture.make_keys();
    fixture.now_ms += WAIT_MS_MAX;
    assert_eq!(fixture.responder.next_job(fixture.now_ms), None);
    assert!(fixture.make_period(round(GATEWAY, 5, 2).start, 0).is_empty());
}

#[test]
fn a_permanently_failed_measurement_blocks_its_period() {
    let mut fixture = Fixture::new();
    let bad = round(GATEWAY, 5, 1).start;
    fixture.send_request(&round(GATEWAY, 5, 1));
    fixture.make_keys();
    assert_eq!(
        fixture.responder.period_key_failed(bad, true, fixture.now_ms, 0),
        None
    );
    for number in 2..5 {
        assert!(fixture.send_request(&round(GATEWAY, 5, number)).is_none());
    }
    assert_eq!(fixture.responder.next_job(fixture.now_ms), None);
    assert_eq!(fixture.refused(NOT_MEASURED), 4);
    // The next period is measured again.
    fixture.send_request(&round(GATEWAY, 6, 5));
    fixture.make_keys();
    let start = round(GATEWAY, 6, 5).start;
    assert_eq!(
        fixture.responder.next_job(fixture.now_ms),
        Some(KeyJob::Period(start))
    );
}

#[test]
fn the_pause_between_measurements_is_as_long_as_the_last_one() {
    let mut fixture = Fixture::new();
    fixture.send_request(&round(GATEWAY, 5, 1));
    fixture.make_keys();
    fixture.make_period(round(GATEWAY, 5, 1).start, 3_000);
    fixture.send_request(&round(GATEWAY, 6, 2));
    fixture.make_keys();
    fixture.now_ms += 2_999;
    assert_eq!(fixture.responder.next_job(fixture.now_ms), None);
    fixture.now_ms += 1;
    assert!(fixture.responder.next_job(fixture.now_ms).is_some());
}

#[test]
fn wrong_tags_cause_no_measurement_and_unknown_gateways_few_keys() {
    let mut fixture = Fixture::new();
    let mut keys = 0;
    for n in 0..1_000u32 {
        let forged = round(GatewayId(n % 900 + 1), 5, n + 1);
        let wrong = RequestKey::from_bytes([9; 16]);
        let message = forged.request_without_session(DEVICE, &wrong);
        let from = from(GATEWAY);
        assert!(
            fixture
                .responder
                .receive(message.as_bytes(), from, None, fixture.now_ms)
                .is_none()
        );
        fixture.now_ms += 1;
        while let Some(job) = fixture.responder.next_job(fixture.now_ms) {
            let KeyJob::RequestKey(gateway, period) = job else {
                panic!("{job:?}");
            };
            keys += 1;
            let key = k().for_requests(DEVICE, gateway, period);
            assert!(
                fixture
                    .responder
                    .request_key_ready((gateway, period), key)
                    .is_empty()
            );
        }
    }
    assert_eq!(keys, 5, "four at once, and another within the second");
    assert_eq!(
        fixture.refused(RATE_LIMITED) + fixture.refused("wrong_tag"),
        1_000
    );
    assert_eq!(fixture.responder.period(), Period(5));
}

#[test]
fn requests_rejected_before_verification_cost_no_key() {
    let pinned = GatewayPolicy::pinned(&[GATEWAY]).unwrap();
    let mut fixture = Fixture {
        responder: Responder::new(DEVICE, Period(500), pinned, RequestKeys::new([], true)),
        ..Fixture::new()
    };
    fixture.send_request(&round(GatewayId(8), 500, 1));
    fixture.send_request(&round(GATEWAY, 498, 1));
    fixture.send_request(&round(GATEWAY, 500, 0));
    let from = from(GATEWAY);
    fixture.responder.receive(b"hello", from, None, fixture.now_ms);
    assert_eq!(fixture.responder.next_job(fixture.now_ms), None);
    let expected = [
        (OTHER_GATEWAY, 1),
        ("malformed", 1),
        ("stale_period", 1),
        ("round_zero", 1),
    ];
    let refusals: Vec<_> = fixture
        .responder
        .rejections()
        .iter()
        .map(|(reason, count)| (*reason, *count))
        .collect();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(refusals, expected);
}

#[test]
fn a_failed_key_is_retried_later() {
    let mut fixture = Fixture::new();
    fixture.send_request(&round(GATEWAY, 5, 1));
    assert!(fixture.responder.next_job(fixture.now_ms).is_some());
    let delay_ms = fixture.responder.request_key_failed(fixture.now_ms, 1 << 63);
    assert_eq!(delay_ms, 750);
    assert_eq!(fixture.responder.next_job(fixture.now_ms), None);
    assert_eq!(fixture.responder.deadline(), Some(fixture.now_ms + 750));
    fixture.now_ms += 750;
    assert_eq!(
        fixture.responder.next_job(fixture.now_ms),
        Some(KeyJob::RequestKey(GATEWAY, Period(5)))
    );
}

/// A recorded request must not make the device authenticate repeatedly.
#[test]
fn only_a_new_request_under_the_request_key_indicates_a_missing_session() {
    let mut fixture = Fixture::new();
    fixture.send_request(&round(GATEWAY, 5, 1));
    assert_eq!(
        fixture.responder.take_sessionless_gateway(),
        None,
        "its tag is not verified yet"
    );
    fixture.make_keys();
    assert_eq!(fixture.responder.take_sessionless_gateway(), Some(GATEWAY));
    assert_eq!(fixture.responder.take_sessionless_gateway(), None);
    fixture.make_period(round(GATEWAY, 5, 1).start, 10);
    assert!(
        fixture.send_request(&round(GATEWAY, 5, 1)).is_some(),
        "a copy gets its proof"
    );
    assert_eq!(fixture.responder.take_sessionless_gateway(), None);
    assert!(fixture.send_request(&round(GATEWAY, 5, 2)).is_some());
    assert_eq!(fixture.responder.take_sessionless_gateway(), Some(GATEWAY));
    for number in [1, 2, 1, 2] {
        fixture.send_request(&round(GATEWAY, 5, number));
        assert_eq!(
            fixture.responder.take_sessionless_gateway(),
            None,
            "alternating copies"
        );
    }
}
