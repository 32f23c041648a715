//! What stands in the replies.

use proptest::prelude::*;

use super::support::{
    Bench, GATEWAY, LEASE_S, Prover, bent, challenge, device_sources, gateway_end, nak, one_device,
    verified_ack,
};
use crate::frame::builder::FrameBuilder;
use crate::frame::ip_bytes;
use crate::frame::write::Endpoint;
use crate::gateway::Live;
use crate::ids::Mode;
use crate::keys::SessionKey;
use crate::tag;
use crate::verdict::Verdict;
use crate::wire::{message_type, nak_reason};

#[test]
fn a_challenge_offers_the_current_row_and_the_same_request_gets_the_same_bytes() {
    let (mut bench, prover) = one_device(2);
    let (verdict, payload) = bench.send(&prover, &prover.request(0x21));
    assert_eq!(verdict, Verdict::ReplyChallenge);
    let message = challenge(&payload);
    assert_eq!(message.header.kind, message_type::CHALLENGE);
    assert_eq!(message.header.device(), prover.device);
    assert_eq!((message.idx.get(), message.gateway_id.get()), (0, GATEWAY.0));
    assert_eq!(message.challenge, prover.row(0).challenge);
    assert_eq!(message.fresh, bench.fresh);
    assert_eq!(message.nonce_echo, [0x21; 8]);
    assert_eq!(
        message.tag,
        tag::challenge(&prover.auth_key(0), &message, &[0x21; 16])
    );
    assert_eq!(bench.send(&prover, &prover.request(0x21)).1, payload);
    assert_ne!(bench.send(&prover, &prover.request(0x22)).1, payload);
}

#[test]
fn pool_rows_are_spent_in_order_and_each_once() {
    let (mut bench, prover) = one_device(3);
    for idx in 0..3 {
        let (_, payload) = bench.send(&prover, &prover.request(1));
        assert_eq!(challenge(&payload).idx.get(), idx);
        let response = prover.response(idx, bench.fresh);
        let (verdict, payload) = bench.send(&prover, &response);
        assert_eq!(verdict, Verdict::ReplyAck);
        let ack = verified_ack(&prover, &response, &payload);
        assert_eq!(ack.lease_s.get(), LEASE_S);
        assert_eq!(ack.seen_ip, ip_bytes(prover.from.ip));
        let line = bench.gateway.line(prover.device).unwrap();
        assert_eq!(
            line.session.session_key,
            SessionKey::derive(&prover.auth_key(idx), super::support::SUITE, &line.session.tag)
        );
        assert_eq!(line.window.generation(), line.commit.window_generation());
    }
    let line = bench.gateway.line(prover.device).unwrap();
    assert!(line.commit.is_empty());
    assert_eq!(
        line.auth_key.as_bytes(),
        &[0; 16],
        "no key is left where no row is"
    );
    let (verdict, payload) = bench.send(&prover, &prover.request(1));
    assert_eq!(verdict, Verdict::ReplyNak);
    assert_eq!(
        (nak(&payload).idx.get(), nak(&payload).reason),
        (3, nak_reason::NO_ROWS)
    );
}

#[test]
fn key_mode_counts_and_keeps_its_key() {
    let mut bench = Bench::new();
    let prover = Prover::new(1, Mode::Key);
    bench.gateway.install(prover.install(40, 1)).unwrap();
    for idx in 40..60 {
        let (_, payload) = bench.send(&prover, &prover.request(1));
        let message = challenge(&payload);
        assert_eq!((message.idx.get(), message.challenge), (idx, [0; 8]));
        let response = prover.response(idx, bench.fresh);
        let (verdict, payload) = bench.send(&prover, &response);
        assert_eq!(verdict, Verdict::ReplyAck);
        verified_ack(&prover, &response, &payload);
    }
}

