//! Session reports: verification, and their effect on older sessions at other gateways.

use linewarden_controller::{Controller, Link, Policy};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{FLAG_BOUND, Header, Response, message_type};
use linewarden_registry::{
    Credentials, DeviceRecord, FencingError, LeaseRequest, MasterKey, PoolRow, Registry, RegistryError,
};
use linewarden_types::{BootId, BootTimestamp, NewerSession, Revision, SessionReport, SessionReportResult};
use zerocopy::IntoBytes as _;

const SUITE: Suite = Suite::SipHash128;
const POOL_DEVICE: DeviceId = DeviceId(0xd1);
const KEY_DEVICE: DeviceId = DeviceId(0xd2);
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

fn now(ns: i64) -> BootTimestamp {
    BootTimestamp {
        boot_id: BootId([1; 16]),
        ns,
    }
}

/// Creates a report of a BOUND session that was opened with this row.
fn report(device: DeviceId, idx: u32, gateway: u32, age_ns: u64) -> SessionReport {
    let (mode, row) = match device == KEY_DEVICE {
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

/// Two gateways have rows of both devices: the first gateway has rows 0 to 3 of the pool, the second gateway rows 4 to 7.
async fn site() -> (Registry, [Link; 2]) {
    let registry = Registry::in_memory(&MasterKey::from_bytes([1; 32]))
        .await
        .unwrap();
    let row = |idx| PoolRow {
        challenge: [1; 8],
        row_key: row_key(idx),
    };
    let rows = Credentials::pool((0..20).map(row).collect());
    registry.enroll(record(POOL_DEVICE, rows)).await.unwrap();
    registry
        .enroll(record(KEY_DEVICE, Credentials::Key(row_key(0))))
        .await
        .unwrap();
    let controller = Controller::new(registry.clone(), Policy::default());
    let links = [
        controller.register(GatewayId(1), 0).await.unwrap(),
        controller.register(GatewayId(2), 0).await.unwrap(),
    ];
    for link in &links {
        let lease_request = |device| LeaseRequest {
            device,
            epoch: 0,
            from: RowIndex(0),
            received: RowIndex(0),
            hold_rows: 4,
            spendable_rows: 4,
            statement: RowStatement::default(),
        };
        let fencing_token = *link.fencing_token();
        let granted = registry
            .lease(
                &fencing_token,
                &[lease_request(POOL_DEVICE), lease_request(KEY_DEVICE)],
            )
            .await
            .unwrap();
        assert!(granted.iter().all(Result::is_ok));
    }
    (registry, links)
}

#[tokio::test]
async fn a_proved_session_ends_older_sessions_at_other_gateways() {
    let (registry, [first, second]) = site().await;
    for device in [POOL_DEVICE, KEY_DEVICE] {
        let before = registry.revision().await.unwrap();
        let reports_of_first = [report(device, 1, 1, 100)];
        assert_eq!(
            first
                .report_sessions(&reports_of_first, now(1_000))
                .await
                .unwrap(),
            [SessionReportResult::Newest]
        );
        let reports_of_second = [report(device, 5, 2, 10)];
        assert_eq!(
            second
                .report_sessions(&reports_of_second, now(1_000))
                .await
                .unwrap(),
            [SessionReportResult::Newest]
        );
        let newer_sessions = first
            .changes_since(before, Some(now(2_000)))
            .await
            .unwrap()
            .newer_sessions;
        let expected = NewerSession {
            device,
            gateway: GatewayId(2),
            age_ns: 1_010,
        };
        assert_eq!(newer_sessions, [expected]);
        let second_changes = second.changes_since(before, Some(now(2_000))).await.unwrap();
        assert!(
            second_changes.newer_sessions.is_empty() && second_changes.up_to_revision > before,
            "the newest session is at this gateway"
        );
        // A late report of an older session.
        let late_reports = [report(device, 2, 1, 1_500)];
        let superseded = SessionReportResult::Superseded {
            by: GatewayId(2),
            age_ns: 1_010,
        };
        assert_eq!(
            first.report_sessions(&late_reports, now(2_000)).await.unwrap(),
            [superseded]
        );
    }
}

#[tokio::test]
async fn a_report_without_a_valid_proof_is_rejected_and_affects_no_other() {
    let (registry, [first, _]) = site().await;
    let valid = report(POOL_DEVICE, 1, 1, 0);
    let mut bad_tag = report(POOL_DEVICE, 2, 1, 0);
    bad_tag.message[50] ^= 1;
    let other_loc = SessionReport {
        loc: [0; 8],
        ..report(POOL_DEVICE, 2, 1, 0)
    };
    let no_response = SessionReport {
        message: [0; 64],
        ..valid.clone()
    };
    let invalid = [
        bad_tag,
        other_loc,
        no_response,
        report(POOL_DEVICE, 2, 2, 0),
        // A row of the other gateway, with a key for this gateway.
        report(POOL_DEVICE, 5, 1, 0),
        report(POOL_DEVICE, 99, 1, 0),
    ];
    let before = registry.revision().await.unwrap();
    for report in &invalid {
        let results = first
            .report_sessions(std::slice::from_ref(report), now(1_000))
            .await
            .unwrap();
        assert!(
            matches!(results[..], [SessionReportResult::Rejected(_)]),
            "{report:?}: {results:?}"
        );
    }
    assert_eq!(registry.revision().await.unwrap(), before, "nothing was recorded");
    let mut reports = invalid.to_vec();
    reports.push(valid);
    let results = first.report_sessions(&reports, now(1_000)).await.unwrap();
    assert_eq!(results.last(), Some(&SessionReportResult::Newest));
    assert_eq!(registry.revision().await.unwrap().0, before.0 + 1);
}

#[tokio::test]
async fn reports_of_single_gateways_removed_devices_and_old_processes_are_not_recorded() {
    let (registry, [first, _]) = site().await;
    let single_gateway_device = DeviceId(0xd3);
    let row = PoolRow {
        challenge: [1; 8],
        row_key: row_key(0),
    };
    registry
        .enroll(record(single_gateway_device, Credentials::pool(vec![row; 8])))
        .await
        .unwrap();
    let before = registry.revoke(KEY_DEVICE, "lost", 0).await.unwrap();
    let reports = [
        report(single_gateway_device, 0, 1, 0),
        report(KEY_DEVICE, 1, 1, 0),
        report(DeviceId(9), 0, 1, 0),
    ];
    let results = first.report_sessions(&reports, now(1_000)).await.unwrap();
    assert_eq!(results, [SessionReportResult::Newest; 3]);
    assert_eq!(registry.revision().await.unwrap(), before);
    assert!(
        registry
            .changes_since(Revision::ZERO, 9)
            .await
            .unwrap()
            .newest_sessions
            .is_empty()
    );

    let controller = Controller::new(registry, Policy::default());
    controller.register(GatewayId(1), 1).await.unwrap();
    let result = first
        .report_sessions(&[report(POOL_DEVICE, 1, 1, 0)], now(1_000))
        .await;
    assert!(
        matches!(
            result,
            Err(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))
        ),
        "{result:?}"
    );
}
