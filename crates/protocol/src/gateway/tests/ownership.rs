//! One live session per address, and one BOUND session per MAC address behind a port.

use super::support::{Bench, LEASE_S, Prover};
use crate::ids::{Mode, SessionId};
use crate::verdict::Verdict;

/// Two installed devices; the second borrows what `borrow` copies from the first.
fn two_devices(borrow: fn(&Prover, &mut Prover)) -> (Bench, Prover, Prover) {
    let mut bench = Bench::new();
    let first = Prover::new(1, Mode::Pool);
    let mut second = Prover::new(2, Mode::Pool);
    borrow(&first, &mut second);
    for prover in [&first, &second] {
        bench.gateway.install(prover.install(0, 3)).unwrap();
    }
    (bench, first, second)
}

fn same_address(first: &Prover, second: &mut Prover) {
    second.from.ip = first.from.ip;
}

fn same_mac(first: &Prover, second: &mut Prover) {
    second.from.mac = first.from.mac;
}

pub fn second_device_at_one_address() -> Verdict {
    let (mut bench, first, second) = two_devices(same_address);
    bench.authenticate(&first);
    let line = bench.gateway.line(second.device);
    let verdict = bench.verdict(&second, &second.response(0, bench.fresh));
    assert_eq!(bench.gateway.line(second.device), line, "no row is spent");
    verdict
}

pub fn one_device_too_many() -> Verdict {
    let mut bench = Bench::with(|config| config.bindings_max = 1);
    let (first, second) = (Prover::new(1, Mode::Pool), Prover::new(2, Mode::Pool));
    for prover in [&first, &second] {
        bench.gateway.install(prover.install(0, 2)).unwrap();
    }
    bench.authenticate(&first);
    let verdict = bench.verdict(&second, &second.response(0, bench.fresh));
    let line = bench.gateway.line(second.device).unwrap();
    assert_eq!(line.session_id, [0; 8]);
    assert!(
        line.commit.is_valid() && line.commit.idx().0 == 0,
        "nothing is spent"
    );
    let session = bench.gateway.line(first.device).unwrap().session_id;
    let session = SessionId::from_wire(session).unwrap();
    assert!(bench.gateway.close_session(first.device, session).unwrap());
    bench.gateway.sweep_bindings();
    bench.authenticate(&second);
    verdict
}

#[test]
fn an_address_is_free_again_when_its_session_ends() {
    let ends: [fn(&mut Bench, &Prover); 4] = [
        |bench, _| bench.pass_s(u64::from(LEASE_S)),
        |bench, first| bench.gateway.revoke(first.device).unwrap(),
        |bench, first| bench.gateway.wipe(first.device).unwrap(),
        |bench, first| {
            let mut moved = first.clone();
            moved.from.ip = [10, 66, 9, 9].into();
            moved.from.mac = [2, 9, 9, 9, 9, 9];
            bench.authenticate(&moved);
        },
    ];
    for borrow in [same_address, same_mac] {
        for end in ends {
            let (mut bench, first, second) = two_devices(borrow);
            bench.authenticate(&first);
            let response = second.response(0, bench.fresh);
            assert_eq!(bench.verdict(&second, &response), Verdict::DropAddressOwned);
            end(&mut bench, &first);
            bench.authenticate(&second);
        }
    }
}

#[test]
fn a_device_takes_its_own_address_again() {
    let (mut bench, first, _) = two_devices(same_address);
    (0..3).for_each(|_| drop(bench.authenticate(&first)));
}

#[test]
fn a_mac_address_is_owned_per_port_and_vlan_and_by_bound_sessions_only() {
    let apart: [fn(&mut Prover); 2] = [|second| second.vlan = Some(5), |second| second.ingress += 1];
    for move_apart in apart {
        let (mut bench, first, mut second) = two_devices(same_mac);
        move_apart(&mut second);
        bench.authenticate(&first);
        bench.authenticate(&second);
    }
    let (mut bench, first, second) = two_devices(same_mac);
    let unbound = first.response_with(0, bench.fresh, 1, None);
    assert_eq!(bench.verdict(&first, &unbound), Verdict::ReplyAck);
    bench.authenticate(&second);
    assert_eq!(bench.through_gate(&second), Verdict::PassSession);
    let (mut bench, first, second) = two_devices(same_mac);
    bench.authenticate(&first);
    let unbound = second.response_with(0, bench.fresh, 1, None);
    assert_eq!(bench.verdict(&second, &unbound), Verdict::ReplyAck);
}

#[test]
fn full_tables_refuse_the_session_and_not_the_device() {
    assert_eq!(one_device_too_many(), Verdict::DropTableFull);
    assert_eq!(second_device_at_one_address(), Verdict::DropAddressOwned);
}
