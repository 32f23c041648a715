//! Concurrent operations of several CPUs and user space on one line between the steps of a RESPONSE.

use zerocopy::FromBytes as _;

use super::support::{GatewayFixture, TestDevice, one_device};
use crate::gateway::{ResponseCheck, VerifiedResponse};
use crate::ids::Mode;
use crate::verdict::Verdict;
use crate::wire::Response;

fn check(fixture: &GatewayFixture, device: &TestDevice, nonce: u8) -> VerifiedResponse {
    let bytes = device.response_with(
        fixture.idx(device),
        fixture.fresh,
        nonce,
        Some(device.endpoint.mac),
    );
    let response = Response::read_from_bytes(&bytes).unwrap();
    let meta = fixture.meta(device);
    match fixture
        .gateway
        .check_response(fixture.now, &meta, &response)
        .unwrap()
    {
        ResponseCheck::Current(verified) => verified,
        ResponseCheck::Repeated(_) => panic!("a new RESPONSE"),
    }
}

/// Two CPUs verify a RESPONSE before either CPU commits.
pub fn second_of_two_verified() -> Verdict {
    let (mut fixture, device) = one_device(3);
    let (first, second) = (check(&fixture, &device, 1), check(&fixture, &device, 2));
    let committed = fixture.gateway.commit(first).unwrap();
    let error = fixture.gateway.commit(second).unwrap_err();
    fixture.gateway.open_session(fixture.now, committed).unwrap();
    assert_eq!(fixture.idx(&device), 1, "one row for both");
    error
}

#[test]
fn of_two_verified_responses_one_wins() {
    assert_eq!(second_of_two_verified(), Verdict::DropLostRace);
    let (mut fixture, device) = one_device(3);
    let (first, second) = (check(&fixture, &device, 1), check(&fixture, &device, 2));
    let committed = fixture.gateway.commit(first).unwrap();
    fixture.gateway.open_session(fixture.now, committed).unwrap();
    assert_eq!(
        fixture.gateway.commit(second).unwrap_err(),
        Verdict::DropLostRace,
        "also after the winner has finished"
    );
}

/// The generation changes with every commit, so a word of an earlier session is not mistaken for the current word,
/// even in key mode, where the key stays.
#[test]
fn a_stale_word_never_wins() {
    let mut fixture = GatewayFixture::new();
    let device = TestDevice::new(1, Mode::Key);
    fixture.gateway.install(device.install(0, 1)).unwrap();
    let stale = check(&fixture, &device, 1);
    (0..4).for_each(|_| drop(fixture.authenticate(&device)));
    assert_eq!(fixture.gateway.commit(stale).unwrap_err(), Verdict::DropLostRace);
}

#[test]
fn a_revocation_between_check_and_commit_wins() {
    let (mut fixture, device) = one_device(3);
    let verified = check(&fixture, &device, 1);
    fixture.gateway.revoke(device.id).unwrap();
    assert_eq!(
        fixture.gateway.commit(verified).unwrap_err(),
        Verdict::DropLostRace
    );
}

#[test]
fn a_revocation_during_the_winners_work_is_kept() {
    let (mut fixture, device) = one_device(3);
    let committed = fixture.commit_only(&device);
    fixture.gateway.revoke(device.id).unwrap();
    fixture.gateway.open_session(fixture.now, committed).unwrap();
    let line = fixture.gateway.line(device.id).unwrap();
    assert!(line.commit.is_revoked() && !line.commit.is_busy());
    assert!(fixture.gateway.session(device.id, fixture.now).is_none());
    assert_eq!(fixture.through_gate(&device), Verdict::DropGate);
}

#[test]
fn no_session_is_seen_while_a_winner_is_at_work() {
    let (mut fixture, device) = one_device(3);
    fixture.authenticate(&device);
    assert_eq!(fixture.through_gate(&device), Verdict::PassSession);
    let committed = fixture.commit_only(&device);
    assert_eq!(fixture.through_gate(&device), Verdict::DropGate);
    fixture.gateway.open_session(fixture.now, committed).unwrap();
    assert_eq!(fixture.through_gate(&device), Verdict::PassSession);
}

/// Both devices pass the owner check before either device has claimed the address.
#[test]
fn of_two_devices_at_one_address_the_first_to_claim_keeps_it() {
    let mut fixture = GatewayFixture::new();
    let first = TestDevice::new(1, Mode::Pool);
    let mut second = TestDevice::new(2, Mode::Pool);
    second.endpoint.ip = first.endpoint.ip;
    for device in [&first, &second] {
        fixture.gateway.install(device.install(0, 3)).unwrap();
    }
    let mut earlier = second.clone();
    earlier.endpoint.ip = [10, 66, 0, 200].into();
    fixture.authenticate(&earlier);
    let verified = check(&fixture, &second, 1);
    fixture.authenticate(&first);
    let committed = fixture.gateway.commit(verified).unwrap();
    assert_eq!(
        fixture.gateway.open_session(fixture.now, committed).unwrap_err(),
        Verdict::DropAddressOwned
    );
    let line = fixture.gateway.line(second.id).unwrap();
    assert_eq!(line.session_id, [0; 8], "the earlier session is closed, too");
    assert!(
        line.commit.is_valid(),
        "the row is spent, and the next row is in place"
    );
    assert_eq!(fixture.through_gate(&second), Verdict::DropGate);
    assert_eq!(fixture.through_gate(&first), Verdict::PassSession);
}

#[test]
fn the_winner_does_not_change_a_line_that_was_reassigned() {
    let (mut fixture, device) = one_device(3);
    let committed = fixture.commit_only(&device);
    fixture.gateway.wipe(device.id).unwrap();
    fixture.gateway.install(device.install(1, 2)).unwrap();
    let line = fixture.gateway.line(device.id);
    assert_eq!(
        fixture.gateway.open_session(fixture.now, committed).unwrap_err(),
        Verdict::DropLostRace
    );
    assert_eq!(fixture.gateway.line(device.id), line);
}

/// User space crashed while a winner was writing; the spent row stays spent, and the line continues with the next row.
#[test]
fn recovery_empties_busy_lines_and_no_others() {
    let (mut fixture, device) = one_device(3);
    let other = TestDevice::new(2, Mode::Pool);
    fixture.gateway.install(other.install(0, 2)).unwrap();
    fixture.authenticate(&other);
    let unchanged = fixture.gateway.line(other.id);
    fixture.authenticate(&device);
    drop(fixture.commit_only(&device));
    fixture.gateway.recover();
    assert_eq!(fixture.gateway.line(other.id), unchanged);
    let line = fixture.gateway.line(device.id).unwrap();
    assert!(line.commit.is_empty() && line.commit.idx().0 == 2);
    assert_eq!(
        line.auth_key.as_bytes(),
        &[0; 16],
        "a half-written key is not used"
    );
    assert_eq!(line.session_id, [0; 8]);
    assert_eq!(fixture.through_gate(&device), Verdict::DropGate);
    fixture
        .gateway
        .refill(device.id, line.commit.idx(), alloc::vec![])
        .unwrap();
    assert_eq!(fixture.idx(&device), 2);
    fixture.authenticate(&device);
}
