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

use linewarden_dataplane::{Gate, StoreError};
use linewarden_protocol::verdict::Verdict;

use records::{Group, Record};
use support::device::A;
use support::shape::Shape;
use support::world::World;

/// Whether the switch has what these records are about. Its limits are buckets that fill steadily, not counts of a second.
fn is_declared(shape: &Shape) -> bool {
    shape.gate != Gate::Sealed
        && shape.nak_per_s == u32::MAX
        && shape.classic.is_none()
        && shape.miss_per_s == 0
        && shape.provers == 0
        && !shape.p4dra
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
fn frames_with_the_gate_off() {
    run(records::frame::groups());
}

#[test]
fn frames_with_the_gate_open() {
    run(records::gate::groups());
}
