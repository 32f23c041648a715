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

use linewarden_dataplane::StoreError;
use linewarden_dataplane::p4runtime::{P4Runtime, Place};
use linewarden_protocol::verdict::Verdict;

use records::{Group, Record};
use support::device::{A, gateway_end};
use support::shape::Shape;
use support::world::World;
use support::world::switch::{DEVICES, LONG, Switch};

/// Whether the switch has what these records are about. Its limits are buckets that fill steadily, not counts of a second.
fn is_declared(shape: &Shape) -> bool {
    P4Runtime::CAPABILITIES.missing(&shape.config()).is_none()
        && shape.nak_per_s == u32::MAX
        && [0, u32::MAX].contains(&shape.miss_per_s)
        && !shape.no_bindings
}

fn run(groups: Vec<Group>) {
    let mut sent = 0;
    for group in groups.into_iter().filter(|group| is_declared(&group.shape)) {
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
