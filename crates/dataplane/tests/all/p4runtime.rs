//! The packet tests on a P4 switch that `p4runtime` controls, together with the oracle and the other data planes.
//! Records that need a feature outside `p4runtime::CAPABILITIES` are skipped.

use std::net::SocketAddr;
use std::time::Instant;

use linewarden_dataplane::p4runtime::{CAPABILITIES, P4Runtime, SwitchPort};
use linewarden_dataplane::{DataPlaneError, StoreError};
use linewarden_protocol::attest::RequestKey;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::AttestRequest;
use zerocopy::IntoBytes as _;

use crate::records::{Group, Record};
use crate::support::device::{A, B, TestDevice, gateway_end};
use crate::support::fixture::TestFixture;
use crate::support::fixture::attest::round;
use crate::support::fixture::switch::{DEVICES, LONG_TIMEOUT, Switch};
use crate::support::test_config::TestConfig;

/// Whether the switch supports what these records test. Its rate limits are token buckets, so records that count
/// messages per second are excluded.
fn is_supported(Group { test_config, .. }: &Group) -> bool {
    CAPABILITIES.first_missing(&test_config.config()).is_none()
        && test_config.nak_per_s == u32::MAX
        && [0, u32::MAX].contains(&test_config.miss_per_s)
        && !test_config.no_bindings
}

fn run(groups: Vec<Group>) {
    let mut sent = 0;
    for group in groups.into_iter().filter(is_supported) {
        let mut fixture = TestFixture::with_switch(group.test_config);
        for Record {
            description,
            setup,
            packet,
            verdict,
        } in group.records
        {
            fixture.reset();
            setup(&mut fixture);
            let frame = packet(&fixture);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let got = fixture.send(&frame);
                fixture.compare_lines();
                got
            }));
            match result {
                Ok(got) => assert_eq!(got, verdict, "{description} ({:?})", group.test_config),
                Err(panic) => {
                    eprintln!("failed record: {description} ({:?})", group.test_config);
                    std::panic::resume_unwind(panic);
                }
            }
        }
        sent += fixture.sent_to_switch();
    }
    println!("{sent} frames went through the switch");
    assert!(sent > 0);
}

#[test]
fn a_device_is_installed_challenged_admitted_and_revoked() {
    let mut fixture = TestFixture::with_switch(TestConfig::BOUND);
    fixture.pool(A, 7, 3);
    let request = A.frame(false).udp(&fixture.request(A));
    assert_eq!(fixture.send(&request), Verdict::ReplyChallenge);
    fixture.open_bound(A, false);
    assert_eq!(fixture.commit(A).idx().0, 8);
    fixture.revoke(A);
    assert_eq!(fixture.send(&request), Verdict::DropRevoked);
    fixture.wipe(A);
    assert_eq!(fixture.send(&request), Verdict::DropUnknownDevice);
    assert_eq!(fixture.sent_to_switch(), 4);
}

#[test]
fn a_lost_switch_is_reported_and_accepts_nothing() {
    let mut fixture = TestFixture::with_switch(TestConfig::OFF);
    let (reason, result) = fixture.lose_switch();
    println!("{reason}");
    assert_eq!(result, Err(StoreError::SwitchFailed(A.id())));
}

/// A frame from the gateway to the given MAC address that contains no IP packet.
fn frame_to(mac: [u8; 6], number: u8) -> Vec<u8> {
    [&mac[..], &gateway_end(false).mac, &[0x88, 0xb5, number], &[0; 45]].concat()
}

#[test]
fn frames_to_unlisted_addresses_leave_only_through_the_default_port() {
    const UNKNOWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    let switch = Switch::start();
    let (mut options, config) = (switch.options(), TestConfig::OFF.config());
    let _data_plane = P4Runtime::connect(&config, &options).unwrap();
    assert!(switch.services.send(&frame_to(UNKNOWN_MAC, 1)));
    // A frame to a listed address is forwarded.
    let known = frame_to(gateway_end(false).mac, 2);
    assert!(switch.devices.send(&known));
    assert_eq!(switch.services.receive(LONG_TIMEOUT).unwrap(), known);

    options.election_id += 1;
    options.default_port = Some(DEVICES);
    let _data_plane = P4Runtime::connect(&config, &options).unwrap();
    let to_unknown = frame_to(UNKNOWN_MAC, 3);
    assert!(switch.services.send(&to_unknown));
    assert_eq!(switch.devices.receive(LONG_TIMEOUT).unwrap(), to_unknown);

    options.default_port = Some(SwitchPort { port: 510, ..DEVICES });
    let error = P4Runtime::connect(&config, &options).unwrap_err().to_string();
    assert!(error.contains("510"), "{error}");
}

