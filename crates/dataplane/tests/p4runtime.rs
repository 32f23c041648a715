//! The packet tests on a P4 switch that `p4runtime` controls: those of the common suite that it declares a capability for,
//! beside the oracle and the other data planes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[allow(dead_code, reason = "the records of other capabilities")]
mod records;
mod support;

use std::net::SocketAddr;
use std::time::Instant;

use linewarden_dataplane::p4runtime::{P4Runtime, Place};
use linewarden_dataplane::{DataPlaneError, StoreError};
use linewarden_protocol::attest::RequestKey;
use linewarden_protocol::frame::builder::FrameBuilder;
use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::AttestRequest;
use zerocopy::IntoBytes as _;

use records::{Group, Record};
use support::device::{A, B, Dev, gateway_end};
use support::shape::Shape;
use support::world::World;
use support::world::attest::round;
use support::world::switch::{DEVICES, LONG, Switch};

/// Whether the switch has what these records are about. Its limits are buckets that fill steadily, not counts of a second.
fn is_declared(Group { shape, .. }: &Group) -> bool {
    P4Runtime::CAPABILITIES.missing(&shape.config()).is_none()
        && shape.nak_per_s == u32::MAX
        && [0, u32::MAX].contains(&shape.miss_per_s)
        && !shape.no_bindings
}

fn run(groups: Vec<Group>) {
    let mut sent = 0;
    for group in groups.into_iter().filter(is_declared) {
        let mut world = World::with_switch(group.shape);
        for Record {
            description,
            given,
            packet,
            verdict,
        } in group.records
        {
            world.reset();
            given(&mut world);
            let frame = packet(&world);
            let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let got = world.send(&frame);
                world.compare_lines();
                got
            }));
            match judged {
                Ok(got) => assert_eq!(got, verdict, "{description} ({:?})", group.shape),
                Err(panic) => {
                    eprintln!("in the record: {description} ({:?})", group.shape);
                    std::panic::resume_unwind(panic);
                }
            }
        }
        sent += world.sent_to_switch();
    }
    println!("{sent} frames went through the switch");
    assert!(sent > 0);
}

#[test]
fn a_device_is_installed_challenged_admitted_and_revoked() {
    let mut world = World::with_switch(Shape::OPEN);
    world.pool(A, 7, 3);
    let request = A.frame(false).udp(&world.request(A));
    assert_eq!(world.send(&request), Verdict::ReplyChallenge);
    world.open_bound(A, false);
    assert_eq!(world.commit(A).idx().0, 8);
    world.revoke(A);
    assert_eq!(world.send(&request), Verdict::DropRevoked);
    world.wipe(A);
    assert_eq!(world.send(&request), Verdict::DropUnknownDevice);
    assert_eq!(world.sent_to_switch(), 4);
}

#[test]
fn a_switch_that_is_gone_is_told_and_takes_nothing() {
    let mut world = World::with_switch(Shape::OFF);
    let (why, refused) = world.lose_switch();
    println!("{why}");
    assert_eq!(refused, Err(StoreError::Switch(A.id())));
}

/// A frame that is no IP packet, from the gateway to somebody.
fn frame_to(mac: [u8; 6], number: u8) -> Vec<u8> {
    [&mac[..], &gateway_end(false).mac, &[0x88, 0xb5, number], &[0; 45]].concat()
}

#[test]
fn who_is_named_nowhere_is_elsewhere() {
    const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 9];
    let switch = Switch::start();
    let (mut options, config) = (switch.options(), Shape::OFF.config());
    let _plane = P4Runtime::connect(&config, &options).unwrap();
    assert!(switch.services.send(&frame_to(STRANGER, 1)));
    // What the switch takes no earlier than that.
    let known = frame_to(gateway_end(false).mac, 2);
    assert!(switch.devices.send(&known));
    assert_eq!(switch.services.receive(LONG).unwrap(), known);

    options.election_id += 1;
    options.elsewhere = Some(DEVICES);
    let _plane = P4Runtime::connect(&config, &options).unwrap();
    let stranger = frame_to(STRANGER, 3);
    assert!(switch.services.send(&stranger));
    assert_eq!(switch.devices.receive(LONG).unwrap(), stranger);

    options.elsewhere = Some(Place { port: 510, ..DEVICES });
    let refused = P4Runtime::connect(&config, &options).unwrap_err().to_string();
    assert!(refused.contains("510"), "{refused}");
}

