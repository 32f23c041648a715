//! `p4dra-classic` at the gateway: each verdict, each bit of a frame, each error of the published code (LAP/1 3.1).

use alloc::vec::Vec;

use super::support::{INGRESS, service_endpoint};
use crate::attest::{AttestationKey, ConfigurationHash};
use crate::classic::gateway::{P4dra, PublishedGateway};
use crate::classic::p4dra::prover::Prover;
use crate::classic::p4dra::verifier::Verifier;
use crate::classic::p4dra::{
    CONTROLLER, ETHER_TYPE, Message, Proof, ProverId, Round, bytes_of, operation, swap_word_bytes,
};
use crate::gateway::{Gate, Gateway, GatewayConfig};
use crate::ids::GatewayId;
use crate::time::Now;
use crate::verdict::{Disposition, Verdict};

const D: ProverId = ProverId([0x11; 16]);
const UNKNOWN_PROVER: ProverId = ProverId([0x12; 16]);
const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
const PROVER_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

fn key() -> AttestationKey {
    AttestationKey::from_bytes(core::array::from_fn(|at| at as u8))
}

/// The expected configuration of the prover.
fn h() -> ConfigurationHash {
    ConfigurationHash(core::array::from_fn(|at| 0xa0 + at as u8))
}

fn round(number: u8) -> Round {
    Round {
        r: [number, 1, 2, 3, 4, 5, 6, 7],
        n: [number, 9, 10, 11, 12, 13, 14, 15],
    }
}

fn frame(message: &Message) -> Vec<u8> {
    let mut frame = Vec::from(GATEWAY_MAC);
    frame.extend(PROVER_MAC);
    frame.extend(ETHER_TYPE.to_be_bytes());
    frame.resize(14 + bytes_of(message.operation()).unwrap(), 0);
    message.write(&mut frame[14..]).unwrap();
    frame
}

fn reply_of(id: ProverId, h: &ConfigurationHash, round: Round) -> Vec<u8> {
    let request = frame(&Message::Request(round));
    let payload = Prover::new(&key(), id, h).reply(&request[14..]).unwrap();
    let mut frame = request[..14].to_vec();
    frame.extend(payload);
    frame
}

fn reply(number: u8) -> Vec<u8> {
    reply_of(D, &h(), round(number))
}

/// A gateway that knows `D` and has opened rounds 1 and 2.
fn gateway(gate: Gate) -> PublishedGateway {
    let mut gateway = PublishedGateway::from(Gateway::new(GatewayConfig {
        gate,
        own_macs: Some(alloc::vec![GATEWAY_MAC]),
        ..GatewayConfig::new(GatewayId(7), &[service_endpoint().ip])
    }));
    let mut verifier = Verifier::new();
    verifier.install(D, &key(), &h());
    assert!(verifier.open_round(round(1)) && verifier.open_round(round(2)));
    gateway.serve_p4dra(P4dra {
        ether_type: ETHER_TYPE,
        controller: CONTROLLER,
        verifier,
    });
    gateway
}

const NOW: Now = Now {
    monotonic_ms: 1,
    boot_ms: 1,
};

fn handle_frame(gateway: &mut PublishedGateway, frame: &[u8]) -> (Verdict, Vec<u8>) {
    let mut out = frame.to_vec();
    let handled = gateway.handle(NOW, INGRESS, &mut out);
    assert_eq!(handled.frame, 0..frame.len());
    assert_eq!(
        handled.verdict.disposition() == Disposition::Reply,
        handled.trailer.is_some()
    );
    if handled.trailer.is_none() {
        assert_eq!(out, frame);
    }
    out.extend(handled.trailer.into_iter().flatten());
    (handled.verdict, out)
}

fn verdict_on(frame: &[u8]) -> Verdict {
    handle_frame(&mut gateway(Gate::Off), frame).0
}

fn is_proved(gateway: &mut PublishedGateway, number: u8) -> bool {
    gateway.p4dra().unwrap().verifier.has_proven(&D, &round(number))
}

pub fn reach(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::ReplyP4draVerified => verdict_on(&reply(2)),
        Verdict::DropP4draMalformed => verdict_on(&reply(2)[..110]),
        Verdict::DropP4draOperation => verdict_on(&frame(&Message::Start(round(2)))),
        Verdict::DropP4draRound => verdict_on(&reply(3)),
        Verdict::DropP4draProver => verdict_on(&reply_of(UNKNOWN_PROVER, &h(), round(2))),
        Verdict::DropP4draProved => {
            let mut gateway = gateway(Gate::Off);
            handle_frame(&mut gateway, &reply(2));
            handle_frame(&mut gateway, &reply(2)).0
        }
        _ => verdict_on(&reply_of(D, &ConfigurationHash([0; 32]), round(2))),
    }
}

