//! The contents of the replies.

use proptest::prelude::*;

use super::support::{
    GATEWAY, GatewayFixture, SESSION_LIFETIME_S, TestDevice, altered, challenge, device_sources,
    gateway_endpoint, nak, one_device, verified_ack,
};
use crate::frame::builder::FrameBuilder;
use crate::frame::ip_bytes;
use crate::frame::write::Endpoint;
use crate::gateway::LiveSettings;
use crate::ids::Mode;
use crate::keys::SessionKey;
use crate::tag;
use crate::verdict::Verdict;
use crate::wire::{message_type, nak_reason};

#[test]
fn a_challenge_offers_the_current_row_and_the_same_request_gets_the_same_bytes() {
    let (mut fixture, device) = one_device(2);
    let (verdict, payload) = fixture.send(&device, &device.request(0x21));
    assert_eq!(verdict, Verdict::ReplyChallenge);
    let message = challenge(&payload);
    assert_eq!(message.header.kind, message_type::CHALLENGE);
    assert_eq!(message.header.device(), device.id);
    assert_eq!((message.idx.get(), message.gateway_id.get()), (0, GATEWAY.0));
    assert_eq!(message.challenge, device.row(0).challenge);
    assert_eq!(message.fresh, fixture.fresh);
    assert_eq!(message.nonce_echo, [0x21; 8]);
    assert_eq!(
        message.tag,
        tag::challenge(&device.auth_key(0), &message, &[0x21; 16])
    );
    assert_eq!(fixture.send(&device, &device.request(0x21)).1, payload);
    assert_ne!(fixture.send(&device, &device.request(0x22)).1, payload);
}

#[test]
fn pool_rows_are_spent_in_order_and_each_once() {
    let (mut fixture, device) = one_device(3);
    for idx in 0..3 {
        let (_, payload) = fixture.send(&device, &device.request(1));
        assert_eq!(challenge(&payload).idx.get(), idx);
        let response = device.response(idx, fixture.fresh);
        let (verdict, payload) = fixture.send(&device, &response);
        assert_eq!(verdict, Verdict::ReplyAck);
        let ack = verified_ack(&device, &response, &payload);
        assert_eq!(ack.session_lifetime_s.get(), SESSION_LIFETIME_S);
        assert_eq!(ack.seen_ip, ip_bytes(device.endpoint.ip));
        let line = fixture.gateway.line(device.id).unwrap();
        assert_eq!(
            line.session.session_key,
            SessionKey::derive(&device.auth_key(idx), super::support::SUITE, &line.session.tag)
        );
        assert_eq!(line.window.generation(), line.commit.window_generation());
    }
    let line = fixture.gateway.line(device.id).unwrap();
    assert!(line.commit.is_empty());
    assert_eq!(line.auth_key.as_bytes(), &[0; 16], "an absent row leaves no key");
    let (verdict, payload) = fixture.send(&device, &device.request(1));
    assert_eq!(verdict, Verdict::ReplyNak);
    assert_eq!(
        (nak(&payload).idx.get(), nak(&payload).reason),
        (3, nak_reason::NO_ROWS)
    );
}

#[test]
fn key_mode_counts_and_keeps_its_key() {
    let mut fixture = GatewayFixture::new();
    let device = TestDevice::new(1, Mode::Key);
    fixture.gateway.install(device.install(40, 1)).unwrap();
    for idx in 40..60 {
        let (_, payload) = fixture.send(&device, &device.request(1));
        let message = challenge(&payload);
        assert_eq!((message.idx.get(), message.challenge), (idx, [0; 8]));
        let response = device.response(idx, fixture.fresh);
        let (verdict, payload) = fixture.send(&device, &response);
        assert_eq!(verdict, Verdict::ReplyAck);
        verified_ack(&device, &response, &payload);
    }
}

