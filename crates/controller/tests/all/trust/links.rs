//! Effects of the trust state on the registrations of a gateway: rows, leases, fencing tokens.

use std::time::Duration;

use linewarden_controller::trust::{EvidenceRejected, Timestamps};
use linewarden_controller::{Controller, Denial, Link, Policy};
use linewarden_evidence::encoding::{BpfMapEntry, Entry};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{
    Credentials, DeviceRecord, FencingError, FencingToken, MasterKey, Options, Registry, RegistryError,
};
use linewarden_types::{GatewayTrustState, RefusalReason, RowRequest, TrustStatus};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, Executor as _, SqliteConnection};

use crate::trust::attested_data_plane::AttestedDataPlane;
use crate::trust::{EVIDENCE_INTERVAL_NS, GATEWAY, RESPONSE_TIMEOUT_NS, SECOND_NS, distrust_reason};

const DEVICE: DeviceId = DeviceId(0xd1);

fn times(now_ns: u64) -> Timestamps {
    Timestamps {
        now_ns,
        now_s: now_ns / SECOND_NS,
    }
}

async fn controller_of(data_plane: &mut AttestedDataPlane) -> Controller {
    let key = MasterKey::from_bytes([1; 32]);
    controller_with_registry(Registry::in_memory(&key).await.unwrap(), data_plane).await
}

async fn controller_with_registry(registry: Registry, data_plane: &mut AttestedDataPlane) -> Controller {
    let device = DeviceRecord {
        device: DEVICE,
        name: String::new(),
        suite: Suite::SipHash128,
        enrolled_at_s: 0,
        puf_profile: String::new(),
        credentials: Credentials::Key(RowKey::from_bytes([5; 16])),
    };
    registry.enroll(device).await.unwrap();
    Controller::new(registry, Policy::default()).with_trust_policy(GATEWAY, data_plane.policy())
}

fn row_request() -> RowRequest {
    RowRequest {
        device: DEVICE,
        epoch: 0,
        from: RowIndex(0),
        received: RowIndex(0),
        hold_rows: 4,
        spendable_rows: 4,
    }
}

/// Polls, and submits the requested evidence of the data plane.
async fn submit(link: &Link, data_plane: &mut AttestedDataPlane, now_ns: u64) -> TrustStatus {
    let polled = link
        .poll_trust(times(now_ns), &mut nonces_at(now_ns))
        .await
        .unwrap()
        .unwrap();
    let nonce = polled.nonce.expect("evidence is due");
    let inventory = data_plane.inventory();
    let outcome = link
        .submit_evidence(data_plane.statement(nonce), Some(inventory), times(now_ns))
        .await;
    outcome.unwrap().unwrap()
}

fn nonces_at(now_ns: u64) -> impl FnMut() -> Option<[u8; 32]> + Send {
    move || {
        let mut nonce = [3; 32];
        nonce[..8].copy_from_slice(&now_ns.to_be_bytes());
        Some(nonce)
    }
}

