//! Copies and moves between SQLite and PostgreSQL.

use crate::fingerprints::{fingerprint, store, with_fingerprint};
use crate::support::attestation::{NOW_S, appraisal, group, prover, round, with_enrollment};
use crate::support::{
    empty_tables, fleet_of_40, gateway, is_on_postgres, key_device, lease, master_key, open, rows, sql,
    try_sql, unused_location,
};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_registry::{
    DeviceFilter, FencingError, FencingToken, Location, NewEvent, OnConflict, OpenError, Progress,
    ProvenSession, Registry, RegistryError, Renewal, Role, SignerRecord, StoredResponse, User,
};
use linewarden_types::{BootId, BootTimestamp, Revision, UnusedRows};
use tempfile::TempDir;

/// A registry with records in every table.
async fn full_registry() -> (TempDir, Location) {
    let (directory, location) = fleet_of_40().await;
    let registry = open(&location).await.unwrap();
    let fencing_token = gateway(&registry).await;
    for device in 1..=20 {
        let _granted = lease(&registry, &fencing_token, device, 0, 5).await.unwrap();
    }
    let unused_rows = UnusedRows {
        device: DeviceId(3),
        epoch: 0,
        unused_from: RowIndex(2),
        keep_leased: false,
    };
    registry
        .record_unused_rows(&fencing_token, &[unused_rows])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    registry
        .revoke(DeviceId(7), "stolen in\nBasel", NOW_S)
        .await
        .unwrap();
    registry.allow_pair(DeviceId(1), DeviceId(2)).await.unwrap();
    registry
        .pair_key(DeviceId(1), DeviceId(2), 100)
        .await
        .unwrap()
        .unwrap();
    add_devices(&registry, &fencing_token).await;
    add_attestation(&registry, &fencing_token).await;
    add_service_records(&registry).await;
    registry.close().await;
    (directory, location)
}

/// Adds an unleased range of device 12, which moved to another gateway; more rows for device 13, which has a session at
/// gateway 1; a manual quarantine of device 14.
async fn add_devices(registry: &Registry, fencing_token: &FencingToken) {
    let other_gateway = registry.register_gateway(GatewayId(9), NOW_S).await.unwrap();
    let _granted = lease(registry, &other_gateway, 12, 5, 2).await.unwrap();
    let unused_rows = UnusedRows {
        device: DeviceId(12),
        epoch: 0,
        unused_from: RowIndex(0),
        keep_leased: false,
    };
    registry
        .record_unused_rows(fencing_token, &[unused_rows])
        .await
        .unwrap();
    let renewal = Renewal::Rows {
        epoch: 0,
        first: 100,
        rows: rows(13, 0, 1),
    };
    registry.renew(DeviceId(13), 1, renewal).await.unwrap();
    let started = BootTimestamp {
        boot_id: BootId([3; 16]),
        ns: 5,
    };
    let session = ProvenSession {
        device: DeviceId(13),
        started,
    };
    registry
        .record_sessions(fencing_token, &[session], started)
        .await
        .unwrap();
    registry
        .quarantine_manually(DeviceId(14), "odd traffic", NOW_S)
        .await
        .unwrap();
    let recognized = with_fingerprint(key_device(50), fingerprint(50));
    store(registry, vec![recognized], OnConflict::Refuse)
        .await
        .unwrap();
}

/// Adds device 5 as a prover with a successful attestation.
async fn add_attestation(registry: &Registry, fencing_token: &FencingToken) {
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    registry.enroll_prover(prover(5), NOW_S).await.unwrap();
    registry.create_period(None, [9; 8], NOW_S).await.unwrap();
    registry.reserve_rounds(fencing_token, 8, 0).await.unwrap();
    registry
        .record_round(fencing_token, &round(1, 7), &with_enrollment([appraisal(5, 7)]))
        .await
        .unwrap();
    registry.store_evidence(DeviceId(5), b"{}", NOW_S).await.unwrap();
}