#[test]
fn the_last_number_is_never_spent() {
    let mut bench = Bench::new();
    let prover = Prover::new(1, Mode::Key);
    bench.gateway.install(prover.install(u32::MAX, 1)).unwrap();
    let response = prover.response(u32::MAX, bench.fresh);
    assert_eq!(bench.verdict(&prover, &response), Verdict::DropNoRows);
    assert!(bench.gateway.line(prover.device).unwrap().commit.is_valid());
}

#[test]
fn a_session_keeps_the_lease_that_it_was_granted() {
    let (mut bench, prover) = one_device(3);
    let response = prover.response(0, bench.fresh);
    let (_, first) = bench.send(&prover, &response);
    bench.gateway.reconfigure(Live {
        sources: Some(device_sources(&[])),
        lease_s: LEASE_S / 2,
        nak_per_s: 0,
        miss_per_s: 0,
    });
    assert_eq!(
        bench.send(&prover, &response),
        (Verdict::ReplyAckAgain, first.clone())
    );
    let (_, next) = bench.send(&prover, &prover.response(1, bench.fresh));
    let lease_s = |ack: &[u8]| u32::from_be_bytes(ack[20..24].try_into().unwrap());
    assert_eq!((lease_s(&first), lease_s(&next)), (LEASE_S, LEASE_S / 2));
}

#[test]
fn the_winning_response_gets_the_same_ack_until_its_lease_ends() {
    let (mut bench, prover) = one_device(2);
    let response = prover.response(0, bench.fresh);
    let (_, first) = bench.send(&prover, &response);
    bench.renew();
    bench.renew();
    bench.renew();
    let line = bench.gateway.line(prover.device);
    let (verdict, again) = bench.send(&prover, &response);
    assert_eq!((verdict, &again), (Verdict::ReplyAckAgain, &first));
    assert_eq!(bench.gateway.line(prover.device), line);

    let elsewhere = |change: fn(&mut Prover)| {
        let mut moved = prover.clone();
        change(&mut moved);
        moved
    };
    for moved in [
        elsewhere(|prover| prover.from.port += 1),
        elsewhere(|prover| prover.from.mac[5] = 0xee),
        elsewhere(|prover| prover.from.ip = [10, 66, 0, 99].into()),
        elsewhere(|prover| prover.vlan = Some(1)),
        elsewhere(|prover| prover.ingress += 1),
    ] {
        assert_eq!(bench.verdict(&moved, &response), Verdict::DropReplay);
    }
    bench.pass_s(u64::from(LEASE_S) - 1);
    assert_eq!(bench.verdict(&prover, &response), Verdict::ReplyAckAgain);
    bench.pass_s(1);
    assert_eq!(bench.verdict(&prover, &response), Verdict::DropReplay);
}

#[test]
fn a_lease_goes_on_through_suspend() {
    let (mut bench, prover) = one_device(2);
    bench.authenticate(&prover);
    assert!(bench.gateway.session(prover.device, bench.now).is_some());
    bench.now = bench.now.plus_suspend_ms(u64::from(LEASE_S) * 1000);
    assert!(bench.gateway.session(prover.device, bench.now).is_none());
    assert_eq!(bench.through_gate(&prover), Verdict::DropGateLease);
}

#[test]
fn unbound_responses_are_accepted_but_open_no_gate() {
    let (mut bench, prover) = one_device(2);
    let response = prover.response_with(0, bench.fresh, 1, None);
    let (verdict, payload) = bench.send(&prover, &response);
    assert_eq!(verdict, Verdict::ReplyAck);
    verified_ack(&prover, &response, &payload);
    assert!(!bench.gateway.line(prover.device).unwrap().session.bound);
    assert_eq!(bench.through_gate(&prover), Verdict::DropGate);
}

