//! What user space may do to a line in each state, and what a crash leaves.

use alloc::vec;

use super::support::{Bench, Prover, one_device};
use crate::gateway::{DeviceInstall, ProvisionError, Row};
use crate::ids::{DeviceId, Mode, RowIndex};
use crate::keys::AuthKey;
use crate::verdict::Verdict;

fn rows(prover: &Prover, first: u32, count: u32) -> vec::Vec<Row> {
    (first..first + count).map(|idx| prover.row(idx)).collect()
}

/// An operation, and its outcome in each of [`STATES`].
type Outcomes = (
    &'static str,
    fn(&mut Bench, &Prover) -> Result<(), ProvisionError>,
    [Result<(), ProvisionError>; 5],
);

#[test]
fn each_state_takes_each_operation_as_the_table_says() {
    let device = Prover::new(1, Mode::Pool).device;
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
            let (mut bench, prover) = in_state(state);
            let before = bench.gateway.line(prover.device);
            assert_eq!(operation(&mut bench, &prover), expected, "{name}, {state:?}");
            let after = bench.gateway.line(prover.device);
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
    /// A winner has spent row 0 and is at work.
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

fn in_state(state: State) -> (Bench, Prover) {
    let mut bench = Bench::new();
    let prover = Prover::new(1, Mode::Pool);
    let rows = match state {
        State::Absent => return (bench, prover),
        State::Empty | State::Busy => 1,
        State::Valid | State::Revoked => 2,
    };
    bench.gateway.install(prover.install(0, rows)).unwrap();
    if state == State::Busy {
        drop(bench.half_way(&prover));
        return (bench, prover);
    }
    bench.authenticate(&prover);
    if state == State::Revoked {
        bench.gateway.revoke(prover.device).unwrap();
    }
    (bench, prover)
}

#[test]
fn a_refilled_line_goes_on_with_its_session_untouched() {
    let (mut bench, prover) = one_device(1);
    let response = bench.authenticate(&prover);
    let session = bench.gateway.line(prover.device).unwrap().session;
    bench
        .gateway
        .refill(prover.device, RowIndex(1), rows(&prover, 1, 3))
        .unwrap();
    let line = bench.gateway.line(prover.device).unwrap();
    assert_eq!((line.session, line.rows_ahead), (session, 2));
    assert!(line.commit.is_valid());
    assert_eq!(bench.verdict(&prover, &response), Verdict::ReplyAckAgain);
    (0..3).for_each(|_| drop(bench.authenticate(&prover)));
}

#[test]
fn a_row_that_is_held_is_not_replaced() {
    let (mut bench, prover) = one_device(3);
    let again = bench
        .gateway
        .refill(prover.device, RowIndex(2), rows(&prover, 2, 2));
    assert_eq!(again, Err(ProvisionError::RowSpent(RowIndex(2), RowIndex(1))));
    assert_eq!(bench.gateway.line(prover.device).unwrap().rows_ahead, 2);
}

#[test]
fn rows_behind_a_gap_wait_for_an_empty_line() {
    let (mut bench, prover) = one_device(1);
    bench
        .gateway
        .refill(prover.device, RowIndex(4), rows(&prover, 4, 2))
        .unwrap();
    bench.authenticate(&prover);
    assert_eq!(
        bench.verdict(&prover, &prover.request(1)),
        Verdict::ReplyNak,
        "row 1 is not here"
    );
    bench.gateway.refill(prover.device, RowIndex(6), vec![]).unwrap();
    assert_eq!(bench.idx(&prover), 4);
    bench.authenticate(&prover);
    bench.authenticate(&prover);
}

#[test]
fn credentials_that_do_not_fit_are_refused() {
    let mut bench = Bench::new();
    let (pool, key) = (Prover::new(1, Mode::Pool), Prover::new(2, Mode::Key));
    let with = |prover: &Prover, change: fn(&mut DeviceInstall)| {
        let mut install = prover.install(0, 2);
        change(&mut install);
        install
    };
    let device_zero = with(&pool, |install| install.device = DeviceId(0));
    assert_eq!(
        bench.gateway.install(device_zero),
        Err(ProvisionError::DeviceZero)
    );
    let two_keys = with(&key, |install| install.rows.extend_from_within(..));
    assert_eq!(
        bench.gateway.install(two_keys),
        Err(ProvisionError::KeyMode(key.device))
    );
    let challenged = with(&key, |install| install.rows[0].challenge[3] = 1);
    assert_eq!(
        bench.gateway.install(challenged),
        Err(ProvisionError::KeyMode(key.device))
    );
    for prover in [&pool, &key] {
        let half_zero = with(prover, |install| {
            let mut bytes = [1; 16];
            bytes[8..].fill(0);
            install.rows[0].auth_key = AuthKey::from_bytes(bytes);
        });
        assert_eq!(
            bench.gateway.install(half_zero),
            Err(ProvisionError::UnusableKey(RowIndex(0)))
        );
    }
    assert_eq!(bench.gateway.devices().count(), 0);
    bench.gateway.install(key.install(0, 1)).unwrap();
    let refill = bench.gateway.refill(key.device, RowIndex(1), rows(&key, 1, 1));
    assert_eq!(refill, Err(ProvisionError::KeyMode(key.device)));
}

#[test]
fn wiping_lets_a_revoked_device_be_enrolled_again() {
    let (mut bench, prover) = one_device(3);
    bench.authenticate(&prover);
    bench.gateway.revoke(prover.device).unwrap();
    bench.gateway.wipe(prover.device).unwrap();
    bench.gateway.install(prover.install(8, 1)).unwrap();
    bench.authenticate(&prover);
}

/// Memory is lost; the registry's mark, reserved ahead, is above everything that was offered before.
#[test]
fn after_a_crash_nothing_survives_and_the_mark_protects_spent_rows() {
    let (mut bench, prover) = one_device(8);
    let old: vec::Vec<_> = (0..3).map(|_| bench.authenticate(&prover)).collect();
    let answered_and_unspent = prover.response(3, bench.fresh);
    bench.gateway.crash();
    assert_eq!(bench.gateway.devices().count(), 0);
    assert_eq!(bench.gateway.counters().iter().sum::<u64>(), 0);
    assert_eq!(bench.verdict(&prover, &prover.request(1)), Verdict::DropStopped);
    bench.renew();
    bench.gateway.install(prover.install(4, 4)).unwrap();
    assert_eq!(bench.through_gate(&prover), Verdict::DropGate);
    for response in &old {
        assert_eq!(bench.verdict(&prover, response), Verdict::DropIndex);
    }
    assert_eq!(bench.verdict(&prover, &answered_and_unspent), Verdict::DropReplay);
    bench.authenticate(&prover);
}
