//! Requests of gateways: their results, and requests that change no lease.

use std::ops::Range;

use linewarden_controller::{Controller, Denial, Link, Policy, ROWS_HELD_MAX};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::nonce::RowStatement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{
    self, Challenge, Header, Message, Request, Response, message_type, nak_reason,
};
use linewarden_registry::{
    Credentials, DeviceRecord, FencingError, MasterKey, PoolRow, Registry, RegistryError,
};
use linewarden_types::{
    AdmissionRequest, AdmissionResponse, BootId, BootTimestamp, Provision, RefusalReason, Revision,
    RowRequest, UnusedRows,
};
use zerocopy::IntoBytes as _;

const SUITE: Suite = Suite::SipHash128;
const FRESH: [u8; 8] = [7; 8];
const POOL_DEVICE: DeviceId = DeviceId(0xd1);
const KEY_DEVICE: DeviceId = DeviceId(0xd2);
const UNKNOWN_DEVICE: DeviceId = DeviceId(0xd3);
const GATEWAY_1: GatewayId = GatewayId(1);
const GATEWAY_2: GatewayId = GatewayId(2);
const NOW: BootTimestamp = BootTimestamp {
    boot_id: BootId([1; 16]),
    ns: 1_000,
};

fn row_key(device: DeviceId, idx: u32) -> RowKey {
    let mut key = [0x5a; 16];
    key[..8].copy_from_slice(&device.0.to_be_bytes());
    key[8..12].copy_from_slice(&idx.to_be_bytes());
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

fn pool(device: DeviceId, rows: u32) -> DeviceRecord {
    let row = |idx| PoolRow {
        challenge: [(idx as u8).wrapping_add(1); 8],
        row_key: row_key(device, idx),
    };
    record(device, Credentials::pool((0..rows).map(row).collect()))
}

fn auth_key(device: DeviceId, idx: u32, gateway: GatewayId) -> AuthKey {
    let mode = if device == KEY_DEVICE {
        Mode::Key
    } else {
        Mode::Pool
    };
    let row = if device == KEY_DEVICE { 0 } else { idx };
    AuthKey::derive(&row_key(device, row), SUITE, mode, RowIndex(idx), gateway)
}

fn admission_request(message: &[u8]) -> AdmissionRequest {
    AdmissionRequest {
        message: message.try_into().unwrap(),
        loc: [0; 8],
    }
}

fn request(device: DeviceId) -> AdmissionRequest {
    let request = Request {
        header: Header::new(message_type::REQUEST, SUITE, 0, device),
        nonce: [3; 16],
        reserved: [0; 32],
    };
    admission_request(request.as_bytes())
}

fn response(device: DeviceId, idx: u32, gateway: GatewayId) -> AdmissionRequest {
    response_with_nonce(device, idx, gateway, [3; 16])
}

fn refusal_statement(unanswered_from: u32) -> [u8; 16] {
    let statement = RowStatement {
        first_unanswered_row: RowIndex(unanswered_from),
        has_refused_row: true,
    };
    statement.write_into([3; 16])
}

fn response_with_nonce(device: DeviceId, idx: u32, gateway: GatewayId, nonce: [u8; 16]) -> AdmissionRequest {
    let mut response = Response {
        header: Header::new(message_type::RESPONSE, SUITE, 0, device),
        nonce,
        idx: idx.into(),
        gateway_id: gateway.0.into(),
        fresh: FRESH,
        tag: [0; 16],
    };
    response.tag = tag::response(&auth_key(device, idx, gateway), &response, &[0; 8]);
    admission_request(response.as_bytes())
}

struct Site {
    registry: Registry,
    controller: Controller,
    link: Link,
}

impl Site {
    async fn new() -> Self {
        Self::with_rows(20).await
    }

    async fn with_rows(rows: u32) -> Self {
        let registry = Registry::in_memory(&MasterKey::from_bytes([1; 32]))
            .await
            .unwrap();
        registry.enroll(pool(POOL_DEVICE, rows)).await.unwrap();
        registry
            .enroll(record(KEY_DEVICE, Credentials::Key(row_key(KEY_DEVICE, 0))))
            .await
            .unwrap();
        let policy = Policy {
            lease_rows: 6,
            mark_block: 4,
        };
        let controller = Controller::new(registry.clone(), policy);
        let link = controller.register(GATEWAY_1, 1).await.unwrap();
        Self {
            registry,
            controller,
            link,
        }
    }

    async fn receive(&self, request: AdmissionRequest) -> AdmissionResponse {
        self.link
            .admit_devices(&[request], FRESH)
            .await
            .unwrap()
            .remove(0)
    }

    async fn expect_admission(&self, request: AdmissionRequest) -> Provision {
        match self.receive(request).await {
            AdmissionResponse::Admit(provision) => provision,
            other => panic!("{other:?}"),
        }
    }

    async fn gets_no_response(&self, request: AdmissionRequest) -> bool {
        matches!(self.receive(request).await, AdmissionResponse::NoResponse)
    }

    async fn floor(&self) -> u32 {
        self.registry.get(POOL_DEVICE).await.unwrap().idx_floor.0
    }
}

fn row_request(from: u32, received: u32, hold_rows: u32) -> RowRequest {
    RowRequest {
        device: POOL_DEVICE,
        epoch: 0,
        from: RowIndex(from),
        received: RowIndex(received),
        hold_rows,
        spendable_rows: 4,
    }
}

fn challenge(response: &AdmissionResponse) -> Challenge {
    let AdmissionResponse::Challenge(bytes) = response else {
        panic!("{response:?}")
    };
    match wire::parse(&bytes[..]).unwrap() {
        Message::Challenge(challenge) => *challenge,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_request_gets_the_challenge_of_the_next_row_and_changes_no_lease() {
    let site = Site::new().await;
    for _ in 0..3 {
        let challenge = challenge(&site.receive(request(POOL_DEVICE)).await);
        assert_eq!((challenge.idx.get(), challenge.gateway_id.get()), (0, 1));
        assert_eq!((challenge.challenge, challenge.fresh), ([1; 8], FRESH));
        let expected = tag::challenge(&auth_key(POOL_DEVICE, 0, GATEWAY_1), &challenge, &[3; 16]);
        assert_eq!(challenge.tag, expected, "the key of this gateway");
    }
    assert_eq!(
        challenge(&site.receive(request(KEY_DEVICE)).await).challenge,
        [0; 8]
    );
    assert_eq!(site.floor().await, 0);
    assert!(site.registry.leases_of(POOL_DEVICE).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_device_with_a_valid_response_is_leased_rows_from_the_proved_row_on() {
    let site = Site::new().await;
    let provision = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    assert_eq!(
        (provision.device, provision.indices(), provision.mark.0),
        (POOL_DEVICE, 0..6, 4)
    );
    for (idx, row) in provision.indices().zip(&provision.rows) {
        assert_eq!(row.auth_key, auth_key(POOL_DEVICE, idx, GATEWAY_1));
    }
    assert_eq!(site.floor().await, 6);
    // The response was lost: a repeated RESPONSE gets the same rows, and no more.
    let repeated = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    assert_eq!((repeated.indices(), repeated.mark.0), (0..6, 4));
    assert_eq!(site.floor().await, 6);
    let key_provision = site.expect_admission(response(KEY_DEVICE, 0, GATEWAY_1)).await;
    assert_eq!((key_provision.mode, key_provision.rows.len()), (Mode::Key, 1));
}

#[tokio::test]
async fn messages_that_prove_nothing_get_no_reply_and_change_no_lease() {
    let site = Site::new().await;
    let altered = |mut admission: AdmissionRequest, at: usize| {
        admission.message[at] ^= 1;
        admission
    };
    for admission in [
        request(UNKNOWN_DEVICE),
        response(UNKNOWN_DEVICE, 0, GATEWAY_1),
        response(POOL_DEVICE, 1, GATEWAY_1),
        response(POOL_DEVICE, u32::MAX, GATEWAY_1),
        response(POOL_DEVICE, 0, GATEWAY_2),
        altered(response(POOL_DEVICE, 0, GATEWAY_1), 63),
        altered(response(POOL_DEVICE, 0, GATEWAY_1), 20),
        // Messages that do not parse.
        altered(request(POOL_DEVICE), 0),
        // A message type that only gateways send.
        altered(request(POOL_DEVICE), 3),
        AdmissionRequest {
            loc: [1; 8],
            ..response(POOL_DEVICE, 0, GATEWAY_1)
        },
    ] {
        assert!(site.gets_no_response(admission.clone()).await, "{admission:?}");
    }
    site.registry.revoke(POOL_DEVICE, "lost", 1).await.unwrap();
    assert!(site.gets_no_response(request(POOL_DEVICE)).await);
    assert!(site.gets_no_response(response(POOL_DEVICE, 0, GATEWAY_1)).await);
    assert_eq!(site.floor().await, 0);
}

#[tokio::test]
async fn one_device_does_not_disturb_the_others_of_a_request() {
    let site = Site::new().await;
    let requests = [
        request(UNKNOWN_DEVICE),
        response(POOL_DEVICE, 0, GATEWAY_1),
        response(POOL_DEVICE, 9, GATEWAY_1),
        request(KEY_DEVICE),
        response(KEY_DEVICE, 0, GATEWAY_1),
    ];
    let responses = site.link.admit_devices(&requests, FRESH).await.unwrap();
    let kinds: Vec<u8> = responses
        .iter()
        .map(|outcome| match outcome {
            AdmissionResponse::NoResponse => 0,
            AdmissionResponse::Challenge(_) => 1,
            AdmissionResponse::Admit(_) => 2,
            AdmissionResponse::Nak(_) => 3,
            AdmissionResponse::NakForStatement(_) => 4,
        })
        .collect();
    assert_eq!(kinds, [0, 2, 0, 1, 2]);
}

/// Sends a RESPONSE twice in each of two requests: each copy gets the same result, and no other gateway gets these rows.
async fn expect_one_response(site: &Site, admission: AdmissionRequest, rows: Range<u32>) {
    let mut responses = Vec::new();
    for _ in 0..2 {
        let requests = [admission.clone(), admission.clone()];
        responses.extend(site.link.admit_devices(&requests, FRESH).await.unwrap());
    }
    for response in responses {
        let AdmissionResponse::Admit(provision) = response else {
            panic!("{response:?}")
        };
        assert_eq!(
            (provision.indices(), provision.mark.0),
            (rows.clone(), rows.start + 4)
        );
    }
    let other_link = site.controller.register(GatewayId(3), 1).await.unwrap();
    let next = challenge(
        &other_link
            .admit_devices(&[request(POOL_DEVICE)], FRESH)
            .await
            .unwrap()[0],
    );
    assert_eq!(next.idx.get(), rows.end);
}

#[tokio::test]
async fn copies_of_a_response_get_one_result_after_a_refusal() {
    let site = Site::with_rows(60).await;
    let second_link = site.controller.register(GATEWAY_2, 1).await.unwrap();
    let _ = second_link
        .admit_devices(&[response(POOL_DEVICE, 0, GATEWAY_2)], FRESH)
        .await
        .unwrap();
    expect_one_response(
        &site,
        response_with_nonce(POOL_DEVICE, 6, GATEWAY_1, refusal_statement(3)),
        6..12,
    )
    .await;
}

/// Only the first of the two proofs gets a lease.
#[tokio::test]
async fn of_two_proofs_in_one_request_only_the_first_changes_the_lease() {
    let site = Site::with_rows(60).await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let requests = [
        response_with_nonce(POOL_DEVICE, 6, GATEWAY_1, refusal_statement(5)),
        response_with_nonce(POOL_DEVICE, 7, GATEWAY_1, refusal_statement(7)),
    ];
    let responses = site.link.admit_devices(&requests, FRESH).await.unwrap();
    let [AdmissionResponse::Admit(provision), AdmissionResponse::NoResponse] = &responses[..] else {
        panic!("{responses:?}")
    };
    assert_eq!(provision.indices(), 6..12);
    let leases = site.registry.leases_of(POOL_DEVICE).await.unwrap();
    assert_eq!((leases[0].rows.clone(), site.floor().await), (6..12, 12));
}

#[tokio::test]
async fn copies_of_a_response_get_one_result_after_a_restore() {
    let site = Site::with_rows(60).await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let directory = tempfile::tempdir().unwrap();
    for stated_row in [0, 3, 9] {
        let path = directory.path().join(stated_row.to_string());
        site.registry.copy_to(&*path, |_| ()).await.unwrap();
        let registry = Registry::open(&path, &MasterKey::from_bytes([1; 32]))
            .await
            .unwrap();
        let controller = Controller::new(registry.clone(), site.controller.policy());
        let link = controller.register(GATEWAY_1, 1).await.unwrap();
        let restored = Site {
            registry,
            controller,
            link,
        };
        let nonce = RowStatement {
            first_unanswered_row: RowIndex(stated_row),
            has_refused_row: false,
        };
        // The first row is above the last row that was used or leased, and above the rows that two gateways may have
        // leased since.
        let first = stated_row.max(6) + 12;
        let request = response_with_nonce(POOL_DEVICE, first, GATEWAY_1, nonce.write_into([3; 16]));
        expect_one_response(&restored, request, first..first + 6).await;
    }
    // The device has used rows that the restored registry does not know: no row is left.
    let path = directory.path().join("shorter");
    site.registry.copy_to(&*path, |_| ()).await.unwrap();
    let registry = Registry::open(&path, &MasterKey::from_bytes([1; 32]))
        .await
        .unwrap();
    let link = Controller::new(registry, site.controller.policy())
        .register(GATEWAY_1, 1)
        .await
        .unwrap();
    let statement = RowStatement {
        first_unanswered_row: RowIndex(70),
        has_refused_row: false,
    };
    for idx in [6, 18] {
        let requests = [response_with_nonce(
            POOL_DEVICE,
            idx,
            GATEWAY_1,
            statement.write_into([3; 16]),
        )];
        let responses = link.admit_devices(&requests, FRESH).await.unwrap();
        assert!(
            matches!(responses[..], [AdmissionResponse::NoResponse]),
            "{responses:?}"
        );
    }
    let responses = link
        .admit_devices(&[request_with_statement(statement)], FRESH)
        .await
        .unwrap();
    assert_eq!(rows_end_of_nak(&responses[0]), 60);
}

/// Creates a REQUEST with this statement.
fn request_with_statement(statement: RowStatement) -> AdmissionRequest {
    let request = Request {
        header: Header::new(message_type::REQUEST, SUITE, 0, POOL_DEVICE),
        nonce: statement.write_into([3; 16]),
        reserved: [0; 32],
    };
    admission_request(request.as_bytes())
}

/// Returns the number after the last row, from a NAK without rows.
fn rows_end_of_nak(response: &AdmissionResponse) -> u32 {
    let (AdmissionResponse::Nak(bytes) | AdmissionResponse::NakForStatement(bytes)) = response else {
        panic!("{response:?}")
    };
    match wire::parse(&bytes[..]).unwrap() {
        Message::Nak(nak) => {
            assert_eq!(nak.reason, nak_reason::NO_ROWS);
            assert_eq!(nak.header.device(), POOL_DEVICE);
            nak.idx.get()
        }
        other => panic!("{other:?}"),
    }
}

/// Only a REQUEST gets a NAK: the sender of a RESPONSE that does not verify gets no reply.
#[tokio::test]
async fn a_device_without_rows_gets_a_nak() {
    let site = Site::with_rows(6).await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let second_link = site.controller.register(GATEWAY_2, 1).await.unwrap();
    let responses = second_link
        .admit_devices(
            &[request(POOL_DEVICE), response(POOL_DEVICE, 6, GATEWAY_2)],
            FRESH,
        )
        .await
        .unwrap();
    assert_eq!(rows_end_of_nak(&responses[0]), 6);
    assert!(matches!(responses[0], AdmissionResponse::Nak(_)), "{responses:?}");
    assert!(
        matches!(responses[1], AdmissionResponse::NoResponse),
        "{responses:?}"
    );
    // The REQUEST has another suite than the device.
    let mut other_suite = request(POOL_DEVICE);
    other_suite.message[4] = 2;
    let responses = second_link.admit_devices(&[other_suite], FRESH).await.unwrap();
    assert!(
        matches!(responses[0], AdmissionResponse::NoResponse),
        "{responses:?}"
    );
    site.registry.revoke(POOL_DEVICE, "lost", 1).await.unwrap();
    let responses = second_link
        .admit_devices(&[request(POOL_DEVICE)], FRESH)
        .await
        .unwrap();
    assert!(
        matches!(responses[0], AdmissionResponse::NoResponse),
        "{responses:?}"
    );
}

/// An attacker without a key can send a REQUEST, and change the statement in a recorded RESPONSE. Neither of these
/// messages changes a lease.
#[tokio::test]
async fn forged_statements_use_no_row_and_change_no_mark() {
    let site = Site::with_rows(60).await;
    let second_link = site.controller.register(GATEWAY_2, 1).await.unwrap();
    let _ = second_link
        .admit_devices(&[response(POOL_DEVICE, 0, GATEWAY_2)], FRESH)
        .await
        .unwrap();
    let before = (
        site.floor().await,
        site.registry.leases_of(POOL_DEVICE).await.unwrap(),
    );
    let rows = [
        0,
        1,
        5,
        6,
        7,
        30,
        59,
        60,
        61,
        1 << 20,
        (1 << 20) + 1,
        (1 << 31) - 1,
    ];
    for row in rows {
        for has_refused in [false, true] {
            let statement = RowStatement {
                first_unanswered_row: RowIndex(row),
                has_refused_row: has_refused,
            };
            let outcome = site.receive(request_with_statement(statement)).await;
            let expected = match (row, has_refused) {
                (7..=59, _) => Some(row),
                // The pool has no row from the stated row on.
                (60, _) | (61..=0x10_0000, true) => None,
                // A statement about another pool.
                _ => Some(6),
            };
            match expected {
                Some(idx) => assert_eq!(challenge(&outcome).idx.get(), idx, "{statement:?}"),
                None => {
                    assert_eq!(rows_end_of_nak(&outcome), 60, "{statement:?}");
                    assert!(
                        matches!(outcome, AdmissionResponse::NakForStatement(_)),
                        "{statement:?}"
                    );
                }
            }
            // A recorded RESPONSE with another statement.
            let mut altered = response(POOL_DEVICE, expected.unwrap_or(6), GATEWAY_1);
            altered.message[16..32].copy_from_slice(&statement.write_into([9; 16]));
            assert!(site.gets_no_response(altered).await, "{statement:?}");
        }
    }
    let after = (
        site.floor().await,
        site.registry.leases_of(POOL_DEVICE).await.unwrap(),
    );
    assert_eq!(before, after);
    assert_eq!(
        site.expect_admission(response(POOL_DEVICE, 6, GATEWAY_1))
            .await
            .indices(),
        6..12
    );
}

#[tokio::test]
async fn another_gateway_gets_other_rows_and_other_keys() {
    let site = Site::new().await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let second_link = site.controller.register(GATEWAY_2, 1).await.unwrap();
    let first = challenge(
        &second_link
            .admit_devices(&[request(POOL_DEVICE)], FRESH)
            .await
            .unwrap()[0],
    );
    assert_eq!(first.idx.get(), 6);
    let responses = second_link
        .admit_devices(&[response(POOL_DEVICE, 6, GATEWAY_2)], FRESH)
        .await
        .unwrap();
    let AdmissionResponse::Admit(provision) = &responses[0] else {
        panic!("{responses:?}")
    };
    assert_eq!(provision.indices(), 6..12);
    assert_eq!(provision.rows[0].auth_key, auth_key(POOL_DEVICE, 6, GATEWAY_2));
}

#[tokio::test]
async fn a_restart_resumes_leases_at_the_mark() {
    let site = Site::new().await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let _ = site.expect_admission(response(KEY_DEVICE, 0, GATEWAY_1)).await;
    let link = site.controller.register(GATEWAY_1, 2).await.unwrap();
    let mut leases = link.leases();
    let chunk = leases.next_chunk().await.unwrap();
    let mut resumed: Vec<_> = chunk
        .provisions
        .iter()
        .map(|provision| (provision.device, provision.indices(), provision.mark.0))
        .collect();
    resumed.sort_by_key(|(device, ..)| *device);
    assert_eq!(resumed[0], (POOL_DEVICE, 4..6, 4), "no row may be spent yet");
    assert_eq!((resumed[1].0, resumed[1].1.len()), (KEY_DEVICE, 1));
    assert!(leases.next_chunk().await.unwrap().is_last);
    // All requests of the earlier process are rejected.
    fn is_stale(error: impl Into<Denial>) -> bool {
        matches!(
            error.into(),
            Denial::Registry(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))
        )
    }
    assert!(is_stale(
        site.link
            .admit_devices(&[request(POOL_DEVICE)], FRESH)
            .await
            .unwrap_err()
    ));
    assert!(is_stale(
        site.link
            .extend_leases(&[row_request(0, 0, 6)])
            .await
            .unwrap_err()
    ));
    assert!(is_stale(
        site.link
            .changes_since(Revision::ZERO, Some(NOW))
            .await
            .unwrap_err()
    ));
    assert!(is_stale(site.link.record_unused_rows(&[]).await.unwrap_err()));
    assert!(is_stale(site.link.leases().next_chunk().await.unwrap_err()));
}

#[tokio::test]
async fn leases_are_extended_until_the_pool_is_exhausted() {
    let site = Site::new().await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let (provisions, refused) = site.link.extend_leases(&[row_request(3, 6, 12)]).await.unwrap();
    assert!(refused.is_empty());
    assert_eq!((provisions[0].indices(), provisions[0].mark.0), (6..15, 7));
    let (provisions, _) = site.link.extend_leases(&[row_request(12, 15, 2)]).await.unwrap();
    assert_eq!(
        (provisions[0].rows.len(), provisions[0].mark.0),
        (0, 15),
        "only the mark moves"
    );
    let (provisions, _) = site.link.extend_leases(&[row_request(14, 15, 12)]).await.unwrap();
    assert_eq!(provisions[0].indices(), 15..20);
    let (provisions, refused) = site.link.extend_leases(&[row_request(20, 20, 12)]).await.unwrap();
    assert!(provisions.is_empty());
    assert_eq!(refused[0].reason, RefusalReason::Exhausted);
    site.registry.revoke(POOL_DEVICE, "", 1).await.unwrap();
    let (_, refused) = site.link.extend_leases(&[row_request(20, 20, 12)]).await.unwrap();
    assert_eq!(refused[0].reason, RefusalReason::Inactive);
}

/// A gateway with a stolen certificate cannot lease rows of a device that never authenticated there, and makes no row
/// unusable.
#[tokio::test]
async fn a_gateway_gets_no_rows_of_a_device_that_has_not_authenticated_there() {
    let site = Site::new().await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let before = site.registry.leases_of(POOL_DEVICE).await.unwrap();
    let second_link = site.controller.register(GATEWAY_2, 1).await.unwrap();
    for (from, received, hold_rows) in [(0, 0, 6), (u32::MAX, u32::MAX, u32::MAX), (9, 9, 4)] {
        let (provisions, refused) = second_link
            .extend_leases(&[row_request(from, received, hold_rows)])
            .await
            .unwrap();
        assert!(provisions.is_empty());
        assert_eq!(refused[0].reason, RefusalReason::NotHeld);
    }
    for device in [POOL_DEVICE, KEY_DEVICE] {
        for unused_from in [0, 6, u32::MAX] {
            let unused = UnusedRows {
                device,
                epoch: 0,
                unused_from: RowIndex(unused_from),
                keep_leased: false,
            };
            assert_eq!(second_link.record_unused_rows(&[unused]).await.unwrap(), 0);
        }
    }
    assert_eq!(site.registry.leases_of(POOL_DEVICE).await.unwrap(), before);
    assert!(site.registry.leases_of(KEY_DEVICE).await.unwrap().is_empty());
    assert_eq!(site.registry.get(KEY_DEVICE).await.unwrap().idx_floor.0, 0);
    assert_eq!(site.floor().await, 6);
}

/// A request is limited to the rows that a data plane has room for.
#[tokio::test]
async fn no_request_leases_more_rows_than_a_line_can_hold() {
    let site = Site::with_rows(3 * ROWS_HELD_MAX).await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let (provisions, _) = site
        .link
        .extend_leases(&[row_request(0, 6, u32::MAX)])
        .await
        .unwrap();
    assert_eq!(provisions[0].indices(), 6..ROWS_HELD_MAX);
    assert!(provisions[0].mark.0 <= ROWS_HELD_MAX);
}

#[tokio::test]
async fn returned_rows_require_a_new_proof() {
    let site = Site::new().await;
    let _ = site.expect_admission(response(POOL_DEVICE, 0, GATEWAY_1)).await;
    let unused = UnusedRows {
        device: POOL_DEVICE,
        epoch: 0,
        unused_from: RowIndex(2),
        keep_leased: false,
    };
    assert_eq!(site.link.record_unused_rows(&[unused]).await.unwrap(), 4);
    assert!(
        site.gets_no_response(response(POOL_DEVICE, 0, GATEWAY_1)).await,
        "the row was used"
    );
    let provision = site.expect_admission(response(POOL_DEVICE, 2, GATEWAY_1)).await;
    assert_eq!(provision.indices(), 2..8);
}
