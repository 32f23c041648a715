//! Copies and moves between SQLite and PostgreSQL.

use crate::fingerprints::{fingerprint, store, with_fingerprint};
use crate::support::attestation::{NOW_S, appraisal, group, prover, round, with_enrollment};
use crate::support::{
    empty_tables, fleet_of_40, gateway, is_on_postgres, key_device, lease, master_key, open, rows, sql,
    try_sql, unused_location,
};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_registry::{
    BootId, BootTimestamp, DeviceFilter, FencingToken, Location, NewEvent, OnConflict, Progress,
    ProvenSession, Registry, RegistryError, Renewal, Revision, Role, SignerRecord, StoredResponse,
    UnusedRows, User,
};
use tempfile::TempDir;

/// Rows in every table of a registry.
async fn full_registry() -> (TempDir, Location) {
    let (directory, place) = fleet_of_40().await;
    let registry = open(&place).await.unwrap();
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
    of_the_service(&registry).await;
    registry.close().await;
    (directory, place)
}

/// Spare rows of device 12, which moved to another gateway; more rows for device 13, which has a session at gateway
/// 1; a manual quarantine of device 14.
async fn add_devices(registry: &Registry, fencing_token: &FencingToken) {
    let other = registry.register_gateway(GatewayId(9), NOW_S).await.unwrap();
    let _granted = lease(registry, &other, 12, 5, 2).await.unwrap();
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
    let more = Renewal::Rows {
        epoch: 0,
        first: 100,
        rows: rows(13, 0, 1),
    };
    registry.renew(DeviceId(13), 1, more).await.unwrap();
    let began = BootTimestamp {
        boot_id: BootId([3; 16]),
        ns: 5,
    };
    let opened = ProvenSession {
        device: DeviceId(13),
        started: began,
    };
    registry
        .record_sessions(fencing_token, &[opened], began)
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

/// Device 5 as a prover with a successful attestation.
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

/// A user with a session and a stored response, an event, a gateway record and a signer.
async fn of_the_service(registry: &Registry) {
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
    let kept = StoredResponse {
        status: 200,
        body: b"done".to_vec(),
    };
    registry
        .finish_request("alice", "key", &[1; 32], Some(&kept))
        .await
        .unwrap();
    let note = NewEvent {
        kind: "gateway_online".to_owned(),
        detail: "as it was".to_owned(),
        ..NewEvent::default()
    };
    registry.record_events(&[note], NOW_S * 1_000).await.unwrap();
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

/// An empty table would not test its copy.
#[tokio::test]
async fn the_copied_test_data_cover_every_table() {
    if is_on_postgres() {
        return;
    }
    let (_directory, place) = full_registry().await;
    let empty = empty_tables(place.file().unwrap()).await;
    // Gateway states are reported again within seconds and are not copied.
    assert_eq!(empty, ["gateway_state"]);
}

/// Copy targets: one in the database of this run, and a file.
fn targets() -> Vec<(TempDir, Location)> {
    let directory = tempfile::tempdir().unwrap();
    let file = Location::Sqlite(directory.path().join("copy.registry"));
    vec![unused_location(), (directory, file)]
}

#[tokio::test]
async fn a_copy_is_the_same_registry() {
    let (_directory, place) = full_registry().await;
    let registry = open(&place).await.unwrap();
    let mut digests = Vec::new();
    for (_directory, target) in targets() {
        let mut result: Vec<Progress> = Vec::new();
        let copied = registry
            .copy_to(&target, |progress| result.push(progress))
            .await
            .unwrap();
        let last = result.last().unwrap();
        assert_eq!((Some(last.done), last.done), (last.total, copied.rows * 2));
        digests.push(copied);
        let copy = Registry::open(&target, &master_key()).await.unwrap();
        assert!(copy.check().await.unwrap().is_empty());
        assert_eq!(copy.revision().await.unwrap(), registry.revision().await.unwrap());
        let all = registry.changes_since(Revision::ZERO, 1000).await.unwrap();
        assert_eq!(copy.changes_since(Revision::ZERO, 1000).await.unwrap(), all);
        assert_eq!(
            copy.leases_of(DeviceId(3)).await.unwrap(),
            registry.leases_of(DeviceId(3)).await.unwrap()
        );
        assert_eq!(
            copy.load(DeviceId(9)).await.unwrap(),
            registry.load(DeviceId(9)).await.unwrap()
        );
        // The next row of the copy is above all rows that two gateways may have received from the original in
        // between.
        let fencing_token = copy.register_gateway(GatewayId(2), NOW_S).await.unwrap();
        let granted = lease(&copy, &fencing_token, 1, 0, 2).await.unwrap();
        assert_eq!(granted.rows, 9..11);
        // Nothing is ever overwritten.
        let again = registry.copy_to(&target, |_| ()).await.unwrap_err();
        assert!(matches!(again, RegistryError::AlreadyExists { .. }), "{again}");
    }
    assert_eq!(digests[0], digests[1], "regardless of the database");
}

/// Two registries with the same rows would lease each row twice.
#[tokio::test]
async fn a_moved_registry_leases_nothing() {
    for (_kept, target) in targets() {
        let (_directory, place) = full_registry().await;
        let registry = open(&place).await.unwrap();
        let fencing_token = gateway(&registry).await;
        registry.move_to(&target, |_| ()).await.unwrap();

        let moved = open(&target).await.unwrap();
        assert!(moved.check().await.unwrap().is_empty());
        let their = lease(&moved, &fencing_token, 9, 5, 3).await.unwrap();
        assert_eq!(their.rows, 5..8, "the gateway continues at the copy");

        let name = target.to_string();
        let is_moved = |error: RegistryError| {
            assert!(
                matches!(&error, RegistryError::Moved { to, .. } if *to == name),
                "{error}"
            );
        };
        is_moved(lease(&registry, &fencing_token, 9, 5, 3).await.unwrap_err());
        is_moved(registry.verify_fencing_token(&fencing_token).await.unwrap_err());
        is_moved(registry.revoke(DeviceId(1), "", NOW_S).await.unwrap_err());
        is_moved(registry.move_to(&target, |_| ()).await.unwrap_err());
        is_moved(open(&place).await.unwrap_err());
    }
}

/// Killed between the two commits: both registries are unusable until the move is repeated.
#[tokio::test]
async fn an_interrupted_move_is_ended_by_the_next() {
    for (_kept, target) in targets() {
        let (_directory, place) = full_registry().await;
        let count = async |place: &Location| {
            open(place)
                .await
                .unwrap()
                .count(&DeviceFilter::default())
                .await
                .unwrap()
        };
        let devices = count(&place).await;
        sql(&place, &format!("UPDATE registry SET moved_to = '{target}'")).await;
        assert!(matches!(open(&place).await, Err(RegistryError::Moved { .. })));
        let (_elsewhere, another) = unused_location();
        let refused = Registry::open_to_move(&place, &master_key(), &another).await;
        assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");

        let registry = Registry::open_to_move(&place, &master_key(), &target)
            .await
            .unwrap();
        let revoked = registry.revoke(DeviceId(30), "lost", NOW_S).await;
        assert!(matches!(revoked, Err(RegistryError::Moved { .. })), "{revoked:?}");
        let refused = registry.move_to(&another, |_| ()).await;
        assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
        registry.move_to(&target, |_| ()).await.unwrap();
        assert!(matches!(open(&place).await, Err(RegistryError::Moved { .. })));
        assert_eq!(count(&target).await, devices);
        // Another repetition has nothing to complete.
        let refused = registry.move_to(&target, |_| ()).await;
        assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    }
}

/// A moved registry is not moved again from the remaining source, even if the target is unavailable.
#[tokio::test]
async fn a_move_that_has_ended_is_not_repeated() {
    let (_directory, place) = full_registry().await;
    let registry = open(&place).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.registry");
    let target = Location::from(file.clone());
    registry.move_to(&target, |_| ()).await.unwrap();
    std::fs::rename(&file, directory.path().join("away")).unwrap();

    // A process that had the registry open does not read the old state.
    let refused = registry.check_available().await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    let refused = registry.user_by_token("token of alice", NOW_S).await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    let refused = registry.user_by_session("cookie", NOW_S).await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    let refused = registry.move_to(&target, |_| ()).await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    let refused = Registry::open_to_move(&place, &master_key(), &target).await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    assert!(!file.exists());
}

/// Killed after the copy was published and before that was recorded: repeating the move while the copy exists
/// completes it. A foreign registry at the target completes nothing.
#[tokio::test]
async fn a_move_that_is_seen_to_have_ended_is_not_repeated() {
    let (_directory, place) = full_registry().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.registry");
    let target = Location::from(file.clone());
    sql(&place, &format!("UPDATE registry SET moved_to = '{target}'")).await;
    let repeat = async || {
        let registry = Registry::open_to_move(&place, &master_key(), &target).await?;
        registry.move_to(&target, |_| ()).await
    };
    Registry::create(&target, &master_key()).await.unwrap();
    assert!(matches!(repeat().await, Err(RegistryError::Moved { .. })));
    std::fs::remove_file(&file).unwrap();
    repeat().await.unwrap();

    sql(&place, "UPDATE registry SET move_completed = 0").await;
    assert!(matches!(repeat().await, Err(RegistryError::Moved { .. })));
    std::fs::rename(&file, directory.path().join("away")).unwrap();
    assert!(matches!(repeat().await, Err(RegistryError::Moved { .. })));
    assert!(!file.exists());
}

/// If the copy cannot be published, the source is already marked as moved: two registries that lease the same rows would be
/// worse than none.
#[tokio::test]
async fn a_move_that_fails_in_its_last_step_can_be_repeated() {
    let (_directory, place) = full_registry().await;
    let registry = open(&place).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.registry");
    let target = Location::from(file.clone());
    let mut is_blocked = false;
    let failed = registry.move_to(&target, |_| {
        // Another file has taken that name.
        if !std::mem::replace(&mut is_blocked, true) {
            std::fs::write(&file, "mine").unwrap();
        }
    });
    let failed = failed.await.unwrap_err();
    assert!(matches!(failed, RegistryError::MoveUnfinished { .. }), "{failed}");
    assert!(matches!(open(&place).await, Err(RegistryError::Moved { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");

    std::fs::remove_file(&file).unwrap();
    registry.move_to(&target, |_| ()).await.unwrap();
    open(&target).await.unwrap();
}

/// A failed copy leaves nothing at the target.
#[tokio::test]
async fn a_value_of_another_type_is_named_and_the_copy_is_removed() {
    if is_on_postgres() {
        return;
    }
    let (_directory, place) = full_registry().await;
    assert!(try_sql(&place, "UPDATE device SET name = x'00ff' WHERE device_id = 4").await);
    let registry = open(&place).await.unwrap();
    let (_kept, target) = unused_location();
    let refused = registry.copy_to(&target, |_| ()).await.unwrap_err().to_string();
    assert!(
        refused.contains("device") && refused.contains("name"),
        "{refused}"
    );
    assert!(matches!(
        open(&target).await,
        Err(RegistryError::NoRegistry { .. })
    ));
    assert_eq!(registry.get(DeviceId(5)).await.unwrap().device, DeviceId(5));
}

/// It would name itself as the target and could never be opened again.
#[tokio::test]
async fn a_registry_is_not_moved_onto_itself() {
    let (_directory, place) = full_registry().await;
    let registry = open(&place).await.unwrap();
    let refused = registry.move_to(&place, |_| ()).await.unwrap_err();
    assert!(
        matches!(refused, RegistryError::AlreadyExists { .. }),
        "{refused}"
    );
    registry.revoke(DeviceId(30), "lost", NOW_S).await.unwrap();
    open(&place).await.unwrap();
}

pub fn is_restored(result: &Result<(), RegistryError>) -> bool {
    matches!(result, Err(RegistryError::RegistryRestored { .. }))
}

/// Leases after a copy was made are unknown to the copy. The first registration at the copy ends all leases, earlier
/// fencing tokens are refused, and rows start above those that gateways may have. A moved registry continues.
#[tokio::test]
async fn a_copy_ends_leases_and_refuses_earlier_fencing_tokens() {
    let (_directory, place) = fleet_of_40().await;
    let registry = open(&place).await.unwrap();
    let fencing_token = gateway(&registry).await;
    let granted = lease(&registry, &fencing_token, 1, 0, 2).await.unwrap();
    let (_elsewhere, copy) = unused_location();
    registry.copy_to(copy.clone(), |_| ()).await.unwrap();
    registry.verify_fencing_token(&fencing_token).await.unwrap();

    let restored = open(&copy).await.unwrap();
    let refused = restored.verify_fencing_token(&fencing_token).await;
    assert!(is_restored(&refused), "{refused:?}");
    let refused = lease(&restored, &fencing_token, 1, 0, 2).await;
    assert!(
        matches!(refused, Err(RegistryError::RegistryRestored { .. })),
        "{refused:?}"
    );
    let renewed = gateway(&restored).await;
    assert_eq!(restored.leases_of(DeviceId(1)).await.unwrap(), []);
    assert!(is_restored(&restored.verify_fencing_token(&fencing_token).await));
    let next = lease(&restored, &renewed, 1, 0, 2).await.unwrap();
    assert_eq!(
        next.rows.start,
        granted.rows.end + 4,
        "two gateways hold 2 rows each"
    );
    let never_leased = lease(&restored, &renewed, 2, 0, 2).await.unwrap();
    assert_eq!(never_leased.rows.start, 0);
    restored.close().await;
    let restored = open(&copy).await.unwrap();
    restored.verify_fencing_token(&renewed).await.unwrap();

    // Another copy of the same registry starts another incarnation.
    let (_third, other) = unused_location();
    registry.copy_to(other.clone(), |_| ()).await.unwrap();
    let other = open(&other).await.unwrap();
    assert_ne!(gateway(&other).await.number(), renewed.number());

    let (_fourth, moved) = unused_location();
    restored.move_to(moved.clone(), |_| ()).await.unwrap();
    let moved = open(&moved).await.unwrap();
    moved.verify_fencing_token(&renewed).await.unwrap();
    assert_eq!(moved.leases_of(DeviceId(1)).await.unwrap().len(), 1);
}

/// The storage is recorded at creation, so that a dump from before the first registration is detected.
#[tokio::test]
async fn the_storage_is_recorded_before_the_first_registration() {
    let (_directory, place) = fleet_of_40().await;
    // A second row would violate the schema.
    let if_not_noted = "INSERT INTO registry SELECT * FROM registry WHERE storage IS NULL";
    sql(&place, if_not_noted).await;
}

/// A registry with an unknown storage continues with its leases and fencing tokens.
#[tokio::test]
async fn an_unrecorded_storage_is_recorded_and_ends_no_lease() {
    for note in ["NULL", "'unnamed'"] {
        let (_directory, place) = fleet_of_40().await;
        let registry = open(&place).await.unwrap();
        let fencing_token = gateway(&registry).await;
        let granted = lease(&registry, &fencing_token, 1, 0, 2).await.unwrap();
        registry.close().await;
        sql(&place, &format!("UPDATE registry SET storage = {note}")).await;
        if let Some(path) = place.file() {
            std::fs::remove_file(path.with_file_name("fleet.registry.storage")).unwrap();
        }
        let registry = open(&place).await.unwrap();
        registry.verify_fencing_token(&fencing_token).await.unwrap();
        let next = gateway(&registry).await;
        assert_eq!(next.number(), fencing_token.number() + 1, "{note}");
        let held = registry.leases_of(DeviceId(1)).await.unwrap();
        assert_eq!(held.len(), 1, "{note}");
        assert_eq!(held[0].rows, granted.rows, "{note}");
        // A second row would violate the schema.
        let if_not_noted =
            "INSERT INTO registry SELECT * FROM registry WHERE storage IS NULL OR storage = 'unnamed'";
        sql(&place, if_not_noted).await;
    }
}
