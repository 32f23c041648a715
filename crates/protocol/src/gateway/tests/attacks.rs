//! The published attacks on the earlier XDP verifier of this protocol family, tried on the classic verifier and,
//! translated, on LAP/1.

use alloc::vec;
use alloc::vec::Vec;

use super::support::{GatewayFixture, TestDevice, altered, one_device, verified_ack};
use crate::classic::crc32::Crc32;
use crate::classic::device::{is_accepted, request, respond};
use crate::classic::rng::SplitMix64;
use crate::classic::verifier::{Crp, Verifier};
use crate::classic::{Block, Message, Profile, ResponseBits, mask, message_type, xor};
use crate::ids::Mode;
use crate::keys::AuthKey;
use crate::tag;
use crate::verdict::{Disposition, Verdict};
use crate::wire::Response;
use zerocopy::{FromBytes as _, IntoBytes as _};

const IDENTIFIERS: u32 = 500;
const PAIRS: u32 = 40;
/// Each profile with each size of a response.
const PROFILES_AND_SIZES: [(Profile, ResponseBits); 6] = [
    (Profile::Iot, ResponseBits::B64),
    (Profile::Iot, ResponseBits::B128),
    (Profile::Iot, ResponseBits::B256),
    (Profile::Uav, ResponseBits::B64),
    (Profile::Uav, ResponseBits::B128),
    (Profile::Uav, ResponseBits::B256),
];

/// A classic verifier with full-width random responses, and the PUF responses.
struct Classic {
    bits: ResponseBits,
    profile: Profile,
    verifier: Verifier,
    crps: Vec<Vec<Crp>>,
}

impl Classic {
    fn new(profile: Profile, bits: ResponseBits) -> Self {
        let mut puf = SplitMix64::from_state(9);
        let mut pair = |n: u32| {
            let mut response: Block = [0; 32];
            response[..bits.bytes()]
                .chunks_exact_mut(8)
                .for_each(|word| word.copy_from_slice(&puf.draw().to_be_bytes()));
            Crp {
                challenge: 0xc000_0000 | n,
                response,
            }
        };
        let crps: Vec<Vec<Crp>> = (0..IDENTIFIERS)
            .map(|_| (0..PAIRS).map(&mut pair).collect())
            .collect();
        let rng = SplitMix64::from_state(1);
        let verifier = Verifier::new(profile, bits, rng, crps.clone()).unwrap();
        Self {
            bits,
            profile,
            verifier,
            crps,
        }
    }

    fn send(&mut self, message: &Message) -> (Verdict, Message) {
        let mut payload = vec![0; self.bits.message_bytes()];
        message.write(self.bits, &mut payload).unwrap();
        let verdict = self.verifier.handle(&mut payload);
        (verdict, Message::parse(self.bits, &payload).unwrap())
    }

    fn responses(&self, challenge: &Message) -> (Block, Option<Block>) {
        let crps = &self.crps[challenge.identifier as usize - 1];
        let response_to = |c: u32| crps.iter().find(|crp| crp.challenge == c).unwrap().response;
        let second = (self.profile == Profile::Uav).then(|| response_to(challenge.challenge2));
        (response_to(challenge.challenge1), second)
    }

    fn legitimate_response(&mut self, identifier: u32) -> (Message, Message) {
        let (verdict, challenge) = self.send(&request(identifier));
        assert_eq!(verdict, Verdict::ReplyClassicChallenge);
        let (r1, r2) = self.responses(&challenge);
        (
            challenge,
            respond(&challenge, self.bits, &r1, r2.as_ref()).unwrap(),
        )
    }
}

#[test]
fn legitimate_devices_with_full_width_responses_are_accepted() {
    for (profile, bits) in PROFILES_AND_SIZES {
        let mut classic = Classic::new(profile, bits);
        for identifier in 1..=IDENTIFIERS {
            let (_, response) = classic.legitimate_response(identifier);
            let (verdict, ack) = classic.send(&response);
            assert_eq!(verdict, Verdict::ReplyClassicAck, "{profile:?} {bits:?}");
            assert!(is_accepted(&ack, &response));
            assert_eq!(ack.process_time_ns, 0);
        }
    }
}

/// The earlier verifier accepted hash 0 from 500 of 500 identifiers that had never been challenged.
#[test]
fn cold_start_accepts_no_zero_hash() {
    for (profile, bits) in PROFILES_AND_SIZES {
        let mut classic = Classic::new(profile, bits);
        for identifier in 1..=IDENTIFIERS {
            let guess = Message::new(message_type::RESP, identifier);
            assert_eq!(classic.send(&guess).0, Verdict::DropClassicHash);
        }
    }
}

/// The earlier verifier accepted one RESP 1000 of 1000 times until the next REQ.
#[test]
fn a_response_is_accepted_once() {
    for (profile, bits) in PROFILES_AND_SIZES {
        let mut classic = Classic::new(profile, bits);
        let (_, response) = classic.legitimate_response(17);
        assert_eq!(classic.send(&response).0, Verdict::ReplyClassicAck);
        for _ in 0..1000 {
            assert_eq!(classic.send(&response).0, Verdict::DropClassicHash);
        }
    }
}

