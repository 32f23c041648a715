//! Users and sessions, event log, stored responses, gateway records, signers.

use crate::support::{fleet_of_40, gateway, in_memory, is_on_postgres, open, pool_device, sql};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{
    Action, Actor, CLOCK_SKEW_MAX_MS, DeviceError, EventFilter, EventLogEntry, EventLogReader, FencingError,
    GatewayState, IdempotencyState, NewEvent, Registry, RegistryError, Role, ServiceError, SignerRecord,
    StoredResponse, User,
};

const NOW_S: u64 = 1_790_000_000;

fn user(name: &str, role: Role) -> User {
    User {
        name: name.to_owned(),
        role,
        has_token: true,
        created_at_s: NOW_S,
        expires_at_s: None,
    }
}

fn action(kind: &str, device: Option<u64>) -> Action {
    Action {
        at_ms: NOW_S * 1000,
        actor: Actor {
            name: "alice".to_owned(),
            role: Role::Operator,
            origin: "192.0.2.7".to_owned(),
        },
        reason: "stolen\nin Basel".to_owned(),
        event: NewEvent {
            kind: kind.to_owned(),
            device: device.map(DeviceId),
            ..NewEvent::default()
        },
    }
}

#[test]
async fn a_token_authenticates_its_user_until_it_expires() {
    let registry = in_memory().await;
    let admin = user("alice", Role::Admin);
    registry.add_user(&admin, Some("token of alice")).await.unwrap();
    let viewer = User {
        expires_at_s: Some(NOW_S + 10),
        ..user("guest", Role::Viewer)
    };
    registry.add_user(&viewer, Some("token of guest")).await.unwrap();
    let by_certificate = User {
        has_token: false,
        ..user("build server", Role::Operator)
    };
    registry.add_user(&by_certificate, None).await.unwrap();

    assert_eq!(
        registry.user_by_token("token of alice", NOW_S).await.unwrap(),
        Some(admin)
    );
    assert_eq!(
        registry.user_by_token("token of Alice", NOW_S).await.unwrap(),
        None
    );
    assert_eq!(
        registry.user_by_token("token of guest", NOW_S + 9).await.unwrap(),
        Some(viewer)
    );
    assert_eq!(
        registry
            .user_by_token("token of guest", NOW_S + 10)
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        registry.user_by_name("build server", NOW_S).await.unwrap(),
        Some(by_certificate)
    );
    assert_eq!(registry.users().await.unwrap().len(), 3);
    let result = registry
        .add_user(&user("alice", Role::Viewer), Some("another"))
        .await;
    assert!(
        matches!(
            result,
            Err(RegistryError::Service(ServiceError::InvalidField {
                field: "name",
                ..
            }))
        ),
        "{result:?}"
    );

    let login = registry
        .begin_session("token of alice", "cookie", NOW_S, NOW_S + 100)
        .await
        .unwrap();
    assert_eq!(login.unwrap().1, NOW_S + 100);
    let session = registry
        .begin_session("alice", "biscuit", NOW_S, NOW_S + 100)
        .await;
    assert_eq!(session.unwrap(), None, "a name is not a token");
    assert_eq!(registry.user_by_session("biscuit", NOW_S).await.unwrap(), None);
    let (user_of_session, until_s) = registry
        .user_by_session("cookie", NOW_S + 99)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((user_of_session.name.as_str(), until_s), ("alice", NOW_S + 100));
    assert_eq!(
        registry.user_by_session("cookie", NOW_S + 100).await.unwrap(),
        None
    );
    assert!(registry.remove_user("alice").await.unwrap());
    assert_eq!(
        registry.user_by_token("token of alice", NOW_S).await.unwrap(),
        None
    );
    assert_eq!(
        registry.user_by_session("cookie", NOW_S).await.unwrap(),
        None,
        "the session ends at once"
    );
    assert!(!registry.remove_user("alice").await.unwrap());
}

