//! Operations of user space on a line in each state, and the state after a crash.

use alloc::vec;

use super::support::{GatewayFixture, TestDevice, one_device};
use crate::gateway::{DeviceInstall, ProvisionError, Row};
use crate::ids::{DeviceId, Mode, RowIndex};
use crate::keys::AuthKey;
use crate::verdict::Verdict;

fn rows(prover: &TestDevice, first: u32, count: u32) -> vec::Vec<Row> {
    (first..first + count).map(|idx| prover.row(idx)).collect()
}

/// An operation, and its result in each of [`STATES`].
type Outcomes = (
    &'static str,
    fn(&mut GatewayFixture, &TestDevice) -> Result<(), ProvisionError>,
    [Result<(), ProvisionError>; 5],
);

#[test]
fn each_operation_in_each_state_matches_the_table() {
    let device = TestDevice::new(1, Mode::Pool).device;
    let unknown = Err(ProvisionError::UnknownDevice(device));
    let in_use = Err(ProvisionError::LineInUse(device));
    let revoked = Err(ProvisionError::Revoked(device));
    let spent = |row, next| Err(ProvisionError::RowSpent(RowIndex(row), RowIndex(next)));
    let far = |row, last| Err(ProvisionError::TooFarAhead(RowIndex(row), RowIndex(last)));
    #[rustfmt::skip]
    let table: [Outcomes; 9] = [
        //                                                                       absent    empty       valid        busy        revoked
        ("install at 1",   |b, p| b.gateway.install(p.install(1, 2)),           [Ok(()),   Ok(()),     in_use,      in_use,     revoked]),
        ("install at 0",   |b, p| b.gateway.install(p.install(0, 2)),           [Ok(()),   spent(0,1), in_use,      in_use,     revoked]),
        ("install ahead",  |b, p| b.gateway.install(p.install(900, 17)),        [Ok(()),   Ok(()),     in_use,      in_use,     revoked]),
        ("install many",   |b, p| b.gateway.install(p.install(5, 18)),          [far(22,21), far(22,21), in_use,    in_use,     revoked]),
        ("refill the next", |b, p| b.gateway.refill(p.device, RowIndex(2), rows(p, 2, 2)), [unknown, Ok(()), Ok(()), Ok(()),    revoked]),
        ("refill current", |b, p| b.gateway.refill(p.device, RowIndex(1), rows(p, 1, 2)),  [unknown, Ok(()), spent(1, 2), spent(1, 2), revoked]),
        ("refill too far", |b, p| b.gateway.refill(p.device, RowIndex(15), rows(p, 15, 9)), [unknown, Ok(()), far(18, 17), far(18, 17), revoked]),
        ("revoke",         |b, p| b.gateway.revoke(p.device),                   [unknown,  Ok(()),     Ok(()),      Ok(()),     Ok(())]),
        ("wipe",           |b, p| b.gateway.wipe(p.device),                     [unknown,  Ok(()),     Ok(()),      Ok(()),     Ok(())]),
    ];
    for (name, operation, outcomes) in table {
        for (state, expected) in STATES.into_iter().zip(outcomes) {
            let (mut fixture, prover) = in_state(state);
            let before = fixture.gateway.line(prover.device);
            assert_eq!(operation(&mut fixture, &prover), expected, "{name}, {state:?}");
            let after = fixture.gateway.line(prover.device);
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
    /// Row 0 was the only one, and is spent.
    Empty,
    /// Row 0 is spent, row 1 current.
    Valid,
    /// A winner has spent row 0 and is writing.
    Busy,
    /// As valid, and revoked.
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
    let prover = TestDevice::new(1, Mode::Pool);
    let rows = match state {
        State::Absent => return (fixture, prover),
        State::Empty | State::Busy => 1,
        State::Valid | State::Revoked => 2,
    };
    fixture.gateway.install(prover.install(0, rows)).unwrap();
    if state == State::Busy {
        drop(fixture.commit_only(&prover));
        return (fixture, prover);
    }
    fixture.authenticate(&prover);
    if state == State::Revoked {
        fixture.gateway.revoke(prover.device).unwrap();
    }
    (fixture, prover)
}

#[test]
fn a_refill_does_not_change_the_session() {
    let (mut fixture, prover) = one_device(1);
    let response = fixture.authenticate(&prover);
    let session = fixture.gateway.line(prover.device).unwrap().session;
    fixture
        .gateway
        .refill(prover.device, RowIndex(1), rows(&prover, 1, 3))
        .unwrap();
    let line = fixture.gateway.line(prover.device).unwrap();
    assert_eq!((line.session, line.rows_ahead), (session, 2));
    assert!(line.commit.is_valid());
    assert_eq!(fixture.verdict(&prover, &response), Verdict::ReplyAckRepeated);
    (0..3).for_each(|_| drop(fixture.authenticate(&prover)));
}

#[test]
fn a_row_that_is_held_is_not_replaced() {
    let (mut fixture, prover) = one_device(3);
    let again = fixture
        .gateway
        .refill(prover.device, RowIndex(2), rows(&prover, 2, 2));
    assert_eq!(again, Err(ProvisionError::RowSpent(RowIndex(2), RowIndex(1))));
    assert_eq!(fixture.gateway.line(prover.device).unwrap().rows_ahead, 2);
}

#[test]
fn rows_after_a_gap_wait_for_an_empty_line() {
    let (mut fixture, prover) = one_device(1);
    fixture
        .gateway
        .refill(prover.device, RowIndex(4), rows(&prover, 4, 2))
        .unwrap();
    fixture.authenticate(&prover);
    assert_eq!(
        fixture.verdict(&prover, &prover.request(1)),
        Verdict::ReplyNak,
        "row 1 is absent"
    );
    fixture
        .gateway
        .refill(prover.device, RowIndex(6), vec![])
        .unwrap();
    assert_eq!(fixture.idx(&prover), 4);
    fixture.authenticate(&prover);
    fixture.authenticate(&prover);
}

#[test]
fn credentials_that_do_not_fit_are_refused() {
    let mut fixture = GatewayFixture::new();
    let (pool, key) = (TestDevice::new(1, Mode::Pool), TestDevice::new(2, Mode::Key));
    let with = |prover: &TestDevice, change: fn(&mut DeviceInstall)| {
        let mut install = prover.install(0, 2);
        change(&mut install);
        install
    };
    let device_zero = with(&pool, |install| install.device = DeviceId(0));
    assert_eq!(
        fixture.gateway.install(device_zero),
        Err(ProvisionError::DeviceZero)
    );
    let two_keys = with(&key, |install| install.rows.extend_from_within(..));
    assert_eq!(
        fixture.gateway.install(two_keys),
        Err(ProvisionError::KeyMode(key.device))
    );
    let challenged = with(&key, |install| install.rows[0].challenge[3] = 1);
    assert_eq!(
        fixture.gateway.install(challenged),
        Err(ProvisionError::KeyMode(key.device))
    );
    for prover in [&pool, &key] {
        let half_zero = with(prover, |install| {
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
    let refill = fixture.gateway.refill(key.device, RowIndex(1), rows(&key, 1, 1));
    assert_eq!(refill, Err(ProvisionError::KeyMode(key.device)));
}

#[test]
fn a_revoked_device_can_be_enrolled_after_a_wipe() {
    let (mut fixture, prover) = one_device(3);
    fixture.authenticate(&prover);
    fixture.gateway.revoke(prover.device).unwrap();
    fixture.gateway.wipe(prover.device).unwrap();
    fixture.gateway.install(prover.install(8, 1)).unwrap();
    fixture.authenticate(&prover);
}

/// Memory is lost; the mark that the registry reserved in advance is above all rows offered before.
#[test]
fn after_a_crash_nothing_survives_and_the_mark_protects_spent_rows() {
    let (mut fixture, prover) = one_device(8);
    let old: vec::Vec<_> = (0..3).map(|_| fixture.authenticate(&prover)).collect();
    let unspent_response = prover.response(3, fixture.fresh);
    fixture.gateway.crash();
    assert_eq!(fixture.gateway.devices().count(), 0);
    assert_eq!(fixture.gateway.counters().iter().sum::<u64>(), 0);
    assert_eq!(fixture.verdict(&prover, &prover.request(1)), Verdict::DropStopped);
    fixture.rotate_fresh_value();
    fixture.gateway.install(prover.install(4, 4)).unwrap();
    assert_eq!(fixture.through_gate(&prover), Verdict::DropGate);
    for response in &old {
        assert_eq!(fixture.verdict(&prover, response), Verdict::DropIndex);
    }
    assert_eq!(fixture.verdict(&prover, &unspent_response), Verdict::DropReplay);
    fixture.authenticate(&prover);
}
