//! Copies and moves, from either database to either.

use crate::fingerprints::{fingerprint, store, with_fingerprint};
use crate::support::attestation::{NOW_S, appraisal, group, prover, round, told};
use crate::support::{
    empty_tables, fleet_of_40, gateway, is_on_postgres, key_device, lease, master_key, nowhere, open, rows,
    sql, try_sql,
};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_registry::{
    BootId, Fence, Filter, Kept, Location, Moment, Note, OnConflict, Opened, Progress, Registry,
    RegistryError, Renewal, Revision, Role, Settlement, SignerEntry, User,
};
use tempfile::TempDir;

/// Something in every table that a registry has.
async fn of_everything() -> (TempDir, Location) {
    let (directory, place) = fleet_of_40().await;
    let registry = open(&place).await.unwrap();
    let fence = gateway(&registry).await;
    for device in 1..=20 {
        let _granted = lease(&registry, &fence, device, 0, 5).await.unwrap();
    }
    let settlement = Settlement {
        device: DeviceId(3),
        epoch: 0,
        unused_from: RowIndex(2),
        keep: false,
    };
    registry
        .settle(&fence, &[settlement])
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
    of_devices(&registry, &fence).await;
    of_attestation(&registry, &fence).await;
    of_the_service(&registry).await;
    registry.close().await;
    (directory, place)
}

/// Spare rows of device 12, which was elsewhere meanwhile; more rows for device 13, which has a session at gateway 1; an order about 14.
async fn of_devices(registry: &Registry, fence: &Fence) {
    let other = registry.register_gateway(GatewayId(9), NOW_S).await.unwrap();
    let _granted = lease(registry, &other, 12, 5, 2).await.unwrap();
    let settlement = Settlement {
        device: DeviceId(12),
        epoch: 0,
        unused_from: RowIndex(0),
        keep: false,
    };
    registry.settle(fence, &[settlement]).await.unwrap();
    let more = Renewal::Rows {
        epoch: 0,
        first: 100,
        rows: rows(13, 0, 1),
    };
    registry.renew(DeviceId(13), 1, more).await.unwrap();
    let began = Moment {
        boot: BootId([3; 16]),
        ns: 5,
    };
    let opened = Opened {
        device: DeviceId(13),
        began,
    };
    registry.note_sessions(fence, &[opened], began).await.unwrap();
    registry
        .quarantine_by_order(DeviceId(14), "odd traffic", NOW_S)
        .await
        .unwrap();
    let recognized = with_fingerprint(key_device(50), fingerprint(50));
    store(registry, vec![recognized], OnConflict::Refuse)
        .await
        .unwrap();
}

/// Device 5 as a prover that was asked and has shown what it runs.
async fn of_attestation(registry: &Registry, fence: &Fence) {
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    registry.enrol_prover(prover(5), NOW_S).await.unwrap();
    registry.draw_period(None, [9; 8], NOW_S).await.unwrap();
    registry.reserve_rounds(fence, 8, 0).await.unwrap();
    registry
        .record_round(fence, &round(1, 7), &told([appraisal(5, 7)]))
        .await
        .unwrap();
    registry.put_evidence(DeviceId(5), b"{}", NOW_S).await.unwrap();
}

/// A user with a session and an answer, an event, a gateway in the book, a signer.
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
        .begin_answer("alice", "key", &[1; 32], NOW_S, 60)
        .await
        .unwrap();
    let kept = Kept {
        status: 200,
        body: b"done".to_vec(),
    };
    registry
        .end_answer("alice", "key", &[1; 32], Some(&kept))
        .await
        .unwrap();
    let note = Note {
        kind: "gateway_online".to_owned(),
        detail: "as it was".to_owned(),
        ..Note::default()
    };
    registry.note(&[note], NOW_S * 1_000).await.unwrap();
    registry
        .enter_gateway(GatewayId(8), "hall 8", NOW_S)
        .await
        .unwrap();
    let signer = SignerEntry {
        id: vec![1; 8],
        name: "truck 1".to_owned(),
        scheme: "ed25519".to_owned(),
        public_key: vec![1; 32],
        added_at_s: NOW_S,
        revoked_at_s: None,
    };
    registry.add_signer(&signer).await.unwrap();
}

/// A table that is empty shows of a copy only that nothing became nothing.
#[tokio::test]
async fn what_is_copied_here_is_of_every_table() {
    if is_on_postgres() {
        return;
    }
    let (_directory, place) = of_everything().await;
    let empty = empty_tables(place.file().unwrap()).await;
    // How gateways stood last is told anew within seconds, and not copied.
    assert_eq!(empty, ["gateway_state"]);
}

/// Places to copy to: of the database that this run is about, and a file.
fn targets() -> Vec<(TempDir, Location)> {
    let directory = tempfile::tempdir().unwrap();
    let file = Location::Sqlite(directory.path().join("copy.registry"));
    vec![nowhere(), (directory, file)]
}