#[test]
fn a_proof_becomes_the_frame_that_the_published_switch_sends() {
    for number in [1, 2] {
        let (published, proof): (_, Proof) = (reply(number), reply(number)[47..].try_into().unwrap());
        let mut expected = Vec::from(CONTROLLER);
        expected.extend(GATEWAY_MAC);
        expected.extend(ETHER_TYPE.to_be_bytes());
        expected.push(4);
        expected.extend(&published[15..47]);
        expected.extend(proof);
        expected.extend(proof);
        assert_eq!(expected.len(), 175);
        let mut gateway = gateway(Gate::Off);
        assert_eq!(
            handle_frame(&mut gateway, &published),
            (Verdict::ReplyP4draVerified, expected.clone())
        );
        let Some(Message::Verified(verified, id, block, claimed)) = Message::parse(&expected[14..]) else {
            panic!("not verified");
        };
        assert_eq!((verified, id), (round(number), D));
        assert_eq!((block, claimed), (swap_word_bytes(proof), swap_word_bytes(proof)));
        assert!(is_proved(&mut gateway, number) && !is_proved(&mut gateway, 3 - number));
    }
}

#[test]
fn p4dra_is_served_with_every_gate_setting_and_with_vlan_tags() {
    for gate in [Gate::Off, Gate::Bound, Gate::Sealed] {
        for tags in 0..3 {
            let mut tagged = reply(2);
            let tag = [0x81, 0, 0x60, 7];
            (0..tags).for_each(|_| drop(tagged.splice(12..12, tag)));
            let (verdict, out) = handle_frame(&mut gateway(gate), &tagged);
            assert_eq!(verdict, Verdict::ReplyP4draVerified, "{gate:?} {tags}");
            assert_eq!(out.len(), 175 + 4 * tags);
            assert_eq!(out[12..14 + 4 * tags], tagged[12..14 + 4 * tags], "tags are kept");
        }
        let mut other_type = reply(2);
        other_type[13] ^= 1;
        let expected = match gate {
            Gate::Off => Verdict::PassForeign,
            _ => Verdict::DropGateType,
        };
        assert_eq!(handle_frame(&mut gateway(gate), &other_type).0, expected);
        let mut third_tag = reply(2);
        (0..3).for_each(|_| drop(third_tag.splice(12..12, [0x81, 0, 0, 7])));
        let expected = match gate {
            Gate::Off => Verdict::PassForeign,
            _ => Verdict::DropGateVlan,
        };
        assert_eq!(handle_frame(&mut gateway(gate), &third_tag).0, expected);
    }
}

#[test]
fn each_bit_of_a_reply_counts_except_those_of_the_sender_s_address() {
    let valid = reply(2);
    for bit in 0..8 * valid.len() {
        let mut frame = valid.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        let expected = match bit / 8 {
            0 | 6 if bit % 8 == 0 => Verdict::DropUnanswerable,
            // The frame is for another station and is not handled.
            0..6 => Verdict::PassForeign,
            6..12 => Verdict::ReplyP4draVerified,
            12..14 => Verdict::PassForeign,
            // One flipped bit makes the operation START, CALCULATING or unknown, and the length of the frame fits none
            // of these.
            14 => Verdict::DropP4draMalformed,
            15..31 => Verdict::DropP4draRound,
            31..47 => Verdict::DropP4draProver,
            _ => Verdict::DropP4draProof,
        };
        let mut gateway = gateway(Gate::Off);
        assert_eq!(handle_frame(&mut gateway, &frame).0, expected, "bit {bit}");
        assert_eq!(
            is_proved(&mut gateway, 2),
            expected == Verdict::ReplyP4draVerified
        );
    }
}

/// A wrong proof does not change the verdicts on later proofs: a correct proof after the wrong proof is accepted.
#[test]
fn a_wrong_proof_does_not_prevent_a_valid_one() {
    let mut gateway = gateway(Gate::Off);
    let wrong = reply_of(D, &ConfigurationHash([1; 32]), round(2));
    assert_eq!(handle_frame(&mut gateway, &wrong).0, Verdict::DropP4draProof);
    assert_eq!(
        handle_frame(&mut gateway, &reply(2)).0,
        Verdict::ReplyP4draVerified
    );
    assert_eq!(handle_frame(&mut gateway, &wrong).0, Verdict::DropP4draProved);
    assert_eq!(handle_frame(&mut gateway, &reply(2)).0, Verdict::DropP4draProved);
}

