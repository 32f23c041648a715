//! A whole gateway: registry file, node, `host` data plane on loopback, and a device that sends LAP/1 over a socket.

use std::net::IpAddr;
use std::time::Duration;

use linewarden_dataplane::{Config, DataPlane, Geometry};
use linewarden_gateway::audit::{AuditLog, AuditOptions};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex};
use linewarden_protocol::sources::{DeviceSources, OwnAddress};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::{Credentials, Registry};

use crate::site::{GATEWAY, Site, TIMEOUT, TestDevice, config, kill, pool, record, row_key};

#[test]
fn a_pool_lasts_to_its_last_row_across_a_stop() {
    let device = DeviceId(0xd1);
    let site = Site::new(vec![record(device, pool(device, 30))]);
    let gateway = site.start();
    assert_eq!(gateway.status().devices, 0, "no device has authenticated yet");
    let mut client = TestDevice::new(device, Mode::Pool, site.address());
    for expected in 0..11 {
        assert_eq!(client.authenticate(TIMEOUT), Some(RowIndex(expected)));
    }
    let report = gateway.stop().unwrap();
    assert!(report.unused_rows_reported);
    assert_eq!(report.status.admitted, 1);
    assert_eq!(report.counters.get(Verdict::ReplyAck), 11);

    let gateway = site.start();
    assert_eq!(gateway.status().devices, 1, "the device's lease is resumed");
    for expected in 11..30 {
        assert_eq!(client.authenticate(TIMEOUT), Some(RowIndex(expected)));
    }
    let is_exhausted = gateway.wait_until(TIMEOUT, |status| status.exhausted == 1);
    assert!(is_exhausted, "{:?}", gateway.status());
    assert_eq!(client.authenticate(Duration::from_millis(300)), None);
    assert!(gateway.counters().unwrap().get(Verdict::ReplyNak) > 0);
    assert_eq!(gateway.status().admitted, 0);
}

#[test]
fn a_gateway_that_is_killed_never_offers_a_row_again_and_loses_a_block_at_most() {
    let device = DeviceId(0xd2);
    let mut site = Site::new(vec![record(device, pool(device, 40))]);
    let mut next_row = 0;
    for _ in 0..4 {
        let gateway = site.start();
        let mut client = TestDevice::new(device, Mode::Pool, site.address());
        for _ in 0..2 {
            let idx = client.authenticate(TIMEOUT).unwrap().0;
            // For a device that authenticates often, a block grows to up to 14 rows.
            assert!(idx >= next_row && idx < next_row + 15, "{idx} after {next_row}");
            next_row = idx + 1;
        }
        site = kill(gateway, site);
    }
}

/// The gateway's machine gets the address of a device that has a session.
#[test]
fn a_session_at_an_address_of_the_machine_is_closed_and_recorded() {
    let device = DeviceId(0xd4);
    let site = Site::new(vec![record(device, pool(device, 30))]);
    let gateway = site.start();
    let path = site.path.with_file_name("audit.jsonl");
    let options = AuditOptions {
        path: path.clone(),
        bytes_max: 1 << 20,
    };
    let log = AuditLog::open(GATEWAY, &options).unwrap();
    gateway.set_audit(Some((log, 100))).unwrap();
    let mut client = TestDevice::new(device, Mode::Pool, site.address());
    client.authenticate(TIMEOUT).unwrap();
    let address = IpAddr::V4(client.address);
    let has_session = move |data_plane: &mut dyn DataPlane| data_plane.session(device).is_some();
    let device_sources = |own_addresses: &[IpAddr]| {
        let own: Vec<OwnAddress> = own_addresses.iter().copied().map(OwnAddress::host).collect();
        DeviceSources::new(
            &site.config.device_prefixes,
            &["192.0.2.1".parse().unwrap()],
            &own,
        )
    };
    gateway.set_sources(device_sources(&[])).unwrap();
    assert!(gateway.with_data_plane(has_session).unwrap());
    gateway.set_sources(device_sources(&[address])).unwrap();
    assert!(!gateway.with_data_plane(has_session).unwrap());
    gateway.stop().unwrap();
    let audit = std::fs::read_to_string(path).unwrap();
    let closed = audit.lines().map(|line| serde_json::from_str(line).unwrap());
    let closed: Vec<serde_json::Value> = closed
        .filter(|record: &serde_json::Value| record["event"] == "session_closed")
        .collect();
    assert_eq!(closed.len(), 1, "{audit}");
    assert_eq!(closed[0]["own_address"], address.to_string(), "{audit}");
}

