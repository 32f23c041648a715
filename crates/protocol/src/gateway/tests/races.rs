//! What several CPUs and user space can do to one line while a RESPONSE is between its steps.

use zerocopy::FromBytes as _;

use super::support::{Bench, Prover, one_device};
use crate::gateway::{Checked, Verified};
use crate::ids::Mode;
use crate::verdict::Verdict;
use crate::wire::Response;

fn check(bench: &Bench, prover: &Prover, nonce: u8) -> Verified {
    let bytes = prover.response_with(bench.idx(prover), bench.fresh, nonce, Some(prover.from.mac));
    let response = Response::read_from_bytes(&bytes).unwrap();
    let meta = bench.meta(prover);
    match bench.gateway.check_response(bench.now, &meta, &response).unwrap() {
        Checked::Current(verified) => verified,
        Checked::Again(_) => panic!("a new RESPONSE"),
    }
}

/// Two CPUs verify before either commits.
pub fn second_of_two_verified() -> Verdict {
    let (mut bench, prover) = one_device(3);
    let (first, second) = (check(&bench, &prover, 1), check(&bench, &prover, 2));
    let unspent = bench.gateway.commit(first).unwrap();
    let lost = bench.gateway.commit(second).unwrap_err();
    bench.gateway.open_session(bench.now, unspent).unwrap();
    assert_eq!(bench.idx(&prover), 1, "one row for both");
    lost
}

#[test]
fn of_two_verified_responses_one_wins() {
    assert_eq!(second_of_two_verified(), Verdict::DropLostRace);
    let (mut bench, prover) = one_device(3);
    let (first, second) = (check(&bench, &prover, 1), check(&bench, &prover, 2));
    let unspent = bench.gateway.commit(first).unwrap();
    bench.gateway.open_session(bench.now, unspent).unwrap();
    assert_eq!(
        bench.gateway.commit(second).unwrap_err(),
        Verdict::DropLostRace,
        "also after the winner is done"
    );
}

/// The generation changes with every success, so a word from two sessions ago is not mistaken for the current one,
/// even in key mode, where the key stays.
#[test]
fn a_stale_word_never_wins() {
    let mut bench = Bench::new();
    let prover = Prover::new(1, Mode::Key);
    bench.gateway.install(prover.install(0, 1)).unwrap();
    let stale = check(&bench, &prover, 1);
    (0..4).for_each(|_| drop(bench.authenticate(&prover)));
    assert_eq!(bench.gateway.commit(stale).unwrap_err(), Verdict::DropLostRace);
}

#[test]
fn a_revocation_between_check_and_commit_wins() {
    let (mut bench, prover) = one_device(3);
    let verified = check(&bench, &prover, 1);
    bench.gateway.revoke(prover.device).unwrap();
    assert_eq!(bench.gateway.commit(verified).unwrap_err(), Verdict::DropLostRace);
}

#[test]
fn a_revocation_during_the_winners_work_is_kept() {
    let (mut bench, prover) = one_device(3);
    let unspent = bench.half_way(&prover);
    bench.gateway.revoke(prover.device).unwrap();
    bench.gateway.open_session(bench.now, unspent).unwrap();
    let line = bench.gateway.line(prover.device).unwrap();
    assert!(line.commit.is_revoked() && !line.commit.is_busy());
    assert!(bench.gateway.session(prover.device, bench.now).is_none());
    assert_eq!(bench.through_gate(&prover), Verdict::DropGate);
}

#[test]
fn no_session_is_seen_while_a_winner_is_at_work() {
    let (mut bench, prover) = one_device(3);
    bench.authenticate(&prover);
    assert_eq!(bench.through_gate(&prover), Verdict::PassSession);
    let unspent = bench.half_way(&prover);
    assert_eq!(bench.through_gate(&prover), Verdict::DropGate);
    bench.gateway.open_session(bench.now, unspent).unwrap();
    assert_eq!(bench.through_gate(&prover), Verdict::PassSession);
}

/// Both pass the check for owners before either has claimed.
#[test]
fn of_two_devices_at_one_address_the_first_to_claim_keeps_it() {
    let mut bench = Bench::new();
    let first = Prover::new(1, Mode::Pool);
    let mut second = Prover::new(2, Mode::Pool);
    second.from.ip = first.from.ip;
    for prover in [&first, &second] {
        bench.gateway.install(prover.install(0, 3)).unwrap();
    }
    let mut earlier = second.clone();
    earlier.from.ip = [10, 66, 0, 200].into();
    bench.authenticate(&earlier);
    let verified = check(&bench, &second, 1);
    bench.authenticate(&first);
    let unspent = bench.gateway.commit(verified).unwrap();
    assert_eq!(
        bench.gateway.open_session(bench.now, unspent).unwrap_err(),
        Verdict::DropAddressOwned
    );
    let line = bench.gateway.line(second.device).unwrap();
    assert_eq!(line.session_id, [0; 8], "its earlier session is gone too");
    assert!(line.commit.is_valid(), "the row is spent, the next one in place");
    assert_eq!(bench.through_gate(&second), Verdict::DropGate);
    assert_eq!(bench.through_gate(&first), Verdict::PassSession);
}

#[test]
fn a_line_taken_away_during_the_winners_work_is_left_alone() {
    let (mut bench, prover) = one_device(3);
    let unspent = bench.half_way(&prover);
    bench.gateway.wipe(prover.device).unwrap();
    bench.gateway.install(prover.install(1, 2)).unwrap();
    let line = bench.gateway.line(prover.device);
    assert_eq!(
        bench.gateway.open_session(bench.now, unspent).unwrap_err(),
        Verdict::DropLostRace
    );
    assert_eq!(bench.gateway.line(prover.device), line);
}

/// User space died while a winner was at work; the spent row stays spent, and the line goes on with the next.
#[test]
fn recovery_empties_busy_lines_and_no_others() {
    let (mut bench, prover) = one_device(3);
    let other = Prover::new(2, Mode::Pool);
    bench.gateway.install(other.install(0, 2)).unwrap();
    bench.authenticate(&other);
    let untouched = bench.gateway.line(other.device);
    bench.authenticate(&prover);
    drop(bench.half_way(&prover));
    bench.gateway.recover();
    assert_eq!(bench.gateway.line(other.device), untouched);
    let line = bench.gateway.line(prover.device).unwrap();
    assert!(line.commit.is_empty() && line.commit.idx().0 == 2);
    assert_eq!(
        line.auth_key.as_bytes(),
        &[0; 16],
        "what a winner half wrote is no key"
    );
    assert_eq!(line.session_id, [0; 8]);
    assert_eq!(bench.through_gate(&prover), Verdict::DropGate);
    bench
        .gateway
        .refill(prover.device, line.commit.idx(), alloc::vec![])
        .unwrap();
    assert_eq!(bench.idx(&prover), 2);
    bench.authenticate(&prover);
}