/// Who is not known must not be dropped for a stranger.
#[test]
fn more_are_enrolled_than_the_switch_has_room_for_and_all_may_come() {
    let mut world = World::with_switch(Shape {
        miss_per_s: u32::MAX,
        ..Shape::OFF
    });
    let request = A.frame(false).udp(&world.request(A));
    world.enrol_at_switch(1);
    world.filter_at_switch();
    assert_eq!(world.send_to_switch_alone(&request), Verdict::DropUnknownDevice);
    world.enrol_at_switch(1_048_576);
    world.filter_at_switch();
    assert_eq!(world.send_to_switch_alone(&request), Verdict::SlowPath);
}

/// A mark that is moved for nothing costs an idle device rows when its gateway crashes.
#[test]
fn nobody_asks_for_a_device_that_has_spent_nothing() {
    let mut world = World::with_switch(Shape::OFF);
    world.pool_on_credit(A, 4, 3, 2);
    let told = world.housekeep_switch();
    assert_eq!(told, [], "it has neither asked nor spent");
}

#[test]
fn messages_that_are_not_lap() {
    run(records::malformed::groups());
}

/// A switch that another gateway has taken since knows the prefixes of its configuration, and those of its changes.
#[test]
fn device_prefixes_follow_changes_and_a_new_start() {
    let mut world = World::with_switch(Shape::SLOW);
    let at = |ip: [u8; 4]| {
        let end = Endpoint {
            ip: ip.into(),
            ..A.end(false)
        };
        FrameBuilder::new(end, gateway_end(false)).udp(&world.request(A))
    };
    let [home, far, own] = [[10, 66, 0, 9], [8, 8, 8, 8], [10, 66, 0, 254]].map(at);
    for _ in 0..2 {
        let expect = |world: &mut World, verdicts: [Verdict; 3]| {
            let got = [&home, &far, &own].map(|frame| world.send_to_switch_alone(frame));
            assert_eq!(got, verdicts);
        };
        let (passes, refused) = (Verdict::SlowPath, Verdict::DropSourceNotDevice);
        expect(&mut world, [passes, refused, refused]);
        world.move_devices(&["8.8.0.0/16"]);
        expect(&mut world, [refused, passes, refused]);
        world.move_devices(&["0.0.0.0/0"]);
        expect(&mut world, [passes, passes, refused]);
        world.leave_switch_behind();
        world.reset();
    }
}

#[test]
fn messages_from_where_no_device_is_and_frames_for_others() {
    run(records::admission::groups());
}

#[test]
fn requests() {
    run(records::request::groups());
}

#[test]
fn responses() {
    run(records::response::groups());
}

#[test]
fn repeated_responses() {
    run(records::again::groups());
}

#[test]
fn responses_from_owned_addresses() {
    run(records::owner::groups());
}

#[test]
fn closed_sessions() {
    run(records::closed::groups());
}

#[test]
fn messages_of_devices_that_are_not_here() {
    run(records::slow::groups());
}

#[test]
fn frames_with_the_gate_off() {
    run(records::frame::groups());
}

#[test]
fn frames_with_the_gate_open() {
    run(records::gate::groups());
}

#[test]
fn what_always_passes() {
    run(records::always::groups());
}

#[test]
fn proofs() {
    run(records::attest::groups());
}

/// A request to a port of the device's, as its frame comes out: from where the device knows the gateway.
fn asked(device: Dev, port: u16, request: &AttestRequest) -> Vec<u8> {
    let to = Endpoint {
        port,
        ..device.end(false)
    };
    FrameBuilder::new(gateway_end(false), to)
        .ip_fields(0, 0, 64)
        .udp(request.as_bytes())
}