/// The enrollment filter must not drop the messages of enrolled devices.
#[test]
fn all_enrolled_devices_pass_if_the_switch_has_no_space_for_them() {
    let mut fixture = TestFixture::with_switch(TestConfig {
        miss_per_s: u32::MAX,
        ..TestConfig::OFF
    });
    let request = A.frame(false).udp(&fixture.request(A));
    fixture.enroll_at_switch(1);
    fixture.filter_unenrolled_at_switch();
    assert_eq!(fixture.send_to_switch_alone(&request), Verdict::DropUnknownDevice);
    fixture.enroll_at_switch(1_048_576);
    fixture.filter_unenrolled_at_switch();
    assert_eq!(fixture.send_to_switch_alone(&request), Verdict::SlowPath);
}

/// Rows below a mark are lost when the gateway crashes. An idle device must not lose rows, so its mark stays.
#[test]
fn no_mark_is_requested_for_a_device_that_has_spent_nothing() {
    let mut fixture = TestFixture::with_switch(TestConfig::OFF);
    fixture.pool_on_credit(A, 4, 3, 2);
    let events = fixture.housekeep_switch();
    assert_eq!(events, [], "the device has neither requested nor spent a row");
}

#[test]
fn messages_that_are_not_lap() {
    run(crate::records::malformed::groups());
}

/// A switch that a new gateway takes over uses the prefixes of that gateway's configuration, and then follows its
/// changes.
#[test]
fn device_prefixes_follow_changes_and_a_new_gateway() {
    let mut fixture = TestFixture::with_switch(TestConfig::SLOW);
    let request_from_ip = |ip: [u8; 4]| {
        let end = Endpoint {
            ip: ip.into(),
            ..A.end(false)
        };
        FrameBuilder::new(end, gateway_end(false)).udp(&fixture.request(A))
    };
    let [inside, outside, own] = [[10, 66, 0, 9], [8, 8, 8, 8], [10, 66, 0, 254]].map(request_from_ip);
    for _ in 0..2 {
        let expect = |fixture: &mut TestFixture, verdicts: [Verdict; 3]| {
            let got = [&inside, &outside, &own].map(|frame| fixture.send_to_switch_alone(frame));
            assert_eq!(got, verdicts);
        };
        let (passes, refused) = (Verdict::SlowPath, Verdict::DropSourceNotDevice);
        expect(&mut fixture, [passes, refused, refused]);
        fixture.move_devices(&["8.8.0.0/16"]);
        expect(&mut fixture, [refused, passes, refused]);
        fixture.move_devices(&["0.0.0.0/0"]);
        expect(&mut fixture, [passes, passes, refused]);
        fixture.leave_switch_behind();
        fixture.reset();
    }
}

#[test]
fn messages_from_invalid_addresses_and_frames_for_other_stations() {
    run(crate::records::admission::groups());
}

#[test]
fn requests() {
    run(crate::records::request::groups());
}

#[test]
fn responses() {
    run(crate::records::response::groups());
}

#[test]
fn repeated_responses() {
    run(crate::records::repeated::groups());
}

#[test]
fn responses_from_owned_addresses() {
    run(crate::records::owner::groups());
}

#[test]
fn closed_sessions() {
    run(crate::records::closed::groups());
}

#[test]
fn messages_of_devices_that_are_not_installed() {
    run(crate::records::slow::groups());
}

#[test]
fn frames_with_the_gate_off() {
    run(crate::records::frame::groups());
}

#[test]
fn frames_with_a_bound_gate() {
    run(crate::records::gate::groups());
}

#[test]
fn frames_that_always_pass() {
    run(crate::records::always::groups());
}

#[test]
fn proofs() {
    run(crate::records::attest::groups());
}

/// The frame in which the device receives an attestation request. Its source is the gateway's address that the device
/// used for its own messages.
fn request_at_device(device: TestDevice, port: u16, request: &AttestRequest) -> Vec<u8> {
    let to = Endpoint {
        port,
        ..device.end(false)
    };
    FrameBuilder::new(gateway_end(false), to)
        .ip_fields(0, 0, 64)
        .udp(request.as_bytes())
}