#[test]
fn naks_are_limited_per_second_and_say_that_the_gateway_stops() {
    let mut bench = Bench::with(|config| config.nak_per_s = 2);
    let prover = Prover::new(1, Mode::Pool);
    bench.gateway.install(prover.install(0, 1)).unwrap();
    bench.gateway.set_stopping(true);
    let verdicts: [Verdict; 3] = core::array::from_fn(|_| bench.verdict(&prover, &prover.request(1)));
    assert_eq!(
        verdicts,
        [Verdict::ReplyNak, Verdict::ReplyNak, Verdict::DropNakLimit]
    );
    bench.now = bench.now.plus_ms(1000);
    let (verdict, payload) = bench.send(&prover, &prover.request(1));
    assert_eq!(verdict, Verdict::ReplyNak);
    assert_eq!(nak(&payload).reason, nak_reason::STOPPING);
    let response = prover.response(0, bench.fresh);
    assert_eq!(
        bench.verdict(&prover, &response),
        Verdict::ReplyAck,
        "who was challenged is served"
    );
    bench.gateway.set_stopping(false);
    bench.now = bench.now.plus_ms(1000);
    assert_eq!(
        bench.verdict(&prover, &prover.request(1)),
        Verdict::ReplyNak,
        "no row is left"
    );
}

#[test]
fn ipv6_and_vlans_work_as_ipv4() {
    let mut bench = Bench::new();
    let mut prover = Prover::new(1, Mode::Pool);
    prover.from.ip = [0xfd66, 0, 0, 0, 0, 0, 0, 1].into();
    prover.vlan = Some(12);
    bench.gateway.install(prover.install(0, 1)).unwrap();
    let to = Endpoint {
        ip: [0xfd66, 0, 0, 0, 0, 0, 0, 0xfe].into(),
        ..gateway_end()
    };
    let response = prover.response(0, bench.fresh);
    let mut frame = FrameBuilder::new(prover.from, to).vlan(12).udp(&response);
    assert_eq!(bench.handle(prover.ingress, &mut frame), Verdict::ReplyAck);
    let ack = verified_ack(&prover, &response, &frame[frame.len() - 64..]);
    assert_eq!(ack.seen_ip, ip_bytes(prover.from.ip));
    let line = bench.gateway.line(prover.device).unwrap();
    assert_eq!(line.session.vlans, [0x100c, 0]);
    assert_eq!(line.ingress, prover.ingress);
}

proptest! {
    /// Whatever bit of a RESPONSE is flipped, nobody is let in, and nothing is written.
    #[test]
    fn no_altered_response_is_accepted(at in 0usize..64, bit in 0u8..8, key_mode: bool) {
        let mut bench = Bench::new();
        let prover = Prover::new(1, if key_mode { Mode::Key } else { Mode::Pool });
        bench.gateway.install(prover.install(0, 2)).unwrap();
        let line = bench.gateway.line(prover.device);
        let response = prover.response(0, bench.fresh);
        let altered = bent(&response, at, &[response[at] ^ 1 << bit]);
        prop_assert_ne!(bench.verdict(&prover, &altered), Verdict::ReplyAck);
        prop_assert_eq!(bench.gateway.line(prover.device), line);
        prop_assert_eq!(bench.verdict(&prover, &response), Verdict::ReplyAck);
    }

    /// The same state, time and frame give the same verdict and bytes; no bytes make it panic.
    #[test]
    fn any_frame_is_judged_alike_by_two_gateways(
        mut frame in prop::collection::vec(any::<u8>(), 0..160),
        payload in prop::collection::vec(any::<u8>(), 0..80),
        kind in 0u8..20,
        shaped in 0u8..4,
    ) {
        let ((mut one, prover), (mut two, _)) = (one_device(2), one_device(2));
        match shaped {
            0 => {}
            1 => frame = one.frame(&prover, gateway_end(), &payload),
            _ => frame = one.frame(&prover, gateway_end(), &bent(&prover.request(1), 3, &[kind])),
        }
        let mut other = frame.clone();
        let verdict = one.handle(prover.ingress, &mut frame);
        prop_assert_eq!(two.handle(prover.ingress, &mut other), verdict);
        prop_assert_eq!(frame, other);
    }
}