#[tokio::test]
async fn a_copy_is_the_same_registry() {
    let (_directory, place) = of_everything().await;
    let registry = open(&place).await.unwrap();
    let mut digests = Vec::new();
    for (_directory, target) in targets() {
        let mut told: Vec<Progress> = Vec::new();
        let copied = registry
            .copy_to(&target, |progress| told.push(progress))
            .await
            .unwrap();
        let last = told.last().unwrap();
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
        // The next row there is above those that two gateways may have been given here meanwhile.
        let fence = copy.register_gateway(GatewayId(2), NOW_S).await.unwrap();
        let granted = lease(&copy, &fence, 1, 0, 2).await.unwrap();
        assert_eq!(granted.rows, 9..11);
        // Nothing is ever overwritten.
        let again = registry.copy_to(&target, |_| ()).await.unwrap_err();
        assert!(matches!(again, RegistryError::AlreadyExists { .. }), "{again}");
    }
    assert_eq!(digests[0], digests[1], "whatever it lies in");
}

/// Two registries with the same rows would give each of them out twice.
#[tokio::test]
async fn a_registry_that_was_moved_gives_nothing_out() {
    for (_kept, target) in targets() {
        let (_directory, place) = of_everything().await;
        let registry = open(&place).await.unwrap();
        let fence = gateway(&registry).await;
        registry.move_to(&target, |_| ()).await.unwrap();

        let moved = open(&target).await.unwrap();
        assert!(moved.check().await.unwrap().is_empty());
        let their = lease(&moved, &fence, 9, 5, 3).await.unwrap();
        assert_eq!(their.rows, 5..8, "the gateway goes on there");

        let name = target.to_string();
        let is_moved = |error: RegistryError| {
            assert!(
                matches!(&error, RegistryError::Moved { to, .. } if *to == name),
                "{error}"
            );
        };
        is_moved(lease(&registry, &fence, 9, 5, 3).await.unwrap_err());
        is_moved(registry.verify_fence(&fence).await.unwrap_err());
        is_moved(registry.revoke(DeviceId(1), "", NOW_S).await.unwrap_err());
        is_moved(registry.move_to(&target, |_| ()).await.unwrap_err());
        is_moved(open(&place).await.unwrap_err());
    }
}

/// Killed between the two commits: neither is to be had, until the move is repeated.
#[tokio::test]
async fn an_interrupted_move_is_ended_by_the_next() {
    for (_kept, target) in targets() {
        let (_directory, place) = of_everything().await;
        let count = async |place: &Location| {
            open(place)
                .await
                .unwrap()
                .count(&Filter::default())
                .await
                .unwrap()
        };
        let devices = count(&place).await;
        sql(&place, &format!("UPDATE registry SET moved_to = '{target}'")).await;
        assert!(matches!(open(&place).await, Err(RegistryError::Moved { .. })));
        let (_elsewhere, another) = nowhere();
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
        // Once more there is nothing to end.
        let refused = registry.move_to(&target, |_| ()).await;
        assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    }
}

/// What was moved and has gone on there is not moved once more from what is left here, also where it is away for now.
#[tokio::test]
async fn a_move_that_has_ended_is_not_repeated() {
    let (_directory, place) = of_everything().await;
    let registry = open(&place).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.registry");
    let target = Location::from(file.clone());
    registry.move_to(&target, |_| ()).await.unwrap();
    std::fs::rename(&file, directory.path().join("away")).unwrap();

    // Who had it open lets nobody in to read what was.
    let refused = registry.is_in_place().await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    let refused = registry.user_of_token("token of alice", NOW_S).await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    let refused = registry.user_of_session("cookie", NOW_S).await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    let refused = registry.move_to(&target, |_| ()).await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    let refused = Registry::open_to_move(&place, &master_key(), &target).await;
    assert!(matches!(refused, Err(RegistryError::Moved { .. })), "{refused:?}");
    assert!(!file.exists());
}

/// Killed after the copy was seen and before that was noted: whoever repeats the move while it is there ends it. Somebody else's
/// registry in that place ends nothing.
#[tokio::test]
async fn a_move_that_is_seen_to_have_ended_is_not_repeated() {
    let (_directory, place) = of_everything().await;
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

    sql(&place, "UPDATE registry SET move_ended = 0").await;
    assert!(matches!(repeat().await, Err(RegistryError::Moved { .. })));
    std::fs::rename(&file, directory.path().join("away")).unwrap();
    assert!(matches!(repeat().await, Err(RegistryError::Moved { .. })));
    assert!(!file.exists());
}