/// Adds a user with a session and a stored response, an event, a gateway record and a signer.
async fn add_service_records(registry: &Registry) {
    let alice = User {
        name: "alice".to_owned(),
        role: Role::Admin,
        has_token: true,
        created_at_s: NOW_S,
        expires_at_s: Some(NOW_S + 10_000),
    };
    registry.add_user(&alice, Some("token of alice")).await.unwrap();
    registry
        .begin_session("token of alice", "cookie", NOW_S, NOW_S + 100)
        .await
        .unwrap()
        .unwrap();
    registry
        .begin_request("alice", "key", &[1; 32], NOW_S, 60)
        .await
        .unwrap();
    let response = StoredResponse {
        status: 200,
        body: b"done".to_vec(),
    };
    registry
        .finish_request("alice", "key", &[1; 32], Some(&response))
        .await
        .unwrap();
    let event = NewEvent {
        kind: "gateway_online".to_owned(),
        detail: "as it was".to_owned(),
        ..NewEvent::default()
    };
    registry.record_events(&[event], NOW_S * 1_000).await.unwrap();
    registry.set_gateway(GatewayId(8), "hall 8", NOW_S).await.unwrap();
    let signer = SignerRecord {
        id: vec![1; 8],
        name: "truck 1".to_owned(),
        scheme: "ed25519".to_owned(),
        public_key: vec![1; 32],
        added_at_s: NOW_S,
        revoked_at_s: None,
    };
    registry.add_signer(&signer).await.unwrap();
}

/// An empty table would not test that the table is copied.
#[test]
async fn the_copied_test_data_cover_every_table() {
    if is_on_postgres() {
        return;
    }
    let (_directory, location) = full_registry().await;
    let empty = empty_tables(location.file().unwrap()).await;
    // Gateway states are reported again within seconds and are not copied.
    assert_eq!(empty, ["gateway_state"]);
}

/// Copy targets: one in the database of this run, and a file.
fn targets() -> Vec<(TempDir, Location)> {
    let directory = tempfile::tempdir().unwrap();
    let file = Location::Sqlite(directory.path().join("copy.registry"));
    vec![unused_location(), (directory, file)]
}

#[test]
async fn a_copy_is_the_same_registry() {
    let (_directory, location) = full_registry().await;
    let registry = open(&location).await.unwrap();
    let mut digests = Vec::new();
    for (_directory, target) in targets() {
        let mut result: Vec<Progress> = Vec::new();
        let copied = registry
            .copy_to(&target, |progress| result.push(progress))
            .await
            .unwrap();
        let last = result.last().unwrap();
        assert_eq!(
            (Some(last.done), last.done),
            (last.total, copied.records_in_all_tables * 2)
        );
        digests.push(copied);
        let copy = Registry::open(&target, &master_key()).await.unwrap();
        assert!(copy.check().await.unwrap().is_empty());
        assert_eq!(copy.revision().await.unwrap(), registry.revision().await.unwrap());
        let changes = registry.changes_since(Revision::ZERO, 1000).await.unwrap();
        assert_eq!(copy.changes_since(Revision::ZERO, 1000).await.unwrap(), changes);
        assert_eq!(
            copy.leases_of(DeviceId(3)).await.unwrap(),
            registry.leases_of(DeviceId(3)).await.unwrap()
        );
        assert_eq!(
            copy.load(DeviceId(9)).await.unwrap(),
            registry.load(DeviceId(9)).await.unwrap()
        );
        // The next row of the copy is above all rows that two gateways may have received from the original after the
        // copy.
        let fencing_token = copy.register_gateway(GatewayId(2), NOW_S).await.unwrap();
        let granted = lease(&copy, &fencing_token, 1, 0, 2).await.unwrap();
        assert_eq!(granted.rows, 9..11);
        // Nothing is ever overwritten.
        let error = registry.copy_to(&target, |_| ()).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Open(OpenError::AlreadyExists { .. })),
            "{error}"
        );
    }
    assert_eq!(digests[0], digests[1], "regardless of the database");
}

