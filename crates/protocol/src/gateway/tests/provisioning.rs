//! Operations of user space on a line in each state, and the state after a crash.

use alloc::vec;

use super::support::{GatewayFixture, TestDevice, one_device};
use crate::gateway::{DeviceInstall, ProvisionError, Row};
use crate::ids::{DeviceId, Mode, RowIndex};
use crate::keys::AuthKey;
use crate::verdict::Verdict;

fn rows(device: &TestDevice, first: u32, count: u32) -> vec::Vec<Row> {
    (first..first + count).map(|idx| device.row(idx)).collect()
}

/// An operation, and its result in each of [`STATES`].
type Outcomes = (
    &'static str,
    fn(&mut GatewayFixture, &TestDevice) -> Result<(), ProvisionError>,
    [Result<(), ProvisionError>; 5],
);

#[test]
fn each_operation_in_each_state_matches_the_table() {
    let id = TestDevice::new(1, Mode::Pool).id;
    let unknown = Err(ProvisionError::UnknownDevice(id));
    let in_use = Err(ProvisionError::LineInUse(id));
    let revoked = Err(ProvisionError::Revoked(id));
    let spent = |row, next| Err(ProvisionError::RowSpent(RowIndex(row), RowIndex(next)));
    let far = |row, last| Err(ProvisionError::TooFarAhead(RowIndex(row), RowIndex(last)));
    #[rustfmt::skip]
    let table: [Outcomes; 9] = [
        //                                                                       absent    empty       valid        busy        revoked
        ("install at 1",   |f, d| f.gateway.install(d.install(1, 2)),           [Ok(()),   Ok(()),     in_use,      in_use,     revoked]),
        ("install at 0",   |f, d| f.gateway.install(d.install(0, 2)),           [Ok(()),   spent(0,1), in_use,      in_use,     revoked]),
        ("install ahead",  |f, d| f.gateway.install(d.install(900, 17)),        [Ok(()),   Ok(()),     in_use,      in_use,     revoked]),
        ("install many",   |f, d| f.gateway.install(d.install(5, 18)),          [far(22,21), far(22,21), in_use,    in_use,     revoked]),
        ("refill the next", |f, d| f.gateway.refill(d.id, RowIndex(2), rows(d, 2, 2)), [unknown, Ok(()), Ok(()), Ok(()),    revoked]),
        ("refill current", |f, d| f.gateway.refill(d.id, RowIndex(1), rows(d, 1, 2)),  [unknown, Ok(()), spent(1, 2), spent(1, 2), revoked]),
        ("refill too far", |f, d| f.gateway.refill(d.id, RowIndex(15), rows(d, 15, 9)), [unknown, Ok(()), far(18, 17), far(18, 17), revoked]),
        ("revoke",         |f, d| f.gateway.revoke(d.id),                       [unknown,  Ok(()),     Ok(()),      Ok(()),     Ok(())]),
        ("wipe",           |f, d| f.gateway.wipe(d.id),                         [unknown,  Ok(()),     Ok(()),      Ok(()),     Ok(())]),
    ];
    for (name, operation, outcomes) in table {
        for (state, expected) in STATES.into_iter().zip(outcomes) {
            let (mut fixture, device) = in_state(state);
            let before = fixture.gateway.line(device.id);
            assert_eq!(operation(&mut fixture, &device), expected, "{name}, {state:?}");
            let after = fixture.gateway.line(device.id);
            if expected.is_err() {
                assert_eq!(after, before, "{name}, {state:?}: all or nothing");
            } else if let (Some(before), Some(after)) = (before, after) {
                assert!(after.commit.idx() >= before.commit.idx(), "idx never goes down");
                assert!(after.commit.generation() >= before.commit.generation());
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Absent,
    /// Row 0 was the only row, and is spent.
    Empty,
    /// Row 0 is spent, row 1 current.
    Valid,
    /// A winner has spent row 0 and is writing.
    Busy,
    /// Like `Valid`, and revoked.
    Revoked,
}

const STATES: [State; 5] = [
    State::Absent,
    State::Empty,
    State::Valid,
    State::Busy,
    State::Revoked,
];

fn in_state(state: State) -> (GatewayFixture, TestDevice) {
    let mut fixture = GatewayFixture::new();
    let device = TestDevice::new(1, Mode::Pool);
    let rows = match state {
        State::Absent => return (fixture, device),
        State::Empty | State::Busy => 1,
        State::Valid | State::Revoked => 2,
    };
    fixture.gateway.install(device.install(0, rows)).unwrap();
    if state == State::Busy {
        drop(fixture.commit_only(&device));
        return (fixture, device);
    }
    fixture.authenticate(&device);
    if state == State::Revoked {
        fixture.gateway.revoke(device.id).unwrap();
    }
    (fixture, device)
}

#[test]
fn a_refill_does_not_change_the_session() {
    let (mut fixture, device) = one_device(1);
    let response = fixture.authenticate(&device);
    let session = fixture.gateway.line(device.id).unwrap().session;
    fixture
        .gateway
        .refill(device.id, RowIndex(1), rows(&device, 1, 3))
        .unwrap();
    let line = fixture.gateway.line(device.id).unwrap();
    assert_eq!((line.session, line.rows_ahead), (session, 2));
    assert!(line.commit.is_valid());
    assert_eq!(fixture.verdict(&device, &response), Verdict::ReplyAckRepeated);
    (0..3).for_each(|_| drop(fixture.authenticate(&device)));
}

#[test]
fn an_installed_row_is_not_replaced() {
    let (mut fixture, device) = one_device(3);
    let result = fixture
        .gateway
        .refill(device.id, RowIndex(2), rows(&device, 2, 2));
    assert_eq!(result, Err(ProvisionError::RowSpent(RowIndex(2), RowIndex(1))));
    assert_eq!(fixture.gateway.line(device.id).unwrap().rows_ahead, 2);
}

#[test]
fn rows_after_a_gap_wait_for_an_empty_line() {
    let (mut fixture, device) = one_device(1);
    fixture
        .gateway
        .refill(device.id, RowIndex(4), rows(&device, 4, 2))
        .unwrap();
    fixture.authenticate(&device);
    assert_eq!(
        fixture.verdict(&device, &device.request(1)),
        Verdict::ReplyNak,
        "row 1 is absent"
    );
    fixture.gateway.refill(device.id, RowIndex(6), vec![]).unwrap();
    assert_eq!(fixture.idx(&device), 4);
    fixture.authenticate(&device);
    fixture.authenticate(&device);
}

#[test]
fn credentials_that_do_not_fit_are_refused() {
    let mut fixture = GatewayFixture::new();
    let (pool, key) = (TestDevice::new(1, Mode::Pool), TestDevice::new(2, Mode::Key));
    let install_with = |device: &TestDevice, change: fn(&mut DeviceInstall)| {
        let mut install = device.install(0, 2);
        change(&mut install);
        install
    };
    let device_zero = install_with(&pool, |install| install.device = DeviceId(0));
    assert_eq!(
        fixture.gateway.install(device_zero),
        Err(ProvisionError::DeviceZero)
    );
    let two_keys = install_with(&key, |install| install.rows.extend_from_within(..));
    assert_eq!(
        fixture.gateway.install(two_keys),
        Err(ProvisionError::KeyMode(key.id))
    );
    let key_with_challenge = install_with(&key, |install| install.rows[0].challenge[3] = 1);
    assert_eq!(
        fixture.gateway.install(key_with_challenge),
        Err(ProvisionError::KeyMode(key.id))
    );
    for device in [&pool, &key] {
        let half_zero = install_with(device, |install| {
            let mut bytes = [1; 16];
            bytes[8..].fill(0);
            install.rows[0].auth_key = AuthKey::from_bytes(bytes);
        });
        assert_eq!(
            fixture.gateway.install(half_zero),
            Err(ProvisionError::UnusableKey(RowIndex(0)))
        );
    }
    assert_eq!(fixture.gateway.devices().count(), 0);
    fixture.gateway.install(key.install(0, 1)).unwrap();
    let refill = fixture.gateway.refill(key.id, RowIndex(1), rows(&key, 1, 1));
    assert_eq!(refill, Err(ProvisionError::KeyMode(key.id)));
}

#[test]
fn a_revoked_device_can_be_enrolled_after_a_wipe() {
    let (mut fixture, device) = one_device(3);
    fixture.authenticate(&device);
    fixture.gateway.revoke(device.id).unwrap();
    fixture.gateway.wipe(device.id).unwrap();
    fixture.gateway.install(device.install(8, 1)).unwrap();
    fixture.authenticate(&device);
}

/// Memory is lost; the mark that the registry reserved in advance is above all rows offered before.
#[test]
fn after_a_crash_nothing_survives_and_the_mark_protects_spent_rows() {
    let (mut fixture, device) = one_device(8);
    let old_responses: vec::Vec<_> = (0..3).map(|_| fixture.authenticate(&device)).collect();
    let unspent_response = device.response(3, fixture.fresh);
    fixture.gateway.crash();
    assert_eq!(fixture.gateway.devices().count(), 0);
    assert_eq!(fixture.gateway.counters().iter().sum::<u64>(), 0);
    assert_eq!(fixture.verdict(&device, &device.request(1)), Verdict::DropStopped);
    fixture.rotate_fresh_value();
    fixture.gateway.install(device.install(4, 4)).unwrap();
    assert_eq!(fixture.through_gate(&device), Verdict::DropGate);
    for response in &old_responses {
        assert_eq!(fixture.verdict(&device, response), Verdict::DropIndex);
    }
    assert_eq!(fixture.verdict(&device, &unspent_response), Verdict::DropReplay);
    fixture.authenticate(&device);
}
