//! Where messages may come from, and which frames are the gateway's (LAP/1 1.4.12, 1.4.13).

use core::net::IpAddr;

use super::support::{Bench, INGRESS, Prover, device_sources, gateway_end, one_device};
use crate::frame::builder::FrameBuilder;
use crate::frame::write::Endpoint;
use crate::gateway::{Gate, GatewayConfig, Live};
use crate::ids::Mode;
use crate::verdict::Verdict;

/// The device's own messages, both of them, from another address: its verdicts, and whether its row is unspent.
fn from_address(bench: &mut Bench, prover: &Prover, source: &str) -> [Verdict; 2] {
    let mut moved = prover.clone();
    moved.from.ip = source.parse().unwrap();
    let idx = bench.idx(prover);
    let before = bench.gateway.line(prover.device).unwrap().session_id;
    let request = bench.verdict(&moved, &moved.request(1));
    let response = moved.response(idx, bench.fresh);
    let verdicts = [request, bench.verdict(&moved, &response)];
    if verdicts == [Verdict::DropSourceNotDevice; 2] {
        assert_eq!(bench.idx(prover), idx, "{source}");
        assert_eq!(
            bench.gateway.line(prover.device).unwrap().session_id,
            before,
            "{source}"
        );
    }
    verdicts
}

#[test]
fn an_enrolled_device_gets_nothing_from_an_address_that_is_no_device_s() {
    let (mut bench, prover) = one_device(3);
    for source in [
        "10.66.0.254",   // the gateway
        "10.77.0.1",     // a service
        "10.66.255.255", // everybody on the link
        "127.0.0.1",
        "8.8.8.8",
        "10.67.0.1",
    ] {
        let verdicts = from_address(&mut bench, &prover, source);
        assert_eq!(verdicts, [Verdict::DropSourceNotDevice; 2], "{source}");
    }
    let verdicts = from_address(&mut bench, &prover, "10.66.0.9");
    assert_eq!(verdicts, [Verdict::ReplyChallenge, Verdict::ReplyAck]);
}

#[test]
fn where_devices_are_can_change_and_a_session_outside_is_not_renewed() {
    let (mut bench, prover) = one_device(3);
    let live = |sources| Live {
        sources: Some(sources),
        lease_s: 600,
        nak_per_s: 100,
        miss_per_s: 0,
    };
    bench.gateway.reconfigure(live(device_sources(&["8.8.8.0/24"])));
    let verdicts = from_address(&mut bench, &prover, "8.8.8.8");
    assert_eq!(verdicts, [Verdict::ReplyChallenge, Verdict::ReplyAck]);
    bench.gateway.reconfigure(live(device_sources(&[])));
    let verdicts = from_address(&mut bench, &prover, "8.8.8.8");
    assert_eq!(verdicts, [Verdict::DropSourceNotDevice; 2]);
    assert_ne!(
        bench.gateway.line(prover.device).unwrap().session_id,
        [0; 8],
        "it lasts as long as it was granted"
    );
}

/// Nobody's message is looked at before its address: neither a stranger's, which would go to the controller.
#[test]
fn the_address_is_judged_before_the_device() {
    let mut stranger = Prover::new(9, Mode::Pool);
    let mut bench = Bench::with(|config| config.miss_per_s = 10);
    assert_eq!(bench.verdict(&stranger, &stranger.request(1)), Verdict::SlowPath);
    stranger.from.ip = IpAddr::from([8, 8, 8, 8]);
    let response = stranger.response(0, bench.fresh);
    for message in [stranger.request(1), response] {
        assert_eq!(bench.verdict(&stranger, &message), Verdict::DropSourceNotDevice);
    }
    let config = GatewayConfig::new(super::support::GATEWAY, &[gateway_end().ip]);
    assert!(
        !config.sources.unwrap().admits(stranger.from.ip),
        "nobody by default"
    );
}

/// A reply in its name would move a silent station's address on the link to the gateway's port.
#[test]
fn a_frame_for_another_station_is_not_the_gateway_s() {
    let other = Endpoint {
        mac: [2, 0, 0, 0, 0xaa, 1],
        ..gateway_end()
    };
    for (gate, expected) in [
        (Gate::Off, Verdict::PassForeign),
        (Gate::Open, Verdict::DropGatePort),
        (Gate::Sealed, Verdict::DropGatePort),
    ] {
        let (mut bench, prover) = one_device(2);
        let mut config = bench.gateway.config().clone();
        config.gate = gate;
        bench.gateway = crate::gateway::Gateway::new(config);
        bench.renew();
        bench.gateway.install(prover.install(0, 2)).unwrap();
        for message in [prover.request(1), prover.response(0, bench.fresh)] {
            let mut frame = bench.frame(&prover, other, &message);
            assert_eq!(bench.handle(INGRESS, &mut frame), expected, "{gate:?}");
        }
        let mut own = bench.frame(&prover, gateway_end(), &prover.request(1));
        assert_eq!(
            bench.handle(INGRESS, &mut own),
            Verdict::ReplyChallenge,
            "{gate:?}"
        );
    }
    let mut bench = Bench::with(|config| config.gate = Gate::Off);
    let from = Prover::new(1, Mode::Pool).from;
    for (to, expected) in [
        (other, Verdict::PassForeign),
        (gateway_end(), Verdict::PassUnparsed),
    ] {
        let mut frame = FrameBuilder::new(from, to).options(&[1]).udp(b"x");
        assert_eq!(bench.handle(INGRESS, &mut frame), expected);
    }
}