/// Two registries with the same rows would lease each row twice.
#[test]
async fn a_moved_registry_leases_nothing() {
    for (_kept, target) in targets() {
        let (_directory, location) = full_registry().await;
        let registry = open(&location).await.unwrap();
        let fencing_token = gateway(&registry).await;
        registry.move_to(&target, |_| ()).await.unwrap();

        let moved = open(&target).await.unwrap();
        assert!(moved.check().await.unwrap().is_empty());
        let granted = lease(&moved, &fencing_token, 9, 5, 3).await.unwrap();
        assert_eq!(granted.rows, 5..8, "the gateway continues at the copy");

        let name = target.to_string();
        let is_moved = |error: RegistryError| {
            assert!(
                matches!(&error, RegistryError::Open(OpenError::Moved { to, .. }) if *to == name),
                "{error}"
            );
        };
        is_moved(lease(&registry, &fencing_token, 9, 5, 3).await.unwrap_err());
        is_moved(registry.verify_fencing_token(&fencing_token).await.unwrap_err());
        is_moved(registry.revoke(DeviceId(1), "", NOW_S).await.unwrap_err());
        is_moved(registry.move_to(&target, |_| ()).await.unwrap_err());
        is_moved(open(&location).await.unwrap_err());
    }
}

/// After a kill between the two commits, both registries are unusable until the move is repeated.
#[test]
async fn an_interrupted_move_is_completed_by_the_next_move() {
    for (_kept, target) in targets() {
        let (_directory, location) = full_registry().await;
        let count = async |location: &Location| {
            open(location)
                .await
                .unwrap()
                .count(&DeviceFilter::default())
                .await
                .unwrap()
        };
        let devices = count(&location).await;
        sql(&location, &format!("UPDATE registry SET moved_to = '{target}'")).await;
        assert!(matches!(
            open(&location).await,
            Err(RegistryError::Open(OpenError::Moved { .. }))
        ));
        let (_elsewhere, another_target) = unused_location();
        let result = Registry::open_to_move(&location, &master_key(), &another_target).await;
        assert!(
            matches!(result, Err(RegistryError::Open(OpenError::Moved { .. }))),
            "{result:?}"
        );

        let registry = Registry::open_to_move(&location, &master_key(), &target)
            .await
            .unwrap();
        let revoked = registry.revoke(DeviceId(30), "lost", NOW_S).await;
        assert!(
            matches!(revoked, Err(RegistryError::Open(OpenError::Moved { .. }))),
            "{revoked:?}"
        );
        let result = registry.move_to(&another_target, |_| ()).await;
        assert!(
            matches!(result, Err(RegistryError::Open(OpenError::Moved { .. }))),
            "{result:?}"
        );
        registry.move_to(&target, |_| ()).await.unwrap();
        assert!(matches!(
            open(&location).await,
            Err(RegistryError::Open(OpenError::Moved { .. }))
        ));
        assert_eq!(count(&target).await, devices);
        // Another repetition has nothing to complete.
        let result = registry.move_to(&target, |_| ()).await;
        assert!(
            matches!(result, Err(RegistryError::Open(OpenError::Moved { .. }))),
            "{result:?}"
        );
    }
}

/// A moved registry is not moved again from the remaining source, even if the target is unavailable.
#[test]
async fn a_move_that_has_ended_is_not_repeated() {
    let (_directory, location) = full_registry().await;
    let registry = open(&location).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.registry");
    let target = Location::from(file.clone());
    registry.move_to(&target, |_| ()).await.unwrap();
    std::fs::rename(&file, directory.path().join("away")).unwrap();

    // A process that opened the registry before the move does not read the old state.
    let result = registry.check_available().await;
    assert!(
        matches!(result, Err(RegistryError::Open(OpenError::Moved { .. }))),
        "{result:?}"
    );
    let result = registry.user_by_token("token of alice", NOW_S).await;
    assert!(
        matches!(result, Err(RegistryError::Open(OpenError::Moved { .. }))),
        "{result:?}"
    );
    let result = registry.user_by_session("cookie", NOW_S).await;
    assert!(
        matches!(result, Err(RegistryError::Open(OpenError::Moved { .. }))),
        "{result:?}"
    );
    let result = registry.move_to(&target, |_| ()).await;
    assert!(
        matches!(result, Err(RegistryError::Open(OpenError::Moved { .. }))),
        "{result:?}"
    );
    let result = Registry::open_to_move(&location, &master_key(), &target).await;
    assert!(
        matches!(result, Err(RegistryError::Open(OpenError::Moved { .. }))),
        "{result:?}"
    );
    assert!(!file.exists());
}