#[test]
fn the_last_number_is_never_spent() {
    let mut fixture = GatewayFixture::new();
    let device = TestDevice::new(1, Mode::Key);
    fixture.gateway.install(device.install(u32::MAX, 1)).unwrap();
    let response = device.response(u32::MAX, fixture.fresh);
    assert_eq!(fixture.verdict(&device, &response), Verdict::DropNoRows);
    assert!(fixture.gateway.line(device.id).unwrap().commit.is_valid());
}

#[test]
fn a_session_keeps_its_granted_lifetime() {
    let (mut fixture, device) = one_device(3);
    let response = device.response(0, fixture.fresh);
    let (_, first) = fixture.send(&device, &response);
    fixture.gateway.reconfigure(LiveSettings {
        sources: Some(device_sources(&[])),
        session_lifetime_s: SESSION_LIFETIME_S / 2,
        nak_per_s: 0,
        miss_per_s: 0,
    });
    assert_eq!(
        fixture.send(&device, &response),
        (Verdict::ReplyAckRepeated, first.clone())
    );
    let (_, next) = fixture.send(&device, &device.response(1, fixture.fresh));
    let lifetime_s = |ack: &[u8]| u32::from_be_bytes(ack[20..24].try_into().unwrap());
    assert_eq!(
        (lifetime_s(&first), lifetime_s(&next)),
        (SESSION_LIFETIME_S, SESSION_LIFETIME_S / 2)
    );
}

#[test]
fn the_winning_response_gets_the_same_ack_until_the_session_expires() {
    let (mut fixture, device) = one_device(2);
    let response = device.response(0, fixture.fresh);
    let (_, first) = fixture.send(&device, &response);
    fixture.rotate_fresh_value();
    fixture.rotate_fresh_value();
    fixture.rotate_fresh_value();
    let line = fixture.gateway.line(device.id);
    let (verdict, second) = fixture.send(&device, &response);
    assert_eq!((verdict, &second), (Verdict::ReplyAckRepeated, &first));
    assert_eq!(fixture.gateway.line(device.id), line);

    let changed = |change: fn(&mut TestDevice)| {
        let mut moved = device.clone();
        change(&mut moved);
        moved
    };
    for moved in [
        changed(|device| device.endpoint.port += 1),
        changed(|device| device.endpoint.mac[5] = 0xee),
        changed(|device| device.endpoint.ip = [10, 66, 0, 99].into()),
        changed(|device| device.vlan = Some(1)),
        changed(|device| device.ingress += 1),
    ] {
        assert_eq!(fixture.verdict(&moved, &response), Verdict::DropReplay);
    }
    fixture.pass_s(u64::from(SESSION_LIFETIME_S) - 1);
    assert_eq!(fixture.verdict(&device, &response), Verdict::ReplyAckRepeated);
    fixture.pass_s(1);
    assert_eq!(fixture.verdict(&device, &response), Verdict::DropReplay);
}

#[test]
fn a_session_lifetime_continues_during_suspend() {
    let (mut fixture, device) = one_device(2);
    fixture.authenticate(&device);
    assert!(fixture.gateway.session(device.id, fixture.now).is_some());
    fixture.now = fixture.now.plus_suspend_ms(u64::from(SESSION_LIFETIME_S) * 1000);
    assert!(fixture.gateway.session(device.id, fixture.now).is_none());
    assert_eq!(fixture.through_gate(&device), Verdict::DropSessionExpired);
}

#[test]
fn unbound_responses_are_accepted_but_open_no_gate() {
    let (mut fixture, device) = one_device(2);
    let response = device.response_with(0, fixture.fresh, 1, None);
    let (verdict, payload) = fixture.send(&device, &response);
    assert_eq!(verdict, Verdict::ReplyAck);
    verified_ack(&device, &response, &payload);
    assert!(!fixture.gateway.line(device.id).unwrap().session.bound);
    assert_eq!(fixture.through_gate(&device), Verdict::DropGate);
}

