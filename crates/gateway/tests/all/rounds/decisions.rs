//! The controller's decisions about rounds, and changes of devices in the feed.

use super::*;

const DEVICE: DeviceId = DeviceId(1);

/// An event that the node receives.
enum ReceivedEvent {
    /// A change of the device in the feed: its revision, and whether the device may authenticate.
    Feed(u64, bool),
    /// The controller's decision to quarantine the device, with the revision of the quarantine.
    Quarantined(u64),
    /// The controller's decision to release the device after a proof, with the revision of the release.
    Remediated(u64),
}

/// Delivers the events to a node in this order. Returns the names of the device's audit events, and the number of
/// revocations in the node's status.
fn records(received: &[ReceivedEvent]) -> (Vec<&'static str>, u64) {
    let mut fixture = NodeHarness::new(&[policy(60, 500)]);
    fixture.node.set_audit_rate(100);
    // Run until a round has ended, which is not appraised yet.
    fixture.decisions = None;
    fixture.run_for(70 * SECOND_NS);
    for event in received {
        match *event {
            ReceivedEvent::Feed(revision, active) => fixture.changes.push(Change {
                device: DEVICE,
                revision: Revision(revision),
                active,
                epoch: 0,
            }),
            ReceivedEvent::Quarantined(revision) => {
                fixture.decisions = Some(RoundAppraisal {
                    quarantined: vec![QuarantinedDevice {
                        device: DEVICE,
                        reason: String::new(),
                        revision: Revision(revision),
                    }],
                    ..RoundAppraisal::default()
                });
            }
            ReceivedEvent::Remediated(revision) => {
                fixture.decisions = Some(RoundAppraisal {
                    remediated: vec![(DEVICE, Revision(revision))],
                    ..RoundAppraisal::default()
                });
            }
        }
        let expected_outcomes = fixture.outcomes.len() + usize::from(fixture.decisions.is_some());
        while !fixture.changes.is_empty() || fixture.outcomes.len() < expected_outcomes {
            fixture.tick();
            fixture.now_ns = fixture
                .node
                .due_ns(fixture.now_ns)
                .max(fixture.now_ns + 1_000_000);
        }
        // The next round ends, and waits for its appraisal.
        fixture.decisions = None;
        fixture.run_for(70 * SECOND_NS);
    }
    let records = fixture.node.take_audit_records(true).into_iter();
    let names = records.filter_map(|record| match record.event {
        AuditEvent::Blocked { device: DEVICE, .. } => Some("blocked"),
        AuditEvent::Quarantined { device: DEVICE, .. } => Some("quarantined"),
        AuditEvent::Remediated { device: DEVICE } => Some("remediated"),
        AuditEvent::Released { device: DEVICE } => Some("released"),
        _ => None,
    });
    (names.collect(), fixture.node.status().revoked)
}

/// Between two reads of the feed, the device was released, returned, and missed too many proofs.
#[test]
fn a_device_that_returned_before_the_feed_reports_its_release_is_revoked_at_once() {
    let mut fixture = NodeHarness::new(&[policy(60, 500)]);
    fixture.decisions = None;
    fixture.run_for(70 * SECOND_NS);
    fixture.changes.push(Change {
        device: DEVICE,
        revision: Revision(3),
        active: false,
        epoch: 0,
    });
    // Run until the node has removed the revoked device.
    fixture.run_for(200 * SECOND_NS);
    fixture.admit(DEVICE);
    let is_revoked = |fixture: &NodeHarness| {
        fixture
            .node
            .data_plane()
            .status(DEVICE)
            .unwrap()
            .commit
            .is_revoked()
    };
    assert!(!is_revoked(&fixture));
    fixture.decisions = Some(RoundAppraisal {
        quarantined: vec![QuarantinedDevice {
            device: DEVICE,
            reason: String::new(),
            revision: Revision(5),
        }],
        ..RoundAppraisal::default()
    });
    while fixture.outcomes.is_empty() {
        fixture.tick();
        fixture.now_ns = fixture
            .node
            .due_ns(fixture.now_ns)
            .max(fixture.now_ns + 1_000_000);
    }
    assert!(is_revoked(&fixture));
}