#[test]
async fn a_session_ends_with_its_token_and_makes_room_for_newer_ones() {
    let registry = in_memory().await;
    let viewer = User {
        expires_at_s: Some(NOW_S + 50),
        ..user("guest", Role::Viewer)
    };
    registry.add_user(&viewer, Some("token of guest")).await.unwrap();
    let begin = async |cookie: &str, until_s| {
        let session = registry
            .begin_session("token of guest", cookie, NOW_S, until_s)
            .await;
        session.unwrap().unwrap().1
    };
    assert_eq!(begin("long", NOW_S + 100).await, NOW_S + 50);
    for number in 0..100 {
        assert_eq!(begin(&number.to_string(), NOW_S + 10).await, NOW_S + 10);
    }
    let is_live = async |cookie: &str| registry.user_by_session(cookie, NOW_S).await.unwrap().is_some();
    assert!(is_live("long").await && is_live("99").await);
    let mut active_sessions = 0;
    for number in 0..100 {
        active_sessions += usize::from(is_live(&number.to_string()).await);
    }
    assert_eq!(active_sessions, 99, "the maximum, together with the long session");
}

/// Write access to the database without the master key does not create an admin.
#[test]
async fn edits_of_user_records_do_not_grant_access() {
    for edit in [
        "UPDATE api_user SET role = 3",
        "UPDATE api_user SET expires_at_s = NULL",
        "UPDATE api_user SET name = 'bob'",
        "UPDATE api_user SET token_hash = tag",
        "UPDATE gateway_record SET revoked_at_s = NULL, revoked_reason = NULL",
        "UPDATE signer SET revoked_at_s = NULL",
    ] {
        let (_directory, location) = fleet_of_40().await;
        let registry = open(&location).await.unwrap();
        let viewer = User {
            expires_at_s: Some(NOW_S),
            ..user("guest", Role::Viewer)
        };
        registry.add_user(&viewer, Some("token")).await.unwrap();
        registry
            .revoke_gateway(GatewayId(7), "sold", NOW_S)
            .await
            .unwrap();
        registry.add_signer(&signer(1)).await.unwrap();
        registry.revoke_signer(&[1; 8], NOW_S).await.unwrap();
        assert!(registry.check().await.unwrap().is_empty());
        sql(&location, edit).await;
        assert_eq!(registry.check().await.unwrap().len(), 1, "{edit}");
        if edit.contains("api_user") {
            for name in ["guest", "bob"] {
                let result = registry.user_by_name(name, 0).await;
                assert!(!matches!(result, Ok(Some(_))), "{edit}: {result:?}");
            }
        }
        if edit.contains("gateway_record") {
            assert!(registry.register_gateway(GatewayId(7), NOW_S).await.is_err());
        }
    }
}