/// The process was killed after it published the copy and before it recorded this. A repetition completes the move
/// while the copy exists. A foreign registry at the target does not complete the move.
#[test]
async fn a_move_with_a_published_copy_is_not_repeated() {
    let (_directory, location) = full_registry().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.registry");
    let target = Location::from(file.clone());
    sql(&location, &format!("UPDATE registry SET moved_to = '{target}'")).await;
    let repeat = async || {
        let registry = Registry::open_to_move(&location, &master_key(), &target).await?;
        registry.move_to(&target, |_| ()).await
    };
    Registry::create(&target, &master_key()).await.unwrap();
    assert!(matches!(
        repeat().await,
        Err(RegistryError::Open(OpenError::Moved { .. }))
    ));
    std::fs::remove_file(&file).unwrap();
    repeat().await.unwrap();

    sql(&location, "UPDATE registry SET move_completed = 0").await;
    assert!(matches!(
        repeat().await,
        Err(RegistryError::Open(OpenError::Moved { .. }))
    ));
    std::fs::rename(&file, directory.path().join("away")).unwrap();
    assert!(matches!(
        repeat().await,
        Err(RegistryError::Open(OpenError::Moved { .. }))
    ));
    assert!(!file.exists());
}

/// If the copy cannot be published, the source is already marked as moved: two registries that lease the same rows
/// would be worse than none.
#[test]
async fn a_move_that_fails_in_its_last_step_can_be_repeated() {
    let (_directory, location) = full_registry().await;
    let registry = open(&location).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.registry");
    let target = Location::from(file.clone());
    let mut is_blocked = false;
    let unfinished_move = registry.move_to(&target, |_| {
        // Another program creates a file with the target's name.
        if !std::mem::replace(&mut is_blocked, true) {
            std::fs::write(&file, "mine").unwrap();
        }
    });
    let error = unfinished_move.await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Open(OpenError::MoveUnfinished { .. })),
        "{error}"
    );
    assert!(matches!(
        open(&location).await,
        Err(RegistryError::Open(OpenError::Moved { .. }))
    ));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");

    std::fs::remove_file(&file).unwrap();
    registry.move_to(&target, |_| ()).await.unwrap();
    open(&target).await.unwrap();
}

/// A failed copy leaves nothing at the target.
#[test]
async fn a_value_of_another_type_is_named_and_the_copy_is_removed() {
    if is_on_postgres() {
        return;
    }
    let (_directory, location) = full_registry().await;
    assert!(try_sql(&location, "UPDATE device SET name = x'00ff' WHERE device_id = 4").await);
    let registry = open(&location).await.unwrap();
    let (_kept, target) = unused_location();
    let message = registry.copy_to(&target, |_| ()).await.unwrap_err().to_string();
    assert!(
        message.contains("device") && message.contains("name"),
        "{message}"
    );
    assert!(matches!(
        open(&target).await,
        Err(RegistryError::Open(OpenError::NoRegistry { .. }))
    ));
    assert_eq!(registry.get(DeviceId(5)).await.unwrap().device, DeviceId(5));
}

/// Such a registry would name itself as the target and could never be opened again.
#[test]
async fn a_registry_is_not_moved_onto_itself() {
    let (_directory, location) = full_registry().await;
    let registry = open(&location).await.unwrap();
    let error = registry.move_to(&location, |_| ()).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Open(OpenError::AlreadyExists { .. })),
        "{error}"
    );
    registry.revoke(DeviceId(30), "lost", NOW_S).await.unwrap();
    open(&location).await.unwrap();
}

pub fn is_restored(result: &Result<(), RegistryError>) -> bool {
    matches!(
        result,
        Err(RegistryError::Fencing(FencingError::RegistryRestored { .. }))
    )
}

