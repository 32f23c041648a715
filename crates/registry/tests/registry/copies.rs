//! Copies and moves, from either database to either.

use crate::support::attestation::{NOW_S, group, prover};
use crate::support::{fleet_of_40, gateway, is_on_postgres, lease, master_key, nowhere, open, sql, try_sql};
use linewarden_protocol::ids::{DeviceId, GatewayId, RowIndex};
use linewarden_registry::{Filter, Location, Progress, Registry, RegistryError, Revision, Settlement};
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
    registry.set_group(&group("pumps"), NOW_S).await.unwrap();
    registry.enrol_prover(prover(5), NOW_S).await.unwrap();
    registry.put_evidence(DeviceId(5), b"{}", NOW_S).await.unwrap();
    registry.close().await;
    (directory, place)
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
        // The next row there is the next row here.
        let fence = copy.register_gateway(GatewayId(2), NOW_S).await.unwrap();
        let granted = lease(&copy, &fence, 1, 0, 2).await.unwrap();
        assert_eq!(granted.rows, 5..7);
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