/// Where the copy cannot be put in place, the registry is retired already: two that give out the same rows are worse than none.
#[tokio::test]
async fn a_move_whose_last_step_fails_says_so_and_is_repeated() {
    let (_directory, place) = of_everything().await;
    let registry = open(&place).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fleet.registry");
    let target = Location::from(file.clone());
    let mut in_the_way = false;
    let failed = registry.move_to(&target, |_| {
        // Somebody else's file has that name meanwhile.
        if !std::mem::replace(&mut in_the_way, true) {
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

/// What cannot be carried over leaves nothing where it should go.
#[tokio::test]
async fn what_is_of_another_type_is_named_and_nothing_is_left() {
    if is_on_postgres() {
        return;
    }
    let (_directory, place) = of_everything().await;
    assert!(try_sql(&place, "UPDATE device SET name = x'00ff' WHERE device_id = 4").await);
    let registry = open(&place).await.unwrap();
    let (_kept, target) = nowhere();
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

/// Which would name itself as where it went, and never be opened again.
#[tokio::test]
async fn a_registry_is_not_moved_onto_itself() {
    let (_directory, place) = of_everything().await;
    let registry = open(&place).await.unwrap();
    let refused = registry.move_to(&place, |_| ()).await.unwrap_err();
    assert!(
        matches!(refused, RegistryError::AlreadyExists { .. }),
        "{refused}"
    );
    registry.revoke(DeviceId(30), "lost", NOW_S).await.unwrap();
    open(&place).await.unwrap();
}

pub fn is_restored(answer: &Result<(), RegistryError>) -> bool {
    matches!(answer, Err(RegistryError::Restored { .. }))
}

/// What was leased after a copy was made is not known in it. Whoever is served from it first ends all leases there, and fences of before are
/// refused; rows begin above what gateways may have that have not heard of it. A registry that was moved goes on.
#[tokio::test]
async fn a_copy_ends_leases_and_refuses_the_fences_of_before() {
    let (_directory, place) = fleet_of_40().await;
    let registry = open(&place).await.unwrap();
    let fence = gateway(&registry).await;
    let granted = lease(&registry, &fence, 1, 0, 2).await.unwrap();
    let (_elsewhere, copy) = nowhere();
    registry.copy_to(copy.clone(), |_| ()).await.unwrap();
    registry.verify_fence(&fence).await.unwrap();

    let restored = open(&copy).await.unwrap();
    let refused = restored.verify_fence(&fence).await;
    assert!(is_restored(&refused), "{refused:?}");
    let refused = lease(&restored, &fence, 1, 0, 2).await;
    assert!(
        matches!(refused, Err(RegistryError::Restored { .. })),
        "{refused:?}"
    );
    let anew = gateway(&restored).await;
    assert_eq!(restored.leases_of(DeviceId(1)).await.unwrap(), []);
    assert!(is_restored(&restored.verify_fence(&fence).await));
    let next = lease(&restored, &anew, 1, 0, 2).await.unwrap();
    assert_eq!(
        next.rows.start,
        granted.rows.end + 4,
        "two gateways hold 2 rows each"
    );
    let never_leased = lease(&restored, &anew, 2, 0, 2).await.unwrap();
    assert_eq!(never_leased.rows.start, 0);
    restored.close().await;
    let restored = open(&copy).await.unwrap();
    restored.verify_fence(&anew).await.unwrap();

    // Another copy of the same begins another time.
    let (_third, other) = nowhere();
    registry.copy_to(other.clone(), |_| ()).await.unwrap();
    let other = open(&other).await.unwrap();
    assert_ne!(gateway(&other).await.number(), anew.number());

    let (_fourth, moved) = nowhere();
    restored.move_to(moved.clone(), |_| ()).await.unwrap();
    let moved = open(&moved).await.unwrap();
    moved.verify_fence(&anew).await.unwrap();
    assert_eq!(moved.leases_of(DeviceId(1)).await.unwrap().len(), 1);
}

/// The storage is noted when a registry is made, so that a dump of before the first registration is known as one.
#[tokio::test]
async fn the_storage_is_noted_before_the_first_registration() {
    let (_directory, place) = fleet_of_40().await;
    // A second row would not fit.
    let if_not_noted = "INSERT INTO registry SELECT * FROM registry WHERE storage IS NULL";
    sql(&place, if_not_noted).await;
}

/// A registry of the schema of before, and one whose database did not say which it is, go on: leases and fences stay.
#[tokio::test]
async fn a_storage_that_was_not_noted_before_is_noted_and_ends_nothing() {
    for note in ["NULL", "'unnamed'"] {
        let (_directory, place) = fleet_of_40().await;
        let registry = open(&place).await.unwrap();
        let fence = gateway(&registry).await;
        let granted = lease(&registry, &fence, 1, 0, 2).await.unwrap();
        registry.close().await;
        sql(&place, &format!("UPDATE registry SET storage = {note}")).await;
        if let Some(path) = place.file() {
            std::fs::remove_file(path.with_file_name("fleet.registry.storage")).unwrap();
        }
        let registry = open(&place).await.unwrap();
        registry.verify_fence(&fence).await.unwrap();
        let next = gateway(&registry).await;
        assert_eq!(next.number(), fence.number() + 1, "{note}");
        let held = registry.leases_of(DeviceId(1)).await.unwrap();
        assert_eq!(held.len(), 1, "{note}");
        assert_eq!(held[0].rows, granted.rows, "{note}");
        // A second row would not fit.
        let if_not_noted =
            "INSERT INTO registry SELECT * FROM registry WHERE storage IS NULL OR storage = 'unnamed'";
        sql(&place, if_not_noted).await;
    }
}