#[tokio::test]
async fn rows_are_leased_only_to_a_trusted_gateway() {
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = controller_of(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    let denied = |denial: Denial| denial.to_string();
    let denied_reason = denied(link.extend_leases(&[row_request()]).await.unwrap_err());
    assert!(
        denied_reason.contains("no evidence submitted yet"),
        "{denied_reason}"
    );
    assert!(matches!(
        link.leases().next_chunk().await,
        Err(Denial::Untrusted { .. })
    ));
    assert!(matches!(
        link.admit_devices(&[], [7; 8]).await,
        Err(Denial::Untrusted { .. })
    ));
    // Gateways without a trust policy are served.
    let other_link = controller.register(GatewayId(6), 1).await.unwrap();
    let (_, refusals) = other_link.extend_leases(&[row_request()]).await.unwrap();
    assert_eq!(refusals[0].reason, RefusalReason::NotHeld);
    assert!(
        other_link
            .poll_trust(times(0), &mut nonces_at(0))
            .await
            .unwrap()
            .is_none()
    );

    let outcome = submit(&link, &mut data_plane, SECOND_NS).await;
    assert_eq!(outcome.state, GatewayTrustState::Trusted);
    assert!(outcome.fencing_token.is_none(), "no lease was revoked");
    controller.advance_time(SECOND_NS);
    link.extend_leases(&[row_request()]).await.unwrap();
    assert!(link.leases().next_chunk().await.is_ok());
}

#[tokio::test]
async fn a_changed_gateway_loses_its_leases_by_a_new_fencing_token() {
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = controller_of(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    submit(&link, &mut data_plane, SECOND_NS).await;
    let leases = link.leases();
    data_plane.set(8);
    let outcome = submit(&link, &mut data_plane, EVIDENCE_INTERVAL_NS + SECOND_NS).await;
    assert!(
        distrust_reason(&outcome.state).contains("07 is now 08"),
        "{outcome:?}"
    );

    let newest_link = link.with_token_number(outcome.fencing_token.expect("a new token was issued"));
    assert_eq!(newest_link.token_number(), link.token_number() + 1);
    let stale_error = link.record_unused_rows(&[]).await.unwrap_err();
    assert!(
        matches!(
            stale_error,
            RegistryError::Fencing(FencingError::StaleFencingToken { .. })
        ),
        "{stale_error}"
    );
    assert!(
        controller.is_stale_through_distrust(&stale_error),
        "no other process has registered"
    );
    drop(leases);
    assert!(matches!(
        newest_link.extend_leases(&[row_request()]).await,
        Err(Denial::Untrusted { .. })
    ));

    data_plane.set(7);
    let outcome = submit(
        &newest_link,
        &mut data_plane,
        2 * EVIDENCE_INTERVAL_NS + SECOND_NS,
    )
    .await;
    assert_eq!(outcome.state, GatewayTrustState::Trusted);
    newest_link.extend_leases(&[row_request()]).await.unwrap();

    // Another process registers, and must submit evidence.
    let successor = controller.register(GATEWAY, 2).await.unwrap();
    let stale_error = newest_link.record_unused_rows(&[]).await.unwrap_err();
    assert!(
        !controller.is_stale_through_distrust(&stale_error),
        "the process was replaced"
    );
    assert!(matches!(
        successor.extend_leases(&[row_request()]).await,
        Err(Denial::Untrusted { .. })
    ));
    let nonce = successor
        .poll_trust(times(3 * EVIDENCE_INTERVAL_NS), &mut nonces_at(9))
        .await
        .unwrap()
        .unwrap();
    let nonce = nonce.nonce.unwrap();
    let result = newest_link
        .submit_evidence(data_plane.statement(nonce), None, times(3 * EVIDENCE_INTERVAL_NS))
        .await;
    assert!(result.is_err(), "an earlier process cannot submit evidence");
}

#[tokio::test]
async fn missing_evidence_revokes_the_leases() {
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = controller_of(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    submit(&link, &mut data_plane, SECOND_NS).await;
    let request_ns = EVIDENCE_INTERVAL_NS + SECOND_NS;
    link.poll_trust(times(request_ns), &mut nonces_at(request_ns))
        .await
        .unwrap();
    controller.advance_time(request_ns + RESPONSE_TIMEOUT_NS);
    let denial = link.extend_leases(&[row_request()]).await.unwrap_err();
    assert!(denial.to_string().contains("overdue"), "{denial}");
    let outcome = link
        .poll_trust(
            times(request_ns + RESPONSE_TIMEOUT_NS),
            &mut nonces_at(request_ns + RESPONSE_TIMEOUT_NS),
        )
        .await;
    let outcome = outcome.unwrap().unwrap();
    assert!(distrust_reason(&outcome.state).contains("10 s"));
    assert!(outcome.fencing_token.is_some());
    let error = link
        .submit_evidence(Vec::new(), None, times(request_ns + RESPONSE_TIMEOUT_NS))
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        RegistryError::Fencing(FencingError::StaleFencingToken { .. })
    ));
}

#[tokio::test]
async fn the_newest_token_is_returned_to_each_request_of_the_same_process_only() {
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = controller_of(&mut data_plane).await;
    let earlier_process = controller.register(GATEWAY, 1).await.unwrap();
    let link = controller.register(GATEWAY, 1).await.unwrap();
    submit(&link, &mut data_plane, SECOND_NS).await;
    data_plane.set(8);
    let first = submit(&link, &mut data_plane, EVIDENCE_INTERVAL_NS + SECOND_NS).await;
    let first = link.with_token_number(first.fencing_token.unwrap());
    // The response was lost.
    let polled = link
        .poll_trust(times(EVIDENCE_INTERVAL_NS + SECOND_NS), &mut nonces_at(7))
        .await;
    let polled = polled.unwrap().unwrap();
    assert_eq!(polled.fencing_token, Some(first.token_number()));
    assert!(matches!(polled.state, GatewayTrustState::Untrusted { .. }));
    // A link two tokens behind also gets the newest token.
    data_plane.set(7);
    submit(&first, &mut data_plane, 2 * EVIDENCE_INTERVAL_NS + SECOND_NS).await;
    data_plane.set(8);
    let second = submit(&first, &mut data_plane, 3 * EVIDENCE_INTERVAL_NS + SECOND_NS).await;
    for older_link in [&link, &first] {
        let polled = older_link
            .poll_trust(times(3 * EVIDENCE_INTERVAL_NS + SECOND_NS), &mut nonces_at(8))
            .await;
        assert!(second.fencing_token.is_some());
        assert_eq!(polled.unwrap().unwrap().fencing_token, second.fencing_token);
    }
    let stale_error = earlier_process
        .poll_trust(times(3 * EVIDENCE_INTERVAL_NS + SECOND_NS), &mut nonces_at(9))
        .await
        .unwrap_err();
    assert!(
        !controller.is_stale_through_distrust(&stale_error),
        "another process replaced this one: {stale_error}"
    );
    controller.register(GATEWAY, 2).await.unwrap();
    let stale_error = first
        .with_token_number(second.fencing_token.unwrap())
        .poll_trust(times(3 * EVIDENCE_INTERVAL_NS + SECOND_NS), &mut nonces_at(9))
        .await
        .unwrap_err();
    assert!(
        !controller.is_stale_through_distrust(&stale_error),
        "the process was replaced: {stale_error}"
    );
}

/// A data plane with a large inventory.
fn data_plane_with_entries() -> AttestedDataPlane {
    let mut data_plane = AttestedDataPlane::new(3);
    for number in 0..10_000_u32 {
        let entry = Entry::from(BpfMapEntry {
            map: "devices".to_owned(),
            key: number.to_be_bytes().to_vec(),
            value: vec![0; 64],
        });
        data_plane.measured.put(&entry).unwrap();
    }
    data_plane
}

/// Appraising a large inventory blocks no other gateway.
#[tokio::test]
async fn other_gateways_are_served_during_the_appraisal_of_a_statement() {
    let mut data_plane = data_plane_with_entries();
    let controller = controller_of(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    let other_link = controller.register(GatewayId(6), 1).await.unwrap();
    let polled = link
        .poll_trust(times(SECOND_NS), &mut nonces_at(SECOND_NS))
        .await
        .unwrap()
        .unwrap();
    let statement = data_plane.statement(polled.nonce.unwrap());
    let outcome = link.submit_evidence(statement, Some(data_plane.inventory()), times(SECOND_NS));
    let mut outcome = std::pin::pin!(outcome);
    let (requests, mut served) = ([row_request()], 0);
    let trust_outcome = loop {
        tokio::select! {
            biased;
            trust_outcome = outcome.as_mut() => break trust_outcome.unwrap().unwrap(),
            leased = other_link.extend_leases(&requests) => {
                leased.unwrap();
                served += 1;
            }
        }
        controller.advance_time(SECOND_NS);
    };
    assert_eq!(trust_outcome.state, GatewayTrustState::Trusted);
    assert!(
        served > 5,
        "{served} requests of another gateway were served during the appraisal"
    );
}

/// Evidence of a process that registered again during the appraisal has no effect.
#[tokio::test]
async fn an_appraisal_counts_only_for_the_pending_nonce() {
    let mut data_plane = data_plane_with_entries();
    let controller = controller_of(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    let polled = link
        .poll_trust(times(SECOND_NS), &mut nonces_at(SECOND_NS))
        .await
        .unwrap()
        .unwrap();
    let statement = data_plane.statement(polled.nonce.unwrap());
    let outcome = link.submit_evidence(statement, Some(data_plane.inventory()), times(SECOND_NS));
    let mut outcome = std::pin::pin!(outcome);
    for _ in 0..3 {
        tokio::select! {
            biased;
            trust_outcome = outcome.as_mut() => panic!("too early: {trust_outcome:?}"),
            fencing_token = link.verify_registration() => fencing_token.unwrap(),
        }
    }
    controller.restart_trust(GATEWAY, None);
    assert!(matches!(
        outcome.await.unwrap(),
        Err(EvidenceRejected::NotRequested)
    ));
    controller.advance_time(SECOND_NS);
    let denied = link.extend_leases(&[row_request()]).await.unwrap_err();
    assert!(matches!(denied, Denial::Untrusted { .. }), "{denied}");
}

/// What happened to the registration of an untrusted process before its new token was issued.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RegistrationChange {
    /// No other process has registered.
    None,
    /// A newer process has registered at another controller.
    NewerProcess,
    /// A newer process has registered at another controller, and connects to this controller.
    NewerProcessConnects,
}

/// If no new token could be issued because the database was locked, the controller tries again at the next request of
/// the untrusted process. If a newer process has registered at another controller since, the untrusted process gets an
/// error.
#[tokio::test]
async fn a_new_token_is_pending_until_it_is_issued_or_obsolete() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet.registry");
    let options = Options {
        busy_timeout: Duration::from_millis(50),
        ..Options::default()
    };
    let key = MasterKey::from_bytes([1; 32]);
    let registry = Registry::create_with(path.clone(), &key, &options).await.unwrap();
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = controller_with_registry(registry.clone(), &mut data_plane).await;
    let mut locking_connection = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&path))
        .await
        .unwrap();
    for (turn, change) in [
        RegistrationChange::None,
        RegistrationChange::NewerProcess,
        RegistrationChange::NewerProcessConnects,
    ]
    .into_iter()
    .enumerate()
    {
        let started_ns = turn as u64 * 10 * EVIDENCE_INTERVAL_NS;
        let now_ns = started_ns + EVIDENCE_INTERVAL_NS + SECOND_NS;
        data_plane.set(7);
        let earlier_process = controller.register(GATEWAY, 1).await.unwrap();
        let link = controller.register(GATEWAY, 1).await.unwrap();
        submit(&link, &mut data_plane, started_ns + SECOND_NS).await;
        data_plane.set(8);
        let first = link.poll_trust(times(now_ns), &mut nonces_at(now_ns)).await;
        let nonce = first.unwrap().unwrap().nonce.unwrap();
        locking_connection.execute("BEGIN IMMEDIATE").await.unwrap();
        let outcome = link
            .submit_evidence(
                data_plane.statement(nonce),
                Some(data_plane.inventory()),
                times(now_ns),
            )
            .await;
        assert!(outcome.is_err(), "the database is locked");
        locking_connection.execute("ROLLBACK").await.unwrap();

        let stale_error = earlier_process
            .poll_trust(times(now_ns), &mut nonces_at(8))
            .await
            .unwrap_err();
        assert!(
            !controller.is_stale_through_distrust(&stale_error),
            "another process replaced this one: {stale_error}"
        );
        if change == RegistrationChange::None {
            let later = FencingToken::presented(GATEWAY, link.token_number(), 1);
            let later_link = controller.link(later);
            later_link.record_abandoned_requests().await.unwrap();
            // A refused request does not cancel the new token.
            let outdated = link.poll_trust(times(now_ns), &mut nonces_at(8)).await;
            assert!(matches!(
                outdated.unwrap_err(),
                RegistryError::Fencing(FencingError::OutdatedRequest { .. })
            ));
            let second = later_link.poll_trust(times(now_ns), &mut nonces_at(9)).await;
            let newest = second.unwrap().unwrap().fencing_token;
            assert!(newest.expect("a new token was pending") > link.token_number());
            continue;
        }
        registry.register_gateway(GATEWAY, 2).await.unwrap();
        if change == RegistrationChange::NewerProcessConnects {
            assert_newer_registration_unaffected(
                &controller,
                link.token_number() + 1,
                &mut data_plane,
                now_ns + 2 * SECOND_NS,
            )
            .await;
        }
        let stale_error = link
            .poll_trust(times(now_ns), &mut nonces_at(9))
            .await
            .unwrap_err();
        assert!(
            !controller.is_stale_through_distrust(&stale_error),
            "the process was replaced: {stale_error}"
        );
    }
}

/// A newer process that registered at another controller keeps its leases until it is itself untrusted.
async fn assert_newer_registration_unaffected(
    controller: &Controller,
    number: u64,
    data_plane: &mut AttestedDataPlane,
    now_ns: u64,
) {
    controller.restart_trust(GATEWAY, None);
    let newer_link = controller.link(FencingToken::presented(GATEWAY, number, 0));
    let result = newer_link.poll_trust(times(now_ns), &mut nonces_at(now_ns)).await;
    let result = result.unwrap().unwrap();
    assert!(
        result.fencing_token.is_none(),
        "the pending token is of another process"
    );
    let nonce = result.nonce.unwrap();
    let outcome = newer_link
        .submit_evidence(data_plane.statement(nonce), None, times(now_ns))
        .await;
    let newest = outcome.unwrap().unwrap().fencing_token;
    assert_eq!(newest.expect("the newer process is untrusted, too"), number + 1);
}