#[test]
fn a_gateway_that_was_replaced_without_its_knowledge_spends_no_row_of_its_successor() {
    let device = DeviceId(0xd7);
    let site = Site::new(vec![record(device, pool(device, 40))]);
    let replaced_gateway = site.start();
    let old_address = site.address();
    let mut client = TestDevice::new(device, Mode::Pool, old_address);
    let mut rows = vec![client.authenticate(TIMEOUT).unwrap()];
    let other_gateway = Site {
        config: config(),
        ..site
    };
    let _successor = other_gateway.start();
    let mut newer = TestDevice::new(device, Mode::Pool, other_gateway.address());
    newer.socket = client.socket.try_clone().unwrap();
    newer.socket.connect(other_gateway.address()).unwrap();
    for _ in 0..3 {
        rows.push(newer.authenticate(TIMEOUT).unwrap());
    }
    assert!(replaced_gateway.wait_until(TIMEOUT, |status| status.replaced));
    // A nonce that was not used before.
    client.nonce = 100;
    client.socket.connect(old_address).unwrap();
    rows.extend(client.authenticate(Duration::from_millis(300)));
    let count = rows.len();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), count, "{rows:?}");
}

#[test]
fn more_devices_than_slots_take_turns_and_no_row_is_lost() {
    let ids = 1..=20u64;
    let site = Site::new(
        ids.clone()
            .map(|id| record(DeviceId(id), pool(DeviceId(id), 12)))
            .collect(),
    );
    let site = Site {
        config: Config {
            geometry: Geometry {
                slots: 6,
                ..site.config.geometry.clone()
            },
            ..site.config
        },
        ..site
    };
    let gateway = site.start();
    let mut clients: Vec<TestDevice> = ids
        .map(|id| TestDevice::new(DeviceId(id), Mode::Pool, site.address()))
        .collect();
    for round in 0..4 {
        for client in &mut clients {
            let idx = client.authenticate(TIMEOUT);
            assert_eq!(idx, Some(RowIndex(round)), "{}", client.device.config().device);
        }
    }
    let status = gateway.stop().unwrap().status;
    assert!(status.evicted >= 60, "{status:?}");
    assert!(status.admitted >= 70, "{status:?}");
}

#[test]
fn a_revocation_by_another_process_reaches_the_gateway() {
    let (revoked, other_device) = (DeviceId(0xd3), DeviceId(0xd4));
    let key = |device| Credentials::Key(row_key(device, 0));
    let site = Site::new(vec![
        record(revoked, key(revoked)),
        record(other_device, key(other_device)),
    ]);
    let gateway = site.start();
    let mut client = TestDevice::new(revoked, Mode::Key, site.address());
    let mut other_client = TestDevice::new(other_device, Mode::Key, site.address());
    assert_eq!(client.authenticate(TIMEOUT), Some(RowIndex(0)));

    let other_registry = site
        .runtime
        .block_on(Registry::open(&site.path, &site.key))
        .unwrap();
    site.runtime
        .block_on(other_registry.revoke(revoked, "lost", 1))
        .unwrap();
    assert!(gateway.wait_until(TIMEOUT, |status| status.revoked == 1));
    assert_eq!(client.authenticate(Duration::from_millis(300)), None);
    assert!(gateway.counters().unwrap().get(Verdict::DropRevoked) > 0);
    assert_eq!(other_client.authenticate(TIMEOUT), Some(RowIndex(0)));

    let new = DeviceId(0xd5);
    site.runtime
        .block_on(other_registry.enroll(record(new, key(new))))
        .unwrap();
    let mut client = TestDevice::new(new, Mode::Key, site.address());
    assert_eq!(client.authenticate(TIMEOUT), Some(RowIndex(0)));
    assert!(gateway.wait_until(TIMEOUT, |status| status.devices == 2));
}

#[test]
fn unknown_and_revoked_devices_get_no_reply() {
    let (unknown, revoked) = (DeviceId(0xd8), DeviceId(0xd9));
    let site = Site::new(vec![record(revoked, pool(revoked, 9))]);
    site.runtime
        .block_on(site.registry.revoke(revoked, "", 1))
        .unwrap();
    let gateway = site.start();
    for device in [unknown, revoked] {
        let mut client = TestDevice::new(device, Mode::Pool, site.address());
        assert_eq!(client.authenticate(Duration::from_millis(200)), None);
    }
    let report = gateway.stop().unwrap();
    // These messages do not reach the slow path.
    assert!(report.counters.get(Verdict::DropUnknownDevice) > 0);
    assert_eq!(report.counters.get(Verdict::SlowPath), 0);
    assert_eq!((report.status.admitted, site.floor(revoked)), (0, 0));
}
