//! Allowed source addresses, and frames addressed to the gateway (LAP/1 1.4.12, 1.4.13).

use core::net::IpAddr;

use super::support::{GatewayFixture, INGRESS, TestDevice, device_sources, gateway_endpoint, one_device};
use crate::frame::builder::FrameBuilder;
use crate::frame::write::Endpoint;
use crate::gateway::{Gate, GatewayConfig, LiveSettings};
use crate::ids::Mode;
use crate::verdict::Verdict;

/// Sends a REQUEST and a RESPONSE of the device from another address; returns their verdicts. If both messages are
/// rejected, the row must be unspent.
fn verdicts_from(fixture: &mut GatewayFixture, device: &TestDevice, source: &str) -> [Verdict; 2] {
    let mut moved = device.clone();
    moved.endpoint.ip = source.parse().unwrap();
    let idx = fixture.idx(device);
    let session_before = fixture.gateway.line(device.id).unwrap().session_id;
    let request = fixture.verdict(&moved, &moved.request(1));
    let response = moved.response(idx, fixture.fresh);
    let verdicts = [request, fixture.verdict(&moved, &response)];
    if verdicts == [Verdict::DropSourceNotDevice; 2] {
        assert_eq!(fixture.idx(device), idx, "{source}");
        assert_eq!(
            fixture.gateway.line(device.id).unwrap().session_id,
            session_before,
            "{source}"
        );
    }
    verdicts
}

#[test]
fn an_enrolled_device_gets_no_reply_at_an_address_outside_the_device_prefixes() {
    let (mut fixture, device) = one_device(3);
    for source in [
        "10.66.0.254",   // the gateway
        "10.77.0.1",     // a service
        "10.66.255.255", // all stations on the link
        "127.0.0.1",
        "8.8.8.8",
        "10.67.0.1",
    ] {
        let verdicts = verdicts_from(&mut fixture, &device, source);
        assert_eq!(verdicts, [Verdict::DropSourceNotDevice; 2], "{source}");
    }
    let verdicts = verdicts_from(&mut fixture, &device, "10.66.0.9");
    assert_eq!(verdicts, [Verdict::ReplyChallenge, Verdict::ReplyAck]);
}

#[test]
fn device_prefixes_can_change_and_a_session_outside_is_not_renewed() {
    let (mut fixture, device) = one_device(3);
    let settings_with = |sources| LiveSettings {
        sources: Some(sources),
        session_lifetime_s: 600,
        nak_per_s: 100,
        miss_per_s: 0,
    };
    fixture
        .gateway
        .reconfigure(settings_with(device_sources(&["8.8.8.0/24"])));
    let verdicts = verdicts_from(&mut fixture, &device, "8.8.8.8");
    assert_eq!(verdicts, [Verdict::ReplyChallenge, Verdict::ReplyAck]);
    fixture.gateway.reconfigure(settings_with(device_sources(&[])));
    let verdicts = verdicts_from(&mut fixture, &device, "8.8.8.8");
    assert_eq!(verdicts, [Verdict::DropSourceNotDevice; 2]);
    assert_ne!(
        fixture.gateway.line(device.id).unwrap().session_id,
        [0; 8],
        "the session keeps its granted lifetime"
    );
}

/// The address is checked first, before a message of an unknown device goes to the controller.
#[test]
fn the_address_is_checked_before_the_device() {
    let mut unknown = TestDevice::new(9, Mode::Pool);
    let mut fixture = GatewayFixture::with(|config| config.miss_per_s = 10);
    assert_eq!(fixture.verdict(&unknown, &unknown.request(1)), Verdict::SlowPath);
    unknown.endpoint.ip = IpAddr::from([8, 8, 8, 8]);
    let response = unknown.response(0, fixture.fresh);
    for message in [unknown.request(1), response] {
        assert_eq!(fixture.verdict(&unknown, &message), Verdict::DropSourceNotDevice);
    }
    let config = GatewayConfig::new(super::support::GATEWAY, &[gateway_endpoint().ip]);
    assert!(
        !config.sources.unwrap().admits(unknown.endpoint.ip),
        "no sender is admitted by default"
    );
}

/// A reply on behalf of a silent station would move that station's address to the gateway's port.
#[test]
fn a_frame_for_another_station_gets_no_reply() {
    let other_station = Endpoint {
        mac: [2, 0, 0, 0, 0xaa, 1],
        ..gateway_endpoint()
    };
    for (gate, expected) in [
        (Gate::Off, Verdict::PassForeign),
        (Gate::Bound, Verdict::DropGatePort),
        (Gate::Sealed, Verdict::DropGatePort),
    ] {
        let (mut fixture, device) = one_device(2);
        let mut config = fixture.gateway.config().clone();
        config.gate = gate;
        fixture.gateway = crate::gateway::Gateway::new(config);
        fixture.rotate_fresh_value();
        fixture.gateway.install(device.install(0, 2)).unwrap();
        for message in [device.request(1), device.response(0, fixture.fresh)] {
            let mut frame = fixture.frame(&device, other_station, &message);
            assert_eq!(fixture.handle(INGRESS, &mut frame), expected, "{gate:?}");
        }
        let mut frame = fixture.frame(&device, gateway_endpoint(), &device.request(1));
        assert_eq!(
            fixture.handle(INGRESS, &mut frame),
            Verdict::ReplyChallenge,
            "{gate:?}"
        );
    }
    let mut fixture = GatewayFixture::with(|config| config.gate = Gate::Off);
    let from = TestDevice::new(1, Mode::Pool).endpoint;
    for (to, expected) in [
        (other_station, Verdict::PassForeign),
        (gateway_endpoint(), Verdict::PassUnparsed),
    ] {
        let mut frame = FrameBuilder::new(from, to).options(&[1]).udp(b"x");
        assert_eq!(fixture.handle(INGRESS, &mut frame), expected);
    }
}
