//! Every verdict of the list is reached. The match has no wildcard, so a new verdict does not compile without its
//! scenario here.

use alloc::vec::Vec;

use super::support::{
    GatewayFixture, SESSION_LIFETIME_S, TestDevice, altered, data_up, gateway_endpoint, one_device,
    service_endpoint,
};
use crate::classic::gateway::PublishedGateway;
use crate::classic::rng::SplitMix64;
use crate::classic::verifier::{Crp, Verifier};
use crate::classic::{self, CLASSIC_PORT, Profile, ResponseBits};
use crate::frame::builder::FrameBuilder;
use crate::frame::write::Endpoint;
use crate::gateway::{DeviceInstall, FRESH_MAX_AGE_MS, Gate, Gateway, GatewayConfig};
use crate::ids::{Mode, RowIndex};
use crate::tag;
use crate::verdict::Verdict;
use crate::wire;

#[test]
fn every_verdict_is_reached() {
    for verdict in Verdict::ALL {
        assert_eq!(reach(*verdict), *verdict);
    }
}

/// Plays the scenario of a verdict. There is one arm per verdict, so no verdict can be forgotten.
fn reach(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::PassForeign => gate_off(|builder| builder.udp(b"x"), service_endpoint()),
        Verdict::PassUnparsed => gate_off(|builder| builder.options(&[1]).udp(b"x"), gateway_endpoint()),
        Verdict::PassAlways => bound_gate(|builder| builder.arp_request()),
        Verdict::PassSession => {
            let (mut fixture, device) = one_device(2);
            fixture.authenticate(&device);
            fixture.through_gate(&device)
        }
        Verdict::ReplyChallenge => with_device(1, |device, _| device.request(1)),
        Verdict::ReplyAck => with_device(1, |device, fresh| device.response(0, fresh)),
        Verdict::ReplyAckRepeated => {
            let (mut fixture, device) = one_device(1);
            let response = fixture.authenticate(&device);
            fixture.verdict(&device, &response)
        }
        Verdict::ReplyNak => with_device(0, |device, _| device.request(1)),
        Verdict::ReplyClassicChallenge => classic_exchange(Verdict::ReplyClassicChallenge),
        Verdict::ReplyClassicAck => classic_exchange(Verdict::ReplyClassicAck),
        Verdict::DropLength => with_device(1, |device, _| device.request(1)[..63].to_vec()),
        Verdict::DropMagic => altered_request(0, &[0]),
        Verdict::DropVersion => altered_request(2, &[2]),
        Verdict::DropType => altered_request(3, &[8]),
        Verdict::DropSuite => altered_request(4, &[2]),
        Verdict::DropFlags => altered_request(5, &[1]),
        Verdict::DropDeviceZero => altered_request(8, &[0; 8]),
        Verdict::DropReserved => altered_request(63, &[1]),
        Verdict::DropDirection => altered_request(3, &[wire::message_type::ACK]),
        Verdict::DropUnsupportedType
        | Verdict::ProofOk
        | Verdict::DropRound
        | Verdict::DropLate
        | Verdict::DropUnknownProver
        | Verdict::DropProved
        | Verdict::DropNoKey
        | Verdict::DropProof => super::attest::reach(verdict),
        Verdict::ReplyP4draVerified
        | Verdict::DropP4draMalformed
        | Verdict::DropP4draOperation
        | Verdict::DropP4draRound
        | Verdict::DropP4draProver
        | Verdict::DropP4draProved
        | Verdict::DropP4draProof => super::p4dra::reach(verdict),
        Verdict::DropUnanswerable => {
            let to = Endpoint {
                port: wire::LAP_PORT,
                mac: [0xff; 6],
                ..gateway_endpoint()
            };
            gate_off(|builder| builder.udp(b"x"), to)
        }
        Verdict::DropSourceNotDevice => {
            let (mut fixture, mut device) = one_device(1);
            device.endpoint.ip = gateway_endpoint().ip;
            fixture.verdict(&device, &device.request(1))
        }
        Verdict::DropTruncated => bound_gate(|builder| builder.udp(b"x")[..30].to_vec()),
        Verdict::DropUnknownDevice => {
            let unknown = TestDevice::new(9, Mode::Pool);
            GatewayFixture::new().verdict(&unknown, &unknown.request(1))
        }
        Verdict::DropRevoked => {
            let (mut fixture, device) = one_device(1);
            fixture.gateway.revoke(device.id).unwrap();
            fixture.verdict(&device, &device.request(1))
        }
        Verdict::DropBusy => {
            let (mut fixture, device) = one_device(1);
            let _committed = fixture.commit_only(&device);
            fixture.verdict(&device, &device.request(1))
        }
        Verdict::DropNoRows => with_device(0, |device, fresh| device.response(0, fresh)),
        Verdict::DropNakLimit => {
            let (mut fixture, device) = one_device(0);
            (0..100)
                .for_each(|_| assert_eq!(fixture.verdict(&device, &device.request(1)), Verdict::ReplyNak));
            fixture.verdict(&device, &device.request(1))
        }
        Verdict::DropIndex => with_device(1, |device, fresh| device.response(1, fresh)),
        Verdict::DropGateway => with_device(1, |device, fresh| {
            altered(&device.response(0, fresh), 36, &[0, 0, 0, 9])
        }),
        Verdict::DropFresh => with_device(1, |device, _| device.response(0, [9; 8])),
        Verdict::DropStopped => {
            let (mut fixture, device) = one_device(1);
            fixture.now = fixture.now.plus_ms(FRESH_MAX_AGE_MS + 1);
            fixture.verdict(&device, &device.request(1))
        }
        Verdict::DropTag => with_device(1, |device, fresh| {
            altered(&device.response(0, fresh), 63, &[0; 1])
        }),
        Verdict::SlowPath | Verdict::DropShed => {
            let (mut fixture, device) = one_device(1);
            let config = GatewayConfig {
                miss_per_s: 1,
                ..fixture.gateway.config().clone()
            };
            fixture.gateway = Gateway::new(config);
            fixture.rotate_fresh_value();
            if verdict == Verdict::DropShed {
                fixture.verdict(&device, &device.request(1));
            }
            fixture.verdict(&device, &device.request(1))
        }
        Verdict::DropMark => {
            let mut fixture = GatewayFixture::new();
            let device = TestDevice::new(1, Mode::Pool);
            let mark = Some(RowIndex(0));
            let install = device.install(0, 2);
            fixture
                .gateway
                .install(DeviceInstall { mark, ..install })
                .unwrap();
            let response = device.response(0, fixture.fresh);
            fixture.verdict(&device, &response)
        }
        Verdict::DropLostRace => super::races::second_of_two_verified(),
        Verdict::DropAddressOwned => super::ownership::second_device_at_one_address(),
        Verdict::DropReplay => {
            let (mut fixture, device) = one_device(2);
            fixture.authenticate(&device);
            fixture.verdict(&device, &device.response_with(0, fixture.fresh, 9, None))
        }
        Verdict::DropTableFull => super::ownership::one_device_too_many(),
        Verdict::DropSessionZero => crate::gateway::response::tests::commit_of_tag([0; 16]),
        Verdict::DropGate => bound_gate(|builder| builder.udp(b"x")),
        Verdict::DropGateVlan => bound_gate(|builder| builder.tag(0x9100, 7).udp(b"x")),
        Verdict::DropGateRole => bound_gate(|builder| builder.ip(1, &[5, 0, 0, 0])),
        Verdict::DropGateType => bound_gate(|builder| builder.ethernet(0x8892, &[0; 46])),
        Verdict::DropGateFragment => bound_gate(|builder| builder.fragment(0, true).udp(b"x")),
        Verdict::DropGateExtension => bound_gate(|builder| builder.options(&[1]).udp(b"x")),
        Verdict::DropGatePort => {
            let (mut fixture, device) = one_device(2);
            fixture.authenticate(&device);
            let to = Endpoint {
                port: wire::LAP_PORT,
                ..service_endpoint()
            };
            let mut frame = fixture.frame(&device, to, b"x");
            fixture.handle(device.ingress, &mut frame)
        }
        Verdict::DropSessionExpired => {
            let (mut fixture, device) = one_device(2);
            fixture.authenticate(&device);
            fixture.pass_s(u64::from(SESSION_LIFETIME_S));
            fixture.through_gate(&device)
        }
        Verdict::DropGateNotSealed => with_device(1, |device, _| data_up(device)),
        Verdict::PassData | Verdict::DropSession | Verdict::DropSource | Verdict::DropSequence => {
            super::sealed::reach_up(verdict)
        }
        Verdict::PassSealed
        | Verdict::DropUnsealed
        | Verdict::DropTooBig
        | Verdict::DropSegments
        | Verdict::DropExhausted => super::sealed::reach_down(verdict),
        Verdict::DropClassicMalformed | Verdict::DropClassicUnknown | Verdict::DropClassicHash => {
            classic_exchange(verdict)
        }
    }
}

