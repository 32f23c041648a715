//! One live session per address, and one BOUND session per MAC address behind a port.

use super::support::{GatewayFixture, SESSION_LIFETIME_S, TestDevice};
use crate::ids::{Mode, SessionId};
use crate::verdict::Verdict;

/// Two installed devices; `borrow` copies properties of the first device to the second device.
fn two_devices(borrow: fn(&TestDevice, &mut TestDevice)) -> (GatewayFixture, TestDevice, TestDevice) {
    let mut fixture = GatewayFixture::new();
    let first = TestDevice::new(1, Mode::Pool);
    let mut second = TestDevice::new(2, Mode::Pool);
    borrow(&first, &mut second);
    for device in [&first, &second] {
        fixture.gateway.install(device.install(0, 3)).unwrap();
    }
    (fixture, first, second)
}

fn same_address(first: &TestDevice, second: &mut TestDevice) {
    second.endpoint.ip = first.endpoint.ip;
}

fn same_mac(first: &TestDevice, second: &mut TestDevice) {
    second.endpoint.mac = first.endpoint.mac;
}

pub fn second_device_at_one_address() -> Verdict {
    let (mut fixture, first, second) = two_devices(same_address);
    fixture.authenticate(&first);
    let line = fixture.gateway.line(second.id);
    let verdict = fixture.verdict(&second, &second.response(0, fixture.fresh));
    assert_eq!(fixture.gateway.line(second.id), line, "no row is spent");
    verdict
}

pub fn one_device_too_many() -> Verdict {
    let mut fixture = GatewayFixture::with(|config| config.bindings_max = 1);
    let (first, second) = (TestDevice::new(1, Mode::Pool), TestDevice::new(2, Mode::Pool));
    for device in [&first, &second] {
        fixture.gateway.install(device.install(0, 2)).unwrap();
    }
    fixture.authenticate(&first);
    let verdict = fixture.verdict(&second, &second.response(0, fixture.fresh));
    let line = fixture.gateway.line(second.id).unwrap();
    assert_eq!(line.session_id, [0; 8]);
    assert!(
        line.commit.is_valid() && line.commit.idx().0 == 0,
        "nothing is spent"
    );
    let session = fixture.gateway.line(first.id).unwrap().session_id;
    let session = SessionId::from_wire(session).unwrap();
    assert!(fixture.gateway.close_session(first.id, session).unwrap());
    fixture.gateway.sweep_bindings();
    fixture.authenticate(&second);
    verdict
}

#[test]
fn an_address_is_free_again_when_its_session_ends() {
    let ends: [fn(&mut GatewayFixture, &TestDevice); 4] = [
        |fixture, _| fixture.pass_s(u64::from(SESSION_LIFETIME_S)),
        |fixture, first| fixture.gateway.revoke(first.id).unwrap(),
        |fixture, first| fixture.gateway.wipe(first.id).unwrap(),
        |fixture, first| {
            let mut moved = first.clone();
            moved.endpoint.ip = [10, 66, 9, 9].into();
            moved.endpoint.mac = [2, 9, 9, 9, 9, 9];
            fixture.authenticate(&moved);
        },
    ];
    for borrow in [same_address, same_mac] {
        for end in ends {
            let (mut fixture, first, second) = two_devices(borrow);
            fixture.authenticate(&first);
            let response = second.response(0, fixture.fresh);
            assert_eq!(fixture.verdict(&second, &response), Verdict::DropAddressOwned);
            end(&mut fixture, &first);
            fixture.authenticate(&second);
        }
    }
}

#[test]
fn a_device_takes_its_own_address_again() {
    let (mut fixture, first, _) = two_devices(same_address);
    (0..3).for_each(|_| drop(fixture.authenticate(&first)));
}

#[test]
fn a_mac_address_is_owned_per_port_and_vlan_and_by_bound_sessions_only() {
    let apart: [fn(&mut TestDevice); 2] = [|second| second.vlan = Some(5), |second| second.ingress += 1];
    for move_apart in apart {
        let (mut fixture, first, mut second) = two_devices(same_mac);
        move_apart(&mut second);
        fixture.authenticate(&first);
        fixture.authenticate(&second);
    }
    let (mut fixture, first, second) = two_devices(same_mac);
    let unbound = first.response_with(0, fixture.fresh, 1, None);
    assert_eq!(fixture.verdict(&first, &unbound), Verdict::ReplyAck);
    fixture.authenticate(&second);
    assert_eq!(fixture.through_gate(&second), Verdict::PassSession);
    let (mut fixture, first, second) = two_devices(same_mac);
    fixture.authenticate(&first);
    let unbound = second.response_with(0, fixture.fresh, 1, None);
    assert_eq!(fixture.verdict(&second, &unbound), Verdict::ReplyAck);
}

#[test]
fn full_tables_and_owned_addresses_refuse_a_session_and_spend_no_row() {
    assert_eq!(one_device_too_many(), Verdict::DropTableFull);
    assert_eq!(second_device_at_one_address(), Verdict::DropAddressOwned);
}