/// The earlier verifier reflected identifiers outside the table and passed wrong hashes up the stack.
#[test]
fn unknown_and_wrong_messages_get_no_reply_and_are_not_forwarded() {
    for (profile, bits) in PROFILES_AND_SIZES {
        let mut classic = Classic::new(profile, bits);
        for identifier in [0, IDENTIFIERS + 1, u32::MAX] {
            for kind in [message_type::REQ, message_type::RESP] {
                let (verdict, _) = classic.send(&Message::new(kind, identifier));
                assert_eq!(verdict, Verdict::DropClassicUnknown);
            }
        }
        for kind in [message_type::CH, message_type::ACK, 4, 255] {
            let (verdict, _) = classic.send(&Message::new(kind, 1));
            assert_eq!(verdict, Verdict::DropClassicMalformed);
        }
        let (_, mut response) = classic.legitimate_response(3);
        response.hash ^= 1;
        let (verdict, _) = classic.send(&response);
        assert_eq!(verdict.disposition(), Disposition::Drop);
        for bytes in (0..bits.message_bytes()).chain([29, bits.message_bytes() + 1]) {
            let verdict = classic.verifier.handle(&mut vec![0; bytes]);
            assert_eq!(verdict, Verdict::DropClassicMalformed, "{bytes} B");
        }
    }
}

/// Forges a RESP: CRC-32 is affine, so for a repeated challenge the second hash follows from the first.
fn affine_forgery(bits: ResponseBits, sniffed: &(Message, Message), challenge: &Message) -> Message {
    let (old_challenge, old_response) = sniffed;
    let delta = xor(&old_challenge.rn, &challenge.rn);
    let blocks = if challenge.challenge2 == 0 { 1 } else { 2 };
    let zeros = |crc: Crc32| (0..blocks).fold(crc, |crc, _| crc.update(&[0; 32][..bits.bytes()]));
    let with_delta = zeros(Crc32::new()).update(&delta[..bits.bytes()]).finish();
    let without_delta = zeros(Crc32::new()).update(&[0; 32][..bits.bytes()]).finish();
    let mut forged = Message::new(message_type::RESP, challenge.identifier);
    forged.hash = old_response.hash ^ with_delta ^ without_delta;
    forged
}

#[test]
fn a_recorded_exchange_allows_no_forgery_if_each_pair_is_used_once() {
    for bits in ResponseBits::ALL {
        let mut classic = Classic::new(Profile::Iot, bits);
        let mut sniffed = Vec::new();
        for _ in 0..PAIRS {
            let (challenge, response) = classic.legitimate_response(5);
            let is_same = |old: &(Message, Message)| old.0.challenge1 == challenge.challenge1;
            assert!(!sniffed.iter().any(is_same), "no challenge is repeated");
            for old in &sniffed {
                let forged = affine_forgery(bits, old, &challenge);
                assert_eq!(classic.send(&forged).0, Verdict::DropClassicHash);
            }
            sniffed.push((challenge, response));
        }
        assert_eq!(
            classic.send(&request(5)).0,
            Verdict::DropClassicUnknown,
            "the pairs of the identifier are used up"
        );
    }
}

/// The two-challenge profile reuses pairs, as its paper specifies; the forgery works then. This is why classic
/// profiles are for measurement only; the test confirms the documentation.
#[test]
fn a_repeated_challenge_of_the_uav_profile_is_forged_as_published() {
    let mut classic = Classic::new(Profile::Uav, ResponseBits::B64);
    let mut sniffed: Vec<(Message, Message)> = Vec::new();
    let forged = (0..2000).find_map(|_| {
        let (challenge, response) = classic.legitimate_response(5);
        let is_same = |old: &&(Message, Message)| {
            (old.0.challenge1, old.0.challenge2) == (challenge.challenge1, challenge.challenge2)
        };
        let forged = sniffed
            .iter()
            .find(is_same)
            .map(|old| affine_forgery(classic.bits, old, &challenge));
        sniffed.push((challenge, response));
        forged
    });
    assert_eq!(classic.send(&forged.unwrap()).0, Verdict::ReplyClassicAck);
}

/// In the earlier verifier the index was RN mod 500, so the visible challenge revealed RN.
#[test]
fn the_choice_of_pairs_reveals_nothing_about_the_random_number() {
    let mut classic = Classic::new(Profile::Uav, ResponseBits::B64);
    let equal = (0..1000)
        .filter(|_| {
            let (challenge, _) = classic.legitimate_response(5);
            let (r1, r2) = classic.responses(&challenge);
            let rn = xor(&challenge.rn, &mask(&r1, r2.as_ref()));
            let low = u64::from_be_bytes(rn[..8].try_into().unwrap());
            low % u64::from(PAIRS / 2) == u64::from(challenge.challenge1) % u64::from(PAIRS / 2)
        })
        .count();
    assert!(equal < 120, "{equal} of 1000; 50 are expected by chance");
}