#[test]
async fn actions_are_recorded_in_the_event_log() {
    let registry = in_memory().await;
    for id in 1..=3 {
        registry.enroll(pool_device(id, 4)).await.unwrap();
    }
    let acting = registry.with_action(action("revoked", Some(2))).unwrap();
    acting.revoke(DeviceId(2), "stolen", NOW_S).await.unwrap();
    // The repeated revocation changes nothing and is not recorded.
    acting.revoke(DeviceId(2), "stolen", NOW_S).await.unwrap();
    let unknown = registry.with_action(action("revoked", Some(9))).unwrap();
    let error = unknown.revoke(DeviceId(9), "stolen", NOW_S).await.unwrap_err();
    unknown.record_refusal(&error.to_string()).await.unwrap();
    registry
        .record_events(
            &[NewEvent {
                kind: "gateway_disconnected".to_owned(),
                gateway: Some(GatewayId(1)),
                ..NewEvent::default()
            }],
            5,
        )
        .await
        .unwrap();

    let page = registry.events(&EventFilter::default(), None, 100).await.unwrap();
    let result: Vec<_> = page
        .entries
        .iter()
        .map(|entry| {
            (
                entry.number,
                entry.event.kind.as_str(),
                entry.actor.is_some(),
                entry.refused,
            )
        })
        .collect();
    assert_eq!(
        result,
        [
            (3, "gateway_disconnected", false, false),
            (2, "revoked", true, true),
            (1, "revoked", true, false)
        ]
    );
    assert!(page.entries.iter().all(|entry| entry.authentic));
    assert_eq!(page.entries[2].reason.as_deref(), Some("stolen\nin Basel"));
    assert_eq!(page.entries[2].actor, Some(action("", None).actor));
    assert!(page.entries[1].event.detail.contains("not enrolled"));

    let filters = [
        (
            EventFilter {
                device: Some(DeviceId(2)),
                ..EventFilter::default()
            },
            vec![1],
        ),
        (
            EventFilter {
                gateway: Some(GatewayId(1)),
                ..EventFilter::default()
            },
            vec![3],
        ),
        (
            EventFilter {
                actions_only: true,
                ..EventFilter::default()
            },
            vec![2, 1],
        ),
        (
            EventFilter {
                exclude_refused: true,
                ..EventFilter::default()
            },
            vec![3, 1],
        ),
        (
            EventFilter {
                actor: Some("alice".to_owned()),
                ..EventFilter::default()
            },
            vec![2, 1],
        ),
        (
            EventFilter {
                kinds: vec!["round".to_owned()],
                ..EventFilter::default()
            },
            vec![],
        ),
    ];
    for (filter, expected) in filters {
        let page = registry.events(&filter, None, 100).await.unwrap();
        let numbers: Vec<u64> = page.entries.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, expected, "{filter:?}");
    }
    let first = registry.events(&EventFilter::default(), None, 2).await.unwrap();
    let second = registry
        .events(&EventFilter::default(), first.next, 2)
        .await
        .unwrap();
    assert_eq!(
        (first.next, second.entries.len(), second.next),
        (Some(2), 1, None)
    );
    assert_eq!(registry.newest_authentic_event().await.unwrap(), 3);
    let entries = registry.events_after(1, 10).await.unwrap();
    assert_eq!(
        entries.iter().map(|entry| entry.number).collect::<Vec<_>>(),
        [2, 3]
    );
}