#[test]
fn a_release_by_the_operator_is_recorded_once_and_in_order() {
    use ReceivedEvent::{Feed, Quarantined, Remediated};
    // The controller's decision arrives before the feed, which reports the quarantine and the release, or only the release.
    let expected = (vec!["quarantined", "blocked", "released"], 1);
    assert_eq!(
        records(&[Quarantined(5), Feed(5, false), Feed(6, true)]),
        expected
    );
    assert_eq!(records(&[Quarantined(5), Feed(6, true)]), expected);
    // The decision arrives after the operator's release, and does not block the device again.
    let expected = (vec!["blocked", "quarantined", "released"], 1);
    assert_eq!(
        records(&[Feed(5, false), Feed(6, true), Quarantined(5)]),
        expected
    );
    // One decision quarantines several devices. Each device has its own change; the decision has the highest revision.
    let expected = (vec!["quarantined", "blocked", "released"], 1);
    assert_eq!(
        records(&[Quarantined(5), Feed(4, false), Feed(6, true)]),
        expected
    );
    // The device's record is damaged: the feed reports a block with an arbitrary revision. Then the device is revoked.
    assert_eq!(
        records(&[Feed(99, false), Feed(99, false), Feed(5, false)]),
        (vec!["blocked", "blocked"], 2)
    );
    // A round of another gateway quarantines the device, so this node receives no decision.
    assert_eq!(
        records(&[Feed(5, false), Feed(5, false), Feed(6, true), Feed(7, true)]),
        (vec!["blocked", "released"], 1)
    );
    // A proof releases the device: the node records the remediation, but no release by the operator.
    for release in [[Feed(6, true), Remediated(6)], [Remediated(6), Feed(6, true)]] {
        let [first, second] = release;
        assert_eq!(
            records(&[Quarantined(5), Feed(5, false), first, second]),
            (vec!["quarantined", "blocked", "remediated"], 1)
        );
    }
    // The device is released and blocked again, and no decision arrives.
    assert_eq!(
        records(&[Feed(5, false), Feed(6, true), Feed(7, false)]),
        (vec!["blocked", "released", "blocked"], 2)
    );
}

/// Ticks the node. Adds the requests that `holds` selects to `held_back`, and responds to the other requests.
fn tick_holding(
    fixture: &mut NodeHarness,
    held_back: &mut Vec<ControllerRequest>,
    holds: impl Fn(&[ControllerRequest], &ControllerRequest) -> bool,
) {
    let requests = fixture.node.tick(fixture.clock(), &mut || Some(NONCE));
    for request in requests {
        if holds(held_back, &request) {
            held_back.push(request);
            continue;
        }
        let response = fixture.respond(request);
        fixture.node.handle_response(response, fixture.clock(), 0);
    }
    fixture.now_ns += 10_000_000;
    assert!(
        fixture.now_ns < 60 * SECOND_NS,
        "timed out; held back: {held_back:?}"
    );
}

/// Each request in flight is rejected. The first rejection wipes all devices. The later rejections do not wipe devices
/// that have returned since.
#[test]
fn a_restored_registry_is_handled_once_for_all_pending_requests() {
    let mut fixture = NodeHarness::new(&[policy(2, 500)]);
    fixture.node.set_audit_rate(1_000);
    let mut held_back = Vec::new();
    while held_back.is_empty() {
        tick_holding(&mut fixture, &mut held_back, |_, request| {
            matches!(request, ControllerRequest::AppraiseRound(_))
        });
    }
    fixture.revision = 2;
    let is_held =
        |held_back: &[ControllerRequest], kind: fn(&ControllerRequest) -> bool| held_back.iter().any(kind);
    let has_provers = |held_back: &[ControllerRequest]| {
        is_held(held_back, |request| {
            matches!(request, ControllerRequest::ListProvers(_))
        })
    };
    while held_back.len() < 4 {
        tick_holding(&mut fixture, &mut held_back, |held_back, request| match request {
            ControllerRequest::ListChanges(_) | ControllerRequest::ListProvers(_) => true,
            ControllerRequest::GetPlan(_) => has_provers(held_back),
            _ => false,
        });
    }
    let ended_round = fixture.node.status().attest.round;
    let restore_error = || LinkError::RegistryRestored("registry restored".to_owned());
    let rejection = |request: &ControllerRequest| request.kind().failed(restore_error());
    held_back.sort_by_key(|request| !matches!(request, ControllerRequest::ListChanges(_)));
    fixture
        .node
        .handle_response(rejection(&held_back[0]), fixture.clock(), 0);
    // The node registers again, and a device returns.
    fixture.run_for(SECOND_NS);
    fixture.admit(DeviceId(1));
    assert_eq!(fixture.node.status().devices, 1);
    for request in &held_back[1..] {
        fixture
            .node
            .handle_response(rejection(request), fixture.clock(), 0);
        assert_eq!(fixture.node.status().devices, 1, "after {request:?}");
    }
    let records = fixture.node.take_audit_records(false);
    let restores = records
        .iter()
        .filter(|record| matches!(record.event, AuditEvent::RegistryRestored));
    assert_eq!(restores.count(), 1);
    fixture.run_for(10 * SECOND_NS);
    let numbers: Vec<u32> = fixture.outcomes.iter().map(|outcome| outcome.number.0).collect();
    assert!(
        numbers.contains(&ended_round),
        "the round is appraised: {numbers:?}"
    );
    assert!(numbers.len() > 2, "rounds continue: {numbers:?}");
}
