//! Effects of the trust state on links: rows, leases, fencing tokens.

use std::time::Duration;

use linewarden_controller::trust::{EvidenceRejected, GatewayTrustState, Timestamps, TrustOutcome};
use linewarden_controller::{Controller, Denial, Link, Policy, RefusalReason, RowRequest};
use linewarden_evidence::encoding::{BpfMapEntry, Entry};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_registry::{Credentials, DeviceRecord, MasterKey, Options, Registry, RegistryError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, Executor as _, SqliteConnection};

use crate::attested_data_plane::AttestedDataPlane;
use crate::{EVERY, GATEWAY, RESPONSE_TIMEOUT, S, distrust_reason};

const DEVICE: DeviceId = DeviceId(0xd1);

fn times(now_ns: u64) -> Timestamps {
    Timestamps {
        now_ns,
        now_s: now_ns / S,
    }
}

async fn site(data_plane: &mut AttestedDataPlane) -> Controller {
    let key = MasterKey::from_bytes([1; 32]);
    site_over(Registry::in_memory(&key).await.unwrap(), data_plane).await
}

async fn site_over(registry: Registry, data_plane: &mut AttestedDataPlane) -> Controller {
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

/// Polls, and submits the evidence of the data plane.
async fn submit(link: &Link, data_plane: &mut AttestedDataPlane, now: u64) -> TrustOutcome {
    let polled = link
        .poll_trust(times(now), &mut nonces_at(now))
        .await
        .unwrap()
        .unwrap();
    let nonce = polled.status.nonce.expect("evidence is due");
    let inventory = data_plane.inventory();
    let outcome = link
        .submit_evidence(data_plane.statement(nonce), Some(inventory), times(now))
        .await;
    outcome.unwrap().unwrap()
}

fn nonces_at(now: u64) -> impl FnMut() -> Option<[u8; 32]> + Send {
    move || {
        let mut nonce = [3; 32];
        nonce[..8].copy_from_slice(&now.to_be_bytes());
        Some(nonce)
    }
}

#[tokio::test]
async fn rows_are_leased_only_to_a_trusted_gateway() {
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = site(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    let denied = |denial: Denial| denial.to_string();
    let unproven = denied(link.extend_leases(&[row_request()]).await.unwrap_err());
    assert!(unproven.contains("no evidence submitted yet"), "{unproven}");
    assert!(matches!(
        link.leases().next_chunk().await,
        Err(Denial::Untrusted { .. })
    ));
    assert!(matches!(
        link.admit_devices(&[], [7; 8]).await,
        Err(Denial::Untrusted { .. })
    ));
    // Gateways without a trust policy are served.
    let other = controller.register(GatewayId(6), 1).await.unwrap();
    let (_, refused) = other.extend_leases(&[row_request()]).await.unwrap();
    assert_eq!(refused[0].reason, RefusalReason::NotHeld);
    assert!(
        other
            .poll_trust(times(0), &mut nonces_at(0))
            .await
            .unwrap()
            .is_none()
    );

    let verdict = submit(&link, &mut data_plane, S).await;
    assert_eq!(verdict.status.state, GatewayTrustState::Trusted);
    assert!(verdict.link.is_none(), "no lease was revoked");
    controller.advance_time(S);
    link.extend_leases(&[row_request()]).await.unwrap();
    assert!(link.leases().next_chunk().await.is_ok());
}

#[tokio::test]
async fn a_changed_gateway_loses_its_leases_by_a_new_fencing_token() {
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = site(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    submit(&link, &mut data_plane, S).await;
    let leases = link.leases();
    data_plane.set(8);
    let verdict = submit(&link, &mut data_plane, EVERY + S).await;
    assert!(
        distrust_reason(&verdict.status.state).contains("07 is now 08"),
        "{verdict:?}"
    );

    let now = verdict.link.expect("the token was renewed");
    assert_eq!(now.token_number(), link.token_number() + 1);
    let old = link.record_unused_rows(&[]).await.unwrap_err();
    assert!(matches!(old, RegistryError::StaleFencingToken { .. }), "{old}");
    assert!(
        controller.is_distrust_fencing(&old),
        "no other process has registered"
    );
    drop(leases);
    assert!(matches!(
        now.extend_leases(&[row_request()]).await,
        Err(Denial::Untrusted { .. })
    ));

    data_plane.set(7);
    let verdict = submit(&now, &mut data_plane, 2 * EVERY + S).await;
    assert_eq!(verdict.status.state, GatewayTrustState::Trusted);
    now.extend_leases(&[row_request()]).await.unwrap();

    // Another process registers, and must submit evidence.
    let successor = controller.register(GATEWAY, 2).await.unwrap();
    let old = now.record_unused_rows(&[]).await.unwrap_err();
    assert!(!controller.is_distrust_fencing(&old), "the process was replaced");
    assert!(matches!(
        successor.extend_leases(&[row_request()]).await,
        Err(Denial::Untrusted { .. })
    ));
    let nonce = successor
        .poll_trust(times(3 * EVERY), &mut nonces_at(9))
        .await
        .unwrap()
        .unwrap();
    let nonce = nonce.status.nonce.unwrap();
    let outcome = now
        .submit_evidence(data_plane.statement(nonce), None, times(3 * EVERY))
        .await;
    assert!(outcome.is_err(), "an earlier process cannot submit evidence");
}

#[tokio::test]
async fn missing_evidence_revokes_the_leases() {
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = site(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    submit(&link, &mut data_plane, S).await;
    let at = EVERY + S;
    link.poll_trust(times(at), &mut nonces_at(at)).await.unwrap();
    controller.advance_time(at + RESPONSE_TIMEOUT);
    let overdue = link.extend_leases(&[row_request()]).await.unwrap_err();
    assert!(overdue.to_string().contains("overdue"), "{overdue}");
    let verdict = link
        .poll_trust(
            times(at + RESPONSE_TIMEOUT),
            &mut nonces_at(at + RESPONSE_TIMEOUT),
        )
        .await;
    let verdict = verdict.unwrap().unwrap();
    assert!(distrust_reason(&verdict.status.state).contains("10 s"));
    assert!(verdict.link.is_some());
    let refused = link
        .submit_evidence(Vec::new(), None, times(at + RESPONSE_TIMEOUT))
        .await
        .unwrap_err();
    assert!(matches!(refused, RegistryError::StaleFencingToken { .. }));
}

#[tokio::test]
async fn a_renewed_token_is_returned_again_to_the_same_process_only() {
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = site(&mut data_plane).await;
    let before = controller.register(GATEWAY, 1).await.unwrap();
    let link = controller.register(GATEWAY, 1).await.unwrap();
    submit(&link, &mut data_plane, S).await;
    data_plane.set(8);
    let first = submit(&link, &mut data_plane, EVERY + S).await.link.unwrap();
    // The response was lost.
    let polled = link.poll_trust(times(EVERY + S), &mut nonces_at(7)).await;
    let polled = polled.unwrap().unwrap();
    assert_eq!(polled.link.unwrap().token_number(), first.token_number());
    assert!(matches!(polled.status.state, GatewayTrustState::Untrusted { .. }));
    // The same if the token was renewed twice since.
    data_plane.set(7);
    submit(&first, &mut data_plane, 2 * EVERY + S).await;
    data_plane.set(8);
    let second = submit(&first, &mut data_plane, 3 * EVERY + S).await.link.unwrap();
    for lost in [&link, &first] {
        let polled = lost.poll_trust(times(3 * EVERY + S), &mut nonces_at(8)).await;
        assert_eq!(
            polled.unwrap().unwrap().link.unwrap().token_number(),
            second.token_number()
        );
    }
    let old = before
        .poll_trust(times(3 * EVERY + S), &mut nonces_at(9))
        .await
        .unwrap_err();
    assert!(
        !controller.is_distrust_fencing(&old),
        "that one was replaced: {old}"
    );
    controller.register(GATEWAY, 2).await.unwrap();
    let old = second
        .poll_trust(times(3 * EVERY + S), &mut nonces_at(9))
        .await
        .unwrap_err();
    assert!(
        !controller.is_distrust_fencing(&old),
        "the process was replaced: {old}"
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
    let controller = site(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    let other = controller.register(GatewayId(6), 1).await.unwrap();
    let polled = link
        .poll_trust(times(S), &mut nonces_at(S))
        .await
        .unwrap()
        .unwrap();
    let statement = data_plane.statement(polled.status.nonce.unwrap());
    let outcome = link.submit_evidence(statement, Some(data_plane.inventory()), times(S));
    let mut outcome = std::pin::pin!(outcome);
    let (requests, mut served) = ([row_request()], 0);
    let verdict = loop {
        tokio::select! {
            biased;
            verdict = outcome.as_mut() => break verdict.unwrap().unwrap(),
            leased = other.extend_leases(&requests) => {
                leased.unwrap();
                served += 1;
            }
        }
        controller.advance_time(S);
    };
    assert_eq!(verdict.status.state, GatewayTrustState::Trusted);
    assert!(
        served > 5,
        "{served} requests of another gateway were served during the appraisal"
    );
}

/// Evidence of a process that registered again during the appraisal has no effect.
#[tokio::test]
async fn an_appraisal_counts_only_for_the_pending_nonce() {
    let mut data_plane = data_plane_with_entries();
    let controller = site(&mut data_plane).await;
    let link = controller.register(GATEWAY, 1).await.unwrap();
    let polled = link
        .poll_trust(times(S), &mut nonces_at(S))
        .await
        .unwrap()
        .unwrap();
    let statement = data_plane.statement(polled.status.nonce.unwrap());
    let outcome = link.submit_evidence(statement, Some(data_plane.inventory()), times(S));
    let mut outcome = std::pin::pin!(outcome);
    for _ in 0..3 {
        tokio::select! {
            biased;
            verdict = outcome.as_mut() => panic!("too early: {verdict:?}"),
            fencing_token = link.verify_registration() => fencing_token.unwrap(),
        }
    }
    controller.restart_trust(GATEWAY, None);
    assert!(matches!(
        outcome.await.unwrap(),
        Err(EvidenceRejected::NotRequested)
    ));
    controller.advance_time(S);
    let denied = link.extend_leases(&[row_request()]).await.unwrap_err();
    assert!(matches!(denied, Denial::Untrusted { .. }), "{denied}");
}

/// The state of a registration whose token is to be renewed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RaiseCase {
    /// No one else has renewed the token.
    Due,
    /// Another controller has, for a newer process.
    Elsewhere,
    /// The same, and the newer process connects to this controller.
    Reconnected,
}

/// A renewal that failed because the database was locked stays pending for the untrusted process. If another
/// controller has renewed the token since, the process gets an error.
#[tokio::test]
async fn a_token_renewal_is_pending_until_it_is_done_or_obsolete() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fleet.registry");
    let options = Options {
        busy_timeout: Duration::from_millis(50),
        ..Options::default()
    };
    let key = MasterKey::from_bytes([1; 32]);
    let registry = Registry::create_with(path.clone(), &key, &options).await.unwrap();
    let mut data_plane = AttestedDataPlane::new(3);
    let controller = site_over(registry.clone(), &mut data_plane).await;
    let mut other = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&path))
        .await
        .unwrap();
    for (turn, raise) in [RaiseCase::Due, RaiseCase::Elsewhere, RaiseCase::Reconnected]
        .into_iter()
        .enumerate()
    {
        let started_ns = turn as u64 * 10 * EVERY;
        let now = started_ns + EVERY + S;
        data_plane.set(7);
        let before = controller.register(GATEWAY, 1).await.unwrap();
        let link = controller.register(GATEWAY, 1).await.unwrap();
        submit(&link, &mut data_plane, started_ns + S).await;
        data_plane.set(8);
        let first = link.poll_trust(times(now), &mut nonces_at(now)).await;
        let nonce = first.unwrap().unwrap().status.nonce.unwrap();
        other.execute("BEGIN IMMEDIATE").await.unwrap();
        let outcome = link
            .submit_evidence(
                data_plane.statement(nonce),
                Some(data_plane.inventory()),
                times(now),
            )
            .await;
        assert!(outcome.is_err(), "the database is locked");
        other.execute("ROLLBACK").await.unwrap();

        let old = before
            .poll_trust(times(now), &mut nonces_at(8))
            .await
            .unwrap_err();
        assert!(
            !controller.is_distrust_fencing(&old),
            "that one was replaced: {old}"
        );
        if raise == RaiseCase::Due {
            let second = link.poll_trust(times(now), &mut nonces_at(9)).await;
            let raised = second.unwrap().unwrap().link.expect("the renewal was pending");
            assert!(raised.token_number() > link.token_number());
            continue;
        }
        registry.register_gateway(GATEWAY, 2).await.unwrap();
        if raise == RaiseCase::Reconnected {
            assert_newer_registration_unaffected(
                &controller,
                link.token_number() + 1,
                &mut data_plane,
                now + 2 * S,
            )
            .await;
        }
        let over = link.poll_trust(times(now), &mut nonces_at(9)).await.unwrap_err();
        assert!(
            !controller.is_distrust_fencing(&over),
            "the process was replaced: {over}"
        );
    }
}

/// A newer process keeps the leases from another controller, until it is found to be untrusted itself.
async fn assert_newer_registration_unaffected(
    controller: &Controller,
    number: u64,
    data_plane: &mut AttestedDataPlane,
    now: u64,
) {
    controller.restart_trust(GATEWAY, None);
    let newer = controller.link(GATEWAY, number);
    let result = newer.poll_trust(times(now), &mut nonces_at(now)).await;
    let result = result.unwrap().unwrap();
    assert!(result.link.is_none(), "the pending renewal is of another process");
    let nonce = result.status.nonce.unwrap();
    let outcome = newer
        .submit_evidence(data_plane.statement(nonce), None, times(now))
        .await;
    let raised = outcome.unwrap().unwrap().link.expect("it is untrusted, too");
    assert_eq!(raised.token_number(), number + 1);
}