#[test]
async fn a_changed_or_deleted_event_log_entry_is_detected() {
    for (edit, damaged) in [
        ("UPDATE event_log SET reason = 'none' WHERE number = 2", vec![2]),
        ("UPDATE event_log SET actor = NULL WHERE number = 2", vec![2]),
        ("DELETE FROM event_log WHERE number = 2", vec![3]),
        ("DELETE FROM event_log WHERE number = 1", vec![2]),
        ("UPDATE event_log SET number = 9 WHERE number = 4", vec![9]),
    ] {
        let (_directory, location) = fleet_of_40().await;
        let registry = open(&location).await.unwrap();
        for id in 1..=4 {
            let acting = registry.with_action(action("revoked", Some(id))).unwrap();
            acting.revoke(DeviceId(id), "lost", NOW_S).await.unwrap();
        }
        assert!(registry.check().await.unwrap().is_empty());
        sql(&location, edit).await;
        let findings = registry.check().await.unwrap();
        let numbers: Vec<u64> = findings
            .iter()
            .map(|error| match error {
                RegistryError::Service(ServiceError::DamagedEvent { number }) => *number,
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(numbers, damaged, "{edit}");
        let page = registry.events(&EventFilter::default(), None, 10).await.unwrap();
        assert!(page.entries.iter().any(|entry| !entry.authentic), "{edit}");
    }
}

#[test]
async fn a_repeated_idempotency_key_returns_the_same_response() {
    let registry = in_memory().await;
    let begin = async |user: &str, key: &str, request: u8, now_s: u64| {
        registry
            .begin_request(user, key, &[request; 32], now_s, 60)
            .await
            .unwrap()
    };
    assert_eq!(begin("alice", "k", 1, NOW_S).await, IdempotencyState::New);
    assert_eq!(
        begin("alice", "k", 1, NOW_S + 59).await,
        IdempotencyState::InProgress
    );
    assert_eq!(begin("alice", "k", 2, NOW_S).await, IdempotencyState::KeyReused);
    assert_eq!(
        begin("bob", "k", 2, NOW_S).await,
        IdempotencyState::New,
        "keys are per user"
    );
    assert_eq!(
        begin("alice", "k", 1, NOW_S + 60).await,
        IdempotencyState::New,
        "the former request is abandoned"
    );
    let response = StoredResponse {
        status: 201,
        body: b"{}".to_vec(),
    };
    registry
        .finish_request("alice", "k", &[1; 32], Some(&response))
        .await
        .unwrap();
    assert_eq!(
        begin("alice", "k", 1, NOW_S + 61).await,
        IdempotencyState::Completed(response)
    );
    registry.finish_request("bob", "k", &[2; 32], None).await.unwrap();
    assert_eq!(
        begin("bob", "k", 3, NOW_S).await,
        IdempotencyState::New,
        "the former request had no effect"
    );
    // After a day, a key identifies a new request.
    assert_eq!(
        begin("carol", "k", 1, NOW_S + 86_462).await,
        IdempotencyState::New
    );
    assert_eq!(
        begin("alice", "k", 2, NOW_S + 86_463).await,
        IdempotencyState::New
    );
    assert!(
        registry
            .begin_request("alice", "", &[0; 32], NOW_S, 60)
            .await
            .is_err()
    );
}

/// Write access to the database cannot forge responses of requests that were not performed.
#[test]
async fn forged_responses_are_ignored() {
    for edit in [
        "UPDATE api_response SET status = 200",
        "UPDATE api_response SET body = x'7b7d'",
        "UPDATE api_response SET body = NULL",
        "UPDATE api_response SET body = x'20'",
        "UPDATE api_response SET status = 70000",
        "UPDATE api_response SET user_name = 'bob'",
        "UPDATE api_response SET key = 'l'",
        "UPDATE api_response SET request = x'0202020202020202020202020202020202020202020202020202020202020202'",
    ] {
        let (_directory, location) = fleet_of_40().await;
        let registry = open(&location).await.unwrap();
        let begin =
            async |user, key, request: u8| registry.begin_request(user, key, &[request; 32], NOW_S, 60).await;
        begin("alice", "k", 1).await.unwrap();
        let response = StoredResponse {
            status: 201,
            body: b"{}".to_vec(),
        };
        registry
            .finish_request("alice", "k", &[1; 32], Some(&response))
            .await
            .unwrap();
        assert_eq!(
            begin("alice", "k", 1).await.unwrap(),
            IdempotencyState::Completed(response)
        );
        sql(&location, edit).await;
        let (user, key, request) = match edit {
            _ if edit.contains("user_name") => ("bob", "k", 1),
            _ if edit.contains("key") => ("alice", "l", 1),
            _ if edit.contains("request") => ("alice", "k", 2),
            _ => ("alice", "k", 1),
        };
        let error = begin(user, key, request).await.unwrap_err();
        assert!(
            error.to_string().contains("does not authenticate"),
            "{edit}: {error}"
        );
    }
}

/// The reader skips no entry after forged entries were added and removed, or an older event log was restored.
#[test]
async fn forged_entries_do_not_mislead_a_reader() {
    let (_directory, location) = fleet_of_40().await;
    let registry = open(&location).await.unwrap();
    let revoke = async |id: u64| {
        let acting = registry.with_action(action("revoked", Some(id))).unwrap();
        acting.revoke(DeviceId(id), "lost", NOW_S).await.unwrap();
    };
    revoke(1).await;
    revoke(2).await;
    const FORGED: &str = "INSERT INTO event_log (number, at_ms, kind, detail, refused, tag) \
                          SELECT 9223372036854775807, at_ms, kind, detail, refused, tag FROM event_log WHERE number = 1";
    sql(&location, FORGED).await;
    assert_eq!(registry.newest_authentic_event().await.unwrap(), 2);
    let mut reader = EventLogReader::after(1);
    let next = async |reader: &mut EventLogReader, limit| -> Vec<(u64, bool)> {
        let entries = reader.next(&registry, limit).await.unwrap();
        let of = |entry: &EventLogEntry| (entry.number, entry.authentic);
        entries.iter().map(of).collect()
    };
    let forged = (i64::MAX.unsigned_abs(), false);
    assert_eq!(next(&mut reader, 10).await, [(2, true), forged]);
    assert_eq!(next(&mut reader, 10).await, [], "each entry is returned once");
    sql(&location, "DELETE FROM event_log WHERE number > 2").await;
    assert_eq!(next(&mut reader, 10).await, []);
    revoke(3).await;
    assert_eq!(next(&mut reader, 10).await, [(3, true)]);
    assert_eq!(reader.position(), 3);
    // Pages of forged entries only are skipped.
    sql(
        &location,
        "UPDATE event_log SET kind = 'other' WHERE number IN (1, 2)",
    )
    .await;
    let mut from_start = EventLogReader::after(0);
    for expected in [(1, false), (2, false), (3, true)] {
        assert_eq!(next(&mut from_start, 1).await, [expected]);
    }
    let mut restarted = from_start;
    restarted.set_position(0);
    assert_eq!(next(&mut restarted, 1).await, [(3, true)]);
    // An older event log is restored.
    sql(&location, "DELETE FROM event_log WHERE number > 1").await;
    assert_eq!(next(&mut reader, 10).await, []);
    assert_eq!(reader.position(), 1, "the reader continues from entry 1");
}

#[test]
async fn a_revoked_gateway_receives_nothing_and_cannot_register_again() {
    let registry = in_memory().await;
    registry.enroll(pool_device(1, 10)).await.unwrap();
    registry.set_gateway(GatewayId(1), "hall 1", NOW_S).await.unwrap();
    let fencing_token = gateway(&registry).await;
    registry
        .set_gateway(GatewayId(1), "hall one", NOW_S + 5)
        .await
        .unwrap();
    let entry = registry.gateways().await.unwrap().remove(0).unwrap();
    assert_eq!(
        (entry.name.as_str(), entry.created_at_s, entry.fencing_token),
        ("hall one", NOW_S, 1)
    );
    registry
        .revoke_gateway(GatewayId(1), "sold", NOW_S + 9)
        .await
        .unwrap();
    assert!(matches!(
        registry.register_gateway(GatewayId(1), NOW_S).await,
        Err(RegistryError::Fencing(FencingError::GatewayRevoked { .. }))
    ));
    assert!(matches!(
        registry.verify_fencing_token(&fencing_token).await,
        Err(RegistryError::Fencing(FencingError::StaleFencingToken { .. }))
    ));
    let result = registry.set_gateway(GatewayId(1), "hall 1", NOW_S).await;
    assert!(result.unwrap_err().to_string().contains("never used again"));
    registry
        .revoke_gateway(GatewayId(1), "once more", NOW_S + 20)
        .await
        .unwrap();
    let entry = registry.gateways().await.unwrap().remove(0).unwrap();
    assert_eq!(entry.revoked, Some((NOW_S + 9, "sold".to_owned())));
    // A gateway without a record may register.
    registry.register_gateway(GatewayId(2), NOW_S).await.unwrap();

    let state = GatewayState {
        gateway: GatewayId(1),
        at_ms: 7,
        controller: "a".to_owned(),
        body: "{}".to_owned(),
    };
    registry.record_gateway_state(&state, 7).await.unwrap();
    let later = GatewayState { at_ms: 8, ..state };
    registry.record_gateway_state(&later, 8).await.unwrap();
    assert_eq!(registry.gateway_states().await.unwrap(), [later]);
}

/// A record with a time far ahead does not block later records. A record with a time slightly ahead blocks later records
/// until its time has passed.
#[test]
async fn a_time_in_the_future_is_overwritten() {
    const NOW_MS: u64 = NOW_S * 1_000;
    let registry = in_memory().await;
    let record_state = async |at_ms: u64, now_ms: u64| {
        let state = GatewayState {
            gateway: GatewayId(1),
            at_ms,
            controller: "a".to_owned(),
            body: "{}".to_owned(),
        };
        registry.record_gateway_state(&state, now_ms).await.unwrap();
        registry.gateway_state(GatewayId(1)).await.unwrap().unwrap().at_ms
    };
    let ahead = NOW_MS + CLOCK_SKEW_MAX_MS;
    assert_eq!(record_state(ahead + 1, ahead + 1).await, ahead + 1);
    assert_eq!(record_state(NOW_MS, NOW_MS).await, NOW_MS);
    assert_eq!(record_state(ahead, ahead).await, ahead);
    assert_eq!(record_state(NOW_MS, NOW_MS).await, ahead);
    assert_eq!(record_state(ahead + 1, ahead + 1).await, ahead + 1);
    // A delayed record does not replace a newer one.
    assert_eq!(record_state(NOW_MS, ahead + 1).await, ahead + 1);
    assert_eq!(record_state(u64::MAX, u64::MAX).await, i64::MAX.unsigned_abs());
    assert_eq!(record_state(NOW_MS, NOW_MS).await, NOW_MS);
}

fn signer(id: u8) -> SignerRecord {
    SignerRecord {
        id: vec![id; 8],
        name: format!("truck {id}"),
        scheme: "ed25519".to_owned(),
        public_key: vec![id; 32],
        added_at_s: NOW_S,
        revoked_at_s: None,
    }
}

#[test]
async fn a_revoked_signer_stays_revoked() {
    let registry = in_memory().await;
    for id in [2, 1] {
        registry.add_signer(&signer(id)).await.unwrap();
    }
    assert!(registry.revoke_signer(&[1; 8], NOW_S).await.unwrap());
    assert!(registry.revoke_signer(&[1; 8], NOW_S + 5).await.unwrap());
    assert!(!registry.revoke_signer(&[3; 8], NOW_S).await.unwrap());
    let signers: Vec<SignerRecord> = registry
        .signers()
        .await
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let revoked = SignerRecord {
        revoked_at_s: Some(NOW_S),
        ..signer(1)
    };
    assert_eq!(signers, [revoked, signer(2)]);
    let message = registry.add_signer(&signer(1)).await.unwrap_err().to_string();
    assert!(message.contains("cannot be added again"), "{message}");
}

/// One call revokes several devices.
#[test]
async fn bulk_revocation_is_atomic() {
    let registry: Registry = in_memory().await;
    for id in 1..=5 {
        registry.enroll(pool_device(id, 2)).await.unwrap();
    }
    registry.revoke(DeviceId(4), "before", NOW_S).await.unwrap();
    let devices = [1, 4, 9, 2].map(DeviceId);
    let (revoked, problems) = registry.revoke_all(&devices, "recall", NOW_S).await.unwrap();
    assert_eq!((revoked, problems.len()), (2, 1));
    assert!(
        problems[0].to_string().contains("0000000000000009"),
        "{}",
        problems[0]
    );
    for id in 1..=5 {
        let info = registry.get(DeviceId(id)).await.unwrap();
        assert_eq!(info.status.is_active(), [3, 5].contains(&id), "{id}");
    }
    if is_on_postgres() {
        return;
    }
    let result = registry.revoke_all(&[DeviceId(3)], "\u{1b}[2J", NOW_S).await;
    assert!(matches!(
        result,
        Err(RegistryError::Device(DeviceError::InvalidRecord { .. }))
    ));
}