/// Leases after a copy was made are unknown to the copy. The first registration at the copy ends all leases. Earlier
/// fencing tokens are refused, and new leases start above all rows that gateways may have. A moved registry continues.
#[test]
async fn a_copy_ends_leases_and_refuses_earlier_fencing_tokens() {
    let (_directory, location) = fleet_of_40().await;
    let registry = open(&location).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let granted = lease(&registry, &fencing_token, 1, 0, 2).await.unwrap();
    let (_elsewhere, copy) = unused_location();
    registry.copy_to(copy.clone(), |_| ()).await.unwrap();
    registry.verify_fencing_token(&fencing_token).await.unwrap();

    let restored = open(&copy).await.unwrap();
    let result = restored.verify_fencing_token(&fencing_token).await;
    assert!(is_restored(&result), "{result:?}");
    let result = lease(&restored, &fencing_token, 1, 0, 2).await;
    assert!(
        matches!(
            result,
            Err(RegistryError::Fencing(FencingError::RegistryRestored { .. }))
        ),
        "{result:?}"
    );
    let new_token = gateway(&restored).await;
    assert_eq!(restored.leases_of(DeviceId(1)).await.unwrap(), []);
    assert!(is_restored(&restored.verify_fencing_token(&fencing_token).await));
    let next = lease(&restored, &new_token, 1, 0, 2).await.unwrap();
    assert_eq!(
        next.rows.start,
        granted.rows.end + 4,
        "two gateways hold 2 rows each"
    );
    let never_leased = lease(&restored, &new_token, 2, 0, 2).await.unwrap();
    assert_eq!(never_leased.rows.start, 0);
    restored.close().await;
    let restored = open(&copy).await.unwrap();
    restored.verify_fencing_token(&new_token).await.unwrap();

    // Another copy of the same registry starts another incarnation.
    let (_third, other_copy) = unused_location();
    registry.copy_to(other_copy.clone(), |_| ()).await.unwrap();
    let other_copy = open(&other_copy).await.unwrap();
    assert_ne!(gateway(&other_copy).await.number(), new_token.number());

    let (_fourth, moved_registry) = unused_location();
    restored.move_to(moved_registry.clone(), |_| ()).await.unwrap();
    let moved_registry = open(&moved_registry).await.unwrap();
    moved_registry.verify_fencing_token(&new_token).await.unwrap();
    assert_eq!(moved_registry.leases_of(DeviceId(1)).await.unwrap().len(), 1);
}

/// The storage is recorded at creation, so that a dump from before the first registration is detected.
#[test]
async fn the_storage_is_recorded_before_the_first_registration() {
    let (_directory, location) = fleet_of_40().await;
    // A second record in this table would violate the schema.
    let duplicate_if_unrecorded = "INSERT INTO registry SELECT * FROM registry WHERE storage IS NULL";
    sql(&location, duplicate_if_unrecorded).await;
}

/// A registry with an unknown storage continues with its leases and fencing tokens.
#[test]
async fn an_unrecorded_storage_is_recorded_and_ends_no_lease() {
    for storage in ["NULL", "'unnamed'"] {
        let (_directory, location) = fleet_of_40().await;
        let registry = open(&location).await.unwrap();
        let fencing_token = gateway(&registry).await;
        let granted = lease(&registry, &fencing_token, 1, 0, 2).await.unwrap();
        registry.close().await;
        sql(&location, &format!("UPDATE registry SET storage = {storage}")).await;
        if let Some(path) = location.file() {
            std::fs::remove_file(path.with_file_name("fleet.registry.storage")).unwrap();
        }
        let registry = open(&location).await.unwrap();
        registry.verify_fencing_token(&fencing_token).await.unwrap();
        let next = gateway(&registry).await;
        assert_eq!(next.number(), fencing_token.number() + 1, "{storage}");
        let leases = registry.leases_of(DeviceId(1)).await.unwrap();
        assert_eq!(leases.len(), 1, "{storage}");
        assert_eq!(leases[0].rows, granted.rows, "{storage}");
        // A second record in this table would violate the schema.
        let duplicate_if_unrecorded =
            "INSERT INTO registry SELECT * FROM registry WHERE storage IS NULL OR storage = 'unnamed'";
        sql(&location, duplicate_if_unrecorded).await;
    }
}