fn with_device(rows: u32, payload: impl FnOnce(&TestDevice, [u8; 8]) -> Vec<u8>) -> Verdict {
    let (mut fixture, device) = one_device(rows);
    let payload = payload(&device, fixture.fresh);
    fixture.verdict(&device, &payload)
}

fn altered_request(at: usize, bytes: &[u8]) -> Verdict {
    with_device(1, |device, _| altered(&device.request(1), at, bytes))
}

fn gate_off(make: impl FnOnce(FrameBuilder) -> Vec<u8>, to: Endpoint) -> Verdict {
    let mut fixture = GatewayFixture::with(|config| config.gate = Gate::Off);
    let mut frame = make(FrameBuilder::new(TestDevice::new(1, Mode::Pool).endpoint, to));
    fixture.handle(super::support::INGRESS, &mut frame)
}

fn bound_gate(make: impl FnOnce(FrameBuilder) -> Vec<u8>) -> Verdict {
    let mut frame = make(FrameBuilder::new(
        TestDevice::new(1, Mode::Pool).endpoint,
        service_endpoint(),
    ));
    GatewayFixture::new().handle(super::support::INGRESS, &mut frame)
}

/// Plays one exchange, altered as the verdict requires.
fn classic_exchange(verdict: Verdict) -> Verdict {
    let bits = ResponseBits::B128;
    let crp = Crp {
        challenge: 77,
        response: [0x3c; 32],
    };
    let rng = SplitMix64::from_state(1);
    let verifier = Verifier::new(Profile::Iot, bits, rng, alloc::vec![alloc::vec![crp.clone()]]).unwrap();
    let (fixture, device) = one_device(0);
    let mut gateway = PublishedGateway::from(Gateway::new(fixture.gateway.config().clone()));
    gateway.serve_classic(CLASSIC_PORT, verifier);
    let to = Endpoint {
        port: CLASSIC_PORT,
        ..gateway_endpoint()
    };
    let mut send = |message: &classic::Message| {
        let mut payload = alloc::vec![0; bits.message_bytes()];
        message.write(bits, &mut payload).unwrap();
        let mut frame = fixture.frame(&device, to, &payload);
        let verdict = gateway.handle(fixture.now, device.ingress, &mut frame).verdict;
        (verdict, classic::Message::parse(bits, &frame[42..]).unwrap())
    };
    match verdict {
        Verdict::DropClassicMalformed => {
            return send(&classic::Message::new(classic::message_type::ACK, 1)).0;
        }
        Verdict::DropClassicUnknown => return send(&classic::device::request(2)).0,
        _ => {}
    }
    let (challenge_verdict, challenge) = send(&classic::device::request(1));
    if verdict == Verdict::ReplyClassicChallenge {
        return challenge_verdict;
    }
    let mut response = classic::device::respond(&challenge, bits, &crp.response, None).unwrap();
    response.hash ^= u32::from(verdict == Verdict::DropClassicHash);
    send(&response).0
}

/// Only a constant-time comparison creates the proof, in tests too.
#[test]
fn a_tag_verifies_only_when_equal() {
    assert!(tag::verify(&[1; 16], &[1; 16]).is_some());
    assert!((0..16).all(|i| {
        let mut other = [1; 16];
        other[i] ^= 0x80;
        tag::verify(&[1; 16], &other).is_none()
    }));
}
