//! Reports of sessions: what they prove, and what becomes of older sessions elsewhere.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use linewarden_controller::{Controller, Elsewhere, Link, Policy, Reported, SessionReport};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::nonce::Statement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{FLAG_BOUND, Header, Response, message_type};
use linewarden_registry::{
    BootId, Credentials, DeviceRecord, Fence, LeaseRequest, MasterKey, Moment, PoolRow, Registry,
    RegistryError, Revision,
};
use zerocopy::IntoBytes as _;

const SUITE: Suite = Suite::SipHash128;
const POOL: DeviceId = DeviceId(0xd1);
const KEY: DeviceId = DeviceId(0xd2);
const LOC: [u8; 8] = [2, 0, 0, 0, 0, 1, 0, 0];

fn row_key(idx: u32) -> RowKey {
    let mut key = [0x5a; 16];
    key[..4].copy_from_slice(&idx.to_be_bytes());
    RowKey::from_bytes(key)
}

fn record(device: DeviceId, credentials: Credentials) -> DeviceRecord {
    DeviceRecord {
        device,
        name: String::new(),
        suite: SUITE,
        enrolled_at_s: 0,
        puf_profile: String::new(),
        credentials,
    }
}

fn now(ns: i64) -> Moment {
    Moment {
        boot: BootId([1; 16]),
        ns,
    }
}

/// A BOUND session that was opened with that row.
fn report(device: DeviceId, idx: u32, gateway: u32, age_ns: u64) -> SessionReport {
    let (mode, row) = match device == KEY {
        true => (Mode::Key, 0),
        false => (Mode::Pool, idx),
    };
    let mut response = Response {
        header: Header::new(message_type::RESPONSE, SUITE, FLAG_BOUND, device),
        nonce: [3; 16],
        idx: idx.into(),
        gateway_id: gateway.into(),
        fresh: [7; 8],
        tag: [0; 16],
    };
    let auth_key = AuthKey::derive(&row_key(row), SUITE, mode, RowIndex(idx), GatewayId(gateway));
    response.tag = tag::response(&auth_key, &response, &LOC);
    SessionReport {
        message: response.as_bytes().try_into().unwrap(),
        loc: LOC,
        age_ns,
    }
}

/// Two gateways, both of which have rows of both devices: the first 0 to 3, the second 4 to 7.
async fn site() -> (Registry, [Link; 2]) {
    let registry = Registry::in_memory(&MasterKey::from_bytes([1; 32]))
        .await
        .unwrap();
    let row = |idx| PoolRow {
        challenge: [1; 8],
        row_key: row_key(idx),
    };
    let rows = Credentials::pool((0..20).map(row).collect());
    registry.enrol(record(POOL, rows)).await.unwrap();
    registry
        .enrol(record(KEY, Credentials::Key(row_key(0))))
        .await
        .unwrap();
    let controller = Controller::new(registry.clone(), Policy::default());
    let links = [
        controller.connect(GatewayId(1), 0).await.unwrap(),
        controller.connect(GatewayId(2), 0).await.unwrap(),
    ];
    for link in &links {
        let wish = |device| LeaseRequest {
            device,
            epoch: 0,
            from: RowIndex(0),
            received: RowIndex(0),
            hold: 4,
            ahead: 4,
            stated: Statement::default(),
        };
        let fence = Fence::shown(link.gateway(), link.number());
        let granted = registry.lease(&fence, &[wish(POOL), wish(KEY)]).await.unwrap();
        assert!(granted.iter().all(Result::is_ok));
    }
    (registry, links)
}

#[tokio::test]
async fn a_session_that_is_proved_ends_older_ones_elsewhere() {
    let (registry, [first, second]) = site().await;
    for device in [POOL, KEY] {
        let before = registry.revision().await.unwrap();
        let at_first = [report(device, 1, 1, 100)];
        assert_eq!(
            first.report(&at_first, now(1_000)).await.unwrap(),
            [Reported::Newest]
        );
        let at_second = [report(device, 5, 2, 10)];
        assert_eq!(
            second.report(&at_second, now(1_000)).await.unwrap(),
            [Reported::Newest]
        );
        let told = first.changes(before, Some(now(2_000))).await.unwrap().elsewhere;
        let expected = Elsewhere {
            device,
            gateway: GatewayId(2),
            age_ns: 1_010,
        };
        assert_eq!(told, [expected]);
        let own = second.changes(before, Some(now(2_000))).await.unwrap();
        assert!(own.elsewhere.is_empty() && own.upto > before, "it is its own");
        // Late, and older: it is over.
        let late = [report(device, 2, 1, 1_500)];
        let over = Reported::Older {
            at: GatewayId(2),
            age_ns: 1_010,
        };
        assert_eq!(first.report(&late, now(2_000)).await.unwrap(), [over]);
    }
}

#[tokio::test]
async fn what_proves_nothing_is_refused_and_harms_no_other() {
    let (registry, [first, _]) = site().await;
    let good = report(POOL, 1, 1, 0);
    let mut bad_tag = report(POOL, 2, 1, 0);
    bad_tag.message[50] ^= 1;
    let other_loc = SessionReport {
        loc: [0; 8],
        ..report(POOL, 2, 1, 0)
    };
    let no_response = SessionReport {
        message: [0; 64],
        ..good.clone()
    };
    let bad = [
        bad_tag,
        other_loc,
        no_response,
        report(POOL, 2, 2, 0),
        // A row of the other gateway's, under a key for this one.
        report(POOL, 5, 1, 0),
        report(POOL, 99, 1, 0),
    ];
    let before = registry.revision().await.unwrap();
    for one in &bad {
        let answers = first.report(std::slice::from_ref(one), now(1_000)).await.unwrap();
        assert!(
            matches!(answers[..], [Reported::Refused(_)]),
            "{one:?}: {answers:?}"
        );
    }
    assert_eq!(registry.revision().await.unwrap(), before, "nothing was noted");
    let mut all = bad.to_vec();
    all.push(good);
    let answers = first.report(&all, now(1_000)).await.unwrap();
    assert_eq!(answers.last(), Some(&Reported::Newest));
    assert_eq!(registry.revision().await.unwrap().0, before.0 + 1);
}

#[tokio::test]
async fn devices_of_one_gateway_gone_ones_and_old_processes_note_nothing() {
    let (registry, [first, _]) = site().await;
    let lone = DeviceId(0xd3);
    let row = PoolRow {
        challenge: [1; 8],
        row_key: row_key(0),
    };
    registry
        .enrol(record(lone, Credentials::pool(vec![row; 8])))
        .await
        .unwrap();
    let before = registry.revoke(KEY, "lost", 0).await.unwrap();
    let reports = [
        report(lone, 0, 1, 0),
        report(KEY, 1, 1, 0),
        report(DeviceId(9), 0, 1, 0),
    ];
    let answers = first.report(&reports, now(1_000)).await.unwrap();
    assert_eq!(answers, [Reported::Newest; 3]);
    assert_eq!(registry.revision().await.unwrap(), before);
    assert!(
        registry
            .changes_since(Revision::ZERO, 9)
            .await
            .unwrap()
            .roamed
            .is_empty()
    );

    let controller = Controller::new(registry, Policy::default());
    controller.connect(GatewayId(1), 1).await.unwrap();
    let refused = first.report(&[report(POOL, 1, 1, 0)], now(1_000)).await;
    assert!(
        matches!(refused, Err(RegistryError::OldFence { .. })),
        "{refused:?}"
    );
}