/// A message in a device's name, from somewhere, that the gateway takes notice of.
fn knock(world: &mut World, from: Endpoint, device: Dev) {
    let frame = FrameBuilder::new(from, gateway_end(false)).udp(&world.request(device));
    assert_eq!(world.send(&frame), Verdict::SlowPath);
    let deadline = Instant::now() + LONG;
    while world.drain_misses_at_switch() == 0 {
        assert!(Instant::now() < deadline, "the switch hands on no message");
        std::thread::yield_now();
    }
}

/// Tickets are proven by it (LAP/1 1.7.2).
#[test]
fn the_key_of_a_session_is_told_as_long_as_the_device_has_it() {
    let mut world = World::with_switch(Shape::SLOW);
    let devices = [B.id(), A.id(), DeviceId(77)];
    world.pool(A, 7, 3);
    world.pool(B, 0, 3);
    assert!(
        world
            .keyed_sessions(&devices)
            .concat()
            .iter()
            .all(Option::is_none)
    );
    world.open_bound(A, false);
    let key = world.held(A).key;
    let told = world.keyed_sessions(&devices);
    assert!(told.len() > 1, "of the switch, too");
    for of_plane in told {
        let [None, Some(held), None] = &of_plane[..] else {
            panic!("{of_plane:?}");
        };
        assert_eq!((&held.key, held.view.port), (&key, A.end(false).port));
    }
    world.revoke(A);
    assert!(
        world
            .keyed_sessions(&devices)
            .concat()
            .iter()
            .all(Option::is_none)
    );
}

#[test]
fn provers_are_asked_where_they_were_and_nobody_else_is() {
    const PORT: u16 = 7321;
    let mut world = World::with_switch(Shape {
        provers: 16,
        ..Shape::SLOW
    });
    let round = round(4, 1);
    let requests = |world: &mut World| world.session_requests(A, &round);
    let to = |device: Dev| SocketAddr::new(device.end(false).ip, PORT);
    for device in [A, B] {
        assert!(world.prover(device, 4, 1, None));
    }
    assert!(world.open_round(round, false));
    world.pool(A, 7, 3);
    assert!(requests(&mut world).iter().all(Option::is_none));
    world.open_bound(A, false);
    let key = world.held(A).key;
    let request = round.request(A.id(), &key);
    for in_session in requests(&mut world) {
        let (ip, got) = in_session.unwrap();
        assert_eq!((ip, got.as_bytes()), (A.end(false).ip, request.as_bytes()));
    }
    assert_eq!(
        world.ask_at_switch(to(A), request).unwrap(),
        asked(A, PORT, &request)
    );

    // It cannot get out of reach by moving on: what is sent to another address goes to where it is.
    let elsewhere = SocketAddr::new([10, 66, 77, 78].into(), PORT);
    let sent = world.ask_at_switch(elsewhere, request).unwrap();
    assert_eq!(sent[..6], A.mac());
    world.revoke(A);
    assert!(requests(&mut world).iter().all(Option::is_none));
    world.wipe(A);
    assert!(requests(&mut world).iter().all(Option::is_none));
    // Shut out, it may prove itself again, whoever knocks in its name from its address.
    let forger = Endpoint {
        mac: [2, 6, 6, 6, 6, 6],
        ..A.end(false)
    };
    knock(&mut world, forger, A);
    assert_eq!(
        world.ask_at_switch(to(A), request).unwrap(),
        asked(A, PORT, &request)
    );
    assert_eq!(world.next_at_devices()[..6], forger.mac, "and there as well");

    let request = round.request_without_session(B.id(), &RequestKey::from_bytes([7; 16]));
    let asked_of_b = world.ask_at_switch(to(B), request);
    assert!(
        matches!(asked_of_b, Err(DataPlaneError::Unplaced { .. })),
        "it has sent nothing"
    );
    knock(&mut world, B.end(false), B);
    assert_eq!(
        world.ask_at_switch(to(B), request).unwrap(),
        asked(B, PORT, &request)
    );
}