#[test]
fn naks_are_limited_per_second_and_report_that_the_gateway_stops() {
    let mut fixture = GatewayFixture::with(|config| config.nak_per_s = 2);
    let device = TestDevice::new(1, Mode::Pool);
    fixture.gateway.install(device.install(0, 1)).unwrap();
    fixture.gateway.set_stopping(true);
    let verdicts: [Verdict; 3] = core::array::from_fn(|_| fixture.verdict(&device, &device.request(1)));
    assert_eq!(
        verdicts,
        [Verdict::ReplyNak, Verdict::ReplyNak, Verdict::DropNakLimit]
    );
    fixture.now = fixture.now.plus_ms(1000);
    let (verdict, payload) = fixture.send(&device, &device.request(1));
    assert_eq!(verdict, Verdict::ReplyNak);
    assert_eq!(nak(&payload).reason, nak_reason::STOPPING);
    let response = device.response(0, fixture.fresh);
    assert_eq!(
        fixture.verdict(&device, &response),
        Verdict::ReplyAck,
        "a challenged device is served"
    );
    fixture.gateway.set_stopping(false);
    fixture.now = fixture.now.plus_ms(1000);
    assert_eq!(
        fixture.verdict(&device, &device.request(1)),
        Verdict::ReplyNak,
        "no row is left"
    );
}

#[test]
fn ipv6_and_vlans_work_as_ipv4() {
    let mut fixture = GatewayFixture::new();
    let mut device = TestDevice::new(1, Mode::Pool);
    device.endpoint.ip = [0xfd66, 0, 0, 0, 0, 0, 0, 1].into();
    device.vlan = Some(12);
    fixture.gateway.install(device.install(0, 1)).unwrap();
    let to = Endpoint {
        ip: [0xfd66, 0, 0, 0, 0, 0, 0, 0xfe].into(),
        ..gateway_endpoint()
    };
    let response = device.response(0, fixture.fresh);
    let mut frame = FrameBuilder::new(device.endpoint, to).vlan(12).udp(&response);
    assert_eq!(fixture.handle(device.ingress, &mut frame), Verdict::ReplyAck);
    let ack = verified_ack(&device, &response, &frame[frame.len() - 64..]);
    assert_eq!(ack.seen_ip, ip_bytes(device.endpoint.ip));
    let line = fixture.gateway.line(device.id).unwrap();
    assert_eq!(line.session.vlans, [0x100c, 0]);
    assert_eq!(line.ingress, device.ingress);
}

proptest! {
    /// A RESPONSE with any flipped bit opens no session and writes nothing.
    #[test]
    fn no_altered_response_is_accepted(at in 0usize..64, bit in 0u8..8, key_mode: bool) {
        let mut fixture = GatewayFixture::new();
        let device = TestDevice::new(1, if key_mode { Mode::Key } else { Mode::Pool });
        fixture.gateway.install(device.install(0, 2)).unwrap();
        let line = fixture.gateway.line(device.id);
        let response = device.response(0, fixture.fresh);
        let altered = altered(&response, at, &[response[at] ^ 1 << bit]);
        prop_assert_ne!(fixture.verdict(&device, &altered), Verdict::ReplyAck);
        prop_assert_eq!(fixture.gateway.line(device.id), line);
        prop_assert_eq!(fixture.verdict(&device, &response), Verdict::ReplyAck);
    }

    /// The same state, time and frame give the same verdict and bytes; no bytes make the gateway panic.
    #[test]
    fn two_gateways_have_the_same_verdict_for_any_frame(
        mut frame in prop::collection::vec(any::<u8>(), 0..160),
        payload in prop::collection::vec(any::<u8>(), 0..80),
        kind in 0u8..20,
        shape in 0u8..4,
    ) {
        let ((mut first, device), (mut second, _)) = (one_device(2), one_device(2));
        match shape {
            0 => {}
            1 => frame = first.frame(&device, gateway_endpoint(), &payload),
            _ => frame = first.frame(&device, gateway_endpoint(), &altered(&device.request(1), 3, &[kind])),
        }
        let mut copy = frame.clone();
        let verdict = first.handle(device.ingress, &mut frame);
        prop_assert_eq!(second.handle(device.ingress, &mut copy), verdict);
        prop_assert_eq!(frame, copy);
    }
}