#[test]
fn the_third_round_closes_the_first_and_no_round_opens_twice() {
    let mut gateway = gateway(Gate::Off);
    let verifier = &mut gateway.p4dra().unwrap().verifier;
    assert!(!verifier.open_round(round(1)) && !verifier.open_round(round(2)));
    assert!(verifier.open_round(round(3)));
    assert_eq!(handle_frame(&mut gateway, &reply(1)).0, Verdict::DropP4draRound);
    assert_eq!(
        handle_frame(&mut gateway, &reply(2)).0,
        Verdict::ReplyP4draVerified
    );
    assert_eq!(
        handle_frame(&mut gateway, &reply(3)).0,
        Verdict::ReplyP4draVerified
    );
}

/// A prover with another configuration that may choose r and n makes the expected proof if the two hashes agree on
/// bytes 8 to 15 and 24 to 31. So the verifier must choose r and n. The published verifier accepts any r and n.
#[test]
fn a_prover_that_chooses_r_and_n_is_rejected() {
    let mut other = h();
    let Round { mut r, mut n } = round(2);
    for at in 0..8 {
        (other.0[at], other.0[16 + at]) = (0x55, 0xaa);
        r[at] ^= h().0[at] ^ 0x55;
        n[at] ^= h().0[16 + at] ^ 0xaa;
    }
    let forged = reply_of(D, &h(), Round { r, n });
    let genuine = reply_of(D, &other, round(2));
    assert_eq!(forged[47..], genuine[47..], "by design only half of h is bound");
    assert_eq!(verdict_on(&forged), Verdict::DropP4draRound);
    assert_eq!(verdict_on(&genuine), Verdict::DropP4draProof);
}

/// The published switch accepts VERIFIED and CALCULATING from any port: a VERIFIED with P = V and the public words of r
/// and n passes for an unknown id, and a CALCULATING whose number of completed quarter rounds is beyond the last
/// quarter round keeps the switch busy for 200 passes.
#[test]
fn frames_that_the_switch_sends_to_itself_are_rejected_from_outside() {
    for id in [D, UNKNOWN_PROVER] {
        let verified = frame(&Message::Verified(round(2), id, [7; 64], [7; 64]));
        assert_eq!(verdict_on(&verified), Verdict::DropP4draOperation);
        for quarter_rounds in [0, 1, 55, 56, 57, 255] {
            let calculating = frame(&Message::Calculating(
                round(2),
                id,
                quarter_rounds,
                [3; 16],
                [7; 64],
            ));
            assert_eq!(verdict_on(&calculating), Verdict::DropP4draOperation);
        }
    }
    let valid_proof: Proof = swap_word_bytes(reply(2)[47..].try_into().unwrap());
    let with_valid_proof = frame(&Message::Verified(round(2), D, valid_proof, valid_proof));
    let mut gateway = gateway(Gate::Off);
    assert_eq!(
        handle_frame(&mut gateway, &with_valid_proof).0,
        Verdict::DropP4draOperation
    );
    assert!(!is_proved(&mut gateway, 2));
    for message in [
        Message::Start(round(2)),
        Message::Request(round(2)),
        Message::Setup(key(), D),
    ] {
        assert_eq!(verdict_on(&frame(&message)), Verdict::DropP4draOperation);
    }
}

/// A message has exactly the operation's length. Only START and REQUEST, which are shorter than the shortest frame, may
/// be padded to the length of that frame.
#[test]
fn a_message_has_exactly_the_length_of_its_operation() {
    for kind in 0..=255u8 {
        for length in 0..200 {
            let mut message = reply(2);
            message.resize(14 + length, 0);
            if let Some(first) = message.get_mut(14) {
                *first = kind;
            }
            let expected = match (kind, length) {
                (_, 0) => Verdict::DropP4draMalformed,
                (operation::START | operation::REQUEST, 17..=46) => Verdict::DropP4draOperation,
                (operation::SETUP, 65) | (operation::CALCULATING, 162) | (operation::VERIFIED, 161) => {
                    Verdict::DropP4draOperation
                }
                (operation::REPLY, 97) => Verdict::ReplyP4draVerified,
                _ => Verdict::DropP4draMalformed,
            };
            assert_eq!(verdict_on(&message), expected, "{kind}, {length} B");
        }
    }
}

#[test]
fn without_the_profile_its_type_is_like_any_other() {
    let mut gateway = Gateway::new(GatewayConfig::new(GatewayId(7), &[service_endpoint().ip]));
    let verdict = gateway.handle_frame(NOW, INGRESS, &mut reply(2));
    assert_eq!(verdict, Verdict::PassForeign);
}