/// Sends a REQUEST that names `device` from the address of `sender`, and waits until the gateway has received it.
fn request_from(fixture: &mut TestFixture, sender: Endpoint, device: TestDevice) {
    let frame = FrameBuilder::new(sender, gateway_end(false)).udp(&fixture.request(device));
    assert_eq!(fixture.send(&frame), Verdict::SlowPath);
    let deadline = Instant::now() + LONG_TIMEOUT;
    while fixture.drain_misses_at_switch() == 0 {
        assert!(Instant::now() < deadline, "the switch forwards no message");
        std::thread::yield_now();
    }
}

/// Proofs for tickets are verified with the session key that the data plane reports (LAP/1 1.7.2).
#[test]
fn a_session_key_is_reported_as_long_as_the_device_has_it() {
    let mut fixture = TestFixture::with_switch(TestConfig::SLOW);
    let devices = [B.id(), A.id(), DeviceId(77)];
    fixture.pool(A, 7, 3);
    fixture.pool(B, 0, 3);
    assert!(
        fixture
            .keyed_sessions(&devices)
            .concat()
            .iter()
            .all(Option::is_none)
    );
    fixture.open_bound(A, false);
    let key = fixture.device_session(A).key;
    let sessions = fixture.keyed_sessions(&devices);
    assert!(sessions.len() > 1, "the switch does not report sessions");
    for reported in sessions {
        let [None, Some(session), None] = &reported[..] else {
            panic!("{reported:?}");
        };
        assert_eq!((&session.key, session.view.port), (&key, A.end(false).port));
    }
    fixture.revoke(A);
    assert!(
        fixture
            .keyed_sessions(&devices)
            .concat()
            .iter()
            .all(Option::is_none)
    );
}

#[test]
fn requests_go_only_to_the_known_addresses_of_provers() {
    const PORT: u16 = 7321;
    let mut fixture = TestFixture::with_switch(TestConfig {
        provers: 16,
        ..TestConfig::SLOW
    });
    let round = round(4, 1);
    let requests = |fixture: &mut TestFixture| fixture.session_requests(A, &round);
    let to = |device: TestDevice| SocketAddr::new(device.end(false).ip, PORT);
    for device in [A, B] {
        assert!(fixture.install_prover(device, 4, 1, None));
    }
    assert!(fixture.open_round(round, false));
    fixture.pool(A, 7, 3);
    assert!(requests(&mut fixture).iter().all(Option::is_none));
    fixture.open_bound(A, false);
    let key = fixture.device_session(A).key;
    let request = round.request(A.id(), &key);
    for session_request in requests(&mut fixture) {
        let (ip, got) = session_request.unwrap();
        assert_eq!((ip, got.as_bytes()), (A.end(false).ip, request.as_bytes()));
    }
    assert_eq!(
        fixture.send_requests_at_switch(to(A), request).unwrap(),
        request_at_device(A, PORT, &request)
    );

    // The device cannot evade a request by moving: a request to another address is sent to its current location.
    let other_address = SocketAddr::new([10, 66, 77, 78].into(), PORT);
    let sent = fixture.send_requests_at_switch(other_address, request).unwrap();
    assert_eq!(sent[..6], A.mac());
    fixture.revoke(A);
    assert!(requests(&mut fixture).iter().all(Option::is_none));
    fixture.wipe(A);
    assert!(requests(&mut fixture).iter().all(Option::is_none));
    // A device that was revoked and wiped still receives requests, even if another host sends from its address.
    let forger = Endpoint {
        mac: [2, 6, 6, 6, 6, 6],
        ..A.end(false)
    };
    request_from(&mut fixture, forger, A);
    assert_eq!(
        fixture.send_requests_at_switch(to(A), request).unwrap(),
        request_at_device(A, PORT, &request)
    );
    assert_eq!(
        fixture.next_at_devices()[..6],
        forger.mac,
        "the request is also sent to the forger's MAC address"
    );

    let request = round.request_without_session(B.id(), &RequestKey::from_bytes([7; 16]));
    let result = fixture.send_requests_at_switch(to(B), request);
    assert!(
        matches!(result, Err(DataPlaneError::DeviceLocationUnknown { .. })),
        "the device has sent nothing"
    );
    request_from(&mut fixture, B.end(false), B);
    assert_eq!(
        fixture.send_requests_at_switch(to(B), request).unwrap(),
        request_at_device(B, PORT, &request)
    );
}