#[test]
fn lap_accepts_no_zero_tag_and_no_zero_key() {
    for mode in [Mode::Pool, Mode::Key] {
        let mut fixture = GatewayFixture::new();
        let device = TestDevice::new(1, mode);
        fixture.gateway.install(device.install(0, 1)).unwrap();
        let zero_tag = altered(&device.response(0, fixture.fresh), 48, &[0; 16]);
        assert_eq!(fixture.verdict(&device, &zero_tag), Verdict::DropTag);
    }
    let (mut fixture, device) = one_device(0);
    let mut forged = Response::read_from_bytes(&device.response(0, fixture.fresh)).unwrap();
    let zero_key = AuthKey::from_bytes([0; 16]);
    forged.tag = tag::response(&zero_key, &forged, &tag::location(Some(device.endpoint.mac)));
    assert_eq!(
        fixture.verdict(&device, forged.as_bytes()),
        Verdict::DropNoRows,
        "an empty line accepts no RESPONSE"
    );
}

/// A replayed RESPONSE gets at most the same ACK, and only from the origin of the winning RESPONSE.
#[test]
fn lap_replays_open_no_session_and_spend_no_row() {
    let (mut fixture, victim) = one_device(4);
    let response = fixture.authenticate(&victim);
    let line = fixture.gateway.line(victim.id);
    let mut attacker = victim.clone();
    attacker.endpoint.mac = [2, 0xbb, 0, 0, 0, 1];
    attacker.endpoint.ip = [10, 66, 6, 6].into();
    for _ in 0..1000 {
        assert_eq!(fixture.verdict(&attacker, &response), Verdict::DropReplay);
    }
    assert_eq!(fixture.through_gate(&attacker), Verdict::DropGate);
    assert_eq!(fixture.gateway.line(victim.id), line);
    fixture.authenticate(&victim);
    assert_eq!(fixture.verdict(&victim, &response), Verdict::DropIndex);
}

/// A RESPONSE that an attacker intercepts before it reaches the gateway is useless from another MAC address.
#[test]
fn lap_binds_an_intercepted_response_to_its_sender() {
    let (mut fixture, victim) = one_device(2);
    let response = victim.response(0, fixture.fresh);
    let mut attacker = victim.clone();
    attacker.endpoint.mac = [2, 0xbb, 0, 0, 0, 1];
    assert_eq!(fixture.verdict(&attacker, &response), Verdict::DropTag);
    let unbound = altered(&response, 5, &[0]);
    assert_eq!(
        fixture.verdict(&attacker, &unbound),
        Verdict::DropTag,
        "rejected without the flag, too"
    );
    assert_eq!(fixture.verdict(&victim, &response), Verdict::ReplyAck);
}

/// In the earlier verifier a REQ from anyone overwrote the expected hash of a device during its exchange.
#[test]
fn lap_requests_from_others_disturb_nothing() {
    let (mut fixture, victim) = one_device(2);
    let mut flooder = victim.clone();
    flooder.endpoint.mac = [2, 0xbb, 0, 0, 0, 1];
    flooder.endpoint.ip = [10, 66, 6, 6].into();
    let response = victim.response(0, fixture.fresh);
    let line = fixture.gateway.line(victim.id);
    for nonce in 0..=255 {
        assert_eq!(
            fixture.verdict(&flooder, &flooder.request(nonce)),
            Verdict::ReplyChallenge
        );
    }
    assert_eq!(
        fixture.gateway.line(victim.id),
        line,
        "no row is spent, and no state is stored"
    );
    let (verdict, payload) = fixture.send(&victim, &response);
    assert_eq!(verdict, Verdict::ReplyAck);
    verified_ack(&victim, &response, &payload);
}

/// No reply to an unknown device, and no amplification.
#[test]
fn lap_sends_unknown_devices_nothing_and_does_not_amplify() {
    let (mut fixture, device) = one_device(2);
    let unknown = TestDevice::new(0x99, Mode::Pool);
    assert_eq!(
        fixture.verdict(&unknown, &unknown.request(1)),
        Verdict::DropUnknownDevice
    );
    let (_, reply) = fixture.send(&device, &device.request(1));
    assert_eq!(
        fixture.verdict(&device, &reply),
        Verdict::DropDirection,
        "a reply gets no reply"
    );
    assert_eq!(reply.len(), device.request(1).len());
}

/// The classic port is closed unless it is configured.
#[test]
fn the_classic_port_is_closed_by_default() {
    let (mut fixture, device) = one_device(2);
    let to = crate::frame::write::Endpoint {
        port: crate::classic::CLASSIC_PORT,
        ..super::support::gateway_endpoint()
    };
    let mut frame = fixture.frame(&device, to, &[0; 33]);
    assert_eq!(fixture.handle(device.ingress, &mut frame), Verdict::DropGate);
}
